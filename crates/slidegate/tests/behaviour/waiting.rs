//! Waiting in line: who goes first, for how long, and what is left behind.
//!
//! Limiter and runtime share one paused clock, which jumps to the next timer when nothing else is
//! to be done: no test waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Decision, Limiter, MemoryStore, Quota, Reason,
    acquire::{MaxWaiting, NotAcquired, NotAcquiredKind},
    clock::{Clock, ManualClock, Timestamp},
};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};

/// Tokio's clock, as a limiter reads it.
#[derive(Debug)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_000_000_000) + self.0.elapsed()
    }
}

fn limiter(quota: &str) -> Limiter {
    let store = MemoryStore::builder().clock(PausedClock(Instant::now())).build();
    Limiter::with_store(quota.parse().unwrap(), store)
}

/// Puts somebody in line, and returns when he stands there.
async fn stand(
    limiter: &Arc<Limiter>,
    cost: u64,
    within: Duration,
) -> JoinHandle<Result<Decision, NotAcquired>> {
    let limiter = Arc::clone(limiter);
    let task = tokio::spawn(async move { limiter.acquire("alice").cost(cost).timeout(within).await });
    yield_now().await;
    task
}

const MINUTE: Duration = Duration::from_secs(60);

/// A queue that wakes too early is denied, one that wakes too late wastes what it waited for.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_the_cost_fits() {
    let limiter = limiter("3/10s");
    let start = Instant::now();
    for (cost, after_s) in [(2, 0), (2, 10), (1, 10), (3, 20), (1, 30)] {
        let decision = limiter.acquire("alice").cost(cost).await.unwrap();
        assert_eq!((decision.cost(), start.elapsed().as_secs()), (cost, after_s));
    }
    assert_eq!(limiter.acquire("bob").await.unwrap().remaining(), 2);
    assert_eq!(start.elapsed().as_secs(), 30);
}

/// No place in line may let more through than the limit: a queue is where a burst comes from.
#[tokio::test(start_paused = true)]
async fn no_window_holds_more_than_the_limit() {
    let limiter = Arc::new(limiter("10/1s"));
    let mut tasks = Vec::new();
    for _ in 0..95 {
        tasks.push(stand(&limiter, 1, MINUTE).await);
    }
    let mut stamps = Vec::new();
    for task in tasks {
        stamps.push(task.await.unwrap().unwrap().at());
    }
    for eleven in stamps.windows(11) {
        assert!(eleven[10] - eleven[0] >= Duration::from_secs(1), "{eleven:?}");
    }
    assert_eq!(*stamps.last().unwrap() - stamps[0], Duration::from_secs(9));
}

/// A wait that is bound to fail is time taken from the caller and from those behind him.
#[tokio::test(start_paused = true)]
async fn the_first_in_line_is_told_at_once_that_its_deadline_is_too_soon() {
    let limiter = limiter("1/10s");
    let _ = limiter.check("alice");
    let start = Instant::now();
    let late = limiter.acquire("alice").timeout(Duration::from_millis(9_999)).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(late.kind(), NotAcquiredKind::Late);
    assert_eq!(late.retry_after(), Some(Duration::from_secs(10)));
    assert_eq!(
        late.to_string(),
        "the cost did not fit within 9999 ms: it fits in 10000 ms at the earliest; wait longer or ask for less"
    );
    // To the very instant it is soon enough.
    limiter.acquire("alice").timeout(Duration::from_secs(10)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
}

/// Whoever waits in vain behind others keeps a connection and a caller for nothing, and learns no wait.
#[tokio::test(start_paused = true)]
async fn who_comes_behind_others_is_denied_at_once_if_no_turn_comes_in_time() {
    // Ahead wait these costs, of which the first has its turn when the window ends: the next turn of a cost of 1.
    for (quota, ahead, turn_ms) in [
        ("1/10s", vec![1], 20_000),
        ("1/10s", vec![1, 1, 1], 40_000),
        ("3/10s", vec![3], 20_000),
        ("3/10s", vec![2], 10_000),
        ("3/10s", vec![3, 2], 20_000),
        ("3/10s", vec![3, 2, 1], 30_000),
        ("3/10s token-bucket", vec![3], 13_334),
    ] {
        let (text, bucket) = quota.split_once(' ').map_or((quota, false), |(text, _)| (text, true));
        let mut quota: Quota = text.parse().unwrap();
        if bucket {
            quota = quota.with_algorithm(Algorithm::TokenBucket);
        }
        let store = MemoryStore::builder().clock(PausedClock(Instant::now())).build();
        let limiter = Arc::new(Limiter::with_store(quota, store));
        assert!(limiter.check_cost("alice", quota.limit()).is_allowed());
        let start = Instant::now();
        let mut before = Vec::new();
        for cost in &ahead {
            before.push(stand(&limiter, *cost, MINUTE).await);
        }
        let turn = Duration::from_millis(turn_ms);
        let millisecond = Duration::from_millis(1);
        for within in [Duration::ZERO, turn - millisecond] {
            let late = limiter.acquire("alice").timeout(within).await.unwrap_err();
            assert_eq!((start.elapsed(), late.kind()), (Duration::ZERO, NotAcquiredKind::Late), "{ahead:?}");
            let wait = late.retry_after().unwrap();
            assert!(turn - millisecond <= wait && wait <= turn, "{ahead:?}: {wait:?}, not {turn:?}");
        }
        let denied = limiter.acquire("alice").timeout(Duration::ZERO).decide().await;
        assert_eq!((denied.reason(), denied.cost()), (Some(Reason::OverLimit), 0));
        let last = limiter
            .acquire("alice")
            .timeout(turn + millisecond)
            .await
            .map(|_| start.elapsed().as_micros().div_ceil(1000));
        assert_eq!(last, Ok(u128::from(turn_ms)), "{ahead:?}");
        for one in before {
            one.await.unwrap().unwrap();
        }
    }
}

/// A deadline is what the caller has promised to somebody else.
#[tokio::test(start_paused = true)]
async fn nobody_waits_past_his_deadline() {
    let limiter = Arc::new(limiter("3/10s"));
    let _ = limiter.check("alice");
    let start = Instant::now();
    let first = stand(&limiter, 3, MINUTE).await;
    sleep(Duration::from_secs(8)).await;
    // Cost comes at any time from now on, as far as the first answer says.
    let late = limiter.acquire("alice").timeout(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::from_secs(8));
    assert_eq!(late.retry_after(), Some(Duration::from_secs(12)));
    first.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(10));
    // Behind a head that waits for what is held, nothing is certain.
    let second = stand(&limiter, 1, Duration::from_secs(10)).await;
    second.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(20));
}

/// Counts how often it is read: once for each decision and each peek.
#[derive(Debug)]
struct CountedClock(PausedClock, Arc<AtomicUsize>);

impl Clock for CountedClock {
    fn now(&self) -> Timestamp {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.now()
    }
}

/// Whoever follows must not ask for what the answer before has said: over a network each question is a call.
#[tokio::test(start_paused = true)]
async fn a_turn_takes_one_question() {
    let reads = Arc::new(AtomicUsize::new(0));
    let clock = CountedClock(PausedClock(Instant::now()), Arc::clone(&reads));
    let limiter =
        Arc::new(Limiter::with_store("1/1s".parse().unwrap(), MemoryStore::builder().clock(clock).build()));
    let _ = limiter.check("alice");
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(stand(&limiter, 1, MINUTE).await);
    }
    reads.store(0, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(reads.load(Ordering::Relaxed), 20);
}

/// A try must not take what somebody has been waiting for.
#[tokio::test(start_paused = true)]
async fn within_no_time_at_all_is_a_try_that_does_not_overtake() {
    let limiter = Arc::new(limiter("2/10s"));
    assert!(limiter.acquire("alice").timeout(Duration::ZERO).await.is_ok());
    let first = stand(&limiter, 2, MINUTE).await;
    // There is room for one, but the first in line is to have it.
    assert_eq!(limiter.peek("alice").remaining(), 1);
    assert_eq!(
        limiter.acquire("alice").timeout(Duration::ZERO).await.unwrap_err().kind(),
        NotAcquiredKind::Late
    );
    first.await.unwrap().unwrap();
    assert!(limiter.acquire("alice").timeout(Duration::MAX).await.is_ok());
}

/// What can never be must not be waited for, nor stand in a line that is long.
#[tokio::test(start_paused = true)]
async fn a_cost_that_never_fits_is_an_error_at_once() {
    let limiter = Arc::new(limiter("2/10s"));
    let _ = limiter.check_cost("alice", 2);
    let first = stand(&limiter, 1, MINUTE).await;
    let start = Instant::now();
    let never = limiter.acquire("alice").cost(3).await.unwrap_err();
    assert_eq!(never.kind(), NotAcquiredKind::Never);
    assert_eq!(
        never.to_string(),
        "invalid cost 3: must be at most 2, the capacity of the quota; ask for less at once"
    );
    // Nothing costs nothing, and waits for nobody.
    assert_eq!(limiter.acquire("alice").cost(0).await.unwrap().cost(), 0);
    assert_eq!(start.elapsed(), Duration::ZERO);
    // Those who wait learn of it when the quota shrinks beneath them.
    let second = stand(&limiter, 2, MINUTE).await;
    limiter.configure(Quota::per_minute(1));
    first.abort();
    assert_eq!(second.await.unwrap().unwrap_err().kind(), NotAcquiredKind::Never);
}

/// A crowd that waits is memory; beyond a bound it must be rejected.
#[tokio::test(start_paused = true)]
async fn a_full_line_is_an_error_at_once() {
    let most = MaxWaiting { per_key: 2, in_all: 3 };
    let limiter = Arc::new(limiter("1/10s").with_max_waiting(most));
    let _ = limiter.check("alice");
    let _ = limiter.check("bob");
    let _ = limiter.check("carol");
    let first = stand(&limiter, 1, MINUTE).await;
    let second = stand(&limiter, 1, MINUTE).await;
    let full = limiter.acquire("alice").await.unwrap_err();
    assert_eq!(full.kind(), NotAcquiredKind::Full);
    assert_eq!(
        full.to_string(),
        "too many waiters for the key: at most 2 may wait; retry later, or raise `max_waiting`"
    );
    let other = Arc::clone(&limiter);
    let bob = tokio::spawn(async move { other.acquire("bob").await });
    yield_now().await;
    let full = limiter.acquire("carol").await.unwrap_err();
    assert_eq!(
        full.to_string(),
        "too many waiters in total: at most 3 may wait; retry later, or raise `max_waiting`"
    );
    // Who leaves makes room.
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(limiter.acquire("carol").await.is_ok());
    bob.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    for _ in 0..10 {
        limiter.acquire("alice").await.unwrap();
    }
}

/// Refunded capacity belongs to those who wait, not to a request that arrives when the timer fires.
#[tokio::test(start_paused = true)]
async fn room_that_a_refund_a_reset_or_a_new_quota_makes_is_noticed_at_once() {
    // The limiter's time stands still: nothing but these makes room.
    let store = MemoryStore::builder().clock(ManualClock::new()).build();
    let limiter = Arc::new(Limiter::with_store(Quota::per_minute(1), store));
    let _ = limiter.check("alice");
    let start = Instant::now();
    let waits = stand(&limiter, 1, MINUTE).await;
    assert_eq!(limiter.refund("alice", 1).cost(), 1);
    waits.await.unwrap().unwrap();
    let waits = stand(&limiter, 1, MINUTE).await;
    assert!(limiter.reset("alice"));
    waits.await.unwrap().unwrap();
    let waits = stand(&limiter, 1, MINUTE).await;
    limiter.configure(Quota::per_minute(2));
    waits.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

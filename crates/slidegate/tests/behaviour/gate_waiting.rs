//! Waiting for a gate: for a check, a reservation or a permit, under one policy or several.
//!
//! Gate and runtime share one paused clock, which jumps to the next timer when nothing else is to be
//! done: no test waits, and a wake-up that is lost shows as time that has passed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use slidegate::{
    Block, Counts, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    acquire::{MaxWaiting, NotAcquired, NotAcquiredKind},
    clock::{Clock, ManualClock, Timestamp},
    reserve::{Ticket, TicketGuard},
};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::Instant;

/// Tokio's clock, as a gate reads it.
#[derive(Debug)]
struct PausedClock(Instant);

impl Clock for PausedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_000_000_000) + self.0.elapsed()
    }
}

fn on_clock(policies: impl IntoIterator<Item = Policy>, clock: impl Clock + 'static) -> Gate {
    let store = MemoryStore::builder().clock(clock).build();
    Gate::with_memory(PolicySet::new(policies).unwrap(), store)
}

fn gate(policies: impl IntoIterator<Item = Policy>) -> Arc<Gate> {
    Arc::new(on_clock(policies, PausedClock(Instant::now())))
}

fn policy(name: &str, quota: &str) -> Policy {
    Policy::new(name, quota.parse().unwrap()).unwrap()
}

/// So many at once, for ten seconds each.
fn in_flight(name: &str, limit: u64) -> Policy {
    Policy::new(name, Quota::in_flight(limit, secs(10)).unwrap()).unwrap()
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn of(user: &str) -> Request<'_> {
    Request::new().with("user", user)
}

fn take(gate: &Arc<Gate>, user: &str) -> TicketGuard<MemoryStore> {
    gate.reserve(&of(user)).into_guard(gate).expect("a permit is free")
}

/// Puts a request of this user in a queue, and returns when it stands there.
async fn stand(gate: &Arc<Gate>, user: &'static str, cost: u64) -> JoinHandle<Result<Ticket, NotAcquired>> {
    let gate = Arc::clone(gate);
    let task = tokio::spawn(async move {
        let request = of(user).with_cost(cost);
        let reserved = gate.acquire_reservation(&request).await?;
        Ok(reserved.into_ticket().unwrap())
    });
    yield_now().await;
    task
}

/// Puts a check of alice's in a queue, and returns when it stands there.
async fn check_later(gate: &Arc<Gate>) -> JoinHandle<Result<(), NotAcquired>> {
    let gate = Arc::clone(gate);
    let task = tokio::spawn(async move { gate.acquire(&of("alice")).await.map(|_| ()) });
    yield_now().await;
    task
}

/// A permit that is free and not used is throughput that is lost.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_given_back_goes_to_the_first_in_line_at_once() {
    let gate = gate([in_flight("jobs", 1).with_scope(["user"])]);
    let start = Instant::now();
    let first = take(&gate, "alice");
    let second = stand(&gate, "alice", 1).await;
    let third = stand(&gate, "alice", 1).await;
    let fourth = stand(&gate, "alice", 1).await;
    // Settled, cancelled, and dropped with its guard.
    first.settle(1).await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert!(!third.is_finished());
    gate.cancel(&second).unwrap();
    let third = TicketGuard::new(Arc::clone(&gate), third.await.unwrap().unwrap());
    assert!(!fourth.is_finished());
    drop(third);
    let fourth = fourth.await.unwrap().unwrap();
    // A ticket that came as text wakes as well.
    let fifth = stand(&gate, "alice", 1).await;
    let text: Ticket = fourth.to_string().parse().unwrap();
    gate.settle(&text, 1).unwrap();
    drop(fifth.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// A holder that crashed must not keep others waiting for longer than its lease.
#[tokio::test(start_paused = true)]
async fn a_permit_that_is_never_given_back_is_free_when_its_lease_ends() {
    let gate = gate([in_flight("jobs", 1)]);
    let start = Instant::now();
    let _lost = take(&gate, "alice").into_ticket();
    drop(stand(&gate, "alice", 1).await.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), secs(10));
}

/// What a reservation turns out not to need is what the next one waits for.
#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_settled_to_less_makes_room_at_once() {
    let gate = gate([policy("tokens", "100/1m")]);
    let start = Instant::now();
    let held = gate.reserve(&Request::new().with_cost(80)).into_ticket().unwrap();
    let waits = stand(&gate, "alice", 60).await;
    gate.settle_so_far(&held, 10).unwrap();
    yield_now().await;
    assert!(!waits.is_finished(), "the rest is still held");
    gate.settle(&held, 40).unwrap();
    drop(waits.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Large requests would starve if small ones could overtake them.
#[tokio::test(start_paused = true)]
async fn a_small_cost_does_not_overtake_a_large_one() {
    let gate = gate([policy("tokens", "10/1s").with_scope(["user"])]);
    assert!(gate.check(&of("alice").with_cost(7)).is_allowed());
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for (number, cost) in [10, 1, 1, 9, 3, 10, 1].into_iter().enumerate() {
        let (gate, order) = (Arc::clone(&gate), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let request = of("alice").with_cost(cost);
            assert!(gate.acquire(&request).await.unwrap().is_allowed());
            order.lock().unwrap().push(number);
        }));
        yield_now().await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2, 3, 4, 5, 6]);
}

/// A user who waits for his own limit must not hold up all others at the one that they share.
#[tokio::test(start_paused = true)]
async fn who_is_denied_by_his_own_key_does_not_block_the_queue_of_a_shared_one() {
    for policies in [
        [in_flight("per-user", 1).with_scope(["user"]), in_flight("in-all", 2)],
        [in_flight("in-all", 2), in_flight("per-user", 1).with_scope(["user"])],
    ] {
        let gate = gate(policies);
        let start = Instant::now();
        let alice = take(&gate, "alice");
        let bob = take(&gate, "bob");
        let again = stand(&gate, "alice", 1).await;
        let carol = stand(&gate, "carol", 1).await;
        bob.cancel().await.unwrap();
        let carol = carol.await.unwrap().unwrap();
        assert!(!again.is_finished());
        alice.cancel().await.unwrap();
        drop(again.await.unwrap().unwrap());
        gate.settle(&carol, 1).unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

/// Callers that are denied for concurrency must not pay with their rate.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_permit_costs_no_rate_and_waiting_for_the_rate_takes_no_permit() {
    let gate = gate([policy("rpm", "2/1m").with_counts(Counts::Requests), in_flight("jobs", 1)]);
    let start = Instant::now();
    let first = take(&gate, "alice");
    let second = stand(&gate, "alice", 1).await;
    let third = stand(&gate, "alice", 1).await;
    let used = || {
        gate.peek(&of("alice"))
            .iter()
            .map(|one| (one.decision().used(), one.decision().held()))
            .collect::<Vec<_>>()
    };
    assert_eq!(used(), [(1, 0), (0, 1)]);
    first.settle(1).await.unwrap();
    let second = second.await.unwrap().unwrap();
    gate.settle(&second, 1).unwrap();
    yield_now().await;
    assert_eq!(used(), [(2, 0), (0, 0)]);
    // The third waits for the rate.
    drop(third.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), secs(60));
}

/// A client that hangs up must neither be charged nor hold up those behind it.
#[tokio::test(start_paused = true)]
async fn a_dropped_future_leaves_its_queue_from_any_position() {
    for leaves in [[0, 1], [1, 2], [0, 2]] {
        let most = MaxWaiting { per_key: 4, in_all: 4 };
        let gate = on_clock([in_flight("jobs", 1)], PausedClock(Instant::now())).with_max_waiting(most);
        let gate = Arc::new(gate);
        let start = Instant::now();
        let first = take(&gate, "alice");
        let mut waiters = Vec::new();
        for _ in 0..4 {
            waiters.push(Some(stand(&gate, "alice", 1).await));
        }
        let full = gate.acquire_reservation(&of("alice")).await.unwrap_err();
        assert_eq!(full.kind(), NotAcquiredKind::Full);
        assert_eq!(
            full.to_string(),
            "too many waiters in total: at most 4 may wait; retry later, or raise `max_waiting`"
        );
        for at in leaves {
            let waiter = waiters[at].take().unwrap();
            waiter.abort();
            assert!(waiter.await.unwrap_err().is_cancelled());
        }
        first.settle(1).await.unwrap();
        for waiter in waiters.into_iter().flatten() {
            let ticket = waiter.await.unwrap().unwrap();
            gate.settle(&ticket, 1).unwrap();
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "{leaves:?}");
        assert_eq!(gate.peek(&of("alice")).strictest().unwrap().decision().held(), 0);
    }
}

/// What can never be must not be waited for.
#[tokio::test(start_paused = true)]
async fn what_can_never_fit_is_an_error_at_once() {
    let blocked = policy("login", "5/1m").with_scope(["user"]).with_block(["mallory"], Block::forever());
    let gate = gate([policy("tokens", "10/1m").with_scope(["user"]), in_flight("jobs", 2), blocked]);
    let start = Instant::now();
    let texts = [
        (
            of("alice").with_cost(11),
            "policy `tokens`: invalid cost 11: must be at most 10, its limit; ask for less at once",
        ),
        (of("mallory"), "policy `login`: key `mallory` is blocked without end: remove the block"),
        (of("alice").under("tokns"), "unknown policy `tokns`: the gate has `tokens`, `jobs`, `login`"),
    ];
    for (request, text) in texts {
        let never = gate.acquire(&request).await.unwrap_err();
        assert_eq!(never.kind(), NotAcquiredKind::Never, "{never:?}");
        assert_eq!(never.to_string(), text);
        assert_eq!(gate.acquire_reservation(&request).await.unwrap_err().kind(), NotAcquiredKind::Never);
    }
    assert!(gate.acquire(&of("alice").with_cost(0)).await.unwrap().is_allowed());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// A deadline is what the caller has promised to somebody else. While others hold what they may give
/// back at any time, it is worth waiting for; a rate is not.
#[tokio::test(start_paused = true)]
async fn nobody_waits_past_the_deadline() {
    let gate = gate([in_flight("jobs", 1).with_scope(["job"]), policy("rate", "1/10s").with_scope(["user"])]);
    let start = Instant::now();
    let job = Request::new().with("job", "a");
    let held = gate.reserve(&job).into_ticket().unwrap();
    let late = gate.acquire_reservation(&job).timeout(secs(4)).await.unwrap_err();
    assert_eq!(late.kind(), NotAcquiredKind::Late);
    assert_eq!(
        late.to_string(),
        "the cost did not fit within 4000 ms: open reservations hold what is left, for up to 6000 ms; \
         wait longer or ask for less"
    );
    assert_eq!(start.elapsed(), secs(4));
    let late = gate.acquire_reservation(&job).timeout(Duration::ZERO).await.unwrap_err();
    assert_eq!(late.kind(), NotAcquiredKind::Late);
    assert!(gate.acquire(&of("alice")).await.is_ok());
    let late = gate.acquire(&of("alice")).timeout(secs(9)).await.unwrap_err();
    assert_eq!(late.retry_after(), Some(secs(10)));
    assert_eq!(start.elapsed(), secs(4));
    gate.settle(&held, 1).unwrap();
}

/// Capacity that appears belongs to those who wait.
#[tokio::test(start_paused = true)]
async fn room_that_a_refund_a_reset_or_other_policies_make_is_noticed_at_once() {
    // The gate's time stands still: nothing but these makes room.
    let gate = Arc::new(on_clock([policy("rate", "1/1m").with_scope(["user"])], ManualClock::new()));
    assert!(gate.check(&of("alice")).is_allowed());
    let start = Instant::now();
    let waits = check_later(&gate).await;
    assert!(gate.refund(&of("alice")).is_allowed());
    waits.await.unwrap().unwrap();
    let waits = check_later(&gate).await;
    assert!(gate.reset(&of("alice")).unwrap());
    waits.await.unwrap().unwrap();
    let waits = check_later(&gate).await;
    assert_eq!(gate.reset_policy("rate").unwrap(), 1);
    waits.await.unwrap().unwrap();
    let waits = check_later(&gate).await;
    gate.configure(PolicySet::new([policy("rate", "2/1m").with_scope(["user"])]).unwrap()).unwrap();
    waits.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// A wake-up that is lost is a caller that waits for a lease instead of a microsecond.
#[tokio::test(start_paused = true)]
async fn a_crowd_of_several_users_is_served_without_a_lost_wake_up() {
    let gate = gate([in_flight("per-user", 2).with_scope(["user"]), in_flight("in-all", 5)]);
    let start = Instant::now();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let crowd = (0..300).map(|number| {
        let (gate, running, most) = (Arc::clone(&gate), Arc::clone(&running), Arc::clone(&most));
        tokio::spawn(async move {
            let user = ["alice", "bob", "carol", "dave"][number % 4];
            let request = of(user);
            let reserved = gate.acquire_reservation(&request).await.unwrap();
            let guard = reserved.into_guard(&gate).unwrap();
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in 0..number % 7 {
                yield_now().await;
            }
            running.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
        })
    });
    for task in crowd.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(most.load(Ordering::SeqCst), 5);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// On many threads at once, as servers call it: never more run than may.
#[test]
fn a_crowd_on_many_threads_never_runs_more_than_may() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let gate = Arc::new(Gate::new(PolicySet::new([in_flight("jobs", 3)]).unwrap()));
    let running = Arc::new(AtomicUsize::new(0));
    runtime.block_on(async {
        let crowd = (0..400).map(|_| {
            let (gate, running) = (Arc::clone(&gate), Arc::clone(&running));
            tokio::spawn(async move {
                let request = of("alice");
                let guard = gate.acquire_reservation(&request).await.unwrap().into_guard(&gate).unwrap();
                assert!(running.fetch_add(1, Ordering::SeqCst) < 3);
                yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            })
        });
        for task in crowd.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    assert_eq!(gate.peek(&of("alice")).strictest().unwrap().decision().held(), 0);
}

//! Corrections of the machine's wall clock: what is reported follows them, and what is decided does
//! not.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use slidegate::{
    Algorithm, Block, Gate, Limiter, MemoryStore,
    clock::{Clock, ManualClock},
};
use slidegate::{Policy, PolicySet, Quota, Request, clock::Timestamp};

/// A machine that started five seconds past a full minute, as far as it knew.
const STARTED_S: u64 = 60 * 10_000_000 + 5;

/// A clock that elapses, and a date beside it that somebody corrects.
#[derive(Debug, Clone)]
struct Corrected {
    elapsed: ManualClock,
    ahead_us: Arc<AtomicI64>,
}

impl Corrected {
    fn new() -> Self {
        let elapsed = ManualClock::at(Timestamp::from_secs(STARTED_S));
        Self { elapsed, ahead_us: Arc::default() }
    }

    /// Steps the wall clock by this many seconds.
    fn step(&self, secs: i64) {
        self.ahead_us.fetch_add(secs * 1_000_000, Ordering::SeqCst);
    }

    fn pass(&self, secs: u64) {
        self.elapsed.advance(Duration::from_secs(secs));
    }

    fn store(&self) -> MemoryStore {
        MemoryStore::builder().max_keys(100).clock(self.clone()).build()
    }

    fn limiter(&self, quota: Quota) -> Limiter {
        Limiter::with_store(quota, self.store())
    }
}

impl Clock for Corrected {
    fn now(&self) -> Timestamp {
        self.elapsed.now()
    }

    fn wall_time(&self, at: Timestamp) -> Timestamp {
        Timestamp::from_micros(at.as_micros().saturating_add_signed(self.ahead_us.load(Ordering::SeqCst)))
    }
}

/// A client that sleeps until `X-RateLimit-Reset` sleeps for years if the service booted with its
/// clock in 1970.
#[test]
fn dates_are_right_from_the_correction_on_whichever_way_it_went() {
    const HOUR: i64 = 3600;
    for step in [86_400 * 365 * HOUR / 3600, HOUR, 1, -1, -HOUR, -86_400] {
        for algorithm in Algorithm::ALL {
            let clock = Corrected::new();
            let quota = Quota::per_minute(2).with_algorithm(algorithm);
            let policies =
                PolicySet::new([Policy::new("per-user", quota).unwrap().with_scope(["user"])]).unwrap();
            let gate = Gate::with_memory(policies, clock.store());
            let request = Request::new().with("user", "alice");
            assert_eq!(
                gate.check(&request).strictest().unwrap().decision().at(),
                Timestamp::from_secs(STARTED_S)
            );
            clock.step(step);
            clock.pass(1);
            let decisions = gate.check(&request);
            let date = Timestamp::from_secs((STARTED_S + 1).checked_add_signed(step).unwrap());
            let decision = *decisions.strictest().unwrap().decision();
            assert_eq!(decision.at(), date, "{algorithm} after {step} s");
            assert_eq!(decision.reset_at(), date + decision.reset_after());
            // The same of a key that holds cost.
            let bob = Request::new().with("user", "bob");
            let reserved = gate.reserve(&bob).into_ticket().unwrap();
            let settlement = gate.settle(&reserved, 1).unwrap();
            assert_eq!(settlement.iter().next().unwrap().decision().at(), date, "{algorithm} after {step} s");
            assert!(decision.reset_after() <= Duration::from_secs(120), "{decision:?}");
        }
    }
}

/// NTP that sets a clock right must not hand every client its limit again, nor lock one out.
#[test]
fn exact_limits_neither_open_nor_close_at_a_correction() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow, Algorithm::TokenBucket] {
        for step in [86_400, 30, -30, -86_400] {
            let quota = Quota::per_minute(10).with_algorithm(algorithm);
            let [corrected, left_alone] = [Corrected::new(), Corrected::new()];
            let limiters = [corrected.limiter(quota), left_alone.limiter(quota)];
            assert!(limiters.iter().all(|limiter| limiter.check_cost("key", 10).is_allowed()));
            corrected.step(step);
            for _ in 0..130 {
                let [one, other] = limiters.each_ref().map(|limiter| {
                    let decision = limiter.check("key");
                    (decision.verdict(), decision.used(), decision.retry_after(), decision.reset_after())
                });
                assert_eq!(one, other, "{algorithm} after {step} s");
                corrected.pass(1);
                left_alone.pass(1);
            }
        }
    }
}

/// A quota "per day" is sold as a day of UTC, and instances that share the sale must agree on when
/// it begins.
#[test]
fn fixed_windows_align_to_the_corrected_date_within_one_window() {
    let quota = Quota::per_minute(10).with_algorithm(Algorithm::FixedWindow);
    for step in [3600 + 20, 20, 1, -1, -20, -3600 - 20] {
        let clock = Corrected::new();
        let limiter = clock.limiter(quota);
        assert_eq!(limiter.check_cost("key", 10).retry_after(), Some(Duration::ZERO));
        assert_eq!(limiter.check("key").retry_after(), Some(Duration::from_secs(55)));
        clock.step(step);
        // A key that nobody has used yet is right at once.
        let _ = limiter.check_cost("new", 10);
        let date = STARTED_S.checked_add_signed(step).unwrap();
        let to_border = Duration::from_secs(60 - date % 60);
        assert_eq!(limiter.check("new").retry_after(), Some(to_border), "after {step} s");
        // One that is used up waits for one window at most, and then for the border as well.
        let wait = limiter.check("key").retry_after().unwrap();
        assert!(wait <= Duration::from_secs(61), "{wait:?} after {step} s");
        clock.elapsed.advance(wait);
        assert!(limiter.check("key").is_allowed(), "after {step} s");
        clock.pass(60);
        let _ = limiter.check_cost("key", 10);
        let date = limiter.peek("key").at().as_micros() / 1_000_000;
        let to_border = Duration::from_secs(60 - date % 60);
        let denied = limiter.check("key");
        assert!(
            denied.retry_after().unwrap().abs_diff(to_border) <= Duration::from_secs(1),
            "after {step} s: {denied:?}"
        );
    }
}

/// Sweeps go by elapsed time: a key that still counts must survive the step, and one that does not
/// must go.
#[test]
fn a_correction_neither_drops_nor_keeps_keys() {
    for algorithm in Algorithm::ALL {
        let clock = Corrected::new();
        let limiter = clock.limiter(Quota::per_minute(10).with_algorithm(algorithm));
        let _ = limiter.check_cost("key", 10);
        clock.step(-86_400);
        limiter.sweep(1000);
        assert_eq!(limiter.stats().keys, 1, "{algorithm}");
        clock.step(2 * 86_400);
        limiter.sweep(1000);
        assert_eq!(limiter.stats().keys, 1, "{algorithm}");
        clock.pass(125);
        limiter.sweep(1000);
        assert_eq!(limiter.stats().keys, 0, "{algorithm}");
    }
}

/// Who looks at a key reads when it was used, on the clock on the wall.
#[test]
fn charges_are_dated_by_the_corrected_clock() {
    let clock = Corrected::new();
    let quota = Quota::per_minute(10);
    let policies = PolicySet::new([Policy::new("per-user", quota).unwrap().with_scope(["user"])]).unwrap();
    let gate = Gate::with_memory(policies, clock.store());
    let request = Request::new().with("user", "alice");
    let _ = gate.check(&request);
    clock.pass(7);
    clock.step(-3600);
    let found = gate.inspect(&request).unwrap();
    let [charge] = found[0].charges[..] else { panic!("{found:?}") };
    assert_eq!(charge.at, Timestamp::from_secs(STARTED_S - 3600));
    assert_eq!(found[0].decision.at() - charge.at, Duration::from_secs(7));
}

/// A block ends at a date: when an operator corrects a wrong wall clock, the block goes by the
/// right one.
#[test]
fn a_block_ends_by_the_corrected_clock() {
    let clock = Corrected::new();
    let until = Timestamp::from_secs(STARTED_S + 600);
    let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let policies = PolicySet::new([policy.with_block(["alice"], Block::until(until))]).unwrap();
    let gate = Gate::with_memory(policies, clock.store());
    let request = Request::new().with("user", "alice");
    let wait = || gate.check(&request).strictest().unwrap().decision().retry_after();
    assert_eq!(wait(), Some(Duration::from_secs(600)));
    clock.step(-100);
    assert_eq!(wait(), Some(Duration::from_secs(700)));
    clock.step(699);
    assert_eq!(wait(), Some(Duration::from_secs(1)));
    clock.pass(1);
    assert!(gate.check(&request).is_allowed());
}

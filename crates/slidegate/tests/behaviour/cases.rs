//! Cases that the field has met: each was somebody's bug or somebody's test before it was ours.
//!
//! Where a case holds under every algorithm it is proved under every algorithm; the failing one is
//! in the message.

use std::time::Duration;

use slidegate::{
    Algorithm, Gate, Limiter, MemoryStore,
    clock::{ManualClock, Timestamp},
};
use slidegate::{Policy, PolicySet, Quota, Request};

/// Windows of one, two and sixty seconds, aligned to the epoch, all begin here.
const START: Timestamp = Timestamp::from_secs(1_000_000_020);

fn store() -> (MemoryStore, ManualClock) {
    let clock = ManualClock::at(START);
    (MemoryStore::builder().max_keys(1000).clock(clock.clone()).build(), clock)
}

fn limiter(quota: Quota) -> (Limiter, ManualClock) {
    let (store, clock) = store();
    (Limiter::with_store(quota, store), clock)
}

/// The quota under each algorithm.
fn each(quota: Quota) -> impl Iterator<Item = Quota> {
    Algorithm::ALL.into_iter().map(move |algorithm| quota.with_algorithm(algorithm))
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A customer who pays for another limit gets it from the next request on, and keeps what she has
/// used.
#[test]
fn an_override_binds_at_once_and_its_end_keeps_the_usage() {
    for quota in each(Quota::per_minute(10)) {
        let (store, _) = store();
        let policy = Policy::new("per-user", quota).unwrap().with_scope(["user"]);
        let three = Quota::per_minute(3).with_algorithm(quota.algorithm());
        let plain = PolicySet::new([policy.clone()]).unwrap();
        let gate =
            Gate::with_memory(PolicySet::new([policy.with_override(["alice"], three)]).unwrap(), store);
        let alice = |cost| Request::new().with("user", "alice").with_cost(cost);
        let answer = |request: &Request<'_>| {
            let decisions = gate.check(request);
            let one = decisions.strictest().unwrap();
            (
                one.decision().is_allowed(),
                one.decision().limit(),
                one.decision().remaining(),
                one.decision().retry_after(),
            )
        };
        assert_eq!(answer(&alice(3)), (true, 3, 0, Some(Duration::ZERO)), "{quota:?}");
        assert_eq!(answer(&alice(5)), (false, 3, 0, None), "{quota:?}");
        assert_eq!(answer(&Request::new().with("user", "bob").with_cost(5)).1, 10, "{quota:?}");
        gate.configure(plain).unwrap();
        assert_eq!(answer(&alice(5)), (true, 10, 2, Some(Duration::ZERO)), "{quota:?}");
    }
}

/// The published table of a widely used Redis module: burst 5, one a second. Who comes from it must
/// find it again.
#[test]
fn a_token_bucket_answers_as_the_cell_rate_table_says() {
    // At (ms), cost, allowed, remaining, reset (ms), wait (ms, `None` is never).
    type Row = (u64, u64, bool, u64, u64, Option<u64>);
    const ROWS: [Row; 16] = [
        (0, 6, false, 5, 0, None),
        (0, 1, true, 4, 1000, Some(0)),
        (0, 1, true, 3, 2000, Some(0)),
        (0, 1, true, 2, 3000, Some(0)),
        (0, 1, true, 1, 4000, Some(0)),
        (0, 1, true, 0, 5000, Some(0)),
        (0, 1, false, 0, 5000, Some(1000)),
        (3000, 1, true, 2, 3000, Some(0)),
        (3100, 1, true, 1, 3900, Some(0)),
        (4000, 1, true, 1, 4000, Some(0)),
        (8000, 1, true, 4, 1000, Some(0)),
        (9500, 1, true, 4, 1000, Some(0)),
        (9500, 0, true, 4, 1000, Some(0)),
        (9500, 2, true, 2, 3000, Some(0)),
        (9500, 5, false, 2, 3000, Some(3000)),
        (9500, 2, true, 0, 5000, Some(0)),
    ];
    let (limiter, clock) = limiter(Quota::per_second(1).with_algorithm(Algorithm::TokenBucket).with_burst(5));
    for (row, (at, cost, passes, remaining, reset, retry)) in ROWS.into_iter().enumerate() {
        clock.set(START + millis(at));
        let decision = limiter.check_cost("key", cost);
        let seen =
            (decision.is_allowed(), decision.remaining(), decision.reset_after(), decision.retry_after());
        assert_eq!(seen, (passes, remaining, millis(reset), retry.map(millis)), "row {row}");
    }
}

/// High rates are where others divided by zero, computed a remainder of nothing or returned a wait
/// of an hour.
#[test]
fn high_rates_wait_no_longer_than_they_must() {
    let (fast, _) = limiter(Quota::per_second(1000).with_algorithm(Algorithm::TokenBucket).with_burst(1));
    let _ = fast.check("key");
    assert_eq!(fast.check("key").retry_after(), Some(millis(1)));

    for quota in each(Quota::per_second(1_000_000_001)) {
        let (limiter, clock) = limiter(quota);
        assert_eq!(limiter.check("key").remaining(), 1_000_000_000, "{quota:?}");
        assert_eq!(limiter.check_cost("key", 1_000_000_000).remaining(), 0, "{quota:?}");
        let retry = limiter.check("key").retry_after().unwrap();
        assert!(!retry.is_zero() && retry <= secs(1) + millis(1), "{quota:?} {retry:?}");
        clock.advance(retry);
        assert!(limiter.check("key").is_allowed(), "{quota:?}");
    }
}

/// Costs in bytes over a year: the products on the way do not fit 64 bits.
#[test]
fn the_greatest_limit_burst_and_window_do_not_overflow() {
    for quota in each(Quota::new(u64::MAX, Quota::MAX_WINDOW).unwrap()) {
        for quota in [quota, quota.with_burst(u64::MAX), quota.with_slots(u16::MAX), quota.with_slots(0)] {
            let (limiter, clock) = limiter(quota);
            assert_eq!(limiter.check_cost("key", u64::MAX - 1).remaining(), 1, "{quota:?}");
            assert_eq!(limiter.check_cost("key", 1).remaining(), 0, "{quota:?}");
            let denied = limiter.check_cost("key", u64::MAX);
            assert!(denied.is_denied(), "{quota:?}");
            assert_eq!(limiter.penalize("key", u64::MAX).used(), u64::MAX, "{quota:?}");
            clock.advance(denied.retry_after().unwrap());
            assert!(limiter.check_cost("key", u64::MAX).is_allowed(), "{quota:?}");
        }
    }
}

/// An expired user's memory must not stay ours, and one that still counts must not be forgotten.
#[test]
fn a_sweep_drops_each_key_within_a_tick_after_it_is_as_good_as_new() {
    const TICK: Duration = Duration::from_micros(1 << 20);
    for quota in each(Quota::per_second(1)) {
        let (limiter, clock) = limiter(quota);
        let charges = [("foo", 0), ("bar", 1500), ("baz", 4200)];
        let mut resets: Vec<Timestamp> = Vec::new();
        for at in (0..10_000).step_by(50) {
            clock.set(START + millis(at));
            if let Some((key, _)) = charges.into_iter().find(|(_, when)| *when == at) {
                resets.push(limiter.check(key).reset_at());
            }
            limiter.sweep(1000);
            let counting = resets.iter().filter(|reset| **reset > START + millis(at)).count();
            let lingering = resets.iter().filter(|reset| **reset + TICK > START + millis(at)).count();
            let held = limiter.stats().keys;
            assert!(
                counting <= held && held <= lingering,
                "{quota:?} at {at} ms: {counting} {held} {lingering}"
            );
        }
        assert_eq!((limiter.stats().keys, limiter.stats().dropped), (0, 0), "{quota:?}");
    }
}

/// Another algorithm cannot read the numbers of the one before; a fresh start is the honest answer.
#[test]
fn another_algorithm_starts_the_keys_afresh() {
    for quota in each(Quota::per_minute(10)) {
        let next = Algorithm::ALL.into_iter().find(|next| *next != quota.algorithm()).unwrap();
        let (limiter, _) = limiter(quota);
        let _ = limiter.check_cost("key", 10);
        limiter.configure(quota.with_algorithm(next));
        assert_eq!(limiter.peek("key").remaining(), 10, "{quota:?}");
        let _ = limiter.check_cost("key", 10);
        limiter.configure(quota);
        assert_eq!((limiter.peek("key").remaining(), limiter.stats().keys), (10, 0), "{quota:?}");
    }
}

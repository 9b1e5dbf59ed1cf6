//! Cases that the field has met: each was somebody's bug or somebody's test before it was ours.
//!
//! Where a case holds under every algorithm it is proved under every algorithm; the failing one is
//! in the message.

use std::time::Duration;

use slidegate::{
    Algorithm, Decision, Gate, Limiter, MemoryStore,
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

fn per(limit: u64, window: Duration) -> Quota {
    Quota::new(limit, window).unwrap()
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn allowed(decisions: impl IntoIterator<Item = Decision>) -> Vec<bool> {
    decisions.into_iter().map(|decision| decision.is_allowed()).collect()
}

/// The least that anybody expects of a limiter.
#[test]
fn the_first_n_pass_and_the_next_is_denied_with_the_wait_of_its_algorithm() {
    let expected = [
        (Algorithm::SlidingLog, millis(2000), millis(2000)),
        // The whole counter weighs on until a tenth of the next window has passed.
        (Algorithm::SlidingWindow, millis(2200), millis(4000)),
        (Algorithm::FixedWindow, millis(2000), millis(2000)),
        (Algorithm::TokenBucket, millis(200), millis(2000)),
    ];
    for (algorithm, retry, reset) in expected {
        let (limiter, clock) = limiter(per(10, secs(2)).with_algorithm(algorithm));
        for n in 1..=10 {
            let decision = limiter.check("key");
            assert!(decision.is_allowed(), "{algorithm}: {n}");
            assert_eq!((decision.used(), decision.remaining()), (n, 10 - n), "{algorithm}");
        }
        let denied = limiter.check("key");
        assert!(denied.is_denied(), "{algorithm}");
        assert_eq!((denied.limit(), denied.remaining(), denied.cost()), (10, 0, 0), "{algorithm}");
        assert_eq!((denied.retry_after(), denied.frees_after()), (Some(retry), Some(retry)), "{algorithm}");
        assert_eq!((denied.reset_after(), denied.reset_at()), (reset, START + reset), "{algorithm}");
        clock.advance(retry);
        assert!(limiter.check("key").is_allowed(), "{algorithm}");
    }
}

/// After the longest wait that an algorithm knows, a client is nobody special any more.
#[test]
fn after_its_reset_a_key_is_as_good_as_new() {
    for quota in each(per(10, secs(2))) {
        let (limiter, clock) = limiter(quota);
        clock.advance(millis(700));
        let _ = limiter.check_cost("key", 10);
        clock.advance(limiter.peek("key").reset_after());
        let fresh = limiter.peek_cost("key", 10);
        assert!(fresh.is_allowed(), "{quota:?}");
        assert_eq!((fresh.used(), fresh.remaining()), (0, 10), "{quota:?}");
        assert_eq!((fresh.reset_after(), fresh.frees_after()), (Duration::ZERO, None), "{quota:?}");
    }
}

/// A dashboard that looks at a million users must not fill the store with them.
#[test]
fn an_empty_key_has_the_whole_limit_and_looking_at_it_stores_nothing() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        let seen = limiter.peek("nobody");
        assert_eq!((seen.used(), seen.remaining(), seen.reset_after()), (0, 10, Duration::ZERO), "{quota:?}");
        assert_eq!(limiter.refund("nobody", 3).cost(), 0, "{quota:?}");
        assert!(!limiter.reset("nobody"), "{quota:?}");
        assert_eq!(limiter.stats().keys, 0, "{quota:?}");
    }
}

/// A request that never fits must not use up what smaller ones could use, nor get a wait.
#[test]
fn a_cost_above_the_limit_is_denied_for_ever_and_takes_nothing() {
    for quota in each(per(10, secs(2))) {
        let (limiter, _) = limiter(quota);
        let never = limiter.check_cost("key", 11);
        assert!(never.is_denied() && never.retry_after().is_none(), "{quota:?}");
        assert_eq!((never.used(), limiter.stats().keys), (0, 0), "{quota:?}");
        assert_eq!(limiter.check_cost("key", 5).remaining(), 5, "{quota:?}");
        assert!(limiter.peek_cost("key", 6).is_denied(), "{quota:?}");
        assert!(limiter.check_cost("key", 6).is_denied(), "{quota:?}");
        assert_eq!(limiter.peek("key").remaining(), 5, "{quota:?}");
    }
}

/// Looking and taking must agree, or a caller that looks first is denied after all.
#[test]
fn a_peek_says_what_the_check_then_does() {
    for quota in each(Quota::per_minute(2)) {
        let (limiter, _) = limiter(quota);
        let seen = [
            limiter.check("k"),
            limiter.peek("k"),
            limiter.check("k"),
            limiter.peek("k"),
            limiter.check("k"),
        ];
        assert_eq!(allowed(seen), [true, true, true, false, false], "{quota:?}");
    }
}

/// A wait counted from the newest charge instead of the oldest keeps clients out for longer than
/// the rule says.
#[test]
fn a_log_waits_for_its_oldest_charge() {
    for (second, now, retry) in [(1, 2, 58), (10, 20, 40)] {
        let (limiter, clock) = limiter(Quota::per_minute(2));
        let _ = limiter.check("key");
        clock.set(START + secs(second));
        let _ = limiter.check("key");
        clock.set(START + secs(now));
        let denied = limiter.check("key");
        assert!(denied.is_denied());
        assert_eq!((denied.remaining(), denied.retry_after()), (0, Some(secs(retry))));
    }
}

/// A window that moves in halves would let the eleventh through.
#[test]
fn a_log_counts_across_any_part_of_the_window() {
    let (limiter, clock) = limiter(per(10, secs(2)));
    let late = (0..5).map(|n| 1300 + n * 140);
    for at in (0..5).map(|n| n * 100).chain(late) {
        clock.set(START + millis(at));
        assert!(limiter.check("key").is_allowed(), "at {at} ms");
    }
    assert_eq!(limiter.check("key").retry_after(), Some(millis(2000 - 1860)));
    clock.set(START + secs(2));
    assert_eq!(allowed([limiter.check("key"), limiter.check("key")]), [true, false]);
}

/// A cost is one charge, however large; what is left after it is what the limit says.
#[test]
fn a_great_cost_is_one_charge_and_reset_gives_all_of_it_back() {
    for quota in each(Quota::per_minute(5)) {
        let (limiter, _) = limiter(quota);
        assert!(limiter.check_cost("key", 5).is_allowed(), "{quota:?}");
        assert!(limiter.check_cost("key", 2).is_denied(), "{quota:?}");
        assert!(limiter.reset("key"), "{quota:?}");
        assert_eq!(limiter.check("key").remaining(), 4, "{quota:?}");
    }
}

/// A million entries one by one would take a megabyte a key; the coarse log frees the first a step
/// late at most.
#[test]
fn a_limit_of_a_million_frees_its_first_charge_within_a_step() {
    let (limiter, clock) = limiter(per(1_000_000, secs(2)));
    let step = Duration::from_micros(2_000_000_u64.div_ceil(1024));
    clock.advance(Duration::from_micros(1));
    let _ = limiter.check("key");
    clock.advance(secs(1));
    assert_eq!(limiter.check_cost("key", 999_999).remaining(), 0);
    let frees = limiter.peek("key").frees_after().unwrap();
    assert!(frees >= secs(1) && frees < secs(1) + step, "{frees:?}");
    clock.advance(frees);
    assert_eq!(limiter.peek("key").remaining(), 1);
    assert!(limiter.reset("key"));
    assert_eq!(limiter.peek("key").remaining(), 1_000_000);
}

/// The weight of the older window is the whole algorithm; rounded down it admits one too many.
#[test]
fn two_windows_weigh_the_older_one_by_its_overlap_rounded_up() {
    let (limiter, clock) = limiter(Quota::per_minute(100).with_algorithm(Algorithm::SlidingWindow));
    let _ = limiter.check_cost("key", 40);
    clock.set(START + secs(60 + 30));
    assert_eq!(limiter.check_cost("key", 80).used(), 20 + 80);
    assert!(limiter.check("key").is_denied());
    clock.set(START + secs(60 + 40));
    // 40 * 20 s / 60 s is 13.3: 14 count.
    assert_eq!((limiter.peek("key").used(), limiter.check("key").remaining()), (94, 5));
}

/// Clients plan by what remains; forgetting the older window promised them more than they got.
#[test]
fn what_remains_of_two_windows_counts_the_older_one_too() {
    let (limiter, clock) = limiter(Quota::per_minute(100).with_algorithm(Algorithm::SlidingWindow));
    let _ = limiter.check_cost("key", 50);
    clock.set(START + secs(66));
    assert_eq!(limiter.check_cost("key", 10).remaining(), 45);
}

/// With a limit of one, rounding is everything: down it admits two in a moment, up it waits for a
/// clean window.
#[test]
fn two_windows_of_limit_one_admit_one_and_wait_until_its_window_weighs_nothing() {
    let (limiter, clock) = limiter(Quota::per_minute(1).with_algorithm(Algorithm::SlidingWindow));
    clock.set(START + secs(59));
    assert!(limiter.check("key").is_allowed());
    let mut admitted = vec![59];
    for second in 60..300 {
        clock.set(START + secs(second));
        if limiter.check("key").is_allowed() {
            admitted.push(second);
        }
    }
    assert_eq!(admitted, [59, 120, 240]);
}

/// Everything arrives in one microsecond when a queue is drained; equal stamps must not fold into
/// one.
#[test]
fn a_thousand_requests_at_one_instant_share_one_limit() {
    for quota in each(Quota::per_minute(5)) {
        let (limiter, _) = limiter(quota);
        let passed = (0..1000).filter(|_| limiter.check("key").is_allowed()).count();
        assert_eq!(passed, 5, "{quota:?}");
    }
}

/// A limit of zero denies a client everything; it must not be treated as "no limit".
#[test]
fn a_limit_of_zero_denies_all_but_a_cost_of_zero() {
    for quota in each(Quota::per_minute(0)) {
        for quota in [quota, quota.with_burst(7)] {
            let (limiter, clock) = limiter(quota);
            for _ in 0..3 {
                let denied = limiter.check("key");
                assert!(denied.is_denied() && denied.retry_after().is_none(), "{quota:?}");
                assert_eq!((denied.limit(), denied.remaining()), (0, 0), "{quota:?}");
                clock.advance(secs(60));
            }
            assert!(limiter.check_cost("key", 0).is_allowed(), "{quota:?}");
            assert_eq!(limiter.stats().keys, 0, "{quota:?}");
        }
    }
}

/// A client that asks for too much must not lose what it could still use.
#[test]
fn a_denied_cost_is_not_charged() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        assert_eq!(limiter.check_cost("key", 8).remaining(), 2, "{quota:?}");
        for _ in 0..100 {
            let denied = limiter.check_cost("key", 5);
            assert!(denied.is_denied(), "{quota:?}");
            assert_eq!((denied.remaining(), denied.cost()), (2, 0), "{quota:?}");
        }
        assert_eq!(limiter.check_cost("key", 1).remaining(), 1, "{quota:?}");
    }
}

/// Failed work is refunded; refunded cost can be used at once.
#[test]
fn a_refund_gives_back_what_was_charged() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        let _ = limiter.check_cost("a", 4);
        assert_eq!(limiter.refund("a", 2).remaining(), 8, "{quota:?}");
        let _ = limiter.check_cost("b", 10);
        assert_eq!(limiter.refund("b", 3).remaining(), 3, "{quota:?}");
        let steps = [
            limiter.check_cost("c", 8),
            limiter.refund("c", 2),
            limiter.refund("c", 3),
            limiter.check_cost("c", 5),
        ];
        assert_eq!(steps.map(|step| step.remaining()), [2, 4, 7, 2], "{quota:?}");
        assert_eq!(steps.map(|step| step.cost()), [8, 2, 3, 5], "{quota:?}");
    }
}

/// A cost of zero is how some callers ask; it must not make a key, and not count as a use.
#[test]
fn a_cost_of_zero_passes_and_changes_nothing() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        assert!(limiter.check_cost("new", 0).is_allowed(), "{quota:?}");
        assert_eq!(limiter.penalize("new", 0).used(), 0, "{quota:?}");
        assert_eq!(limiter.stats().keys, 0, "{quota:?}");
        let _ = limiter.check_cost("full", 10);
        let passed = limiter.check_cost("full", 0);
        assert!(passed.is_allowed(), "{quota:?}");
        assert_eq!((passed.used(), passed.cost()), (10, 0), "{quota:?}");
    }
}

/// Giving back more than was taken would raise the limit for anyone who calls it.
#[test]
fn a_refund_stops_at_what_was_charged_and_says_how_much_that_was() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        let _ = limiter.check_cost("key", 4);
        let refunded = limiter.refund("key", 12);
        assert_eq!((refunded.cost(), refunded.remaining()), (4, 10), "{quota:?}");
        assert_eq!(limiter.refund("key", 1).cost(), 0, "{quota:?}");
        assert_eq!(limiter.refund("key", u64::MAX).remaining(), 10, "{quota:?}");
        assert!(limiter.check_cost("key", 11).is_denied(), "{quota:?}");
    }
}

/// A cached denial must be invalidated when capacity returns by other means than time.
#[test]
fn a_refund_opens_a_denied_key_at_once() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        let _ = limiter.check_cost("key", 10);
        assert_eq!(allowed([limiter.check("key"), limiter.check("key")]), [false, false], "{quota:?}");
        limiter.refund("key", 5);
        assert_eq!(limiter.check_cost("key", 2).remaining(), 3, "{quota:?}");
    }
}

/// A refund that comes when all has expired must not leave a negative count for the next window.
#[test]
fn a_refund_after_the_reset_gives_nothing() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, clock) = limiter(quota);
        let _ = limiter.check_cost("key", 4);
        clock.advance(limiter.peek("key").reset_after());
        let late = limiter.refund("key", 4);
        assert_eq!((late.cost(), late.used(), late.remaining()), (0, 0, 10), "{quota:?}");
        assert!(limiter.check_cost("key", 11).is_denied(), "{quota:?}");
    }
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
            (one.is_allowed(), one.limit(), one.remaining(), one.retry_after())
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

/// Asking for more than ever fits says how much would, and leaves it there to be asked for.
#[test]
fn too_much_at_once_tells_the_capacity_and_leaves_it() {
    for quota in each(Quota::per_second(5)) {
        let (limiter, _) = limiter(quota);
        let never = limiter.check_cost("key", 7);
        assert_eq!((never.is_denied(), never.limit(), never.retry_after()), (true, 5, None), "{quota:?}");
        assert_eq!(limiter.check_cost("key", 5).remaining(), 0, "{quota:?}");
    }
}

/// An idle bucket that fills past its burst lets a burst of three through a burst of two.
#[test]
fn a_bucket_holds_no_more_than_its_burst_however_long_it_was_idle() {
    let (four, _) = limiter(Quota::per_second(4).with_algorithm(Algorithm::TokenBucket));
    let remaining: Vec<_> = (0..4).map(|_| four.check("key").remaining()).collect();
    assert_eq!((remaining, four.check("key").is_denied()), (vec![3, 2, 1, 0], true));

    let quota = per(1, millis(90)).with_algorithm(Algorithm::TokenBucket).with_burst(2);
    let (slow, clock) = limiter(quota);
    for _ in 0..2 {
        assert_eq!([slow.check("key").remaining(), slow.check("key").remaining()], [1, 0]);
        assert_eq!(slow.check("key").retry_after(), Some(millis(90)));
        clock.advance(secs(120));
    }
}

/// A denial that deepens the debt keeps a client that retries out forever.
#[test]
fn a_denied_call_never_deepens_the_debt_of_a_bucket() {
    let (limiter, clock) = limiter(per(10, secs(10)).with_algorithm(Algorithm::TokenBucket));
    assert!(limiter.check_cost("key", 9).is_allowed());
    assert!(limiter.check_cost("key", 5).is_denied());
    for second in 0..30 {
        assert!(limiter.check("key").is_allowed(), "second {second}");
        clock.advance(secs(1));
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

/// One user's burst must not be another's denial.
#[test]
fn keys_are_independent() {
    for quota in each(Quota::per_second(1)) {
        let (limiter, _) = limiter(quota);
        for key in ["foo", "bar", "baz"] {
            assert_eq!(allowed([limiter.check(key), limiter.check(key)]), [true, false], "{quota:?} {key}");
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

/// An administrator who frees one user must not free those whose names begin alike.
#[test]
fn reset_forgets_one_key_and_says_whether_there_was_anything() {
    for quota in each(Quota::per_minute(1)) {
        let (limiter, _) = limiter(quota);
        let keys = ["a", "a:b", "a*", "*", "ab"];
        for key in keys {
            let _ = limiter.check(key);
        }
        assert!(limiter.reset("a"), "{quota:?}");
        assert!(!limiter.reset("a"), "{quota:?}");
        let open: Vec<_> = keys.into_iter().filter(|key| limiter.peek(key).is_allowed()).collect();
        assert_eq!(open, ["a"], "{quota:?}");
    }
}

/// Costs known only afterwards have to be paid, by waiting.
#[test]
fn a_penalty_is_charged_although_it_exceeds_and_is_waited_out() {
    for quota in each(per(5, secs(10))) {
        let (limiter, clock) = limiter(quota);
        let _ = limiter.check("key");
        assert_eq!(limiter.penalize("key", 1).used(), 2, "{quota:?}");
        assert_eq!(limiter.refund("key", 1).used(), 1, "{quota:?}");
        let beyond = limiter.penalize("key", 9);
        assert_eq!((beyond.is_allowed(), beyond.used(), beyond.remaining()), (true, 10, 0), "{quota:?}");
        let wait = limiter.check("key").retry_after().unwrap();
        for _ in 0..100 {
            assert!(limiter.check("key").is_denied(), "{quota:?}");
        }
        assert_eq!(limiter.check("key").retry_after(), Some(wait), "retries lengthen the wait: {quota:?}");
        clock.advance(wait - Duration::from_micros(1));
        assert!(limiter.check("key").is_denied(), "{quota:?}");
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check("key").is_allowed(), "{quota:?}");
    }
}

/// Who runs a service changes limits under load; nobody is to start afresh or be locked out by
/// that.
#[test]
fn a_new_limit_applies_to_existing_users_at_once() {
    for quota in each(Quota::per_minute(10)) {
        let (limiter, _) = limiter(quota);
        let _ = limiter.check_cost("key", 8);
        let to = |limit| Quota::per_minute(limit).with_algorithm(quota.algorithm());
        limiter.configure(to(5));
        let lowered = limiter.check("key");
        assert_eq!((lowered.is_denied(), lowered.limit(), lowered.used()), (true, 5, 8), "{quota:?}");
        limiter.configure(to(12));
        assert_eq!(limiter.check_cost("key", 4).remaining(), 0, "{quota:?}");
        assert_eq!(limiter.check_cost("other", 12).remaining(), 0, "{quota:?}");
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

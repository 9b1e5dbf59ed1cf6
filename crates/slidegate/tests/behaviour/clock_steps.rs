//! Clocks that step back: a separate true time says what was really admitted, and for how long a
//! key was really shut.
//!
//! A small step, up to a second or a window, is waited out; a larger one moves the history along
//! with the clock. Keys learn of a step at their next decision, so what is said about waits is said
//! from a decision on.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Algorithm, Limiter, MemoryStore, Quota,
    clock::{ManualClock, Timestamp},
};

const SECOND_US: u64 = 1_000_000;
const DAY_US: u64 = 86_400 * SECOND_US;

/// A limiter whose clock is behind the true time by all its steps back so far.
struct Stepping {
    limiter: Limiter,
    clock: ManualClock,
    quota: Quota,
    true_us: u64,
    clock_us: u64,
}

/// How a history moves. Spans are of the true time, in microseconds.
#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Back(u64),
    Check(u64),
    Peek(u64),
    /// Looks for expired keys, as every 64th decision does.
    Sweep,
}

fn us(span: u64) -> Duration {
    Duration::from_micros(span)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap()
}

impl Stepping {
    fn new(quota: Quota) -> Self {
        // Far enough from the epoch to step back by days, many times.
        Self::at(quota, 1_000_000_000 * SECOND_US)
    }

    fn at(quota: Quota, start_us: u64) -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(start_us));
        // One shard, which a sweep sees whole.
        let store = MemoryStore::builder().max_keys(100).clock(clock.clone()).build();
        let limiter = Limiter::with_store(quota, store);
        Self { limiter, clock, quota, true_us: start_us, clock_us: start_us }
    }

    fn pass(&mut self, span: u64) {
        self.true_us += span;
        self.set(self.clock_us + span);
    }

    fn back(&mut self, span: u64) {
        self.set(self.clock_us - span);
    }

    fn set(&mut self, clock_us: u64) {
        self.clock_us = clock_us;
        self.clock.set(Timestamp::from_micros(clock_us));
    }

    fn window_us(&self) -> u64 {
        micros(self.quota.window())
    }

    /// The largest step that is waited out.
    fn small_us(&self) -> u64 {
        self.window_us().min(SECOND_US)
    }

    /// The longest that a decision may say until the key is as good as new.
    fn longest_wait_us(&self) -> u64 {
        let window = self.window_us();
        self.small_us()
            + match self.quota.algorithm() {
                // A coarse log knows how far its newest stamp is ahead as a power of two.
                Algorithm::SlidingLog => window + step_us(&self.quota).next_power_of_two() - 1,
                // What was charged in a window weighs until the end of the next.
                Algorithm::SlidingWindow => 2 * window,
                Algorithm::FixedWindow => window,
                Algorithm::TokenBucket => {
                    let drains = u128::from(self.quota.burst()) * u128::from(window);
                    u64::try_from(drains.div_ceil(u128::from(self.quota.limit()))).unwrap()
                }
                other => panic!("no bound is known for {other}"),
            }
    }

    /// Runs the history; returns what was admitted, each with its true time.
    fn run(&mut self, steps: &[Step]) -> Vec<(u64, u64)> {
        let mut admitted = Vec::new();
        for step in steps {
            match *step {
                Step::Pass(span) => self.pass(span),
                Step::Back(span) => self.back(span),
                Step::Peek(cost) => {
                    self.limiter.peek_cost("key", cost);
                }
                Step::Sweep => {
                    self.limiter.sweep(1000);
                }
                Step::Check(cost) => {
                    if self.limiter.check_cost("key", cost).is_allowed() {
                        admitted.push((self.true_us, cost));
                    }
                }
            }
        }
        admitted
    }
}

/// Microseconds that a coarse log rounds its stamps up to.
fn step_us(quota: &Quota) -> u64 {
    let slots = u64::from(quota.slots());
    if quota.limit() <= slots { 1 } else { micros(quota.window()).div_ceil(slots) }
}

/// The most that was admitted within one `span` of true time, and when that ended.
fn most_within(admitted: &[(u64, u64)], span: u64) -> (u64, u64) {
    let until = |end: u64| admitted.iter().filter(move |(at, _)| *at <= end && at + span > end);
    let sums = admitted.iter().map(|(end, _)| (until(*end).map(|(_, cost)| cost).sum(), *end));
    sums.max().unwrap_or((0, 0))
}

/// Histories in units that matter to this window: instants, parts of it, and days.
fn history(window_us: u64, most_cost: u64) -> impl Strategy<Value = Vec<Step>> {
    let part = move |per_mille: u64| window_us * per_mille / 1000;
    let pass =
        prop_oneof![0u64..4, (0u64..300).prop_map(part), (900u64..1100).prop_map(part), 0u64..2_500_000];
    let back = prop_oneof![
        1u64..4,
        (1u64..500).prop_map(move |n| part(n).max(1)),
        (500u64..3000).prop_map(move |n| part(n).max(1)),
        999_990u64..1_000_010,
        1u64..2_500_000,
        (1u64..12).prop_map(|days| days * DAY_US),
    ];
    let step = prop_oneof![
        6 => pass.prop_map(Step::Pass),
        2 => back.prop_map(Step::Back),
        10 => (1..=most_cost).prop_map(Step::Check),
        1 => (1..=most_cost).prop_map(Step::Peek),
        1 => Just(Step::Sweep),
    ];
    proptest::collection::vec(step, 1..100)
}

/// Windows around the second that parts small steps from large ones, and around a millisecond.
fn window() -> impl Strategy<Value = u64> {
    prop_oneof![1_000u64..20_000, 500_000u64..1_500_000, 2_000_000u64..60_000_000]
}

/// A quota with few enough slots for its log to be coarse now and then, and a history for it.
fn quota_and_history(algorithms: &'static [Algorithm]) -> impl Strategy<Value = (Quota, Vec<Step>)> {
    let slots = prop_oneof![Just(Quota::DEFAULT_SLOTS), 1u16..6];
    (proptest::sample::select(algorithms), 1u64..24, window(), slots, 0u64..40).prop_flat_map(
        |(algorithm, limit, window_us, slots, burst)| {
            let quota = Quota::new(limit, us(window_us)).unwrap().with_algorithm(algorithm).with_slots(slots);
            let quota = if burst > 0 { quota.with_burst(burst) } else { quota };
            (Just(quota), history(window_us, (limit / 3).max(1)))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]

    /// A limit sold as exact has to hold in the night when the clock is corrected, too.
    #[test]
    fn a_log_never_admits_more_than_the_limit_in_a_window_of_true_time(
        (quota, steps) in quota_and_history(&[Algorithm::SlidingLog])
    ) {
        let mut stepping = Stepping::new(quota);
        let admitted = stepping.run(&steps);
        let (most, end) = most_within(&admitted, stepping.window_us());
        prop_assert!(most <= quota.limit(), "{most} of {} until {end}: {admitted:?}", quota.limit());
    }

    /// A bucket that drains for time that never passed admits more than its rate.
    #[test]
    fn a_bucket_never_drains_for_longer_than_the_true_time(
        (quota, steps) in quota_and_history(&[Algorithm::TokenBucket])
    ) {
        let mut stepping = Stepping::new(quota);
        let admitted = stepping.run(&steps);
        for (nth, (start, _)) in admitted.iter().enumerate() {
            let mut sum = 0;
            for (at, cost) in &admitted[nth..] {
                sum += u128::from(*cost);
                let drained = u128::from(at - start) * u128::from(quota.limit());
                let window = u128::from(stepping.window_us());
                prop_assert!(sum * window <= u128::from(quota.burst()) * window + drained, "{sum} from {start} to {at}");
            }
        }
    }

    /// The estimate may be off by as much as its documentation says, whatever the clock does.
    #[test]
    fn two_windows_never_admit_twice_the_limit_in_a_window_of_true_time(
        (quota, steps) in quota_and_history(&[Algorithm::SlidingWindow])
    ) {
        let mut stepping = Stepping::new(quota);
        let admitted = stepping.run(&steps);
        let (most, end) = most_within(&admitted, stepping.window_us());
        prop_assert!(most < 2 * quota.limit(), "{most} of {} until {end}: {admitted:?}", quota.limit());
    }

    /// A clock that was set back must not shut a customer out for the days it was set back by.
    #[test]
    fn no_decision_tells_a_longer_wait_than_its_algorithm_and_a_small_step(
        (quota, steps) in quota_and_history(&Algorithm::ALL)
    ) {
        let mut stepping = Stepping::new(quota);
        for step in &steps {
            stepping.run(std::slice::from_ref(step));
            if matches!(step, Step::Check(_) | Step::Peek(_)) {
                let found = micros(stepping.limiter.peek("key").reset_after());
                let bound = stepping.longest_wait_us();
                prop_assert!(found <= bound, "{found} us of {bound}");
            }
        }
    }

    /// After that wait, with no step meanwhile, the key has its whole limit again.
    #[test]
    fn after_one_longest_wait_without_steps_the_whole_limit_is_free(
        (quota, steps) in quota_and_history(&Algorithm::ALL)
    ) {
        let mut stepping = Stepping::new(quota);
        stepping.run(&steps);
        stepping.limiter.peek("key");
        stepping.pass(stepping.longest_wait_us());
        let free = stepping.limiter.check_cost("key", quota.capacity());
        prop_assert!(free.is_allowed(), "{free:?}");
    }

    /// A client that waits for `retry_after` must be admitted, and not wait longer than needed.
    #[test]
    fn the_wait_told_after_a_step_is_tight(
        (quota, steps) in quota_and_history(&Algorithm::ALL),
        step in prop_oneof![1u64..=1000, 1u64..=SECOND_US, 1u64..=DAY_US],
        cost in 1u64..12,
    ) {
        let mut stepping = Stepping::new(quota);
        stepping.run(&steps);
        let _ = stepping.limiter.check_cost("key", cost);
        stepping.back(step);
        let denied = stepping.limiter.check_cost("key", cost);
        match denied.retry_after().map(micros) {
            Some(wait) if denied.is_denied() => {
                stepping.pass(wait - 1);
                prop_assert!(stepping.limiter.peek_cost("key", cost).is_denied(), "a microsecond early");
                stepping.pass(1);
                prop_assert!(stepping.limiter.check_cost("key", cost).is_allowed(), "after the wait");
            }
            Some(_) => prop_assert!(denied.is_allowed()),
            None => prop_assert!(cost > quota.capacity()),
        }
    }
}

/// The charges of the last minute keep their distances: room comes back bit by bit, not all at the
/// end.
#[test]
fn a_large_step_keeps_the_distances_between_charges() {
    let mut stepping = Stepping::new(Quota::per_minute(3));
    for _ in 0..3 {
        let _ = stepping.limiter.check("key");
        stepping.pass(10 * SECOND_US);
    }
    stepping.back(DAY_US);
    let waits = (0..3).map(|_| {
        let wait = micros(stepping.limiter.check("key").retry_after().unwrap());
        stepping.pass(wait);
        stepping.limiter.peek("key");
        assert!(stepping.limiter.peek("key").is_allowed());
        stepping.limiter.penalize("key", 1);
        wait / SECOND_US
    });
    assert_eq!(waits.collect::<Vec<_>>(), [40, 10, 10]);
}

/// Simulations start at time zero; a history that is moved back past it must not turn into the far
/// future.
#[test]
fn a_step_back_to_the_epoch_is_a_step_like_any_other() {
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_minute(3).with_algorithm(algorithm);
        let mut stepping = Stepping::at(quota, SECOND_US);
        let _ = stepping.limiter.check("key");
        stepping.pass(40 * SECOND_US);
        // A bucket has drained the first one by now.
        let _ = stepping.limiter.check_cost("key", if algorithm == Algorithm::TokenBucket { 3 } else { 2 });
        stepping.back(38 * SECOND_US);
        let denied = stepping.limiter.check_cost("key", 3);
        assert!(denied.is_denied(), "{algorithm}");
        assert!(micros(denied.reset_after()) <= stepping.longest_wait_us(), "{algorithm}");
        stepping.pass(micros(denied.retry_after().unwrap()));
        assert!(stepping.limiter.check_cost("key", 3).is_allowed(), "{algorithm}");
    }
}

/// A border that the clock crosses twice would hand out the limit twice.
#[test]
fn a_fixed_window_that_is_entered_again_does_not_start_afresh() {
    let mut stepping = Stepping::at(
        Quota::per_minute(10).with_algorithm(Algorithm::FixedWindow),
        60 * SECOND_US * 10_000_000 + 59 * SECOND_US,
    );
    let mut admitted = stepping.run(&[Step::Check(10), Step::Pass(2 * SECOND_US), Step::Check(10)]);
    for _ in 0..5 {
        // Back over the border by more than a second, and over it again.
        admitted.extend(stepping.run(&[Step::Back(3 * SECOND_US), Step::Check(10)]));
        admitted.extend(stepping.run(&[Step::Pass(3 * SECOND_US), Step::Check(10)]));
    }
    let (most, _) = most_within(&admitted, 60 * SECOND_US);
    assert!(most <= 20, "{most} of 10 within 20 seconds of true time");
}

/// A key without a decision since the step cannot distinguish it from elapsed time: its wait starts
/// at its next decision.
#[test]
fn a_key_untouched_since_a_large_step_waits_one_window_from_its_next_decision() {
    let mut stepping = Stepping::new(Quota::per_minute(1));
    let _ = stepping.limiter.check("key");
    stepping.back(DAY_US);
    stepping.pass(59 * SECOND_US);
    assert_eq!(stepping.limiter.check("key").retry_after().map(micros), Some(60 * SECOND_US));
    stepping.pass(60 * SECOND_US);
    assert!(stepping.limiter.check("key").is_allowed());
}

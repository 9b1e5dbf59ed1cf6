//! Random histories, decided by each algorithm and by a naive model of its definition side by side.
//!
//! The models keep lists and look for waits by trying times, so they share no arithmetic with what
//! they judge.

mod history;
pub(crate) mod model;

use std::time::Duration;

use history::{Step, run};
use proptest::prelude::*;
use slidegate::{
    Algorithm, Limiter, MemoryStore, Quota,
    clock::{ManualClock, Timestamp},
};

fn cost() -> impl Strategy<Value = u64> {
    prop_oneof![5 => 0u64..4, 3 => 0u64..30, 1 => Just(u64::MAX), 1 => 0u64..100_000_000]
}

/// Steps around windows of 1 to 100 ms: short ones, and ones that end near a border.
fn step() -> impl Strategy<Value = Step> {
    let advance = prop_oneof![0u64..50, 0u64..5_000, 0u64..300_000, (1u64..6).prop_map(|n| n * 10_000)];
    prop_oneof![
        8 => advance.prop_map(Step::Advance),
        12 => cost().prop_map(Step::Check),
        2 => cost().prop_map(Step::Peek),
        3 => prop_oneof![9 => 0u64..20, 1 => Just(u64::MAX)].prop_map(Step::Refund),
        1 => prop_oneof![cost(), Just((1 << 53) - 1), 1u64 << 52..1 << 54].prop_map(Step::Penalize),
        1 => Just(Step::Reset),
        1 => (0u64..40).prop_map(Step::Limit),
        1 => (1u64..100).prop_map(|ms| Step::Window(ms * 1000)),
    ]
}

fn history() -> impl Strategy<Value = (u64, u64, u64, Vec<Step>)> {
    let steps = proptest::collection::vec(step(), 0..120);
    (0u64..30, 1u64..100, 1_000_000_000u64..1_001_000_000, steps)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Exact is the promise: every field of every decision, whatever the history.
    #[test]
    fn the_sliding_log_is_the_list_of_charges((limit, ms, start, steps) in history()) {
        run(Quota::new(limit, Duration::from_millis(ms)).unwrap(), start, steps);
    }

    #[test]
    fn the_sliding_window_is_its_formula((limit, ms, start, steps) in history()) {
        let quota = Quota::new(limit, Duration::from_millis(ms)).unwrap();
        run(quota.with_algorithm(Algorithm::SlidingWindow), start, steps);
    }

    #[test]
    fn the_fixed_window_is_the_sum_since_the_border((limit, ms, start, steps) in history()) {
        let quota = Quota::new(limit, Duration::from_millis(ms)).unwrap();
        run(quota.with_algorithm(Algorithm::FixedWindow), start, steps);
    }

    #[test]
    fn the_token_bucket_drains_exactly((limit, ms, start, steps) in history(), burst in 0u64..60) {
        let quota = Quota::new(limit, Duration::from_millis(ms)).unwrap();
        run(quota.with_algorithm(Algorithm::TokenBucket), start, steps.clone());
        run(quota.with_algorithm(Algorithm::TokenBucket).with_burst(burst), start, steps);
    }

    /// With few slots a log is coarse: it may deny a step too long, and must never admit too much.
    #[test]
    fn a_coarse_log_is_never_over_and_at_most_a_step_too_strict(
        limit in 5u64..60, slots in 1u16..5, charges in proptest::collection::vec((0u64..8_000, 1u64..9), 1..200)
    ) {
        let window = 20_000;
        let quota = Quota::new(limit, Duration::from_micros(window)).unwrap().with_slots(slots);
        let step = window.div_ceil(u64::from(slots));
        let clock = ManualClock::new();
        let limiter = Limiter::with_store(quota, MemoryStore::builder().clock(clock.clone()).build());
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        let mut now = 0;
        for (us, cost) in charges {
            now += us;
            clock.advance(Duration::from_micros(us));
            let within = |span: u64| admitted.iter().filter(|(at, _)| at + span > now).map(|(_, cost)| cost).sum::<u64>();
            let (least, most) = (within(window), within(window + step));
            let decision = limiter.check_cost("key", cost);
            if decision.is_allowed() {
                prop_assert!(least + cost <= limit, "over: {least} + {cost} of {limit}");
                admitted.push((now, cost));
            } else {
                prop_assert!(most + cost > limit, "a step too strict: {most} + {cost} of {limit}");
                if let Some(wait) = decision.retry_after() {
                    prop_assert!(wait <= Duration::from_micros(window + step));
                }
            }
        }
    }

    /// An operator who changes a limit, a window or the slots must neither lock out the keys in use nor
    /// admit too much: a charge counts for the window, and at most a step of the quota in force longer.
    #[test]
    fn a_log_whose_steps_change_is_never_over_and_at_most_a_step_too_strict(
        quotas in proptest::collection::vec((1u64..2_000, 1u64..60, 300u16..1_000), 2..6),
        steps in proptest::collection::vec((0u64..4_000, 1u64..60, 0usize..40), 1..200),
    ) {
        let quotas: Vec<_> = quotas.into_iter().map(|(limit, tens, slots)| {
            Quota::new(limit, Duration::from_millis(10 * tens)).unwrap().with_slots(slots)
        }).collect();
        // More slots than charges: a full log merges its entries.
        let window_us = |quota: Quota| u64::try_from(quota.window().as_micros()).unwrap();
        let step_us = |quota: Quota| match quota.limit() > quota.slots().into() {
            true => window_us(quota).div_ceil(quota.slots().into()),
            false => 1,
        };
        let mut quota = quotas[0];
        let mut now = 1_000_000_000;
        let clock = ManualClock::at(Timestamp::from_micros(now));
        let limiter = Limiter::with_store(quota, MemoryStore::builder().clock(clock.clone()).build());
        // When each charge was made, its latest stamp, its cost, and whether it can have been dropped.
        let mut admitted: Vec<(u64, u64, u64, bool)> = Vec::new();
        for (us, cost, next) in steps {
            now += us;
            clock.advance(Duration::from_micros(us));
            if let Some(next) = quotas.get(next) {
                for (at, stamp, _, may_be_dropped) in &mut admitted {
                    *may_be_dropped |= *at + window_us(quota) <= now;
                    *stamp = (*stamp).min(now + step_us(*next) - 1).max(*at);
                }
                admitted.retain(|(_, stamp, ..)| stamp + window_us(quota) > now);
                quota = *next;
                limiter.configure(quota);
            }
            let (window, step) = (window_us(quota), step_us(quota));
            for (at, _, _, may_be_dropped) in &mut admitted {
                *may_be_dropped |= *at + window <= now;
            }
            admitted.retain(|(_, stamp, ..)| stamp + window > now);
            let least: u64 = admitted.iter().filter(|one| !one.3).map(|one| one.2).sum();
            let most: u64 = admitted.iter().map(|one| one.2).sum();
            let decision = limiter.check_cost("key", cost);
            if decision.is_allowed() {
                prop_assert!(least + cost <= quota.limit(), "over: {least} + {cost} of {quota:?}");
                admitted.push((now, now + step - 1, cost, false));
            } else {
                prop_assert!(most + cost > quota.limit(), "too strict: {most} + {cost} of {quota:?}");
                let wait = decision.retry_after().unwrap_or_default();
                prop_assert!(wait <= Duration::from_micros(window + step), "{wait:?} under {quota:?}");
            }
        }
    }

    /// A wait is a promise, under the clock itself and not only on paper.
    #[test]
    fn the_promised_wait_is_tight(
        algorithm in 0usize..4, limit in 1u64..20, charges in proptest::collection::vec((0u64..9_000, 0u64..25), 1..40)
    ) {
        let quota = Quota::new(limit, Duration::from_micros(30_001)).unwrap();
        let quota = quota.with_algorithm(Algorithm::ALL[algorithm]);
        let clock = ManualClock::new();
        let limiter = Limiter::with_store(quota, MemoryStore::builder().clock(clock.clone()).build());
        for (us, cost) in charges {
            clock.advance(Duration::from_micros(us));
            let denied = limiter.check_cost("key", cost);
            match denied.retry_after() {
                Some(wait) if denied.is_denied() => {
                    clock.advance(wait - Duration::from_micros(1));
                    prop_assert!(limiter.peek_cost("key", cost).is_denied(), "a microsecond early");
                    clock.advance(Duration::from_micros(1));
                    prop_assert!(limiter.check_cost("key", cost).is_allowed(), "at the time promised");
                }
                Some(_) => {}
                None => prop_assert!(cost > limit),
            }
        }
    }
}

/// A sweep that goes by a quota of yesterday would forget what a longer window still counts.
#[test]
fn a_longer_window_keeps_what_a_sweep_by_the_old_one_would_drop() {
    for algorithm in Algorithm::ALL {
        let clock = ManualClock::at(Timestamp::from_secs(3600 * 500_000));
        let store = MemoryStore::builder().max_keys(10).clock(clock.clone()).build();
        let minute = Quota::per_minute(60).with_algorithm(algorithm);
        let limiter = Limiter::with_store(minute, store);
        let _ = limiter.check_cost("key", 60);
        limiter.configure(Quota::per_hour(60).with_algorithm(algorithm));
        clock.advance(Duration::from_secs(200));
        limiter.sweep(10_000);
        let used = limiter.peek("key").used();
        // A bucket drains one a minute now.
        assert_eq!(used, if algorithm == Algorithm::TokenBucket { 57 } else { 60 }, "{algorithm}");
    }
}

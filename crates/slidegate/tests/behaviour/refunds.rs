//! Refunds: refunded cost can be used again, and no window ever contains more than the limit.
//!
//! A log does not know which charge a refund is about. Whichever it was, of those that still
//! counted, the limit holds.

use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Limiter, MemoryStore, Quota,
    clock::{ManualClock, Timestamp},
};

const WINDOW_US: u64 = 100_000;

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Check(u64),
    Refund(u64),
}

/// Which of the charges that still count a refund was really about.
#[derive(Debug, Clone, Copy)]
enum Meant {
    Oldest,
    Newest,
    /// Counted from the oldest, as far round as there are charges.
    Nth(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..WINDOW_US / 3).prop_map(Step::Pass),
        1 => (0u64..3).prop_map(|off| Step::Pass(WINDOW_US - 1 + off)),
        6 => (1u64..6).prop_map(Step::Check),
        3 => (1u64..9).prop_map(Step::Refund),
    ];
    proptest::collection::vec(step, 1..80)
}

fn meant() -> impl Strategy<Value = Meant> {
    prop_oneof![Just(Meant::Oldest), Just(Meant::Newest), (0usize..8).prop_map(Meant::Nth)]
}

/// Takes `given` off the charges that still count at `now`, beginning with the one meant.
fn take_back(charges: &mut [(u64, u64)], now: u64, mut given: u64, meant: Meant) {
    let mut counting: Vec<_> = charges.iter_mut().filter(|(at, _)| at + WINDOW_US > now).collect();
    let from = match meant {
        Meant::Oldest => 0,
        Meant::Newest => {
            counting.reverse();
            0
        }
        Meant::Nth(n) => n % counting.len().max(1),
    };
    counting.rotate_left(from);
    for (_, cost) in counting {
        let part = given.min(*cost);
        *cost -= part;
        given -= part;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// A client that cancels and asks again must not work its way past the limit.
    #[test]
    fn no_window_holds_more_than_the_limit_whichever_charge_a_refund_was_about(
        limit in 1u64..16, coarse: bool, steps in steps(), meant in meant()
    ) {
        let slots = if coarse { 4 } else { Quota::DEFAULT_SLOTS };
        let quota = Quota::new(limit, Duration::from_micros(WINDOW_US)).unwrap().with_slots(slots);
        let mut now = 1_000_000_000_000;
        let clock = ManualClock::at(Timestamp::from_micros(now));
        let store = MemoryStore::builder().max_keys(10).clock(clock.clone()).build();
        let limiter = Limiter::with_store(quota, store);
        let mut charges: Vec<(u64, u64)> = Vec::new();
        for step in steps {
            let held = |charges: &[(u64, u64)], now| -> u64 {
                charges.iter().filter(|(at, _)| at + WINDOW_US > now).map(|(_, cost)| cost).sum()
            };
            match step {
                Step::Pass(us) => {
                    now += us;
                    clock.advance(Duration::from_micros(us));
                }
                Step::Check(cost) => {
                    if limiter.check_cost("key", cost).is_allowed() {
                        charges.push((now, cost));
                    }
                }
                Step::Refund(cost) => {
                    // Expired charges are not refunded.
                    let given = limiter.refund("key", cost.min(held(&charges, now))).cost();
                    take_back(&mut charges, now, given, meant);
                }
            }
            let held = held(&charges, now);
            prop_assert!(held <= limit, "{held} of {limit}, {meant:?}: {charges:?}");
        }
    }
}

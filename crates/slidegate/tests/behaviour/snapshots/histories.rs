//! Random histories with restarts, beside a naive model that knows of no restarts.

use super::*;
use crate::oracle::model::Model;

#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    Check(u64),
    Refund(u64),
    Penalize(u64),
    /// A restart with a downtime, and perhaps with another limit and window.
    Restart {
        down_us: u64,
        limit: Option<u64>,
        window_ms: Option<u64>,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let advance = prop_oneof![0u64..50, 0u64..5_000, 0u64..300_000];
    let cost = prop_oneof![5 => 0u64..4, 3 => 0u64..30, 1 => 0u64..100_000_000];
    let restart = (
        prop_oneof![0u64..50, 0u64..120_000],
        proptest::option::weighted(0.2, 0u64..40),
        proptest::option::weighted(0.2, 1u64..100),
    );
    prop_oneof![
        6 => advance.prop_map(Step::Advance),
        12 => cost.clone().prop_map(Step::Check),
        2 => (0u64..20).prop_map(Step::Refund),
        1 => cost.prop_map(Step::Penalize),
        2 => restart.prop_map(|(down_us, limit, window_ms)| Step::Restart { down_us, limit, window_ms }),
    ]
}

/// Runs a history on a gate that is restarted and on a model that knows of no restarts.
fn run(mut quota: Quota, start: u64, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let dir = TempDir::new("history");
    let mut now = start;
    let clock = ManualClock::at(Timestamp::from_micros(now));
    let mut gate = gate(set([policy("p", quota)]), clock.clone());
    let mut model = Model::new(&quota);
    for step in steps {
        if !matches!(step, Step::Advance(_) | Step::Restart { .. }) {
            model.settle(now);
        }
        let key = Request::new().with("user", "alice");
        let (found, moved) = match step {
            Step::Advance(us) => {
                now += us;
                clock.advance(Duration::from_micros(us));
                continue;
            }
            Step::Restart { down_us, limit, window_ms } => {
                let mut snapshot = saved(&gate, &dir);
                now += down_us;
                clock.advance(Duration::from_micros(down_us));
                if limit.is_some() || (window_ms.is_some() && quota.algorithm() == Algorithm::SlidingLog) {
                    let window = window_ms.filter(|_| quota.algorithm() == Algorithm::SlidingLog);
                    let window = window.map_or(quota.window(), Duration::from_millis);
                    model.settle(now);
                    let changed = Quota::new(limit.unwrap_or(quota.limit()), window).unwrap();
                    quota = changed.with_algorithm(quota.algorithm()).with_slots(quota.slots());
                    model.configure(&quota);
                }
                gate = restored(&mut snapshot, set([policy("p", quota)]), clock.clone()).0;
                model.settle(now);
                let peeked = gate.peek(&key);
                let peeked = peeked.strictest().unwrap();
                prop_assert_eq!(peeked.decision().used(), model.used_at(now));
                continue;
            }
            Step::Check(cost) => {
                let fits = cost <= quota.capacity().saturating_sub(model.used_at(now));
                if fits {
                    model.charge(now, cost);
                }
                let found = *gate.check(&key.with_cost(cost)).strictest().unwrap().decision();
                let verdict = if fits { Verdict::Allow } else { Verdict::Deny };
                prop_assert_eq!(found.verdict(), verdict);
                if let Some(room) = quota.capacity().checked_sub(cost).filter(|_| !fits) {
                    let wait = Duration::from_micros(model.wait_until(now, room));
                    prop_assert_eq!(found.retry_after(), Some(wait));
                }
                (found, if fits { cost } else { 0 })
            }
            Step::Refund(cost) => {
                let given = model.refund(now, cost);
                (*gate.refund(&key.with_cost(cost)).strictest().unwrap().decision(), given)
            }
            Step::Penalize(cost) => {
                let charged = model.penalize(now, cost);
                (*gate.penalize(&key.with_cost(cost)).strictest().unwrap().decision(), charged)
            }
        };
        prop_assert_eq!((found.used(), found.cost()), (model.used_at(now), moved));
        prop_assert_eq!(found.reset_after(), Duration::from_micros(model.wait_until(now, 0)));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// A deployment must neither free nor lock a client: every decision is that of a service which
    /// was never restarted.
    #[test]
    fn decisions_after_restarts_are_those_of_the_definition(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        limit in 0u64..40,
        window_ms in 1u64..100,
        start in 1_000_000_000_000u64..1_000_000_200_000,
        steps in proptest::collection::vec(step(), 1..50),
    ) {
        let quota = Quota::new(limit, Duration::from_millis(window_ms)).unwrap().with_algorithm(algorithm);
        run(quota, start, steps)?;
    }
}

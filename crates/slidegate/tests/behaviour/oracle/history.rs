//! Histories: steps on one key, taken by the limiter and by the model side by side.

use std::time::Duration;

use slidegate::{
    Decision, Limiter, MemoryStore, Quota, Verdict,
    clock::{ManualClock, Timestamp},
};

use super::model::Model;

/// What happens next.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Advance(u64),
    Check(u64),
    Peek(u64),
    Refund(u64),
    Penalize(u64),
    Reset,
    Limit(u64),
    Window(u64),
}

/// All that a decision says.
#[derive(Debug, PartialEq)]
struct Expected {
    verdict: Verdict,
    limit: u64,
    used: u64,
    remaining: u64,
    cost: u64,
    retry_after: Option<Duration>,
    reset_after: Duration,
    frees_after: Option<Duration>,
    at: Timestamp,
}

impl From<Decision> for Expected {
    fn from(decision: Decision) -> Self {
        Self {
            verdict: decision.verdict(),
            limit: decision.limit(),
            used: decision.used(),
            remaining: decision.remaining(),
            cost: decision.cost(),
            retry_after: decision.retry_after(),
            reset_after: decision.reset_after(),
            frees_after: decision.frees_after(),
            at: decision.at(),
        }
    }
}

/// The answers that the model expects.
fn expected(model: &Model, quota: &Quota, now: u64, verdict: Verdict, asked: u64, moved: u64) -> Expected {
    let used = model.used_at(now);
    let limit = quota.capacity();
    let until = |room: u64| Duration::from_micros(model.wait_until(now, room));
    Expected {
        verdict,
        limit,
        used,
        remaining: limit.saturating_sub(used),
        cost: moved,
        retry_after: match verdict {
            Verdict::Allow => Some(Duration::ZERO),
            Verdict::Deny => limit.checked_sub(asked).map(until),
        },
        reset_after: until(0),
        frees_after: (used > 0).then(|| until(used - 1)),
        at: Timestamp::from_micros(now),
    }
}

/// Takes the steps from this time on, in microseconds.
///
/// # Panics
/// The limiter and the model differ in any field of a decision.
pub(crate) fn run(quota: Quota, start: u64, steps: Vec<Step>) {
    let mut now = start;
    let clock = ManualClock::at(Timestamp::from_micros(now));
    let limiter = Limiter::with_store(quota, MemoryStore::builder().clock(clock.clone()).build());
    let mut quota = quota;
    let mut model = Model::new(&quota);
    for step in steps {
        // What was used counts by the quota in force until it is used again or another is put in
        // force.
        if !matches!(step, Step::Advance(_)) {
            model.settle(now);
        }
        let fits = |cost: u64, model: &Model| cost <= quota.capacity().saturating_sub(model.used_at(now));
        match step {
            Step::Advance(us) => {
                now += us;
                clock.advance(Duration::from_micros(us));
            }
            Step::Check(cost) => {
                let fits = fits(cost, &model);
                if fits {
                    model.charge(now, cost);
                }
                let verdict = if fits { Verdict::Allow } else { Verdict::Deny };
                let moved = if fits { cost } else { 0 };
                let expected = expected(&model, &quota, now, verdict, cost, moved);
                assert_eq!(Expected::from(limiter.check_cost("key", cost)), expected);
            }
            Step::Peek(cost) => {
                let verdict = if fits(cost, &model) { Verdict::Allow } else { Verdict::Deny };
                assert_eq!(
                    Expected::from(limiter.peek_cost("key", cost)),
                    expected(&model, &quota, now, verdict, cost, 0)
                );
            }
            Step::Refund(cost) => {
                let given = model.refund(now, cost);
                let expected = expected(&model, &quota, now, Verdict::Allow, 0, given);
                assert_eq!(Expected::from(limiter.refund("key", cost)), expected);
            }
            Step::Penalize(cost) => {
                let charged = model.penalize(now, cost);
                let expected = expected(&model, &quota, now, Verdict::Allow, 0, charged);
                assert_eq!(Expected::from(limiter.penalize("key", cost)), expected);
            }
            Step::Reset => {
                assert_eq!(limiter.reset("key"), model.used_at(now) > 0);
                model = Model::new(&quota);
            }
            Step::Limit(limit) => {
                quota = Quota::new(limit, quota.window())
                    .unwrap()
                    .with_algorithm(quota.algorithm())
                    .with_slots(quota.slots());
                model.configure(&quota);
                limiter.configure(quota);
            }
            Step::Window(us) => {
                quota = Quota::new(quota.limit(), Duration::from_micros(us))
                    .unwrap()
                    .with_algorithm(quota.algorithm())
                    .with_slots(quota.slots());
                model.configure(&quota);
                limiter.configure(quota);
            }
        }
    }
}

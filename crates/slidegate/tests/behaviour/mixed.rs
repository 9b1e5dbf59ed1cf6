//! Calls of several requests, each with its own verb and role, against a naive model of their
//! rules.
//!
//! The model keeps a list of charges for each key and follows the documentation of `Gate::apply`
//! and `Role` rule by rule, in one pass for each sentence.

mod asked;

use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use slidegate::{
    Excess, Gate, MemoryStore, Quota, Request, Verdict,
    clock::ManualClock,
    verb::{Role, Verb},
};

use self::asked::{Asked, KEYS, POLICIES, REFUSED_KEYS, call, keys, limit_of, policies, requests};

const WINDOW_US: u64 = 1000;

fn calls() -> impl Strategy<Value = Vec<(u64, Vec<Asked>)>> {
    // Where charges meet is looked up in long calls.
    proptest::collection::vec((0u64..700, prop_oneof![15 => call(1..5), 1 => call(5..60)]), 1..40)
}

/// The policies that a request applies to.
fn policies_of(asked: &Asked) -> Vec<usize> {
    asked.policy.map_or_else(|| vec![4, 5], |policy| vec![policy])
}

/// Charges by policy and key, oldest first, each with its time.
#[derive(Debug, Default)]
struct Ledger(HashMap<(usize, &'static str), Vec<(u64, u64)>>);

impl Ledger {
    fn used(&self, policy: usize, key: &'static str, now: u64) -> u64 {
        let charges = self.0.get(&(policy, key)).map_or(&[][..], Vec::as_slice);
        charges.iter().filter(|(at, _)| at + WINDOW_US > now).map(|(_, cost)| cost).sum()
    }

    fn charge(&mut self, policy: usize, key: &'static str, now: u64, cost: u64) {
        self.0.entry((policy, key)).or_default().push((now, cost));
    }

    fn refund(&mut self, policy: usize, key: &'static str, now: u64, cost: u64) -> u64 {
        let mut left = cost;
        for (at, charged) in self.0.entry((policy, key)).or_default() {
            if *at + WINDOW_US > now {
                let part = left.min(*charged);
                (*charged, left) = (*charged - part, left - part);
            }
        }
        cost - left
    }
}

/// What one or more requests ask of one key.
#[derive(Debug, Clone)]
struct Ask {
    requests: Vec<usize>,
    policy: usize,
    key: usize,
    verb: Verb,
    role: Role,
    cost: u64,
    over_limit: bool,
    refusals: Option<u64>,
}

/// Position of the request, position of the policy, verdict, used, cost moved.
type Answer = (usize, usize, Verdict, u64, u64);

/// The call as asks: where two requests of one verb meet on one key, they are asked together.
fn asks(call: &[Asked]) -> Vec<Ask> {
    let mut asks: Vec<Ask> = Vec::new();
    for (number, asked) in call.iter().enumerate() {
        for policy in policies_of(asked) {
            let meets = |ask: &Ask| (ask.policy, ask.key, ask.verb) == (policy, asked.key, asked.verb);
            let refusals = asked.refusals.filter(|_| matches!(asked.verb, Verb::Check | Verb::Peek));
            if let Some(known) = asks.iter_mut().find(|ask| meets(ask)) {
                known.requests.push(number);
                known.cost += asked.cost;
                known.over_limit |= asked.over_limit;
                known.refusals = match (known.refusals, refusals) {
                    (None, None) => None,
                    (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
                };
                known.role = known.role.min(asked.role);
            } else {
                asks.push(Ask {
                    requests: vec![number],
                    policy,
                    key: asked.key,
                    verb: asked.verb,
                    role: asked.role,
                    cost: asked.cost,
                    over_limit: asked.over_limit,
                    refusals,
                });
            }
        }
    }
    asks
}

impl Ledger {
    /// Carries out a call. Its verdict, and its answers by request and policy.
    fn apply(&mut self, limit: u64, call: &[Asked], now: u64) -> (Verdict, Vec<Answer>) {
        let asks = asks(call);
        let question = |ask: &Ask| matches!(ask.verb, Verb::Check | Verb::Peek);
        let enforced = |ask: &Ask| !POLICIES[ask.policy].2;
        let excess = |ask: &Ask| POLICIES[ask.policy].1;
        let (key, refused_key) = (|ask: &Ask| KEYS[ask.key], |ask: &Ask| REFUSED_KEYS[ask.key]);

        // "All is decided on the usage before the call."
        let mut used: Vec<u64> = asks.iter().map(|ask| self.used(ask.policy, key(ask), now)).collect();
        let is_denied: Vec<bool> = asks
            .iter()
            .zip(&mut used)
            .map(|(ask, used)| {
                let limit = limit_of(limit, ask.policy);
                let asked = if excess(ask) == Excess::Charge { ask.cost.min(1) } else { ask.cost };
                let does_not_fit = asked > limit.saturating_sub(*used);
                // "After a peek [...] its usage is added to that of the peek."
                if ask.verb == Verb::Peek && ask.refusals.is_some() {
                    *used += self.used(ask.policy, refused_key(ask), now);
                }
                let is_over = *used > limit || excess(ask) == Excess::Charge && *used >= limit;
                question(ask) && (does_not_fit || ask.over_limit && is_over)
            })
            .collect();
        let denies = |at: usize| is_denied[at] && enforced(&asks[at]);
        let all = || 0..asks.len();
        // "If its check or peek is denied, the call is denied."
        let deciding = || all().filter(|at| asks[*at].role == Role::Deciding && denies(*at));
        // "The call is denied if all requests of this role are denied." Each policy counts as one.
        let together: Vec<_> = all().filter(|at| asks[*at].role == Role::Together).collect();
        let denied_together = !together.is_empty() && together.iter().all(|at| denies(*at));
        let call_denied = deciding().next().is_some() || denied_together;
        let denied_by_peek = deciding().any(|at| asks[at].verb == Verb::Peek)
            || denied_together && together.iter().any(|at| asks[*at].verb == Verb::Peek);

        let mut moved = vec![0; asks.len()];
        let mut counted = vec![false; asks.len()];
        // "Then checks are charged [...]"
        for at in all().filter(|at| asks[*at].verb == Verb::Check) {
            let ask = &asks[at];
            let charged = !call_denied && !is_denied[at];
            counted[at] = charged || excess(ask) == Excess::Count;
            if counted[at] {
                self.charge(ask.policy, key(ask), now, ask.cost);
                moved[at] = ask.cost;
                used[at] = self.used(ask.policy, key(ask), now);
            }
        }
        // "[...] then penalties [...]", and refusals among them.
        for at in all() {
            let ask = &asks[at];
            if ask.verb == Verb::Penalize {
                self.charge(ask.policy, key(ask), now, ask.cost);
                moved[at] = ask.cost;
                used[at] = self.used(ask.policy, key(ask), now);
            }
            if let (Verb::Check, Some(cost), false) = (ask.verb, ask.refusals, counted[at] || denied_by_peek)
            {
                self.charge(ask.policy, refused_key(ask), now, cost);
            }
        }
        // "[...] and refunds come last."
        for at in all() {
            let ask = &asks[at];
            if ask.verb == Verb::Refund {
                moved[at] = self.refund(ask.policy, key(ask), now, ask.cost);
                used[at] = self.used(ask.policy, key(ask), now);
            }
        }
        let mut answers = Vec::new();
        for at in all() {
            let verdict = if is_denied[at] { Verdict::Deny } else { Verdict::Allow };
            for request in &asks[at].requests {
                // A request stands in the call behind the refusals of those before it.
                let before = call[..*request].iter().filter(|asked| asked.refusals.is_some()).count();
                answers.push((request + before, asks[at].policy, verdict, used[at], moved[at]));
            }
        }
        answers.sort_by_key(|(request, policy, ..)| (*request, *policy));
        (if call_denied { Verdict::Deny } else { Verdict::Allow }, answers)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A proxy charges, looks, refunds and counts in one call: every number of every answer must be
    /// right.
    #[test]
    fn a_call_of_several_verbs_and_roles_does_what_its_rules_say(limit in 0u64..6, calls in calls()) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let quota = |_, limit| Quota::new(limit, Duration::from_micros(WINDOW_US)).unwrap();
        let gate = Gate::with_memory(policies(limit, quota), store);
        let (mut ledger, mut now, keys) = (Ledger::default(), 0, keys(""));
        for (us, call) in calls {
            now += us;
            clock.advance(Duration::from_micros(us));
            let requests = requests(&call, &keys);
            let decisions = gate.apply(&requests);
            let answers: Vec<Answer> = decisions
                .iter()
                .map(|one| (one.request(), one.position(), one.decision().verdict(), one.decision().used(), one.decision().cost()))
                .collect();
            let (verdict, expected) = ledger.apply(limit, &call, now);
            prop_assert_eq!(&answers, &expected, "{:?}", call);
            prop_assert_eq!(decisions.verdict(), verdict, "{:?}", call);
            for (policy, (name, ..)) in POLICIES.iter().enumerate() {
                for key in KEYS.into_iter().chain(REFUSED_KEYS) {
                    let request = Request::new().with("key", key).under(name).with_cost(0);
                    let used = gate.peek(&request).iter().next().unwrap().decision().used();
                    prop_assert_eq!(used, ledger.used(policy, key, now), "{} {} after {:?}", name, key, call);
                }
            }
        }
    }
}

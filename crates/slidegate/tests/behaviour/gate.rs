//! The gate: a request under several policies is charged on all of them or on none, and the
//! strictest answers.
//!
//! Random requests meet random sets of policies, and a list of charges for each policy and key says
//! what is right.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use slidegate::{Algorithm, Gate, Match, MemoryStore, clock::ManualClock};
use slidegate::{Policy, PolicySet, Quota, Request, Verdict};

/// Names of policies, each with its window for good: what a change of windows does is proved
/// elsewhere.
const NAMES: [(&str, u64); 5] = [("p0", 40), ("p1", 75), ("p2", 100), ("p3", 100), ("p4", 250)];
const USERS: [&str; 2] = ["alice", "bob"];
const PATHS: [&str; 2] = ["/a", "/b"];

/// A policy, as the reference knows it.
#[derive(Debug, Clone)]
struct Rule {
    /// Stands for a name and a window.
    name: usize,
    scope: Vec<&'static str>,
    only_path: Option<&'static str>,
    limit: u64,
    shadow: bool,
    /// The limit of keys whose first part is the first user or path.
    override_of_first: Option<u64>,
}

/// A request, as the reference knows it.
#[derive(Debug, Clone, Copy)]
struct Asked {
    user: Option<&'static str>,
    path: Option<&'static str>,
    cost: u64,
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Check(Asked),
    Peek(Asked),
    Refund(Asked),
    Penalize(Asked),
    Reset(Asked),
    Configure(Vec<Rule>),
}

/// What one policy says: name, key, verdict, limit, used, cost moved, wait in microseconds (`None`
/// is never).
type Answer = (&'static str, String, Verdict, u64, u64, u64, Option<u64>);

impl Rule {
    fn policy(&self) -> Policy {
        let (name, window_ms) = NAMES[self.name];
        let quota = |limit| Quota::new(limit, Duration::from_millis(window_ms)).unwrap();
        let mut policy = Policy::new(name, quota(self.limit)).unwrap().with_scope(self.scope.iter().copied());
        if let Some(path) = self.only_path {
            policy = policy.with_condition("path", Match::equals(path));
        }
        if let (Some(limit), false) = (self.override_of_first, self.scope.is_empty()) {
            policy = policy.with_override(self.first_key(), quota(limit));
        }
        if self.shadow { policy.with_enforced(false) } else { policy }
    }

    /// The key that has the override.
    fn first_key(&self) -> Vec<&'static str> {
        self.scope.iter().map(|attribute| if *attribute == "user" { USERS[0] } else { PATHS[0] }).collect()
    }

    /// The key of a request under this rule, if it applies.
    fn key(&self, asked: &Asked) -> Option<Vec<&'static str>> {
        if self.only_path.is_some() && self.only_path != asked.path {
            return None;
        }
        self.scope
            .iter()
            .map(|attribute| if *attribute == "user" { asked.user } else { asked.path })
            .collect()
    }

    fn limit_of(&self, key: &[&str]) -> u64 {
        self.override_of_first.filter(|_| !key.is_empty() && key == self.first_key()).unwrap_or(self.limit)
    }

    fn window_us(&self) -> u64 {
        NAMES[self.name].1 * 1000
    }
}

impl Asked {
    fn request(&self) -> Request<'static> {
        let request = Request::new().with_cost(self.cost);
        let request = self.user.into_iter().fold(request, |request, user| request.with("user", user));
        self.path.into_iter().fold(request, |request, path| request.with("path", path))
    }
}

/// A policy, its scope, and the values of that in a request.
type Partition = (usize, Vec<&'static str>, Vec<&'static str>);

/// Charges by policy name, scope and key, each with its time; oldest first.
#[derive(Debug, Default)]
struct Ledger(HashMap<Partition, Vec<(u64, u64)>>);

impl Ledger {
    fn charges(&mut self, rule: &Rule, key: &[&'static str], now: u64) -> &mut Vec<(u64, u64)> {
        let charges = self.0.entry((rule.name, rule.scope.clone(), key.to_vec())).or_default();
        charges.retain(|(at, cost)| at + rule.window_us() > now && *cost > 0);
        charges
    }

    /// The wait until `cost` fits, or `None` if it never does.
    fn wait(charges: &[(u64, u64)], rule: &Rule, limit: u64, cost: u64, now: u64) -> Option<u64> {
        let fits_at = |at: u64| {
            let used: u64 = charges.iter().filter(|(t, _)| t + rule.window_us() > at).map(|(_, c)| c).sum();
            cost <= limit.saturating_sub(used)
        };
        let moments = charges.iter().map(|(at, _)| at + rule.window_us()).chain([now]);
        moments.filter(|at| fits_at(*at)).min().map(|at| at - now)
    }

    fn answers(&mut self, set: &[Rule], asked: &Asked, now: u64, step: &Step) -> Vec<Answer> {
        let applying: Vec<_> = set.iter().filter_map(|rule| Some((rule, rule.key(asked)?))).collect();
        let asks = matches!(step, Step::Check(_) | Step::Peek(_));
        let mut fits = |rule: &Rule, key: &[&'static str]| {
            let used: u64 = self.charges(rule, key, now).iter().map(|(_, cost)| cost).sum();
            !asks || asked.cost <= rule.limit_of(key).saturating_sub(used)
        };
        let fit: Vec<_> = applying.iter().map(|(rule, key)| fits(rule, key)).collect();
        let denied = applying.iter().zip(&fit).any(|((rule, _), fits)| !fits && !rule.shadow);
        let mut answers = Vec::new();
        for ((rule, key), fits) in applying.iter().zip(fit) {
            let charges = self.charges(rule, key, now);
            let moved = match step {
                Step::Check(_) if denied || !fits => 0,
                Step::Check(_) | Step::Penalize(_) => {
                    charges.push((now, asked.cost));
                    asked.cost
                }
                Step::Refund(_) => refund_oldest(charges, asked.cost),
                _ => 0,
            };
            let charges = self.charges(rule, key, now).clone();
            let limit = rule.limit_of(key);
            let wait = if fits { Some(0) } else { Self::wait(&charges, rule, limit, asked.cost, now) };
            let verdict = if fits { Verdict::Allow } else { Verdict::Deny };
            let used = charges.iter().map(|(_, cost)| cost).sum();
            let text = if rule.scope.is_empty() { "*".to_owned() } else { key.join(",") };
            answers.push((NAMES[rule.name].0, text, verdict, limit, used, moved, wait));
        }
        answers
    }

    fn reset(&mut self, set: &[Rule], asked: &Asked, now: u64) -> bool {
        let mut counted = false;
        for (rule, key) in set.iter().filter_map(|rule| Some((rule, rule.key(asked)?))) {
            let charges = self.charges(rule, &key, now);
            counted |= !charges.is_empty();
            charges.clear();
        }
        counted
    }
}

/// Takes back at most `cost`; returns how much that was.
fn refund_oldest(charges: &mut [(u64, u64)], cost: u64) -> u64 {
    let mut rest = cost;
    for (_, charged) in charges {
        let part = rest.min(*charged);
        *charged -= part;
        rest -= part;
    }
    cost - rest
}

/// The name and key of the answer that binds: the first denial with the longest wait, else the
/// least that remains.
fn strictest(set: &[Rule], answers: &[Answer]) -> Option<(&'static str, String)> {
    let enforced = |answer: &&Answer| set.iter().any(|rule| NAMES[rule.name].0 == answer.0 && !rule.shadow);
    let rank = |answer: &Answer| match answer.2 {
        Verdict::Deny => (0, u64::MAX - answer.6.unwrap_or(u64::MAX)),
        Verdict::Allow => (1, answer.3.saturating_sub(answer.4)),
    };
    answers.iter().filter(enforced).min_by_key(|answer| rank(answer)).map(|one| (one.0, one.1.clone()))
}

fn set(rules: &[Rule]) -> PolicySet {
    PolicySet::new(rules.iter().map(Rule::policy)).unwrap()
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    let scope = prop_oneof![
        1 => Just(vec![]),
        3 => Just(vec!["user"]),
        1 => Just(vec!["path"]),
        1 => Just(vec!["user", "path"]),
        1 => Just(vec!["path", "user"]),
    ];
    let only_path = proptest::option::weighted(0.3, proptest::sample::select(&PATHS[..]));
    let limits = (0u64..8, any::<bool>(), proptest::option::weighted(0.3, 0u64..12));
    let rule =
        (scope, only_path, limits).prop_map(|(scope, only_path, (limit, shadow, override_of_first))| Rule {
            name: 0,
            scope,
            only_path,
            limit,
            shadow,
            override_of_first,
        });
    let names = proptest::sample::subsequence(vec![0, 1, 2, 3, 4], 0..=5).prop_shuffle();
    (names, proptest::collection::vec(rule, 5)).prop_map(|(names, rules)| {
        names.into_iter().zip(rules).map(|(name, rule)| Rule { name, ..rule }).collect()
    })
}

fn asked() -> impl Strategy<Value = Asked> {
    let user = proptest::option::weighted(0.8, proptest::sample::select(&USERS[..]));
    let path = proptest::option::weighted(0.8, proptest::sample::select(&PATHS[..]));
    (user, path, 0u64..5).prop_map(|(user, path, cost)| Asked { user, path, cost })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => prop_oneof![0u64..20_000, Just(25_000), Just(100_000)].prop_map(Step::Pass),
        12 => asked().prop_map(Step::Check),
        2 => asked().prop_map(Step::Peek),
        2 => asked().prop_map(Step::Refund),
        1 => asked().prop_map(Step::Penalize),
        1 => asked().prop_map(Step::Reset),
        2 => rules().prop_map(Step::Configure),
    ];
    proptest::collection::vec(step, 1..100)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every answer of every policy, whatever was asked and configured before.
    #[test]
    fn every_answer_is_that_of_a_list_of_charges(first in rules(), steps in steps()) {
        let clock = ManualClock::new();
        let gate = Gate::with_memory(set(&first), MemoryStore::builder().max_keys(4096).clock(clock.clone()).build());
        let (mut rules, mut ledger, mut now) = (first, Ledger::default(), 0);
        for step in steps {
            let asked = match &step {
                Step::Pass(us) => {
                    now += us;
                    clock.advance(Duration::from_micros(*us));
                    continue;
                }
                Step::Configure(next) => {
                    gate.configure(set(next)).unwrap();
                    rules.clone_from(next);
                    continue;
                }
                Step::Reset(asked) => {
                    prop_assert_eq!(gate.reset(&asked.request()).unwrap(), ledger.reset(&rules, asked, now));
                    continue;
                }
                Step::Check(asked) | Step::Peek(asked) | Step::Refund(asked) | Step::Penalize(asked) => asked,
            };
            let expected = ledger.answers(&rules, asked, now, &step);
            let request = asked.request();
            let decisions = match step {
                Step::Check(_) => gate.check(&request),
                Step::Peek(_) => gate.peek(&request),
                Step::Refund(_) => gate.refund(&request),
                _ => gate.penalize(&request),
            };
            let answers: Vec<_> = decisions.iter().map(|one| {
                let wait = one.decision().retry_after().map(|wait| u64::try_from(wait.as_micros()).unwrap());
                let name = NAMES.iter().map(|(name, _)| *name).find(|name| *name == one.policy().name()).unwrap();
                (name, one.key().to_string(), one.decision().verdict(), one.decision().limit(), one.decision().used(), one.decision().cost(), wait)
            }).collect();
            prop_assert_eq!(&answers, &expected);
            let denied = decisions.iter().any(|one| one.decision().is_denied() && one.policy().options().enforced);
            prop_assert_eq!(decisions.is_denied(), denied);
            let bound = decisions.strictest().map(|one| (one.policy().name(), one.key().to_string()));
            prop_assert_eq!(bound, strictest(&rules, &expected));
        }
    }
}

fn gate(policies: impl IntoIterator<Item = Policy>) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().clock(clock.clone()).build();
    (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
}

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::new(name, quota).unwrap()
}

fn used(gate: &Gate, request: &Request<'_>) -> Vec<u64> {
    gate.peek(request).iter().map(|one| one.decision().used()).collect()
}

/// A request that one rule denies must not use up the others: retries would lock the client out of
/// everything.
#[test]
fn a_denied_request_is_charged_on_no_policy_whichever_algorithms_they_are() {
    for tight in Algorithm::ALL {
        let loose = Algorithm::ALL.map(|algorithm| {
            policy(algorithm.name(), Quota::per_hour(100).with_algorithm(algorithm)).with_scope(["user"])
        });
        let tight = policy("tight", Quota::per_hour(2).with_algorithm(tight)).with_scope(["user"]);
        // The policy that denies stands last, so that those before it have been looked at.
        let (gate, _) = gate(loose.into_iter().chain([tight]));
        let alice = Request::new().with("user", "alice");
        assert!(gate.check(&alice).is_allowed());
        let two = alice.clone().with_cost(2);
        for _ in 0..50 {
            let denied = gate.check(&two);
            assert!(denied.is_denied());
            assert_eq!(denied.strictest().unwrap().policy().name(), "tight");
            assert!(denied.iter().all(|one| one.decision().cost() == 0));
        }
        assert_eq!(used(&gate, &alice), [1, 1, 1, 1, 1]);
        assert!(gate.check(&alice).is_allowed());
        assert_eq!(used(&gate, &alice), [2, 2, 2, 2, 2]);
    }
}

/// The log line of a denial has to lead to the rule and the client, not to the first of either.
#[test]
fn the_strictest_decision_names_its_policy_key_and_quota() {
    let (gate, _) = gate([
        policy("short", Quota::per_second(1)).with_scope(["user"]),
        policy("long", Quota::per_hour(1)).with_scope(["path", "user"]),
        policy("wide", Quota::per_day(100)),
    ]);
    let request = Request::new().with("user", "alice").with("path", "/a,b");
    let allowed = gate.check(&request);
    // Both are used up; of those that are even the first binds.
    assert_eq!(allowed.strictest().unwrap().policy().name(), "short");
    let denied = gate.check(&request);
    let strictest = denied.strictest().unwrap();
    assert_eq!((strictest.policy().name(), strictest.position()), ("long", 1));
    assert_eq!(strictest.key().to_string(), "/a%2Cb,alice");
    assert_eq!(strictest.quota(), &Quota::per_hour(1));
    assert_eq!(strictest.decision().retry_after(), Some(Duration::from_secs(3600)));
    let seen: Vec<_> = denied.iter().map(|one| (one.policy().name(), one.decision().verdict())).collect();
    assert_eq!(seen, [("short", Verdict::Deny), ("long", Verdict::Deny), ("wide", Verdict::Allow)]);
}

/// More policies than fit on the stack of a decision are still one decision.
#[test]
fn a_request_under_many_policies_is_charged_on_all_or_none() {
    let many = |last: u64| {
        let limit = move |n| if n == 99 { last } else { 1000 };
        (0..100).map(move |n| policy(&format!("p{n}"), Quota::per_minute(limit(n))))
    };
    let (gate, _) = gate(many(3));
    let request = Request::new().with_cost(2);
    assert_eq!([gate.check(&request).is_allowed(), gate.check(&request).is_allowed()], [true, false]);
    assert_eq!(used(&gate, &request), [2; 100]);
    assert_eq!(gate.check(&request).strictest().unwrap().policy().name(), "p99");
}

/// A reload under load: a request decided by half of each set is decided by rules that nobody
/// wrote.
#[test]
fn a_request_is_decided_under_one_set_whole() {
    let named = |names: [&str; 3], limit| {
        let policies = names.map(|name| policy(name, Quota::per_hour(limit)).with_scope(["user"]));
        PolicySet::new(policies).unwrap()
    };
    let sets = [(["a1", "a2", "a3"], 1_000_000), (["b1", "b2", "b3"], 2_000_000)];
    let (gate, _) = gate([]);
    gate.configure(named(sets[0].0, sets[0].1)).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in (0..2).cycle().take(2000) {
                gate.configure(named(sets[turn].0, sets[turn].1)).unwrap();
            }
            done.store(true, Ordering::Release);
        });
        for user in ["alice", "bob"] {
            let (gate, done, sets) = (&gate, &done, &sets);
            scope.spawn(move || {
                let request = Request::new().with("user", user);
                let mut rounds = 0;
                while !done.load(Ordering::Acquire) && rounds < 200_000 {
                    rounds += 1;
                    let decisions = gate.check(&request);
                    let names: Vec<_> = decisions.iter().map(|one| one.policy().name()).collect();
                    let (_, limit) = sets.iter().find(|(set, _)| names == *set).expect("one set whole");
                    assert!(
                        decisions
                            .iter()
                            .all(|one| one.decision().limit() == *limit && one.decision().cost() == 1)
                    );
                }
            });
        }
    });
    // Whole sets are charged: three policies of one set have seen the same requests.
    for (names, limit) in sets {
        gate.configure(named(names, limit)).unwrap();
        for user in ["alice", "bob"] {
            let used = used(&gate, &Request::new().with("user", user));
            assert!(used.iter().all(|one| *one == used[0]), "{names:?} {user}: {used:?}");
        }
    }
}

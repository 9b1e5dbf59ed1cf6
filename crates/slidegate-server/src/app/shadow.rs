//! Shadows: what policies in shadow would have denied, and what candidates would change.
//!
//! A candidate is decided beside its policy with a state of its own. It counts what it would have admitted: a request that
//! only its policy denies is therefore charged to it all the same, by a call of its own.
//!
//! Decisions add to counters of their policy, which they find without a lock. Only a decision that a candidate would change
//! takes one, of a part of the candidate's keys.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use slidegate::{Decisions, PolicyDecision, PolicySet, Quota, Verb};

use crate::key_text::KeyText;
use crate::policy_names::candidate_of;

/// Keys that are told apart for a candidate; what happens to others counts for the candidate as a whole, and so it does for
/// keys whose text is longer than can be asked for.
const MAX_KEYS: usize = 1000;
/// Parts of a candidate's keys, so that threads seldom wait for each other.
const KEY_SHARDS: usize = 16;

/// What was seen since each was put in force, by policy.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    shadows: Counters<WatchedCounters>,
    candidates: Counters<ComparedCounters>,
}

/// A copy of what was seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) candidates: BTreeMap<String, Compared>,
    pub(crate) shadows: BTreeMap<String, Watched>,
}

/// A candidate beside its policy.
#[derive(Debug, Clone)]
pub(crate) struct Compared {
    /// Both as they were while it was counted: with another one it begins anew.
    quotas: (Quota, Quota),
    /// Checks that both decided.
    pub(crate) requests: u64,
    pub(crate) changed: Changed,
    /// By the key's text.
    pub(crate) keys: HashMap<String, Changed>,
}

/// How many requests would be decided otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

/// A policy in shadow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) requests: u64,
    pub(crate) would_deny: u64,
}

/// A policy whose candidate has to be charged for a request, and which of the requests it was.
pub(crate) struct CandidateCharge {
    pub(crate) request: usize,
    pub(crate) candidate: String,
}

impl Shadows {
    /// Takes note of decisions on checks. What candidates admit and their policies did not is returned, to be charged.
    pub(crate) fn record(&self, verb: Verb, decisions: &Decisions<'_>) -> Vec<CandidateCharge> {
        if verb != Verb::Check || decisions.iter().all(|one| one.policy().is_enforced()) {
            return Vec::new();
        }
        let mut to_charge = Vec::new();
        let denying = decisions.iter().filter(|one| one.is_denied() && one.policy().is_enforced()).count();
        for one in decisions.iter().filter(|one| !one.policy().is_enforced()) {
            let name = one.policy().name();
            let Some(live) = candidate_of(name) else {
                self.watch(name, one.is_denied());
                continue;
            };
            let is_live = |other: &PolicyDecision<'_>| {
                other.policy().name() == live && other.request() == one.request()
            };
            let Some(live_one) = decisions.iter().find(is_live) else { continue };
            // Whatever another policy denies, is denied under this candidate as well.
            let others_deny = denying > usize::from(live_one.is_denied() && live_one.policy().is_enforced());
            let quotas = (*live_one.policy().quota(), *one.policy().quota());
            let is_of = |known: &ComparedCounters| known.quotas == quotas;
            let compared = self.candidates.of(live, is_of, || ComparedCounters::new(quotas));
            compared.requests.fetch_add(1, Relaxed);
            if others_deny || one.is_denied() == live_one.is_denied() {
                continue;
            }
            compared.add(one.key(), one.is_denied());
            if live_one.is_denied() && live_one.policy().is_enforced() {
                to_charge.push(CandidateCharge { request: one.request(), candidate: name.to_owned() });
            }
        }
        to_charge
    }

    /// Takes note of looks under policies in shadow that stand for checks, and whether each would have been denied.
    pub(crate) fn record_peeks<'d>(&self, looks: impl Iterator<Item = (&'d PolicyDecision<'d>, bool)>) {
        for (one, would_deny) in looks {
            let name = one.policy().name();
            if candidate_of(name).is_none() {
                self.watch(name, would_deny);
            }
        }
    }

    /// Forgets policies that are no longer in force, which run-time changes could otherwise make more and more of.
    pub(crate) fn follow(&self, policies: &PolicySet) {
        self.shadows.retain(|name| policies.by_name(name).is_some());
        self.candidates.retain(|name| policies.by_name(name).is_some());
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        Seen {
            candidates: self.candidates.all(ComparedCounters::read),
            shadows: self.shadows.all(WatchedCounters::read),
        }
    }

    fn watch(&self, name: &str, would_deny: bool) {
        let watched = self.shadows.of(name, |_| true, WatchedCounters::default);
        watched.requests.fetch_add(1, Relaxed);
        watched.would_deny.fetch_add(u64::from(would_deny), Relaxed);
    }
}

impl Compared {
    /// Whether it was counted with these two.
    pub(crate) fn is_of(&self, live: &Quota, candidate: &Quota) -> bool {
        self.quotas == (*live, *candidate)
    }
}

/// Counters by the names of policies. They are found without a lock; the table is copied when a policy is new, which is
/// once for each.
#[derive(Debug)]
struct Counters<T>(ArcSwap<HashMap<String, Arc<T>>>);

impl<T> Default for Counters<T> {
    fn default() -> Self {
        Self(ArcSwap::default())
    }
}

impl<T> Counters<T> {
    /// Those of a policy, or new ones in their place if they are not current.
    fn of(&self, name: &str, is_current: impl Fn(&T) -> bool, new: impl Fn() -> T) -> Arc<T> {
        loop {
            if let Some(known) = self.0.load().get(name)
                && is_current(known)
            {
                return Arc::clone(known);
            }
            // Another thread may be as far: then its counters stay.
            self.0.rcu(|known| {
                let mut next = HashMap::clone(known);
                if !next.get(name).is_some_and(|known| is_current(known)) {
                    next.insert(name.to_owned(), Arc::new(new()));
                }
                next
            });
        }
    }

    fn retain(&self, keep: impl Fn(&str) -> bool) {
        if self.0.load().keys().all(|name| keep(name)) {
            return;
        }
        self.0.rcu(|known| {
            let kept = known.iter().filter(|(name, _)| keep(name));
            kept.map(|(name, counters)| (name.clone(), Arc::clone(counters))).collect::<HashMap<_, _>>()
        });
    }

    fn all<R>(&self, read: impl Fn(&T) -> R) -> BTreeMap<String, R> {
        self.0.load().iter().map(|(name, counters)| (name.clone(), read(counters))).collect()
    }
}

#[derive(Debug, Default)]
struct WatchedCounters {
    requests: AtomicU64,
    would_deny: AtomicU64,
}

impl WatchedCounters {
    fn read(&self) -> Watched {
        Watched { requests: self.requests.load(Relaxed), would_deny: self.would_deny.load(Relaxed) }
    }
}

#[derive(Debug)]
struct ComparedCounters {
    quotas: (Quota, Quota),
    requests: AtomicU64,
    newly_denied: AtomicU64,
    newly_allowed: AtomicU64,
    keys: [Mutex<HashMap<Box<str>, Changed>>; KEY_SHARDS],
    /// How many keys there are, or a few more while some are added.
    key_count: AtomicUsize,
    hasher: RandomState,
}

thread_local! {
    /// Where keys are written to be looked up.
    static KEY_TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

impl ComparedCounters {
    fn new(quotas: (Quota, Quota)) -> Self {
        Self {
            quotas,
            requests: AtomicU64::new(0),
            newly_denied: AtomicU64::new(0),
            newly_allowed: AtomicU64::new(0),
            keys: std::array::from_fn(|_| Mutex::default()),
            key_count: AtomicUsize::new(0),
            hasher: RandomState::new(),
        }
    }

    fn add(&self, key: impl fmt::Display, is_newly_denied: bool) {
        let total = if is_newly_denied { &self.newly_denied } else { &self.newly_allowed };
        total.fetch_add(1, Relaxed);
        KEY_TEXT.with_borrow_mut(|text| {
            text.clear();
            write!(text, "{key}").expect("text takes text");
            if text.len() <= KeyText::MAX {
                self.add_to_key(text, is_newly_denied);
            }
            // One client's long key must not take memory of every thread for good.
            text.clear();
            text.shrink_to(KeyText::MAX);
        });
    }

    fn add_to_key(&self, text: &str, is_newly_denied: bool) {
        let shard = usize::try_from(self.hasher.hash_one(text) % KEY_SHARDS as u64).unwrap_or_default();
        let mut keys = self.keys[shard].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(changed) = keys.get_mut(text) {
            changed.add(is_newly_denied);
        } else if self.key_count.fetch_add(1, Relaxed) < MAX_KEYS {
            keys.entry(text.into()).or_default().add(is_newly_denied);
        } else {
            self.key_count.fetch_sub(1, Relaxed);
        }
    }

    fn read(&self) -> Compared {
        let keys = self.keys.iter().flat_map(|shard| {
            let keys = shard.lock().unwrap_or_else(PoisonError::into_inner);
            keys.iter().map(|(key, changed)| (key.to_string(), *changed)).collect::<Vec<_>>()
        });
        Compared {
            quotas: self.quotas,
            requests: self.requests.load(Relaxed),
            changed: Changed {
                newly_denied: self.newly_denied.load(Relaxed),
                newly_allowed: self.newly_allowed.load(Relaxed),
            },
            keys: keys.collect(),
        }
    }
}

impl Changed {
    fn add(&mut self, is_newly_denied: bool) {
        if is_newly_denied {
            self.newly_denied += 1;
        } else {
            self.newly_allowed += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{Gate, Policy, Request};

    use super::*;
    use crate::policy_names::CANDIDATE;

    /// A policy with a candidate of a smaller limit, and one in shadow.
    fn gate(limit: u64, candidate: u64) -> Gate {
        let policy = |name: &str, limit| Policy::new(name, Quota::per_minute(limit)).unwrap().scope(["user"]);
        let name = format!("p{CANDIDATE}");
        let policies = [policy("p", limit), policy(&name, candidate).shadow(), policy("s", 1).shadow()];
        Gate::new(PolicySet::new(policies).unwrap())
    }

    fn check(gate: &Gate, shadows: &Shadows, user: &str) -> usize {
        let request = Request::new().with("user", user);
        shadows.record(Verb::Check, &gate.check(&request)).len()
    }

    /// Whoever is about to put a candidate in force believes these numbers, whichever threads decided.
    #[test]
    fn nothing_is_lost_when_many_threads_count_at_once() {
        let (gate, shadows) = (gate(1_000_000, 0), Shadows::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..1000 {
                        check(&gate, &shadows, &(n % 10).to_string());
                    }
                });
            }
        });
        let seen = shadows.seen();
        assert_eq!(seen.shadows["s"], Watched { requests: 4000, would_deny: 3990 });
        let compared = &seen.candidates["p"];
        let all = Changed { newly_denied: 4000, newly_allowed: 0 };
        assert_eq!((compared.requests, compared.changed, compared.keys.len()), (4000, all, 10));
        assert!(compared.keys.values().all(|one| one.newly_denied == 400), "{:?}", compared.keys);
    }

    /// Every check of a policy with a shadow goes through here: none may wait for a thread that is stopped.
    #[test]
    fn checks_that_a_candidate_does_not_change_take_no_lock() {
        let (gate, shadows) = (gate(1_000_000, 3), Shadows::default());
        check(&gate, &shadows, "alice");
        let compared = shadows.candidates.of("p", |_| true, || unreachable!("it was seen"));
        let locks: Vec<_> = compared.keys.iter().map(|shard| shard.lock().unwrap()).collect();
        check(&gate, &shadows, "alice");
        check(&gate, &shadows, "bob");
        drop(locks);
        let seen = shadows.seen();
        assert_eq!(seen.shadows["s"], Watched { requests: 3, would_deny: 1 });
        assert_eq!((seen.candidates["p"].requests, seen.candidates["p"].changed), (3, Changed::default()));
    }

    /// Keys are chosen by clients: more of them, and longer ones, take no more memory and are still counted.
    #[test]
    fn keys_are_bounded_in_number_and_length() {
        let (gate, shadows) = (gate(1_000_000, 0), Shadows::default());
        check(&gate, &shadows, &"k".repeat(KeyText::MAX + 1));
        assert!(KEY_TEXT.with_borrow(|text| text.capacity() <= KeyText::MAX));
        for user in 0..2 * MAX_KEYS {
            check(&gate, &shadows, &user.to_string());
        }
        check(&gate, &shadows, "0");
        let compared = &shadows.seen().candidates["p"];
        assert_eq!((compared.keys.len(), compared.keys["0"].newly_denied), (MAX_KEYS, 2));
        assert_eq!(compared.changed.newly_denied, 2 * MAX_KEYS as u64 + 2);
    }

    /// Numbers of another limit would speak for this one; and policies that come and go must not add up.
    #[test]
    fn other_quotas_begin_anew_and_policies_that_have_gone_are_forgotten() {
        let shadows = Shadows::default();
        assert_eq!(check(&gate(1, 5), &shadows, "alice"), 0);
        let tight = gate(1, 7);
        assert_eq!(check(&tight, &shadows, "alice"), 0);
        assert_eq!(check(&tight, &shadows, "alice"), 1, "only the policy denies: the candidate is charged");
        let seen = shadows.seen();
        let compared = &seen.candidates["p"];
        assert!(compared.is_of(&Quota::per_minute(1), &Quota::per_minute(7)));
        assert_eq!((compared.requests, compared.changed.newly_allowed), (2, 1));
        assert_eq!(seen.shadows["s"].requests, 3);
        let left = Policy::new("s", Quota::per_minute(1)).unwrap().shadow();
        shadows.follow(&PolicySet::new([left]).unwrap());
        let seen = shadows.seen();
        assert_eq!((seen.candidates.len(), seen.shadows["s"].requests), (0, 3));
    }
}

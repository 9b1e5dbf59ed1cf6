//! Shadow mode: denials by shadow policies, and how candidates would decide differently.
//!
//! A candidate is decided next to its policy, with its own state. It must count what it would have
//! admitted: a separate call charges it for requests that only its policy denies.
//!
//! Decisions update their policy's counters without a lock. Only a decision that a candidate would
//! change locks one shard of the candidate's keys.

use std::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Decisions, PolicyDecision, PolicySet, Quota, verb::Verb};
use slidegate_config::names::candidate_of;

use crate::wire::key_text::KeyText;

/// Maximum keys tracked per candidate. Further keys, and keys longer than a lookup accepts, only
/// count in the totals.
const MAX_KEYS: usize = 1000;
/// Shards of a candidate's keys, to reduce contention.
const KEY_SHARDS: usize = 16;

/// Counts by policy, since each was activated.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    shadows: Counters<ShadowCounters>,
    candidates: Counters<CandidateCounters>,
}

/// A snapshot of the counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShadowSnapshot {
    pub(crate) candidates: BTreeMap<String, CandidateComparison>,
    pub(crate) shadows: BTreeMap<String, ShadowCounts>,
}

/// A candidate compared with its policy.
#[derive(Debug, Clone)]
pub(crate) struct CandidateComparison {
    /// The compared quotas. The counts restart if one changes.
    quotas: (Quota, Quota),
    /// Checks decided by both.
    pub(crate) requests: u64,
    pub(crate) changed: Differences,
    /// By the key's text.
    pub(crate) keys: HashMap<String, Differences>,
}

/// Requests that the candidate would decide differently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Differences {
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
}

/// The counts of a shadow policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ShadowCounts {
    pub(crate) requests: u64,
    pub(crate) would_deny: u64,
}

/// A policy whose candidate must be charged, and the request's index.
pub(crate) struct CandidateCharge {
    pub(crate) request: usize,
    pub(crate) candidate: String,
}

impl Shadows {
    /// Records decisions on checks. Returns requests to charge to candidates that admit what their
    /// policies deny.
    pub(crate) fn record(&self, verb: Verb, decisions: &Decisions<'_>) -> Vec<CandidateCharge> {
        if verb != Verb::Check || decisions.iter().all(|one| one.policy().options().enforced) {
            return Vec::new();
        }
        let mut to_charge = Vec::new();
        let denying = decisions
            .iter()
            .filter(|one| one.decision().is_denied() && one.policy().options().enforced)
            .count();
        let is_check = |one: &PolicyDecision<'_>| one.verb() == Verb::Check || one.decision().is_denied();
        for one in decisions.iter().filter(|one| !one.policy().options().enforced && is_check(one)) {
            let name = one.policy().name();
            let Some(live) = candidate_of(name) else {
                self.watch(name, one.decision().is_denied());
                continue;
            };
            let is_live = |other: &PolicyDecision<'_>| {
                other.policy().name() == live && other.request() == one.request()
            };
            let Some(live_one) = decisions.iter().find(is_live) else { continue };
            // A denial by another policy would apply with this candidate too.
            let others_deny = denying
                > usize::from(live_one.decision().is_denied() && live_one.policy().options().enforced);
            let quotas = (*live_one.policy().quota(), *one.policy().quota());
            let is_of = |known: &CandidateCounters| known.quotas == quotas;
            let compared = self.candidates.of(live, is_of, || CandidateCounters::new(quotas));
            compared.requests.fetch_add(1, Relaxed);
            if others_deny || one.decision().is_denied() == live_one.decision().is_denied() {
                continue;
            }
            compared.add(one.key(), one.decision().is_denied());
            if live_one.decision().is_denied() && live_one.policy().options().enforced {
                to_charge.push(CandidateCharge { request: one.request(), candidate: name.to_owned() });
            }
        }
        to_charge
    }

    /// Drops inactive policies, so that run-time changes cannot grow the table without bound.
    pub(crate) fn follow(&self, policies: &PolicySet) {
        self.shadows.retain(|name| policies.by_name(name).is_some());
        self.candidates.retain(|name| policies.by_name(name).is_some());
    }

    /// A snapshot of the counts.
    pub(crate) fn seen(&self) -> ShadowSnapshot {
        ShadowSnapshot {
            candidates: self.candidates.all(CandidateCounters::read),
            shadows: self.shadows.all(ShadowCounters::read),
        }
    }

    fn watch(&self, name: &str, would_deny: bool) {
        let watched = self.shadows.of(name, |_| true, ShadowCounters::default);
        watched.requests.fetch_add(1, Relaxed);
        watched.would_deny.fetch_add(u64::from(would_deny), Relaxed);
    }
}

impl CandidateComparison {
    /// Whether the counts are for these two quotas.
    pub(crate) fn is_of(&self, live: &Quota, candidate: &Quota) -> bool {
        self.quotas == (*live, *candidate)
    }
}

/// Counters by policy name, read without a lock. The table is copied once per new policy.
#[derive(Debug)]
struct Counters<T>(ArcSwap<HashMap<String, Arc<T>>>);

impl<T> Default for Counters<T> {
    fn default() -> Self {
        Self(ArcSwap::default())
    }
}

impl<T> Counters<T> {
    /// A policy's counters; replaced if they are not current.
    fn of(&self, name: &str, is_current: impl Fn(&T) -> bool, new: impl Fn() -> T) -> Arc<T> {
        loop {
            if let Some(known) = self.0.load().get(name)
                && is_current(known)
            {
                return Arc::clone(known);
            }
            // Another thread may have inserted them; keep those.
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
struct ShadowCounters {
    requests: AtomicU64,
    would_deny: AtomicU64,
}

impl ShadowCounters {
    fn read(&self) -> ShadowCounts {
        ShadowCounts { requests: self.requests.load(Relaxed), would_deny: self.would_deny.load(Relaxed) }
    }
}

#[derive(Debug)]
struct CandidateCounters {
    quotas: (Quota, Quota),
    requests: AtomicU64,
    newly_denied: AtomicU64,
    newly_allowed: AtomicU64,
    keys: [Mutex<HashMap<Box<str>, Differences>>; KEY_SHARDS],
    /// Number of keys; may briefly be too high during insertions.
    key_count: AtomicUsize,
    hasher: RandomState,
}

thread_local! {
    /// Buffer for a key's text.
    static KEY_TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

impl CandidateCounters {
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
            write!(text, "{key}").expect("writing to a String cannot fail");
            if text.len() <= KeyText::MAX {
                self.add_to_key(text, is_newly_denied);
            }
            // One long key must not permanently grow every thread's buffer.
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

    fn read(&self) -> CandidateComparison {
        let keys = self.keys.iter().flat_map(|shard| {
            let keys = shard.lock().unwrap_or_else(PoisonError::into_inner);
            keys.iter().map(|(key, changed)| (key.to_string(), *changed)).collect::<Vec<_>>()
        });
        CandidateComparison {
            quotas: self.quotas,
            requests: self.requests.load(Relaxed),
            changed: Differences {
                newly_denied: self.newly_denied.load(Relaxed),
                newly_allowed: self.newly_allowed.load(Relaxed),
            },
            keys: keys.collect(),
        }
    }
}

impl Differences {
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
    use slidegate_config::names::CANDIDATE;

    use super::*;

    /// A policy with a candidate of a lower limit, and a shadow policy.
    fn gate(limit: u64, candidate: u64) -> Gate {
        let policy =
            |name: &str, limit| Policy::new(name, Quota::per_minute(limit)).unwrap().with_scope(["user"]);
        let name = format!("p{CANDIDATE}");
        let policies = [
            policy("p", limit),
            policy(&name, candidate).with_enforced(false),
            policy("s", 1).with_enforced(false),
        ];
        Gate::new(PolicySet::new(policies).unwrap())
    }

    fn check(gate: &Gate, shadows: &Shadows, user: &str) -> usize {
        let request = Request::new().with("user", user);
        shadows.record(Verb::Check, &gate.check(&request)).len()
    }

    /// Operators promote a candidate by these numbers: none may be lost between threads.
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
        assert_eq!(seen.shadows["s"], ShadowCounts { requests: 4000, would_deny: 3990 });
        let compared = &seen.candidates["p"];
        let all = Differences { newly_denied: 4000, newly_allowed: 0 };
        assert_eq!((compared.requests, compared.changed, compared.keys.len()), (4000, all, 10));
        assert!(compared.keys.values().all(|one| one.newly_denied == 400), "{:?}", compared.keys);
    }

    /// Every check of a shadow policy runs this code: none may wait for a suspended thread.
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
        assert_eq!(seen.shadows["s"], ShadowCounts { requests: 3, would_deny: 1 });
        assert_eq!(
            (seen.candidates["p"].requests, seen.candidates["p"].changed),
            (3, Differences::default())
        );
    }

    /// Clients choose keys: more or longer keys must not use more memory, and must still be
    /// counted.
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

    /// Counts must not mix two limits, and removed policies must not accumulate.
    #[test]
    fn other_quotas_start_over_and_removed_policies_are_forgotten() {
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
        let left = Policy::new("s", Quota::per_minute(1)).unwrap().with_enforced(false);
        shadows.follow(&PolicySet::new([left]).unwrap());
        let seen = shadows.seen();
        assert_eq!((seen.candidates.len(), seen.shadows["s"].requests), (0, 3));
    }
}

//! Shadow mode: denials by shadow policies, and how candidates would decide differently.
//!
//! A candidate is decided next to its policy, with its own state. It must count what it would have
//! admitted: a separate call charges it for requests that only its policy denies.
//!
//! Decisions update their policy's counters without a lock. Only a decision that a candidate would
//! change locks one shard of the candidate's keys.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::fmt::{self, Write as _};
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::{Decisions, PolicyDecision, PolicySet, Quota, clock::Timestamp, verb::Verb};
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

/// The figures of a shadow policy or a candidate on one instance, or summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShadowFigures {
    /// Checks decided, by both if a candidate is compared.
    #[serde(rename = "n")]
    pub(crate) requests: u64,
    /// Or denied by the shadow policy.
    #[serde(rename = "d")]
    pub(crate) newly_denied: u64,
    #[serde(rename = "a")]
    pub(crate) newly_allowed: u64,
    /// When the count began: the first check, in milliseconds since the epoch.
    #[serde(rename = "t")]
    pub(crate) since_ms: u64,
}

/// Requests that the candidate would decide differently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Differences {
    pub(crate) newly_denied: u64,
    pub(crate) newly_allowed: u64,
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
                let watched = self.shadows.of(name, |_| true, || ShadowCounters::since(one.decision().at()));
                watched.requests.fetch_add(1, Relaxed);
                watched.newly_denied.fetch_add(u64::from(one.decision().is_denied()), Relaxed);
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
            let new = || CandidateCounters::new(quotas, one.decision().at());
            let compared = self.candidates.of(live, is_of, new);
            compared.total.requests.fetch_add(1, Relaxed);
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

    /// The figures of a shadow policy, or of a candidate by its own name. `None` before the first check.
    pub(crate) fn figures(&self, policies: &PolicySet, name: &str) -> Option<ShadowFigures> {
        let policy = policies.by_name(name).filter(|policy| !policy.options().enforced)?;
        let Some(live) = candidate_of(name) else {
            return self.shadows.0.load().get(name).map(|known| known.read());
        };
        // The counts restart if a quota changes.
        let quotas = (*policies.by_name(live)?.quota(), *policy.quota());
        let candidates = self.candidates.0.load();
        candidates.get(live).filter(|known| known.quotas == quotas).map(|known| known.total.read())
    }

    /// The keys for which the candidate of a policy decides differently, by their text.
    pub(crate) fn keys(&self, policy: &str) -> HashMap<String, Differences> {
        self.candidates.0.load().get(policy).map(|known| known.keys()).unwrap_or_default()
    }
}

impl ShadowFigures {
    /// The sum with another instance's.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests.saturating_add(other.requests),
            newly_denied: self.newly_denied.saturating_add(other.newly_denied),
            newly_allowed: self.newly_allowed.saturating_add(other.newly_allowed),
            since_ms: self.since_ms.min(other.since_ms),
        }
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
}

#[derive(Debug)]
struct ShadowCounters {
    since: Timestamp,
    requests: AtomicU64,
    newly_denied: AtomicU64,
    newly_allowed: AtomicU64,
}

impl ShadowCounters {
    fn since(since: Timestamp) -> Self {
        let [requests, newly_denied, newly_allowed] = Default::default();
        Self { since, requests, newly_denied, newly_allowed }
    }

    fn read(&self) -> ShadowFigures {
        ShadowFigures {
            requests: self.requests.load(Relaxed),
            newly_denied: self.newly_denied.load(Relaxed),
            newly_allowed: self.newly_allowed.load(Relaxed),
            since_ms: self.since.as_micros() / 1000,
        }
    }
}

#[derive(Debug)]
struct CandidateCounters {
    quotas: (Quota, Quota),
    total: ShadowCounters,
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
    fn new(quotas: (Quota, Quota), since: Timestamp) -> Self {
        Self {
            quotas,
            total: ShadowCounters::since(since),
            keys: std::array::from_fn(|_| Mutex::default()),
            key_count: AtomicUsize::new(0),
            hasher: RandomState::new(),
        }
    }

    fn add(&self, key: impl fmt::Display, is_newly_denied: bool) {
        let ShadowCounters { newly_denied, newly_allowed, .. } = &self.total;
        let total = if is_newly_denied { newly_denied } else { newly_allowed };
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

    fn keys(&self) -> HashMap<String, Differences> {
        let keys = self.keys.iter().flat_map(|shard| {
            let keys = shard.lock().unwrap_or_else(PoisonError::into_inner);
            keys.iter().map(|(key, changed)| (key.to_string(), *changed)).collect::<Vec<_>>()
        });
        keys.collect()
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

    /// Requests, newly denied and newly allowed.
    fn figures(gate: &Gate, shadows: &Shadows, name: &str) -> Option<(u64, u64, u64)> {
        let figures = shadows.figures(&gate.policies(), name)?;
        assert!(figures.since_ms > 0);
        Some((figures.requests, figures.newly_denied, figures.newly_allowed))
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
        assert_eq!(figures(&gate, &shadows, "s"), Some((4000, 3990, 0)));
        assert_eq!(figures(&gate, &shadows, "p.candidate"), Some((4000, 4000, 0)));
        let keys = shadows.keys("p");
        assert_eq!(keys.len(), 10);
        assert!(keys.values().all(|one| one.newly_denied == 400), "{keys:?}");
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
        assert_eq!(figures(&gate, &shadows, "s"), Some((3, 1, 0)));
        assert_eq!(figures(&gate, &shadows, "p.candidate"), Some((3, 0, 0)));
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
        let keys = shadows.keys("p");
        assert_eq!((keys.len(), keys["0"].newly_denied), (MAX_KEYS, 2));
        let all = 2 * MAX_KEYS as u64 + 2;
        assert_eq!(figures(&gate, &shadows, "p.candidate"), Some((all, all, 0)));
    }

    /// Counts must not mix two limits, and removed policies must not accumulate.
    #[test]
    fn other_quotas_start_over_and_removed_policies_are_forgotten() {
        let shadows = Shadows::default();
        assert_eq!(check(&gate(1, 5), &shadows, "alice"), 0);
        let tight = gate(1, 7);
        assert_eq!(check(&tight, &shadows, "alice"), 0);
        assert_eq!(check(&tight, &shadows, "alice"), 1, "only the policy denies: the candidate is charged");
        assert_eq!(figures(&gate(1, 5), &shadows, "p.candidate"), None);
        assert_eq!(figures(&tight, &shadows, "p.candidate"), Some((2, 0, 1)));
        assert_eq!(figures(&tight, &shadows, "s").unwrap().0, 3);
        let left = Policy::new("s", Quota::per_minute(1)).unwrap().with_enforced(false);
        shadows.follow(&PolicySet::new([left]).unwrap());
        assert_eq!(figures(&tight, &shadows, "p.candidate"), None);
        assert_eq!(figures(&tight, &shadows, "s").unwrap().0, 3);
    }
}

//! Shadows: what policies in shadow would have denied, and what candidates would change.
//!
//! A candidate is decided beside its policy with a state of its own. It counts what it would have admitted: a request that
//! only its policy denies is therefore charged to it all the same, by a call of its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use slidegate::{Decisions, PolicyDecision, Quota, Verb};

use crate::control::{CANDIDATE, candidate_of};

/// Keys that are told apart for a candidate; what happens to others counts for the candidate as a whole.
const MAX_KEYS: usize = 1000;

/// What was seen since each was put in force, by policy.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    seen: Mutex<Seen>,
}

/// See [`Shadows`].
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
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Watched {
    pub(crate) requests: u64,
    pub(crate) would_deny: u64,
}

/// A policy whose candidate has to be charged for a request, and which of the requests it was.
pub(crate) struct ToCharge {
    pub(crate) request: usize,
    pub(crate) candidate: String,
}

impl Shadows {
    /// Takes note of decisions on checks. What candidates admit and their policies did not is returned, to be charged.
    pub(crate) fn note(&self, verb: Verb, decisions: &Decisions<'_>) -> Vec<ToCharge> {
        if verb != Verb::Check || decisions.iter().all(|one| one.policy().is_enforced()) {
            return Vec::new();
        }
        let mut to_charge = Vec::new();
        let denying = decisions.iter().filter(|one| one.is_denied() && one.policy().is_enforced()).count();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for one in decisions.iter().filter(|one| !one.policy().is_enforced()) {
            let name = one.policy().name();
            let Some(live) = candidate_of(name) else {
                seen.watch(name, one.is_denied());
                continue;
            };
            let is_live = |other: &PolicyDecision<'_>| {
                other.policy().name() == live && other.request() == one.request()
            };
            let Some(live_one) = decisions.iter().find(is_live) else { continue };
            // Whatever another policy denies, is denied under this candidate as well.
            let others_deny = denying > usize::from(live_one.is_denied() && live_one.policy().is_enforced());
            let quotas = (*live_one.policy().quota(), *one.policy().quota());
            if !seen.candidates.get(live).is_some_and(|known| known.quotas == quotas) {
                seen.candidates.insert(live.to_owned(), Compared::new(quotas));
            }
            let compared = seen.candidates.get_mut(live).expect("it was put there");
            compared.requests += 1;
            if others_deny || one.is_denied() == live_one.is_denied() {
                continue;
            }
            compared.add(&one.key().to_string(), one.is_denied());
            if live_one.is_denied() && live_one.policy().is_enforced() {
                to_charge.push(ToCharge { request: one.request(), candidate: format!("{live}{CANDIDATE}") });
            }
        }
        to_charge
    }

    /// Takes note of looks under policies in shadow that stand for checks, and whether each would have been denied.
    pub(crate) fn note_looks<'d>(&self, looks: impl Iterator<Item = (&'d PolicyDecision<'d>, bool)>) {
        let mut looks = looks.filter(|(one, _)| candidate_of(one.policy().name()).is_none()).peekable();
        if looks.peek().is_some() {
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            looks.for_each(|(one, would_deny)| seen.watch(one.policy().name(), would_deny));
        }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Seen {
    fn watch(&mut self, name: &str, would_deny: bool) {
        // Most decisions are not the first, and need no name of their own.
        if !self.shadows.contains_key(name) {
            self.shadows.insert(name.to_owned(), Watched::default());
        }
        let watched = self.shadows.get_mut(name).expect("it was put there");
        watched.requests += 1;
        watched.would_deny += u64::from(would_deny);
    }
}

impl Compared {
    fn new(quotas: (Quota, Quota)) -> Self {
        Self { quotas, requests: 0, changed: Changed::default(), keys: HashMap::new() }
    }

    /// Whether it was counted with these two.
    pub(crate) fn is_of(&self, live: &Quota, candidate: &Quota) -> bool {
        self.quotas == (*live, *candidate)
    }

    fn add(&mut self, key: &str, is_newly_denied: bool) {
        let has_room = self.keys.len() < MAX_KEYS || self.keys.contains_key(key);
        let own = has_room.then(|| self.keys.entry(key.to_owned()).or_default());
        for changed in own.into_iter().chain([&mut self.changed]) {
            if is_newly_denied {
                changed.newly_denied += 1;
            } else {
                changed.newly_allowed += 1;
            }
        }
    }
}

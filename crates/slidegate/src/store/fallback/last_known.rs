//! Last known usage of keys in the shared store, used while it does not reply.
//!
//! Without it, a failing store would hand out every limit again. With it, an exhausted key stays
//! denied until its wait ends, and other keys get the smaller of their share and what remained.
//!
//! The table is set-associative, of fixed size, with a lock per set. An entry is valid until
//! nothing of the key counts in the store.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::charge::{Charge, OnStoreError};
use crate::decision::{Decision, DecisionSource, Waits};
use crate::key::{HashSeed, KeyId};
use crate::time::Timestamp;

/// Entries per set, compared one by one.
const WAYS: usize = 8;
/// Number of sets, a power of two: with [`WAYS`], 65,536 keys in 5 MB, allocated when the first key
/// is recorded. As many denials are cached.
const SETS: usize = 8192;

/// Last known usage of keys.
#[derive(Debug, Default)]
pub(super) struct LastKnown {
    sets: OnceLock<Box<[Mutex<Set>]>>,
    /// Incremented when all entries are forgotten.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Set {
    /// [`LastKnown::generation`] of these entries.
    generation: u64,
    entries: [Entry; WAYS],
}

/// One key. Unused if `ends` has passed.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    policy: u32,
    id: KeyId,
    /// Under the limit at that time.
    remaining: u64,
    /// Valid under any limit: policies may change while the store is unavailable.
    used: u64,
    /// The cost that fits once the last denial's wait ends; 0 if the last check was allowed.
    fits_later: u64,
    /// When that wait ends.
    wait_ends: Timestamp,
    /// When nothing counts.
    ends: Timestamp,
}

/// The maximum that may still be taken of a key, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remainder {
    pub(super) cost: u64,
    /// Microseconds until more may be taken.
    pub(super) more_in_us: u64,
}

impl LastKnown {
    /// Records the store's decisions on these charges. Takes one lock and at most eight comparisons
    /// each, and allocates only once.
    ///
    /// Skips cached denials: they repeat an earlier reply, and their waits count from when the
    /// question was sent, so they may end before the store's.
    pub(super) fn record(
        &self,
        charges: &[Charge<'_>],
        decisions: &[Decision],
        secret: &HashSeed,
        now: Timestamp,
    ) {
        let is_of_store = |(charge, decision): &(&Charge<'_>, &Decision)| {
            charge.on_store_error == OnStoreError::Local && decision.source == DecisionSource::Store
        };
        for (charge, decision) in charges.iter().zip(decisions).filter(is_of_store) {
            let (id, policy) = (charge.key.id(secret), charge.number);
            let later = |us: u64| Timestamp::from_micros(now.as_micros().saturating_add(us));
            let waits = decision.waits;
            let waits_to_fit = decision.is_denied() && waits.retry_us != Waits::NEVER;
            let entry = Entry {
                policy,
                id,
                remaining: decision.remaining,
                used: decision.used,
                fits_later: if waits_to_fit { charge.part.asks() } else { 0 },
                wait_ends: if waits_to_fit { later(waits.retry_us) } else { now },
                ends: later(waits.reset_us),
            };
            self.set(secret.place_of(id, policy)).record(entry, now);
        }
    }

    /// What may still be taken of this charge's key. `None` if unknown, or if nothing counts.
    pub(super) fn remainder(
        &self,
        charge: &Charge<'_>,
        secret: &HashSeed,
        now: Timestamp,
    ) -> Option<Remainder> {
        // Nothing was recorded yet.
        self.sets.get()?;
        let (id, policy) = (charge.key.id(secret), charge.number);
        let set = self.set(secret.place_of(id, policy));
        let entry = set.entries.iter().find(|entry| entry.is_of(policy, id) && entry.ends > now)?;
        let us = |until: Timestamp| until.as_micros().saturating_sub(now.as_micros());
        let remaining = charge.quota.capacity().saturating_sub(entry.used);
        Some(if entry.wait_ends > now {
            Remainder { cost: remaining, more_in_us: us(entry.wait_ends) }
        } else {
            Remainder { cost: remaining.max(entry.fits_later), more_in_us: us(entry.ends) }
        })
    }

    /// Forgets all keys in one step: sets are cleared when they are next used.
    pub(super) fn forget_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// The set of a key, cleared if it was forgotten.
    fn set(&self, place: u64) -> MutexGuard<'_, Set> {
        let sets = self.sets.get_or_init(|| (0..SETS).map(|_| Mutex::default()).collect());
        #[allow(clippy::cast_possible_truncation)] // the lowest bits are what is wanted
        let at = place as usize & (SETS - 1);
        let mut set = sets[at].lock().unwrap_or_else(PoisonError::into_inner);
        let generation = self.generation.load(Ordering::SeqCst);
        if set.generation != generation {
            *set = Set { generation, ..Set::default() };
        }
        set
    }
}

impl Set {
    /// Replaces the entry of the key, else an expired one, else the one with most remaining, which
    /// matters least. A key without counted usage needs no entry.
    fn record(&mut self, entry: Entry, now: Timestamp) {
        let same = self.entries.iter().position(|one| one.is_of(entry.policy, entry.id));
        let counts = entry.ends > now;
        let worth = |at: &usize| {
            let one = &self.entries[*at];
            (one.ends > now, u64::MAX - one.remaining, one.ends)
        };
        let at = match same {
            Some(at) => at,
            None if counts => (0..WAYS).min_by_key(worth).expect("a set has entries"),
            None => return,
        };
        self.entries[at] = entry;
    }
}

impl Entry {
    fn is_of(&self, policy: u32, id: KeyId) -> bool {
        self.policy == policy && self.id == id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Gate, Policy, PolicySet, Quota, Request};

    /// A wait that a cached denial shortens would let a key through before the store does.
    #[test]
    fn a_cached_denial_does_not_shorten_the_wait_that_the_store_gave() {
        let set = PolicySet::new([Policy::new("p", Quota::per_minute(1)).expect("a name")]).expect("one");
        let gate = Gate::new(set.clone());
        let request = Request::new();
        assert!(gate.check(&request).is_allowed());
        let denied = *gate.check(&request).strictest().expect("one policy").decision();
        assert!(denied.is_denied());
        let after = |retry_us| Waits { retry_us, reset_us: retry_us, frees_us: retry_us };
        let stored = Decision { waits: after(3_000_000), source: DecisionSource::Store, ..denied };
        let cached = Decision { waits: after(2_000_000), source: DecisionSource::CachedDenial, ..denied };
        let plan = set.plan(std::slice::from_ref(&request), None);
        let (known, seed) = (LastKnown::default(), HashSeed::random());
        let begin = Timestamp::from_micros(1_000_000);
        known.record(&plan.charges, &[stored], &seed, begin);
        known.record(&plan.charges, &[cached], &seed, begin);
        let later = Timestamp::from_micros(3_500_000);
        let left = known.remainder(&plan.charges[0], &seed, later).expect("it still counts");
        assert_eq!((left.cost, left.more_in_us), (0, 500_000));
    }
}

//! Last known usage of keys in the shared store, used while it does not reply.
//!
//! Without it, a failing store would hand out every limit again. With it, an exhausted key stays
//! denied until its wait ends, and other keys get the smaller of their share and what remained.
//!
//! An entry is valid until nothing of the key counts in the store.

use crate::charge::{Charge, OnStoreError};
use crate::decision::{Decision, DecisionSource, Waits};
use crate::key::{HashSeed, KeyId};
use crate::store::set_table::SetTable;
use crate::time::Timestamp;

/// Last known usage of 65,536 keys, each by its policy: 5 MB, allocated when the first key is
/// recorded. As many denials are cached.
#[derive(Debug, Default)]
pub(super) struct LastKnown(SetTable<(u32, KeyId), KnownUsage>);

/// The usage of one key.
#[derive(Debug, Clone, Copy)]
struct KnownUsage {
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
    /// each.
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
            charge.on_store_error == OnStoreError::Local
                && matches!(decision.source, DecisionSource::Store | DecisionSource::Leased)
        };
        for (charge, decision) in charges.iter().zip(decisions).filter(is_of_store) {
            let key = (charge.number, charge.key.id(secret));
            let later = |us: u64| Timestamp::from_micros(now.as_micros().saturating_add(us));
            let waits = decision.waits;
            let waits_to_fit = decision.is_denied() && waits.retry_us != Waits::NEVER;
            let usage = KnownUsage {
                remaining: decision.remaining,
                used: decision.used,
                fits_later: if waits_to_fit { charge.part.asks() } else { 0 },
                wait_ends: if waits_to_fit { later(waits.retry_us) } else { now },
                ends: later(waits.reset_us),
            };
            let mut set = self.0.set(place_of(key, secret));
            // A key without counted usage needs no entry.
            if usage.ends > now || set.get_mut(key).is_some() {
                // Usage with most remaining matters least, after usage that has ended.
                set.insert(key, usage, |one| (one.ends > now, u64::MAX - one.remaining, one.ends));
            }
        }
    }

    /// What may still be taken of this charge's key. `None` if unknown, or if nothing counts.
    pub(super) fn remainder(
        &self,
        charge: &Charge<'_>,
        secret: &HashSeed,
        now: Timestamp,
    ) -> Option<Remainder> {
        if self.0.is_unused() {
            return None;
        }
        let key = (charge.number, charge.key.id(secret));
        let mut set = self.0.set(place_of(key, secret));
        let usage = *set.get_mut(key).filter(|usage| usage.ends > now)?;
        let us = |until: Timestamp| until.as_micros().saturating_sub(now.as_micros());
        let remaining = charge.quota.capacity().saturating_sub(usage.used);
        Some(if usage.wait_ends > now {
            Remainder { cost: remaining, more_in_us: us(usage.wait_ends) }
        } else {
            Remainder { cost: remaining.max(usage.fits_later), more_in_us: us(usage.ends) }
        })
    }

    /// Forgets all keys in one step.
    pub(super) fn forget_all(&self) {
        self.0.clear();
    }
}

fn place_of((policy, id): (u32, KeyId), secret: &HashSeed) -> u64 {
    secret.place_of(id, policy)
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

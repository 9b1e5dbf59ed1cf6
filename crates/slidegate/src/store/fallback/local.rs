//! Fallback decisions, for when the shared store does not reply in time.
//!
//! Each policy configures one: this process's memory with its share of the limit, allow all, or
//! deny all. Decisions report which.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use super::last_known::{LastKnown, Remainder};
use crate::charge::{Charge, Charges, OnStoreError, PerCharge};
use crate::decision::{Decision, DecisionSource, Verdict, Waits};
use crate::quota::{ChangedPolicy, Quota};
use crate::store::memory::{MemoryStore, Requote};
use crate::store::{LocalStore as _, StoreDecisions, with_denials};
use crate::time::{Timestamp, jitter, micros};
use crate::verb::Role;

/// Decides without the shared store.
#[derive(Debug)]
pub(super) struct LocalDecisions {
    pub(super) memory: MemoryStore,
    /// How many instances share the limits, at least one.
    pub(super) instances: AtomicU64,
    pub(super) last_known: LastKnown,
}

/// Shortest wait after a denial because the store is unavailable. The breaker probes its node every
/// 100 ms, so a recovered store is noticed sooner.
const MIN_WAIT: Duration = Duration::from_secs(1);
/// Longest such wait. Waits are random up to it, so that clients denied together do not retry
/// together.
const MAX_WAIT: Duration = Duration::from_secs(3);

impl LocalDecisions {
    pub(super) fn instances(&self) -> u64 {
        self.instances.load(Ordering::Relaxed)
    }

    /// Converts every key to its share of the new quota; see [`MemoryStore::requote`].
    pub(super) fn requote(&self, requote: Requote<'_>, mut changed: Vec<ChangedPolicy>) {
        let instances = self.instances();
        let share = |quota: Quota| quota.share(instances);
        changed.iter_mut().flat_map(|policy| &mut policy.new).for_each(|quota| *quota = share(*quota));
        let requote = |policy, key| requote(policy, key).map(|(old, new)| (share(old), share(new)));
        self.memory.requote(&requote, &changed);
    }

    /// Records the shared store's decisions.
    pub(super) fn record(&self, charges: &[Charge<'_>], decisions: &[Decision]) {
        self.last_known.record(charges, decisions, self.memory.secret(), self.memory.now());
    }

    /// Decides charges, in order. Local policies are charged all or none, and none if another one
    /// denies without knowing usage.
    pub(super) fn apply(&self, charges: &[Charge<'_>]) -> PerCharge<Decision> {
        let instances = self.instances();
        let share = |quota: &Quota| quota.share(instances);
        let known_at = self.memory.now();
        let remainder = |charge: &Charge<'_>| {
            is_local(charge)
                .then(|| self.last_known.remainder(charge, self.memory.secret(), known_at))
                .flatten()
        };
        let remainders: SmallVec<[Option<Remainder>; 4]> = charges.iter().map(remainder).collect();
        let shares: SmallVec<[(Quota, Option<Quota>); 4]> = charges
            .iter()
            .zip(&remainders)
            .map(|(charge, left)| {
                let quota = share(charge.quota);
                let quota = left.map_or(quota, |left| quota.at_most(left.cost));
                (quota, charge.instead_of.map(share))
            })
            .collect();
        let left = with_denials(charges, |at| denies_blindly(&charges[at]));
        // Where a request of those that deny together is let through, they cannot deny.
        let lets_through = |charge: &Charge<'_>| charge.part.role == Role::Together && !is_local(charge);
        let cannot_deny_together = left.iter().any(lets_through);
        let mut local = Charges::new();
        // Refusals and the part that they belong to are of one policy: local as well, or neither is.
        for (charge, (quota, own)) in left.iter().zip(&shares).filter(|(charge, _)| is_local(charge)) {
            let mut part = charge.part;
            part.enforced &= part.role != Role::Together || !cannot_deny_together;
            local.push(Charge { quota, instead_of: own.as_ref(), part, ..charge.clone() });
        }
        let mut decided = StoreDecisions::default();
        self.memory.apply(&local, &mut decided);
        let mut local = decided.decisions.into_iter();
        let now = self.memory.wall_time();
        let decide = |(charge, left): (&Charge<'_>, &Option<Remainder>)| {
            if !is_local(charge) {
                return blind(charge, now);
            }
            let decision = local.next().expect("the memory decides every charge it is given");
            let decision = Decision { source: DecisionSource::Local, ..decision };
            left.map_or(decision, |left| within(decision, left, &share(charge.quota), charge))
        };
        charges.iter().zip(&remainders).map(decide).collect()
    }
}

fn is_local(charge: &Charge<'_>) -> bool {
    charge.on_store_error == OnStoreError::Local
}

/// Whether the fallback denies without knowing usage. A cost of 0 cannot be denied. A refund or a
/// penalty is lost and reports that it moved nothing.
fn denies_blindly(charge: &Charge<'_>) -> bool {
    charge.on_store_error == OnStoreError::Deny && charge.part.verb.is_question() && charge.part.cost > 0
}

/// The decision of a fallback that does not know usage.
fn blind(charge: &Charge<'_>, now: Timestamp) -> Decision {
    let limit = charge.quota.capacity();
    let (verdict, remaining, retry_us) = if denies_blindly(charge) {
        (Verdict::Deny, 0, micros(jitter(MIN_WAIT, MAX_WAIT)))
    } else {
        (Verdict::Allow, limit, 0)
    };
    let source = match charge.on_store_error {
        OnStoreError::Deny => DecisionSource::Deny,
        _ => DecisionSource::Allow,
    };
    let waits = Waits { retry_us, reset_us: 0, frees_us: 0 };
    Decision { verdict, remaining, source, waits, ..Decision::unused(limit, now) }
}

/// The decision on a key of which at most `left` may be taken: its limit is still the share, and a
/// cost that will fit is worth waiting for.
fn within(decision: Decision, left: Remainder, share: &Quota, charge: &Charge<'_>) -> Decision {
    let mut waits = decision.waits;
    let fits_later = charge.part.asks() <= share.capacity();
    if decision.is_denied() && fits_later {
        let known = if waits.retry_us == Waits::NEVER { 0 } else { waits.retry_us };
        waits.retry_us = known.max(left.more_in_us);
    }
    Decision { limit: share.capacity(), waits, ..decision }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, PolicySet, Reason, Request};

    /// Clients that were denied together must not come back together, nor be sent away for long.
    #[test]
    fn waits_for_a_store_that_is_unavailable_are_short_and_spread() {
        let policy = Policy::new("login", Quota::per_minute(5)).expect("a plain name");
        let set = PolicySet::new([policy.with_on_store_error(OnStoreError::Deny)]).expect("one policy");
        let last_known = LastKnown::default();
        let fallback = LocalDecisions { memory: MemoryStore::new(), instances: 1.into(), last_known };
        let request = Request::new();
        let waits: Vec<_> = (0..100)
            .map(|_| {
                let plan = set.plan(std::slice::from_ref(&request), None);
                let decision = fallback.apply(&plan.charges)[0];
                assert_eq!(
                    (decision.reason(), decision.is_counted()),
                    (Some(Reason::StoreUnavailable), false)
                );
                decision.retry_after().expect("a wait")
            })
            .collect();
        assert!(waits.iter().all(|wait| (MIN_WAIT..=MAX_WAIT).contains(wait)), "{waits:?}");
        assert!(waits.iter().any(|wait| *wait != waits[0]));
    }
}

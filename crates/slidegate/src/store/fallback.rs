//! Fallback: what is decided when the shared store does not answer in time.
//!
//! Each policy has chosen: this process's memory under its share of the limit, everything, or nothing. A decision says
//! which it was.

use smallvec::SmallVec;

use crate::charge::{Charge, Charges, OnStoreError};
use crate::decision::{Decision, Source, Verdict, Waits};
use crate::quota::Quota;
use crate::store::memory::{MemoryStore, Requote};
use crate::verb::Verb;

/// Decides without the shared store.
#[derive(Debug)]
pub(crate) struct Fallback {
    memory: MemoryStore,
    /// How many instances share the limits, at least one.
    instances: u64,
}

/// The wait that is told where nobody knows one: long enough for a breaker to try again.
const UNKNOWN_WAIT_US: u64 = 1_000_000;

impl Fallback {
    pub(crate) fn new(memory: MemoryStore, instances: u64) -> Self {
        Self { memory, instances }
    }

    pub(crate) fn memory(&self) -> &MemoryStore {
        &self.memory
    }

    /// Fits every key to its share of the quota that is in force from now on; see [`MemoryStore::requote`].
    pub(crate) fn requote(&self, requote: Requote<'_>) {
        let share = |quota: Quota| quota.share(self.instances);
        self.memory.requote(&|policy, key| requote(policy, key).map(|(old, new)| (share(old), share(new))));
    }

    /// Decides charges; the decisions stand in their order. Local policies are charged all or none, and none if another one
    /// denies without looking.
    pub(crate) fn apply(&self, verb: Verb, charges: &[Charge<'_>]) -> SmallVec<[Decision; 4]> {
        let share = |quota: &Quota| quota.share(self.instances);
        let shares: SmallVec<[(Quota, Option<Quota>); 4]> =
            charges.iter().map(|charge| (share(charge.quota), charge.instead_of.map(share))).collect();
        let refuses = |charge: &Charge<'_>| {
            charge.on_store_error == OnStoreError::Deny && charge.part.enforced && charge.part.cost > 0
        };
        let asks = matches!(verb, Verb::Check | Verb::Peek);
        let verb = if verb == Verb::Check && charges.iter().any(refuses) { Verb::Peek } else { verb };
        let local: Charges<'_> = charges
            .iter()
            .zip(&shares)
            .filter(|(charge, _)| charge.on_store_error == OnStoreError::Local)
            .map(|(charge, (quota, own))| Charge { quota, instead_of: own.as_ref(), ..charge.clone() })
            .collect();
        let mut local = self.memory.apply(verb, &local).into_iter();
        let now = self.memory.wall_time();
        charges
            .iter()
            .map(|charge| {
                let limit = charge.quota.capacity();
                let blind = |verdict, source, retry_us| Decision {
                    verdict,
                    limit,
                    used: 0,
                    remaining: if verdict == Verdict::Allow { limit } else { 0 },
                    cost: 0,
                    at: now,
                    source,
                    waits: Waits { retry_us, reset_us: 0, frees_us: 0 },
                };
                match charge.on_store_error {
                    OnStoreError::Local => {
                        let decision = local.next().expect("the memory decides every charge it is given");
                        Decision { source: Source::Local, ..decision }
                    }
                    OnStoreError::Allow => blind(Verdict::Allow, Source::Allow, 0),
                    // What is not asked for cannot be denied: a refund or a penalty is lost, and says that it moved nothing.
                    OnStoreError::Deny if charge.part.cost == 0 || !asks => {
                        blind(Verdict::Allow, Source::Deny, 0)
                    }
                    OnStoreError::Deny => blind(Verdict::Deny, Source::Deny, UNKNOWN_WAIT_US),
                }
            })
            .collect()
    }
}

//! Fallback: a store that decides by each policy's fallback when the store it wraps does not reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;

use crate::charge::{Charge, Charges, PerCharge};
use crate::decision::Decision;
use crate::error::Error;
use crate::policy_reset::{Place, PolicyReset, ResetCounts, ResetCursor};
use crate::quota::Quota;
use crate::store::failure::StoreFailure;
use crate::store::memory::MemoryStore;
use crate::store::shared::{DecideError, SharedStore};
use crate::store::{LocalStore, OnFreed, QuotaChanges, Store, StoreDecisions, StoredPolicy, Watch};
use crate::time::Timestamp;
use crate::usage::KeyInspection;
use crate::verb::Verb;
use last_known::LastKnown;
use local::LocalDecisions;

mod holds;
mod last_known;
mod local;

/// A store over a [`SharedStore`], such as Redis, that always decides. If the shared store does not
/// reply, each policy decides by its [fallback](crate::OnStoreError), and every decision reports
/// its [source](crate::Decision::source).
///
/// A local fallback starts from the last known usage: a key that the store denied stays denied
/// until its wait ends, and other keys get the smaller of their share and what remained after the
/// last decision of this process. Usage is kept for 65,536 keys, until nothing of the key counts.
///
/// [`SharedGate::new`](crate::SharedGate::new) wraps a store in one; with other settings, use
/// [`SharedGate::with_store`](crate::SharedGate::with_store) and
/// `FallbackStore::new(redis).with_instances(3)`.
#[derive(Debug)]
pub struct FallbackStore<S: ?Sized> {
    local: LocalDecisions,
    fallbacks: AtomicU64,
    /// Lock-free: while the store is unavailable, every decision writes it.
    last_failure: ArcSwapOption<StoreFailure>,
    /// Last, so that `&FallbackStore<S>` coerces to `&FallbackStore<dyn ServiceStore>`.
    primary: S,
}

/// Fallback counts of a [`FallbackStore`] since it was created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct FallbackStats {
    /// Calls that were decided by fallbacks.
    pub fallbacks: u64,
    /// The last failure of the store, in one line. An open circuit breaker is reported only if
    /// nothing else is known.
    pub last_failure: Option<String>,
    /// The kind of the last failure.
    pub last_failure_kind: Option<&'static str>,
}

impl<S> FallbackStore<S> {
    /// Falls back to the memory of this process, at the whole limit.
    #[must_use]
    pub fn new(primary: S) -> Self {
        Self {
            local: LocalDecisions {
                memory: MemoryStore::new(),
                instances: AtomicU64::new(1),
                last_known: LastKnown::default(),
            },
            fallbacks: AtomicU64::new(0),
            last_failure: ArcSwapOption::empty(),
            primary,
        }
    }

    /// Sets how many instances share the limits, at least 1. While the store is unavailable, each
    /// enforces its share of a limit, rounded up.
    #[must_use]
    pub fn with_instances(mut self, instances: u64) -> Self {
        self.local.instances = instances.max(1).into();
        self
    }

    /// Sets the memory that decides while the store is unavailable.
    #[must_use]
    pub fn with_memory(mut self, memory: MemoryStore) -> Self {
        self.local.memory = memory;
        self
    }
}

impl<S: ?Sized> FallbackStore<S> {
    /// The wrapped store.
    #[must_use]
    pub fn primary(&self) -> &S {
        &self.primary
    }

    /// How many instances share the limits.
    #[must_use]
    pub fn instances(&self) -> u64 {
        self.local.instances()
    }

    /// Like [`with_instances`](Self::with_instances), on a store in use. What fallbacks have
    /// counted counts towards the new share.
    pub fn share_among(&self, instances: u64) {
        self.local.instances.store(instances.max(1), Ordering::Relaxed);
    }

    /// The memory that decides while the store is unavailable.
    #[must_use]
    pub fn memory(&self) -> &MemoryStore {
        &self.local.memory
    }

    /// Counts of fallback decisions, and the last failure.
    #[must_use]
    pub fn stats(&self) -> FallbackStats {
        let last = self.last_failure.load();
        FallbackStats {
            fallbacks: self.fallbacks.load(Ordering::Relaxed),
            last_failure: last.as_ref().map(ToString::to_string),
            last_failure_kind: last.as_ref().map(|failure| failure.kind()),
        }
    }

    fn remember(&self, failure: StoreFailure) -> Arc<StoreFailure> {
        let failure = Arc::new(failure);
        if failure.kind() != StoreFailure::BREAKER_OPEN || self.last_failure.load().is_none() {
            self.last_failure.store(Some(Arc::clone(&failure)));
        }
        failure
    }

    /// The decisions of the store, or those of the fallbacks.
    fn complete(
        &self,
        charges: &[Charge<'_>],
        decided: Result<PerCharge<Decision>, DecideError>,
    ) -> StoreDecisions {
        let DecideError { failure, denied } = match decided {
            Ok(decisions) => {
                self.local.record(charges, &decisions);
                return decisions.into();
            }
            Err(undecided) => undecided,
        };
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        let failure = Some(self.remember(failure));
        let decisions = match denied {
            None => self.local.apply(charges),
            // A denial stands whatever the other policies would decide; nothing is charged.
            Some(known) => {
                let mut peeks: Charges<'_> = charges.iter().cloned().collect();
                peeks.iter_mut().for_each(|charge| charge.part.verb = Verb::Peek);
                let guessed = self.local.apply(&peeks);
                known.into_iter().zip(guessed).map(|(known, guessed)| known.unwrap_or(guessed)).collect()
            }
        };
        StoreDecisions { decisions, failure }
    }
}

impl<S: SharedStore> Store for FallbackStore<S> {
    async fn apply(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        self.complete(charges, self.primary.apply(charges).await)
    }

    fn apply_now(&self, charges: &[Charge<'_>], decided: &mut StoreDecisions) -> bool {
        let is_decided = self.primary.apply_now(charges, &mut decided.decisions);
        if is_decided {
            self.local.record(charges, &decided.decisions);
        }
        is_decided
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> StoreDecisions {
        self.complete(charges, self.primary.check_once(charges, id).await)
    }

    fn watch(&self, charge: &Charge<'_>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        self.primary.watch(charge, on_freed)
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, Error> {
        self.local.last_known.forget_all();
        let local = LocalStore::reset(&self.local.memory, charges);
        let stored = self.primary.reset(charges).await;
        Ok(stored.map_err(|failure| Error::store(self.remember(failure).to_string()))? || local)
    }

    fn wall_time(&self) -> Timestamp {
        self.local.memory.wall_time()
    }

    async fn peek_blocked(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        self.complete(charges, self.primary.peek_blocked(charges).await)
    }

    fn check_quota(&self, quota: &Quota) -> Result<(), Error> {
        self.primary.check_quota(quota)
    }

    fn quotas_changed(&self, changes: &QuotaChanges<'_>) {
        self.primary.quotas_changed();
        let (requote, changed) = (changes.0)(self.local.memory.secret());
        self.local.requote(&*requote, changed);
    }

    async fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, Error> {
        self.primary.inspect(charges).await.map_err(|failure| Error::store(failure.to_string()))
    }

    /// Scans the shared store first, then this process's memory.
    async fn reset_policy_step(
        &self,
        policy: &StoredPolicy<'_>,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        self.local.last_known.forget_all();
        let Some((Place::Memory { shard }, mut done)) = from.map(|from| (from.place, from.done)) else {
            let stepped = self.primary.reset_policy_step(policy.name, from, keys).await;
            let mut reset = stepped.map_err(|failure| Error::store(failure.to_string()))?;
            if reset.next.is_none() {
                let done =
                    ResetCounts { forgotten: reset.forgotten, scanned: reset.scanned, keys: reset.keys };
                reset = PolicyReset::after(done, Some(Place::Memory { shard: 0 }));
            }
            return Ok(reset);
        };
        let (found, next) = self.local.memory.forget_policies(policy.numbers, shard, keys);
        done.forgotten = done.forgotten.saturating_add(found.forgotten);
        Ok(PolicyReset::after(done, next.map(|shard| Place::Memory { shard })))
    }
}

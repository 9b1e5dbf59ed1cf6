//! Stores hold usage. A [`Gate`](crate::Gate) decides through them.
//!
//! A store applies [charges](Charge) to all their keys or to none, in one atomic step. It knows
//! keys, quotas and costs, but no policies, requests or header fields.
//!
//! | store | trait | methods of its gate |
//! |---|---|---|
//! | [`MemoryStore`](crate::MemoryStore) | [`LocalStore`] | those of [`Gate`](crate::Gate) return their result |
//! | [`FallbackStore`] over `RedisStore` of slidegate-redis | [`Store`] | those of [`SharedGate`](crate::SharedGate) return a future |
//! | `RedisStore` | [`SharedStore`]: its calls can fail | - |
//!
//! To write another store, implement [`LocalStore`] if it decides at once, and [`Store`] if it has to
//! be awaited. [`KeyState`] computes the decisions on one key by the same code as the other stores,
//! [`decide`] applies them to all keys of a call or to none, and [`IdempotencyCache`] answers
//! repeated checks. If calls of the store can fail, implement [`SharedStore`] and
//! wrap it in a [`FallbackStore`]; the service also needs its [`SharedHoldStore`] and
//! [`ServiceStore`]. The example `custom_store` is a complete store of some sixty lines.

use std::fmt;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::charge::PerCharge;
use crate::decision::Decision;
use crate::error::Error;
use crate::key::{HashSeed, KeyId};
use crate::quota::{ChangedPolicy, Quota};
use crate::time::Timestamp;
use crate::verb::Verb;

mod control_document;
pub(crate) mod failure;
pub(crate) mod fallback;
mod holds;
mod idempotency;
mod key_state;
pub(crate) mod memory;
mod service;
pub(crate) mod set_table;
pub(crate) mod shared;

pub(crate) use crate::all_or_nothing::{all_or_none, with_denials};
pub use control_document::{ControlDocument, ControlDocumentId};
pub use failure::StoreFailure;
pub use fallback::{FallbackStats, FallbackStore};
pub use holds::{HeldCharge, HoldAnswer, HoldAnswers, HoldCall, HoldStore};
pub use idempotency::IdempotencyCache;
pub use key_state::KeyState;
pub use service::{
    BoxFuture, COUNT_INTERVAL, ClockJumps, ClosedTotal, ClosedTotals, InstanceRecord, LeaseStats, NodeState,
    ServiceStore, StoreStats,
};
pub use shared::{DecideError, SharedHoldStore, SharedStore};

pub use crate::charge::Charge;
pub use crate::key::TicketKeyBytes;
pub use crate::policy_reset::{PolicyKeys, PolicyReset, ResetCursor, ScannedKeys};
pub use crate::quota::LastQuota;
pub use crate::ticket::TicketSecret;
pub use crate::usage::{KeyInspection, KeyUse, OpenHold, RecordedCharge, UsageForecast};
pub use crate::waiting::watch::{OnFreed, Watch};
pub use memory::snapshot::{InMemory, RestoredSnapshot, SavedSnapshot, SnapshotError, SnapshotFile};
pub use memory::{MemoryEstimate, MemoryStats, MemoryStoreBuilder};

/// A store that a [`Gate`](crate::Gate) can decide with. A [`LocalStore`] is one.
pub trait Store: fmt::Debug + Send + Sync {
    /// Decides charges and applies them, all or none, in one atomic step.
    fn apply(&self, charges: &[Charge<'_>]) -> impl Future<Output = StoreDecisions> + Send;

    /// Decides charges without a call, as leases allow a shared store, and appends the decisions. False if it has to be
    /// called, which is the default. Nothing is charged then.
    #[doc(hidden)]
    fn apply_now(&self, charges: &[Charge<'_>], decided: &mut StoreDecisions) -> bool {
        let _ = (charges, decided);
        false
    }

    /// Like [`apply`](Self::apply), with an idempotency key: a repeated call with the same `id`,
    /// keys and cost, within the longest window of its quotas and time of its holds, gets the first
    /// decisions and is not charged. Denied checks are decided again.
    fn check_once(&self, charges: &[Charge<'_>], id: &str) -> impl Future<Output = StoreDecisions> + Send;

    /// Removes the keys of these charges. Returns whether any had usage.
    ///
    /// # Errors
    /// If the store did not reply. The keys may or may not be removed.
    fn reset(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<bool, Error>> + Send;

    /// The date by the store's clock, or by this machine's. Blocks end by it.
    fn wall_time(&self) -> Timestamp;

    /// Calls `on_freed` when another process says that it has freed cost of this charge's key, until the watch is
    /// dropped. By default `None`: no other process uses the store, or none says so.
    #[doc(hidden)]
    fn watch(&self, charge: &Charge<'_>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        let _ = (charge, on_freed);
        None
    }

    /// The store that decides at once, if these calls go to one. By default `None`.
    fn as_local(&self) -> Option<&dyn LocalStore> {
        None
    }

    /// Peeks at the keys of a check that a block denies, to report their usage. A store may return
    /// a recent result. By default [`apply`](Self::apply).
    fn peek_blocked(&self, charges: &[Charge<'_>]) -> impl Future<Output = StoreDecisions> + Send {
        self.apply(charges)
    }

    /// Checks that the store can count the limit of a quota. By default it can.
    ///
    /// # Errors
    /// If the limit is too large for the store.
    fn check_quota(&self, quota: &Quota) -> Result<(), Error> {
        let _ = quota;
        Ok(())
    }

    /// Called after other quotas became active, while decisions continue. By default does nothing,
    /// which fits a store that keeps the quota of each key, for example in a [`KeyState`].
    fn quotas_changed(&self, changes: &QuotaChanges<'_>) {
        let _ = changes;
    }

    /// The full usage of the keys of these charges, in their order. Changes nothing. By default an
    /// error.
    ///
    /// # Errors
    /// If the store cannot, did not reply, or holds a value that slidegate did not write.
    fn inspect(
        &self,
        charges: &[Charge<'_>],
    ) -> impl Future<Output = Result<Vec<KeyInspection>, Error>> + Send {
        let _ = charges;
        ready(Err(Error::store(CANNOT_INSPECT)))
    }

    /// One step of removing every key of a policy; see
    /// [`Gate::reset_policy_step`](crate::Gate::reset_policy_step). By default an error.
    ///
    /// # Errors
    /// If the store cannot, the cursor belongs to another store, or the store did not reply. The step
    /// can be repeated.
    fn reset_policy_step(
        &self,
        policy: &StoredPolicy<'_>,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> impl Future<Output = Result<PolicyReset, Error>> + Send {
        let _ = (policy, from, keys);
        ready(Err(Error::store(CANNOT_RESET_POLICY)))
    }
}

/// A store in this process, which decides at once: each method as the one of [`Store`].
pub trait LocalStore: fmt::Debug + Send + Sync {
    /// Decides charges and applies them, all or none, see [`Store::apply`]. Appends the decisions to a list,
    /// because moving them takes as long as a part of a decision.
    fn apply(&self, charges: &[Charge<'_>], decided: &mut StoreDecisions);

    /// Like [`apply`](Self::apply), with an idempotency key. See [`Store::check_once`].
    fn check_once(&self, charges: &[Charge<'_>], id: &str, decided: &mut StoreDecisions);

    /// Removes the keys of these charges. Returns whether any had usage.
    fn reset(&self, charges: &[Charge<'_>]) -> bool;

    /// The date by the store's clock. Blocks end by it.
    fn wall_time(&self) -> Timestamp;

    /// Called after other quotas became active, see [`Store::quotas_changed`].
    fn quotas_changed(&self, changes: &QuotaChanges<'_>) {
        let _ = changes;
    }

    /// The full usage of the keys of these charges, see [`Store::inspect`].
    ///
    /// # Errors
    /// If the store cannot, which is the default.
    fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, Error> {
        let _ = charges;
        Err(Error::store(CANNOT_INSPECT))
    }

    /// One step of removing every key of a policy, see [`Store::reset_policy_step`].
    ///
    /// # Errors
    /// If the store cannot, which is the default, or the cursor belongs to another store.
    fn reset_policy_step(
        &self,
        policy: &StoredPolicy<'_>,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        let _ = (policy, from, keys);
        Err(Error::store(CANNOT_RESET_POLICY))
    }
}

/// The output of a future that calls a local store, and so never waits.
pub(crate) fn at_once<F: Future>(future: F) -> F::Output {
    poll_once(future).expect("a local store does not wait")
}

/// The output of a future if it is ready when it is first polled.
pub fn poll_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

const CANNOT_INSPECT: &str = "this store does not list what counts on a key";
const CANNOT_RESET_POLICY: &str = "this store does not find the keys of a policy; reset them one by one";

impl<S: LocalStore> Store for S {
    async fn apply(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        let mut decided = StoreDecisions::default();
        LocalStore::apply(self, charges, &mut decided);
        decided
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> StoreDecisions {
        let mut decided = StoreDecisions::default();
        LocalStore::check_once(self, charges, id, &mut decided);
        decided
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, Error> {
        Ok(LocalStore::reset(self, charges))
    }

    fn wall_time(&self) -> Timestamp {
        LocalStore::wall_time(self)
    }

    fn as_local(&self) -> Option<&dyn LocalStore> {
        Some(self)
    }

    fn quotas_changed(&self, changes: &QuotaChanges<'_>) {
        LocalStore::quotas_changed(self, changes);
    }

    async fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, Error> {
        LocalStore::inspect(self, charges)
    }

    async fn reset_policy_step(
        &self,
        policy: &StoredPolicy<'_>,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        LocalStore::reset_policy_step(self, policy, from, keys)
    }
}

/// Identifies a policy's keys in a store.
#[derive(Debug, Clone, Copy)]
pub struct StoredPolicy<'a> {
    pub(crate) name: &'a str,
    pub(crate) numbers: &'a [u32],
}

impl StoredPolicy<'_> {
    /// The policy's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// The policy's numbers in this process, one per scope it has had. See
    /// [`Charge::policy_number`].
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        self.numbers
    }
}

/// The keys whose quota changed, for stores of this crate.
pub struct QuotaChanges<'a>(pub(crate) &'a ChangesByKey<'a>);

/// Takes the seed of a store's key hashes. Returns the former and the new quota of a policy's key,
/// if they differ, and the policies with such keys.
type ChangesByKey<'a> = dyn Fn(&HashSeed) -> (Box<ChangeOfKey<'a>>, Vec<ChangedPolicy>) + 'a;
type ChangeOfKey<'a> = dyn Fn(u32, KeyId) -> Option<(Quota, Quota)> + 'a;

impl fmt::Debug for QuotaChanges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaChanges").finish_non_exhaustive()
    }
}

/// A store's decisions on charges, in their order.
#[derive(Debug, Clone, Default)]
pub struct StoreDecisions {
    pub(crate) decisions: PerCharge<Decision>,
    /// Why a fallback made some of the decisions.
    pub(crate) failure: Option<Arc<StoreFailure>>,
}

impl StoreDecisions {
    /// The decisions.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Decision> {
        self.decisions.iter()
    }
}

impl FromIterator<Decision> for StoreDecisions {
    fn from_iter<I: IntoIterator<Item = Decision>>(decisions: I) -> Self {
        decisions.into_iter().collect::<PerCharge<_>>().into()
    }
}

impl From<PerCharge<Decision>> for StoreDecisions {
    #[inline]
    fn from(decisions: PerCharge<Decision>) -> Self {
        Self { decisions, failure: None }
    }
}

/// Decides charges on all their keys or on none, and appends the decisions. `apply` applies a verb with a cost to the key of
/// the charge at a position; the caller holds the locks of all keys meanwhile.
///
/// A first pass peeks at all keys and changes nothing. Then checks are charged if the call is
/// allowed, penalties are charged, and refunds are returned, in this order. See
/// [`Role`](crate::verb::Role) and [`Excess`](crate::Excess) for exceptions.
#[inline]
pub fn decide(
    charges: &[Charge<'_>],
    decided: &mut StoreDecisions,
    apply: impl FnMut(usize, Verb, u64) -> Decision,
) {
    all_or_none(charges, apply, &mut decided.decisions);
}

//! Gates over stores that must be awaited.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{AcquireReservation, GateAcquire};
use super::change::Change;
use super::{Decisions, Extension, Gate, Reserved, Settlement};
use crate::charge::HoldTerms;
use crate::cost::Cost;
use crate::error::Error;
use crate::hold::HoldOptions;
use crate::policy::PolicySet;
use crate::policy_reset::{PolicyReset, ResetCursor};
use crate::request::Request;
use crate::store::fallback::FallbackStore;
use crate::store::{HoldStore, SharedStore, Store};
use crate::ticket::Ticket;
use crate::usage::KeyUse;
use crate::verb::Verb;

/// A [`Gate`] over a store that must be awaited, such as one that many instances share. Its methods
/// have the same names and return futures. Clones share the gate.
///
/// Over a shared store it always answers within the store's deadline, and can be created without a
/// connection. While the store does not reply, each policy decides by its
/// [fallback](crate::Policy::with_on_store_error), and every decision reports its
/// [source](crate::Decision::source). Needs a tokio runtime.
#[derive(Debug)]
pub struct SharedGate<S> {
    gate: Arc<Gate<S>>,
}

impl<S> Clone for SharedGate<S> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate) }
    }
}

impl<S> From<Arc<Gate<S>>> for SharedGate<S> {
    fn from(gate: Arc<Gate<S>>) -> Self {
        Self { gate }
    }
}

impl<P: SharedStore> SharedGate<FallbackStore<P>> {
    /// A gate over a shared store, with its own memory store as the fallback; the number of other
    /// instances is unknown. For other settings, see [`FallbackStore`] and
    /// [`with_store`](Self::with_store).
    ///
    /// # Errors
    /// If the store cannot count a limit.
    pub fn new(policies: PolicySet, store: P) -> Result<Self, Error> {
        Self::with_store(policies, FallbackStore::new(store))
    }
}

impl<S: Store> SharedGate<S> {
    /// A gate over any store.
    ///
    /// # Errors
    /// If the store cannot count a limit.
    pub fn with_store(policies: PolicySet, store: S) -> Result<Self, Error> {
        Gate::with_store(policies, store).map(|gate| Self { gate: Arc::new(gate) })
    }

    /// The underlying gate, for calls that do not wait for the store: snapshots, waiting callers,
    /// guards.
    #[must_use]
    pub fn gate(&self) -> &Arc<Gate<S>> {
        &self.gate
    }

    /// The store, for its statistics and connections.
    #[must_use]
    pub fn store(&self) -> &S {
        self.gate.store()
    }

    /// The active policies.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    /// See [`Gate::configure`].
    ///
    /// # Errors
    /// If a limit is too large for the store. The old set stays active.
    pub fn configure(&self, policies: PolicySet) -> Result<(), Error> {
        self.gate.configure(policies)
    }

    /// See [`Gate::acquire`].
    ///
    /// # Errors
    /// When awaited, same as [`Gate::acquire`].
    pub fn acquire<'g, 'r>(&'g self, request: &'r Request<'r>) -> GateAcquire<'g, 'r, S> {
        self.gate.acquire(request)
    }

    /// See [`Gate::check`].
    pub async fn check<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.gate.decide_async(Some(Verb::Check), slice::from_ref(request), None, false).await
    }

    /// See [`Gate::check_once`]. In a Redis Cluster, the request's keys must be in one slot, as
    /// `RedisOptions::with_hash_tag` ensures; otherwise this is a [`check`](Self::check).
    pub async fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        self.gate.decide_async(Some(Verb::Check), slice::from_ref(request), Some(id), false).await
    }

    /// See [`Gate::peek`].
    pub async fn peek<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.gate.decide_async(Some(Verb::Peek), slice::from_ref(request), None, false).await
    }

    /// See [`Gate::refund`].
    pub async fn refund<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.gate.decide_async(Some(Verb::Refund), slice::from_ref(request), None, false).await
    }

    /// See [`Gate::penalize`].
    pub async fn penalize<'r>(&self, request: &'r Request<'r>) -> Decisions<'r> {
        self.gate.decide_async(Some(Verb::Penalize), slice::from_ref(request), None, false).await
    }

    /// See [`Gate::apply`].
    pub async fn apply<'r>(&self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.gate.decide_async(None, requests, None, false).await
    }

    /// See [`Gate::apply_all`].
    pub async fn apply_all<'r>(&self, verb: Verb, requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.gate.decide_async(Some(verb), requests, None, false).await
    }

    /// See [`Gate::reset`].
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it; nothing is
    /// removed. If a shared store did not reply in time; the keys may or may not be removed.
    pub async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        self.gate.reset_keys(request).await
    }

    /// See [`Gate::reset_policy`].
    ///
    /// # Errors
    /// If a shared store did not reply in time, or its user may not scan; some keys may be removed.
    pub async fn reset_policy(&self, policy: &str) -> Result<u64, Error> {
        self.gate.reset_policy_whole(policy).await
    }

    /// See [`Gate::reset_policy_step`].
    ///
    /// # Errors
    /// If the cursor belongs to another store, a shared store did not reply in time, or its user
    /// may not scan. Some keys may be removed; the step can be repeated.
    pub async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        self.gate.reset_policy_keys(policy, from, keys).await
    }

    /// See [`Gate::inspect`].
    ///
    /// # Errors
    /// If the request is [`under`](Request::under) a policy that cannot decide it, or a shared
    /// store did not reply or holds a value that slidegate did not write.
    pub async fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        self.gate.inspect_keys(request).await
    }
}

impl<S: HoldStore> SharedGate<S> {
    /// See [`Gate::acquire_reservation`].
    ///
    /// # Errors
    /// When awaited, same as [`Gate::acquire`].
    pub fn acquire_reservation<'g, 'r>(&'g self, request: &'r Request<'r>) -> AcquireReservation<'g, 'r, S> {
        self.gate.acquire_reservation(request)
    }

    /// See [`Gate::reserve`].
    pub async fn reserve<'r>(&self, request: &'r Request<'r>) -> Reserved<'r> {
        self.gate.reserve_under(slice::from_ref(request), HoldTerms::new(None), None).await
    }

    /// See [`Gate::reserve_for`].
    ///
    /// # Errors
    /// If the duration is out of range.
    pub async fn reserve_for<'r>(
        &self,
        request: &'r Request<'r>,
        ttl: Duration,
    ) -> Result<Reserved<'r>, Error> {
        self.reserve_all(slice::from_ref(request), HoldOptions { ttl: Some(ttl), ..HoldOptions::default() })
            .await
    }

    /// See [`Gate::reserve_all`].
    ///
    /// # Errors
    /// If the duration is out of range.
    pub async fn reserve_all<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
    ) -> Result<Reserved<'r>, Error> {
        self.gate.reserve_with(requests, options).await
    }

    /// See [`Gate::settle`].
    ///
    /// # Errors
    /// If the cost has a name that no policy counts and lacks the one that a policy
    /// [counts](crate::Counts::Named); nothing is settled. If a shared store did not reply, the
    /// reservation may or may not be settled, and repeating the call is safe.
    pub async fn settle<'c>(
        &self,
        ticket: &Ticket,
        cost: impl Into<Cost<'c>> + Send,
    ) -> Result<Settlement, Error> {
        self.gate.change_holds(ticket, Change::Settle { cost: cost.into(), is_final: true }).await
    }

    /// See [`Gate::settle_so_far`].
    ///
    /// # Errors
    /// Same as [`Gate::settle`].
    pub async fn settle_so_far<'c>(
        &self,
        ticket: &Ticket,
        cost: impl Into<Cost<'c>> + Send,
    ) -> Result<Settlement, Error> {
        self.gate.change_holds(ticket, Change::Settle { cost: cost.into(), is_final: false }).await
    }

    /// See [`Gate::extend`].
    ///
    /// # Errors
    /// Same as [`Gate::settle`].
    pub async fn extend(&self, ticket: &Ticket, extension: Extension<'_>) -> Result<Settlement, Error> {
        let Extension { hold: cost, ttl_us } = extension;
        self.gate.change_holds(ticket, Change::Extend { cost, ttl_us }).await
    }

    /// See [`Gate::cancel`].
    ///
    /// # Errors
    /// Same as [`Gate::settle`].
    pub async fn cancel(&self, ticket: &Ticket) -> Result<Settlement, Error> {
        self.gate.change_holds(ticket, Change::Cancel).await
    }
}

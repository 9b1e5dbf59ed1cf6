//! The service's store: in-process memory or a shared store.
//!
//! If a shared store is unavailable, this is counted, logged, reported at `/readyz`, and shown in
//! every decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::acquire::{Ask, NoTurn};
use slidegate::internal::check_policy;
use slidegate::reserve::{HoldOptions, HoldStatus, PendingStats, Reserved, Settlement, Ticket};
use slidegate::store::{
    InMemory, KeyUse, LastQuota, MemoryStats, PolicyKeys, PolicyReset, ResetCursor, RestoredSnapshot,
    SavedSnapshot, SnapshotError, SnapshotFile,
};
use slidegate::{
    Decisions, Error, MemoryStore, Policy, PolicySet, Request, SharedGate, clock::Timestamp, verb::Verb,
};

use super::ticket_change::{TicketChange, TicketChanged};
use crate::config::{CLOSED_WITHOUT_STORE, SharedStore, Storage};
use crate::stores::AnyStore;

mod shared;

use shared::Health;
pub(crate) use shared::{HealthRecord, Shared, StoreState};

/// The store, under the active policies.
#[derive(Debug)]
pub(crate) struct Store {
    /// Shared with the task that sends queued settlements.
    gate: SharedGate<AnyStore>,
    health: Health,
    /// See [`has_waits`](Self::has_waits).
    has_waits: AtomicBool,
    /// Tickets unknown to the store.
    unknown_tickets: AtomicU64,
}

impl Store {
    /// # Errors
    /// The shared store's certificates are invalid, or a limit is too large for its scripts.
    pub(crate) fn new(
        policies: PolicySet,
        memory: MemoryStore,
        shared: Option<SharedStore>,
    ) -> Result<Self, Error> {
        let mut health = Health::default();
        let store = match shared {
            None => AnyStore::Memory(memory),
            Some(SharedStore { options, instances, .. }) => {
                health.fixed_instances = instances;
                AnyStore::open(options, memory)?
            }
        };
        if let (Some(shared), Some(instances)) = (store.shared(), health.fixed_instances) {
            shared.share_among(instances);
        }
        Ok(Self {
            has_waits: has_waits(&policies).into(),
            gate: SharedGate::with_store(policies, store)?,
            health,
            unknown_tickets: AtomicU64::new(0),
        })
    }

    /// Whether this process decides in memory, without waiting.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.gate.store().shared().is_none()
    }

    /// As [`ask`](Self::ask), for requests that do not wait.
    pub(crate) async fn apply<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
    ) -> Decisions<'r> {
        self.ask(verb, requests, id, false).await
    }

    /// Decides requests in one step; without a `verb`, each by its own. With an idempotency key `id`,
    /// repeats of one request are charged once.
    pub(super) async fn ask<'r>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        id: Option<&str>,
        is_waiting: bool,
    ) -> Decisions<'r> {
        let decisions = self.gate.gate().decide_async(verb, requests, id, is_waiting).await;
        self.health.record(&decisions);
        decisions
    }

    /// Waits until requests are admitted.
    ///
    /// # Errors
    /// There is no turn in time.
    pub(super) async fn take_turn<A: Ask>(&self, ask: &A) -> Result<A::Answer, NoTurn<A::Answer>> {
        self.gate.gate().take_turn(ask).await
    }

    /// The denial of requests that got no turn while they were behind others.
    pub(super) async fn behind<'r, A>(
        &self,
        verb: Option<Verb>,
        requests: &'r [Request<'r>],
        no_turn: &NoTurn<A>,
    ) -> Decisions<'r> {
        self.gate.gate().behind(verb, requests, no_turn).await
    }

    /// Whether an active policy lets requests of proxies wait.
    pub(crate) fn has_waits(&self) -> bool {
        self.has_waits.load(Ordering::Relaxed)
    }

    /// Activates policies. Usage is kept by policy name.
    ///
    /// # Errors
    /// A limit is too large for a shared store; the old policies stay active.
    pub(crate) fn configure(&self, policies: PolicySet) -> Result<(), Error> {
        let has_waits = has_waits(&policies);
        self.gate.configure(policies)?;
        self.has_waits.store(has_waits, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that the store supports a policy.
    ///
    /// # Errors
    /// One line: a limit is too large for a shared store, or only a shared store can report closed periods.
    pub(crate) fn can_count(&self, policy: &Policy) -> Result<(), String> {
        if policy.options().notify_closed && self.is_in_memory() {
            return Err(format!("policy `{}`: {CLOSED_WITHOUT_STORE}", policy.name()));
        }
        check_policy(policy, self.gate.store()).map_err(|error| error.to_string())
    }

    /// Reserves the cost of requests that together count as one.
    ///
    /// # Errors
    /// The time is out of range.
    pub(crate) async fn reserve<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'_>,
        is_waiting: bool,
    ) -> Result<Reserved<'r>, Error> {
        let reserved = self.gate.gate().reserve_asking(requests, options, is_waiting).await?;
        self.health.record(reserved.decisions());
        Ok(reserved)
    }

    /// Changes a reservation. If the store does not reply, the final change of a reservation is
    /// queued.
    ///
    /// # Errors
    /// A shared store did not reply in time.
    pub(crate) async fn change_hold(
        &self,
        ticket: &Ticket,
        change: TicketChange<'_>,
    ) -> Result<TicketChanged, Error> {
        let gate = &self.gate;
        let failure = match self.change_hold_now(ticket, change.clone()).await {
            Ok(settlement) => {
                if settlement.status() == HoldStatus::Unknown {
                    self.unknown_tickets.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(TicketChanged::Now(settlement));
            }
            Err(failure) => failure,
        };
        if !failure.is_store() {
            return Err(failure);
        }
        self.health.away.store(true, Ordering::Relaxed);
        let is_queued = match change.clone() {
            TicketChange::Settle { cost, is_final: true } => gate.settle_later(ticket.clone(), cost),
            TicketChange::Cancel => gate.cancel_later(ticket.clone()),
            // The next part or extension supersedes this one.
            TicketChange::Settle { .. } | TicketChange::Extend(_) => return Err(failure),
        };
        // Another change of it was queued meanwhile.
        if is_queued? {
            Ok(TicketChanged::Later)
        } else {
            self.change_hold_now(ticket, change).await.map(TicketChanged::Now)
        }
    }

    async fn change_hold_now(&self, ticket: &Ticket, change: TicketChange<'_>) -> Result<Settlement, Error> {
        let gate = &self.gate;
        match change {
            TicketChange::Settle { cost, is_final: true } => gate.settle(ticket, cost).await,
            TicketChange::Settle { cost, is_final: false } => gate.settle_so_far(ticket, cost).await,
            TicketChange::Extend(extension) => gate.extend(ticket, extension).await,
            TicketChange::Cancel => gate.cancel(ticket).await,
        }
    }

    pub(crate) fn unknown_tickets(&self) -> u64 {
        self.unknown_tickets.load(Ordering::Relaxed)
    }

    /// Settlements queued for the store.
    pub(crate) fn pending_settlements(&self) -> PendingStats {
        self.gate.pending_settlements()
    }

    /// Waits until no settlement is queued, for `longest` at most. Returns the number still queued.
    pub(crate) async fn send_pending(&self, longest: Duration) -> u64 {
        let is_done = async {
            while self.pending_settlements().waiting > 0 {
                tokio::time::sleep(PENDING_POLL).await;
            }
        };
        let _ = tokio::time::timeout(longest, is_done).await;
        self.pending_settlements().waiting
    }

    /// Resets the request's keys. Returns whether they had usage.
    ///
    /// # Errors
    /// A shared store did not reply in time.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<bool, Error> {
        let existed = self.gate.reset(request).await;
        if existed.is_err() {
            self.health.away.store(true, Ordering::Relaxed);
        }
        existed
    }

    /// One step of resetting every key of a policy.
    ///
    /// # Errors
    /// The cursor belongs to another store, or a shared store did not reply in time.
    pub(crate) async fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        self.gate.reset_policy_step(policy, from, keys).await
    }

    /// One step of listing the keys of a policy.
    ///
    /// # Errors
    /// The cursor belongs to another store, or a shared store did not reply in time.
    pub(crate) async fn list_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyKeys, Error> {
        match self.shared() {
            Some(shared) => shared.store().list_policy_step(policy, from, keys).await,
            None => self.gate.gate().list_policy_step(policy, from, keys),
        }
    }

    /// The request, which is under this policy, with the attributes that put its key under the quota of its last
    /// charge: views and operators name a key, not its tier.
    pub(crate) async fn under_last_quota<'r>(
        &self,
        policies: &'r PolicySet,
        policy: &'r Policy,
        request: Request<'r>,
    ) -> Request<'r> {
        let last = match (self.shared(), policies.stored_key(policy.name(), &request)) {
            (Some(shared), Some(key)) => shared.store().last_quota(&key).await.ok().flatten(),
            (None, Some(_)) => {
                let found = self.inspect(&request).await.unwrap_or_default();
                found.first().map(|found| LastQuota::of(&found.quota))
            }
            (_, None) => None,
        };
        match last {
            Some(last) => policy.under_last_quota(request, &last),
            None => request,
        }
    }

    /// The usage of the request's keys, charge by charge.
    ///
    /// # Errors
    /// A shared store did not reply, or holds a value that slidegate did not write.
    pub(crate) async fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        self.gate.inspect(request).await
    }

    /// Writes this process's usage, and attachments, to a file.
    pub(super) fn save(
        &self,
        file: &mut SnapshotFile,
        attachments: &[(&str, &[u8])],
    ) -> Result<SavedSnapshot, SnapshotError> {
        self.gate.gate().save_to(file, attachments)
    }

    /// Restores saved usage under the active policies.
    pub(super) fn restore(&self, file: &mut SnapshotFile) -> Result<Option<RestoredSnapshot>, SnapshotError> {
        self.gate.gate().restore(file)
    }

    /// Monotonic time since an arbitrary start.
    pub(super) fn elapsed(&self) -> Duration {
        self.gate.store().in_memory().now() - Timestamp::EPOCH
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    /// Statistics of the in-process memory store, also used as a shared store's fallback.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.gate.store().in_memory().stats()
    }

    /// Removes expired keys from this process's memory.
    pub(crate) fn sweep(&self, slots: usize) {
        self.gate.store().in_memory().sweep(slots);
    }

    pub(crate) fn storage(&self) -> Storage {
        let shared = self.shared();
        shared.map_or(Storage::Memory, |shared| Storage::Redis { instances: shared.instances() })
    }

    /// The kind and state of the store.
    pub(crate) fn state(&self) -> StoreState {
        StoreState { kind: self.gate.store().kind(), shared: self.shared().map(Shared::state) }
    }

    /// The shared store, if configured.
    pub(crate) fn shared(&self) -> Option<Shared<'_>> {
        self.gate.store().shared().map(|store| Shared { store, health: &self.health })
    }
}

fn has_waits(policies: &PolicySet) -> bool {
    policies.iter().any(|policy| policy.options().wait.is_some())
}

/// Poll interval for queued settlements at shutdown.
const PENDING_POLL: Duration = Duration::from_millis(20);

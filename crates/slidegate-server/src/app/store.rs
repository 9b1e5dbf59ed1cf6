//! The service's store: in-process memory, or a shared store.
//!
//! A shared store may be unavailable: that is counted, logged, reported at `/readyz`, and shown in
//! every decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::store::{PolicyReset, ResetCursor};
use slidegate::{
    Decisions, Error, Gate, MemoryStore, Policy, PolicySet, Request, Timestamp, Verb,
    redis::{FallbackStore, RedisStore},
    reserve::{HoldOptions, HoldStatus, PendingStats, Reserved, Settlement, Ticket},
    store::{KeyUse, MemoryStats, RestoredSnapshot, SavedSnapshot, SnapshotError, SnapshotFile},
};

use super::ticket_change::{Changed, TicketChange};
use crate::config::{SharedStore, Storage};

mod any_store;
mod shared;

use any_store::AnyStore;
use shared::Health;
pub(crate) use shared::{HealthRecord, Shared, StoreState};

/// The store, under the active policies.
#[derive(Debug)]
pub(crate) struct Store {
    /// Shared with the task that sends settlements that wait for a shared store.
    gate: Arc<Gate<AnyStore>>,
    health: Health,
    /// Tickets that the store did not know.
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
                let redis = FallbackStore::new(RedisStore::new(options)?);
                AnyStore::Redis(Box::new(redis.with_instances(instances.unwrap_or(1)).with_memory(memory)))
            }
        };
        Ok(Self {
            gate: Arc::new(Gate::with_store(policies, store)?),
            health,
            unknown_tickets: AtomicU64::new(0),
        })
    }

    /// Whether decisions are made in this process's memory, and so without waiting.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.gate.store(), AnyStore::Memory(_))
    }

    /// Decides requests in one step.
    pub(crate) async fn apply<'r>(&self, verb: Option<Verb>, requests: &'r [Request<'r>]) -> Decisions<'r> {
        let decisions = match verb {
            Some(verb) => self.gate.apply_all_async(verb, requests).await,
            None => self.gate.apply_async(requests).await,
        };
        self.health.record(&decisions);
        decisions
    }

    /// Activates policies. Usage is kept by policy name.
    ///
    /// # Errors
    /// A limit is too large for a shared store; the old policies stay active.
    pub(crate) fn configure(&self, policies: PolicySet) -> Result<(), Error> {
        self.gate.configure(policies)
    }

    /// Checks that the store supports a policy.
    ///
    /// # Errors
    /// A limit is too large for a shared store.
    pub(crate) fn can_count(&self, policy: &Policy) -> Result<(), Error> {
        self.gate.check_policy(policy)
    }

    /// Checks a request with an idempotency key: repeated requests with the same id are charged
    /// once.
    pub(crate) async fn check_once<'r>(&self, request: &'r Request<'r>, id: &str) -> Decisions<'r> {
        let decisions = self.gate.check_once_async(request, id).await;
        self.health.record(&decisions);
        decisions
    }

    /// Reserves the cost of requests that stand for one.
    ///
    /// # Errors
    /// The time is out of range.
    pub(crate) async fn reserve<'r>(
        &self,
        requests: &'r [Request<'r>],
        options: HoldOptions<'r>,
    ) -> Result<Reserved<'r>, Error> {
        let reserved = self.gate.reserve_all_async(requests, options).await?;
        self.health.record(&reserved);
        Ok(reserved)
    }

    /// Changes a reservation. While the store does not reply, the last change of a reservation is
    /// queued.
    ///
    /// # Errors
    /// A shared store did not reply in time.
    pub(crate) async fn change_hold(
        &self,
        ticket: &Ticket,
        change: TicketChange<'_>,
    ) -> Result<Changed, Error> {
        let gate = &self.gate;
        let failure = match self.change_hold_now(ticket, change.clone()).await {
            Ok(settlement) => {
                if settlement.status() == HoldStatus::Unknown {
                    self.unknown_tickets.fetch_add(1, Ordering::Relaxed);
                }
                return Ok(Changed::Now(settlement));
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
            Ok(Changed::Later)
        } else {
            self.change_hold_now(ticket, change).await.map(Changed::Now)
        }
    }

    async fn change_hold_now(&self, ticket: &Ticket, change: TicketChange<'_>) -> Result<Settlement, Error> {
        let gate = &self.gate;
        match change {
            TicketChange::Settle { cost, is_final: true } => gate.settle_async(ticket, cost).await,
            TicketChange::Settle { cost, is_final: false } => gate.settle_so_far_async(ticket, cost).await,
            TicketChange::Extend(extension) => gate.extend_with_async(ticket, extension).await,
            TicketChange::Cancel => gate.cancel_async(ticket).await,
        }
    }

    /// How many tickets the store did not know.
    pub(crate) fn unknown_tickets(&self) -> u64 {
        self.unknown_tickets.load(Ordering::Relaxed)
    }

    /// Settlements that wait for the store.
    pub(crate) fn pending_settlements(&self) -> PendingStats {
        self.gate.pending_settlements()
    }

    /// Waits until no settlement waits for the store, but for so long at most. Returns how many
    /// still wait.
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
        let existed = self.gate.reset_async(request).await;
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
        self.gate.reset_policy_step_async(policy, from, keys).await
    }

    /// The usage of the request's keys, charge by charge.
    ///
    /// # Errors
    /// A shared store did not reply, or holds a value that slidegate did not write.
    pub(crate) async fn inspect(&self, request: &Request<'_>) -> Result<Vec<KeyUse>, Error> {
        self.gate.inspect_async(request).await
    }

    /// Writes the usage in this process's memory, and attachments, to a file.
    pub(super) fn save(
        &self,
        file: &mut SnapshotFile,
        attachments: &[(&str, &[u8])],
    ) -> Result<SavedSnapshot, SnapshotError> {
        self.gate.save_to(file, attachments)
    }

    /// Restores what was saved, under the active policies.
    pub(super) fn restore(&self, file: &mut SnapshotFile) -> Result<Option<RestoredSnapshot>, SnapshotError> {
        self.gate.restore(file)
    }

    /// Time that passes, from some begin on.
    pub(super) fn elapsed(&self) -> Duration {
        self.gate.store().memory().now() - Timestamp::EPOCH
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    /// Statistics of the in-process memory store, which is also the fallback of a shared store.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.gate.store().memory().stats()
    }

    /// Removes expired keys from this process's memory.
    pub(crate) fn sweep(&self, slots: usize) {
        self.gate.store().memory().sweep(slots);
    }

    pub(crate) fn storage(&self) -> Storage {
        let shared = self.shared();
        shared.map_or(Storage::Memory, |shared| Storage::Redis { instances: shared.instances() })
    }

    /// The shared store, if configured.
    pub(crate) fn shared(&self) -> Option<Shared<'_>> {
        match self.gate.store() {
            AnyStore::Memory(_) => None,
            AnyStore::Redis(store) => Some(Shared { store, health: &self.health }),
        }
    }
}

/// Interval of checks whether settlements wait, at the end.
const PENDING_POLL: Duration = Duration::from_millis(20);

//! The memory store or a shared one, as configured: a [`Store`] that forwards calls.

use slidegate::reserve::Ticket;
use slidegate::store::{
    Charge, FallbackStore, HeldCharge, HoldAnswers, HoldCall, HoldStore, InMemory, KeyInspection,
    PolicyReset, QuotaChanges, ResetCursor, Store, StoreDecisions, StoredPolicy, TicketKeyBytes,
    TicketSecret,
};
use slidegate::{Error, Key, MemoryStore, Quota, clock::Timestamp};
use slidegate_redis::RedisStore;
use smallvec::SmallVec;

#[derive(Debug)]
// Not boxed: there is one instance, and the memory variant avoids an indirection.
#[allow(clippy::large_enum_variant)]
pub(super) enum AnyStore {
    Memory(MemoryStore),
    Redis(Box<FallbackStore<RedisStore>>),
}

/// Runs an expression on the selected store.
macro_rules! on_store {
    ($any:expr, $store:ident => $run:expr) => {
        match $any {
            AnyStore::Memory($store) => $run,
            AnyStore::Redis($store) => $run,
        }
    };
}

/// Awaits a call of the selected store. A Redis call is boxed, because a memory call would otherwise be as
/// large.
macro_rules! await_store {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Memory($store) => $call.await,
            AnyStore::Redis($store) => Box::pin($call).await,
        }
    };
}

impl Store for AnyStore {
    async fn apply(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        await_store!(self, store => store.apply(charges))
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> StoreDecisions {
        await_store!(self, store => store.check_once(charges, id))
    }

    async fn peek_blocked(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        await_store!(self, store => store.peek_blocked(charges))
    }

    async fn reset(&self, charges: &[Charge<'_>]) -> Result<bool, Error> {
        await_store!(self, store => store.reset(charges))
    }

    fn wall_time(&self) -> Timestamp {
        on_store!(self, store => store.wall_time())
    }

    fn check_quota(&self, quota: &Quota) -> Result<(), Error> {
        on_store!(self, store => store.check_quota(quota))
    }

    fn quotas_changed(&self, changes: &QuotaChanges<'_>) {
        on_store!(self, store => store.quotas_changed(changes));
    }

    async fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, Error> {
        await_store!(self, store => store.inspect(charges))
    }

    async fn reset_policy_step(
        &self,
        policy: &StoredPolicy<'_>,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        await_store!(self, store => store.reset_policy_step(policy, from, keys))
    }

    fn as_local(&self) -> Option<&dyn slidegate::store::LocalStore> {
        match self {
            Self::Memory(memory) => Some(memory),
            Self::Redis(_) => None,
        }
    }
}

impl HoldStore for AnyStore {
    fn key_for_ticket(&self, held: &HeldCharge<'_>) -> Option<TicketKeyBytes> {
        on_store!(self, store => store.key_for_ticket(held))
    }

    fn ids_in_tickets(&self, key: &Key<'_>) -> SmallVec<[TicketKeyBytes; 2]> {
        on_store!(self, store => store.ids_in_tickets(key))
    }

    fn id_in_ticket(&self, key: &[u8]) -> TicketKeyBytes {
        on_store!(self, store => store.id_in_ticket(key))
    }

    fn seal(&self, ticket: &mut Ticket) {
        on_store!(self, store => store.seal(ticket));
    }

    fn ticket_secret(&self) -> TicketSecret {
        on_store!(self, store => store.ticket_secret())
    }

    async fn prepare_to_seal(&self) {
        await_store!(self, store => store.prepare_to_seal());
    }

    async fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> Result<Option<HoldAnswers>, Error> {
        await_store!(self, store => store.change_holds(ticket, changes))
    }
}

impl InMemory for AnyStore {
    fn in_memory(&self) -> &MemoryStore {
        self.memory()
    }
}

impl AnyStore {
    /// This process's memory store.
    pub(super) fn memory(&self) -> &MemoryStore {
        match self {
            Self::Memory(memory) => memory,
            Self::Redis(store) => store.memory(),
        }
    }
}

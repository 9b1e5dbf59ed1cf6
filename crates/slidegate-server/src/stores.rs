//! The stores of the service: memory, and one line for each that instances can share.

use std::fmt;

use slidegate::reserve::Ticket;
use slidegate::store::{
    Charge, FallbackStore, HeldCharge, HoldAnswers, HoldCall, HoldStore, InMemory, KeyInspection, OnFreed,
    PolicyReset, QuotaChanges, ResetCursor, ServiceStore, Store, StoreDecisions, StoredPolicy,
    TicketKeyBytes, TicketSecret, Watch,
};
use slidegate::{Error, Key, MemoryStore, Quota, clock::Timestamp};
use slidegate_redis::{RedisOptions, RedisStore};
use smallvec::SmallVec;

/// Defines what depends on the kinds of shared stores. `$d` is a dollar sign, for the macro in the
/// macro.
macro_rules! shared_stores {
    ($d:tt $($name:literal $kind:ident: $options:ty => $store:ty,)+) => {
        /// The kinds of stores, as in `/v1/status`.
        pub(crate) const KINDS: &[&str] = &["memory", $($name),+];

        /// The options of a shared store, by its kind.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) enum StoreOptions {
            $($kind($options),)+
        }

        /// The URL, without secrets.
        impl fmt::Display for StoreOptions {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind(options) => options.fmt(f),)+
                }
            }
        }

        /// The memory store or a shared one, as configured: a [`Store`] that forwards calls.
        #[derive(Debug)]
        // Memory is not boxed: there is one instance, and it avoids an indirection.
        #[allow(clippy::large_enum_variant)]
        pub(crate) enum AnyStore {
            Memory(MemoryStore),
            $($kind(Box<FallbackStore<$store>>),)+
        }

        impl AnyStore {
            /// A shared store, without a connection, that falls back to `memory`.
            ///
            /// # Errors
            /// The options are invalid, such as unreadable certificates.
            pub(crate) fn open(options: StoreOptions, memory: MemoryStore) -> Result<Self, Error> {
                Ok(match options {
                    $(StoreOptions::$kind(options) => {
                        Self::$kind(Box::new(FallbackStore::new(<$store>::new(options)?).with_memory(memory)))
                    })+
                })
            }

            /// One of [`KINDS`].
            pub(crate) fn kind(&self) -> &'static str {
                match self {
                    Self::Memory(_) => "memory",
                    $(Self::$kind(_) => $name,)+
                }
            }

            /// The shared store, for everything but decisions.
            pub(crate) fn shared(&self) -> Option<&FallbackStore<dyn ServiceStore>> {
                match self {
                    Self::Memory(_) => None,
                    $(Self::$kind(store) => Some(&**store as &FallbackStore<dyn ServiceStore>),)+
                }
            }
        }

        /// Runs an expression on the selected store.
        macro_rules! on_store {
            ($d any:expr, $d memory:ident => $d run_memory:expr, $d store:ident => $d run:expr) => {
                match $d any {
                    AnyStore::Memory($d memory) => $d run_memory,
                    $(AnyStore::$kind($d store) => $d run,)+
                }
            };
            ($d any:expr, $d store:ident => $d run:expr) => {
                on_store!($d any, $d store => $d run, $d store => $d run)
            };
        }
    };
}

shared_stores! {
    $
    "redis" Redis: RedisOptions => RedisStore,
}

impl StoreOptions {
    /// The options of Redis, for what is only about Redis.
    pub(crate) fn redis(&mut self) -> Option<&mut RedisOptions> {
        match self {
            Self::Redis(options) => Some(options),
            #[allow(unreachable_patterns)] // while there is one kind
            _ => None,
        }
    }
}

/// Awaits a call of the selected store. A call of a shared store is boxed, because a memory call
/// would otherwise be as large.
macro_rules! await_store {
    ($any:expr, $store:ident => $call:expr) => {
        on_store!($any, $store => $call.await, $store => Box::pin($call).await)
    };
}

impl Store for AnyStore {
    async fn apply(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        await_store!(self, store => store.apply(charges))
    }

    fn apply_now(&self, charges: &[Charge<'_>], decided: &mut StoreDecisions) -> bool {
        on_store!(self, store => store.apply_now(charges, decided))
    }

    async fn check_once(&self, charges: &[Charge<'_>], id: &str) -> StoreDecisions {
        await_store!(self, store => store.check_once(charges, id))
    }

    async fn peek_blocked(&self, charges: &[Charge<'_>]) -> StoreDecisions {
        await_store!(self, store => store.peek_blocked(charges))
    }

    fn watch(&self, charge: &Charge<'_>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        on_store!(self, store => store.watch(charge, on_freed))
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
            _ => None,
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
        on_store!(self, memory => memory, store => store.memory())
    }
}

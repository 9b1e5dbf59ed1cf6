//! Shared stores: stores over a network, and their failures.

use std::fmt;
use std::future::ready;

use crate::charge::{Charge, PerCharge};
use crate::decision::Decision;
use crate::error::Error;
use crate::key::Key;
use crate::policy_reset::{PolicyReset, ResetCursor};
use crate::quota::Quota;
use crate::store::failure::StoreFailure;
use crate::store::holds::{HeldCharge, HoldAnswer, HoldCall};
use crate::store::{CANNOT_INSPECT, CANNOT_RESET_POLICY, OnFreed, TicketKeyBytes, Watch};
use crate::ticket::{Ticket, TicketSecret};
use crate::usage::KeyInspection;

/// A store whose calls can fail. [`FallbackStore`](crate::store::FallbackStore) turns it into a
/// [`Store`](crate::store::Store). Each call ends within the store's deadline. The methods
/// correspond to those of `Store`.
pub trait SharedStore: fmt::Debug + Send + Sync {
    /// Decides charges and applies them, all or none.
    ///
    /// # Errors
    /// If the store did not decide all of them.
    fn apply(
        &self,
        charges: &[Charge<'_>],
    ) -> impl Future<Output = Result<PerCharge<Decision>, DecideError>> + Send;

    /// Decides charges without a call. See [`Store::apply_now`](super::Store::apply_now).
    #[doc(hidden)]
    fn apply_now(&self, charges: &[Charge<'_>], decided: &mut PerCharge<Decision>) -> bool {
        let _ = (charges, decided);
        false
    }

    /// Like [`apply`](Self::apply), with an idempotency key.
    ///
    /// # Errors
    /// If the store did not decide all of them.
    fn check_once(
        &self,
        charges: &[Charge<'_>],
        id: &str,
    ) -> impl Future<Output = Result<PerCharge<Decision>, DecideError>> + Send;

    /// Peeks at the keys of a check that a block denies. A store may return a result up to 100 ms
    /// old, so that such a check is cheaper than one that it denies. By default
    /// [`apply`](Self::apply).
    ///
    /// # Errors
    /// If the store did not decide all of them.
    fn peek_blocked(
        &self,
        charges: &[Charge<'_>],
    ) -> impl Future<Output = Result<PerCharge<Decision>, DecideError>> + Send {
        self.apply(charges)
    }

    /// Removes keys. Returns whether any was stored.
    ///
    /// # Errors
    /// If the store did not reply. The keys may or may not be removed.
    fn reset(&self, charges: &[Charge<'_>]) -> impl Future<Output = Result<bool, StoreFailure>> + Send;

    /// See [`Store::watch`](super::Store::watch).
    #[doc(hidden)]
    fn watch(&self, charge: &Charge<'_>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        let _ = (charge, on_freed);
        None
    }

    /// The full usage of keys. By default an error.
    ///
    /// # Errors
    /// If the store cannot, did not reply, or holds a value that slidegate did not write.
    fn inspect(
        &self,
        charges: &[Charge<'_>],
    ) -> impl Future<Output = Result<Vec<KeyInspection>, StoreFailure>> + Send {
        let _ = charges;
        ready(Err(StoreFailure::new("unsupported", CANNOT_INSPECT)))
    }

    /// One step of removing every key of a policy. By default an error.
    ///
    /// # Errors
    /// If the store cannot, or did not reply. The step can be repeated.
    fn reset_policy_step(
        &self,
        policy: &str,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> impl Future<Output = Result<PolicyReset, StoreFailure>> + Send {
        let _ = (policy, from, keys);
        ready(Err(StoreFailure::new("unsupported", CANNOT_RESET_POLICY)))
    }

    /// Checks that the store can count the limit of a quota. By default it can.
    ///
    /// # Errors
    /// If the limit is too large for the store.
    fn check_quota(&self, quota: &Quota) -> Result<(), Error> {
        let _ = quota;
        Ok(())
    }

    /// Called after other quotas became active. By default does nothing, which fits a store that
    /// caches no denials.
    fn quotas_changed(&self) {}
}

/// A shared store that can hold cost. Its [`apply`](SharedStore::apply) holds the cost of charges
/// that request it.
pub trait SharedHoldStore: SharedStore {
    /// See [`HoldStore::key_for_ticket`](crate::store::HoldStore::key_for_ticket): at most 254 bytes.
    fn key_for_ticket(&self, charge: &HeldCharge<'_>) -> Vec<u8>;

    /// See [`HoldStore::ids_in_tickets`](crate::store::HoldStore::ids_in_tickets).
    fn id_of_key(&self, key: &Key<'_>) -> TicketKeyBytes;

    /// See [`HoldStore::id_in_ticket`](crate::store::HoldStore::id_in_ticket).
    fn id_in_ticket(&self, key: &[u8]) -> TicketKeyBytes;

    /// See [`HoldStore::seal`](crate::store::HoldStore::seal).
    fn seal(&self, ticket: &mut Ticket);

    /// The current secret that seals tickets. `None` until the store was asked for it.
    fn ticket_secret(&self) -> Option<TicketSecret>;

    /// See [`HoldStore::prepare_to_seal`](crate::store::HoldStore::prepare_to_seal).
    fn prepare_to_seal(&self) -> impl Future<Output = ()> + Send;

    /// Changes holds, all or none if their keys are in one slot. `None` if neither this store nor
    /// one that shares its secret sealed this ticket.
    ///
    /// # Errors
    /// If the store did not reply. The holds may or may not be changed; the call can be repeated.
    fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> impl Future<Output = Result<Option<Vec<HoldAnswer>>, StoreFailure>> + Send;
}

/// Why some charges have no decision.
#[derive(Debug, Clone)]
pub struct DecideError {
    /// Why the store did not decide.
    pub failure: StoreFailure,
    /// Set if an enforced policy denies although another was not asked: the known decisions, in the
    /// order of the charges. Nothing was charged.
    pub denied: Option<Vec<Option<Decision>>>,
}

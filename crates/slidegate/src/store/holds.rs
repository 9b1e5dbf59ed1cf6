//! The interface between a gate and a store that can hold cost.

use std::fmt;

use smallvec::SmallVec;

use super::Store;
use crate::algorithm::counts_still;
use crate::charge::{Charge, MetQuota};
use crate::decision::Decision;
use crate::error::Error;
use crate::hold::{EndedHold, HoldChange, HoldStatus, Unsettled};
use crate::key::{Key, TicketKeyBytes};
use crate::quota::Quota;
use crate::ticket::{Ticket, TicketPart, TicketSecret};
use crate::time::Timestamp;

/// A store that can hold cost, see [`Gate::reserve`](crate::Gate::reserve). Its
/// [`apply`](Store::apply) holds the cost of charges that request it.
pub trait HoldStore: Store {
    /// The key of a charge as the store will find it from a ticket: at most 255 bytes. `None` if
    /// the decision was made without the store and holds nothing.
    fn key_for_ticket(&self, charge: &HeldCharge<'_>) -> Option<TicketKeyBytes>;

    /// All ids that tickets may have for a key: [`id_in_ticket`](Self::id_in_ticket) of each of its
    /// tickets is one of these. Used to find a key's configuration from a ticket.
    fn ids_in_tickets(&self, key: &Key<'_>) -> SmallVec<[TicketKeyBytes; 2]>;

    /// The key's id, from its bytes in a ticket.
    fn id_in_ticket(&self, key: &[u8]) -> TicketKeyBytes;

    /// Seals a ticket, so that the store recognizes it.
    fn seal(&self, ticket: &mut Ticket);

    /// The current secret that seals tickets.
    fn ticket_secret(&self) -> TicketSecret;

    /// Called before a reservation is decided, to fetch what sealing needs from a shared store.
    fn prepare_to_seal(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Changes holds of a ticket, all or none, in one atomic step. `None` if the store did not seal
    /// this ticket.
    ///
    /// # Errors
    /// If the store did not reply. The holds may or may not be changed; the call can be repeated.
    fn change_holds(
        &self,
        ticket: &Ticket,
        changes: &[HoldCall<'_>],
    ) -> impl Future<Output = Result<Option<HoldAnswers>, Error>> + Send;
}

/// A charge that was held or charged for a reservation.
#[derive(Debug, Clone, Copy)]
pub struct HeldCharge<'a> {
    #[doc(hidden)]
    pub charge: &'a Charge<'a>,
    pub(crate) decision: &'a Decision,
    /// Whether the key's quota is an override or came with the request, instead of its policy's.
    #[doc(hidden)]
    pub has_other_quota: bool,
}

/// A change of the hold on one key.
#[derive(Clone, Copy)]
pub struct HoldCall<'a> {
    pub(crate) number: u32,
    /// See [`HoldStore::key_for_ticket`].
    pub key: &'a [u8],
    #[doc(hidden)]
    pub id: u64,
    #[doc(hidden)]
    pub change: HoldChange,
    /// The date of the reservation.
    pub made: Timestamp,
    #[doc(hidden)]
    pub part: TicketPart,
    /// Total held or charged.
    pub amount: u64,
    pub(crate) quota_of: &'a QuotaOfKey<'a>,
    /// How many instances share the quota: 1, except for holds of a fallback.
    pub share_of: u64,
}

/// The quota of a key now, from the one in force at the reservation.
type QuotaOfKey<'a> = dyn Fn(MetQuota) -> Quota + Sync + 'a;

impl fmt::Debug for HoldCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldCall").field("id", &self.id).field("change", &self.change).finish_non_exhaustive()
    }
}

impl HoldCall<'_> {
    /// The quota of the key now.
    pub fn quota(&self, met: MetQuota) -> Quota {
        (self.quota_of)(met).share(self.share_of)
    }

    /// Whether the shared store made the hold. Quotas of fallbacks are parts of their policies'.
    pub fn is_of_whole_limit(&self) -> bool {
        self.share_of == 1
    }

    /// The outcome of the hold if it is no longer open at this date.
    pub fn ended(&self, now: Timestamp) -> EndedHold {
        let (is_over, unsettled) = match self.part {
            TicketPart::Held { until, unsettled, .. } => (now >= until, unsettled),
            TicketPart::Charged => (false, Unsettled::Charge),
        };
        EndedHold { amount: self.amount, is_over, unsettled }
    }

    /// The change at this date: a refund of what still counts.
    pub fn change_at(&self, quota: &Quota, now: Timestamp) -> HoldChange {
        match self.change {
            HoldChange::Refund { cost } => {
                HoldChange::Refund { cost: counts_still(quota, cost, self.made, now) }
            }
            other => other,
        }
    }
}

/// The outcomes of hold changes, in order. Mostly one.
pub type HoldAnswers = SmallVec<[HoldAnswer; 1]>;

/// The outcome of a change of the hold on one key.
#[derive(Debug, Clone, Copy)]
pub struct HoldAnswer {
    #[doc(hidden)]
    pub status: HoldStatus,
    /// The key after the change.
    #[doc(hidden)]
    pub decision: Decision,
}

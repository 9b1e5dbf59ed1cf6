//! Changes of a reservation, by ticket.

use slidegate::{
    Cost,
    reserve::{Extension, Settlement},
};

/// A change of a reservation.
#[derive(Debug, Clone)]
pub(crate) enum TicketChange<'c> {
    /// Charge the cost so far.
    Settle { cost: Cost<'c>, is_final: bool },
    /// Extend it from now on.
    Extend(Extension<'c>),
    /// Release everything.
    Cancel,
}

impl TicketChange<'_> {
    /// Whether the reservation ends with it.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Settle { is_final: true, .. } | Self::Cancel)
    }
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // it is read at once
pub(crate) enum TicketChanged {
    Now(Settlement),
    /// The store did not reply. The change is resent until the hold expires.
    Later,
}

impl TicketChanged {
    /// The error for a ticket unknown to the store.
    pub(crate) const UNKNOWN: &str = "unknown ticket: another store made it, the store has lost it, its policies were \
                                      removed or count another unit, or its text was changed; nothing was charged or \
                                      released";
    /// The outcome, in responses, of a queued change.
    pub(crate) const QUEUED: &str = "queued";
}

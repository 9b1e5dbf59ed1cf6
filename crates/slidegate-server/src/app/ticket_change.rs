//! What is done with a reservation, by its ticket.

use slidegate::{
    Cost,
    reserve::{Extension, Settlement},
};

/// What to do with a reservation.
#[derive(Debug, Clone)]
pub(crate) enum TicketChange<'c> {
    /// Charge what it cost so far.
    Settle { cost: Cost<'c>, is_final: bool },
    /// Keep it from now on.
    Extend(Extension<'c>),
    /// Release everything.
    Cancel,
}

impl TicketChange<'_> {
    /// Whether the reservation stays open after it.
    pub(crate) fn is_last(&self) -> bool {
        matches!(self, Self::Settle { is_final: true, .. } | Self::Cancel)
    }
}

/// The outcome.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // it is read at once
pub(crate) enum Changed {
    Now(Settlement),
    /// The store did not reply. The change is sent again until the time of the hold is over.
    Later,
}

impl Changed {
    /// The error for a ticket that the store does not know.
    pub(crate) const UNKNOWN: &str = "unknown ticket: another store made it, the store has lost it, its policies were \
                                      removed or count another unit, or its text was changed; nothing was charged or \
                                      released";
    /// The outcome in responses of a change that was queued.
    pub(crate) const QUEUED: &str = "queued";
}

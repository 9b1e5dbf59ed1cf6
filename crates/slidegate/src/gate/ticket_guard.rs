//! A ticket that settles itself when it is dropped.
//!
//! A panic, an early return and a cancelled task all drop the guard, so none of them leaves cost
//! held until it expires.

use std::fmt;
use std::sync::Arc;

use super::Gate;
use super::change::Change;
use super::reserve::Reserved;
use super::settlement::Settlement;
use crate::cost::Cost;
use crate::error::Error;
use crate::store::{HoldStore, poll_once};
use crate::ticket::Ticket;

/// A [`Ticket`] with its gate. Settles when dropped.
///
/// - [Settled](Self::settle) or [cancelled](Self::cancel): done.
/// - Dropped after [`record`](Self::record) or [`settle_so_far`](Self::settle_so_far): settled to
///   that cost, for streams, which cost what flowed before they broke off.
/// - Dropped otherwise: ends now as it would at the end of its time: charged in full, or
///   [forgotten](crate::reserve::Unsettled::Forget) if its policy says so. Permits are always
///   returned.
///
/// A gate in memory does that before the guard is gone. A shared gate hands it to a task of the
/// tokio runtime that the guard was created or is dropped in, which [waits for the
/// store](crate::SharedGate::settle_later). Outside any runtime, the reservation ends when its time is over.
///
/// ```
/// use std::sync::Arc;
/// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
///
/// let tokens = Policy::new("tokens", Quota::per_minute(1000))?.with_scope(["user"]);
/// let gate = Arc::new(Gate::new(PolicySet::new([tokens])?));
/// let request = Request::new().with("user", "alice").with_cost(400);
/// let mut guard = gate.reserve(&request).into_guard(&gate).expect("1000 are free");
/// guard.record(120); // so much has flowed so far
/// drop(guard); // and then the client disconnected
/// assert_eq!(gate.peek(&request).strictest().unwrap().decision().used(), 120);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[must_use = "dropped, it is settled at once"]
pub struct TicketGuard<S: HoldStore + 'static> {
    /// `None` once there is nothing left to settle.
    open: Option<Open<S>>,
}

/// An open reservation.
struct Open<S> {
    gate: Arc<Gate<S>>,
    ticket: Ticket,
    /// The change to make on drop.
    at_drop: Change<'static>,
    /// For guards dropped on other threads.
    runtime: Option<tokio::runtime::Handle>,
}

impl<S: HoldStore + 'static> TicketGuard<S> {
    /// Guards a ticket of this gate, or of another gate on the same shared store.
    pub fn new(gate: Arc<Gate<S>>, ticket: Ticket) -> Self {
        let open =
            Open { gate, ticket, at_drop: Change::End, runtime: tokio::runtime::Handle::try_current().ok() };
        Self { open: Some(open) }
    }

    fn set_at_drop(&mut self, change: Change<'static>) {
        self.open.as_mut().expect(OPEN).at_drop = change;
    }

    fn open(&self) -> &Open<S> {
        self.open.as_ref().expect(OPEN)
    }

    /// The current ticket.
    pub fn ticket(&self) -> &Ticket {
        &self.open().ticket
    }

    /// Records the request's total cost so far. Does not call the store: the guard settles to it if
    /// dropped.
    pub fn record(&mut self, total: impl Into<Cost<'static>>) {
        self.set_at_drop(Change::Settle { cost: total.into(), is_final: true });
    }

    /// Settles to the true cost. See [`Gate::settle`].
    ///
    /// # Errors
    /// If a shared store did not reply. The settlement is then repeated in the background, as if
    /// the guard had been dropped.
    pub async fn settle(mut self, cost: impl Into<Cost<'static>> + Send) -> Result<Settlement, Error> {
        let cost = cost.into();
        self.record(cost.clone());
        self.finish(Change::Settle { cost, is_final: true }).await
    }

    /// Settles the cost so far. See [`Gate::settle_so_far`]. If dropped, the guard settles to it,
    /// unless more is recorded.
    ///
    /// # Errors
    /// If a shared store did not reply. The next settlement includes this one.
    pub async fn settle_so_far(
        &mut self,
        total: impl Into<Cost<'static>> + Send,
    ) -> Result<Settlement, Error> {
        let cost = total.into();
        self.record(cost.clone());
        self.change(Change::Settle { cost, is_final: false }).await
    }

    /// Restarts the reservation's time. See [`Gate::extend`].
    ///
    /// # Errors
    /// If a shared store did not reply.
    pub async fn extend(&mut self) -> Result<Settlement, Error> {
        self.change(Change::Extend { cost: None, ttl_us: None }).await
    }

    /// Restarts the reservation's time and holds `cost` in total. See [`Gate::extend`].
    ///
    /// # Errors
    /// If a shared store did not reply.
    pub async fn extend_to(&mut self, cost: impl Into<Cost<'static>> + Send) -> Result<Settlement, Error> {
        self.change(Change::Extend { cost: Some(cost.into()), ttl_us: None }).await
    }

    /// Cancels the reservation of a request that did not run. See [`Gate::cancel`].
    ///
    /// # Errors
    /// If a shared store did not reply; it is then cancelled in the background.
    pub async fn cancel(mut self) -> Result<Settlement, Error> {
        self.set_at_drop(Change::Cancel);
        self.finish(Change::Cancel).await
    }

    /// The ticket; the guard no longer settles it.
    pub fn into_ticket(mut self) -> Ticket {
        self.open.take().expect(OPEN).ticket
    }

    /// Makes the last change. If it fails, or the future is dropped, the guard is dropped and
    /// settles.
    async fn finish(mut self, change: Change<'static>) -> Result<Settlement, Error> {
        let Open { gate, ticket, .. } = self.open();
        let settled = gate.change_holds(ticket, change).await?;
        self.open = None;
        Ok(settled)
    }

    async fn change(&mut self, change: Change<'static>) -> Result<Settlement, Error> {
        let open = self.open.as_mut().expect(OPEN);
        let changed = open.gate.change_holds(&open.ticket, change).await?;
        open.ticket = changed.ticket().clone();
        Ok(changed)
    }
}

/// For the HTTP layer.
impl<S: HoldStore + 'static> TicketGuard<S> {
    #[doc(hidden)]
    pub fn cancel_at_drop(&mut self) {
        self.set_at_drop(Change::Cancel);
    }

    #[doc(hidden)]
    pub fn end_at_drop(&mut self) {
        self.set_at_drop(Change::End);
    }

    #[doc(hidden)]
    pub fn renew(&mut self, ticket: Ticket) {
        self.open.as_mut().expect(OPEN).ticket = ticket;
    }
}

/// Panic message of changes over the memory store, which always replies.
const OPEN: &str = "a guard that can be used is open";

impl<S: HoldStore + 'static> Drop for TicketGuard<S> {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        let (gate, ticket, change) = (open.gate, open.ticket, open.at_drop);
        if gate.store().as_local().is_some()
            && poll_once(gate.change_holds(&ticket, change.clone())).is_some()
        {
            return;
        }
        // If refused, the reservation ends when its time is over.
        drop(gate.end_later(open.runtime, ticket, &change));
    }
}

impl<S: HoldStore + 'static> fmt::Debug for TicketGuard<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketGuard").field("ticket", self.ticket()).finish_non_exhaustive()
    }
}

impl Reserved<'_> {
    /// The ticket as a guard that settles itself when dropped, if the request is allowed. Pass the
    /// gate that made the reservation.
    pub fn into_guard<S: HoldStore + 'static>(self, gate: &Arc<Gate<S>>) -> Option<TicketGuard<S>> {
        self.into_ticket().map(|ticket| TicketGuard::new(Arc::clone(gate), ticket))
    }
}

//! A gate that holds cost, and the guards of its tickets, without the type of its store.

use std::pin::Pin;
use std::sync::Arc;

use slidegate::reserve::{Extension, HoldOptions, Reserved, Settlement, Ticket, TicketGuard};
use slidegate::store::HoldStore;
use slidegate::{Cost, Error, Gate, Request, SharedGate};

use super::config::{BY_POLICIES, ErasedGate};

/// The gate of a layer that reserves: in memory or shared. Created with `From`, from a gate or an
/// [`Arc`] of one.
#[derive(Debug, Clone)]
pub struct AnyHoldGate(pub(super) Arc<dyn HoldGate>);

impl<S: HoldStore + 'static> From<Gate<S>> for AnyHoldGate {
    fn from(gate: Gate<S>) -> Self {
        Arc::new(gate).into()
    }
}

impl<S: HoldStore + 'static> From<Arc<Gate<S>>> for AnyHoldGate {
    fn from(gate: Arc<Gate<S>>) -> Self {
        SharedGate::from(gate).into()
    }
}

impl<S: HoldStore + 'static> From<SharedGate<S>> for AnyHoldGate {
    fn from(gate: SharedGate<S>) -> Self {
        Self(Arc::new(gate))
    }
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A gate that holds cost.
pub(super) trait HoldGate: ErasedGate {
    /// Reserves for several requests, all or none. They wait for their turn as long as their policies let them.
    fn reserve<'g, 'r: 'g>(&'g self, requests: &'r [Request<'r>]) -> Answer<'g, Reserved<'r>>;

    /// Settles in part.
    fn settle_part<'g>(
        &'g self,
        ticket: &'g Ticket,
        cost: Cost<'static>,
    ) -> Answer<'g, Result<Settlement, Error>>;

    /// Keeps a reservation, and holds `cost` in all if there is one.
    fn extend<'g>(
        &'g self,
        ticket: &'g Ticket,
        cost: Option<Cost<'static>>,
    ) -> Answer<'g, Result<Settlement, Error>>;

    /// A guard of a ticket.
    fn guard(self: Arc<Self>, ticket: Ticket) -> Box<dyn Guard>;
}

impl<S: HoldStore + 'static> HoldGate for SharedGate<S> {
    fn reserve<'g, 'r: 'g>(&'g self, requests: &'r [Request<'r>]) -> Answer<'g, Reserved<'r>> {
        if self.gate().lets_wait() {
            return Box::pin(self.gate().acquire_reservation_of_all(requests, BY_POLICIES).decide());
        }
        Box::pin(async {
            let reserved = self.reserve_all(requests, HoldOptions::default()).await;
            reserved.expect("a policy's own time is in range")
        })
    }

    fn settle_part<'g>(
        &'g self,
        ticket: &'g Ticket,
        cost: Cost<'static>,
    ) -> Answer<'g, Result<Settlement, Error>> {
        Box::pin(self.settle_so_far(ticket, cost))
    }

    fn extend<'g>(
        &'g self,
        ticket: &'g Ticket,
        cost: Option<Cost<'static>>,
    ) -> Answer<'g, Result<Settlement, Error>> {
        let extension = cost.into_iter().fold(Extension::new(), Extension::with_total);
        Box::pin(self.extend(ticket, extension))
    }

    fn guard(self: Arc<Self>, ticket: Ticket) -> Box<dyn Guard> {
        Box::new(TicketGuard::new(Arc::clone(self.gate()), ticket))
    }
}

/// A [`TicketGuard`] without the type of its store.
pub(super) trait Guard: Send {
    /// The ticket as it is now.
    fn ticket(&self) -> &Ticket;

    /// Replaces the ticket by a newer one.
    fn renew(&mut self, ticket: Ticket);

    /// Settles to this cost when it is dropped.
    fn record(&mut self, cost: Cost<'static>);

    /// Ends as its time would when it is dropped.
    fn end_at_drop(&mut self);

    /// Cancels when it is dropped.
    fn cancel_at_drop(&mut self);
}

impl<S: HoldStore + 'static> Guard for TicketGuard<S> {
    fn ticket(&self) -> &Ticket {
        self.ticket()
    }

    fn renew(&mut self, ticket: Ticket) {
        self.renew(ticket);
    }

    fn record(&mut self, cost: Cost<'static>) {
        self.record(cost);
    }

    fn end_at_drop(&mut self) {
        self.end_at_drop();
    }

    fn cancel_at_drop(&mut self) {
        self.cancel_at_drop();
    }
}

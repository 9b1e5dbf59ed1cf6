//! The reservation of one request: its owner, and the changes and renewals of its hold.
//!
//! The owner moves with the request: from the decision to the inner service's future, then into the
//! response body. Dropping it at any stage settles the reservation. Handlers and the task that
//! renews it have handles, which do nothing once the owner is gone.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::HeaderMap;
use http::response::Parts;
use slidegate::reserve::{Settlement, Ticket};
use slidegate::{Cost, Error};
use tokio::task::AbortHandle;

use super::hold_gate::{Guard, HoldGate};
use super::refund::Refund;
use super::settle::Settle;

/// Interval of partial settlements of a growing cost.
const PART: Duration = Duration::from_secs(1);
/// Shortest interval between renewals, however short the lease.
const SHORTEST_BEAT: Duration = Duration::from_millis(100);

/// The reservation of a request, for its handler and for the stream that the handler returns.
///
/// The layer puts it into the request's extensions. With the feature `axum` it is an extractor.
/// Clones are handles of one reservation. They do nothing once the response body has ended.
#[derive(Clone)]
pub struct Reservation(Arc<Shared>);

struct Shared {
    gate: Arc<dyn HoldGate>,
    state: Mutex<State>,
}

struct State {
    /// `None` once its owner was dropped.
    guard: Option<Box<dyn Guard>>,
    /// The cost so far.
    recorded: Option<Cost<'static>>,
    /// The cost settled so far.
    settled: Option<Cost<'static>>,
    /// Whether the response cancels it, so that no more cost is charged.
    is_cancelled: bool,
}

impl Reservation {
    /// Records the request's total cost so far. The reservation is settled to it each second with
    /// [`Settle::recorded`](super::Settle::recorded), and when the response body ends. Does not
    /// call the store.
    pub fn record(&self, total: impl Into<Cost<'static>>) {
        self.0.record(total.into());
    }

    /// Settles the cost so far at once. See
    /// [`Gate::settle_so_far`](slidegate::Gate::settle_so_far).
    ///
    /// # Errors
    /// If a shared store did not reply: the next settlement includes this one. If the response body
    /// has ended, so that the reservation is settled already.
    pub async fn settle_so_far(&self, total: impl Into<Cost<'static>>) -> Result<Settlement, Error> {
        let total = total.into();
        self.record(total.clone());
        self.0.settle_part(total).await
    }

    /// Holds `cost` in total. See [`Gate::extend`](slidegate::Gate::extend).
    ///
    /// # Errors
    /// If a shared store did not reply, or the response body has ended.
    pub async fn extend_to(&self, cost: impl Into<Cost<'static>>) -> Result<Settlement, Error> {
        self.0.extend(Some(cost.into())).await
    }

    /// The current ticket, unless the response body has ended. The layer settles it.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        self.0.ticket().ok()
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("ticket", &self.ticket()).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ticket(&self) -> Result<Ticket, Error> {
        let over = || Error::ticket("the reservation is over: the response body that it was for has ended");
        self.lock().guard.as_ref().map(|guard| guard.ticket().clone()).ok_or_else(over)
    }

    fn record(&self, cost: Cost<'static>) {
        let state = &mut *self.lock();
        if let Some(guard) = state.guard.as_mut().filter(|_| !state.is_cancelled) {
            guard.record(cost.clone());
            state.recorded = Some(cost);
        }
    }

    async fn settle_part(&self, cost: Cost<'static>) -> Result<Settlement, Error> {
        let ticket = self.ticket()?;
        let settled = self.gate.settle_part(&ticket, cost.clone()).await?;
        self.lock().settled = Some(cost);
        self.renew(&settled);
        Ok(settled)
    }

    async fn extend(&self, cost: Option<Cost<'static>>) -> Result<Settlement, Error> {
        let ticket = self.ticket()?;
        let extended = self.gate.extend(&ticket, cost).await?;
        self.renew(&extended);
        Ok(extended)
    }

    fn renew(&self, settlement: &Settlement) {
        if let Some(guard) = &mut self.lock().guard {
            guard.renew(settlement.ticket().clone());
        }
    }

    /// The recorded cost that is not settled yet.
    fn part(&self) -> Option<Cost<'static>> {
        let state = self.lock();
        let is_new = |recorded: &Cost<'_>| !state.is_cancelled && state.settled.as_ref() != Some(recorded);
        state.recorded.clone().filter(is_new)
    }
}

/// The owner of a reservation. Dropping it settles or cancels.
pub(super) struct OpenReservation {
    shared: Arc<Shared>,
    settle: Settle,
    refund: Option<Refund>,
    /// Bytes of the body so far.
    bytes: u64,
    /// The task that renews it while it is open.
    keeper: Option<AbortHandle>,
}

impl OpenReservation {
    /// The reservation of a request that has not run yet: cancelled if dropped.
    pub(super) fn new(
        gate: &Arc<dyn HoldGate>,
        ticket: Ticket,
        settle: Settle,
        refund: Option<Refund>,
    ) -> Self {
        let mut guard = Arc::clone(gate).guard(ticket);
        guard.cancel_at_drop();
        let state = State { guard: Some(guard), recorded: None, settled: None, is_cancelled: false };
        let shared = Arc::new(Shared { gate: Arc::clone(gate), state: Mutex::new(state) });
        Self { shared, settle, refund, bytes: 0, keeper: None }
    }

    pub(super) fn handle(&self) -> Reservation {
        Reservation(Arc::clone(&self.shared))
    }

    /// The request runs from now on, and has a cost.
    pub(super) fn begin(&mut self) {
        let mut state = self.shared.lock();
        let Some(guard) = &mut state.guard else { return };
        let beat = guard.ticket().heartbeat();
        if !self.refund.as_ref().is_some_and(Refund::is_for_unanswered) {
            Self::run(guard.as_mut(), None, &self.settle);
        }
        drop(state);
        if !beat.is_zero()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let kept = Arc::downgrade(&self.shared);
            let task = runtime.spawn(keep(kept, beat.max(SHORTEST_BEAT), self.settle.is_in_parts()));
            self.keeper = Some(task.abort_handle());
        }
    }

    /// If dropped, it is settled to the known cost.
    fn run(guard: &mut dyn Guard, recorded: Option<Cost<'static>>, settle: &Settle) {
        match recorded {
            Some(cost) => guard.record(cost),
            None if settle.counts_bytes() => guard.record(0.into()),
            None => guard.end_at_drop(),
        }
    }

    /// The response has begun.
    pub(super) fn answered(&mut self, response: &Parts) {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let Some(guard) = &mut state.guard else { return };
        if self.refund.as_ref().is_some_and(|refund| refund.answered(response)) {
            guard.cancel_at_drop();
            state.is_cancelled = true;
            return;
        }
        if let Some(cost) = self.settle.in_head(response) {
            state.recorded = Some(cost);
        }
        Self::run(guard.as_mut(), state.recorded.clone(), &self.settle);
    }

    /// Counts bytes of the body that were passed on.
    pub(super) fn flowed(&mut self, bytes: usize) {
        if self.settle.counts_bytes() {
            self.bytes = self.bytes.saturating_add(bytes as u64);
            self.shared.record(self.bytes.into());
        }
    }

    pub(super) fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(cost) = self.settle.in_trailers(trailers) {
            self.shared.record(cost);
        }
    }
}

impl Drop for OpenReservation {
    fn drop(&mut self) {
        if let Some(keeper) = &self.keeper {
            keeper.abort();
        }
        let guard = self.shared.lock().guard.take();
        drop(guard);
    }
}

/// Settles a reservation in part and renews it, until its owner is dropped. Failed calls are made
/// up for by the next ones.
async fn keep(reservation: Weak<Shared>, beat: Duration, is_in_parts: bool) {
    let step = if is_in_parts { beat.min(PART) } else { beat };
    let mut since = Duration::ZERO;
    loop {
        tokio::time::sleep(step).await;
        since += step;
        let Some(shared) = reservation.upgrade() else { return };
        let part = shared.part().filter(|_| is_in_parts);
        let is_part = part.is_some();
        let kept = match part {
            Some(part) => shared.settle_part(part).await,
            None if since >= beat => shared.extend(None).await,
            None => continue,
        };
        if kept.is_ok() {
            since = Duration::ZERO;
        } else if !is_part && shared.ticket().is_err() {
            return;
        }
    }
}

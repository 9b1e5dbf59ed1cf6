//! Settlements that are sent once a shared store replies. A settlement is safe to repeat, so one
//! whose caller cannot wait is queued and retried until the hold would have ended anyway.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::change::Change;
use super::pending::{LastChange, Pending, PendingStats};
use super::{Gate, SharedGate};
use crate::cost::Cost;
use crate::error::Error;
use crate::store::{HoldStore, Store};
use crate::ticket::Ticket;
use crate::time::Timestamp;

/// Pauses between attempts while the store does not reply.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl<S: Store> SharedGate<S> {
    /// Settlements that wait for the store. O(1).
    pub fn pending_settlements(&self) -> PendingStats {
        self.gate().pending.stats()
    }
}

impl<S: HoldStore + 'static> SharedGate<S> {
    /// Settles a reservation as soon as the store replies, for callers that cannot wait or retry.
    /// Retries until the hold's time is over; by then the store has charged or dropped what was
    /// held.
    ///
    /// At most 65,536 reservations wait. They are lost when the process ends.
    ///
    /// The first queued change of a reservation wins, as it would if the store replied. Returns
    /// whether this change is queued: `false` if another one is, and this one is dropped. Until the
    /// store replies, [`settle`](Self::settle) and similar calls report
    /// [`AlreadySettled`](crate::reserve::HoldStatus::AlreadySettled).
    ///
    /// # Errors
    /// If too many wait, or there is no tokio runtime; nothing is sent.
    pub fn settle_later<'c>(&self, ticket: Ticket, cost: impl Into<Cost<'c>>) -> Result<bool, Error> {
        self.gate().change_later(None, ticket, LastChange::Settle(cost.into().to_owned_cost()))
    }

    /// Like [`settle_later`](Self::settle_later), for [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// Same as [`settle_later`](Self::settle_later).
    pub fn cancel_later(&self, ticket: Ticket) -> Result<bool, Error> {
        self.gate().change_later(None, ticket, LastChange::Cancel)
    }
}

impl<S: HoldStore + 'static> Gate<S> {
    /// Ends the reservation of a dropped guard, which may know a runtime where this thread has
    /// none.
    pub(super) fn end_later(
        self: &Arc<Self>,
        runtime: Option<Handle>,
        ticket: Ticket,
        change: &Change<'static>,
    ) -> Result<bool, Error> {
        let change = match change {
            Change::Settle { cost, .. } => LastChange::Settle(cost.to_owned_cost()),
            Change::Cancel => LastChange::Cancel,
            Change::End | Change::Extend { .. } => LastChange::End,
        };
        self.change_later(runtime, ticket, change)
    }

    fn change_later(
        self: &Arc<Self>,
        runtime: Option<Handle>,
        ticket: Ticket,
        change: LastChange,
    ) -> Result<bool, Error> {
        let missing = "settlements wait for the store in a tokio runtime, and this thread has none";
        let runtime = Handle::try_current().ok().or(runtime).ok_or_else(|| Error::store(missing));
        let pushed =
            runtime.and_then(|runtime| Ok((runtime, self.pending.push(Pending { ticket, change })?)));
        let (runtime, pushed) = pushed.inspect_err(|_| self.pending.drop_one())?;
        if pushed.needs_task {
            runtime.spawn(send_all(Task { gate: Arc::downgrade(self), has_ended: false }));
        }
        Ok(pushed.is_kept)
    }

    /// Sends one settlement. Returns its reservation's id if the store did not reply and it must be
    /// sent again.
    async fn send_pending(self: Arc<Self>, pending: Pending) -> Option<u64> {
        let change = match &pending.change {
            LastChange::Settle(cost) => Change::Settle { cost: cost.as_cost(), is_final: true },
            LastChange::Cancel => Change::Cancel,
            LastChange::End => Change::End,
        };
        match self.change_holds_now(&pending.ticket, change).await {
            Ok(_) => {
                self.pending.sent_one();
                None
            }
            Err(failure) if failure.is_store() && !is_over(&pending.ticket, self.store.wall_time()) => {
                Some(pending.ticket.id())
            }
            Err(_) => {
                self.pending.drop_one();
                None
            }
        }
    }
}

/// Whether the time of all holds of a ticket is over.
fn is_over(ticket: &Ticket, now: Timestamp) -> bool {
    ticket.last_until().is_none_or(|until| now >= until)
}

/// On drop, lets the next settlement start a new task, even if this one's runtime is shut down.
struct Task<S> {
    gate: Weak<Gate<S>>,
    has_ended: bool,
}

impl<S> Drop for Task<S> {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.upgrade().filter(|_| !self.has_ended) {
            gate.pending.lose_task();
        }
    }
}

/// Sends queued settlements until none is left or the gate is dropped.
async fn send_all<S: HoldStore + 'static>(mut task: Task<S>) {
    let mut pause = FIRST_PAUSE;
    while let Some(gate) = task.gate.upgrade() {
        let Some(batch) = gate.pending.take() else {
            task.has_ended = true;
            return;
        };
        let ids: Vec<_> = batch.iter().map(|one| one.ticket.id()).collect();
        let mut sends = JoinSet::new();
        for pending in batch {
            sends.spawn(Arc::clone(&gate).send_pending(pending));
        }
        let unsent: Vec<_> = sends.join_all().await.into_iter().flatten().collect();
        let is_away = !unsent.is_empty();
        gate.pending.finish(&ids, &unsent);
        drop(gate);
        if is_away {
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LONGEST_PAUSE);
        } else {
            pause = FIRST_PAUSE;
        }
    }
}

//! The queue of settlements that wait until a shared store replies.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::request::OwnedCost;
use crate::ticket::Ticket;

/// Most settlements that wait. Each takes some 300 bytes.
const MAX_PENDING: usize = 1 << 16;
/// Settlements that are sent at a time.
const SENT_AT_ONCE: usize = 32;

/// Settlements that wait for the store of a gate, by the id of their reservation.
#[derive(Debug, Default)]
pub(super) struct PendingSettlements {
    queue: Mutex<Queue>,
    sent: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: HashMap<u64, Pending>,
    /// Each id of `waiting` once, those that wait longest first.
    order: VecDeque<u64>,
    /// Those that are being sent.
    in_flight: usize,
    /// Whether a task sends them.
    has_task: bool,
}

/// The last change of a reservation.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) change: LastChange,
}

/// What is done last with a reservation.
#[derive(Debug, Clone)]
pub(super) enum LastChange {
    /// It is settled to what it cost in all.
    Settle(OwnedCost),
    Cancel,
    /// What the end of its time would do.
    End,
}

/// Settlements that were handed to [`Gate::settle_later`](crate::Gate::settle_later) and
/// [`Gate::cancel_later`](crate::Gate::cancel_later).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingStats {
    /// Those that wait now.
    pub waiting: u64,
    /// Those that the store has replied to.
    pub sent: u64,
    /// Those that were given up: the time of their hold was over, so that the store has charged or
    /// dropped what was held, or too many waited, or the process had no tokio runtime.
    pub dropped: u64,
}

impl PendingSettlements {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> PendingStats {
        let queue = self.queue();
        PendingStats {
            waiting: (queue.waiting.len() + queue.in_flight) as u64,
            sent: self.sent.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    pub(super) fn sent_one(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// The task is gone with what it was sending, as its runtime was shut down.
    pub(super) fn lose_task(&self) {
        let mut queue = self.queue();
        (queue.has_task, queue.in_flight) = (false, 0);
    }

    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one, and returns whether a task has to be started. O(1).
    pub(super) fn push(&self, pending: Pending) -> Result<bool, Error> {
        let mut queue = self.queue();
        let id = pending.ticket.id();
        if queue.waiting.len() + queue.in_flight >= MAX_PENDING && !queue.waiting.contains_key(&id) {
            return Err(Error::store(format!(
                "{MAX_PENDING} settlements wait for the store already; repeat this one later"
            )));
        }
        if queue.waiting.insert(id, pending).is_none() {
            queue.order.push_back(id);
        }
        Ok(!std::mem::replace(&mut queue.has_task, true))
    }

    /// Those to send next. If there are none, the task has ended: the next settlement starts one.
    pub(super) fn take(&self) -> Option<Vec<Pending>> {
        let mut queue = self.queue();
        let count = queue.order.len().min(SENT_AT_ONCE);
        let ids: Vec<_> = queue.order.drain(..count).collect();
        let taken: Vec<_> = ids.iter().filter_map(|id| queue.waiting.remove(id)).collect();
        queue.in_flight = taken.len();
        queue.has_task = !taken.is_empty();
        (!taken.is_empty()).then_some(taken)
    }

    /// Puts back those that the store did not reply to, unless their reservation was settled again.
    pub(super) fn put_back(&self, unsent: Vec<Pending>) {
        let mut queue = self.queue();
        let queue = &mut *queue;
        queue.in_flight = 0;
        for pending in unsent.into_iter().rev() {
            let id = pending.ticket.id();
            if let Entry::Vacant(place) = queue.waiting.entry(id) {
                place.insert(pending);
                queue.order.push_front(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn pending(id: u64, cost: u64) -> Pending {
        let ticket = Ticket::new(id, Timestamp::EPOCH);
        Pending { ticket, change: LastChange::Settle(OwnedCost::Bare(cost)) }
    }

    /// An outage of an hour must not fill the memory of an API server.
    #[test]
    fn a_bounded_number_waits_and_one_that_waits_may_be_replaced() {
        let settlements = PendingSettlements::default();
        assert!(settlements.push(pending(0, 1)).unwrap(), "the first starts a task");
        for id in 1..MAX_PENDING as u64 {
            assert!(!settlements.push(pending(id, 1)).unwrap());
        }
        let refused = settlements.push(pending(u64::MAX, 1)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "65536 settlements wait for the store already; repeat this one later"
        );
        assert!(settlements.push(pending(7, 2)).is_ok());
        let taken = settlements.take().expect("they wait");
        assert_eq!(taken.iter().map(|one| one.ticket.id()).collect::<Vec<_>>(), (0..32).collect::<Vec<_>>());
        assert!(matches!(taken[7].change, LastChange::Settle(OwnedCost::Bare(2))));
        assert!(settlements.push(pending(u64::MAX, 1)).is_err(), "those that are sent count");
    }

    /// A settlement that was sent in vain must neither be lost nor undo a newer one.
    #[test]
    fn what_was_sent_in_vain_is_first_again_unless_it_was_replaced() {
        let settlements = PendingSettlements::default();
        for id in 0..40 {
            settlements.push(pending(id, 1)).unwrap();
        }
        let taken = settlements.take().expect("they wait");
        settlements.push(pending(3, 9)).unwrap();
        settlements.put_back(taken);
        let mut order = Vec::new();
        while let Some(taken) = settlements.take() {
            order.extend(taken.into_iter().map(|one| (one.ticket.id(), one.change)));
        }
        let ids: Vec<u64> = order.iter().map(|(id, _)| *id).collect();
        let expected: Vec<u64> = (0..3).chain(4..40).chain([3]).collect();
        assert_eq!(ids, expected);
        assert!(matches!(order.last(), Some((3, LastChange::Settle(OwnedCost::Bare(9))))));
        assert!(settlements.push(pending(1, 1)).unwrap(), "the task has ended");
    }
}

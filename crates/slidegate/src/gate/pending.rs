//! The queue of settlements that wait for a shared store.
//!
//! Its capacity is shared among policies, see [`shares`](crate::shares); the policies of one
//! reservation are one owner.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::change::Change;
use crate::cost::OwnedCost;
use crate::error::Error;
use crate::shares::Shares;
use crate::ticket::Ticket;

/// Maximum number of waiting settlements, of about 300 bytes each.
const MAX_PENDING: usize = 1 << 16;
/// Settlements sent at a time.
const SENT_AT_ONCE: usize = 32;

/// Waiting settlements of a gate, by reservation id.
#[derive(Debug, Default)]
pub(super) struct PendingSettlements {
    queue: Mutex<SettlementQueue>,
    /// The queue's length, so that no change locks an empty queue.
    kept: AtomicUsize,
    sent: AtomicU64,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct SettlementQueue {
    /// Waiting settlements, including those being sent.
    kept: HashMap<u64, Pending>,
    /// How many settlements each policy has waiting.
    shares: Shares<PolicyNames>,
    /// Ids to send, oldest first.
    order: VecDeque<u64>,
    /// Whether a task is sending.
    has_task: bool,
}

/// The names of a reservation's policies.
type PolicyNames = SmallVec<[Box<str>; 2]>;

impl Default for SettlementQueue {
    fn default() -> Self {
        let (kept, order) = (HashMap::new(), VecDeque::new());
        Self { kept, shares: Shares::new(MAX_PENDING), order, has_task: false }
    }
}

/// The queued last change of a reservation.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) change: LastChange,
}

/// The last change of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LastChange {
    /// Settle to the total cost.
    Settle(OwnedCost),
    Cancel,
    /// Same as the end of its time.
    End,
}

/// The outcome of adding a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pushed {
    /// Whether it is queued. If `false`, another change of its reservation is, and this one is
    /// dropped.
    pub(super) is_kept: bool,
    /// Whether the caller must start a task.
    pub(super) needs_task: bool,
}

/// Settlements passed to [`Gate::settle_later`](crate::SharedGate::settle_later) and
/// [`Gate::cancel_later`](crate::SharedGate::cancel_later).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingStats {
    /// Settlements that wait now.
    pub waiting: u64,
    /// Settlements that the store replied to.
    pub sent: u64,
    /// Settlements given up: the hold's time was over, so the store charged or dropped what was
    /// held; too many waited; or the process had no tokio runtime.
    pub dropped: u64,
}

impl PendingSettlements {
    fn queue(&self) -> MutexGuard<'_, SettlementQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stats(&self) -> PendingStats {
        let queue = self.queue();
        PendingStats {
            waiting: queue.kept.len() as u64,
            sent: self.sent.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
        }
    }

    pub(super) fn sent_one(&self) {
        self.sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Called when the task's runtime was shut down. The next task also sends what this one was
    /// sending.
    pub(super) fn lose_task(&self) {
        let mut queue = self.queue();
        queue.has_task = false;
        queue.order = queue.kept.keys().copied().collect();
    }

    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether another last change of this reservation is queued. The first one wins, as it would
    /// if the store had replied.
    pub(super) fn keeps_another(&self, id: u64, change: &Change<'_>) -> bool {
        if self.kept.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.queue()
            .kept
            .get(&id)
            .is_some_and(|kept| LastChange::of(change).is_none_or(|new| new != kept.change))
    }

    /// Adds a settlement, unless one of its reservation is queued already. O(1).
    pub(super) fn push(&self, pending: Pending) -> Result<Pushed, Error> {
        let mut queue = self.queue();
        let id = pending.ticket.id();
        let is_kept = queue.kept.get(&id).is_none_or(|kept| kept.change == pending.change);
        let is_new = !queue.kept.contains_key(&id);
        if is_new {
            if !queue.shares.take(&pending.policies(), 1) {
                return Err(Error::store(format!(
                    "too many settlements of these policies already wait for the store (all policies share \
                     {MAX_PENDING}); send this one again later"
                )));
            }
            queue.kept.insert(id, pending);
            queue.order.push_back(id);
            self.kept.store(queue.kept.len(), Ordering::Relaxed);
        }
        Ok(Pushed { is_kept, needs_task: !std::mem::replace(&mut queue.has_task, true) })
    }

    /// The next settlements to send. `None` ends the task: the next settlement starts a new one.
    pub(super) fn take(&self) -> Option<Vec<Pending>> {
        let mut queue = self.queue();
        let count = queue.order.len().min(SENT_AT_ONCE);
        let ids: Vec<_> = queue.order.drain(..count).collect();
        let taken: Vec<_> = ids.iter().filter_map(|id| queue.kept.get(id).cloned()).collect();
        queue.has_task = !taken.is_empty();
        (!taken.is_empty()).then_some(taken)
    }

    /// Removes the sent settlements of a batch and puts the unsent ones at the front.
    pub(super) fn finish(&self, batch: &[u64], unsent: &[u64]) {
        let mut queue = self.queue();
        for id in batch.iter().filter(|id| !unsent.contains(id)) {
            if let Some(done) = queue.kept.remove(id) {
                queue.shares.give_back(&done.policies(), 1);
            }
        }
        unsent.iter().rev().for_each(|id| queue.order.push_front(*id));
        self.kept.store(queue.kept.len(), Ordering::Relaxed);
    }
}

impl Pending {
    fn policies(&self) -> PolicyNames {
        self.ticket.keys().map(|(_, key)| key.policy.into()).collect()
    }
}

impl LastChange {
    /// This change as a last change, if it is one.
    pub(super) fn of(change: &Change<'_>) -> Option<Self> {
        match change {
            Change::Settle { cost, is_final: true } => Some(Self::Settle(cost.to_owned_cost())),
            Change::Cancel => Some(Self::Cancel),
            Change::End => Some(Self::End),
            Change::Settle { is_final: false, .. } | Change::Extend { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ticket::{TicketKey, TicketPart};
    use crate::time::Timestamp;

    const FIRST: Pushed = Pushed { is_kept: true, needs_task: true };
    const AGAIN: Pushed = Pushed { is_kept: true, needs_task: false };
    const TOO_LATE: Pushed = Pushed { is_kept: false, needs_task: false };

    fn pending(id: u64, cost: u64) -> Pending {
        pending_of("p", id, cost)
    }

    fn pending_of(policy: &str, id: u64, cost: u64) -> Pending {
        let mut ticket = Ticket::new(id, Timestamp::EPOCH);
        let part = TicketPart::Charged;
        ticket.push(&TicketKey { policy, key: b"k", in_millionths: false, amount: 1, part });
        Pending { ticket, change: LastChange::Settle(OwnedCost::Bare(cost)) }
    }

    /// An outage of an hour must not fill the memory of an API server, and the busiest policy must leave
    /// room for others.
    #[test]
    fn a_bounded_number_waits_and_one_policy_leaves_half_to_others() {
        let settlements = PendingSettlements::default();
        assert_eq!(settlements.push(pending(0, 1)).unwrap(), FIRST, "it starts a task");
        let half = MAX_PENDING as u64 / 2;
        for id in 1..half {
            assert_eq!(settlements.push(pending(id, 1)).unwrap(), AGAIN);
        }
        let refused = settlements.push(pending(u64::MAX, 1)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "too many settlements of these policies already wait for the store (all policies share 65536); \
             send this one again later"
        );
        assert_eq!(settlements.push(pending(7, 1)).unwrap(), AGAIN);
        let taken = settlements.take().expect("they wait");
        assert_eq!(taken.iter().map(|one| one.ticket.id()).collect::<Vec<_>>(), (0..32).collect::<Vec<_>>());
        assert!(settlements.push(pending(u64::MAX, 1)).is_err(), "those that are sent count");
        for id in half..half + half / 2 {
            assert_eq!(settlements.push(pending_of("other", id, 1)).unwrap(), AGAIN);
        }
        settlements.finish(&(0..32).collect::<Vec<_>>(), &[]);
        assert_eq!(settlements.push(pending(u64::MAX, 1)).unwrap_err().to_string(), refused.to_string());
        assert_eq!(settlements.push(pending_of("other", u64::MAX, 1)).unwrap(), AGAIN);
    }

    /// A client that settles and then cancels must be charged, whether the store replied between the two
    /// or not.
    #[test]
    fn the_first_change_of_a_reservation_stays_while_it_waits_and_while_it_is_sent() {
        let settlements = PendingSettlements::default();
        let is_kept = |change: &Change<'_>| !settlements.keeps_another(3, change);
        let settle = |cost: u64, is_final| Change::Settle { cost: cost.into(), is_final };
        assert!(is_kept(&Change::Cancel), "nothing waits");
        settlements.push(pending(3, 1)).unwrap();
        let taken = settlements.take().expect("it waits");
        for is_sent in [true, false] {
            let other = Pending { change: LastChange::Cancel, ..taken[0].clone() };
            assert_eq!(settlements.push(other).unwrap(), TOO_LATE);
            assert_eq!(settlements.push(pending(3, 2)).unwrap(), TOO_LATE);
            assert_eq!(settlements.push(pending(3, 1)).unwrap(), AGAIN);
            for other in [settle(2, true), settle(1, false), Change::Cancel, Change::End] {
                assert!(!is_kept(&other), "{other:?}, being sent: {is_sent}");
            }
            assert!(!is_kept(&Change::Extend { cost: None, ttl_us: None }));
            assert!(is_kept(&settle(1, true)), "the same again is sent again");
            settlements.finish(&[3], if is_sent { &[3] } else { &[] });
            if !is_sent {
                assert!(is_kept(&Change::Cancel), "the store has replied");
            }
        }
    }

    /// A settlement that was sent in vain must neither be lost nor wait behind newer ones.
    #[test]
    fn what_was_sent_in_vain_is_first_again() {
        let settlements = PendingSettlements::default();
        for id in 0..40 {
            settlements.push(pending(id, 1)).unwrap();
        }
        let ids = |taken: Vec<Pending>| taken.iter().map(|one| one.ticket.id()).collect::<Vec<_>>();
        let taken = ids(settlements.take().expect("they wait"));
        settlements.finish(&taken, &taken[..3]);
        assert_eq!(ids(settlements.take().expect("they wait")), [0, 1, 2, 32, 33, 34, 35, 36, 37, 38, 39]);
        // The runtime of the task is shut down.
        settlements.lose_task();
        assert_eq!(settlements.push(pending(50, 1)).unwrap(), FIRST);
        let taken = ids(settlements.take().expect("they wait"));
        assert_eq!(taken.len(), 12);
        settlements.finish(&taken, &[]);
        assert!(settlements.take().is_none());
        assert_eq!(settlements.push(pending(1, 1)).unwrap(), FIRST, "the task has ended");
    }
}

//! Holds: cost reserved for a request until its true cost is known.
//!
//! A key's holds are stored beside its usage, in their own table. A cost fits if it fits together
//! with all used and held cost. A hold ends when it is settled, which charges the true cost at that
//! time, or when its time is over, which the key's next access notices.
//!
//! Charging at the end keeps every window of real use within the limit while no cost exceeds its
//! hold. Proof: of the uses in a window, take the one whose hold was made last. All others were
//! held before it and used after the window began, so each was still held then, or charged within
//! the window, and counted. With all of them, it fitted.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use crate::time::{SECOND_US, exact, micros};

mod table;

pub use table::{HEADER_BYTES, TAG, TableList};

/// Handling of a hold that expires unsettled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Unsettled {
    /// Charge it in full, as of the end of its time. A lost settlement costs no more than the hold.
    #[default]
    Charge,
    /// Drop it, and charge only if a late settlement arrives.
    Forget,
}

impl Unsettled {
    /// Parses the name used in configurations: `charge` or `forget`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "charge" => Some(Self::Charge),
            "forget" => Some(Self::Forget),
            _ => None,
        }
    }

    /// The name: `charge` or `forget`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Forget => "forget",
        }
    }
}

/// How a reservation holds cost, for [`Gate::reserve_all`](crate::Gate::reserve_all).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct HoldOptions<'o> {
    /// How long the request may take before it is settled, settled in part, or extended: 1 ms to
    /// 1 h. `None` is one minute, and the lease of a permit.
    pub ttl: Option<Duration>,
    /// An idempotency key, so that a reservation whose response was lost can be sent again: a
    /// repeated call with the same key, keys and costs, within the longest window and time of its
    /// holds, gets the first decisions and the first ticket, and holds nothing more. As with
    /// [`check_once`](crate::Gate::check_once), it is decided again after a denial. Whoever repeats the
    /// call gets the ticket: where callers do not trust each other, put the name of the caller before its
    /// key.
    pub id: Option<&'o str>,
}

/// Default time of a hold: one minute.
pub(crate) const DEFAULT_TTL_US: u64 = 60 * SECOND_US;
/// Shortest time of a hold. Shorter ones would end before a reply can arrive.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(1);
/// Longest time of a hold, so that a lost ticket keeps capacity for an hour at most. Partial
/// settlements and extensions renew it.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(3600);
/// Maximum number of holds per key, so that the largest table stays at some 40 kB.
pub const MAX_HOLDS: usize = 1024;

/// The terms of a new hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NewHold {
    /// The reservation's id.
    pub id: u64,
    /// How long it lasts, in microseconds.
    pub ttl_us: u64,
    /// Applies if the hold expires unsettled.
    pub unsettled: Unsettled,
}

/// An id that is unique in the fleet, except for a chance of one in 2^64.
pub fn new_id() -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // The standard library's only source of randomness: a keyed hash of a counter is unpredictable.
    KEY.get_or_init(RandomState::new).hash_one(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Cost held for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The reservation's id.
    pub id: u64,
    /// When it ends, by the store's clock, in microseconds.
    pub until: u64,
    /// Cost still held.
    pub held: u64,
    /// Cost charged by its settlements so far.
    pub settled: u64,
    /// Applies if the hold expires unsettled.
    pub unsettled: Unsettled,
    /// Kept after its end to recognize a repeated call; holds nothing.
    pub has_ended: bool,
}

impl Hold {
    /// The charge when its time ends.
    pub fn charged_at_end(&self) -> u64 {
        match self.unsettled {
            Unsettled::Charge => self.held,
            Unsettled::Forget => 0,
        }
    }
}

/// The unordered holds of a key, in memory or in a stored table.
pub trait HoldList: Default {
    fn len(&self) -> usize;

    /// The hold at this place, below `len`.
    fn get(&self, at: usize) -> Hold;

    fn set(&mut self, at: usize, hold: Hold);

    fn push(&mut self, hold: Hold);

    /// Removes a hold. The last one takes its place.
    fn swap_remove(&mut self, at: usize);

    /// The place of the hold with this id. O(n), from the newest on: most requests are short.
    fn find(&self, id: u64) -> Option<usize>;

    /// Removes and returns those that end until `now`. The others keep their order.
    fn take_until(&mut self, now: u64) -> Vec<Hold>;

    /// Makes all end earlier by this many microseconds.
    fn move_back(&mut self, by: u64);

    fn iter(&self) -> impl ExactSizeIterator<Item = Hold> {
        (0..self.len()).map(|at| self.get(at))
    }
}

/// Holds in memory; most keys have one at a time.
pub(crate) type HoldVec = SmallVec<[Hold; 1]>;

impl HoldList for HoldVec {
    fn len(&self) -> usize {
        self.len()
    }

    fn get(&self, at: usize) -> Hold {
        self[at]
    }

    fn set(&mut self, at: usize, hold: Hold) {
        self[at] = hold;
    }

    fn push(&mut self, hold: Hold) {
        self.push(hold);
    }

    fn swap_remove(&mut self, at: usize) {
        self.swap_remove(at);
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.as_slice().iter().rposition(|hold| hold.id == id)
    }

    fn take_until(&mut self, now: u64) -> Vec<Hold> {
        let mut taken = Vec::new();
        self.retain(|hold| {
            let is_over = hold.until <= now;
            taken.extend(is_over.then_some(*hold));
            !is_over
        });
        taken
    }

    fn move_back(&mut self, by: u64) {
        for hold in self {
            hold.until = hold.until.saturating_sub(by);
        }
    }
}

/// The holds of one key. `default()` has none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holds<L = HoldVec> {
    holds: L,
    /// Total held.
    sum: u64,
    /// No hold ends before this. Not raised when the first hold is settled, because finding the
    /// next one takes a search.
    earliest: u64,
    /// No hold ends after this. Not lowered when the last hold is settled.
    latest: u64,
    /// The latest access time.
    seen: u64,
    /// Holds that a reply counts without listing them.
    unlisted: usize,
}

impl<L: HoldList> Holds<L> {
    /// Total held.
    #[inline]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.holds.len() + self.unlisted
    }

    /// No hold ends before this time.
    pub fn earliest(&self) -> u64 {
        self.earliest
    }

    /// No hold ends after this time.
    pub fn latest(&self) -> u64 {
        self.latest
    }

    /// Whether no more holds may be added.
    pub fn is_full(&self) -> bool {
        self.count() >= MAX_HOLDS
    }

    /// All of them, in the order of their ends.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Hold> {
        self.holds.iter()
    }

    /// The time to decide at. If the clock stepped back by more than `small_step_us`, the holds are
    /// moved back with it, so that none lasts longer than its time from then on. A smaller step is
    /// waited out.
    pub fn arrive(&mut self, now: u64, small_step_us: u64) -> u64 {
        if now < self.seen && !self.is_empty() {
            let step = self.seen - now;
            if step <= small_step_us {
                return self.seen;
            }
            self.holds.move_back(step);
            self.earliest = self.earliest.saturating_sub(step);
            self.latest = self.latest.saturating_sub(step);
        }
        self.seen = now;
        now
    }

    /// Removes the holds that end until `now`, in the order of their ends. O(1) if there are none,
    /// else O(n log n).
    pub fn take_due(&mut self, now: u64) -> Vec<Hold> {
        if self.holds.len() == 0 || now < self.earliest {
            return Vec::new();
        }
        let mut due = self.holds.take_until(now);
        self.sum = self.holds.iter().fold(0, |sum, hold| sum.saturating_add(hold.held));
        self.earliest = self.holds.iter().map(|hold| hold.until).min().unwrap_or(0);
        self.latest = self.holds.iter().map(|hold| hold.until).max().unwrap_or(0);
        due.sort_unstable_by_key(|hold| (hold.until, hold.id));
        due
    }

    /// Adds a hold. The caller has checked that it fits and that the table is not
    /// [full](Self::is_full).
    pub fn add(&mut self, new: &NewHold, now: u64, cost: u64) {
        let until = now.saturating_add(new.ttl_us);
        self.bound(until);
        let NewHold { id, unsettled, .. } = *new;
        self.holds.push(Hold { id, until, held: cost, settled: 0, unsettled, has_ended: false });
        self.sum = self.sum.saturating_add(cost);
    }

    /// Removes the newest hold.
    pub fn remove_newest(&mut self) {
        if let Some(at) = self.holds.len().checked_sub(1) {
            self.holds.swap_remove(at);
        }
    }

    /// Records until `until` that a hold has ended, and its charge. Does nothing if there is no
    /// room.
    pub fn add_ended(&mut self, id: u64, settled: u64, until: u64) {
        if !self.is_full() {
            self.bound(until);
            let unsettled = Unsettled::Forget;
            self.holds.push(Hold { id, until, held: 0, settled, unsettled, has_ended: true });
        }
    }

    /// The place of the hold with this id. O(n), from the newest on: most requests are short.
    pub fn find(&self, id: u64) -> Option<usize> {
        self.holds.find(id)
    }

    /// The hold at a position, which must be below [`len`](Self::len).
    pub fn get(&self, at: usize) -> Hold {
        self.holds.get(at)
    }

    /// Settles a hold to the total cost so far. Returns the charge: the total minus earlier
    /// settlements. The rest is released if this is the last settlement, else held until `until`.
    pub fn settle(&mut self, at: usize, total: u64, next: Option<u64>) -> u64 {
        let mut hold = self.holds.get(at);
        let charged = total.saturating_sub(hold.settled);
        hold.settled += charged;
        let freed = if next.is_some() { charged.min(hold.held) } else { hold.held };
        hold.held -= freed;
        // A damaged table's sum may be less than its parts.
        self.sum = self.sum.saturating_sub(freed);
        match next {
            _ if hold.has_ended => self.holds.set(at, hold),
            Some(until) => self.renew(at, Hold { until, ..hold }),
            None => self.holds.swap_remove(at),
        }
        charged
    }

    /// Sets a hold's total, including what was settled, and its end. The caller has checked that
    /// the difference fits.
    pub fn extend(&mut self, at: usize, held: u64, until: u64) {
        let hold = self.holds.get(at);
        self.sum = self.sum.saturating_sub(hold.held).saturating_add(held);
        self.renew(at, Hold { held, until, ..hold });
    }

    fn renew(&mut self, at: usize, hold: Hold) {
        self.bound(hold.until);
        self.holds.set(at, hold);
    }

    /// Extends the bounds to include this end.
    fn bound(&mut self, until: u64) {
        let is_first = self.is_empty();
        self.earliest = if is_first { until } else { self.earliest.min(until) };
        self.latest = if is_first { until } else { self.latest.max(until) };
    }
}

impl Holds {
    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        if self.holds.spilled() { self.holds.capacity() * size_of::<Hold>() } else { 0 }
    }

    /// Adds a saved hold. `None` if the saved holds are invalid: too many, or their sum exceeds any
    /// limit.
    pub fn restore(&mut self, hold: Hold) -> Option<()> {
        let sum = self.sum.checked_add(hold.held)?;
        if self.is_full() || sum.checked_add(hold.settled).is_none() {
            return None;
        }
        self.bound(hold.until);
        self.holds.push(hold);
        self.sum = sum;
        Some(())
    }
}

/// A change of one hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldChange {
    /// Charge `total` minus the earlier settlements. The rest is released, or held for `ttl_us`
    /// more if set.
    Settle {
        /// Cost of all settlements so far.
        total: u64,
        /// How long the rest is held, in microseconds.
        ttl_us: Option<u64>,
    },
    /// Release what is held. What was settled stays charged.
    Cancel,
    /// End a reservation that holds nothing here, and refund what was charged at once when it was
    /// made. Nothing is refunded after its last settlement.
    Refund {
        /// The cost to refund.
        cost: u64,
    },
    /// Hold this total, settlements included, for `ttl_us` from now. A total of `None` changes only
    /// the time, which is never denied.
    Extend {
        /// The new total to hold, if it changes.
        total: Option<u64>,
        /// How long from now, in microseconds.
        ttl_us: u64,
    },
}

impl HoldChange {
    /// Whether the change can be denied.
    pub fn is_extension(&self) -> bool {
        matches!(self, Self::Extend { .. })
    }
}

/// A hold as its ticket knows it, for a change that finds the hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedHold {
    /// Total held.
    pub amount: u64,
    /// Whether its time is over, which charged or dropped it. Otherwise it was settled.
    pub is_over: bool,
    /// Applies if the hold expires unsettled.
    pub unsettled: Unsettled,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HoldStatus {
    /// The hold was open and is changed.
    Changed,
    /// The hold was settled before. Nothing is charged.
    AlreadySettled,
    /// The hold's time was over. A settlement charges what was not charged then; an extension does
    /// nothing.
    Expired,
    /// The extension does not fit. The hold stays as it was.
    Denied,
    /// The store does not know the reservation: another store made it, it was lost with the store's
    /// data, its policies are gone or count another unit because [weights](crate::Counts::Weighted)
    /// were added or removed, or its ticket is forged. Nothing is charged or refunded.
    Unknown,
}

impl HoldStatus {
    /// The name in responses: `changed`, `already_settled`, `expired`, `denied`,
    /// `unknown`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Changed => "changed",
            Self::AlreadySettled => "already_settled",
            Self::Expired => "expired",
            Self::Denied => "denied",
            Self::Unknown => "unknown",
        }
    }
}

/// The time of a hold in microseconds, or why it is invalid.
pub(crate) fn ttl_us(ttl: Duration) -> Result<u64, String> {
    if (MIN_TTL..=MAX_TTL).contains(&ttl) {
        return Ok(micros(ttl));
    }
    Err(format!(
        "invalid ttl `{}`: must be 1ms to 1h; extend the hold, or settle it in parts, if the request takes longer",
        exact(ttl)
    ))
}

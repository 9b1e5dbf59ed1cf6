//! Calls that wait for their turn: how many may, how many do, for how long, and what becomes of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slidegate::internal::instant;
use slidegate::shares::Shares;
use tokio::sync::watch;
use tokio::time::Instant;

use super::histogram::Histogram;
use crate::log_limit::group_key;

/// Maximum calls that wait, each with its connection. A client may have as many as are free, so at most half.
pub(crate) const MAX_WAITING: usize = 16_384;
/// Microseconds per unit of the histogram, whose bounds are then 1 ms to 250 s.
const UNIT_US: u64 = 1000;

/// A client: an address or network. `None` on a Unix socket.
type Owner = Option<[u8; 16]>;

#[derive(Debug)]
pub(crate) struct Waits {
    waiting: Mutex<Waiting>,
    /// By [`TurnOutcome`].
    outcomes: [AtomicU64; TurnOutcome::ALL.len()],
    /// Whether the service shuts down.
    ending: watch::Sender<bool>,
    /// How long calls waited for the turns that they got.
    pub(crate) time: Histogram,
}

#[derive(Debug)]
struct Waiting {
    shares: Shares<Owner>,
    /// Since when each has been waiting, oldest first.
    since: BTreeMap<u64, Instant>,
    next: u64,
}

/// What becomes of a call that may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TurnOutcome {
    /// It was admitted, perhaps at once.
    Turn,
    /// There is no turn in time.
    Late,
    /// As many wait as may.
    Full,
    /// The client has gone.
    Gone,
}

impl TurnOutcome {
    pub(crate) const ALL: [Self; 4] = [Self::Turn, Self::Late, Self::Full, Self::Gone];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Turn => "turn",
            Self::Late => "late",
            Self::Full => "full",
            Self::Gone => "gone",
        }
    }
}

impl Waits {
    pub(super) fn new(copies: usize) -> Self {
        let waiting = Waiting { shares: Shares::new(MAX_WAITING), since: BTreeMap::new(), next: 0 };
        Self {
            waiting: Mutex::new(waiting),
            outcomes: Default::default(),
            ending: watch::Sender::new(false),
            time: Histogram::with_unit(copies, UNIT_US),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a call of this client. `None` if the client has as many as are free.
    pub(crate) fn enter(&self, client: Option<IpAddr>) -> Option<WaitingCall<'_>> {
        let owner = client.map(group_key);
        let (mut waiting, since) = (self.lock(), instant());
        if !waiting.shares.take(&owner, 1) {
            return None;
        }
        let id = waiting.next;
        waiting.next += 1;
        waiting.since.insert(id, since);
        Some(WaitingCall { waits: self, owner, id, since, outcome: TurnOutcome::Gone })
    }

    /// Ends all waits, and those that come: the service shuts down.
    pub(crate) fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Whether the service shuts down.
    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// Completes when the service shuts down.
    pub(crate) async fn ended(&self) {
        // The sender is this.
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }

    /// How many calls wait, and for how long the oldest has.
    pub(crate) fn now(&self) -> (usize, Duration) {
        let waiting = self.lock();
        let oldest = waiting.since.first_key_value().map(|(_, since)| since.elapsed());
        (waiting.since.len(), oldest.unwrap_or_default())
    }

    /// How many calls came to this.
    pub(crate) fn count_of(&self, outcome: TurnOutcome) -> u64 {
        self.outcomes[outcome as usize].load(Relaxed)
    }

    /// How long this share of the calls that got a turn waited at most, to the bounds of the histogram. `None` without any,
    /// or beyond the last bound.
    pub(crate) fn within(&self, share: f64) -> Option<Duration> {
        let reading = self.time.read();
        #[allow(clippy::cast_precision_loss)] // a share needs no more digits
        let wanted = reading.count as f64 * share;
        let mut sum = 0;
        let bound = reading.buckets.iter().find(|(_, count)| {
            sum += count;
            #[allow(clippy::cast_precision_loss)] // as above
            let is_reached = sum > 0 && sum as f64 >= wanted;
            is_reached
        });
        bound.filter(|(end, _)| end.is_finite()).map(|(end, _)| Duration::from_secs_f64(*end))
    }

    /// Counts a call that had no place.
    pub(crate) fn count(&self, outcome: TurnOutcome) {
        self.outcomes[outcome as usize].fetch_add(1, Relaxed);
    }
}

/// A call that may be waiting. Dropping it frees its place.
#[derive(Debug)]
pub(crate) struct WaitingCall<'w> {
    waits: &'w Waits,
    owner: Owner,
    id: u64,
    since: Instant,
    outcome: TurnOutcome,
}

impl WaitingCall<'_> {
    /// The call has its answer.
    pub(crate) fn end(mut self, outcome: TurnOutcome) {
        if outcome == TurnOutcome::Turn {
            self.waits.time.add(self.since.elapsed(), 1);
        }
        self.outcome = outcome;
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.waits.count(self.outcome);
        let mut waiting = self.waits.lock();
        waiting.since.remove(&self.id);
        waiting.shares.give_back(&self.owner, 1);
    }
}

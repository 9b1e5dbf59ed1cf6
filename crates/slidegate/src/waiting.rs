//! Waiting: a line before each key, first come, first served (feature `wait`).
//!
//! Only the first of a line asks the limiter and sleeps until its cost fits; so a small cost never overtakes a large one,
//! and a crowd that waits for one key costs one timer. Whoever drops his future leaves the line, wherever he stands.

use std::collections::HashMap;
use std::fmt;
use std::future::IntoFuture;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};

use crate::decision::Decision;
use crate::key::KeyId;
use crate::limiter::Limiter;
use crate::time::{instant, millis_ceil};

/// How many may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxWaiting {
    /// For one key, the first of its line included. 1024 unless set: a line is worth its wait only while it is short.
    pub per_key: usize,
    /// For all keys of a limiter. 65,536 unless set: each holds a task, and the key that it waits for.
    pub in_all: usize,
}

impl Default for MaxWaiting {
    fn default() -> Self {
        Self { per_key: 1024, in_all: 65_536 }
    }
}

/// A wish to be let through as soon as the cost fits, made by [`Limiter::acquire`]. It stands in line from the moment at
/// which it is first awaited.
#[derive(Debug)]
#[must_use = "it waits only when it is awaited"]
pub struct Acquire<'l> {
    limiter: &'l Limiter,
    key: Box<[u8]>,
    cost: u64,
    within: Duration,
}

impl<'l> Acquire<'l> {
    /// How long to wait unless said: one minute, as the callers' own patience is usually less.
    pub const DEADLINE: Duration = Duration::from_secs(60);

    pub(crate) fn new(limiter: &'l Limiter, key: &[u8]) -> Self {
        Self { limiter, key: key.into(), cost: 1, within: Self::DEADLINE }
    }

    /// What is to fit; 1 unless said.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Longest wait from the moment at which this is first awaited, on tokio's clock; [`DEADLINE`](Self::DEADLINE) unless
    /// said. Zero is a try: it fails at once if it would have to wait, and does not overtake those who do.
    pub fn deadline(mut self, longest: Duration) -> Self {
        self.within = longest;
        self
    }

    async fn wait(self) -> Result<Decision, NotAcquired> {
        let Self { limiter, key, cost, within } = self;
        // A day that never comes has no instant; the century after next will do.
        let deadline = instant() + within.min(FOR_EVER);
        if cost == 0 {
            return Ok(limiter.check_cost(&key, 0));
        }
        if limiter.peek_cost(&key, cost).retry_after().is_none() {
            return Err(NotAcquired(Why::Never { cost, most: limiter.quota().capacity() }));
        }
        let place = limiter.lines().enter(limiter.id_of(&key)).map_err(NotAcquired)?;
        let late = |retry_after| NotAcquired(Why::Late { within, retry_after });
        let _turn = timeout_at(deadline, place.line.turn.lock()).await.map_err(|_| late(None))?;
        loop {
            // From here on nothing that makes room is missed.
            let mut room = pin!(place.line.room.notified());
            room.as_mut().enable();
            let left = deadline.saturating_duration_since(instant());
            let decision = limiter.check_cost(&key, cost);
            if decision.is_allowed() {
                return Ok(decision);
            }
            let Some(wait) = decision.retry_after() else {
                return Err(NotAcquired(Why::Never { cost, most: decision.limit }));
            };
            if wait > left {
                return Err(late(Some(wait)));
            }
            // Either ends the wait, and the limiter says what came of it.
            let _ = timeout(wait, room).await;
            if instant() > deadline {
                return Err(late(None));
            }
        }
    }
}

/// Longer than any wait that somebody means.
const FOR_EVER: Duration = Duration::from_secs(100 * 366 * 86_400);

impl<'l> IntoFuture for Acquire<'l> {
    type Output = Result<Decision, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'l>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}

/// Why nothing was charged after all. One line of text says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAcquired(Why);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Never { cost: u64, most: u64 },
    Full { most: usize, of: &'static str },
    Late { within: Duration, retry_after: Option<Duration> },
}

impl NotAcquired {
    /// The cost is above what the quota ever admits at once. Said without waiting.
    #[must_use]
    pub fn is_never(&self) -> bool {
        matches!(self.0, Why::Never { .. })
    }

    /// As many wait as may. Said without waiting.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.0, Why::Full { .. })
    }

    /// It did not fit in time, or could not have: the first of a line is told as soon as that is certain.
    #[must_use]
    pub fn is_late(&self) -> bool {
        matches!(self.0, Why::Late { .. })
    }

    /// How long it would have had to wait, where that was known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.0 {
            Why::Late { retry_after, .. } => retry_after,
            Why::Never { .. } | Why::Full { .. } => None,
        }
    }
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Why::Never { cost, most } => {
                write!(f, "cost {cost} never fits a quota of {most}; ask for at most {most} at once")
            }
            Why::Full { most, of } => {
                write!(
                    f,
                    "{most} wait {of} already; try again later, or let more wait: `Limiter::max_waiting`"
                )
            }
            Why::Late { within, retry_after } => {
                write!(f, "no room within {} ms; ", millis_ceil(within))?;
                match retry_after.map(millis_ceil) {
                    Some(millis) => write!(f, "there is some in {millis} ms at the earliest"),
                    None => f.write_str("others wait for it as well, so wait longer or ask for less"),
                }
            }
        }
    }
}

impl std::error::Error for NotAcquired {}

/// The lines of a limiter.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    most: MaxWaiting,
    lines: Mutex<HashMap<KeyId, (usize, Arc<Line>)>>,
    /// All who wait: read without the lock by those who make room.
    waiting: AtomicUsize,
}

/// Those who wait for one key.
#[derive(Debug, Default)]
struct Line {
    /// Held by the first of the line; tokio hands it over in the order of asking.
    turn: tokio::sync::Mutex<()>,
    /// Wakes the first when something other than time has made room.
    room: Notify,
}

/// A place in a line, left on drop.
struct Place<'l> {
    lines: &'l Lines,
    key: KeyId,
    line: Arc<Line>,
}

impl Lines {
    pub(crate) fn of(most: MaxWaiting) -> Self {
        Self { most, ..Self::default() }
    }

    fn enter(&self, key: KeyId) -> Result<Place<'_>, Why> {
        let mut lines = self.lock();
        if self.waiting.load(Ordering::Relaxed) >= self.most.in_all {
            return Err(Why::Full { most: self.most.in_all, of: "in all" });
        }
        let before = lines.get(&key).map_or(0, |(waiting, _)| *waiting);
        if before >= self.most.per_key {
            return Err(Why::Full { most: self.most.per_key, of: "for the key" });
        }
        let (waiting, line) = lines.entry(key).or_default();
        *waiting += 1;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Ok(Place { lines: self, key, line: Arc::clone(line) })
    }

    /// Something has made room for this key.
    pub(crate) fn wake(&self, key: impl FnOnce() -> KeyId) {
        if self.waiting.load(Ordering::SeqCst) > 0
            && let Some((_, line)) = self.lock().get(&key())
        {
            line.room.notify_waiters();
        }
    }

    /// Something may have made room for every key.
    pub(crate) fn wake_all(&self) {
        self.lock().values().for_each(|(_, line)| line.room.notify_waiters());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, (usize, Arc<Line>)>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if let Some((waiting, _)) = lines.get_mut(&self.key) {
            *waiting -= 1;
            if *waiting == 0 {
                lines.remove(&self.key);
            }
        }
        self.lines.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

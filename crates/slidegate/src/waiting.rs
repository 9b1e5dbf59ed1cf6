//! Waiting: a first-in, first-out queue per key (feature `wait`).
//!
//! Only the head of a queue asks the limiter and sleeps until its cost fits. So a small cost never
//! overtakes a large one, and any number of waiters for one key costs one timer. Dropping the
//! future leaves the queue from any position.

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

/// Bounds on the number of waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxWaiting {
    /// Most waiters for one key, including the head of its queue. Default: 1024.
    pub per_key: usize,
    /// Most waiters for all keys of a limiter. Default: 65,536. Each holds a task and a copy of its
    /// key.
    pub in_all: usize,
}

impl Default for MaxWaiting {
    fn default() -> Self {
        Self { per_key: 1024, in_all: 65_536 }
    }
}

/// A future that waits until the cost fits, created by [`Limiter::acquire`]. It joins the queue
/// when it is first awaited.
#[derive(Debug)]
#[must_use = "it waits only when it is awaited"]
pub struct Acquire<'l> {
    limiter: &'l Limiter,
    key: Box<[u8]>,
    cost: u64,
    within: Duration,
}

impl<'l> Acquire<'l> {
    /// The default deadline: one minute.
    pub const DEADLINE: Duration = Duration::from_secs(60);

    pub(crate) fn new(limiter: &'l Limiter, key: &[u8]) -> Self {
        Self { limiter, key: key.into(), cost: 1, within: Self::DEADLINE }
    }

    /// Sets the cost. Default: 1.
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Sets the longest wait, from the first await on and by tokio's clock. Default:
    /// [`DEADLINE`](Self::DEADLINE). With zero, the call fails at once if it would have to wait; it
    /// does not overtake waiters.
    pub fn deadline(mut self, longest: Duration) -> Self {
        self.within = longest;
        self
    }

    async fn wait(self) -> Result<Decision, NotAcquired> {
        let Self { limiter, key, cost, within } = self;
        // Longer durations could overflow the instant.
        let deadline = instant() + within.min(MAX_DEADLINE);
        if cost == 0 {
            return Ok(limiter.check_cost(&key, 0));
        }
        if limiter.peek_cost(&key, cost).retry_after().is_none() {
            return Err(NotAcquired(Cause::Never { cost, most: limiter.quota().capacity() }));
        }
        let waiter = limiter.queues().enter(limiter.id_of(&key)).map_err(NotAcquired)?;
        let late = |retry_after| NotAcquired(Cause::Late { within, retry_after });
        let _head = timeout_at(deadline, waiter.queue.head.lock()).await.map_err(|_| late(None))?;
        loop {
            // Enabled before the check, so that no notification after the check is missed.
            let mut freed = pin!(waiter.queue.freed.notified());
            freed.as_mut().enable();
            let left = deadline.saturating_duration_since(instant());
            let decision = limiter.check_cost(&key, cost);
            if decision.is_allowed() {
                return Ok(decision);
            }
            let Some(wait) = decision.retry_after() else {
                return Err(NotAcquired(Cause::Never { cost, most: decision.limit }));
            };
            if wait > left {
                return Err(late(Some(wait)));
            }
            // Whichever ends the wait, the limiter decides again.
            let _ = timeout(wait, freed).await;
            if instant() > deadline {
                return Err(late(None));
            }
        }
    }
}

/// An upper bound on deadlines: 100 years.
const MAX_DEADLINE: Duration = Duration::from_secs(100 * 366 * 86_400);

impl<'l> IntoFuture for Acquire<'l> {
    type Output = Result<Decision, NotAcquired>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'l>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}

/// Why nothing was charged. Its text is one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAcquired(Cause);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Never { cost: u64, most: u64 },
    Full { most: usize, of: &'static str },
    Late { within: Duration, retry_after: Option<Duration> },
}

impl NotAcquired {
    /// The cost exceeds the quota's [capacity](crate::Quota::capacity). Reported without waiting.
    #[must_use]
    pub fn is_never(&self) -> bool {
        matches!(self.0, Cause::Never { .. })
    }

    /// A bound of [`MaxWaiting`] is reached. Reported without waiting.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.0, Cause::Full { .. })
    }

    /// The cost did not fit before the deadline. Reported as soon as that is certain, which may be
    /// before the deadline.
    #[must_use]
    pub fn is_late(&self) -> bool {
        matches!(self.0, Cause::Late { .. })
    }

    /// The wait that would have been necessary, if known.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.0 {
            Cause::Late { retry_after, .. } => retry_after,
            Cause::Never { .. } | Cause::Full { .. } => None,
        }
    }
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Cause::Never { cost, most } => {
                write!(
                    f,
                    "invalid cost {cost}: must be at most {most}, the capacity of the quota; ask for less at once"
                )
            }
            Cause::Full { most, of } => {
                write!(
                    f,
                    "too many waiters {of}: at most {most} may wait; retry later, or raise `Limiter::max_waiting`"
                )
            }
            Cause::Late { within, retry_after } => {
                write!(f, "the cost did not fit within {} ms: ", millis_ceil(within))?;
                match retry_after.map(millis_ceil) {
                    Some(millis) => write!(f, "it fits in {millis} ms at the earliest; ")?,
                    None => f.write_str("other callers wait for the same key; ")?,
                }
                f.write_str("wait longer or ask for less")
            }
        }
    }
}

impl std::error::Error for NotAcquired {}

/// The queues of a limiter.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    most: MaxWaiting,
    queues: Mutex<HashMap<KeyId, (usize, Arc<Queue>)>>,
    /// Waiters in all queues. Calls that free cost read it without the lock.
    waiting: AtomicUsize,
}

/// The waiters for one key.
#[derive(Debug, Default)]
struct Queue {
    /// Held by the head of the queue. tokio grants it in first-in, first-out order.
    head: tokio::sync::Mutex<()>,
    /// Wakes the head when cost was freed by something other than time.
    freed: Notify,
}

/// A position in a queue. Dropping it leaves the queue.
struct Waiter<'l> {
    queues: &'l Queues,
    key: KeyId,
    queue: Arc<Queue>,
}

impl Queues {
    pub(crate) fn of(most: MaxWaiting) -> Self {
        Self { most, ..Self::default() }
    }

    fn enter(&self, key: KeyId) -> Result<Waiter<'_>, Cause> {
        let mut queues = self.lock();
        if self.waiting.load(Ordering::Relaxed) >= self.most.in_all {
            return Err(Cause::Full { most: self.most.in_all, of: "in total" });
        }
        let before = queues.get(&key).map_or(0, |(waiting, _)| *waiting);
        if before >= self.most.per_key {
            return Err(Cause::Full { most: self.most.per_key, of: "for the key" });
        }
        let (waiting, queue) = queues.entry(key).or_default();
        *waiting += 1;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Ok(Waiter { queues: self, key, queue: Arc::clone(queue) })
    }

    /// Cost of this key was freed.
    pub(crate) fn wake(&self, key: impl FnOnce() -> KeyId) {
        if self.waiting.load(Ordering::SeqCst) > 0
            && let Some((_, queue)) = self.lock().get(&key())
        {
            queue.freed.notify_waiters();
        }
    }

    /// Cost of any key may have been freed.
    pub(crate) fn wake_all(&self) {
        self.lock().values().for_each(|(_, queue)| queue.freed.notify_waiters());
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<KeyId, (usize, Arc<Queue>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some((waiting, _)) = queues.get_mut(&self.key) {
            *waiting -= 1;
            if *waiting == 0 {
                queues.remove(&self.key);
            }
        }
        self.queues.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

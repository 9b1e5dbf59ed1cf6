//! Queues: first in, first out, one for each key with waiters.
//!
//! Only the head of a queue asks and sleeps until its cost fits. So a small cost never overtakes a
//! large one, and any number of waiters for one key costs one timer. Dropping the future leaves the
//! queue from any position.

use std::collections::HashMap;
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};

use super::{Cause, MaxWaiting, NotAcquired};
use crate::time::instant;

/// A waiter, and what it waits for.
pub(crate) trait Asker: Sync {
    /// Identifies a queue.
    type Key: Copy + Eq + Hash + Send + Sync;
    /// The result that a caller waits for.
    type Answer: Send;

    fn queues(&self) -> &WaitQueues<Self::Key>;

    /// The queue to join before asking, from this one or from none. It has to come to an end: no
    /// queue may be returned again before [`ask`](Self::ask) was called.
    fn queue_before(&self, current: Option<Self::Key>) -> Option<Self::Key>;

    /// Asks once, and takes what is asked for if it fits.
    fn ask(&self) -> impl Future<Output = AskOutcome<Self::Answer, Self::Key>> + Send;
}

/// The answer to an [`Asker`].
pub(crate) enum AskOutcome<A, K> {
    Allowed(A),
    Denied(Denial<K>),
    /// It can never fit.
    Never(NotAcquired),
}

/// A denial, and what to wait for.
pub(crate) struct Denial<K> {
    /// The queue to wait in.
    pub(crate) key: K,
    /// When it fits.
    pub(crate) wait: Duration,
    /// Whether it may fit earlier, because others hold what they may give back.
    pub(crate) is_held: bool,
    /// When to ask again at the latest, if something that this process does not notice may make
    /// room.
    pub(crate) ask_again: Option<Duration>,
}

/// An upper bound on deadlines: 100 years. Longer durations could overflow the instant.
const MAX_DEADLINE: Duration = Duration::from_secs(100 * 366 * 86_400);

/// Waits until the asker gets what it asks for. It is in one queue at a time, that of the key that
/// denied it last. If another key denies it at the head of a queue, it moves to the end of that
/// key's queue, so it never blocks those behind it.
pub(crate) async fn wait<A: Asker>(asker: &A, within: Duration) -> Result<A::Answer, NotAcquired> {
    let deadline = instant() + within.min(MAX_DEADLINE);
    let late =
        |held: Option<_>| NotAcquired(Cause::Late { within, retry_after: held, is_held: held.is_some() });
    let mut next = asker.queue_before(None);
    loop {
        let waiter = next.map(|key| asker.queues().enter(key)).transpose().map_err(NotAcquired)?;
        let _head = match &waiter {
            Some(waiter) => {
                Some(timeout_at(deadline, waiter.queue.head.lock()).await.map_err(|_| late(None))?)
            }
            None => None,
        };
        let current = waiter.as_ref().map(|waiter| waiter.key);
        next = loop {
            // Enabled before asking, so that no notification after the answer is missed.
            let mut freed = pin!(waiter.as_ref().map(|waiter| waiter.queue.freed.notified()));
            if let Some(freed) = freed.as_mut().as_pin_mut() {
                freed.enable();
            }
            let before = asker.queue_before(current);
            if before.is_some() {
                break before;
            }
            let Denial { key, wait, is_held, ask_again } = match asker.ask().await {
                AskOutcome::Allowed(answer) => return Ok(answer),
                AskOutcome::Never(never) => return Err(never),
                AskOutcome::Denied(denial) => denial,
            };
            let left = deadline.saturating_duration_since(instant());
            if left.is_zero() || wait > left && !is_held {
                return Err(NotAcquired(Cause::Late { within, retry_after: Some(wait), is_held }));
            }
            let Some(freed) = freed.as_pin_mut().filter(|_| current == Some(key)) else { break Some(key) };
            // Retries after whichever ends first.
            let _ = timeout(ask_again.map_or(wait, |again| again.min(wait)).min(left), freed).await;
            if instant() > deadline {
                return Err(late(is_held.then_some(wait)));
            }
        };
    }
}

/// The queues of a limiter or gate.
#[derive(Debug)]
pub(crate) struct WaitQueues<K> {
    most: MaxWaiting,
    queues: Mutex<HashMap<K, (usize, Arc<Queue>)>>,
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
struct Waiter<'l, K: Copy + Eq + Hash> {
    queues: &'l WaitQueues<K>,
    key: K,
    queue: Arc<Queue>,
}

impl<K> Default for WaitQueues<K> {
    fn default() -> Self {
        Self::of(MaxWaiting::default())
    }
}

impl<K> WaitQueues<K> {
    pub(crate) fn of(most: MaxWaiting) -> Self {
        Self { most, queues: Mutex::default(), waiting: AtomicUsize::new(0) }
    }

    /// How many wait, in all queues.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, (usize, Arc<Queue>)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cost of any key may have been freed.
    pub(crate) fn wake_all(&self) {
        self.wake_where(|_| true);
    }

    /// Cost of these keys may have been freed. Takes time in proportion to all queues.
    pub(crate) fn wake_where(&self, is_freed: impl Fn(&K) -> bool) {
        let queues = self.lock();
        let freed = queues.iter().filter(|(key, _)| is_freed(key));
        freed.for_each(|(_, (_, queue))| queue.freed.notify_waiters());
    }
}

impl<K: Copy + Eq + Hash> WaitQueues<K> {
    fn enter(&self, key: K) -> Result<Waiter<'_, K>, Cause> {
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

    /// Whether this key has waiters.
    pub(crate) fn has(&self, key: K) -> bool {
        self.lock().contains_key(&key)
    }

    /// Cost of this key was freed.
    pub(crate) fn wake(&self, key: impl FnOnce() -> K) {
        if self.waiting() > 0
            && let Some((_, queue)) = self.lock().get(&key())
        {
            queue.freed.notify_waiters();
        }
    }
}

impl<K: Copy + Eq + Hash> Drop for Waiter<'_, K> {
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

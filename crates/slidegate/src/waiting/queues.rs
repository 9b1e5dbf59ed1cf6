//! Queues: first in, first out, one for each key with waiters.
//!
//! Only the head of a queue asks. Then it sleeps until its cost fits, and whoever follows it begins with the sleep: an
//! admission says when the next cost is freed, so a turn takes one call of a shared store. A small cost never overtakes
//! a large one, and any number of waiters for one key costs one timer. Dropping the future leaves the queue from any
//! position.
//!
//! A queue knows when its head gets its turn, and so the earliest time at which one who comes now can: who has not as
//! much time is denied at once.

use std::collections::HashMap;
use std::fmt;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::watch::{OnFreed, Watch};
use super::{Cause, MaxWaiting};
use crate::time::{instant, jitter};

/// A waiter, and what it waits for.
pub(crate) trait Asker: Sync {
    /// Identifies a queue.
    type Key: Copy + Eq + Hash + Send + Sync;
    /// The result that a caller waits for.
    type Answer: Send;

    fn queues(&self) -> &WaitQueues<Self::Key>;

    /// The queue to join before asking, from this one or from none. It has to come to an end: no
    /// queue may be returned again before [`ask`](Self::ask) was called.
    fn queue_before(&self, current: Option<Self::Key>) -> Option<Place<Self::Key>>;

    /// Asks once, from this queue, and takes what is asked for if it fits.
    fn ask(
        &self,
        current: Option<Self::Key>,
    ) -> impl Future<Output = (Self::Answer, AskOutcome<Self::Key>)> + Send;

    /// Watches for cost of the key that other processes free. By default there are none.
    fn watch(&self, key: Self::Key, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        let _ = (key, on_freed);
        None
    }
}

/// What came of a question.
pub(crate) enum AskOutcome<K> {
    /// It is admitted. The queue's next turn, if the queue is that of a key which has nothing left.
    Allowed(Option<Turn>),
    Denied(Denial<K>),
    /// It can never fit.
    Never(Cause),
}

/// A place in the queue of a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<K> {
    pub(crate) key: K,
    /// The cost as a share of the limit of one window.
    pub(crate) share: f64,
    /// The longest wait from the first question on, if the policy has its own.
    pub(crate) within: Option<Duration>,
}

/// A denial, and what to wait for.
pub(crate) struct Denial<K> {
    /// The queue to wait in.
    pub(crate) place: Place<K>,
    /// When it fits.
    pub(crate) turn: Turn,
}

/// When the head of a queue gets its turn, and how fast those behind it can follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) wait: Duration,
    /// The wait is an upper bound: others hold what they may give back.
    pub(crate) is_held: bool,
    /// A window admits the limit once.
    pub(crate) window: Duration,
    /// How long it takes until as much as the limit is freed. Zero if that happens at once.
    pub(crate) frees_limit_in: Duration,
    /// Cost is freed evenly, as by a token bucket, and not all of a window's at once.
    pub(crate) is_even: bool,
    /// What fits then, as a share of the limit of one window. `None`: something.
    pub(crate) share: Option<f64>,
    /// When to ask again at the latest, if something that this process does not notice may make room.
    pub(crate) ask_again: Option<Duration>,
}

/// Why there was no turn.
#[derive(Debug)]
pub struct Refused<A, K> {
    pub(crate) cause: Cause,
    /// The last denial, unless it waited behind others all the time.
    pub answer: Option<A>,
    /// The queue that was waited in.
    pub(crate) queue: Option<K>,
}

impl<A, K> Refused<A, K> {
    /// There is no time left.
    #[must_use]
    pub fn late() -> Self {
        let cause = Cause::Late { within: Duration::ZERO, retry_after: None, is_held: false };
        Self { cause, answer: None, queue: None }
    }

    /// If there was no turn in time: the cause is that as many wait as may.
    #[must_use]
    pub fn without_place(self, most: usize) -> Self {
        match self.cause {
            Cause::Late { retry_after, .. } => {
                let cause = Cause::Full { most, of: "for the client", retry_after };
                Self { cause, answer: None, ..self }
            }
            Cause::Never { .. } | Cause::NeverOfGate(_) | Cause::Full { .. } => self,
        }
    }

    /// Whether as many wait as may.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.cause.is_full()
    }
}

/// An upper bound on deadlines: 100 years. Longer durations could overflow the instant.
const MAX_DEADLINE: Duration = Duration::from_secs(100 * 366 * 86_400);
/// When the head of a queue asks again after its first denial, if others hold cost in a shared store: what they gave back
/// before they knew that it waits has not been announced. Random, so that heads do not ask in step.
const ASK_AFTER_WATCHING: (Duration, Duration) = (Duration::from_millis(25), Duration::from_millis(75));
/// What sums of shares may be wrong by.
const ROUNDING: f64 = 1e-9;

/// Waits until the asker gets what it asks for. It is in one queue at a time, that of the key that
/// denied it last. If another key denies it at the head of a queue, it moves to the end of that
/// key's queue, so it never blocks those behind it.
pub(crate) async fn wait<A: Asker>(
    asker: &A,
    within: Duration,
) -> Result<A::Answer, Refused<A::Answer, A::Key>> {
    let begun = instant();
    let longest = begun + within.min(MAX_DEADLINE);
    let until = |place: &Place<A::Key>| place.within.map_or(longest, |own| longest.min(begun + own));
    let mut next = asker.queue_before(None);
    // The turn in the last denial, and when its key is asked again: asking in that key's queue before is no use.
    let mut denial_turn = None;
    loop {
        let Some(place) = next else {
            // Nobody waits: asking needs no queue.
            match asker.ask(None).await {
                (answer, AskOutcome::Allowed(_)) => return Ok(answer),
                (answer, AskOutcome::Never(cause)) => {
                    return Err(Refused { cause, answer: Some(answer), queue: None });
                }
                (answer, AskOutcome::Denied(denial)) => {
                    let left = until(&denial.place).saturating_duration_since(instant());
                    if let Some(cause) = denial.turn.is_late(within, left) {
                        return Err(Refused { cause, answer: Some(answer), queue: Some(denial.place.key) });
                    }
                    denial_turn = denial.turn.not_before().map(|at| (at, denial.turn));
                    next = Some(denial.place);
                    continue;
                }
            }
        };
        let deadline = until(&place);
        let refused = |cause| Refused { cause, answer: None, queue: Some(place.key) };
        let turn = denial_turn.map(|(_, turn)| turn);
        let waiter = asker.queues().enter(place, (within, deadline), turn).map_err(refused)?;
        let queue = &waiter.queue;
        let Some(_head) = waiter.until_head(deadline).await else {
            return Err(refused(waiter.late(within)));
        };
        queue.watch.get_or_init(|| {
            let queue = Arc::downgrade(queue);
            asker.watch(place.key, Arc::new(move || queue.upgrade().iter().for_each(|queue| queue.free())))
        });
        queue.sleep_until_turn(denial_turn.take().map(|(at, _)| at), deadline).await;
        let mut denials = 0;
        next = loop {
            // Enabled before asking, so that no notification after the answer is missed.
            let mut freed = pin!(queue.freed.notified());
            freed.as_mut().enable();
            let before = asker.queue_before(Some(place.key));
            if before.is_some() {
                break before;
            }
            let frees = queue.frees();
            let (answer, Denial { place: denied, turn }) = match asker.ask(Some(place.key)).await {
                (answer, AskOutcome::Allowed(next)) => {
                    queue.set(next.map(|next| queue.after_others(next, place.share)), frees);
                    return Ok(answer);
                }
                (answer, AskOutcome::Never(cause)) => {
                    return Err(Refused { cause, answer: Some(answer), queue: Some(place.key) });
                }
                (answer, AskOutcome::Denied(denial)) => (answer, denial),
            };
            let now = instant();
            let deadline = until(&denied);
            if let Some(cause) = turn.is_late(within, deadline.saturating_duration_since(now)) {
                return Err(Refused { cause, answer: Some(answer), queue: Some(denied.key) });
            }
            if denied.key != place.key {
                denial_turn = turn.not_before().map(|at| (at, turn));
                break Some(denied);
            }
            queue.set(Some(turn), frees);
            drop(answer);
            let ask_again = match (turn.is_held && denials == 0, queue.is_watched()) {
                (true, true) => Some(jitter(ASK_AFTER_WATCHING.0, ASK_AFTER_WATCHING.1)),
                _ => turn.ask_again,
            };
            denials += 1;
            let wait = turn.wait + queue.after_denials(denials);
            // Asks again after whichever ends first.
            let _ = timeout_at(deadline.min(now + ask_again.unwrap_or(wait).min(wait)), freed).await;
            if instant() > deadline {
                return Err(refused(waiter.late(within)));
            }
        };
    }
}

impl Turn {
    /// When a store that others share is asked again. Asked at once instead, several of its nodes might send a request
    /// from one key to the other. `None`: a store in memory, whose cost may have been freed before the queue was joined,
    /// and keys with holds, which must be watched first.
    fn not_before(&self) -> Option<Instant> {
        let ask_again = self.ask_again.filter(|_| !self.is_held)?;
        Some(instant() + self.wait.min(ask_again))
    }

    /// Why there is no turn in the time that is left.
    fn is_late(&self, within: Duration, left: Duration) -> Option<Cause> {
        let Self { wait, is_held, .. } = *self;
        let is_late = left.is_zero() || wait > left && !is_held;
        is_late.then_some(Cause::Late { within, retry_after: Some(wait), is_held })
    }
}

/// The queues of a limiter or gate.
#[derive(Debug)]
pub(crate) struct WaitQueues<K> {
    most: MaxWaiting,
    queues: Mutex<HashMap<K, Waiters>>,
    /// Waiters in all queues. Calls that free cost read it without the lock.
    waiting: AtomicUsize,
}

/// A queue, and how many wait there.
#[derive(Debug, Default)]
struct Waiters {
    waiting: usize,
    /// The sum of their shares.
    share: f64,
    /// The sum of the shares of those who have left.
    left: f64,
    queue: Arc<Queue>,
}

/// The waiters for one key.
#[derive(Default)]
struct Queue {
    /// Held by the head of the queue. tokio grants it in first-in, first-out order.
    head: tokio::sync::Mutex<()>,
    /// Wakes the head when cost was freed by something other than time.
    freed: Notify,
    /// Wakes those who joined the queue while its next turn was not known.
    known: Notify,
    schedule: Mutex<Schedule>,
    /// Watches a shared store while anybody waits.
    watch: OnceLock<Option<Box<dyn Watch>>>,
}

/// What the last answer said about the next turn.
#[derive(Debug, Default)]
struct Schedule {
    next: Option<(Instant, Turn)>,
    /// How often cost was freed.
    frees: u64,
}

impl Queue {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frees(&self) -> u64 {
        self.schedule().frees
    }

    /// Cost was freed: whoever is the head asks now.
    fn free(&self) {
        let mut schedule = self.schedule();
        schedule.next = None;
        schedule.frees += 1;
        drop(schedule);
        self.freed.notify_waiters();
    }

    /// Sets the next turn as an answer says it, unless cost was freed since the question.
    fn set(&self, turn: Option<Turn>, frees: u64) {
        let mut schedule = self.schedule();
        if schedule.frees == frees {
            schedule.next = turn.map(|turn| (instant() + turn.wait.min(MAX_DEADLINE), turn));
            self.known.notify_waiters();
        }
    }

    fn is_watched(&self) -> bool {
        self.watch.get().is_some_and(Option::is_some)
    }

    /// What the head of a queue of a shared store waits beyond its turn, after as many denials in a row: others were there
    /// before, and asking in step with them would take as many calls again.
    fn after_denials(&self, denials: u32) -> Duration {
        if denials < 3 || !self.is_watched() {
            return Duration::ZERO;
        }
        jitter(Duration::ZERO, Duration::from_millis(1 << denials.min(6)))
    }

    /// The next turn of this process where others take turns too: each leaves as much time to each of them as frees the
    /// cost of one turn. So each asks once per turn, instead of all at the same time.
    fn after_others(&self, next: Turn, share: f64) -> Turn {
        let others = self.watch.get().and_then(Option::as_ref).map_or(0, |watch| watch.others());
        #[allow(clippy::cast_precision_loss)] // at most some thousand
        let turns = share * others as f64;
        Turn { wait: next.wait + next.frees_limit_in.mul_f64(turns.clamp(0.0, 1.0)), ..next }
    }

    /// Sleeps until the turn that the last answer in this queue gave, or else until `not_before`, or until cost is freed.
    async fn sleep_until_turn(&self, not_before: Option<Instant>, deadline: Instant) {
        let mut freed = pin!(self.freed.notified());
        freed.as_mut().enable();
        let next = self.schedule().next.map(|(at, turn)| match turn.ask_again {
            Some(ask_again) => at.min(instant() + ask_again),
            None => at,
        });
        let Some(at) = next.or(not_before) else { return };
        if at > instant() {
            let _ = timeout_at(at.min(deadline), freed).await;
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("schedule", &self.schedule).finish_non_exhaustive()
    }
}

impl Waiters {
    /// The earliest turn of whoever has this share, behind `ahead` in all. `None` if that is unknown.
    fn earliest(&self, ahead: f64, share: f64) -> Option<Instant> {
        let (at, turn) = self.queue.schedule().next.filter(|(_, turn)| !turn.is_held)?;
        let windows = if turn.is_even {
            ahead + share - turn.share.unwrap_or(share)
        } else {
            // The head begins a window, which admits the limit once, and so does each that follows.
            (ahead + share - ROUNDING).ceil() - 1.0
        };
        let after = Duration::try_from_secs_f64(turn.window.as_secs_f64() * windows.max(0.0));
        Some(at + after.map_or(MAX_DEADLINE, |after| after.min(MAX_DEADLINE)))
    }
}

/// A position in a queue. Dropping it leaves the queue.
struct Waiter<'l, K: Copy + Eq + Hash> {
    queues: &'l WaitQueues<K>,
    place: Place<K>,
    /// The sum of the shares of all who joined before.
    before: f64,
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

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Waiters>> {
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
        freed.for_each(|(_, waiters)| waiters.queue.free());
    }
}

impl<K: Copy + Eq + Hash> WaitQueues<K> {
    /// Joins a queue, unless as many wait as may, or it is certain that there is no turn before the deadline. `turn` is from
    /// the denial before: if the queue is empty, callers behind are denied by it until the head has asked again.
    fn enter(
        &self,
        place: Place<K>,
        (within, deadline): (Duration, Instant),
        turn: Option<Turn>,
    ) -> Result<Waiter<'_, K>, Cause> {
        let mut queues = self.lock();
        let before = queues.get(&place.key);
        let earliest = before.and_then(|waiters| waiters.earliest(waiters.share, place.share));
        let retry_after = earliest.map(|at| at.saturating_duration_since(instant()));
        if self.waiting.load(Ordering::Relaxed) >= self.most.in_all {
            return Err(Cause::Full { most: self.most.in_all, of: "in total", retry_after });
        }
        if before.is_some_and(|waiters| waiters.waiting >= self.most.per_key) {
            return Err(Cause::Full { most: self.most.per_key, of: "for the key", retry_after });
        }
        if earliest.is_some_and(|at| at > deadline) {
            return Err(Cause::Late { within, retry_after, is_held: false });
        }
        let waiters = queues.entry(place.key).or_default();
        if waiters.waiting == 0 {
            waiters.queue.set(turn, 0);
        }
        let before = waiters.share + waiters.left;
        waiters.waiting += 1;
        waiters.share += place.share;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Ok(Waiter { queues: self, place, before, queue: Arc::clone(&waiters.queue) })
    }

    /// Whether this key has waiters.
    pub(crate) fn has(&self, key: K) -> bool {
        self.lock().contains_key(&key)
    }

    /// Cost of this key was freed.
    pub(crate) fn wake(&self, key: impl FnOnce() -> K) {
        if self.waiting() > 0
            && let Some(waiters) = self.lock().get(&key())
        {
            waiters.queue.free();
        }
    }
}

impl<K: Copy + Eq + Hash> Waiter<'_, K> {
    /// Waits until it is the head of the queue: `None` after the deadline, or as soon as it is certain that there is no turn
    /// before it. Who joins while the queue's next turn is not known looks when the head gets it, once: waking all waiters
    /// at each turn would take time in proportion to the square of their number.
    async fn until_head(&self, deadline: Instant) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let mut known = pin!(self.queue.known.notified());
        known.as_mut().enable();
        let mut head = pin!(timeout_at(deadline, self.queue.head.lock()));
        if self.earliest().is_none() {
            let either = poll_fn(|context| match head.as_mut().poll(context) {
                Poll::Ready(head) => Poll::Ready(Some(head)),
                Poll::Pending => known.as_mut().poll(context).map(|()| None),
            });
            if let Some(head) = either.await {
                return head.ok();
            }
            if self.earliest().is_some_and(|at| at > deadline) {
                return None;
            }
        }
        head.await.ok()
    }

    /// Its earliest turn, if that is known. Whoever has left counts as one who was before it.
    fn earliest(&self) -> Option<Instant> {
        let queues = self.queues.lock();
        let waiters = queues.get(&self.place.key)?;
        waiters.earliest((self.before - waiters.left).max(0.0), self.place.share)
    }

    /// No turn came in time. The wait is that of this place in the queue as it is now, or a longer one.
    fn late(&self, within: Duration) -> Cause {
        let Place { key, share, .. } = self.place;
        let queues = self.queues.lock();
        let earliest = queues.get(&key).and_then(|waiters| waiters.earliest(waiters.share - share, share));
        let retry_after = earliest.map(|at| at.saturating_duration_since(instant()));
        Cause::Late { within, retry_after, is_held: false }
    }
}

impl<K: Copy + Eq + Hash> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        if let Some(waiters) = queues.get_mut(&self.place.key) {
            waiters.waiting -= 1;
            waiters.share -= self.place.share;
            waiters.left += self.place.share;
            if waiters.waiting == 0 {
                queues.remove(&self.place.key);
            }
        }
        self.queues.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    /// How long a question takes.
    const REPLY: Duration = Duration::from_millis(10);

    /// Asks a store that takes its time and admits one a day.
    struct SlowStore(WaitQueues<u8>);

    impl Asker for SlowStore {
        type Key = u8;
        type Answer = ();

        fn queues(&self) -> &WaitQueues<u8> {
            &self.0
        }

        fn queue_before(&self, current: Option<u8>) -> Option<Place<u8>> {
            (current.is_none() && self.0.has(0)).then_some(PLACE)
        }

        async fn ask(&self, _: Option<u8>) -> ((), AskOutcome<u8>) {
            tokio::time::sleep(REPLY).await;
            let (share, ask_again) = (None, None);
            let turn = Turn {
                wait: DAY,
                is_held: false,
                window: DAY,
                frees_limit_in: DAY,
                is_even: false,
                share,
                ask_again,
            };
            ((), AskOutcome::Denied(Denial { place: PLACE, turn }))
        }
    }

    const PLACE: Place<u8> = Place { key: 0, share: 1.0, within: None };

    /// Who joins while the head's question is on its way learns from its answer that there is no turn in time. Behind it, one
    /// has the time and waits.
    #[tokio::test(start_paused = true)]
    async fn who_joins_before_the_turn_is_known_and_has_no_time_is_denied_when_it_is() {
        let store = Arc::new(SlowStore(WaitQueues::default()));
        let begun = instant();
        let ask = |days: u32| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { wait(&*store, DAY * days).await.map_err(|refused| refused.cause) })
        };
        let head = ask(30);
        tokio::time::sleep(REPLY * 3 / 2).await;
        assert_eq!(store.0.waiting(), 1);
        let (early, patient) = (ask(2), ask(4));
        let Err(Cause::Late { retry_after, .. }) = early.await.unwrap() else { panic!("not late") };
        assert_eq!((instant() - begun, store.0.waiting()), (REPLY * 2, 2));
        assert!(retry_after.unwrap() > DAY);
        assert!(!head.is_finished() && !patient.is_finished());
        head.abort();
        patient.abort();
    }
}

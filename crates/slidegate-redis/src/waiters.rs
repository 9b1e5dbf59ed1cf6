//! Keys that callers wait for, in this process and in others with the same store.
//!
//! An instance with waiters announces their keys, and whoever frees cost of such a key says so: no waiter polls. How many
//! instances wait for a key is also how many take turns there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slidegate::store::{OnFreed, Watch};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// How often an instance announces the keys that it waits for.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// An announcement of another instance is answered by an own one, unless that was sent within this time. So one that begins
/// to wait knows at once how many wait already.
const ANSWER: Duration = Duration::from_secs(1);
/// How long new keys are gathered for one message.
const GATHER: Duration = Duration::from_millis(2);
/// How long an instance has no waiter for a key before it says that it has left.
const LEAVE: Duration = Duration::from_millis(200);
/// How long an announcement counts: longer than two intervals, so that one may be lost.
const COUNTS_FOR: Duration = Duration::from_secs(12);
/// Maximum keys: of more, waiters ask again after seconds, as those of every key do.
const MAX_KEYS: usize = 4096;
/// Maximum instances that are counted for a key.
const MAX_INSTANCES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Waiters {
    keys: Mutex<HashMap<Vec<u8>, Waited>>,
    next: AtomicU64,
    /// Notified when a key is to be announced.
    pub(crate) is_new: Notify,
    pub(crate) is_announcing: AtomicBool,
}

/// A key that somebody waits for.
#[derive(Default)]
struct Waited {
    /// Wakes the waiters of this process.
    local: Option<(u64, OnFreed)>,
    announced: Option<Instant>,
    /// Since when nobody waits any more, until that is said to the others who wait.
    left: Option<Instant>,
    /// Other instances, and when they said last that they wait.
    others: Vec<(String, Instant)>,
}

impl Waited {
    fn others(&self, now: Instant) -> usize {
        self.others.iter().filter(|(_, at)| now - *at < COUNTS_FOR).count()
    }
}

impl fmt::Debug for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waited").field("others", &self.others).finish_non_exhaustive()
    }
}

impl Waiters {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Waited>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the key with this name.
    pub(crate) fn watch(self: &Arc<Self>, name: Vec<u8>, on_freed: OnFreed) -> Option<Box<dyn Watch>> {
        let mut keys = self.lock();
        if keys.len() >= MAX_KEYS && !keys.contains_key(&name) {
            return None;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let waited = keys.entry(name.clone()).or_default();
        (waited.local, waited.left) = (Some((id, on_freed)), None);
        if waited.announced.is_none_or(|at| at.elapsed() >= ANNOUNCE) {
            self.is_new.notify_one();
        }
        Some(Box::new(WatchedKey { waiters: Arc::clone(self), name, id }))
    }

    /// Another instance waits for these keys.
    pub(crate) fn note(&self, instance: &str, names: Vec<Vec<u8>>) {
        let (mut keys, now) = (self.lock(), Instant::now());
        for name in names {
            if keys.len() >= MAX_KEYS && !keys.contains_key(&name) {
                continue;
            }
            let Waited { local, announced, others, .. } = keys.entry(name).or_default();
            others.retain(|(other, at)| other != instance && now - *at < COUNTS_FOR);
            if others.len() < MAX_INSTANCES {
                others.push((instance.to_owned(), now));
            }
            if local.is_some() && announced.is_none_or(|at| now - at >= ANSWER) {
                *announced = None;
                self.is_new.notify_one();
            }
        }
    }

    /// Another instance does not wait for these keys any more.
    pub(crate) fn note_left(&self, instance: &str, names: &[Vec<u8>]) {
        let mut keys = self.lock();
        for name in names {
            if let Some(waited) = keys.get_mut(name) {
                waited.others.retain(|(other, _)| other != instance);
            }
        }
    }

    /// Wakes the waiters of this process for these keys, or for all.
    pub(crate) fn freed(&self, names: Option<&[Vec<u8>]>) {
        let keys = self.lock();
        let woken: Vec<OnFreed> = match names {
            Some(names) => names.iter().filter_map(|name| keys.get(name)).filter_map(Waited::wake).collect(),
            None => keys.values().filter_map(Waited::wake).collect(),
        };
        drop(keys);
        woken.iter().for_each(|wake| wake());
    }

    /// Those of these keys that other instances wait for.
    pub(crate) fn of_others(&self, names: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
        let (keys, now) = (self.lock(), Instant::now());
        let waits = |name: &Vec<u8>| keys.get(name).is_some_and(|waited| waited.others(now) > 0);
        names.into_iter().filter(waits).collect()
    }

    /// What to announce now. `None`: nobody has waited for a while.
    fn due(&self) -> Option<Announcements> {
        let (mut keys, now) = (self.lock(), Instant::now());
        let is_recent = |at: &Instant| now - *at < COUNTS_FOR;
        keys.retain(|_, waited| {
            waited.local.is_some()
                || waited.others(now) > 0
                || waited.announced.as_ref().is_some_and(is_recent)
        });
        if keys.is_empty() {
            self.is_announcing.store(false, Ordering::SeqCst);
            return None;
        }
        let mut due = Announcements::default();
        for (name, waited) in keys.iter_mut() {
            if waited.local.is_some() && waited.announced.is_none_or(|at| now - at >= ANNOUNCE) {
                waited.announced = Some(now);
                due.waits.push(name.clone());
            } else if waited.left.is_some_and(|at| now - at >= LEAVE) {
                (waited.announced, waited.left) = (None, None);
                due.leaves.push(name.clone());
            }
        }
        Some(due)
    }

    /// What to announce, when there is something. `None`: nobody has waited for a while.
    pub(crate) async fn next(&self) -> Option<Announcements> {
        let leaves = self.lock().values().any(|waited| waited.left.is_some());
        let _ = timeout(if leaves { LEAVE } else { ANNOUNCE }, self.is_new.notified()).await;
        sleep(GATHER).await;
        self.due()
    }
}

impl Waited {
    fn wake(&self) -> Option<OnFreed> {
        self.local.as_ref().map(|(_, wake)| Arc::clone(wake))
    }
}

/// The keys that this process waits for, and those that it does not wait for any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Announcements {
    pub(crate) waits: Vec<Vec<u8>>,
    pub(crate) leaves: Vec<Vec<u8>>,
}

/// A key that callers of this process wait for.
struct WatchedKey {
    waiters: Arc<Waiters>,
    name: Vec<u8>,
    id: u64,
}

impl Watch for WatchedKey {
    fn others(&self) -> usize {
        let keys = self.waiters.lock();
        keys.get(&self.name).map_or(0, |waited| waited.others(Instant::now()))
    }
}

impl Drop for WatchedKey {
    fn drop(&mut self) {
        if let Some(waited) = self.waiters.lock().get_mut(&self.name)
            && waited.local.as_ref().is_some_and(|(id, _)| *id == self.id)
        {
            waited.local = None;
            if waited.announced.is_some() && waited.others(Instant::now()) > 0 {
                waited.left = Some(Instant::now());
                self.waiters.is_new.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn counted(woken: &Arc<AtomicUsize>) -> OnFreed {
        let woken = Arc::clone(woken);
        Arc::new(move || {
            woken.fetch_add(1, Ordering::SeqCst);
        })
    }

    /// A message about another key, or after the last waiter has left, must wake nobody.
    #[tokio::test(start_paused = true)]
    async fn only_the_waiters_of_a_freed_key_are_woken() {
        let (waiters, woken) = (Arc::new(Waiters::default()), Arc::new(AtomicUsize::new(0)));
        let watch = waiters.watch(b"a".to_vec(), counted(&woken)).unwrap();
        let of = |name: &[u8]| Some(vec![name.to_vec()]);
        waiters.freed(of(b"b").as_deref());
        assert_eq!(woken.load(Ordering::SeqCst), 0);
        waiters.freed(of(b"a").as_deref());
        waiters.freed(None);
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        // The next queue of the key begins before the one before has ended.
        let next = waiters.watch(b"a".to_vec(), counted(&woken)).unwrap();
        drop(watch);
        waiters.freed(of(b"a").as_deref());
        assert_eq!(woken.load(Ordering::SeqCst), 3);
        drop(next);
        waiters.freed(None);
        assert_eq!(woken.load(Ordering::SeqCst), 3);
    }

    /// An instance that is gone must not slow down those that are left, and one that waits must not be forgotten.
    #[tokio::test(start_paused = true)]
    async fn keys_are_announced_while_they_are_waited_for_and_forgotten_afterwards() {
        let waiters = Arc::new(Waiters::default());
        let name = || vec![b"a".to_vec()];
        let waits = || Announcements { waits: name(), ..Announcements::default() };
        let watch = waiters.watch(b"a".to_vec(), Arc::new(|| ())).unwrap();
        assert_eq!(waiters.next().await, Some(waits()));
        let begun = Instant::now();
        assert_eq!(waiters.next().await, Some(waits()));
        assert!(begun.elapsed() >= ANNOUNCE);
        waiters.note("other", name());
        waiters.note("third", name());
        waiters.note("other", name());
        assert_eq!((watch.others(), waiters.of_others(name())), (2, name()));
        sleep(COUNTS_FOR).await;
        assert_eq!((watch.others(), waiters.of_others(name())), (0, Vec::new()));
        drop(watch);
        while waiters.next().await.is_some_and(|due| due == Announcements::default()) {}
        assert!(waiters.lock().is_empty());
    }

    /// An instance that has left would be left its time, and a limit of one half of its turns.
    #[tokio::test(start_paused = true)]
    async fn who_leaves_says_so_unless_the_next_one_comes_soon() {
        let waiters = Arc::new(Waiters::default());
        let name = || vec![b"a".to_vec()];
        let watch = |waiters: &Arc<Waiters>| waiters.watch(b"a".to_vec(), Arc::new(|| ())).unwrap();
        let first = watch(&waiters);
        assert_eq!(waiters.next().await.unwrap().waits, name());
        waiters.note("other", name());
        drop(first);
        let second = watch(&waiters);
        sleep(2 * LEAVE).await;
        assert_eq!(waiters.next().await, Some(Announcements::default()), "it still waits");
        drop(second);
        let left = async {
            loop {
                let next = waiters.next().await.unwrap();
                if next != Announcements::default() {
                    return next;
                }
            }
        };
        assert_eq!(left.await, Announcements { leaves: name(), ..Announcements::default() });
        let third = watch(&waiters);
        assert_eq!(third.others(), 1);
        waiters.note_left("other", &name());
        assert_eq!(third.others(), 0);
    }

    /// An instance that begins to wait must not take the turns of those that wait already, and answers must come to an end.
    #[tokio::test(start_paused = true)]
    async fn an_announcement_is_answered_once() {
        let waiters = Arc::new(Waiters::default());
        let name = || vec![b"a".to_vec()];
        let waits = || Announcements { waits: name(), ..Announcements::default() };
        let _watch = waiters.watch(b"a".to_vec(), Arc::new(|| ())).unwrap();
        assert_eq!(waiters.next().await, Some(waits()));
        sleep(ANSWER).await;
        let begun = Instant::now();
        waiters.note("other", name());
        assert_eq!(waiters.next().await, Some(waits()));
        assert!(begun.elapsed() < ANSWER, "it is answered at once");
        // The answer of the other one, which began to wait with its announcement.
        waiters.note("other", name());
        assert_eq!(waiters.next().await, Some(waits()));
        assert!(begun.elapsed() >= ANNOUNCE, "an answer is not answered");
    }

    /// Other instances say what they like: no message may fill the memory of those that read it.
    #[tokio::test(start_paused = true)]
    async fn what_others_announce_is_bounded() {
        let waiters = Arc::new(Waiters::default());
        for number in 0..3 * MAX_KEYS {
            waiters.note("other", vec![number.to_string().into_bytes()]);
        }
        for number in 0..3 * MAX_INSTANCES {
            waiters.note(&number.to_string(), vec![b"0".to_vec()]);
        }
        let keys = waiters.lock();
        assert_eq!((keys.len(), keys[b"0".as_slice()].others.len()), (MAX_KEYS, MAX_INSTANCES));
    }
}

//! Notifications: a key reached a share of its limit that its policy names. Sent at most once per key, share
//! and window.
//!
//! A decision that crosses a threshold is recognized by its numbers. The rest is queued: with a shared store,
//! the store decides which instance was first, and no decision waits for that.
//!
//! Clients choose keys, so policies [share](slidegate::shares) the table and the queue. If the table is full,
//! the policy with the most entries forgets its earliest key. A forgotten key is reported again only if it
//! falls below its threshold and crosses it again in the same window.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::shares::Queues;
use slidegate::{Algorithm, Amount, PolicyDecision, clock::Timestamp};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::webhook::Webhook;
use crate::caller::Protocol;
use crate::shares::{Bound, Share};

/// Maximum keys that crossed a threshold in their window: about 4 MB.
const MAX_REMEMBERED: usize = 65_536;
/// Maximum crossings that wait to be claimed and reported.
const QUEUE: usize = 1024;

/// A decision that took a key from below a threshold to it or above.
#[derive(Debug)]
pub(crate) struct Crossing {
    pub(crate) policy: String,
    /// The unredacted key.
    pub(crate) key: String,
    /// The share of the limit, in percent.
    pub(crate) threshold: u8,
    pub(crate) at: Timestamp,
    pub(crate) limit: u64,
    pub(crate) window: Duration,
    pub(crate) algorithm: &'static str,
    pub(crate) used: Amount,
    pub(crate) held: Amount,
    pub(crate) cost: Amount,
    pub(crate) source: &'static str,
    pub(crate) is_enforced: bool,
    pub(crate) protocol: Protocol,
    /// How long the same crossing is not reported again.
    pub(crate) quiet: Duration,
}

/// Why a notification is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drop {
    /// Too many crossings of its policy wait to be reported.
    QueueFull,
    /// The shared store did not say which instance was first.
    StoreUnavailable,
    /// No receiver took a total for as long as it is kept.
    Undelivered,
}

impl Drop {
    pub(crate) const ALL: [Self; 3] = [Self::QueueFull, Self::StoreUnavailable, Self::Undelivered];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::StoreUnavailable => "store_unavailable",
            Self::Undelivered => "undelivered",
        }
    }
}

/// Detects crossed thresholds and queues their notifications.
#[derive(Debug)]
pub(crate) struct Notifications {
    table: Mutex<NotifiedTable>,
    hasher: RandomState,
    queued: Bound<String>,
    sender: Sender<QueuedCrossing>,
    /// Taken by the reporting task.
    receiver: Mutex<Option<Receiver<QueuedCrossing>>>,
    dropped: [AtomicU64; Drop::ALL.len()],
    pub(crate) webhook: Option<Arc<Webhook>>,
}

/// A queued crossing, with its share of the queue.
type QueuedCrossing = (Crossing, Share<String>);

/// Keys and thresholds already notified, and until when.
#[derive(Debug)]
struct NotifiedTable {
    until: HashMap<u64, Timestamp>,
    /// The same entries by policy, in the order they were added.
    of_policies: Queues<String, (u64, Timestamp)>,
    /// When expired entries of all policies may next be removed to make room.
    next_sweep: Timestamp,
}

impl Default for NotifiedTable {
    fn default() -> Self {
        let of_policies = Queues::new(MAX_REMEMBERED);
        Self { until: HashMap::new(), of_policies, next_sweep: Timestamp::EPOCH }
    }
}

impl NotifiedTable {
    /// Remembers a crossing and returns whether it is the first in its window. Takes constant time, plus the
    /// removal of expired entries, each removed once.
    fn is_first(&mut self, hash: u64, crossing: &Crossing) -> bool {
        let now = crossing.at;
        if self.until.get(&hash).is_some_and(|until| *until > now) {
            return false;
        }
        let policy = &crossing.policy;
        self.forget_over(policy, now);
        if self.of_policies.shares().lacking(policy, 1) > 0 {
            self.make_room(now);
        }
        let until = now + crossing.quiet;
        self.until.insert(hash, until);
        self.of_policies.push(policy, (hash, until));
        true
    }

    /// Removes expired entries, at most once per second; otherwise the policy with the most entries forgets
    /// its earliest key.
    #[cold]
    fn make_room(&mut self, now: Timestamp) {
        let taken = self.of_policies.shares().taken();
        if now >= self.next_sweep {
            self.next_sweep = now + Duration::from_secs(1);
            let policies: Vec<_> = self.of_policies.owners().cloned().collect();
            policies.iter().for_each(|policy| self.forget_over(policy, now));
        }
        if self.of_policies.shares().taken() == taken
            && let Some(earliest) = self.of_policies.pop_largest()
        {
            self.forget(earliest);
        }
    }

    /// Removes a policy's expired entries, up to the first live one.
    fn forget_over(&mut self, policy: &String, now: Timestamp) {
        while let Some(over) = self.of_policies.pop_if(policy, |(_, until)| *until <= now) {
            self.forget(over);
        }
    }

    /// Removes an entry that was taken off its queue.
    fn forget(&mut self, (hash, until): (u64, Timestamp)) {
        // A key that was added again has a later end.
        if self.until.get(&hash) == Some(&until) {
            self.until.remove(&hash);
        }
    }
}

impl Crossing {
    fn of(one: &PolicyDecision<'_>, threshold: u8, key: String, protocol: Protocol) -> Self {
        let quota = one.quota();
        // A fixed window ends for all keys at once; the other windows slide.
        let quiet = if quota.algorithm() == Algorithm::FixedWindow {
            one.decision().reset_after()
        } else {
            quota.window()
        };
        Self {
            policy: one.policy().name().to_owned(),
            key,
            threshold,
            at: one.decision().at(),
            limit: one.decision().limit(),
            window: quota.window(),
            algorithm: quota.algorithm().name(),
            used: one.decision().amounts().used,
            held: one.decision().amounts().held,
            cost: one.decision().amounts().cost,
            source: one.decision().source().name(),
            is_enforced: one.policy().options().enforced,
            protocol,
            quiet,
        }
    }

    /// The claim in the shared store: the first instance to make it reports the crossing.
    pub(crate) fn claim(&self) -> Vec<u8> {
        // Policy names contain no zero byte.
        format!("notify\0{}\0{}\0{}", self.policy, self.threshold, self.key).into_bytes()
    }
}

impl Notifications {
    pub(crate) fn new(webhook: Option<Arc<Webhook>>) -> Self {
        let (sender, receiver) = channel(QUEUE);
        Self {
            table: Mutex::default(),
            hasher: RandomState::new(),
            queued: Bound::new(QUEUE),
            sender,
            receiver: Mutex::new(Some(receiver)),
            dropped: Default::default(),
            webhook,
        }
    }

    /// Queues the thresholds that a decision crossed, unless already crossed in this window.
    #[cold]
    pub(crate) fn record(&self, one: &PolicyDecision<'_>, protocol: Protocol) {
        let key = one.key().to_string();
        for threshold in one.crossed() {
            self.queue(Crossing::of(one, threshold, key.clone(), protocol));
        }
    }

    fn queue(&self, crossing: Crossing) {
        // Reserved before remembering, so a crossing that is not queued can be reported later.
        let Some(place) = self.queued.take(&crossing.policy) else { return self.dropped(Drop::QueueFull) };
        if self.remember(&crossing) && self.sender.try_send((crossing, place)).is_err() {
            self.dropped(Drop::QueueFull);
        }
    }

    /// Whether this crossing is the first on this instance in its window.
    fn remember(&self, crossing: &Crossing) -> bool {
        let hash = self.hasher.hash_one((&crossing.policy, crossing.threshold, &crossing.key));
        self.table.lock().unwrap_or_else(PoisonError::into_inner).is_first(hash, crossing)
    }

    /// Counts a dropped notification.
    pub(crate) fn dropped(&self, why: Drop) {
        self.dropped[why as usize].fetch_add(1, Relaxed);
    }

    /// Notifications dropped for this reason.
    pub(crate) fn count_of(&self, why: Drop) -> u64 {
        self.dropped[why as usize].load(Relaxed)
    }

    /// The queue, for the one reporting task.
    pub(crate) fn take_queue(&self) -> Option<Receiver<QueuedCrossing>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slidegate::{Gate, Policy, PolicySet, Quota, Request, verb::Verb};

    fn crossing(key: &str, threshold: u8, at: u64) -> Crossing {
        Crossing {
            policy: "p".to_owned(),
            key: key.to_owned(),
            threshold,
            at: Timestamp::from_secs(at),
            limit: 10,
            window: Duration::from_secs(60),
            algorithm: "sliding-log",
            used: 8.into(),
            held: 0.into(),
            cost: 1.into(),
            source: "store",
            is_enforced: true,
            protocol: Protocol::Http,
            quiet: Duration::from_secs(60),
        }
    }

    /// One notification per request would be ignored; a missing one leaves the customer unprepared.
    #[test]
    fn each_key_and_threshold_is_queued_once_in_a_window() {
        let notifications = Notifications::new(None);
        let first = |key: &str, threshold, at| notifications.remember(&crossing(key, threshold, at));
        assert!(first("alice", 80, 100));
        assert!(!first("alice", 80, 159));
        assert!(first("alice", 100, 110));
        assert!(first("bob", 80, 110));
        assert!(first("alice", 80, 160), "the next window");
        assert!(!first("alice", 80, 219), "and no other in it, though the first has been forgotten");
    }

    /// Clients choose keys: a flood of them must not grow the table, and must not keep any policy from being
    /// reported until its windows end.
    #[test]
    fn a_flood_of_keys_forgets_the_earliest_of_its_own_policy_only() {
        let notifications = Notifications::new(None);
        let of = |policy: &str, key: &str, at| {
            let crossing = Crossing { policy: policy.to_owned(), ..crossing(key, 80, at) };
            notifications.remember(&crossing)
        };
        let remembered = || notifications.table.lock().unwrap().until.len();
        assert!(of("own", "early", 100) && of("other", "known", 100));
        for n in 0..2 * MAX_REMEMBERED {
            assert!(of("own", &n.to_string(), 100), "each is reported");
        }
        assert_eq!(remembered(), MAX_REMEMBERED / 2 + 1);
        assert!(!of("other", "known", 101), "what another policy remembers stays");
        for n in 0..MAX_REMEMBERED {
            assert!(of("other", &n.to_string(), 101));
        }
        assert!(remembered() <= MAX_REMEMBERED);
        assert!(of("third", "late", 101) && !of("third", "late", 102));
        let table = notifications.table.lock().unwrap();
        let of_other = table.of_policies.shares().of(&"other".to_owned());
        assert!(of_other >= MAX_REMEMBERED / 4, "{of_other} of the second flood");
        drop(table);
        for policy in ["own", "other", "third"] {
            assert!(of(policy, "next", 162));
        }
        assert_eq!(remembered(), 3, "what is over makes room");
    }

    /// A slow webhook or store must not slow decisions down.
    #[test]
    fn a_full_queue_drops_and_counts() {
        let notifications = Notifications::new(None);
        let policy = Policy::new("p", Quota::per_hour(1)).unwrap().with_scope(["user"]);
        let gate = Gate::new(PolicySet::new([policy.with_notify([100])]).unwrap());
        for n in 0..=QUEUE / 2 {
            let user = n.to_string();
            let request = Request::new().with("user", &user);
            let decisions = gate.apply_all(Verb::Check, std::slice::from_ref(&request));
            notifications.record(&decisions.iter().next().unwrap(), Protocol::Resp);
        }
        assert_eq!(notifications.count_of(Drop::QueueFull), 1);
        notifications.queue(Crossing { policy: "other".to_owned(), ..crossing("late", 80, 100) });
        assert_eq!(notifications.count_of(Drop::QueueFull), 1, "another policy has a part of its own");
        let mut queue = notifications.take_queue().unwrap();
        let (first, _) = queue.try_recv().unwrap();
        assert_eq!((first.key.as_str(), first.threshold, first.used, first.limit), ("0", 100, 1.into(), 1));
        assert!(notifications.take_queue().is_none());
    }
}

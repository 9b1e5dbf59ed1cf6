//! Notifications: a key has used a share of its limit that its policy names, at most once per key,
//! share and window.
//!
//! A decision that crosses a threshold is noticed by its numbers. What goes further is queued, because
//! with a shared store that decides which instance is the first, which no decision waits for.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use slidegate::{Algorithm, Amount, PolicyDecision, Timestamp};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::webhook::Webhook;
use crate::caller::Protocol;

/// Keys with a threshold that was crossed in their window: about two megabytes.
const MAX_REMEMBERED: usize = 65_536;
/// Crossings that wait to be claimed and reported.
const QUEUE: usize = 1024;

/// A decision that left a key at a threshold or above it, from below.
#[derive(Debug)]
pub(crate) struct Crossing {
    pub(crate) policy: String,
    /// The unredacted key.
    pub(super) key: String,
    /// The share of the limit, in percent.
    pub(super) threshold: u8,
    pub(super) at: Timestamp,
    pub(super) limit: u64,
    pub(super) window: Duration,
    pub(super) algorithm: &'static str,
    pub(super) used: Amount,
    pub(super) held: Amount,
    pub(super) cost: Amount,
    pub(super) source: &'static str,
    pub(super) is_enforced: bool,
    pub(super) protocol: Protocol,
    /// How long the same crossing is not notified again.
    pub(crate) quiet: Duration,
}

/// Why a notification is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drop {
    /// Too many keys crossed a threshold in their windows.
    TableFull,
    /// Too many wait to be reported.
    QueueFull,
    /// The shared store did not say who is the first.
    StoreUnavailable,
}

impl Drop {
    pub(super) const ALL: [Self; 3] = [Self::TableFull, Self::QueueFull, Self::StoreUnavailable];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TableFull => "table_full",
            Self::QueueFull => "queue_full",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

/// A crossed threshold, and where it is sent.
#[derive(Debug)]
pub(crate) struct Notifications {
    table: Mutex<Table>,
    hasher: RandomState,
    sender: Sender<Crossing>,
    /// Taken by the task that reports.
    receiver: Mutex<Option<Receiver<Crossing>>>,
    dropped: [AtomicU64; Drop::ALL.len()],
    pub(super) webhook: Option<Arc<Webhook>>,
}

/// Until when a key has no further notification at a threshold.
#[derive(Debug, Default)]
struct Table {
    until: HashMap<u64, Timestamp>,
    /// When entries that are over are removed again, if it is full.
    next_sweep: Timestamp,
}

impl Crossing {
    fn of(one: &PolicyDecision<'_>, threshold: u8, key: String, protocol: Protocol) -> Self {
        let quota = one.quota();
        // A fixed window ends for all keys at once; the others are about the time before now.
        let quiet =
            if quota.algorithm() == Algorithm::FixedWindow { one.reset_after() } else { quota.window() };
        Self {
            policy: one.policy().name().to_owned(),
            key,
            threshold,
            at: one.at(),
            limit: one.limit(),
            window: quota.window(),
            algorithm: quota.algorithm().name(),
            used: one.amounts().used,
            held: one.amounts().held,
            cost: one.amounts().cost,
            source: one.source().name(),
            is_enforced: one.policy().is_enforced(),
            protocol,
            quiet,
        }
    }

    /// What the first of several instances claims.
    pub(crate) fn claim(&self) -> Vec<u8> {
        // No name of a policy has a zero byte.
        format!("notify\0{}\0{}\0{}", self.policy, self.threshold, self.key).into_bytes()
    }
}

impl Notifications {
    pub(super) fn new(webhook: Option<Arc<Webhook>>) -> Self {
        let (sender, receiver) = channel(QUEUE);
        Self {
            table: Mutex::default(),
            hasher: RandomState::new(),
            sender,
            receiver: Mutex::new(Some(receiver)),
            dropped: Default::default(),
            webhook,
        }
    }

    /// Queues what a decision crossed, unless it was crossed before in its window.
    #[cold]
    pub(super) fn record(&self, one: &PolicyDecision<'_>, protocol: Protocol) {
        let key = one.key().to_string();
        for threshold in one.crossed() {
            let crossing = Crossing::of(one, threshold, key.clone(), protocol);
            match self.remember(&crossing) {
                Ok(false) => {}
                Err(full) => self.dropped(full),
                Ok(true) => {
                    if self.sender.try_send(crossing).is_err() {
                        self.dropped(Drop::QueueFull);
                    }
                }
            }
        }
    }

    /// Whether a crossing is the first of this instance in its window.
    fn remember(&self, crossing: &Crossing) -> Result<bool, Drop> {
        let hash = self.hasher.hash_one((&crossing.policy, crossing.threshold, &crossing.key));
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let now = crossing.at;
        if table.until.len() >= MAX_REMEMBERED && now >= table.next_sweep {
            table.until.retain(|_, until| *until > now);
            table.next_sweep = now + Duration::from_secs(1);
        }
        let is_full = table.until.len() >= MAX_REMEMBERED;
        match table.until.entry(hash) {
            Entry::Occupied(known) if *known.get() > now => Ok(false),
            Entry::Vacant(_) if is_full => Err(Drop::TableFull),
            entry => {
                entry.insert_entry(now + crossing.quiet);
                Ok(true)
            }
        }
    }

    /// Counts one that is not reported.
    pub(crate) fn dropped(&self, why: Drop) {
        self.dropped[why as usize].fetch_add(1, Relaxed);
    }

    /// How many were not reported for this reason.
    pub(super) fn count_of(&self, why: Drop) -> u64 {
        self.dropped[why as usize].load(Relaxed)
    }

    /// The queue, for the one task that reports.
    pub(crate) fn take_queue(&self) -> Option<Receiver<Crossing>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slidegate::{Gate, Policy, PolicySet, Quota, Request, Verb};

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
        assert_eq!(first("alice", 80, 100), Ok(true));
        assert_eq!(first("alice", 80, 159), Ok(false));
        assert_eq!(first("alice", 100, 110), Ok(true));
        assert_eq!(first("bob", 80, 110), Ok(true));
        assert_eq!(first("alice", 80, 160), Ok(true), "the next window");
    }

    /// Clients choose keys: the table of those that crossed a threshold must not grow with them.
    #[test]
    fn a_full_table_drops_and_counts_until_windows_end() {
        let notifications = Notifications::new(None);
        for n in 0..MAX_REMEMBERED {
            assert_eq!(notifications.remember(&crossing(&n.to_string(), 80, 100)), Ok(true));
        }
        assert_eq!(notifications.remember(&crossing("late", 80, 101)), Err(Drop::TableFull));
        assert_eq!(notifications.remember(&crossing("7", 80, 101)), Ok(false), "those known stay known");
        assert_eq!(notifications.table.lock().unwrap().until.len(), MAX_REMEMBERED);
        assert_eq!(notifications.remember(&crossing("late", 80, 160)), Ok(true));
        assert_eq!(notifications.table.lock().unwrap().until.len(), 1);
    }

    /// A slow webhook or store must not slow decisions down.
    #[test]
    fn a_full_queue_drops_and_counts() {
        let notifications = Notifications::new(None);
        let policy = Policy::new("p", Quota::per_hour(1)).unwrap().with_scope(["user"]);
        let gate = Gate::new(PolicySet::new([policy.with_notify([100])]).unwrap());
        for n in 0..=QUEUE {
            let user = n.to_string();
            let request = Request::new().with("user", &user);
            let decisions = gate.apply_all(Verb::Check, std::slice::from_ref(&request));
            notifications.record(&decisions.iter().next().unwrap(), Protocol::Resp);
        }
        assert_eq!(notifications.count_of(Drop::QueueFull), 1);
        let mut queue = notifications.take_queue().unwrap();
        let first = queue.try_recv().unwrap();
        assert_eq!((first.key.as_str(), first.threshold, first.used, first.limit), ("0", 100, 1.into(), 1));
        assert!(notifications.take_queue().is_none());
    }
}

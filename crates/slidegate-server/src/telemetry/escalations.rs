//! Escalation: finds the keys that are denied so often that their policy blocks them.
//!
//! A limiter of the library counts the denials, so that the counts are exact and their table is
//! bounded: in a full one, the keys that were denied least make room. What earned a block is queued,
//! because a block is a change for all instances, which no decision waits for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use slidegate::{
    DecisionSource, Gate, MemoryStore, Policy, PolicyDecision, PolicySet, Quota, Reason, Request,
};
use slidegate_config::escalate::Escalation;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::events::Event;
use crate::shares::{Bound, Share};

/// Keys whose denials are counted.
const MAX_COUNTED: usize = 65_536;
/// Bytes that the counts take at most.
const MAX_BYTES: usize = 16 << 20;
/// Blocks that wait to be stored.
const QUEUE: usize = 1024;
/// The policy of the counts, and its scope.
const COUNTS: &str = "denials";
const SCOPE: [&str; 2] = ["policy", "key"];

/// A key that was denied so often that it is to be blocked.
#[derive(Debug, Clone)]
pub(crate) struct EarnedBlock {
    pub(crate) policy: String,
    /// The unredacted key.
    pub(crate) key: String,
    /// How long its first block lasts, the next one, and so on.
    pub(crate) lengths: Arc<[Duration]>,
    /// The last of its denials. `None` if blocks are not reported.
    pub(crate) denial: Option<Event>,
}

/// Why a key is not blocked that earned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotBlocked {
    /// Too many of its policy wait to be blocked.
    QueueFull,
    /// As many keys of its policy are blocked as clients may cause.
    TooManyBlocks,
    /// The key is longer than a change may have it.
    KeyTooLong,
    /// The block could not be stored for all instances.
    NotStored,
}

impl NotBlocked {
    const ALL: [Self; 4] = [Self::QueueFull, Self::TooManyBlocks, Self::KeyTooLong, Self::NotStored];

    fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::TooManyBlocks => "too_many_blocks",
            Self::KeyTooLong => "key_too_long",
            Self::NotStored => "not_stored",
        }
    }
}

/// A block that waits, with its place in the queue.
pub(crate) type Queued = (EarnedBlock, Share<String>);

/// What a policy blocks for.
#[derive(Debug)]
struct Rule {
    after: Arc<Quota>,
    lengths: Arc<[Duration]>,
}

/// The denials of keys under policies with `escalate`.
#[derive(Debug)]
pub(crate) struct Escalations {
    /// By the names of policies.
    rules: ArcSwap<HashMap<String, Rule>>,
    counts: Gate,
    /// Policies share the queue.
    queued: Bound<String>,
    sender: Sender<Queued>,
    /// Taken by the task that blocks.
    receiver: Mutex<Option<Receiver<Queued>>>,
    blocked: AtomicU64,
    dropped: [AtomicU64; NotBlocked::ALL.len()],
}

impl Escalations {
    pub(super) fn new() -> Self {
        // A key must not be blocked for the denials of others.
        let builder = MemoryStore::builder().max_keys(MAX_COUNTED).max_bytes(MAX_BYTES);
        Self::over(builder.forget_evicted().build())
    }

    fn over(store: MemoryStore) -> Self {
        // Not used to count: each denial comes with the quota of its rule.
        let counts = Policy::new(COUNTS, Quota::per_second(1)).expect("the name is valid");
        let counts = PolicySet::new([counts.with_scope(SCOPE).only_when_named()]);
        let (sender, receiver) = channel(QUEUE);
        Self {
            rules: ArcSwap::default(),
            counts: Gate::with_memory(counts.expect("one policy is a set"), store),
            queued: Bound::new(QUEUE),
            sender,
            receiver: Mutex::new(Some(receiver)),
            blocked: AtomicU64::new(0),
            dropped: Default::default(),
        }
    }

    /// Counts by these rules from now on. Counts stay with the names of policies.
    pub(crate) fn follow(&self, escalations: &HashMap<String, Escalation>) {
        let rule = |one: &Escalation| Rule { after: Arc::new(one.after), lengths: one.blocks.clone().into() };
        let rules = escalations.iter().map(|(name, one)| (name.clone(), rule(one))).collect();
        self.rules.store(Arc::new(rules));
    }

    /// Whether a policy blocks keys.
    pub(crate) fn is_used(&self) -> bool {
        !self.rules.load().is_empty()
    }

    /// Counts a denial by an enforced policy, if the store decided it and for the policy's limit.
    /// `event` makes its event, of its key.
    pub(super) fn record(&self, one: &PolicyDecision<'_>, event: impl FnOnce(&str) -> Option<Event>) {
        let is_counted = one.reason() == Some(Reason::OverLimit)
            && matches!(one.source(), DecisionSource::Store | DecisionSource::CachedDenial);
        let rules = self.rules.load();
        let Some(rule) = rules.get(one.policy().name()).filter(|_| is_counted) else { return };
        let (policy, key) = (one.policy().name(), one.key().to_string());
        if self.count(rule, policy, &key) {
            let (denial, lengths) = (event(&key), Arc::clone(&rule.lengths));
            let earned = EarnedBlock { policy: policy.to_owned(), key, lengths, denial };
            let place = self.queued.take(&earned.policy);
            if place.is_none_or(|place| self.sender.try_send((earned, place)).is_err()) {
                self.dropped(NotBlocked::QueueFull, 1);
            }
        }
    }

    /// Whether this denial is the last that it takes. True again for as many denials later, while the
    /// key is not blocked.
    fn count(&self, rule: &Rule, policy: &str, key: &str) -> bool {
        let request = denials_of(policy, key).with_quota(Arc::clone(&rule.after));
        let decisions = self.counts.check(&request);
        decisions.iter().any(|one| one.is_allowed() && one.used() >= one.limit())
    }

    /// Forgets the denials of a key.
    pub(crate) fn forget(&self, policy: &str, key: &str) {
        self.counts.reset(&denials_of(policy, key)).expect("a memory store always resets");
    }

    /// Counts keys that were blocked.
    pub(crate) fn blocked(&self, keys: usize) {
        self.blocked.fetch_add(keys as u64, Relaxed);
    }

    /// Counts keys that are not blocked.
    pub(crate) fn dropped(&self, why: NotBlocked, keys: usize) {
        self.dropped[why as usize].fetch_add(keys as u64, Relaxed);
    }

    /// How many keys this instance blocked.
    pub(super) fn count_blocked(&self) -> u64 {
        self.blocked.load(Relaxed)
    }

    /// How many keys were not blocked, and how many counts were lost, by reason.
    pub(super) fn count_dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let lost = ("table_full", self.counts.store().stats().dropped);
        NotBlocked::ALL
            .map(|why| (why.name(), self.dropped[why as usize].load(Relaxed)))
            .into_iter()
            .chain([lost])
    }

    /// The queue, for the one task that blocks.
    pub(crate) fn take_queue(&self) -> Option<Receiver<Queued>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The request that counts a denial of a key.
fn denials_of<'r>(policy: &'r str, key: &'r str) -> Request<'r> {
    Request::new().with(SCOPE[0], policy).with(SCOPE[1], key).under(COUNTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slidegate::{ManualClock, OnStoreError, RedisOptions};

    const MINUTE: Duration = Duration::from_secs(60);

    fn counted(after: u64) -> (Escalations, Rule, ManualClock) {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(1024).forget_evicted().clock(clock.clone()).build();
        let rule = Rule { after: Arc::new(Quota::per_minute(after)), lengths: Arc::new([MINUTE]) };
        (Escalations::over(store), rule, clock)
    }

    /// Whoever is denied now and then must not be blocked, and whoever hammers must be, wherever the
    /// minutes begin.
    #[test]
    fn denials_in_any_time_of_the_window_earn_a_block() {
        let (escalations, rule, clock) = counted(3);
        let count = |seconds| {
            clock.advance(Duration::from_secs(seconds));
            escalations.count(&rule, "p", "alice")
        };
        assert_eq!([count(0), count(58), count(2), count(59)], [false; 4], "never 3 in a minute");
        assert!(count(0), "3 in 59 seconds");
        assert!(!count(0), "the block is on its way");
        assert!(!escalations.count(&rule, "q", "alice") && !escalations.count(&rule, "p", "bob"));
        // It was not blocked, as too many were.
        clock.advance(MINUTE);
        assert_eq!([count(0), count(0), count(0)], [false, false, true]);
    }

    /// While the store is away, a fallback denies what the shared limit would admit: nobody earns a
    /// block by that.
    #[tokio::test]
    async fn denials_by_fallbacks_do_not_count() {
        let (escalations, rule, _) = counted(5);
        let blocks = rule.lengths.to_vec();
        escalations.follow(&HashMap::from([("p".to_owned(), Escalation { after: *rule.after, blocks })]));
        let policy = |then| {
            let policy = Policy::new("p", Quota::per_hour(0)).unwrap().with_scope(["user"]);
            PolicySet::new([policy.with_on_store_error(then)]).unwrap()
        };
        let request = Request::new().with("user", "alice");
        for then in [OnStoreError::Local, OnStoreError::Deny] {
            let nowhere = RedisOptions::new("redis://127.0.0.1:1").unwrap();
            let gate = Gate::redis(policy(then), nowhere).unwrap();
            let decisions = gate.check_async(&request).await;
            assert!(decisions.is_denied());
            decisions.iter().for_each(|one| escalations.record(&one, |_| None));
            assert_eq!(escalations.counts.store().stats().keys, 0, "{decisions:?}");
        }
        let gate = Gate::new(policy(OnStoreError::Local));
        gate.check(&request).iter().for_each(|one| escalations.record(&one, |_| None));
        assert_eq!(escalations.counts.store().stats().keys, 1);
    }

    /// Whoever was unblocked by an operator starts afresh.
    #[test]
    fn a_forgotten_key_has_all_its_denials_again() {
        let (escalations, rule, _) = counted(2);
        let count = |key| escalations.count(&rule, "p", key);
        assert!(!count("alice") && !count("bob"));
        escalations.forget("p", "alice");
        escalations.forget("p", "nobody");
        assert!(!count("alice") && count("bob"));
        assert!(count("alice"));
    }

    /// Clients choose keys: many new ones must neither take memory nor hide one that is denied often.
    #[test]
    fn a_full_table_keeps_those_that_were_denied_often() {
        let (escalations, rule, _) = counted(4);
        assert_eq!([(); 3].map(|()| escalations.count(&rule, "p", "mallory")), [false; 3]);
        for n in 0..20_000 {
            assert!(!escalations.count(&rule, "p", &format!("invented-{n}")));
        }
        let stats = escalations.counts.store().stats();
        assert!(stats.keys <= 1024 && stats.dropped >= 18_000, "{stats:?}");
        assert_eq!(escalations.count_dropped().last(), Some(("table_full", stats.dropped)));
        assert!(escalations.count(&rule, "p", "mallory"));
    }
}

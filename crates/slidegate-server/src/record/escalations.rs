//! Escalation: finds keys that are denied so often that their policy blocks them.
//!
//! A library limiter counts the denials, so counts are exact and memory is bounded: a full table evicts the
//! keys with the fewest denials. Each policy has its own table, so one policy's keys never evict another's.
//! Earned blocks are queued: a block is a change for all instances, and no decision waits for it.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use slidegate::{Gate, MemoryStore, Policy, PolicyDecision, PolicySet, Quota, Reason, Request};
use slidegate_config::escalate::Escalation;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::events::Event;
use crate::shares::{Bound, Share};

/// Keys whose denials are counted, in all tables.
const MAX_COUNTED: usize = 65_536;
/// Maximum bytes of all tables.
const MAX_BYTES: usize = 16 << 20;
/// Maximum tables, because each needs [`MIN_MAX_BYTES`](MemoryStore::MIN_MAX_BYTES). If more policies block
/// keys, some share a table.
const MAX_TABLES: usize = MAX_BYTES / MemoryStore::MIN_MAX_BYTES;
/// Maximum blocks that wait to be stored.
const QUEUE: usize = 1024;
/// The counting policy's name and its scope.
const COUNTS: &str = "denials";
const SCOPE: [&str; 2] = ["policy", "key"];

/// A key to block, because it was denied often enough.
#[derive(Debug, Clone)]
pub(crate) struct EarnedBlock {
    pub(crate) policy: String,
    /// The unredacted key.
    pub(crate) key: String,
    /// The lengths of its first block, the next one, and so on.
    pub(crate) lengths: Arc<[Duration]>,
    /// Its last denial. `None` if blocks are not reported.
    pub(crate) denial: Option<Event>,
}

/// Why a key that earned a block is not blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotBlocked {
    /// Too many blocks of its policy wait to be stored.
    QueueFull,
    /// Its policy already has the maximum number of blocks that clients may cause.
    TooManyBlocks,
    /// The key is longer than a run-time change accepts.
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

/// A queued block, with its share of the queue.
pub(crate) type Queued = (EarnedBlock, Share<String>);

/// When a policy blocks a key.
#[derive(Debug)]
struct BlockRule {
    after: Arc<Quota>,
    lengths: Arc<[Duration]>,
    /// Index of its table.
    table: usize,
}

/// Escalation rules and the denials they count.
#[derive(Debug)]
struct Rules {
    /// By policy name.
    by_name: HashMap<String, BlockRule>,
    /// Their number is a power of two.
    tables: Arc<[Gate]>,
}

/// Denials by key of policies with `escalate`.
#[derive(Debug)]
pub(crate) struct Escalations {
    rules: ArcSwap<Rules>,
    /// Evictions from tables no longer used.
    lost: AtomicU64,
    /// Policies share the queue.
    queued: Bound<String>,
    sender: Sender<Queued>,
    /// Taken by the task that stores blocks.
    receiver: Mutex<Option<Receiver<Queued>>>,
    blocked: AtomicU64,
    dropped: [AtomicU64; NotBlocked::ALL.len()],
}

impl Escalations {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = channel(QUEUE);
        Self {
            rules: ArcSwap::from_pointee(Rules { by_name: HashMap::new(), tables: tables(1) }),
            lost: AtomicU64::new(0),
            queued: Bound::new(QUEUE),
            sender,
            receiver: Mutex::new(Some(receiver)),
            blocked: AtomicU64::new(0),
            dropped: Default::default(),
        }
    }

    /// Counts by these rules from now on. Counts are kept by policy name, unless so many policies were added
    /// or removed that the table size changes: then they restart.
    pub(crate) fn follow(&self, escalations: &HashMap<String, Escalation>) {
        let known = self.rules.load();
        let count = escalations.len().next_power_of_two().min(MAX_TABLES);
        let is_kept = count == known.tables.len();
        let tables = if is_kept { Arc::clone(&known.tables) } else { tables(count) };
        if !is_kept {
            self.lost.fetch_add(known.lost(), Relaxed);
        }
        let table_of = |name: &String| known.by_name.get(name).filter(|_| is_kept).map(|rule| rule.table);
        let mut users = vec![0; count];
        escalations.keys().filter_map(table_of).for_each(|table| users[table] += 1);
        let mut least_used = || {
            let table = (0..count).min_by_key(|table| users[*table]).unwrap_or(0);
            users[table] += 1;
            table
        };
        let mut rule = |name: &String, one: &Escalation| BlockRule {
            after: Arc::new(one.after),
            lengths: one.blocks.clone().into(),
            table: table_of(name).unwrap_or_else(&mut least_used),
        };
        let by_name = escalations.iter().map(|(name, one)| (name.clone(), rule(name, one))).collect();
        self.rules.store(Arc::new(Rules { by_name, tables }));
    }

    /// Whether any policy blocks keys.
    pub(crate) fn is_used(&self) -> bool {
        !self.rules.load().by_name.is_empty()
    }

    /// Counts a denial by an enforced policy, if the store decided it because of the policy's limit. `event`
    /// builds the denial's event for its key.
    pub(crate) fn record(&self, one: &PolicyDecision<'_>, event: impl FnOnce(&str) -> Option<Event>) {
        let is_counted =
            one.decision().reason() == Some(Reason::OverLimit) && !one.decision().source().is_fallback();
        let rules = self.rules.load();
        let Some(rule) = rules.by_name.get(one.policy().name()).filter(|_| is_counted) else { return };
        let (policy, key) = (one.policy().name(), one.key().to_string());
        if rules.count(policy, &key) {
            let (denial, lengths) = (event(&key), Arc::clone(&rule.lengths));
            let earned = EarnedBlock { policy: policy.to_owned(), key, lengths, denial };
            let place = self.queued.take(&earned.policy);
            if place.is_none_or(|place| self.sender.try_send((earned, place)).is_err()) {
                self.dropped(NotBlocked::QueueFull, 1);
            }
        }
    }

    /// Forgets the denials of a key.
    pub(crate) fn forget(&self, policy: &str, key: &str) {
        let rules = self.rules.load();
        if let Some(rule) = rules.by_name.get(policy) {
            rules.tables[rule.table].reset(&denials_of(policy, key)).expect("a memory store always resets");
        }
    }

    pub(crate) fn blocked(&self, keys: usize) {
        self.blocked.fetch_add(keys as u64, Relaxed);
    }

    pub(crate) fn dropped(&self, why: NotBlocked, keys: usize) {
        self.dropped[why as usize].fetch_add(keys as u64, Relaxed);
    }

    /// Keys that this instance blocked.
    pub(crate) fn count_blocked(&self) -> u64 {
        self.blocked.load(Relaxed)
    }

    /// Keys not blocked and counts evicted, by reason.
    pub(crate) fn count_dropped(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let lost = ("table_full", self.lost.load(Relaxed) + self.rules.load().lost());
        NotBlocked::ALL
            .map(|why| (why.name(), self.dropped[why as usize].load(Relaxed)))
            .into_iter()
            .chain([lost])
    }

    /// The queue, for the one task that stores blocks.
    pub(crate) fn take_queue(&self) -> Option<Receiver<Queued>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Rules {
    /// Counts a denial. Returns whether it earns a block; true again after as many further denials while the
    /// key is not blocked.
    fn count(&self, policy: &str, key: &str) -> bool {
        let Some(rule) = self.by_name.get(policy) else { return false };
        let request = denials_of(policy, key).with_quota(Arc::clone(&rule.after));
        let decisions = self.tables[rule.table].check(&request);
        decisions
            .iter()
            .any(|one| one.decision().is_allowed() && one.decision().used() >= one.decision().limit())
    }

    /// Evicted counts.
    fn lost(&self) -> u64 {
        self.tables.iter().map(|table| table.store().stats().dropped).sum()
    }
}

/// Splits the memory among `count` tables.
fn tables(count: usize) -> Arc<[Gate]> {
    let of = || MemoryStore::builder().max_keys(MAX_COUNTED / count).max_bytes(MAX_BYTES / count);
    // A key must not be blocked for the denials of others.
    (0..count).map(|_| table(of().forget_evicted().build())).collect()
}

fn table(store: MemoryStore) -> Gate {
    // Never used: each denial is counted with its rule's quota.
    let counts = Policy::new(COUNTS, Quota::per_second(1)).expect("the name is valid");
    let counts = PolicySet::new([counts.with_scope(SCOPE).with_only_when_named()]);
    Gate::with_memory(counts.expect("one policy is a set"), store)
}

fn denials_of<'r>(policy: &'r str, key: &'r str) -> Request<'r> {
    Request::new().with(SCOPE[0], policy).with(SCOPE[1], key).under(COUNTS)
}

#[cfg(test)]
mod tests {
    use slidegate::{OnStoreError, SharedGate, clock::ManualClock};
    use slidegate_redis::{RedisOptions, RedisStore};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn escalations(policies: &[&str], after: u64) -> Escalations {
        let (escalations, after) = (Escalations::new(), Quota::per_minute(after));
        let rule = |name: &&str| ((*name).to_owned(), Escalation { after, blocks: vec![MINUTE] });
        escalations.follow(&policies.iter().map(rule).collect());
        escalations
    }

    fn count(escalations: &Escalations, policy: &str, key: &str) -> bool {
        escalations.rules.load().count(policy, key)
    }

    fn keys(escalations: &Escalations) -> usize {
        escalations.rules.load().tables.iter().map(|table| table.store().stats().keys).sum()
    }

    /// A key that is denied now and then must not be blocked; one that hammers must be, wherever the window
    /// begins.
    #[test]
    fn denials_in_any_time_of_the_window_earn_a_block() {
        let clock = ManualClock::new();
        let rule =
            |table| BlockRule { after: Arc::new(Quota::per_minute(3)), lengths: Arc::new([MINUTE]), table };
        let store = MemoryStore::builder().forget_evicted().clock(clock.clone()).build();
        let by_name = ["p", "q"].map(|name| (name.to_owned(), rule(0))).into();
        let rules = Rules { by_name, tables: [table(store)].into() };
        let count = |seconds| {
            clock.advance(Duration::from_secs(seconds));
            rules.count("p", "alice")
        };
        assert_eq!([count(0), count(58), count(2), count(59)], [false; 4], "never 3 in a minute");
        assert!(count(0), "3 in 59 seconds");
        assert!(!count(0), "the block is on its way");
        assert!(!rules.count("q", "alice") && !rules.count("p", "bob"));
        // It was not blocked, because too many keys were.
        clock.advance(MINUTE);
        assert_eq!([count(0), count(0), count(0)], [false, false, true]);
    }

    /// While the store is down, a fallback denies what the shared limit would admit: that must not earn a
    /// block.
    #[tokio::test]
    async fn denials_by_fallbacks_do_not_count() {
        let escalations = escalations(&["p"], 5);
        let policy = |then| {
            let policy = Policy::new("p", Quota::per_hour(0)).unwrap().with_scope(["user"]);
            PolicySet::new([policy.with_on_store_error(then)]).unwrap()
        };
        let request = Request::new().with("user", "alice");
        for then in [OnStoreError::Local, OnStoreError::Deny] {
            let nowhere = RedisOptions::new("redis://127.0.0.1:1").unwrap();
            let gate = SharedGate::new(policy(then), RedisStore::new(nowhere).unwrap()).unwrap();
            let decisions = gate.check(&request).await;
            assert!(decisions.is_denied());
            decisions.iter().for_each(|one| escalations.record(&one, |_| None));
            assert_eq!(keys(&escalations), 0, "{decisions:?}");
        }
        let gate = Gate::new(policy(OnStoreError::Local));
        gate.check(&request).iter().for_each(|one| escalations.record(&one, |_| None));
        assert_eq!(keys(&escalations), 1);
    }

    /// Clients choose keys: many new ones must neither take memory nor evict a key that is denied often, nor
    /// one of another policy.
    #[test]
    fn a_full_table_keeps_those_that_were_denied_often_and_those_of_other_policies() {
        for (attacked, victim, times) in [("p", "p", 1), ("p", "q", 3)] {
            let escalations = escalations(&["p", "q"], 4);
            let known = ["alice", "bob", "mallory"];
            known.iter().for_each(|key| (0..3).for_each(|_| assert!(!count(&escalations, victim, key))));
            for n in 0..3 * MAX_COUNTED / 2 {
                let invented = format!("invented-{n}");
                (0..times).for_each(|_| assert!(!count(&escalations, attacked, &invented)));
            }
            let lost = escalations.count_dropped().last().unwrap();
            assert!(keys(&escalations) <= MAX_COUNTED / 2 + 3);
            assert!(lost.0 == "table_full" && lost.1 >= MAX_COUNTED as u64, "{lost:?}");
            assert!(known.iter().all(|key| count(&escalations, victim, key)), "{attacked}, {victim}");
        }
    }

    /// A reload must not give a fresh start to keys that hammer, and must count no denial twice.
    #[test]
    fn counts_stay_when_rules_change_unless_the_tables_have_another_size() {
        let escalations = escalations(&["p", "q", "r"], 2);
        let follow = |policies: &[&str]| {
            let rule = Escalation { after: Quota::per_minute(2), blocks: vec![MINUTE] };
            escalations.follow(&policies.iter().map(|name| ((*name).to_owned(), rule.clone())).collect());
        };
        assert!(["p", "q", "r"].iter().all(|policy| !count(&escalations, policy, "mallory")));
        follow(&["new", "q", "p"]);
        assert!(count(&escalations, "p", "mallory") && !count(&escalations, "new", "mallory"));
        let tables: Vec<_> = escalations.rules.load().by_name.values().map(|rule| rule.table).collect();
        assert_eq!(tables.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "each its own");
        let many: Vec<_> = (0..100).map(|n| format!("p{n}")).chain(["q".to_owned()]).collect();
        follow(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(escalations.rules.load().tables.len(), MAX_TABLES);
        assert!(!count(&escalations, "q", "mallory"));
    }
}

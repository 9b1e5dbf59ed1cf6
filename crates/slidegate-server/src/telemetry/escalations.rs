//! Escalation: finds the keys that are denied so often that their policy blocks them.
//!
//! A limiter of the library counts the denials, so that the counts are exact and their table is
//! bounded: in a full one, the keys that were denied least make room. Each policy has a table, so keys
//! of one never make room for those of another. What earned a block is queued, because a block is a
//! change for all instances, which no decision waits for.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
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

/// Keys whose denials are counted, in all tables.
const MAX_COUNTED: usize = 65_536;
/// Bytes that all tables take at most.
const MAX_BYTES: usize = 16 << 20;
/// Most tables, as none may have fewer than [`MIN_MAX_BYTES`](MemoryStore::MIN_MAX_BYTES). With more
/// policies that block, some share one.
const MAX_TABLES: usize = MAX_BYTES / MemoryStore::MIN_MAX_BYTES;
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
    /// The number of its table.
    table: usize,
}

/// What policies block for, and the denials that count.
#[derive(Debug)]
struct Rules {
    /// By the names of policies.
    by_name: HashMap<String, Rule>,
    /// A power of two.
    tables: Arc<[Gate]>,
}

/// The denials of keys under policies with `escalate`.
#[derive(Debug)]
pub(crate) struct Escalations {
    rules: ArcSwap<Rules>,
    /// What full tables lost that are no longer used.
    lost: AtomicU64,
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

    /// Counts by these rules from now on. Counts stay with the names of policies, unless so many policies
    /// were added or removed that the tables have another size: then they start again.
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
        let mut rule = |name: &String, one: &Escalation| Rule {
            after: Arc::new(one.after),
            lengths: one.blocks.clone().into(),
            table: table_of(name).unwrap_or_else(&mut least_used),
        };
        let by_name = escalations.iter().map(|(name, one)| (name.clone(), rule(name, one))).collect();
        self.rules.store(Arc::new(Rules { by_name, tables }));
    }

    /// Whether a policy blocks keys.
    pub(crate) fn is_used(&self) -> bool {
        !self.rules.load().by_name.is_empty()
    }

    /// Counts a denial by an enforced policy, if the store decided it and for the policy's limit.
    /// `event` makes its event, of its key.
    pub(super) fn record(&self, one: &PolicyDecision<'_>, event: impl FnOnce(&str) -> Option<Event>) {
        let is_counted = one.reason() == Some(Reason::OverLimit)
            && matches!(one.source(), DecisionSource::Store | DecisionSource::CachedDenial);
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
        let lost = ("table_full", self.lost.load(Relaxed) + self.rules.load().lost());
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

impl Rules {
    /// Whether this denial is the last that it takes. True again for as many denials later, while the
    /// key is not blocked.
    fn count(&self, policy: &str, key: &str) -> bool {
        let Some(rule) = self.by_name.get(policy) else { return false };
        let request = denials_of(policy, key).with_quota(Arc::clone(&rule.after));
        let decisions = self.tables[rule.table].check(&request);
        decisions.iter().any(|one| one.is_allowed() && one.used() >= one.limit())
    }

    /// Counts that made room for others.
    fn lost(&self) -> u64 {
        self.tables.iter().map(|table| table.store().stats().dropped).sum()
    }
}

/// So many tables that share what there is.
fn tables(count: usize) -> Arc<[Gate]> {
    let of = || MemoryStore::builder().max_keys(MAX_COUNTED / count).max_bytes(MAX_BYTES / count);
    // A key must not be blocked for the denials of others.
    (0..count).map(|_| table(of().forget_evicted().build())).collect()
}

fn table(store: MemoryStore) -> Gate {
    // Not used to count: each denial comes with the quota of its rule.
    let counts = Policy::new(COUNTS, Quota::per_second(1)).expect("the name is valid");
    let counts = PolicySet::new([counts.with_scope(SCOPE).only_when_named()]);
    Gate::with_memory(counts.expect("one policy is a set"), store)
}

/// The request that counts a denial of a key.
fn denials_of<'r>(policy: &'r str, key: &'r str) -> Request<'r> {
    Request::new().with(SCOPE[0], policy).with(SCOPE[1], key).under(COUNTS)
}

#[cfg(test)]
mod tests {
    use slidegate::{ManualClock, OnStoreError, SharedGate};
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

    /// Keys in all tables.
    fn keys(escalations: &Escalations) -> usize {
        escalations.rules.load().tables.iter().map(|table| table.store().stats().keys).sum()
    }

    /// Whoever is denied now and then must not be blocked, and whoever hammers must be, wherever the
    /// minutes begin.
    #[test]
    fn denials_in_any_time_of_the_window_earn_a_block() {
        let clock = ManualClock::new();
        let rule = |table| Rule { after: Arc::new(Quota::per_minute(3)), lengths: Arc::new([MINUTE]), table };
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
        // It was not blocked, as too many were.
        clock.advance(MINUTE);
        assert_eq!([count(0), count(0), count(0)], [false, false, true]);
    }

    /// While the store is away, a fallback denies what the shared limit would admit: nobody earns a
    /// block by that.
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

    /// Whoever was unblocked by an operator starts afresh.
    #[test]
    fn a_forgotten_key_has_all_its_denials_again() {
        let escalations = escalations(&["p"], 2);
        let count = |key| count(&escalations, "p", key);
        assert!(!count("alice") && !count("bob"));
        escalations.forget("p", "alice");
        escalations.forget("p", "nobody");
        assert!(!count("alice") && count("bob"));
        assert!(count("alice"));
    }

    /// Clients choose keys: many new ones must neither take memory nor hide one that is denied often; of
    /// another policy, however often they are denied themselves.
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

    /// A reload must not give those a fresh start that hammer, and nothing may be counted twice.
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

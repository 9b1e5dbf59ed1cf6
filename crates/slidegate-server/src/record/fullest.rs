//! Fullest keys: those with the most of their limit taken at their last decision, in bounded memory.
//!
//! A table per policy and thread. A fuller key takes the place of one whose usage has ended, or else of the
//! least full one. A decision on a key that cannot enter a full table only compares: no lock, hash or allocation.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use slidegate::{Decision, Key, clock::Timestamp};

use super::redaction::Redactor;

/// Keys per policy and thread, of about 100 bytes.
pub(crate) const KEYS: usize = 64;
/// Policies with fullest keys, the first of their set: 26 MB for 16 threads.
pub(super) const POLICIES: usize = 256;
/// A whole limit, in the unit of shares.
pub(crate) const WHOLE: u64 = 1_000_000;
/// Keys below 1 % of their limit are not listed.
const LEAST: u64 = WHOLE / 100;
/// From half of the limit on, every decision counts. Below, they are sampled like charges.
const EXACT_FROM: u64 = WHOLE / 2;

/// A key at its last decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FullKey {
    pub(crate) key: Arc<str>,
    /// The taken share of the limit, in millionths.
    pub(crate) share: u64,
    /// When the key is unused, if nothing more is charged.
    pub(crate) resets_at: Timestamp,
    pub(crate) last_at: Timestamp,
}

/// The fullest keys of one policy on one thread.
#[derive(Debug)]
pub(super) struct FullestKeys {
    /// At most [`KEYS`], unordered, by the hash of the key.
    table: Mutex<Vec<(u64, FullKey)>>,
    /// A key must be fuller to enter, until the first key of a full table is unused.
    above: AtomicU64,
    until_us: AtomicU64,
}

impl Default for FullestKeys {
    fn default() -> Self {
        Self { table: Mutex::default(), above: AtomicU64::new(LEAST - 1), until_us: AtomicU64::new(u64::MAX) }
    }
}

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The taken share of the limit, in millionths; 0 if it is unknown.
#[inline]
pub(super) fn share(decision: &Decision) -> u64 {
    let (limit, taken) = (decision.limit, decision.limit.saturating_sub(decision.remaining));
    match taken.checked_mul(WHOLE) {
        _ if !decision.is_counted() => 0,
        _ if limit == 0 => WHOLE,
        Some(taken) => taken / limit,
        None => taken / (limit / WHOLE),
    }
}

impl FullestKeys {
    /// Whether a key with this share may enter. `is_sampled` tells whether to take a decision below half.
    #[inline]
    pub(super) fn admits(&self, share: u64, at: Timestamp, is_sampled: impl FnOnce() -> bool) -> bool {
        let is_fuller = share > self.above.load(Relaxed)
            || share >= LEAST && at.as_micros() >= self.until_us.load(Relaxed);
        is_fuller && (share >= EXACT_FROM || is_sampled())
    }

    pub(super) fn add(&self, key: &Key<'_>, share: u64, decision: &Decision, redactor: &Redactor) {
        let (hash, at, resets_at) = (HASHER.hash_one(key), decision.at(), decision.reset_at());
        let mut table = self.lock();
        if let Some((_, known)) = table.iter_mut().find(|(known, _)| *known == hash) {
            (known.share, known.resets_at, known.last_at) = (share, resets_at, at);
        } else {
            if table.len() == KEYS {
                let strength = |one: &FullKey| (one.resets_at > at, one.share);
                let weakest = (0..KEYS).min_by_key(|index| strength(&table[*index].1)).unwrap_or(0);
                if strength(&table[weakest].1) >= (true, share) {
                    return;
                }
                table.swap_remove(weakest);
            }
            let key = redactor.cut(&key.to_string()).into();
            table.push((hash, FullKey { key, share, resets_at, last_at: at }));
        }
        if table.len() == KEYS {
            let weakest = table.iter().map(|(_, one)| one.share).min().unwrap_or(0);
            let first = table.iter().map(|(_, one)| one.resets_at.as_micros()).min().unwrap_or(0);
            self.above.store(weakest.max(LEAST - 1), Relaxed);
            self.until_us.store(first, Relaxed);
        }
    }

    pub(super) fn keys(&self) -> Vec<FullKey> {
        self.lock().iter().map(|(_, one)| one.clone()).collect()
    }

    pub(super) fn clear(&self) {
        let mut table = self.lock();
        *table = Vec::new();
        self.above.store(LEAST - 1, Relaxed);
        self.until_us.store(u64::MAX, Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, FullKey)>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each key once, as last decided, the fullest first; keys that are unused at `now` come last.
pub(crate) fn fullest_first(keys: impl IntoIterator<Item = FullKey>, now: Timestamp) -> Vec<FullKey> {
    let mut newest: HashMap<Arc<str>, FullKey> = HashMap::new();
    for one in keys {
        let known = newest.entry(Arc::clone(&one.key)).or_insert_with(|| one.clone());
        if known.last_at < one.last_at {
            *known = one;
        }
    }
    let mut keys: Vec<_> = newest.into_values().collect();
    keys.sort_by(|a, b| a.strength(now).cmp(&b.strength(now)).reverse().then_with(|| a.key.cmp(&b.key)));
    keys
}

impl FullKey {
    /// The order of keys at this time: unused ones are the weakest.
    pub(crate) fn strength(&self, now: Timestamp) -> (bool, u64) {
        (self.resets_at > now, self.share)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use slidegate::{Policy, Quota, Request};

    use super::*;

    /// A decision at this second on a key with this much of 100 taken, unused a minute later.
    fn decision(taken: u64, second: u64) -> Decision {
        let mut decision = Decision::unused(100, Timestamp::from_secs(second));
        (decision.used, decision.remaining) = (taken, 100 - taken);
        decision.waits.reset_us = 60_000_000;
        decision
    }

    /// Records decisions as the observer does, and counts those that take the lock.
    struct Recorder {
        fullest: FullestKeys,
        policy: Policy,
        redactor: Redactor,
        entered: Cell<usize>,
    }

    impl Recorder {
        fn new() -> Self {
            let policy = Policy::new("p", Quota::per_minute(100)).unwrap().with_scope(["user"]);
            let fullest = FullestKeys::default();
            Self { fullest, policy, redactor: Redactor::new(None), entered: Cell::new(0) }
        }

        fn decide(&self, user: &str, taken: u64, second: u64) {
            let decision = decision(taken, second);
            if self.fullest.admits(share(&decision), decision.at(), || true) {
                self.entered.set(self.entered.get() + 1);
                let request = Request::new().with("user", user);
                let key = self.policy.key_of(&request).unwrap();
                self.fullest.add(&key, share(&decision), &decision, &self.redactor);
            }
        }

        /// The fullest keys at this second, with their shares in percent.
        fn fullest(&self, second: u64) -> Vec<(String, u64)> {
            let now = Timestamp::from_secs(second);
            let keys = fullest_first(self.fullest.keys(), now);
            keys.iter().map(|one| (one.key.to_string(), one.share * 100 / WHOLE)).collect()
        }
    }

    /// The customer who is about to be denied must be listed, however many others use the service.
    #[test]
    fn a_key_near_its_limit_stays_listed_after_a_million_others() {
        let recorder = Recorder::new();
        recorder.decide("alice", 99, 0);
        for n in 0..1_000_000 {
            recorder.decide(&n.to_string(), 1 + n % 30, 1);
        }
        let listed = recorder.fullest(2);
        assert_eq!((listed.len(), &listed[0]), (KEYS, &("alice".to_owned(), 99)));
        assert!(listed[1..].iter().all(|(_, share)| *share == 30), "{listed:?}");
        assert!(recorder.entered.get() < 3000, "{} of a million took the lock", recorder.entered.get());
        // A key that is decided again is listed once, as it is now.
        recorder.decide("alice", 98, 3);
        assert_eq!(recorder.fullest(3)[0], ("alice".to_owned(), 98));
        assert_eq!(recorder.fullest(3).len(), KEYS);
    }

    /// Customers whose window has ended must not keep those out who are near their limit now.
    #[test]
    fn keys_that_are_unused_give_way_first() {
        let recorder = Recorder::new();
        for n in 0..KEYS {
            recorder.decide(&n.to_string(), 100, 0);
        }
        recorder.decide("early", 50, 59);
        assert!(!recorder.fullest(59).contains(&("early".to_owned(), 50)));
        recorder.decide("late", 50, 60);
        assert_eq!(recorder.fullest(60)[0], ("late".to_owned(), 50));
        assert_eq!(recorder.fullest(60).len(), KEYS);
        recorder.decide("barely", 0, 61);
        recorder.decide("later", 2, 61);
        assert_eq!(recorder.fullest(61)[1], ("later".to_owned(), 2));
    }

    /// Shares are compared across limits of every size.
    #[test]
    fn the_share_is_exact_for_the_largest_limits_and_whole_for_none() {
        let of = |limit: u64, remaining: u64| {
            let unused = Decision::unused(limit, Timestamp::EPOCH);
            share(&Decision { remaining, ..unused })
        };
        assert_eq!((of(3, 1), of(u64::MAX, u64::MAX / 2), of(0, 0)), (666_666, 500_000, WHOLE));
        let unknown =
            Decision { source: slidegate::DecisionSource::Allow, ..Decision::unused(0, Timestamp::EPOCH) };
        assert_eq!(share(&unknown), 0);
    }
}

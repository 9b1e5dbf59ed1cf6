//! What is known of each key of one policy: how full it was, and the denied ones with their text.
//!
//! The usual decision does not touch the table: a key that is in use already, and is not fuller by
//! a tenth of its limit than before, has nothing new to say. Keys are known by a keyed hash of 64
//! bits: among four million keys, two of them meet once in two million replays.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use slidegate::{Key, PolicyDecision};

use crate::timeline::{MAX_KEY_BUCKETS, Timeline};
use crate::wording::Words;

/// Keys that are counted one by one, for each policy: about 20 bytes each, so 80 to 160 MB. Past it
/// the count is a bound.
pub(crate) const MAX_COUNTED_KEYS: usize = 4_000_000;
/// Denied keys whose text and times are kept, for each policy: up to 600 bytes each. Only denials
/// of keys beyond it are not named.
pub(crate) const MAX_DENIED_KEYS: usize = 500_000;
/// A key is as full as so many tenths of its limit.
const TENTHS: u64 = 10;

/// The keys of one policy.
#[derive(Debug)]
pub(crate) struct KeyTable {
    hasher: RandomState,
    known: HashMap<u64, KeyRecord, BuildHasherDefault<IdentityHasher>>,
    denied: Vec<DeniedKey>,
    /// Denied keys, also those that are not kept.
    pub(crate) denied_keys: u64,
    /// Denials on keys beyond [`MAX_DENIED_KEYS`].
    pub(crate) denials_not_kept: u64,
}

#[derive(Debug, Clone, Copy)]
struct KeyRecord {
    /// Its position among the denied ones; [`NOT_DENIED`], or [`NOT_KEPT`].
    denied: u32,
    /// The greatest share of its limit that was used, in tenths.
    peak_tenths: u8,
}

const NOT_DENIED: u32 = u32::MAX;
const NOT_KEPT: u32 = u32::MAX - 1;

/// A key that was denied at least once.
#[derive(Debug, Clone)]
pub(crate) struct DeniedKey {
    pub(crate) text: Box<str>,
    pub(crate) denied: u64,
    pub(crate) first_us: u64,
    pub(crate) last_us: u64,
    /// Why it was denied the first time.
    pub(crate) why: Box<str>,
    pub(crate) timeline: Timeline<u32>,
}

/// How many keys reached which share of their limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UsageDistribution {
    /// Keys that were never denied, by the tenth of the limit that their peak is in; the last are
    /// those that used exactly their limit.
    pub(crate) tenths: [u64; 11],
    /// Keys that were denied.
    pub(crate) denied: u64,
}

impl Default for KeyTable {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            known: HashMap::default(),
            denied: Vec::new(),
            denied_keys: 0,
            denials_not_kept: 0,
        }
    }
}

impl KeyTable {
    /// Counts the key of a decision.
    #[inline]
    pub(crate) fn count(&mut self, decision: &PolicyDecision<'_>, words: &Words) {
        if decision.is_denied() {
            self.count_denied(decision, words);
            return;
        }
        let (used, charged) = (decision.used(), decision.cost());
        let limit = decision.limit();
        // A key with usage of its own before this request was seen before.
        if used <= charged || tenths(used, limit) > tenths(used - charged, limit) {
            let hash = hash(&self.hasher, &decision.key());
            if let Some(known) = self.record(hash) {
                known.peak_tenths = known.peak_tenths.max(tenths(used, limit));
            }
        }
    }

    fn count_denied(&mut self, decision: &PolicyDecision<'_>, words: &Words) {
        let hash = hash(&self.hasher, &decision.key());
        let kept = self.denied.len();
        let Some(known) = self.record(hash) else {
            self.denials_not_kept += 1;
            return;
        };
        known.peak_tenths = known.peak_tenths.max(tenths(decision.used(), decision.limit()));
        let is_new = known.denied == NOT_DENIED;
        if is_new {
            let room = kept < MAX_DENIED_KEYS;
            known.denied = if room { u32::try_from(kept).expect("a bounded number") } else { NOT_KEPT };
        }
        let (position, at_us) = (known.denied, decision.at().as_micros());
        self.denied_keys += u64::from(is_new);
        if position == NOT_KEPT {
            self.denials_not_kept += 1;
            return;
        }
        if is_new {
            self.denied.push(DeniedKey {
                text: words.key(decision).into(),
                denied: 0,
                first_us: at_us,
                last_us: at_us,
                why: words.why(Some(decision)).into(),
                timeline: Timeline::new(MAX_KEY_BUCKETS),
            });
        }
        let key = &mut self.denied[position as usize];
        key.denied += 1;
        key.last_us = at_us;
        *key.timeline.at(at_us) += 1;
    }

    fn record(&mut self, hash: u64) -> Option<&mut KeyRecord> {
        let is_full = self.known.len() >= MAX_COUNTED_KEYS;
        if is_full && !self.known.contains_key(&hash) {
            return None;
        }
        Some(self.known.entry(hash).or_insert(KeyRecord { denied: NOT_DENIED, peak_tenths: 0 }))
    }

    /// How many keys were seen, and whether there were more.
    pub(crate) fn keys(&self) -> (u64, bool) {
        (self.known.len() as u64, self.known.len() >= MAX_COUNTED_KEYS)
    }

    pub(crate) fn usage(&self) -> UsageDistribution {
        let mut usage = UsageDistribution::default();
        for known in self.known.values() {
            if known.denied == NOT_DENIED {
                usage.tenths[usize::from(known.peak_tenths)] += 1;
            } else {
                usage.denied += 1;
            }
        }
        usage
    }

    /// The most denied keys, most first; equal ones by their text.
    pub(crate) fn most_denied(&self, most: usize) -> Vec<&DeniedKey> {
        let mut keys: Vec<&DeniedKey> = self.denied.iter().collect();
        let order = |one: &&DeniedKey, other: &&DeniedKey| {
            other.denied.cmp(&one.denied).then_with(|| one.text.cmp(&other.text))
        };
        if keys.len() > most && most > 0 {
            keys.select_nth_unstable_by(most - 1, order);
        }
        keys.truncate(most);
        keys.sort_unstable_by(order);
        keys
    }
}

/// The share of the limit in tenths, rounded down; 10 if all of it is used.
#[inline]
fn tenths(used: u64, limit: u64) -> u8 {
    if used >= limit {
        return 10;
    }
    u8::try_from(used.saturating_mul(TENTHS) / limit).unwrap_or(10).min(9)
}

/// A hash that anyone who writes the log cannot foresee.
#[inline]
pub(crate) fn hash(hasher: &RandomState, key: &Key<'_>) -> u64 {
    hasher.hash_one(key)
}

/// The keys of these tables are hashes already.
#[derive(Debug, Default)]
pub(crate) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are hashed");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

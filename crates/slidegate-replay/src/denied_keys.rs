//! The denied keys of one policy, with their texts and times; and tables of hashes of keys.
//!
//! Where a key is in this list is noted in the store, next to its usage. Its text is made at its
//! first denial only.

use std::hash::{BuildHasher, Hasher, RandomState};

use slidegate::{Key, PolicyDecision, Timestamp};

use crate::store::keys::{KeyRecord, NOT_DENIED, NOT_KEPT};
use crate::timeline::{MAX_KEY_BUCKETS, Timeline};
use crate::wording::Words;

/// Denied keys whose text and times are kept, for each policy: up to 600 bytes each. Only denials
/// of keys beyond it are not named.
pub(crate) const MAX_DENIED_KEYS: usize = 500_000;

/// The denied keys of one policy.
#[derive(Debug, Default)]
pub(crate) struct DeniedKeys {
    keys: Vec<DeniedKey>,
    /// How many there are, also those that are not kept.
    pub(crate) count: u64,
    /// Denials on keys beyond the bounds.
    pub(crate) denials_not_kept: u64,
}

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

impl DeniedKeys {
    /// Counts a denial with its decision.
    pub(crate) fn add(&mut self, record: &mut KeyRecord, decision: &PolicyDecision<'_>, words: &Words) {
        if record.denied == NOT_DENIED && record.is_counted() {
            self.count += 1;
            record.denied = if self.keys.len() < MAX_DENIED_KEYS {
                u32::try_from(self.keys.len()).expect("a bounded number")
            } else {
                NOT_KEPT
            };
            if record.denied != NOT_KEPT {
                self.keys.push(DeniedKey {
                    text: words.key(decision).into(),
                    denied: 0,
                    first_us: decision.at().as_micros(),
                    last_us: 0,
                    why: words.why(Some(decision)).into(),
                    timeline: Timeline::new(MAX_KEY_BUCKETS),
                });
            }
        }
        self.add_again(record, decision.at());
    }

    /// Counts a further denial.
    #[inline]
    pub(crate) fn add_again(&mut self, record: &KeyRecord, now: Timestamp) {
        // Of keys that are not kept, the position is beyond all others.
        let Some(key) = self.keys.get_mut(record.denied as usize) else {
            self.denials_not_kept += 1;
            return;
        };
        let now_us = now.as_micros();
        key.denied += 1;
        key.last_us = now_us;
        *key.timeline.at(now_us) += 1;
    }

    /// The most denied keys, most first; equal ones by their text.
    pub(crate) fn most_denied(&self, most: usize) -> Vec<&DeniedKey> {
        let mut keys: Vec<&DeniedKey> = self.keys.iter().collect();
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

//! One policy's keys in a log: how full each was, and which were denied.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;
use slidegate::{Key, PolicyDecision};

use crate::live_keys::LiveKey;
use crate::timeline::{MAX_KEY_BUCKETS, Timeline};
use crate::wording::Words;

/// Maximum keys counted individually per policy: 38 to 75 bytes each, so 150 to 300 MB. Above it the count is
/// a lower bound.
pub(crate) const MAX_COUNTED_KEYS: usize = 4_000_000;
/// Maximum denied keys with text and times per policy: up to 600 bytes each. Denials of further keys are not
/// named.
pub(crate) const MAX_DENIED_KEYS: usize = 500_000;

/// A value per key, for a bounded number of keys. Keys are identified by a hash that a log's author cannot
/// predict, so their text is not copied.
#[derive(Debug, Clone)]
pub(crate) struct KeyMap<V> {
    values: HashMap<u64, V, RandomState>,
    max: usize,
}

impl<V> Default for KeyMap<V> {
    fn default() -> Self {
        Self { values: HashMap::default(), max: MAX_COUNTED_KEYS }
    }
}

impl<V: Default> KeyMap<V> {
    /// Identifies a key.
    pub(crate) fn hash(&self, key: &Key<'_>) -> u64 {
        self.values.hasher().hash_one(key)
    }

    /// The value of the key with this hash, added if missing; `None` if it is new and there are too many.
    pub(crate) fn at(&mut self, hash: u64) -> Option<&mut V> {
        if self.is_full() { self.values.get_mut(&hash) } else { Some(self.values.entry(hash).or_default()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there may have been more keys.
    pub(crate) fn is_full(&self) -> bool {
        self.values.len() >= self.max
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.values.values()
    }
}

/// The keys of one policy.
#[derive(Debug, Default)]
pub(crate) struct SeenKeys {
    pub(crate) keys: KeyMap<SeenKey>,
    /// Different keys that were denied.
    pub(crate) denied: u64,
    /// Denied keys with a text.
    named: usize,
    /// Denials on keys beyond the bounds.
    pub(crate) denials_not_kept: u64,
}

/// Statistics of a key.
#[derive(Debug, Default)]
pub(crate) struct SeenKey {
    /// The highest used share of its limit, in tenths.
    peak_tenths: u8,
    is_denied: bool,
    pub(crate) live: LiveKey,
    named: Option<Box<DeniedKey>>,
}

/// A key that was denied at least once.
#[derive(Debug)]
pub(crate) struct DeniedKey {
    pub(crate) text: Box<str>,
    pub(crate) denied: u64,
    pub(crate) first_us: u64,
    pub(crate) last_us: u64,
    /// Why it was first denied.
    pub(crate) why: Box<str>,
    pub(crate) timeline: Timeline<u32>,
}

impl SeenKeys {
    /// Counts a decision on the key with this hash, and returns the key; `None` if the key is not tracked.
    pub(crate) fn count(
        &mut self,
        hash: u64,
        decision: &PolicyDecision<'_>,
        words: &Words,
    ) -> Option<&mut SeenKey> {
        let decided = decision.decision();
        let Some(key) = self.keys.at(hash) else {
            self.denials_not_kept += u64::from(decided.is_denied());
            return None;
        };
        key.peak_tenths = key.peak_tenths.max(tenths(decided.used(), decided.limit()));
        if decided.is_allowed() {
            return Some(key);
        }
        let at_us = decided.at().as_micros();
        if !key.is_denied {
            key.is_denied = true;
            self.denied += 1;
            if self.named < MAX_DENIED_KEYS {
                self.named += 1;
                key.named = Some(Box::new(DeniedKey {
                    text: words.key(decision).into(),
                    denied: 0,
                    first_us: at_us,
                    last_us: at_us,
                    why: words.why(Some(decision)).into(),
                    timeline: Timeline::new(MAX_KEY_BUCKETS),
                }));
            }
        }
        match &mut key.named {
            Some(named) => {
                named.denied += 1;
                named.last_us = at_us;
                *named.timeline.at(at_us) += 1;
            }
            None => self.denials_not_kept += 1,
        }
        Some(key)
    }

    /// Number of never-denied keys by the tenth of the limit that their usage peaked in; the last are those
    /// that used all of it.
    pub(crate) fn allowed_by_tenth(&self) -> [u64; 11] {
        let mut tenths = [0; 11];
        for key in self.keys.values().filter(|key| !key.is_denied) {
            tenths[usize::from(key.peak_tenths)] += 1;
        }
        tenths
    }

    /// The most denied keys, most first; ties sorted by text.
    pub(crate) fn most_denied(&self, most: usize) -> Vec<&DeniedKey> {
        let mut keys: Vec<&DeniedKey> = self.keys.values().filter_map(|key| key.named.as_deref()).collect();
        keys.sort_unstable_by(|one, other| {
            other.denied.cmp(&one.denied).then_with(|| one.text.cmp(&other.text))
        });
        keys.truncate(most);
        keys
    }
}

/// A share of a limit, in tenths; any usage of a limit of 0 is all of it.
fn tenths(used: u64, limit: u64) -> u8 {
    let share = u128::from(used) * 10 / u128::from(limit.max(1));
    if limit == 0 && used > 0 { 10 } else { u8::try_from(share.min(10)).unwrap_or(10) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use slidegate::{Gate, Policy, PolicySet, Quota, Request};

    use super::*;
    use crate::wording::PlainWording;

    /// A scan has more keys than memory: those beyond the bound are neither counted nor named, those before
    /// it still are.
    #[test]
    fn keys_beyond_the_bound_are_not_kept() {
        let policy = Policy::new("per-ip", Quota::per_minute(1)).unwrap().with_scope(["ip"]);
        let gate = Gate::new(PolicySet::new([policy]).unwrap());
        let words = Words(Arc::new(PlainWording));
        let mut seen = SeenKeys { keys: KeyMap { max: 2, ..KeyMap::default() }, ..SeenKeys::default() };
        for client in ["a", "b", "c", "c", "a", "c", "b", "a"] {
            let request = Request::new().with("ip", client);
            for decision in gate.check(&request).iter() {
                seen.count(seen.keys.hash(&decision.key()), &decision, &words);
            }
        }
        assert_eq!(
            (seen.keys.len(), seen.keys.is_full(), seen.denied, seen.denials_not_kept),
            (2, true, 2, 2)
        );
        let named: Vec<_> = seen.most_denied(9).iter().map(|key| (&*key.text, key.denied)).collect();
        assert_eq!(named, [("a", 2), ("b", 1)]);
        assert_eq!(seen.allowed_by_tenth(), [0; 11]);
    }

    /// The report shows how close keys came to their limit: using exactly all of it is a separate tenth.
    #[test]
    fn usage_is_a_share_of_the_limit_in_tenths() {
        for (used, limit, expected) in [
            (0, 10, 0),
            (1, 10, 1),
            (9, 10, 9),
            (10, 10, 10),
            (25, 10, 10),
            (99, 100, 9),
            (1, 100, 0),
            (1, 3, 3),
            (0, 0, 0),
            (1, 0, 10),
            (u64::MAX, u64::MAX, 10),
            (u64::MAX - 1, u64::MAX, 9),
        ] {
            assert_eq!(tenths(used, limit), expected, "{used} of {limit}");
        }
    }
}

//! The number of concurrent keys over all policies, and their bytes.
//!
//! A key exists for two windows and five seconds after its last charge: the longest that Redis keeps one
//! (docs/redis-layout.md).

use std::collections::BTreeMap;

use slidegate::{PolicyDecision, Quota};

use crate::key_size::key_bytes;

const MARGIN_US: u128 = 5_000_000;
/// Steps per window in which keys are removed: at most one step late.
const STEPS: u128 = 512;

/// The keys that exist now, and the maxima so far.
#[derive(Debug, Default)]
pub(crate) struct LiveKeys {
    /// Existing keys, by the second of their removal.
    ends: BTreeMap<u32, KeySum>,
    now: KeySum,
    /// The maximum of each figure, independently.
    pub(crate) most: KeySum,
}

/// Keys and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct KeySum {
    pub(crate) keys: u64,
    pub(crate) memory: u64,
    pub(crate) redis: u64,
}

/// The current size of a key and the time of its removal.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LiveKey {
    /// The second of its removal; 0 if it was never charged.
    end: u32,
    memory: u32,
    redis: u32,
}

impl LiveKeys {
    /// Counts a decision on a key of a policy with this quota, if something was charged.
    pub(crate) fn count(&mut self, key: &mut LiveKey, quota: &Quota, decision: &PolicyDecision<'_>) {
        if decision.decision().cost() == 0 {
            return;
        }
        let policy = decision.policy();
        let cost = policy.options().counts.count(decision.asked()).max(1);
        let charges = policy.options().counts.count(decision.decision().amounts().used).div_ceil(cost);
        let at_us = decision.decision().at().as_micros().into();
        self.charge(key, quota, at_us, key_bytes(quota, charges, cost));
    }

    fn charge(&mut self, key: &mut LiveKey, quota: &Quota, at_us: u128, bytes: [u64; 2]) {
        let second = |us: u128| u32::try_from(us.div_ceil(1_000_000)).unwrap_or(u32::MAX);
        while let Some(first) = self.ends.first_entry().filter(|first| *first.key() <= second(at_us)) {
            self.now.subtract(first.remove());
        }
        let window = quota.window().as_micros();
        // Rounded to a part of the window, so the number of ends is bounded for logs of any length.
        let step = u32::try_from(window / 1_000_000 / STEPS).unwrap_or(u32::MAX).max(1);
        let end = second(at_us + 2 * window + MARGIN_US).div_ceil(step).saturating_mul(step);
        let [memory, redis] = bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let mut charged = LiveKey { end, memory, redis };
        if let Some(at_end) = self.ends.get_mut(&key.end) {
            at_end.subtract(key.sum());
            self.now.subtract(key.sum());
            // Allocated memory stays allocated.
            charged.memory = memory.max(key.memory);
            charged.redis = redis.max(key.redis);
        }
        *key = charged;
        self.ends.entry(end).or_default().add(key.sum());
        self.now.add(key.sum());
        let KeySum { keys, memory, redis } = self.now;
        self.most = KeySum {
            keys: keys.max(self.most.keys),
            memory: memory.max(self.most.memory),
            redis: redis.max(self.most.redis),
        };
    }
}

impl LiveKey {
    fn sum(self) -> KeySum {
        KeySum { keys: 1, memory: self.memory.into(), redis: self.redis.into() }
    }
}

impl KeySum {
    fn add(&mut self, other: Self) {
        self.keys += other.keys;
        self.memory += other.memory;
        self.redis += other.redis;
    }

    fn subtract(&mut self, other: Self) {
        self.keys -= other.keys;
        self.memory -= other.memory;
        self.redis -= other.redis;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maxima after charges: each a key's number, a second and the key's bytes.
    fn most(charges: &[(usize, u64, u64)]) -> (u64, u64, u64) {
        let (mut live, mut keys) = (LiveKeys::default(), [LiveKey::default(); 9]);
        for (key, second, bytes) in charges {
            let at_us = u128::from(1_795_256_132 + second) * 1_000_000;
            live.charge(&mut keys[*key], &Quota::per_minute(10), at_us, [*bytes, 2 * bytes]);
        }
        (live.most.keys, live.most.memory, live.most.redis)
    }

    /// A log of a month must not take memory for each second.
    #[test]
    fn ends_are_bounded_however_long_the_log_is() {
        let quota = Quota::new(10, std::time::Duration::from_secs(30 * 86_400)).unwrap();
        let (mut live, mut key) = (LiveKeys::default(), LiveKey::default());
        for second in 0..100_000 {
            live.charge(&mut key, &quota, 1_795_256_132_000_000 + second * 60_000_000, [10, 20]);
            key = LiveKey::default();
        }
        assert!(live.ends.len() <= 1100, "{}", live.ends.len());
        assert!((86_400..87_000).contains(&live.most.keys), "{:?}", live.most);
    }

    /// Memory is needed for keys that exist together, not for all that ever came.
    #[test]
    fn keys_count_for_two_windows_and_five_seconds_after_their_last_charge() {
        for (charges, expected) in [
            (&[(1, 0, 10), (2, 124, 10)][..], (2, 20, 40)),
            (&[(1, 0, 10), (2, 125, 10)], (1, 10, 20)),
            // A recurring key counts once, with its largest size.
            (&[(1, 0, 10), (1, 100, 70), (1, 200, 30), (2, 300, 5)], (2, 75, 150)),
            // It starts again after it was gone.
            (&[(1, 0, 70), (1, 125, 30), (2, 126, 5)], (2, 70, 140)),
        ] {
            assert_eq!(most(charges), expected, "{charges:?}");
        }
    }
}

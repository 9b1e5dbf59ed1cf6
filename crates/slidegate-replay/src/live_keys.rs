//! The number of concurrent keys over all policies, and their bytes.
//!
//! A key exists for two windows and five seconds after its last charge: the longest that Redis keeps one
//! (docs/redis-layout.md).

use std::collections::VecDeque;
use std::ops::{Add, Sub};

use slidegate::{PolicyDecision, Quota};

use crate::key_size::KeySizes;

const MARGIN_US: u64 = 5_000_000;
/// Steps per window in which keys are removed: at most one step late.
const STEPS: u64 = 512;

/// The keys that exist now, and the maxima so far.
#[derive(Debug)]
pub(crate) struct LiveKeys {
    /// In the order of the policies.
    policies: Vec<PolicyKeys>,
    now: KeySum,
    /// The maximum of each figure, independently.
    pub(crate) most: KeySum,
}

/// The existing keys of one policy.
#[derive(Debug)]
struct PolicyKeys {
    sizes: KeySizes,
    /// How long a key exists after a charge.
    lasts_us: u64,
    /// Seconds between removals: a part of the window, so that they are few for logs of any length.
    step: u32,
    /// The keys by the step of their removal, from `first` on.
    ends: VecDeque<KeySum>,
    first: u32,
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
    /// The step of its removal; 0 if it was never charged.
    end: u32,
    memory: u32,
    redis: u32,
}

impl LiveKeys {
    /// Starts without keys; `quotas` are those of keys without their own, by policy.
    pub(crate) fn new(quotas: impl IntoIterator<Item = Quota>) -> Self {
        let policies = quotas.into_iter().map(PolicyKeys::new).collect();
        Self { policies, now: KeySum::default(), most: KeySum::default() }
    }

    /// Counts a decision on a key, if something was charged.
    pub(crate) fn count(&mut self, key: &mut LiveKey, decision: &PolicyDecision<'_>) {
        let (policy, decided) = (decision.position(), decision.decision());
        if decided.cost() == 0 {
            return;
        }
        let counts = &decision.policy().options().counts;
        let cost = counts.count(decision.asked()).max(1);
        let charges = counts.count(decided.amounts().used).div_ceil(cost);
        let bytes = self.policies[policy].sizes.bytes(charges, cost);
        self.charge(key, policy, decided.at().as_micros(), bytes);
    }

    /// Times do not decrease.
    fn charge(&mut self, key: &mut LiveKey, policy: usize, at_us: u64, bytes: [u64; 2]) {
        let now = second(at_us);
        for policy in &mut self.policies {
            while policy.first.saturating_mul(policy.step) <= now
                && let Some(removed) = policy.ends.pop_front()
            {
                self.now = self.now.with(removed, Sub::sub);
                policy.first = policy.first.saturating_add(1);
            }
        }
        let policy = &mut self.policies[policy];
        let [memory, redis] = bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let end = second(at_us.saturating_add(policy.lasts_us)).div_ceil(policy.step);
        let mut charged = LiveKey { end, memory, redis };
        if let Some(at_end) = policy.ends.get_mut(key.end.wrapping_sub(policy.first) as usize) {
            *at_end = at_end.with(key.sum(), Sub::sub);
            self.now = self.now.with(key.sum(), Sub::sub);
            // Allocated memory stays allocated.
            charged.memory = memory.max(key.memory);
            charged.redis = redis.max(key.redis);
        }
        *key = charged;
        if policy.ends.is_empty() {
            policy.first = end;
        }
        let place = (end - policy.first) as usize;
        if place >= policy.ends.len() {
            policy.ends.resize(place + 1, KeySum::default());
        }
        policy.ends[place] = policy.ends[place].with(key.sum(), Add::add);
        self.now = self.now.with(key.sum(), Add::add);
        self.most = self.most.with(self.now, Ord::max);
    }
}

/// A time in seconds, rounded up.
fn second(at_us: u64) -> u32 {
    u32::try_from(at_us.div_ceil(1_000_000)).unwrap_or(u32::MAX)
}

impl PolicyKeys {
    fn new(quota: Quota) -> Self {
        let window_us = quota.window_us();
        Self {
            lasts_us: 2 * window_us + MARGIN_US,
            step: u32::try_from(window_us / 1_000_000 / STEPS).unwrap_or(u32::MAX).max(1),
            ends: VecDeque::new(),
            first: 0,
            sizes: KeySizes::new(quota),
        }
    }
}

impl LiveKey {
    fn sum(self) -> KeySum {
        KeySum { keys: 1, memory: self.memory.into(), redis: self.redis.into() }
    }
}

impl KeySum {
    fn with(self, other: Self, compute: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            keys: compute(self.keys, other.keys),
            memory: compute(self.memory, other.memory),
            redis: compute(self.redis, other.redis),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maxima after charges: each a key's number, a second and the key's bytes.
    fn most(charges: &[(usize, u64, u64)]) -> (u64, u64, u64) {
        let (mut live, mut keys) = (LiveKeys::new([Quota::per_minute(10)]), [LiveKey::default(); 9]);
        for (key, second, bytes) in charges {
            let at_us = (1_795_256_132 + second) * 1_000_000;
            live.charge(&mut keys[*key], 0, at_us, [*bytes, 2 * bytes]);
        }
        (live.most.keys, live.most.memory, live.most.redis)
    }

    /// A log of a month must not take memory for each second.
    #[test]
    fn ends_are_bounded_however_long_the_log_is() {
        let quota = Quota::new(10, std::time::Duration::from_secs(30 * 86_400)).unwrap();
        let (mut live, mut key) = (LiveKeys::new([quota]), LiveKey::default());
        for second in 0..100_000 {
            live.charge(&mut key, 0, 1_795_256_132_000_000 + second * 60_000_000, [10, 20]);
            key = LiveKey::default();
        }
        assert!(live.policies[0].ends.len() <= 1100, "{}", live.policies[0].ends.len());
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
            // All times after 2106, such as those of a broken clock, count as one at which every key ends.
            (&[(1, 4_000_000_000, 10), (1, 4_000_000_000, 10), (2, 5_000_000_000, 10)], (1, 10, 20)),
        ] {
            assert_eq!(most(charges), expected, "{charges:?}");
        }
    }
}

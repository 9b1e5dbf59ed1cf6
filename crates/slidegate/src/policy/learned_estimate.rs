//! Learned estimates: the 90th percentile of settled costs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Number of last costs kept. Nothing is learned until there are that many.
const KNOWN: usize = 1024;
/// Maximum number of costs from one key while others settle too: less than the tenth above the
/// percentile, so that no key alone decides what all hold.
const OF_ONE_KEY: usize = KNOWN / 16;
/// A request contributes at most this many times its hold, so that a few invented costs cannot
/// dominate.
const MOST_TIMES_HELD: u64 = 4;
/// The percentile is computed again after so many costs.
const REFRESHED_AFTER: usize = 32;

/// The settled cost of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SettledSample {
    /// Identifies the key within the policy.
    pub(crate) key: u64,
    pub(crate) cost: u64,
    /// Total held.
    pub(crate) held: u64,
    /// The key's limit.
    pub(crate) limit: u64,
}

/// Settled costs under one policy, in this process. At most 60 kB.
#[derive(Debug, Default)]
pub(crate) struct SettledCosts {
    recent: Mutex<Recent>,
    /// The 90th percentile plus one; 0 while too few costs are known.
    percentile: AtomicU64,
}

#[derive(Debug, Default)]
struct Recent {
    costs: Vec<RecentCost>,
    /// Number of costs per key.
    of_key: HashMap<u64, usize>,
    /// Number of costs added.
    added: u64,
    since_refresh: usize,
}

#[derive(Debug, Clone, Copy)]
struct RecentCost {
    key: u64,
    cost: u64,
    /// The number of costs added before it.
    number: u64,
}

impl Recent {
    /// Adds a cost. When full, it replaces the oldest: of its own key if that is at its maximum,
    /// else of a key above its maximum.
    fn add(&mut self, key: u64, cost: u64) {
        let known = RecentCost { key, cost, number: self.added };
        self.added += 1;
        if self.costs.len() < KNOWN {
            self.costs.push(known);
        } else {
            let own = self.of_key.get(&key).copied().unwrap_or(0);
            let most = || self.of_key.iter().max_by_key(|(_, count)| **count);
            let crowded = || most().filter(|(_, count)| **count > OF_ONE_KEY).map(|(key, _)| *key);
            let from = if own >= OF_ONE_KEY { Some(key) } else { crowded() };
            let candidates = self.costs.iter_mut().filter(|one| from.is_none_or(|from| one.key == from));
            let oldest = candidates.min_by_key(|one| one.number).expect("it is full");
            let replaced = std::mem::replace(oldest, known).key;
            let count = self.of_key.get_mut(&replaced).expect("each known cost is counted");
            *count -= 1;
            if *count == 0 {
                self.of_key.remove(&replaced);
            }
        }
        *self.of_key.entry(key).or_default() += 1;
    }
}

impl SettledCosts {
    /// The smallest cost that nine in ten of the last 1,024 did not exceed. `None` while there are
    /// fewer.
    pub(crate) fn percentile_90(&self) -> Option<u64> {
        self.percentile.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Adds a cost. O(1,024), a few microseconds.
    pub(crate) fn add(&self, SettledSample { key, cost, held, limit }: SettledSample) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.add(key, cost.min(held.saturating_mul(MOST_TIMES_HELD)).min(limit));
        recent.since_refresh += 1;
        if recent.costs.len() < KNOWN
            || recent.since_refresh < REFRESHED_AFTER && self.percentile_90().is_some()
        {
            return;
        }
        recent.since_refresh = 0;
        let mut costs: Vec<u64> = recent.costs.iter().map(|one| one.cost).collect();
        let (_, percentile, _) = costs.select_nth_unstable((KNOWN * 9).div_ceil(10) - 1);
        self.percentile.store(percentile.saturating_add(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators compare it with the percentile of their own logs.
    #[test]
    fn it_is_the_cost_that_nine_in_ten_of_the_last_1024_did_not_exceed() {
        let costs = SettledCosts::default();
        let mut keys = 0..;
        let mut add = |cost| {
            let (key, held, limit) = (keys.next().unwrap() % 100, cost, u64::MAX);
            costs.add(SettledSample { key, cost, held, limit });
        };
        for cost in 0..1023 {
            add(cost);
        }
        assert_eq!(costs.percentile_90(), None, "one is missing");
        add(1023);
        // 922 of 1,024 are at most 921.
        assert_eq!(costs.percentile_90(), Some(921));
        // The oldest are forgotten.
        for _ in 0..1024 {
            add(7);
        }
        assert_eq!(costs.percentile_90(), Some(7));
        for _ in 0..96 {
            add(u64::MAX);
        }
        assert_eq!(costs.percentile_90(), Some(7));
        for _ in 0..32 {
            add(u64::MAX);
        }
        assert_eq!(costs.percentile_90(), Some(u64::MAX - 1), "as large as it can be stored");
    }

    /// One client that settles to whatever it likes must not make the requests of all others hold
    /// their whole limit.
    #[test]
    fn no_key_decides_alone_what_all_hold() {
        let costs = SettledCosts::default();
        let settle = |key, cost| costs.add(SettledSample { key, cost, held: 1000, limit: 100_000 });
        (0..1024).for_each(|n| settle(1 + n % 20, 500));
        assert_eq!(costs.percentile_90(), Some(500));
        (0..2000).for_each(|_| settle(0, u64::MAX));
        assert_eq!(costs.percentile_90(), Some(500));
        // Also if it was there first: it makes room for the others.
        let costs = SettledCosts::default();
        let settle = |key, cost| costs.add(SettledSample { key, cost, held: 1000, limit: 100_000 });
        (0..1024).for_each(|_| settle(0, u64::MAX));
        assert_eq!(costs.percentile_90(), Some(4000), "four times what it held");
        for n in 0..1024 {
            settle(1 + n % 20, 500);
            settle(0, u64::MAX);
        }
        assert_eq!(costs.percentile_90(), Some(500));
    }

    /// What is learned must be something that a key can hold, and follow a single key as well.
    #[test]
    fn what_is_learned_is_at_most_the_limit() {
        let costs = SettledCosts::default();
        let settle = |cost| costs.add(SettledSample { key: 0, cost, held: 1000, limit: 1500 });
        (0..1024).for_each(|_| settle(2000));
        assert_eq!(costs.percentile_90(), Some(1500));
        (0..1024).for_each(|_| settle(300));
        assert_eq!(costs.percentile_90(), Some(300));
    }
}

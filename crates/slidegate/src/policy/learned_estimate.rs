//! Learned estimates: the 90th percentile of the costs that requests were settled to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// So many of the last costs are known. Below that, nothing is learned yet.
const KNOWN: usize = 1024;
/// The percentile is computed anew after so many costs.
const REFRESHED_AFTER: usize = 32;

/// The costs that requests under one policy were settled to, in this process. 8 kB.
#[derive(Debug, Default)]
pub(crate) struct SettledCosts {
    recent: Mutex<Recent>,
    /// The 90th percentile plus one, so that 0 means that too few costs are known.
    percentile: AtomicU64,
}

#[derive(Debug, Default)]
struct Recent {
    costs: Vec<u64>,
    /// Where the next cost goes once all places are taken.
    next: usize,
    since_refresh: usize,
}

impl SettledCosts {
    /// The smallest cost that nine in ten of the last 1,024 did not exceed. `None` while fewer are
    /// known.
    pub(crate) fn percentile_90(&self) -> Option<u64> {
        self.percentile.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Adds a cost. O(1), and O(1,024) each 32nd time.
    pub(crate) fn add(&self, cost: u64) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.costs.len() < KNOWN {
            recent.costs.push(cost);
        } else {
            let next = recent.next;
            recent.costs[next] = cost;
            recent.next = (next + 1) % KNOWN;
        }
        recent.since_refresh += 1;
        if recent.costs.len() < KNOWN
            || recent.since_refresh < REFRESHED_AFTER && self.percentile_90().is_some()
        {
            return;
        }
        recent.since_refresh = 0;
        let mut costs = recent.costs.clone();
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
        for cost in 0..1023 {
            costs.add(cost);
        }
        assert_eq!(costs.percentile_90(), None, "one is missing");
        costs.add(1023);
        // 922 of 1,024 are at most 921.
        assert_eq!(costs.percentile_90(), Some(921));
        // The oldest are forgotten.
        for _ in 0..1024 {
            costs.add(7);
        }
        assert_eq!(costs.percentile_90(), Some(7));
        for _ in 0..96 {
            costs.add(u64::MAX);
        }
        assert_eq!(costs.percentile_90(), Some(7));
        for _ in 0..32 {
            costs.add(u64::MAX);
        }
        assert_eq!(costs.percentile_90(), Some(u64::MAX - 1), "as large as it can be stored");
    }
}

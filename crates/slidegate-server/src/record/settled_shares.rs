//! Accuracy of estimates: the settled cost as a share of the held cost.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use slidegate::reserve::SettledCost;

use super::histogram::Reading;

/// Inclusive upper bounds of the buckets, in percent. Above 100, the estimate was too low.
const ENDS_PERCENT: [u64; 11] = [5, 10, 25, 50, 75, 90, 100, 125, 150, 200, 400];

/// One policy's histogram. Not per thread: reservations are few.
#[derive(Debug, Default)]
pub(crate) struct SettledShares {
    /// One per bound, and one for larger shares.
    counts: [AtomicU64; ENDS_PERCENT.len() + 1],
    sum_ppm: AtomicU64,
}

impl SettledShares {
    /// Adds a settled reservation, unless it held nothing.
    pub(crate) fn add(&self, SettledCost { held, cost }: SettledCost) {
        let (held, cost) = (held.millionths(), cost.millionths());
        if held == 0 {
            return;
        }
        let bucket = ENDS_PERCENT.partition_point(|end| u128::from(*end) * held < cost * 100);
        self.counts[bucket].fetch_add(1, Relaxed);
        // A cost of 100 million times the hold is wrong anyway; the cap keeps the sum from
        // overflowing.
        let ppm = (cost.saturating_mul(1_000_000) / held).min(100_000_000_000_000);
        self.sum_ppm.fetch_add(u64::try_from(ppm).unwrap_or(u64::MAX), Relaxed);
    }

    /// Merges the histograms of several policies.
    #[allow(clippy::cast_precision_loss)] // Prometheus uses shares as doubles
    pub(crate) fn read<'h>(histograms: &(impl Iterator<Item = &'h Self> + Clone)) -> Reading {
        let sum = |of: &dyn Fn(&Self) -> u64| histograms.clone().map(of).sum::<u64>();
        let counts: [u64; ENDS_PERCENT.len() + 1] =
            from_fn(|bucket| sum(&|histogram| histogram.counts[bucket].load(Relaxed)));
        let ends = ENDS_PERCENT.iter().map(|end| *end as f64 / 100.0).chain([f64::INFINITY]);
        Reading {
            count: counts.iter().sum(),
            sum: sum(&|histogram| histogram.sum_ppm.load(Relaxed)) as f64 / 1e6,
            buckets: ends.zip(counts).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slidegate::Amount;

    /// An estimate that is met exactly is not too low.
    #[test]
    fn a_share_is_in_the_first_bucket_that_is_as_large() {
        let [one, other] = [SettledShares::default(), SettledShares::default()];
        for (held, cost) in [(400, 0), (400, 20), (400, 21), (400, 400), (400, 401), (0, 7), (1, u64::MAX)] {
            one.add(SettledCost { held: Amount::from(held), cost: cost.into() });
        }
        other.add(SettledCost { held: u64::MAX.into(), cost: u64::MAX.into() });
        let reading = SettledShares::read(&[&one, &other].into_iter());
        assert_eq!(reading.count, 7);
        let filled: Vec<_> = reading.buckets.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(0.05, 2), (0.1, 1), (1.0, 2), (1.25, 1), (f64::INFINITY, 1)]);
        let alone = SettledShares::read(&[&other].into_iter());
        assert!((alone.sum - 1.0).abs() < 1e-9, "{}", alone.sum);
    }
}

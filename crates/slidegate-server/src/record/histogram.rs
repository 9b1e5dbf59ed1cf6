//! Duration histograms in the Prometheus format.
//!
//! The count is not stored: it is the sum of the buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::per_thread::{PerThread, thread};

/// Inclusive upper bounds of the buckets, in microseconds: from an in-memory decision to beyond a
/// store deadline.
///
/// A threshold between two bounds cannot be measured, so all thresholds in
/// `deploy/prometheus/alerts.yml` are bounds.
pub(crate) const ENDS_US: [u64; 17] =
    [1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000];

#[derive(Debug)]
pub(crate) struct Histogram {
    buckets: PerThread<Buckets>,
    /// What the bounds count, in microseconds: 1, unless it is of longer durations.
    unit_us: u64,
}

#[derive(Debug, Default)]
struct Buckets {
    /// One per bound, and one for longer durations.
    counts: [AtomicU64; ENDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// A snapshot of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    /// Upper bound (in seconds for durations; the last is infinite) and the count of this bucket
    /// alone.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum: f64,
    pub(crate) count: u64,
}

impl Histogram {
    pub(crate) fn new(copies: usize) -> Self {
        Self::with_unit(copies, 1)
    }

    /// One whose bounds are as many times longer.
    pub(crate) fn with_unit(copies: usize, unit_us: u64) -> Self {
        Self { buckets: PerThread::new(copies), unit_us }
    }

    /// Adds `times` observations of one duration.
    pub(crate) fn add(&self, span: Duration, times: u64) {
        let buckets = self.buckets.of(thread());
        let span_us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let bucket = ENDS_US.partition_point(|end| end * self.unit_us < span_us);
        buckets.counts[bucket].fetch_add(times, Relaxed);
        buckets.sum_us.fetch_add(span_us.saturating_mul(times), Relaxed);
    }

    #[allow(clippy::cast_precision_loss)] // Prometheus uses seconds as doubles
    pub(crate) fn read(&self) -> Reading {
        let ends = ENDS_US.iter().map(|end| (end * self.unit_us) as f64 / 1e6).chain([f64::INFINITY]);
        let counts =
            (0..=ENDS_US.len()).map(|at| self.buckets.sum(|buckets| buckets.counts[at].load(Relaxed)));
        let buckets: Vec<_> = ends.zip(counts).collect();
        let sum_us = self.buckets.sum(|buckets| buckets.sum_us.load(Relaxed));
        Reading { count: buckets.iter().map(|(_, count)| count).sum(), sum: sum_us as f64 / 1e6, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An observation in the wrong bucket shifts a percentile that alerts depend on.
    #[test]
    fn a_span_is_in_the_first_bucket_that_is_as_long() {
        let histogram = Histogram::new(2);
        for (span_us, times) in [(0, 1), (1, 1), (2, 3), (3, 1), (250_000, 1), (250_001, 2)] {
            histogram.add(Duration::from_micros(span_us), times);
        }
        let reading = histogram.read();
        assert_eq!(reading.count, 9);
        assert!((reading.sum - 0.750_012).abs() < 1e-9, "{}", reading.sum);
        let filled: Vec<_> = reading.buckets.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(filled, [(1e-6, 2), (2e-6, 3), (5e-6, 1), (0.25, 1), (f64::INFINITY, 2)]);
    }
}

//! Timelines: counts over time, in buckets that widen as the log continues.
//!
//! A log's length is not known at its start. So buckets begin at one second, and when there are too
//! many, neighbours are merged into the next round width. Memory is bounded for any log.

/// Maximum buckets of a whole replay's timelines: more than a chart has pixels to show.
pub(crate) const MAX_BUCKETS: usize = 1200;
/// Maximum buckets of one key's timeline: enough for a sparkline, because there are many keys.
pub(crate) const MAX_KEY_BUCKETS: usize = 48;

/// Bucket widths in seconds; each divides the next. Beyond the last, widths double.
const WIDTHS_SECONDS: [u64; 14] =
    [1, 2, 10, 30, 60, 120, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800];
const SECOND_US: u64 = 1_000_000;

/// The content of a bucket.
pub(crate) trait Bucket: Clone + Default {
    /// Adds a later bucket.
    fn merge(&mut self, later: &Self);
}

/// A count.
impl Bucket for u32 {
    fn merge(&mut self, later: &Self) {
        *self = self.saturating_add(*later);
    }
}

/// Allowed and denied requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VerdictCounts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
}

impl Bucket for VerdictCounts {
    fn merge(&mut self, later: &Self) {
        self.allowed += later.allowed;
        self.denied += later.denied;
    }
}

/// Buckets of equal width, from the first event on. Each begins at a multiple of the width.
#[derive(Debug, Clone)]
pub(crate) struct Timeline<B> {
    max_buckets: usize,
    /// The width of a bucket.
    width_us: u64,
    /// Start of the first bucket. Meaningless without buckets.
    start_us: u64,
    buckets: Vec<B>,
    /// End of the last bucket, which nearly every event falls into.
    end_us: u64,
}

impl<B: Bucket> Timeline<B> {
    pub(crate) fn new(max_buckets: usize) -> Self {
        let width_us = WIDTHS_SECONDS[0] * SECOND_US;
        Self { max_buckets, width_us, start_us: 0, buckets: Vec::new(), end_us: 0 }
    }

    /// The bucket for a time. Times should not decrease; an earlier one counts in the last bucket.
    #[inline]
    pub(crate) fn at(&mut self, time_us: u64) -> &mut B {
        if time_us >= self.end_us || self.buckets.is_empty() {
            self.extend_to(time_us);
        }
        self.buckets.last_mut().expect("a bucket was added")
    }

    fn extend_to(&mut self, time_us: u64) {
        if self.buckets.is_empty() {
            self.start_us = time_us - time_us % self.width_us;
        }
        while (time_us - self.start_us) / self.width_us >= self.max_buckets as u64 {
            self.widen();
        }
        let at = usize::try_from((time_us - self.start_us) / self.width_us).expect("below max_buckets");
        if at >= self.buckets.len() {
            self.buckets.resize(at + 1, B::default());
        }
        self.end_us = self.start_us + (at as u64 + 1) * self.width_us;
    }

    fn widen(&mut self) {
        let seconds = self.width_us / SECOND_US;
        let wider = WIDTHS_SECONDS.into_iter().find(|width| *width > seconds);
        let width_us = wider.unwrap_or(2 * seconds) * SECOND_US;
        let start_us = self.start_us - self.start_us % width_us;
        let last_us = self.start_us + self.buckets.len() as u64 * self.width_us - 1;
        let buckets = usize::try_from((last_us - start_us) / width_us + 1).expect("fewer than before");
        self.buckets = self.on(TimeAxis { start_us, width_us, buckets });
        (self.start_us, self.width_us) = (start_us, width_us);
    }

    pub(crate) fn axis(&self) -> TimeAxis {
        TimeAxis { start_us: self.start_us, width_us: self.width_us, buckets: self.buckets.len() }
    }

    /// The buckets on the axis of a timeline that covers this one. A bucket wider than the axis's
    /// goes to the bucket in which it begins.
    pub(crate) fn on(&self, axis: TimeAxis) -> Vec<B> {
        let mut buckets = vec![B::default(); axis.buckets];
        for (at, bucket) in self.buckets.iter().enumerate() {
            let time_us = (self.start_us + at as u64 * self.width_us).max(axis.start_us);
            let to = usize::try_from((time_us - axis.start_us) / axis.width_us).unwrap_or(usize::MAX);
            if let Some(to) = buckets.get_mut(to) {
                to.merge(bucket);
            }
        }
        buckets
    }
}

/// The buckets of a timeline, without content.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TimeAxis {
    pub(crate) start_us: u64,
    pub(crate) width_us: u64,
    pub(crate) buckets: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chart of a week must match a naive count, in bounded memory.
    #[test]
    fn buckets_widen_and_lose_nothing() {
        for (step_us, events) in [(1, 5000u64), (999_999, 5000), (37_000_000, 20_000), (90_000_000_000, 5000)]
        {
            let mut timeline = Timeline::<u32>::new(50);
            let first = 1_795_256_132_123_456;
            for n in 0..events {
                *timeline.at(first + n * step_us) += 1;
            }
            let TimeAxis { start_us, width_us, buckets } = timeline.axis();
            assert!(buckets <= 50 && start_us % width_us == 0, "{buckets} of {width_us}");
            let mut naive = vec![0u32; buckets];
            for n in 0..events {
                naive[usize::try_from((first + n * step_us - start_us) / width_us).unwrap_or(usize::MAX)] +=
                    1;
            }
            assert_eq!(timeline.buckets, naive, "step {step_us}");
        }
    }

    /// A key's sparkline appears below the chart of all requests: the times must agree.
    #[test]
    fn a_shorter_timeline_is_shown_on_the_axis_of_a_longer_one() {
        let (mut long, mut short) = (Timeline::<u32>::new(10), Timeline::<u32>::new(10));
        for second in 0..100 {
            *long.at(second * SECOND_US) += 1;
        }
        for second in 55..60 {
            *short.at(second * SECOND_US) += 1;
        }
        assert_eq!(long.axis(), TimeAxis { start_us: 0, width_us: 10 * SECOND_US, buckets: 10 });
        assert_eq!(short.on(long.axis()), [0, 0, 0, 0, 0, 5, 0, 0, 0, 0]);
    }

    /// Logs of a minute with one broken clock exist.
    #[test]
    fn an_earlier_time_counts_in_the_last_bucket() {
        let mut timeline = Timeline::<u32>::new(10);
        for second in [5, 7, 1] {
            *timeline.at(second * SECOND_US) += 1;
        }
        assert_eq!(timeline.buckets, [1, 0, 2]);
    }
}

//! Token bucket: every charge fills the bucket, which drains by `limit` per window.
//!
//! The content is a whole cost and a fraction with the window as denominator, so nothing is ever
//! rounded: draining for a year in steps of one microsecond is exact. This is the generic cell rate
//! algorithm (ITU-T I.371, virtual scheduling): content * window / limit is its theoretical arrival
//! time minus now. Its error, measured as a window: it admits `burst` at once and `limit` per
//! window after that, up to `burst + limit - 1` in one window.
//!
//! `lua/token_bucket.lua` is its twin; change both or neither.

use super::saved::{Ages, SavedState};
use super::state::{State, small_step_us};
use crate::quota::Quota;
use crate::usage::RecordedCharge;

/// 24 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBucket {
    /// Time at which the content was computed, in microseconds since the epoch.
    at: u64,
    /// Whole cost in the bucket.
    level: u64,
    /// Rest of the content in cost times microseconds; less than the window.
    fraction: u64,
}

/// Buckets that drain longer do so for more than any window.
const MAX_DRAIN_US: u64 = 366 * 86_400_000_000;

/// Drain rate per microsecond, in cost per window. A limit of 0 drains like 1, so that earlier
/// usage is forgotten.
fn rate(quota: &Quota) -> u64 {
    quota.limit().max(1)
}

/// The fields stored in Redis.
impl TokenBucket {
    /// A bucket from a script's reply.
    pub fn from_parts(at: u64, level: u64, fraction: u64) -> Self {
        Self { at, level, fraction }
    }

    /// When the content was computed, its whole cost and its fraction.
    pub fn parts(&self) -> (u64, u64, u64) {
        (self.at, self.level, self.fraction)
    }
}

impl TokenBucket {
    /// The content in cost times microseconds. It fits in 128 bits: 2^64 times a window below 2^45.
    #[inline]
    fn content(&self, quota: &Quota) -> u128 {
        u128::from(self.level) * u128::from(quota.window_us()) + u128::from(self.fraction)
    }

    /// Drops what exceeds [`Quota::max_used`], which a lowered limit may leave: it would take too many
    /// windows to drain.
    fn bound(&mut self, quota: &Quota) {
        let max = quota.max_used();
        if self.level.saturating_add(u64::from(self.fraction > 0)) > max {
            (self.level, self.fraction) = (max, 0);
        }
    }

    /// Removes a whole cost and a fraction, down to 0.
    #[inline]
    fn drain(&mut self, (whole, fraction): (u64, u64), window_us: u64) {
        let (fraction, borrows) = match self.fraction.checked_sub(fraction) {
            Some(rest) => (rest, 0),
            None => (self.fraction + window_us - fraction, 1),
        };
        (self.level, self.fraction) = match self.level.checked_sub(whole + borrows) {
            Some(level) => (level, fraction),
            None => (0, 0),
        };
    }
}

impl State for TokenBucket {
    type Forecast = Self;

    fn forecast(&self) -> Self {
        *self
    }

    #[inline(always)]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        self.bound(quota);
        if now < self.at {
            let empty = self.level == 0 && self.fraction == 0;
            if !empty && self.at - now <= small_step_us(quota.window_us()) {
                return self.at;
            }
            self.at = now;
            return now;
        }
        let drained = u128::from(now - self.at) * u128::from(rate(quota));
        self.at = now;
        match u64::try_from(drained) {
            // Usually less than one unit has drained since the last decision; no division needed.
            Ok(drained) if drained < quota.window_us() => self.drain((0, drained), quota.window_us()),
            Ok(drained) => self.drain(quota.by_window().div_rem(drained), quota.window_us()),
            Err(_) => {
                let left = self.content(quota).saturating_sub(drained);
                (self.level, self.fraction) = quota.by_window().div_rem_wide(left);
            }
        }
        now
    }

    /// The fraction's unit depends on the window, so it rounds up to a whole under another window.
    fn adopt(&mut self, old: &Quota, _quota: &Quota, now: u64) {
        self.level = self.used(old, now);
        self.fraction = 0;
    }

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.level.saturating_add(u64::from(self.fraction > 0))
    }

    #[inline]
    fn wait_us(&self, quota: &Quota, _now: u64, target: u64) -> u64 {
        let above =
            u128::from(self.level - target) * u128::from(quota.window_us()) + u128::from(self.fraction);
        quota.by_limit().ceil_wide(above)
    }

    /// One unit is freed when the fraction has drained, or else a whole unit.
    #[inline]
    fn frees_us(&self, quota: &Quota, _now: u64) -> u64 {
        if self.level == u64::MAX && self.fraction > 0 {
            return self.wait_us(quota, self.at, u64::MAX - 1);
        }
        quota.by_limit().ceil(if self.fraction > 0 { self.fraction } else { quota.window_us() })
    }

    #[inline]
    fn charge(&mut self, _quota: &Quota, _now: u64, cost: u64) {
        self.level = self.level.saturating_add(cost);
    }

    fn refund(&mut self, quota: &Quota, now: u64, cost: u64) -> u64 {
        let given = cost.min(self.used(quota, now));
        if given <= self.level {
            self.level -= given;
        } else {
            self.level = 0;
            self.fraction = 0;
        }
        given
    }

    /// The level has no times.
    fn charges(&self, _quota: &Quota) -> Vec<RecordedCharge> {
        Vec::new()
    }
}

impl SavedState for TokenBucket {
    /// The age of `at`, `level` and `fraction`.
    type Saved = (i64, u64, u64);

    fn save(&self, ages: Ages) -> Self::Saved {
        (ages.of(self.at), self.level, self.fraction)
    }

    fn load((at, level, fraction): Self::Saved, ages: Ages, quota: &Quota, _now: u64) -> Option<Self> {
        (fraction < quota.window_us()).then(|| Self { at: ages.at(at), level, fraction })
    }

    fn most_used(&self) -> u64 {
        self.level.saturating_add(u64::from(self.fraction > 0))
    }

    /// When this content drains until `by`. A store does not know when one ends that drains for years.
    fn charged_by(quota: &Quota, cost: u64, after: u64, by: u64, now: u64) -> u64 {
        let drains_us = quota.by_limit().ceil_wide(u128::from(cost) * u128::from(quota.window_us()));
        let charged = if drains_us > MAX_DRAIN_US { by } else { by.saturating_sub(drains_us) };
        charged.min(now + (by - after))
    }

    fn counts_still(quota: &Quota, cost: u64, made: u64, now: u64) -> u64 {
        let drained = u128::from(now.saturating_sub(made)) * u128::from(quota.limit());
        let drained = drained.div_ceil(u128::from(quota.window_us()));
        cost.saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
    }

    fn describe(quota: &Quota) -> String {
        format!("token bucket, {} at once", quota.capacity())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quota::Algorithm;

    fn quota(limit: u64) -> Quota {
        Quota::new(limit, Duration::from_secs(1)).unwrap().with_algorithm(Algorithm::TokenBucket)
    }

    /// The rest of one request of an hour's window would take half an hour to drain per second.
    #[test]
    fn a_fraction_becomes_a_whole_under_another_window() {
        let second = quota(1);
        let mut bucket = TokenBucket { at: 0, level: 2, fraction: 1_800_000_000 };
        bucket.adopt(&Quota::per_hour(1), &second, 0);
        assert_eq!((bucket.used(&second, 0), bucket.frees_us(&second, 0)), (3, 1_000_000));
        assert_eq!(bucket.wait_us(&second, 0, 0), 3_000_000);
    }

    /// A backward step of the clock must not refill what has not drained.
    #[test]
    fn a_fraction_is_content_when_the_clock_steps_back() {
        let mut bucket = TokenBucket { at: 1000, level: 0, fraction: 1 };
        assert_eq!(bucket.settle(&quota(1), 999), 1000);
        assert_eq!(bucket, TokenBucket { at: 1000, level: 0, fraction: 1 });
    }

    /// A penalty, or a lowered limit, is forgiven after a bounded time: whole units and their
    /// fraction count.
    #[test]
    fn content_is_bounded_with_its_fraction() {
        let quota = quota(10);
        let of = |level, fraction| {
            let mut bucket = TokenBucket { at: 0, level, fraction };
            bucket.bound(&quota);
            (bucket.level, bucket.fraction)
        };
        let max = quota.max_used();
        assert_eq!((of(max, 1), of(max + 1, 0)), ((max, 0), (max, 0)));
        assert_eq!((of(max, 0), of(max - 1, 1)), ((max, 0), (max - 1, 1)));
    }

    /// Limits may be as large as counts: what drains then exceeds 64 bits within microseconds.
    #[test]
    fn draining_is_exact_beyond_64_bits() {
        let mut bucket = TokenBucket { at: 0, level: u64::MAX, fraction: 5 };
        assert_eq!(bucket.settle(&quota(u64::MAX), 2), 2);
        let content = u128::from(u64::MAX) * (1_000_000 - 2) + 5;
        let level = u64::try_from(content / 1_000_000).unwrap();
        let fraction = u64::try_from(content % 1_000_000).unwrap();
        assert_eq!(bucket, TokenBucket { at: 2, level, fraction });
    }

    /// The largest count stands for all above it, so its fraction alone frees nothing.
    #[test]
    fn above_the_largest_count_a_whole_unit_and_the_fraction_must_drain() {
        let bucket = TokenBucket { at: 0, level: u64::MAX, fraction: 5 };
        assert_eq!(bucket.frees_us(&quota(1), 0), 1_000_005);
    }

    /// A damaged file with a valid checksum comes from a bug, and must not become another one.
    #[test]
    fn a_saved_fraction_is_less_than_one() {
        let load = |fraction| {
            let ages = Ages { at_us: 9 };
            let saved = TokenBucket { at: 7, level: 3, fraction }.save(ages);
            TokenBucket::load(saved, ages, &quota(1), 9)
        };
        assert_eq!(load(999_999), Some(TokenBucket { at: 7, level: 3, fraction: 999_999 }));
        assert_eq!(load(1_000_000), None);
    }

    /// `max_bytes` counts what lies outside the table: of counters, nothing.
    #[test]
    fn counters_take_no_bytes_on_the_heap() {
        let bucket = TokenBucket { at: 7, level: 3, fraction: 1 };
        assert_eq!((bucket.heap_bytes(), TokenBucket::most_heap_bytes(&quota(9), 9, 9)), (0, 0));
    }
}

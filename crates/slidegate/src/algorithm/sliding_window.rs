//! Sliding window: two counters per key, the older one weighted by its overlap.
//!
//! The weighted part rounds up: rounding can deny a request, but never admits one too many. It is
//! an estimate, because it assumes that the charges of the older window were spread evenly: at 100
//! per minute, 100 late in one window and 99 in the next as they fit are 199 in 60 seconds.
//! Desgats, "How we built rate limiting capable of scaling to millions of domains" (Cloudflare,
//! 2017), describes the method.
//!
//! Pure: no clock, key or store. `lua/sliding_window.lua` is its twin; change both or neither.

use super::fixed_window::is_small_step_back;
use super::saved::{Ages, SavedState};
use super::state::State;
use crate::quota::{Period, Quota};
use crate::time::Timestamp;
use crate::usage::RecordedCharge;

/// 24 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlidingWindow {
    /// End of the current window in microseconds since the epoch; 0 if nothing was ever charged.
    end: u64,
    /// Cost charged in the previous window.
    previous: u64,
    /// Cost charged in the current window.
    current: u64,
}

/// The fields stored in Redis.
impl SlidingWindow {
    /// Counters from a script's reply.
    pub fn from_parts(end: u64, previous: u64, current: u64) -> Self {
        Self { end, previous, current }
    }

    /// End of the current window, and what was charged in the previous and the current one.
    pub fn parts(&self) -> (u64, u64, u64) {
        (self.end, self.previous, self.current)
    }
}

impl SlidingWindow {
    /// The part of `previous` that still counts when the current window ends in `left`
    /// microseconds, rounded up.
    #[inline]
    fn weighted(quota: &Quota, previous: u64, left: u64) -> u64 {
        match previous.checked_mul(left) {
            Some(product) => quota.by_window().ceil(product),
            None => quota.by_window().ceil_wide(u128::from(previous) * u128::from(left)),
        }
    }

    /// The earliest time in a window, in microseconds since its start, at which at most `target` of
    /// `older` counts: the smallest `e` with ceil(older * (window - e) / window) <= target.
    fn fits_at(quota: &Quota, older: u64, target: u64) -> u64 {
        let window = quota.window_us();
        if older <= target {
            return 0;
        }
        if target == 0 {
            return window;
        }
        // The largest `left` with older * left <= target * window.
        window - share(target, window, older)
    }
}

impl State for SlidingWindow {
    type Forecast = Self;

    fn forecast(&self) -> Self {
        *self
    }

    #[inline(always)]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        let period = quota.period(now);
        if period.end == self.end { now } else { self.roll(quota, now, period) }
    }

    /// Usage that counts now becomes a charge in the window of the new length that contains `now`.
    fn adopt(&mut self, old: &Quota, quota: &Quota, now: u64) {
        self.current = self.used(old, now).min(quota.max_used());
        self.previous = 0;
        self.end = quota.period(now).end;
    }

    #[inline]
    fn used(&self, quota: &Quota, now: u64) -> u64 {
        let older = if self.previous == 0 { 0 } else { Self::weighted(quota, self.previous, self.end - now) };
        self.current.saturating_add(older)
    }

    #[inline]
    fn wait_us(&self, quota: &Quota, now: u64, target: u64) -> u64 {
        let left = self.end - now;
        if self.current <= target {
            // Within this window: only the weight of the older counter declines.
            let elapsed = quota.window_us() - left;
            return Self::fits_at(quota, self.previous, target - self.current).saturating_sub(elapsed);
        }
        left + Self::fits_at(quota, self.current, target)
    }

    /// The older window counts as ceil(previous * left / window). That is one less once `previous`
    /// times the wait exceeds the distance to the next lower multiple of the window. If the older
    /// window does not count, the same applies to `current` in the next window.
    #[inline]
    fn frees_us(&self, quota: &Quota, now: u64) -> u64 {
        let left = self.end - now;
        if self.previous == 0 || left == 0 {
            return left + quota.window_us().div_ceil(self.current);
        }
        let fits = self.current.checked_add(self.previous).and(self.previous.checked_mul(left));
        let Some(product) = fits else {
            return self.wait_us(quota, now, self.used(quota, now) - 1);
        };
        let (_, above) = quota.by_window().div_rem(product);
        let above = if above == 0 { quota.window_us() } else { above };
        above.div_ceil(self.previous)
    }

    #[inline]
    fn charge(&mut self, _quota: &Quota, _now: u64, cost: u64) {
        self.current = self.current.saturating_add(cost);
    }

    fn refund(&mut self, quota: &Quota, now: u64, cost: u64) -> u64 {
        let given = cost.min(self.used(quota, now));
        let from_current = given.min(self.current);
        self.current -= from_current;
        let rest = given - from_current;
        if rest > 0 {
            // Reduce the older counter so that its weighted part declines by `rest`, rounded down.
            let left = self.end - now;
            let kept = Self::weighted(quota, self.previous, left) - rest;
            let kept = u128::from(kept) * u128::from(quota.window_us()) / u128::from(left);
            self.previous = self.previous.min(u64::try_from(kept).unwrap_or(u64::MAX));
        }
        given
    }

    fn charges(&self, quota: &Quota) -> Vec<RecordedCharge> {
        let begin = self.end.saturating_sub(quota.window_us());
        let sums = [(begin.saturating_sub(quota.window_us()), self.previous), (begin, self.current)];
        let charged = sums.into_iter().filter(|(_, cost)| *cost > 0);
        charged.map(|(at, cost)| RecordedCharge { at: Timestamp::from_micros(at), cost }).collect()
    }
}

impl SavedState for SlidingWindow {
    /// The age of `end`, `previous` and `current`.
    type Saved = (i64, u64, u64);

    fn save(&self, ages: Ages) -> Self::Saved {
        (ages.of(self.end), self.previous, self.current)
    }

    fn load((end, previous, current): Self::Saved, ages: Ages, quota: &Quota, now: u64) -> Option<Self> {
        let mut loaded = Self { end: ages.at(end), previous, current };
        loaded.align(quota, now);
        Some(loaded)
    }

    fn most_used(&self) -> u64 {
        self.current.saturating_add(self.previous)
    }

    /// In the window before the one that ended after `after`.
    fn charged_by(quota: &Quota, _cost: u64, after: u64, by: u64, now: u64) -> u64 {
        let window = quota.window_us();
        if by - after < window { after.saturating_sub(window).min(now) } else { by.min(now) }
    }

    fn counts_still(quota: &Quota, cost: u64, made: u64, now: u64) -> u64 {
        if quota.period(made).begin == quota.period(now).begin { cost } else { 0 }
    }

    fn describe(_quota: &Quota) -> String {
        "sliding window of two counters, not exact".to_owned()
    }
}

impl SlidingWindow {
    /// `now` is in the window that ends at `end`, but the counters are not: time has passed or
    /// stepped back.
    #[cold]
    fn roll(&mut self, quota: &Quota, now: u64, period: Period) -> u64 {
        let end = period.end;
        if is_small_step_back(self.end, now, period, quota.window_us()) {
            return end;
        }
        if now < self.end {
            // A large backward step.
            self.count_as_new(quota, end);
            return now;
        }
        // The counter still weighs if its window ended where this one started.
        let follows = self.end == period.begin;
        self.previous = if follows { self.current } else { 0 };
        self.current = 0;
        self.end = end;
        now
    }

    /// Moves the counters to a window of this clock, if the wall clock was corrected since the clock
    /// of the snapshot started: to a later one, so that nothing stops counting too early.
    fn align(&mut self, quota: &Quota, now: u64) {
        let window = quota.window_us();
        let later = quota.by_window().ceil(self.end).saturating_mul(window);
        let end = quota.period(now).end;
        if later == self.end {
            return;
        }
        if later <= end {
            self.end = later;
        } else {
            self.count_as_new(quota, end);
        }
    }

    /// Moves all usage to the window that ends at `end`: at most the capacity, or the larger
    /// counter if a penalty exceeded the capacity.
    fn count_as_new(&mut self, quota: &Quota, end: u64) {
        let most = quota.capacity().max(self.current).max(self.previous);
        self.current = self.current.saturating_add(self.previous).min(most);
        self.previous = 0;
        self.end = end;
    }
}

/// floor(part * window / whole), for part < whole and window < 2^45 microseconds.
///
/// A 128-bit division is a long loop on most processors. The floating-point estimate has a relative
/// error below 2^-50, so it is off by less than one, which integers correct.
#[inline]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn share(part: u64, window: u64, whole: u64) -> u64 {
    let product = u128::from(part) * u128::from(window);
    let times = |quotient: u64| u128::from(quotient) * u128::from(whole);
    let mut quotient = (part as f64 * window as f64 / whole as f64) as u64;
    while times(quotient) > product {
        quotient -= 1;
    }
    while times(quotient + 1) <= product {
        quotient += 1;
    }
    quotient
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Waits are computed from this. One microsecond off, and they are not tight.
        #[test]
        fn a_share_of_a_window_is_exact(whole: u64, cut: u64, bits in 0u32..64, window in 1000u64..=366 * 86_400_000_000) {
            let whole = (whole >> bits).max(1);
            let part = cut % whole;
            let exact = u128::from(part) * u128::from(window) / u128::from(whole);
            prop_assert_eq!(u128::from(share(part, window, whole)), exact);
        }
    }

    /// Of these numbers the floating-point estimate is one too low, and a wait would be too long.
    #[test]
    fn a_share_is_exact_where_its_estimate_is_too_low() {
        assert_eq!(share(30_001_341_794_943, 60_000_000, 34_596_141_889_664), 52_031_250);
    }

    /// An operator who inspects a key must not see windows in which nothing was charged.
    #[test]
    fn windows_without_charges_are_not_listed() {
        let costs = |previous, current| {
            let charges = SlidingWindow { end: 180, previous, current }.charges(&Quota::per_minute(9));
            charges.into_iter().map(|charge| charge.cost).collect::<Vec<_>>()
        };
        assert_eq!((costs(0, 3), costs(2, 0), costs(2, 3)), (vec![3], vec![2], vec![2, 3]));
    }

    /// The clock of the next process may count windows from elsewhere, and usage must count no
    /// shorter for that.
    #[test]
    fn saved_counters_move_to_a_window_of_the_new_clock() {
        let (quota, now) = (Quota::per_minute(9), 70_000_000);
        let load = |end| {
            let ages = Ages { at_us: now };
            let saved = SlidingWindow { end, previous: 2, current: 3 }.save(ages);
            let loaded = SlidingWindow::load(saved, ages, &quota, now).unwrap();
            (loaded.end, loaded.previous, loaded.current)
        };
        assert_eq!(load(120_000_000), (120_000_000, 2, 3));
        assert_eq!(load(90_000_000), (120_000_000, 2, 3));
        assert_eq!(load(30_000_000), (60_000_000, 2, 3));
        assert_eq!(load(130_000_000), (120_000_000, 0, 5));
    }
}

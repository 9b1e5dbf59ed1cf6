//! Fixed window: one counter, reset at every multiple of the window since the Unix epoch, or at the dates
//! of a calendar.
//!
//! Its error: a client that spends the limit just before a window boundary and again just after it
//! gets twice the limit within moments. `lua/fixed_window.lua` is its twin; change both or neither.

use super::saved::{Ages, SavedState};
use super::state::{State, small_step_us};
use crate::quota::{Period, Quota};
use crate::time::Timestamp;
use crate::usage::RecordedCharge;

/// 16 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FixedWindow {
    /// End of the counter's window in microseconds since the epoch; 0 if nothing was ever charged.
    end: u64,
    /// Cost charged in the window that ends at `end`.
    used: u64,
}

impl State for FixedWindow {
    const ALIGNS_TO_DATE: bool = true;
    type Forecast = Self;

    fn forecast(&self) -> Self {
        *self
    }

    #[inline(always)]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        let period = quota.period(now);
        if period.end == self.end { now } else { self.roll(quota, now, period) }
    }

    /// Usage moves to the new window that contains `now`.
    fn adopt(&mut self, _old: &Quota, quota: &Quota, now: u64) {
        self.end = quota.period(now).end;
    }

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    #[inline]
    fn wait_us(&self, _quota: &Quota, now: u64, _target: u64) -> u64 {
        self.end - now
    }

    #[inline]
    fn charge(&mut self, _quota: &Quota, _now: u64, cost: u64) {
        self.used = self.used.saturating_add(cost);
    }

    fn refund(&mut self, _quota: &Quota, _now: u64, cost: u64) -> u64 {
        let given = cost.min(self.used);
        self.used -= given;
        given
    }

    fn charges(&self, quota: &Quota) -> Vec<RecordedCharge> {
        let begin = quota.period(self.end.saturating_sub(1)).begin;
        vec![RecordedCharge { at: Timestamp::from_micros(begin), cost: self.used }]
    }
}

impl SavedState for FixedWindow {
    /// The age of `end`, and `used`.
    type Saved = (i64, u64);

    fn save(&self, ages: Ages) -> Self::Saved {
        (ages.of(self.end), self.used)
    }

    /// If the date was corrected meanwhile, the window ends between two multiples of itself, and
    /// counts until then.
    fn load((end, used): Self::Saved, ages: Ages, quota: &Quota, _now: u64) -> Option<Self> {
        let mut loaded = Self { end: ages.at(end), used };
        loaded.align(quota);
        Some(loaded)
    }

    fn most_used(&self) -> u64 {
        self.used
    }

    /// In the window that ended after `after`: any time in it is as late.
    fn charged_by(quota: &Quota, _cost: u64, after: u64, by: u64, now: u64) -> u64 {
        if by - after < quota.window_us() { after.min(now) } else { by.min(now) }
    }

    fn counts_still(quota: &Quota, cost: u64, made: u64, now: u64) -> u64 {
        if quota.period(made).begin == quota.period(now).begin { cost } else { 0 }
    }

    fn describe(quota: &Quota) -> String {
        let windows = quota.calendar_window().map_or("fixed", |_| "calendar");
        format!("{windows} window: up to twice the limit around its border")
    }
}

/// The fields stored in Redis.
impl FixedWindow {
    /// A counter from a script's reply.
    pub fn from_parts(end: u64, used: u64) -> Self {
        Self { end, used }
    }

    /// End of the window and what was charged in it.
    pub fn parts(&self) -> (u64, u64) {
        (self.end, self.used)
    }
}

impl FixedWindow {
    /// Corrects an end that other time zone data made to the border of this calendar, if that is later.
    pub fn align(&mut self, quota: &Quota) {
        self.end = quota.later_end(self.end);
    }

    /// `now` is in this period, but the counter is not: time has passed or stepped back.
    #[cold]
    fn roll(&mut self, quota: &Quota, now: u64, period: Period) -> u64 {
        if now >= self.end {
            *self = Self { end: period.end, used: 0 };
            return now;
        }
        if is_small_step_back(self.end, now, period, quota.window_us()) {
            return period.end;
        }
        // A large backward step. Usage keeps counting until the end of its window, but for at most
        // one window from now. If it ended with the window that is entered again, every step would
        // grant the limit again.
        self.end = self.end.min(quota.latest_end(now));
        now
    }
}

/// Whether `now` is so little before the counter's window that the clock stepped back over the
/// boundary. The request is then decided at the boundary.
pub(super) fn is_small_step_back(counted_end: u64, now: u64, period: Period, window: u64) -> bool {
    counted_end == period.next_end && period.end - now <= small_step_us(window)
}

#[cfg(test)]
#[cfg(feature = "time-zones")]
mod tests {
    use super::*;
    use crate::quota::Calendar;

    /// A snapshot by the time zone data of before must not give a month's limit twice.
    #[test]
    fn a_saved_window_by_other_time_zone_data_counts_until_the_later_end() {
        let quota = Quota::calendar(10, Calendar::month().with_time_zone("Europe/Berlin").unwrap());
        let now = 1_795_672_800_000_000;
        let (end, hour) = (quota.period(now).end, 3_600_000_000);
        let ages = Ages { at_us: now };
        for (saved, expected) in [
            (end, end),
            (end - hour, end),
            (end - 24 * hour, end),
            (end + hour, end + hour),
            (end - 48 * hour, end - 48 * hour),
        ] {
            let mut loaded = FixedWindow::load((ages.of(saved), 7), ages, &quota, now).unwrap();
            assert_eq!(loaded.settle(&quota, now), now);
            assert_eq!((loaded.end, loaded.used), (expected, 7), "saved until {saved}");
            loaded.settle(&quota, expected - 1);
            assert_eq!(loaded.used, 7);
            loaded.settle(&quota, expected);
            assert_eq!(loaded.used, 0);
        }
    }
}

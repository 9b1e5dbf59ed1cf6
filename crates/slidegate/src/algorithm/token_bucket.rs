//! Token bucket: a bucket that every charge fills and that drains by `limit` per window.
//!
//! The content is kept as whole cost and a fraction whose denominator is the window, so nothing is ever rounded:
//! a year of draining one microsecond at a time is exact. It is the generic cell rate algorithm (ITU-T I.371, virtual
//! scheduling) told from the other side: content times window / limit is its theoretical arrival time less now.
//! What it gets wrong, measured as a window: `burst` at once and `limit` after it, up to `burst + limit - 1` in one.

use super::{State, small_step_us};
use crate::quota::Quota;
use crate::usage::Run;

/// 24 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    /// When the content was computed, in microseconds since the epoch.
    at: u64,
    /// Whole cost in the bucket.
    level: u64,
    /// The rest of the content, in cost times microseconds; less than the window.
    fraction: u64,
}

/// What drains in a microsecond, in cost per window. A limit of zero drains as one: what it had counted is forgotten.
fn rate(quota: &Quota) -> u64 {
    quota.limit().max(1)
}

impl TokenBucket {
    /// A bucket as a script told it.
    #[cfg(feature = "redis")]
    pub(crate) fn told(at: u64, level: u64, fraction: u64) -> Self {
        Self { at, level, fraction }
    }

    /// The content in cost times microseconds. Fits 128 bits: 2^64 times a window under 2^45.
    #[inline]
    fn content(&self, quota: &Quota) -> u128 {
        u128::from(self.level) * u128::from(quota.window_us()) + u128::from(self.fraction)
    }

    /// Drops what is above [`Quota::max_used`]: a limit that was lowered may leave more, and would be paid off for as
    /// many windows. Where usage is written down, so that what a store keeps has a bounded life.
    fn bound(&mut self, quota: &Quota) {
        let max = quota.max_used();
        if self.level.saturating_add(u64::from(self.fraction > 0)) > max {
            (self.level, self.fraction) = (max, 0);
        }
    }

    /// Takes away so much whole cost and such a fraction of one, down to nothing.
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
    #[inline(always)]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        if now < self.at {
            let empty = self.level == 0 && self.fraction == 0;
            if !empty && self.at - now <= small_step_us(quota.window_us()) {
                return self.at;
            }
            self.at = now;
            self.bound(quota);
            return now;
        }
        let drained = u128::from(now - self.at) * u128::from(rate(quota));
        self.at = now;
        match u64::try_from(drained) {
            // Less than one since the last decision is common, and told without a division.
            Ok(drained) if drained < quota.window_us() => self.drain((0, drained), quota.window_us()),
            Ok(drained) => self.drain(quota.by_window().div_rem(drained), quota.window_us()),
            Err(_) => {
                let left = self.content(quota).saturating_sub(drained);
                (self.level, self.fraction) = quota.by_window().div_rem_wide(left);
            }
        }
        now
    }

    /// A fraction counts in cost times microseconds of the window, so under another window it rounds up to a whole.
    fn adopt(&mut self, quota: &Quota, now: u64) {
        self.level = self.used(quota, now);
        self.fraction = 0;
    }

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.level.saturating_add(u64::from(self.fraction > 0))
    }

    #[inline]
    fn sinks_us(&self, quota: &Quota, _now: u64, room: u64) -> u64 {
        let above = u128::from(self.level - room) * u128::from(quota.window_us()) + u128::from(self.fraction);
        quota.by_limit().ceil_wide(above)
    }

    /// One less counts when the fraction is gone, or else a whole.
    #[inline]
    fn frees_us(&self, quota: &Quota, _now: u64) -> u64 {
        if self.level == u64::MAX && self.fraction > 0 {
            return self.sinks_us(quota, self.at, u64::MAX - 1);
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
        self.bound(quota);
        given
    }

    /// It knows how much, and not when.
    fn charges(&self, _quota: &Quota) -> Vec<Run> {
        Vec::new()
    }
}

//! Token bucket: a bucket that every charge fills and that drains by `limit` per window.
//!
//! The content is kept as whole cost and a fraction whose denominator is the window, so nothing is ever rounded:
//! a year of draining one microsecond at a time is exact. It is the generic cell rate algorithm (ITU-T I.371, virtual
//! scheduling) told from the other side: content times window / limit is its theoretical arrival time less now.
//! What it gets wrong, measured as a window: `burst` at once and `limit` after it, up to `burst + limit - 1` in one.

use super::{State, small_step_us};
use crate::quota::Quota;

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
    /// The content in cost times microseconds. Fits 128 bits: 2^64 times a window under 2^45.
    #[inline]
    fn content(&self, quota: &Quota) -> u128 {
        u128::from(self.level) * u128::from(quota.window_us()) + u128::from(self.fraction)
    }
}

impl State for TokenBucket {
    #[inline]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        if now < self.at {
            let empty = self.level == 0 && self.fraction == 0;
            if !empty && self.at - now <= small_step_us(quota.window_us()) {
                return self.at;
            }
            self.at = now;
            return now;
        }
        let drained = u128::from(now - self.at) * u128::from(rate(quota));
        let left = self.content(quota).saturating_sub(drained);
        (self.level, self.fraction) = quota.by_window().div_rem_wide(left);
        self.at = now;
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
}

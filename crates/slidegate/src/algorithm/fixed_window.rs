//! Fixed window: one counter, forgotten at every multiple of the window since the Unix epoch.
//!
//! What it gets wrong: a client that spends the limit just before a border and again just after it gets twice the
//! limit within moments. `lua/fixed_window.lua` will be its twin.

use super::{State, small_step_us};
use crate::quota::Quota;

/// 16 bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FixedWindow {
    /// When the counter is forgotten, in microseconds since the epoch; 0 when nothing was ever charged.
    end: u64,
    /// Cost charged in the window that ends there.
    used: u64,
}

/// The end of the window that `now` lies in.
#[inline]
pub(super) fn window_end(quota: &Quota, now: u64) -> u64 {
    let window = quota.window_us();
    (quota.by_window().floor(now) * window).saturating_add(window)
}

impl State for FixedWindow {
    #[inline]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        let end = window_end(quota, now);
        if end == self.end { now } else { self.roll(quota, now, end) }
    }

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    #[inline]
    fn sinks_us(&self, _quota: &Quota, now: u64, _room: u64) -> u64 {
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
}

impl FixedWindow {
    /// `now` lies in the window that ends at `end` and the counter does not: time went on or stepped back, or the
    /// quota's window changed.
    #[cold]
    fn roll(&mut self, quota: &Quota, now: u64, end: u64) -> u64 {
        let window = quota.window_us();
        if is_small_step_back(self.end, now, end, window) {
            return end;
        }
        // The usage still counts if its window reaches into the one of now.
        if self.end <= end.saturating_sub(window) {
            self.used = 0;
        }
        self.end = end;
        now
    }
}

/// Whether `now` is just short of the counter's own window: the clock went back over the border by so little that it
/// is decided at the border instead.
pub(super) fn is_small_step_back(counted_end: u64, now: u64, end: u64, window: u64) -> bool {
    counted_end.checked_sub(window) == Some(end) && end - now <= small_step_us(window)
}

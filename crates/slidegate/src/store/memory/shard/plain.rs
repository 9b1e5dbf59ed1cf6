//! Checks of which only the verdict is asked.

use super::{Address, Call, SWEEP_EVERY, Shard, Stored, expiry, time_for};
use crate::algorithm::{State, fits, for_algorithm};
use crate::quota::Quota;
use crate::time::Moment;

impl Shard {
    /// Applies a check without computing the numbers of its decision. Returns whether it is allowed.
    ///
    /// Takes the parts of a call, which is on the stack only where few checks need it.
    #[inline(always)]
    pub(in crate::store::memory) fn admits<'c>(
        &mut self,
        (address, quota, cost, now): (&Address, &Quota, u64, Moment),
        call: impl FnOnce() -> Call<'c>,
    ) -> bool {
        if self.held.is_some() || self.is_sweep_due() {
            return self.apply(&call()).is_allowed();
        }
        for_algorithm!(quota.algorithm(), S => self.admits_in::<S>((address, quota, cost, now), call))
    }

    #[inline(always)] // as `apply_to`
    fn admits_in<'c, S: Stored>(
        &mut self,
        (address, quota, cost, now): (&Address, &Quota, u64, Moment),
        call: impl FnOnce() -> Call<'c>,
    ) -> bool {
        let Some(at) = S::table(self).find(address) else { return self.apply(&call()).is_allowed() };
        self.done = self.done.wrapping_add(1);
        let slot = S::table(self).slot(at);
        let time = time_for::<S>(now).as_micros();
        let heap_bytes = State::heap_bytes(&slot.state);
        let settled = slot.state.settle(quota, time);
        let fits = fits(&slot.state, quota, settled, cost);
        if fits {
            slot.state.charge(quota, settled, cost);
            let used = slot.state.used(quota, settled);
            let reset_us = if used > 0 { slot.state.wait_us(quota, settled, 0) } else { 0 };
            let lag = settled.saturating_sub(time);
            slot.note(quota.share_of(used), expiry(now, reset_us.saturating_add(lag)));
        }
        let heap_bytes_now = State::heap_bytes(&slot.state);
        if heap_bytes_now != heap_bytes {
            self.resized(heap_bytes, heap_bytes_now, &call());
        }
        fits
    }

    /// Whether the next decision sweeps.
    #[inline]
    fn is_sweep_due(&self) -> bool {
        self.done.wrapping_add(1).is_multiple_of(SWEEP_EVERY)
    }
}

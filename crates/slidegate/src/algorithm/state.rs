//! The interface of an algorithm: a [`State`] with pure functions on integers, in microseconds.
//!
//! It knows no key, store or clock; the time is an argument. Numbers that must be equal in every
//! store are computed only here.

use std::time::Duration;

use crate::decision::{Decision, HoldBound, Verdict, Waits};
use crate::quota::Quota;
use crate::time::{SECOND_US, Timestamp};
use crate::usage::{KeyInspection, RecordedCharge, UsageForecast};
use crate::verb::Verb;

/// The usage of one key under one algorithm. `default()` is an unused key.
///
/// `now` is in microseconds since the epoch. Every method except [`settle`](Self::settle) requires
/// a `now` that `settle` returned, with only charges and refunds in between.
pub trait State: Default + Clone + std::fmt::Debug {
    /// Whether `now` is the date, which can be corrected in both directions, and not elapsed time.
    /// A shared store has only one time, the server's.
    const ALIGNS_TO_DATE: bool = false;

    /// Returned by [`forecast`](Self::forecast).
    type Forecast: State;

    /// Advances the state to `now` and drops what no longer counts. Returns the time to decide at,
    /// which is `now` unless the clock has stepped back.
    fn settle(&mut self, quota: &Quota, now: u64) -> u64;

    /// Converts the state, settled to `now` under the quota `old`, to a quota with another window.
    /// Usage that counts keeps counting.
    fn adopt(&mut self, old: &Quota, quota: &Quota, now: u64);

    /// Cost that counts now, rounded up.
    fn used(&self, quota: &Quota, now: u64) -> u64;

    /// Microseconds until at most `target` counts, if nothing more is charged. `target` must be
    /// less than what counts now.
    ///
    /// Every wait is computed by this: until a cost fits, until some cost is freed, until nothing
    /// counts.
    fn wait_us(&self, quota: &Quota, now: u64, target: u64) -> u64;

    /// Microseconds until some cost is freed, which every decision needs. Some algorithms compute
    /// it faster than [`wait_us`](Self::wait_us). Something must count now.
    #[inline(always)]
    fn frees_us(&self, quota: &Quota, now: u64) -> u64 {
        self.wait_us(quota, now, self.used(quota, now) - 1)
    }

    /// Charges `cost` whether or not it fits. The caller bounds the total to [`Quota::max_used`].
    fn charge(&mut self, quota: &Quota, now: u64, cost: u64);

    /// Refunds up to `cost` of what was charged and still counts. Returns the refunded cost.
    fn refund(&mut self, quota: &Quota, now: u64, cost: u64) -> u64;

    /// A copy that later charges can be added to, to forecast waits. A log leaves out its entries, of
    /// which none counts longer than a charge that is yet to come.
    fn forecast(&self) -> Self::Forecast;

    /// Microseconds until at most `target` counts of what a [`forecast`](Self::forecast) leaves out.
    fn left_out_us(&self, _quota: &Quota, _now: u64, _target: u64) -> u64 {
        0
    }

    /// Microseconds from `now` until nothing counts, if this cost is charged then and nothing after
    /// it. `now` is not before the time that the state was settled to.
    fn wait_after_charge(mut self, quota: &Quota, now: u64, cost: u64) -> u64 {
        let settled = self.settle(quota, now);
        charge(&mut self, quota, settled, cost);
        if self.used(quota, settled) > 0 { self.wait_us(quota, settled, 0) } else { 0 }
    }

    /// The charges with their times, oldest first, as far as they are stored.
    fn charges(&self, quota: &Quota) -> Vec<RecordedCharge>;

    /// Bytes of the state that are on the heap.
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        0
    }

    /// Maximum heap bytes after any history of this many entries of at most this cost.
    fn most_heap_bytes(_quota: &Quota, _entries: u64, _cost: u64) -> usize {
        0
    }
}

/// The wait when the store holds as much as it may: when a hold of another key ends is not known.
pub(super) const NO_MORE_HOLDS_US: u64 = SECOND_US;

/// Maximum number of steps in a forecast.
const MAX_STEPS: u64 = 20;

/// The full usage of a key, with the decision of a peek at `cost`.
pub(crate) fn inspect<S: State>(mut state: S, quota: &Quota, now: Timestamp, cost: u64) -> KeyInspection {
    let settled = state.settle(quota, now.as_micros());
    let done = perform(&mut state, quota, settled, Verb::Peek, cost);
    let decision = decision(&state, quota, now, settled, done);
    let used = decision.used;
    let lag = settled.saturating_sub(now.as_micros());
    let steps = used.min(MAX_STEPS);
    let forecast = (1..=steps).map(|step| {
        let free = u128::from(used) * u128::from(step) / u128::from(steps);
        let left = used - u64::try_from(free).unwrap_or(used);
        let wait_us = state.wait_us(quota, settled, left).saturating_add(lag);
        UsageForecast { after: Duration::from_micros(wait_us), used: left }
    });
    let mut forecast: Vec<_> = forecast.collect();
    // A fixed window frees all at once.
    forecast.dedup_by(|later, step| {
        step.after == later.after && {
            step.used = later.used;
            true
        }
    });
    let charges = if used == 0 { Vec::new() } else { state.charges(quota) };
    KeyInspection { quota: *quota, decision, charges, forecast, holds: Vec::new() }
}

/// Whether `cost` fits in addition to what counts now. A cost of 0 always fits.
#[inline]
pub(crate) fn fits<S: State>(state: &S, quota: &Quota, now: u64, cost: u64) -> bool {
    cost <= quota.capacity().saturating_sub(state.used(quota, now))
}

/// Charges a cost, up to the most that a key counts. Returns the charged cost.
pub(crate) fn charge<S: State>(state: &mut S, quota: &Quota, at: u64, cost: u64) -> u64 {
    let cost = cost.min(quota.max_used().saturating_sub(state.used(quota, at)));
    state.charge(quota, at, cost);
    cost
}

/// The effect of a verb on the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerbEffect {
    /// The cost fits. This much was charged or refunded; 0 for a peek.
    Moved(u64),
    /// The cost does not fit.
    Refused(u64),
    /// It fits, and there may be no more holds.
    NoMoreHolds(HoldBound),
}

impl VerbEffect {
    /// Whether something was charged or refunded.
    pub fn has_moved(self) -> bool {
        matches!(self, Self::Moved(cost) if cost > 0)
    }

    /// The bound of holds that denies it.
    #[inline]
    pub fn hold_bound(self) -> Option<HoldBound> {
        if let Self::NoMoreHolds(bound) = self { Some(bound) } else { None }
    }
}

/// Applies a verb to the state.
#[inline(always)] // as `decision`
pub fn perform<S: State>(state: &mut S, quota: &Quota, settled: u64, verb: Verb, cost: u64) -> VerbEffect {
    match verb {
        Verb::Check | Verb::Peek if !fits(state, quota, settled, cost) => VerbEffect::Refused(cost),
        Verb::Peek => VerbEffect::Moved(0),
        Verb::Refund => VerbEffect::Moved(state.refund(quota, settled, cost)),
        Verb::Check => {
            state.charge(quota, settled, cost);
            VerbEffect::Moved(cost)
        }
        Verb::Penalize => {
            // Without this bound, one penalty could close a bucket for years, and two could exceed
            // what stores can count.
            VerbEffect::Moved(charge(state, quota, settled, cost))
        }
    }
}

/// The decision after the verb was applied.
///
/// `now` is the clock's time and `settled` the time of the decision. After a backward step
/// `settled` is later, and the waits are extended until the clock has caught up.
#[inline(always)] // an answer that is returned through memory costs a decision a tenth
pub fn decision<S: State>(
    state: &S,
    quota: &Quota,
    now: Timestamp,
    settled: u64,
    done: VerbEffect,
) -> Decision {
    let used = state.used(quota, settled);
    let limit = quota.capacity();
    let lag = settled.saturating_sub(now.as_micros());
    let late = |wait_us: u64| wait_us.saturating_add(lag);
    let (verdict, cost, retry_us) = match done {
        VerbEffect::Moved(cost) => (Verdict::Allow, cost, 0),
        VerbEffect::Refused(cost) if cost > limit => (Verdict::Deny, 0, Waits::NEVER),
        VerbEffect::Refused(cost) => (Verdict::Deny, 0, late(state.wait_us(quota, settled, limit - cost))),
        VerbEffect::NoMoreHolds(_) => (Verdict::Deny, 0, NO_MORE_HOLDS_US),
    };
    let (reset_us, frees_us) = match used {
        0 => (0, 0),
        _ => (late(state.wait_us(quota, settled, 0)), late(state.frees_us(quota, settled))),
    };
    let remaining = limit.saturating_sub(used);
    let waits = Waits { retry_us, reset_us, frees_us };
    let hold_bound = done.hold_bound();
    Decision { verdict, used, remaining, cost, hold_bound, waits, ..Decision::unused(limit, now) }
}

/// The largest backward step of the clock that is waited out. A larger step moves the history back.
///
/// Waiting out a step delays charges made meanwhile by as much. Moving the history makes old
/// charges count longer. Clock synchronization usually steps by less than a second.
pub(super) fn small_step_us(window_us: u64) -> u64 {
    window_us.min(SECOND_US)
}

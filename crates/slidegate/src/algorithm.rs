//! The four algorithms: pure functions on integers, in microseconds.
//!
//! Each is a state and the same five steps on it, [`State`]. None knows a key, a store or a clock: what time it is,
//! it is told. Numbers that must come out the same in every store are computed here and nowhere else.

use std::time::Duration;

use crate::decision::{Decision, Source, Verdict, Waits};
use crate::quota::Quota;
use crate::time::{SECOND_US, Timestamp};
use crate::usage::{Found, Room, Run};
use crate::verb::Verb;

pub(crate) mod fixed_window;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;
#[cfg(feature = "redis")]
pub(crate) mod told_log;

pub(crate) use fixed_window::FixedWindow;
pub(crate) use sliding_log::SlidingLog;
pub(crate) use sliding_window::SlidingWindow;
pub(crate) use token_bucket::TokenBucket;
#[cfg(feature = "redis")]
pub(crate) use told_log::ToldLog;

/// What one key has used, under one algorithm. `default()` is a key that was never charged.
///
/// `now` is in microseconds since the epoch. Every call but [`settle`](Self::settle) takes the `now` that `settle`
/// returned, on a state that only charges and refunds have changed since.
pub(crate) trait State: Default + std::fmt::Debug {
    /// Whether `now` is the date, which may be corrected both ways, and not a time that only elapses. In a shared store
    /// there is but one time, the server's.
    const ALIGNS_TO_DATE: bool = false;

    /// Brings the state to `now`: drops what no longer counts. Returns the time to decide at, which is `now` unless the
    /// clock has stepped back.
    fn settle(&mut self, quota: &Quota, now: u64) -> u64;

    /// Fits the state, settled to `now` under a quota with another window, to this one: what it counts, counts on.
    fn adopt(&mut self, quota: &Quota, now: u64);

    /// Cost that counts now, rounded up.
    fn used(&self, quota: &Quota, now: u64) -> u64;

    /// Microseconds until no more than `room` counts, if nothing more is charged; `room` is less than counts now.
    ///
    /// All waits are this one: until a cost fits, until something is free, until nothing counts.
    fn sinks_us(&self, quota: &Quota, now: u64, room: u64) -> u64;

    /// The same until something is free: every decision asks for that, and some algorithms know it with less work.
    /// Something counts now.
    #[inline(always)]
    fn frees_us(&self, quota: &Quota, now: u64) -> u64 {
        self.sinks_us(quota, now, self.used(quota, now) - 1)
    }

    /// Charges `cost` whether it fits or not, at most up to [`Quota::max_used`].
    fn charge(&mut self, quota: &Quota, now: u64, cost: u64);

    /// Gives back up to `cost` of what was charged and still counts; returns how much that was.
    fn refund(&mut self, quota: &Quota, now: u64, cost: u64) -> u64;

    /// What was charged and when, the oldest first, as far as that is remembered.
    fn charges(&self, quota: &Quota) -> Vec<Run>;
}

/// Steps in which usage is said to become free.
const MOST_ROOM: u64 = 20;

/// Everything there is to know of a key, with what a peek at `cost` says.
pub(crate) fn inspect<S: State>(mut state: S, quota: &Quota, now: Timestamp, cost: u64) -> Found {
    let settled = state.settle(quota, now.as_micros());
    let done = perform(&mut state, quota, settled, Verb::Peek, cost);
    let decision = decision(&state, quota, now, settled, done);
    let used = decision.used;
    let lag = settled.saturating_sub(now.as_micros());
    let steps = used.min(MOST_ROOM);
    let room = (1..=steps).map(|step| {
        let free = u128::from(used) * u128::from(step) / u128::from(steps);
        let left = used - u64::try_from(free).unwrap_or(used);
        let wait_us = state.sinks_us(quota, settled, left).saturating_add(lag);
        Room { after: Duration::from_micros(wait_us), used: left }
    });
    let charges = if used == 0 { Vec::new() } else { state.charges(quota) };
    Found { quota: *quota, decision, charges, room: room.collect() }
}

/// Whether `cost` fits beside what counts now. A cost of zero always does.
#[inline]
fn fits<S: State>(state: &S, quota: &Quota, now: u64, cost: u64) -> bool {
    cost <= quota.capacity().saturating_sub(state.used(quota, now))
}

/// What was done with a request's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    /// It fits; this much was charged or given back, or nothing if it was only looked at.
    Moved(u64),
    /// It does not fit.
    Refused(u64),
}

/// Charges, gives back or looks, as the verb says.
#[inline(always)] // as `decision`
pub(crate) fn perform<S: State>(state: &mut S, quota: &Quota, settled: u64, verb: Verb, cost: u64) -> Done {
    match verb {
        Verb::Check | Verb::Peek if !fits(state, quota, settled, cost) => Done::Refused(cost),
        Verb::Peek => Done::Moved(0),
        Verb::Refund => Done::Moved(state.refund(quota, settled, cost)),
        Verb::Check => {
            state.charge(quota, settled, cost);
            Done::Moved(cost)
        }
        Verb::Penalize => {
            // Without a bound, one penalty would close a bucket for years, and two would count past what stores can.
            let cost = cost.min(quota.max_used().saturating_sub(state.used(quota, settled)));
            state.charge(quota, settled, cost);
            Done::Moved(cost)
        }
    }
}

/// The answer after all is done.
///
/// `now` is the clock's time, `settled` the one decided at: later after a step back of the clock, and then the waits
/// last until the clock has caught up as well.
#[inline(always)] // an answer that is returned through memory costs a decision a tenth
pub(crate) fn decision<S: State>(
    state: &S,
    quota: &Quota,
    now: Timestamp,
    settled: u64,
    done: Done,
) -> Decision {
    let used = state.used(quota, settled);
    let limit = quota.capacity();
    let lag = settled.saturating_sub(now.as_micros());
    let late = |wait_us: u64| wait_us.saturating_add(lag);
    let (verdict, cost, retry_us) = match done {
        Done::Moved(cost) => (Verdict::Allow, cost, 0),
        Done::Refused(cost) if cost > limit => (Verdict::Deny, 0, Waits::NEVER),
        Done::Refused(cost) => (Verdict::Deny, 0, late(state.sinks_us(quota, settled, limit - cost))),
    };
    let (reset_us, frees_us) = match used {
        0 => (0, 0),
        _ => (late(state.sinks_us(quota, settled, 0)), late(state.frees_us(quota, settled))),
    };
    let remaining = limit.saturating_sub(used);
    let waits = Waits { retry_us, reset_us, frees_us };
    let (at, source, is_blocked) = (now, Source::Store, false);
    Decision { verdict, limit, used, remaining, cost, at, source, is_blocked, waits }
}

/// The largest step back of a clock that is waited out; a larger one moves the history along.
///
/// Waiting out a step delays what is charged meanwhile by as much; moving history makes old charges count longer.
/// A second is what clock synchronisation does without anyone noticing.
fn small_step_us(window_us: u64) -> u64 {
    window_us.min(SECOND_US)
}

//! A key's state together with its holds: held cost counts like used cost.
//!
//! The rule is the same for every algorithm, so algorithms know no holds. Everything admitted with
//! holds, the algorithm alone would have admitted on the real history: usage only falls with time,
//! and a charge at a later time never counts less.

use super::for_algorithm;
use super::saved::SavedState;
use super::state::{NO_MORE_HOLDS_US, State, VerbEffect, charge, inspect, small_step_us};
use crate::decision::{Decision, HoldBound, Verdict, Waits};
use crate::hold::{
    DEFAULT_TTL_US, EndedHold, HoldChange, HoldList, HoldStatus, HoldVec, Holds, MAX_TTL, NewHold, Unsettled,
};
use crate::quota::{Algorithm, Quota};
use crate::time::{Timestamp, micros};
use crate::usage::KeyInspection;
use crate::verb::Verb;

/// A key with holds at one time, settled: expired holds are charged as of their ends.
#[derive(Debug)]
pub struct HeldKey<'k, S, L = HoldVec> {
    /// Usage.
    pub state: &'k mut S,
    /// Open holds.
    pub holds: &'k mut Holds<L>,
    quota: &'k Quota,
    /// The time by the state's clock, and by that of the holds. A store in process counts some
    /// algorithms by the date, and holds by elapsed time.
    now: Timestamp,
    at: Timestamp,
    /// The times to decide at; later than `now` after a small step of the clock back.
    settled: u64,
    arrived: u64,
}

impl<'k, S: State, L: HoldList> HeldKey<'k, S, L> {
    /// Settles a key: `now` is the time that the state counts by, `at` that of the holds.
    pub fn settle(
        state: &'k mut S,
        holds: &'k mut Holds<L>,
        quota: &'k Quota,
        now: Timestamp,
        at: Timestamp,
    ) -> Self {
        let arrived = holds.arrive(at.as_micros(), small_step_us(quota.window_us()));
        let due = holds.take_due(arrived);
        let mut key = Self { state, holds, quota, now, at, settled: 0, arrived };
        for hold in due {
            let cost = hold.charged_at_end();
            if cost > 0 {
                let end = key.state.settle(quota, key.on_state_scale(hold.until));
                key.charge(end, cost);
            }
        }
        key.settled = key.state.settle(quota, now.as_micros());
        key
    }

    /// A key that a script or a stored value has settled already.
    pub fn settled(
        state: &'k mut S,
        holds: &'k mut Holds<L>,
        quota: &'k Quota,
        now: Timestamp,
        settled: u64,
    ) -> Self {
        let arrived = holds.seen();
        Self { state, holds, quota, now, at: now, settled, arrived }
    }

    /// Applies a verb. A check that reserves holds the cost instead of charging it, unless the key
    /// or the store has no room for another hold.
    pub fn perform(&mut self, verb: Verb, cost: u64, new: Option<&NewHold>, room: usize) -> VerbEffect {
        match (verb, new) {
            (Verb::Check | Verb::Peek, _) if !self.fits(cost) => VerbEffect::Refused(cost),
            // A peek reports it too: all keys of a request are peeked at before one is charged.
            (Verb::Check | Verb::Peek, Some(_)) if cost > 0 && self.holds.is_full() => {
                VerbEffect::NoMoreHolds(HoldBound::Key)
            }
            (Verb::Check | Verb::Peek, Some(_)) if cost > 0 && self.holds.count() >= room => {
                VerbEffect::NoMoreHolds(HoldBound::Store)
            }
            (Verb::Peek, _) => VerbEffect::Moved(0),
            (Verb::Check, Some(_)) if cost == 0 => VerbEffect::Moved(0),
            (Verb::Check, Some(new)) => {
                self.holds.add(new, self.arrived, cost);
                VerbEffect::Moved(cost)
            }
            (Verb::Check | Verb::Penalize, _) => VerbEffect::Moved(self.charge(self.settled, cost)),
            (Verb::Refund, _) => VerbEffect::Moved(self.state.refund(self.quota, self.settled, cost)),
        }
    }

    /// Whether a change of the hold fits. Only extensions can fail.
    pub fn change_fits(&self, id: u64, change: &HoldChange) -> bool {
        match (change, self.holds.find(id)) {
            (HoldChange::Extend { total: Some(total), .. }, Some(at)) => {
                let hold = self.holds.get(at);
                let more = total.saturating_sub(hold.held + hold.settled);
                hold.has_ended || self.fits(more)
            }
            _ => true,
        }
    }

    /// Changes a hold. Returns the outcome and the charged cost.
    pub fn change(&mut self, id: u64, change: &HoldChange, ended: &EndedHold) -> (HoldStatus, VerbEffect) {
        if let HoldChange::Refund { cost } = *change {
            return self.refund(id, cost);
        }
        let Some(at) = self.holds.find(id) else { return self.change_ended(id, change, ended) };
        let status = match (self.holds.get(at).has_ended, change) {
            (false, _) => HoldStatus::Changed,
            (true, HoldChange::Settle { .. }) => HoldStatus::Expired,
            (true, _) => return (HoldStatus::Expired, VerbEffect::Moved(0)),
        };
        match *change {
            HoldChange::Settle { total, ttl_us } => {
                let next = ttl_us.map(|ttl_us| self.arrived.saturating_add(ttl_us));
                let cost = self.holds.settle(at, total, next);
                (status, VerbEffect::Moved(self.charge(self.settled, cost)))
            }
            HoldChange::Cancel | HoldChange::Refund { .. } => {
                self.holds.settle(at, 0, None);
                (HoldStatus::Changed, VerbEffect::Moved(0))
            }
            HoldChange::Extend { total, ttl_us } => {
                let hold = self.holds.get(at);
                let held = total.map_or(hold.held, |total| total.saturating_sub(hold.settled));
                let more = held.saturating_sub(hold.held);
                if !self.fits(more) {
                    return (HoldStatus::Denied, VerbEffect::Refused(more));
                }
                self.holds.extend(at, held, self.arrived.saturating_add(ttl_us));
                (HoldStatus::Changed, VerbEffect::Moved(0))
            }
        }
    }

    /// Ends a reservation that holds nothing on this key, and refunds what was charged at once.
    /// Later changes find it ended. Without room to record that, nothing is refunded.
    fn refund(&mut self, id: u64, cost: u64) -> (HoldStatus, VerbEffect) {
        if self.holds.find(id).is_some() {
            return (HoldStatus::AlreadySettled, VerbEffect::Moved(0));
        }
        if self.holds.is_full() {
            return (HoldStatus::Changed, VerbEffect::Moved(0));
        }
        // After that, the charge no longer counts, or the caller has long given up.
        let kept_us = self.quota.window_us().min(micros(MAX_TTL));
        self.holds.add_ended(id, 0, self.arrived.saturating_add(kept_us));
        (HoldStatus::Changed, VerbEffect::Moved(self.state.refund(self.quota, self.settled, cost)))
    }

    fn change_ended(&mut self, id: u64, change: &HoldChange, ended: &EndedHold) -> (HoldStatus, VerbEffect) {
        let status = if ended.is_over { HoldStatus::Expired } else { HoldStatus::AlreadySettled };
        let cost = match (change, ended.is_over, ended.unsettled) {
            // A permit is returned when its time is over, without a charge.
            _ if self.quota.algorithm() == Algorithm::InFlight => 0,
            (HoldChange::Settle { total, .. }, true, Unsettled::Charge) => total.saturating_sub(ended.amount),
            (HoldChange::Settle { total, .. }, true, Unsettled::Forget) => *total,
            _ => 0,
        };
        if cost > 0 {
            // A late settlement may also be repeated.
            let settled = match ended.unsettled {
                Unsettled::Charge => ended.amount.saturating_add(cost),
                Unsettled::Forget => cost,
            };
            self.holds.add_ended(id, settled, self.arrived.saturating_add(DEFAULT_TTL_US));
        }
        (status, VerbEffect::Moved(self.charge(self.settled, cost)))
    }

    /// The decision after a verb or a change. Held cost does not remain, and the waits assume that
    /// each hold lasts to its end.
    pub fn decision(&self, done: VerbEffect) -> Decision {
        let (used, held, limit) = (self.used(), self.holds.sum(), self.quota.capacity());
        let lag = self.settled.saturating_sub(self.now.as_micros());
        let late = |wait_us: u64| wait_us.saturating_add(lag);
        let (verdict, cost, retry_us) = match done {
            VerbEffect::Moved(cost) => (Verdict::Allow, cost, 0),
            VerbEffect::Refused(cost) if cost > limit => (Verdict::Deny, 0, Waits::NEVER),
            VerbEffect::Refused(cost) => (Verdict::Deny, 0, late(self.wait_us(limit - cost))),
            // Nobody waits in an algorithm.
            VerbEffect::NoMoreHolds(HoldBound::Store | HoldBound::Queue) => {
                (Verdict::Deny, 0, NO_MORE_HOLDS_US)
            }
            VerbEffect::NoMoreHolds(HoldBound::Key) => {
                (Verdict::Deny, 0, late(self.on_state_scale(self.holds.earliest()) - self.settled))
            }
        };
        let reset_us = if used > 0 || held > 0 { late(self.reset_us()) } else { 0 };
        let frees_us = if used > 0 { late(self.state.frees_us(self.quota, self.settled)) } else { 0 };
        let remaining = limit.saturating_sub(used).saturating_sub(held);
        let waits = Waits { retry_us, reset_us, frees_us };
        let hold_bound = done.hold_bound();
        Decision {
            verdict,
            used,
            held,
            remaining,
            cost,
            hold_bound,
            waits,
            ..Decision::unused(limit, self.now)
        }
    }

    fn used(&self) -> u64 {
        self.state.used(self.quota, self.settled)
    }

    fn fits(&self, cost: u64) -> bool {
        let free = self.quota.capacity().saturating_sub(self.used()).saturating_sub(self.holds.sum());
        cost <= free
    }

    /// Charges a cost, up to the key's maximum. Returns the charged cost.
    fn charge(&mut self, at: u64, cost: u64) -> u64 {
        charge(self.state, self.quota, at, cost)
    }

    /// A time of the holds by the clock of the state.
    fn on_state_scale(&self, at: u64) -> u64 {
        let (state, base) = (self.now.as_micros(), self.at.as_micros());
        let time = match at.checked_sub(base) {
            Some(later) => state.saturating_add(later),
            None => state.saturating_sub(base - at),
        };
        time.max(self.settled)
    }

    /// Microseconds until at most `target` counts, if each hold lasts to its end.
    fn wait_us(&self, target: u64) -> u64 {
        let mut ends: Vec<_> = self.holds.iter().collect();
        ends.sort_unstable_by_key(|hold| (hold.until, hold.id));
        let mut later = self.state.forecast();
        let (mut time, mut held) = (self.settled, self.holds.sum());
        for hold in ends {
            let end = self.on_state_scale(hold.until).max(time);
            if let Some(fits) = self.fits_at(&later, time, target, held).filter(|fits| *fits <= end) {
                return fits - self.settled;
            }
            time = later.settle(self.quota, end);
            charge(&mut later, self.quota, time, hold.charged_at_end());
            held -= hold.held;
        }
        self.fits_at(&later, time, target, held).unwrap_or(time) - self.settled
    }

    /// When at most `target` counts with `held`, if nothing else happens after `time`.
    fn fits_at(&self, later: &S::Forecast, time: u64, target: u64, held: u64) -> Option<u64> {
        let target = target.checked_sub(held)?;
        let (wait_us, left) = match target.checked_sub(later.used(self.quota, time)) {
            Some(left) => (0, left),
            None => (later.wait_us(self.quota, time, target), 0),
        };
        let left_out_us = self.state.left_out_us(self.quota, self.settled, left);
        Some(time.saturating_add(wait_us).max(self.settled.saturating_add(left_out_us)))
    }

    /// Maximum microseconds until nothing counts and nothing is held.
    fn reset_us(&self) -> u64 {
        if self.holds.is_empty() {
            return self.state.wait_us(self.quota, self.settled, 0);
        }
        // Nothing counts any more if what is held is charged when the last hold ends.
        let time = self.on_state_scale(self.holds.latest());
        let charged_us = self.state.forecast().wait_after_charge(self.quota, time, self.holds.sum());
        let wait_us = (time - self.settled).saturating_add(charged_us);
        wait_us.max(self.state.left_out_us(self.quota, self.settled, 0))
    }
}

/// The full usage of a key with holds, with the decision of a peek at `cost`, and the holds that are
/// left. The times are those of [`HeldKey::settle`].
pub fn inspect_with_holds<S: State, L: HoldList>(
    mut state: S,
    mut holds: Holds<L>,
    quota: &Quota,
    (now, at): (Timestamp, Timestamp),
    cost: u64,
) -> (KeyInspection, Holds<L>) {
    if holds.is_empty() {
        return (inspect(state, quota, now, cost), holds);
    }
    let mut key = HeldKey::settle(&mut state, &mut holds, quota, now, at);
    let done = key.perform(Verb::Peek, cost, None, usize::MAX);
    let decision = key.decision(done);
    (KeyInspection { decision, ..inspect(state, quota, now, cost) }, holds)
}

/// The maximum that still counts of a cost charged at `made`. Both times are by the clock of the
/// state. A larger refund would remove later charges of others.
pub fn counts_still(quota: &Quota, cost: u64, made: Timestamp, now: Timestamp) -> u64 {
    for_algorithm!(quota.algorithm(), S => S::counts_still(quota, cost, made.as_micros(), now.as_micros()))
}

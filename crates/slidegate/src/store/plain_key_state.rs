//! Plain key states: the usage of one key without its quota, for stores outside of this crate that hold
//! very many keys and know the quota of each.
//!
//! A check can be asked and charged in two steps that compute no waits. That is what a replay of a
//! log needs of most requests, and it is the code that decides in every other store.

use std::time::Duration;

use crate::algorithm::{
    FixedWindow, InFlight, SlidingLog, SlidingWindow, State, TokenBucket, decision, perform,
};
use crate::decision::Decision;
use crate::quota::{Algorithm, Quota};
use crate::time::Timestamp;
use crate::verb::Verb;

/// The usage of one key under one algorithm: at most 64 bytes, besides a log of more than five
/// charges.
///
/// Every method is given the quota, which must be the same each time. A store whose quotas change
/// uses a [`KeyState`](super::KeyState).
///
/// ```
/// use slidegate::store::{PlainKeyState, Room};
/// use slidegate::{Quota, Timestamp, Verb};
///
/// let quota = Quota::per_minute(2);
/// let mut alice = PlainKeyState::new(quota.algorithm());
/// let now = Timestamp::from_secs(1_800_000_000);
/// assert_eq!(alice.room(&quota, 2, now), Room { used: 0, fits: true });
/// assert_eq!(alice.charge(&quota, 2, now), 2);
/// assert!(!alice.room(&quota, 1, now).fits);
/// assert!(alice.apply(&quota, Verb::Check, 1, now).is_denied());
/// ```
#[derive(Debug, Clone)]
pub struct PlainKeyState(AnyState);

/// What counts on a key, and whether a cost fits in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Cost that counts now, rounded up.
    pub used: u64,
    /// Whether the cost fits. A cost of 0 always fits.
    pub fits: bool,
}

#[derive(Debug, Clone)]
enum AnyState {
    SlidingLog(SlidingLog),
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
    InFlight(InFlight),
}

/// Runs an expression on the state, whatever its algorithm is.
macro_rules! for_state {
    ($usage:expr, $state:ident => $run:expr) => {
        match &mut $usage.0 {
            AnyState::SlidingLog($state) => $run,
            AnyState::SlidingWindow($state) => $run,
            AnyState::FixedWindow($state) => $run,
            AnyState::TokenBucket($state) => $run,
            AnyState::InFlight($state) => $run,
        }
    };
}

impl PlainKeyState {
    /// An unused key.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::SlidingLog => AnyState::SlidingLog(SlidingLog::default()),
            Algorithm::SlidingWindow => AnyState::SlidingWindow(SlidingWindow::default()),
            Algorithm::FixedWindow => AnyState::FixedWindow(FixedWindow::default()),
            Algorithm::TokenBucket => AnyState::TokenBucket(TokenBucket::default()),
            Algorithm::InFlight => AnyState::InFlight(InFlight),
        })
    }

    /// The longest time that a charge of 1 on an unused key counts: a store can forget it then
    /// without reading its state. `None` if the quota alone does not say.
    #[must_use]
    pub fn longest_life(quota: &Quota) -> Option<Duration> {
        let windows = match quota.algorithm() {
            // Timestamps are rounded up to a step.
            Algorithm::SlidingLog => {
                return Some(quota.window() + Duration::from_micros(quota.step_us()));
            }
            Algorithm::FixedWindow | Algorithm::TokenBucket => 1,
            Algorithm::SlidingWindow => 2,
            Algorithm::InFlight => return None,
        };
        // Credit rounds down.
        Some(quota.window() * windows + Duration::from_micros(1))
    }

    /// What counts at this time of the store's clock, and whether this cost fits: the verdict of a
    /// peek. Charges nothing.
    #[inline]
    pub fn room(&mut self, quota: &Quota, cost: u64, now: Timestamp) -> Room {
        for_state!(self, state => {
            let settled = state.settle(quota, now.as_micros());
            let used = state.used(quota, settled);
            Room { used, fits: cost <= quota.capacity().saturating_sub(used) }
        })
    }

    /// Charges a cost that [fits](Self::room) at this time, as a check does. Returns what counts
    /// then.
    #[inline]
    pub fn charge(&mut self, quota: &Quota, cost: u64, now: Timestamp) -> u64 {
        for_state!(self, state => {
            let settled = state.settle(quota, now.as_micros());
            state.charge(quota, settled, cost);
            state.used(quota, settled)
        })
    }

    /// Carries out a verb with a cost, and returns the decision with all its waits, as
    /// [`KeyState::apply`](super::KeyState::apply) does.
    pub fn apply(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision {
        for_state!(self, state => {
            let settled = state.settle(quota, now.as_micros());
            let done = perform(state, quota, settled, verb, cost);
            decision(state, quota, now, settled, done)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::KeyState;

    proptest! {
        /// A store that asks first and charges then must decide as one that checks.
        #[test]
        fn asking_and_charging_is_a_check(
            algorithm in prop::sample::select(&Algorithm::ALL[..]),
            (limit, window_us, slots) in (0..40_u64, 1_000..5_000_u64, 1..20_u16),
            steps in prop::collection::vec((0..8_u8, 0..6_u64, 0..2_000_u64), 1..120),
        ) {
            let quota = Quota::new(limit, Duration::from_micros(window_us)).unwrap();
            let quota = quota.with_algorithm(algorithm).with_slots(slots);
            let (mut ours, mut whole) = (PlainKeyState::new(algorithm), KeyState::new(&quota));
            let mut now = Timestamp::from_secs(1_800_000_000);
            for (step, cost, later_us) in steps {
                now = Timestamp::from_micros(now.as_micros() + later_us);
                let verb = match step {
                    0 => Verb::Peek,
                    1 => Verb::Refund,
                    2 => Verb::Penalize,
                    _ => Verb::Check,
                };
                let room = ours.room(&quota, cost, now);
                if step < 5 {
                    let expected = whole.apply(&quota, verb, cost, now);
                    prop_assert_eq!(ours.apply(&quota, verb, cost, now), expected);
                } else {
                    let expected = whole.apply(&quota, Verb::Check, cost, now);
                    prop_assert_eq!(room.fits, expected.is_allowed());
                    let used = if room.fits { ours.charge(&quota, cost, now) } else { room.used };
                    prop_assert_eq!(used, expected.used());
                }
            }
        }
    }

    proptest! {
        /// A store that forgets a charge too early admits too much; and it takes a first charge for
        /// what it is.
        #[test]
        fn a_first_charge_of_one_counts_as_one_and_no_longer_than_its_life(
            algorithm in prop::sample::select(&Algorithm::ALL[..]),
            (limit, burst, window_us, slots) in (1..4000_u64, 1..9000_u64, 1_000..90_000_000_u64, 1..2000_u16),
            at_us in 0..500_000_000_u64,
        ) {
            let quota = Quota::new(limit, Duration::from_micros(window_us)).unwrap();
            let quota = quota.with_algorithm(algorithm).with_slots(slots);
            let quota = if algorithm == Algorithm::TokenBucket { quota.with_burst(burst) } else { quota };
            if let Some(life) = PlainKeyState::longest_life(&quota) {
                let at = Timestamp::from_micros(1_800_000_000_000_000 + at_us);
                let mut state = PlainKeyState::new(algorithm);
                prop_assert_eq!(state.charge(&quota, 1, at), 1);
                prop_assert_eq!(state.room(&quota, 0, at + life).used, 0);
            }
        }
    }

    /// The documentation states the size.
    #[test]
    fn a_state_takes_64_bytes_at_most() {
        assert!(size_of::<PlainKeyState>() <= 64, "{}", size_of::<PlainKeyState>());
    }
}

//! Key states: the usage of one key under any algorithm, for stores outside of this crate.

use crate::algorithm::{
    FixedWindow, SlidingLog, SlidingWindow, State, TokenBucket, decision, inspect, perform,
};
use crate::decision::Decision;
use crate::quota::{Algorithm, Quota};
use crate::time::Timestamp;
use crate::usage::KeyInspection;
use crate::verb::Verb;

/// The usage of one key, and the quota that it was last decided under.
///
/// ```
/// use slidegate::store::KeyState;
/// use slidegate::{Quota, Timestamp, Verb};
///
/// let quota = Quota::per_minute(2);
/// let mut alice = KeyState::new(&quota);
/// let now = Timestamp::from_secs(1_800_000_000);
/// assert_eq!(alice.apply(&quota, Verb::Check, 2, now).used(), 2);
/// assert!(alice.apply(&quota, Verb::Check, 1, now).is_denied());
/// // Usage is kept under another quota.
/// assert!(alice.apply(&Quota::per_minute(3), Verb::Check, 1, now).is_allowed());
/// ```
#[derive(Debug, Clone)]
pub struct KeyState {
    quota: Quota,
    usage: Usage,
}

#[derive(Debug, Clone)]
enum Usage {
    SlidingLog(SlidingLog),
    SlidingWindow(SlidingWindow),
    FixedWindow(FixedWindow),
    TokenBucket(TokenBucket),
}

/// Runs an expression on the state, whatever its type.
macro_rules! on_usage {
    ($usage:expr, $state:ident => $run:expr) => {
        match $usage {
            Usage::SlidingLog($state) => $run,
            Usage::SlidingWindow($state) => $run,
            Usage::FixedWindow($state) => $run,
            Usage::TokenBucket($state) => $run,
        }
    };
}

impl KeyState {
    /// An unused key.
    #[must_use]
    pub fn new(quota: &Quota) -> Self {
        let usage = match quota.algorithm() {
            Algorithm::SlidingLog => Usage::SlidingLog(SlidingLog::default()),
            Algorithm::SlidingWindow => Usage::SlidingWindow(SlidingWindow::default()),
            Algorithm::FixedWindow => Usage::FixedWindow(FixedWindow::default()),
            Algorithm::TokenBucket => Usage::TokenBucket(TokenBucket::default()),
        };
        Self { quota: *quota, usage }
    }

    /// Carries out a verb with a cost under this quota, at this time of the store's clock.
    ///
    /// Usage counts by the former quota until now and by this one from now on, and starts afresh if
    /// the algorithm changes. A key whose decision says that [nothing is used](Decision::used) after
    /// this need not be kept. Takes constant time on average; a `sliding-log` takes time in
    /// proportion to the charges that expired.
    pub fn apply(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision {
        self.adopt(quota, now);
        on_usage!(&mut self.usage, state => {
            let settled = state.settle(quota, now.as_micros());
            let done = perform(state, quota, settled, verb, cost);
            decision(state, quota, now, settled, done)
        })
    }

    /// The full usage under this quota, with the decision of a peek at `cost`.
    #[must_use]
    pub fn inspect(&self, quota: &Quota, cost: u64, now: Timestamp) -> KeyInspection {
        let mut settled = self.clone();
        settled.adopt(quota, now);
        on_usage!(settled.usage, state => inspect(state, quota, now, cost))
    }

    fn adopt(&mut self, quota: &Quota, now: Timestamp) {
        if self.quota == *quota {
            return;
        }
        if self.quota.algorithm() == quota.algorithm() {
            on_usage!(&mut self.usage, state => {
                let settled = state.settle(&self.quota, now.as_micros());
                if self.quota.window_us() != quota.window_us() {
                    state.adopt(quota, settled);
                }
            });
            self.quota = *quota;
        } else {
            *self = Self::new(quota);
        }
    }
}

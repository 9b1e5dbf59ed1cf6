//! Key states: the usage of one key under any algorithm, for stores outside this crate.

use std::fmt;

use crate::algorithm::{State, decision, for_algorithm, inspect, perform};
use crate::decision::Decision;
use crate::quota::Quota;
use crate::time::Timestamp;
use crate::usage::KeyInspection;
use crate::verb::Verb;

/// The usage of one key, with the quota of its last charge.
///
/// ```
/// use slidegate::store::KeyState;
/// use slidegate::{Quota, clock::Timestamp, verb::Verb};
///
/// let quota = Quota::per_minute(2);
/// let mut alice = KeyState::new(&quota);
/// let now = Timestamp::from_secs(1_800_000_000);
/// assert_eq!(alice.apply(&quota, Verb::Check, 2, now).used(), 2);
/// assert!(alice.apply(&quota, Verb::Check, 1, now).is_denied());
/// // Usage is kept under another quota.
/// assert!(alice.apply(&Quota::per_minute(3), Verb::Check, 1, now).is_allowed());
/// ```
#[derive(Debug)]
pub struct KeyState {
    quota: Quota,
    usage: Box<dyn AnyState>,
}

impl KeyState {
    /// An unused key.
    #[must_use]
    pub fn new(quota: &Quota) -> Self {
        let usage = for_algorithm!(quota.algorithm(), S => Box::new(S::default()) as Box<dyn AnyState>);
        Self { quota: *quota, usage }
    }

    /// Applies a verb with a cost under this quota, at this time of the store's clock.
    ///
    /// A charge moves the key to this quota: usage counts by the former one until now and by this
    /// one from now on, and starts afresh if the algorithm changes. Without a charge the key keeps
    /// its quota, and a refund leaves it in its window. Once a decision reports that [nothing is
    /// used](Decision::used), the key can be dropped. Takes constant time on average; a
    /// `sliding-log` takes time proportional to the charges that expired.
    pub fn apply(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision {
        if self.quota == *quota {
            return self.usage.apply(quota, verb, cost, now);
        }
        let mut under = self.under(quota, now);
        if verb == Verb::Refund && self.quota.window_code() != quota.window_code() {
            // At most what counts under this quota.
            let counts = under.usage.apply(quota, Verb::Peek, 0, now).used();
            let refunded = self.usage.apply(&self.quota, verb, cost.min(counts), now).cost;
            return Decision {
                cost: refunded,
                ..self.under(quota, now).usage.apply(quota, Verb::Peek, 0, now)
            };
        }
        let decision = under.usage.apply(quota, verb, cost, now);
        if decision.cost > 0 {
            *self = under;
        }
        decision
    }

    /// The full usage under this quota, with the decision of a peek at `cost`.
    #[must_use]
    pub fn inspect(&mut self, quota: &Quota, cost: u64, now: Timestamp) -> KeyInspection {
        self.under(quota, now).usage.inspect(quota, cost, now)
    }

    /// A copy of the key, moved to this quota.
    fn under(&self, quota: &Quota, now: Timestamp) -> Self {
        if self.quota.algorithm() != quota.algorithm() {
            return Self::new(quota);
        }
        let mut usage = self.usage.copy();
        usage.adopt(&self.quota, quota, now);
        Self { quota: *quota, usage }
    }
}

/// A [`State`] of any algorithm.
trait AnyState: fmt::Debug + Send + Sync {
    fn apply(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision;
    fn adopt(&mut self, old: &Quota, new: &Quota, now: Timestamp);
    fn inspect(&self, quota: &Quota, cost: u64, now: Timestamp) -> KeyInspection;
    fn copy(&self) -> Box<dyn AnyState>;
}

impl<S: State + Clone + Send + Sync + 'static> AnyState for S {
    fn apply(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision {
        let settled = self.settle(quota, now.as_micros());
        let done = perform(self, quota, settled, verb, cost);
        decision(self, quota, now, settled, done)
    }

    fn adopt(&mut self, old: &Quota, new: &Quota, now: Timestamp) {
        let settled = self.settle(old, now.as_micros());
        if old.window_code() != new.window_code() {
            State::adopt(self, old, new, settled);
        }
    }

    fn inspect(&self, quota: &Quota, cost: u64, now: Timestamp) -> KeyInspection {
        inspect(self.clone(), quota, now, cost)
    }

    fn copy(&self) -> Box<dyn AnyState> {
        Box::new(self.clone())
    }
}

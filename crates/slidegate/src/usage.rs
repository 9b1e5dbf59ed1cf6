//! Usage of one key: its charges, and when they are freed.
//!
//! Explains why a key is denied. Inspecting a key changes nothing and costs more than a decision.

use std::time::Duration;

use crate::amount::Amount;
use crate::decision::Decision;
use crate::hold::Unsettled;
use crate::quota::Quota;
use crate::time::Timestamp;

/// The usage of one key of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyUse {
    /// The policy's name.
    pub policy: String,
    /// The key as text, as in responses.
    pub key: String,
    /// The quota of the key now: the policy's, or the key's override.
    pub quota: Quota,
    /// The decision of a peek at the request's cost.
    pub decision: Decision,
    /// Charges that still count, oldest first, as far as the algorithm stores them. A `sliding-log`
    /// has every charge, or one sum per step if it merges charges. The window algorithms have one
    /// sum per window, at its start; only a part of the older one counts. A `token-bucket` stores
    /// only its level, so this is empty.
    pub charges: Vec<RecordedCharge>,
    /// How usage declines if nothing more is charged, soonest first: at most 20 steps, the last to
    /// 0.
    pub forecast: Vec<UsageForecast>,
    /// Open holds, in order of expiry. They count in addition to the charges.
    pub holds: Vec<OpenHold>,
}

impl KeyUse {
    /// Converts a count of this key to an amount: units, or millionths under a policy that
    /// [weights](crate::Counts::Weighted) costs.
    #[must_use]
    pub fn amount(&self, count: u64) -> Amount {
        Amount::counted(count, self.decision.in_millionths)
    }
}

/// Cost that was charged at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedCharge {
    /// Time of the charge by the store's clock. A log that merges charges rounds it up to the end
    /// of its step, which may be in the future.
    pub at: Timestamp,
    /// Count of the cost charged at that time, see [`KeyUse::amount`]; at least 1.
    pub cost: u64,
}

/// Cost that is held for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenHold {
    /// The id that is in the request's ticket.
    pub id: u64,
    /// Count of the cost that is still held, see [`KeyUse::amount`].
    pub held: u64,
    /// Count of the cost that its settlements charged so far.
    pub settled: u64,
    /// When it ends unless it is settled or extended before, by the store's clock.
    pub until: Timestamp,
    /// Applies when the hold's time is over.
    pub unsettled: Unsettled,
}

/// Usage at a later time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageForecast {
    /// Wait from the decision's time.
    pub after: Duration,
    /// Count of the most cost that still counts after this wait, see [`KeyUse::amount`].
    pub used: u64,
}

/// A store's view of one key: a [`KeyUse`] without its names. Stores outside this crate get it from
/// [`KeyState::inspect`](crate::store::KeyState::inspect).
#[derive(Debug, Clone)]
pub struct KeyInspection {
    /// The quota that applies.
    pub quota: Quota,
    /// The decision that a check of the cost would get.
    pub decision: Decision,
    /// Charges that count, as far as the algorithm keeps them.
    pub charges: Vec<RecordedCharge>,
    /// When usage is freed.
    pub forecast: Vec<UsageForecast>,
    /// Open reservations.
    pub holds: Vec<OpenHold>,
}

impl KeyInspection {
    /// Adds the names of the policy and the key.
    pub fn of(self, policy: &str, key: &impl ToString) -> KeyUse {
        let Self { quota, decision, charges, forecast, holds } = self;
        KeyUse { policy: policy.to_owned(), key: key.to_string(), quota, decision, charges, forecast, holds }
    }
}

//! Usage: what one key has used, when, and when that is free again.
//!
//! For people who ask why a key is denied. To look changes nothing and costs more than a decision does.

use std::time::Duration;

use crate::decision::Decision;
use crate::quota::Quota;
use crate::time::Timestamp;

/// What one policy's key has used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyUse {
    /// The policy's name.
    pub policy: String,
    /// The key's text, as answers have it.
    pub key: String,
    /// What the key is under now: the policy's quota or its own.
    pub quota: Quota,
    /// What a peek at the request's cost says.
    pub decision: Decision,
    /// What was charged and still counts, the oldest first, as far as the algorithm remembers it. A `sliding-log` has every
    /// charge, or every step of them. The window algorithms have one sum for each of their windows, at its beginning; of the
    /// older one only a part counts. A `token-bucket` knows only how much is in it, so it has none.
    pub charges: Vec<Run>,
    /// How what is used becomes free if nothing more is charged, soonest first: at most 20 steps, the last to nothing.
    pub room: Vec<Room>,
}

/// Cost that was charged at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// When, by the store's clock. A log above its slots rounds up to the end of its step, which may be ahead.
    pub at: Timestamp,
    /// At least 1.
    pub cost: u64,
}

/// What is still used after a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// The wait, from the decision's time.
    pub after: Duration,
    /// No more than this counts then.
    pub used: u64,
}

/// What an algorithm finds on one key.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) quota: Quota,
    pub(crate) decision: Decision,
    pub(crate) charges: Vec<Run>,
    pub(crate) room: Vec<Room>,
}

impl Found {
    /// The same as told to the caller.
    pub(crate) fn of(self, policy: &str, key: &impl ToString) -> KeyUse {
        let Self { quota, decision, charges, room } = self;
        KeyUse { policy: policy.to_owned(), key: key.to_string(), quota, decision, charges, room }
    }
}

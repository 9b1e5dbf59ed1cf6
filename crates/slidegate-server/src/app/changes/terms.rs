//! Terms: the complete result of a policy change, so that later edits of the file do not alter its
//! meaning.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use slidegate::{Algorithm, Policy, Quota, millis_ceil};

use crate::limits::MAX_COST;

/// A quota in serialized form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counting {
    pub(crate) limit: u64,
    pub(crate) window_ms: u64,
    pub(crate) algorithm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u16>,
}

/// The mode of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    Enforce,
    Shadow,
}

impl Mode {
    pub(crate) fn of(policy: &Policy) -> Self {
        if policy.is_enforced() { Self::Enforce } else { Self::Shadow }
    }
}

/// The settings of a policy that can change at run time, and all of a policy added at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) quota: Counting,
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) candidate: Option<Counting>,
    /// The config keys of a policy added at run time. The fields above take precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) added: Option<Map<String, Value>>,
}

impl Counting {
    pub(crate) fn of(quota: &Quota) -> Self {
        let is_bucket = quota.algorithm() == Algorithm::TokenBucket;
        let is_log = quota.algorithm() == Algorithm::SlidingLog;
        Self {
            limit: quota.limit(),
            window_ms: millis_ceil(quota.window()),
            algorithm: quota.algorithm().name().to_owned(),
            burst: Some(quota.burst()).filter(|burst| is_bucket && *burst != quota.limit()),
            slots: Some(quota.slots()).filter(|slots| is_log && *slots != Quota::DEFAULT_SLOTS),
        }
    }

    /// Converts to a quota.
    ///
    /// # Errors
    /// One line: the quota is invalid.
    pub(crate) fn quota(&self) -> Result<Quota, String> {
        let largest = self.limit.max(self.burst.unwrap_or(0));
        if largest > MAX_COST {
            return Err(format!("limit {largest} is more than can be changed to; give at most {MAX_COST}"));
        }
        let algorithm: Algorithm =
            self.algorithm.parse().map_err(|error: slidegate::Error| error.to_string())?;
        let quota = Quota::new(self.limit, Duration::from_millis(self.window_ms))
            .map_err(|error| error.to_string())?;
        let quota = quota.with_algorithm(algorithm);
        let quota = self.burst.map_or(quota, |burst| quota.with_burst(burst));
        Ok(self.slots.map_or(quota, |slots| quota.with_slots(slots)))
    }
}

impl Terms {
    /// The current terms of a policy.
    pub(crate) fn of(policy: &Policy, candidate: Option<&Quota>) -> Self {
        Self {
            quota: Counting::of(policy.quota()),
            mode: Mode::of(policy),
            candidate: candidate.map(Counting::of),
            added: None,
        }
    }
}

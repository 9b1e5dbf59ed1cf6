//! Terms: the complete result of a policy change, so that later edits of the file do not alter its
//! meaning.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use slidegate::{Algorithm, Policy, Quota};
use slidegate_config::policy::Mode;
use slidegate_config::quota::QuotaSpec;
use slidegate_config::values::{Parsed, Window};
use slidegate_http::headers::millis_ceil;

use crate::limits::MAX_COST;

/// A quota in serialized form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Counting {
    pub(crate) limit: u64,
    pub(crate) window_ms: u64,
    /// The calendar that the windows follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) calendar: Option<String>,
    pub(crate) algorithm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) burst: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u16>,
}

/// The settings of a policy that can change at run time, and all of a policy added at run time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
        let QuotaSpec { burst, slots, .. } = QuotaSpec::of(quota);
        let algorithm = quota.algorithm().name().to_owned();
        let calendar = quota.calendar_window().map(|calendar| calendar.to_string());
        Self {
            limit: quota.limit(),
            window_ms: millis_ceil(quota.window()),
            calendar,
            algorithm,
            burst,
            slots,
        }
    }

    /// Converts to a quota.
    ///
    /// # Errors
    /// One line: the quota is invalid.
    pub(crate) fn quota(&self) -> Result<Quota, String> {
        let largest = self.limit.max(self.burst.unwrap_or(0));
        if largest > MAX_COST {
            return Err(format!("invalid limit {largest}: must be at most {MAX_COST}"));
        }
        if self.algorithm == Algorithm::InFlight.name() {
            return Quota::in_flight(self.limit, Duration::from_millis(self.window_ms))
                .map_err(|error| error.to_string());
        }
        let algorithm = self.algorithm.parse().map_err(|error: slidegate::Error| error.to_string())?;
        let window = match &self.calendar {
            Some(text) => {
                Window::Calendar(text.parse().map_err(|error: slidegate::Error| error.to_string())?)
            }
            None => Window::Length(Duration::from_millis(self.window_ms)),
        };
        let spec = QuotaSpec {
            quota: None,
            limit: Some(self.limit),
            window: Some(window),
            algorithm: Some(Parsed(algorithm)),
            burst: self.burst,
            slots: self.slots,
            ..QuotaSpec::default()
        };
        spec.quota().map_err(|mut mistakes| mistakes.swap_remove(0).1)
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

//! Requests and answers as JSON: JavaScript reads one text several times faster than Node-API makes an
//! object, value by value.
//!
//! Numbers above 2^53 lose precision in JavaScript; nothing is decided on them there.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use slidegate::verb::Verb;
use slidegate_bindings::{Amount, Answer, BindingError, Call, Settled};

use crate::error::{Result, thrown};
use crate::limiter::NUMBERS;

/// A request, or a change to a reservation. JavaScript has checked it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Input {
    #[serde(default)]
    attributes: Vec<(String, String)>,
    cost: Option<Cost>,
    policy: Option<String>,
    id: Option<String>,
    ttl_ms: Option<f64>,
    timeout_ms: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Cost {
    Number(u64),
    Named(Vec<(String, u64)>),
}

/// An answer.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Reply {
    /// Of a check, a peek, a refund, a penalty or a reservation.
    Decision(Answer),
    /// Of a limiter that was waited for.
    Numbers { numbers: [f64; NUMBERS], reason: Option<&'static str> },
    /// Of a change to a reservation.
    Settlement(Settled),
    /// Of a reset.
    Existed(bool),
    /// Of a call that is invalid, or that the store did not carry out.
    Error { code: &'static str, message: String },
}

impl Input {
    pub(crate) fn parse(json: &str) -> Result<Self> {
        serde_json::from_str(json)
            .map_err(|error| thrown(BindingError::request(format!("invalid request: {error}"))))
    }

    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl_ms.map(millis)
    }

    /// The longest that it waits for its turn.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout_ms.map(millis).unwrap_or_default()
    }

    pub(crate) fn into_cost(self) -> Option<Amount> {
        self.cost.map(|cost| match cost {
            Cost::Number(cost) => Amount::Number(cost),
            Cost::Named(costs) => Amount::Named(costs),
        })
    }

    pub(crate) fn into_call(mut self) -> Call {
        let attributes = std::mem::take(&mut self.attributes);
        Call {
            attributes: attributes.into_iter().map(|(name, value)| (name, value.into_bytes())).collect(),
            policy: self.policy.take(),
            id: self.id.take(),
            cost: self.into_cost(),
            wants_headers: true,
            ..Call::default()
        }
    }
}

pub(crate) fn millis(ms: f64) -> Duration {
    Duration::from_micros((ms * 1000.0) as u64)
}

pub(crate) fn verb(number: u32) -> Verb {
    match number {
        0 => Verb::Check,
        1 => Verb::Peek,
        2 => Verb::Refund,
        _ => Verb::Penalize,
    }
}

impl Reply {
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text")
    }
}

impl From<std::result::Result<Answer, BindingError>> for Reply {
    fn from(result: std::result::Result<Answer, BindingError>) -> Self {
        result.map_or_else(Self::from, Self::Decision)
    }
}

impl From<std::result::Result<Settled, BindingError>> for Reply {
    fn from(result: std::result::Result<Settled, BindingError>) -> Self {
        result.map_or_else(Self::from, Self::Settlement)
    }
}

impl From<std::result::Result<bool, BindingError>> for Reply {
    fn from(result: std::result::Result<bool, BindingError>) -> Self {
        result.map_or_else(Self::from, Self::Existed)
    }
}

impl From<BindingError> for Reply {
    fn from(BindingError { code, message }: BindingError) -> Self {
        Self::Error { code, message }
    }
}

//! The decision that denies a call.

use std::time::Duration;

use slidegate::{PolicyDecision, Reason};
use slidegate_http::headers::{HeaderOptions, Problem};
use slidegate_http::headers::{millis_ceil, secs_ceil};

use crate::wire::grpc::message::HeaderValue;

/// A decision that denies a call, and the index of its descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallDenial<'d> {
    pub(super) descriptor: usize,
    pub(super) decision: PolicyDecision<'d>,
}

impl CallDenial<'_> {
    /// Why it denies.
    pub(super) fn reason(&self) -> Reason {
        let of_blocked =
            if self.decision.decision().is_blocked() { Reason::Blocked } else { Reason::OverLimit };
        self.decision.decision().reason().unwrap_or(of_blocked)
    }

    /// The `retry-after` headers for these options.
    pub(super) fn retry_after(&self, options: &HeaderOptions) -> Vec<HeaderValue> {
        let Some(wait) = wait(&self.decision) else { return Vec::new() };
        let secs = options.retry_after.then(|| header("retry-after", secs_ceil(wait).max(1).to_string()));
        let millis =
            options.retry_after_ms.then(|| header("retry-after-ms", millis_ceil(wait).max(1).to_string()));
        secs.into_iter().chain(millis).collect()
    }

    /// The body if the store is unavailable and a policy then denies.
    ///
    /// The call is denied rather than failed: after a failure, Envoy allows the request unless
    /// configured otherwise. The body and metadata carry what the code cannot.
    pub(super) fn store_unavailable_body(&self) -> Option<String> {
        let one = &self.decision;
        let problem = Problem::of_one(one.policy().name(), one.quota(), one.decision());
        problem.filter(|_| self.reason() == Reason::StoreUnavailable).map(|problem| problem.to_json())
    }
}

/// How long a denied request has to wait; `None` if waiting does not help.
pub(super) fn wait(one: &PolicyDecision<'_>) -> Option<Duration> {
    match (one.decision().is_denied(), one.decision().is_blocked()) {
        (true, _) => one.decision().retry_after(),
        // 0 hits under a shadow policy.
        (false, true) => one.decision().frees_after(),
        (false, false) => Some(one.decision().reset_after()),
    }
}

pub(super) fn header(name: &str, value: String) -> HeaderValue {
    HeaderValue { key: name.to_owned(), value }
}

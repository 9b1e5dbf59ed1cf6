//! The decision that denies a call.

use std::time::Duration;

use slidegate::{PolicyDecision, Reason};

/// A decision that denies a call, and the index of its descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Denial<'d> {
    pub(super) descriptor: usize,
    pub(super) decision: PolicyDecision<'d>,
}

impl Denial<'_> {
    /// Why it denies.
    pub(super) fn reason(&self) -> Reason {
        let of_blocked = if self.decision.is_blocked() { Reason::Blocked } else { Reason::OverLimit };
        self.decision.reason().unwrap_or(of_blocked)
    }
}

/// How long a denied request has to wait; `None` if waiting does not help.
pub(super) fn wait(one: &PolicyDecision<'_>) -> Option<Duration> {
    match (one.is_denied(), one.is_blocked()) {
        (true, _) => one.retry_after(),
        // 0 hits under a shadow policy.
        (false, true) => one.frees_after(),
        (false, false) => Some(one.reset_after()),
    }
}

//! Text of header fields: their names, and one policy's part of each.

use std::time::Duration;

use super::buffer::{FieldBuffer, write_number};
use crate::decision::{Decision, Reason};
use crate::gate::PolicyDecision;
use crate::quota::{Algorithm, Quota};
use crate::request::CostUnit;
use crate::time::{SECOND_US, millis_ceil, secs_ceil};

/// When to ask again whether another request has ended.
const SOON: Duration = Duration::from_secs(1);

/// The three numbers of draft 6.
pub(super) const PARTS: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
/// The same of the older standard.
pub(super) const X_PARTS: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
pub(super) const POLICY: &str = "ratelimit-policy";
pub(super) const RATELIMIT: &str = "ratelimit";
pub(super) const RETRY_AFTER: &str = "retry-after";
pub(super) const RETRY_AFTER_MS: &str = "retry-after-ms";

/// The largest Integer of a structured field: 15 digits (RFC 9651, 3.3.1). Larger numbers are
/// written as this one.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A number that a structured field can contain.
pub(super) fn integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
}

/// A decision with the name and the quota of its policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedDecision<'d> {
    pub(super) name: &'d str,
    pub(super) quota: &'d Quota,
    pub(super) decision: &'d Decision,
    /// What a unit of cost is, if that is known.
    pub(super) unit: Option<CostUnit>,
}

impl<'d> From<&PolicyDecision<'d>> for NamedDecision<'d> {
    fn from(one: &PolicyDecision<'d>) -> Self {
        let policy = one.policy();
        Self { name: policy.name(), quota: one.quota(), decision: one.decision(), unit: policy.unit() }
    }
}

impl NamedDecision<'_> {
    /// The wait of a denial; `None` if the request is allowed or never fits. At most a second where
    /// only the end of other requests is waited for: they end mostly long before their time.
    fn wait(&self) -> Option<Duration> {
        let wait = self.decision.retry_after().filter(|_| self.decision.is_denied())?;
        let waits_for_requests = match self.decision.reason() {
            Some(Reason::TooManyHolds) => true,
            Some(Reason::OverLimit) => self.quota.algorithm() == Algorithm::InFlight,
            _ => false,
        };
        Some(if waits_for_requests { wait.min(SOON) } else { wait })
    }

    pub(super) fn retry_after_s(&self) -> Option<u64> {
        self.wait().map(|wait| integer(secs_ceil(wait).max(1)))
    }

    pub(super) fn retry_after_ms(&self) -> Option<u64> {
        self.wait().map(|wait| integer(millis_ceil(wait).max(1)))
    }

    /// Limit, remaining and `reset_s`.
    pub(super) fn numbers(&self, reset_s: u64) -> [u64; 3] {
        [self.decision.limit(), self.decision.remaining(), reset_s].map(integer)
    }

    /// Writes the policy as drafts 6 and 7 do. `w` is required there, so windows under one second are
    /// written as 1, and what has no window is left out.
    pub(super) fn unnamed_policy(&self, out: &mut FieldBuffer) {
        if self.quota.algorithm() == Algorithm::InFlight {
            return;
        }
        out.field(POLICY, |text| {
            write_number(text, integer(self.quota.limit()));
            write_part(text, ";w=", secs_ceil(self.quota.window()));
        });
    }

    /// An item of draft 10's `RateLimit-Policy`.
    pub(super) fn policy_item(&self, out: &mut String) {
        self.write_name(out);
        write_part(out, ";q=", self.quota.limit());
        if self.quota.algorithm() == Algorithm::InFlight {
            out.push_str(r#";qu="concurrent-requests""#);
        } else if self.quota.window_us() >= SECOND_US {
            write_part(out, ";w=", secs_ceil(self.quota.window()));
        }
    }

    /// An item of draft 10's `RateLimit`.
    pub(super) fn limit_item(&self, out: &mut String, retry_after_s: Option<u64>) {
        self.write_name(out);
        write_part(out, ";r=", self.decision.remaining());
        let frees_s = self.decision.frees_after().map(secs_ceil);
        // `Retry-After` takes precedence and must not end before `t`, so a later `t` is omitted.
        let sooner = |secs: &u64| retry_after_s.is_none_or(|retry_after_s| *secs <= retry_after_s);
        if let Some(secs) = frees_s.filter(sooner) {
            write_part(out, ";t=", secs);
        }
    }

    /// The name as a String (RFC 9651). Policy names contain only valid characters; names for a
    /// limiter may not.
    fn write_name(&self, out: &mut String) {
        let plain = |c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
        out.push('"');
        if self.name.bytes().all(|byte| plain(char::from(byte))) {
            out.push_str(self.name);
        } else {
            out.extend(self.name.chars().map(|c| if plain(c) { c } else { '_' }));
        }
        out.push('"');
    }
}

/// Writes three fields of one number each.
pub(super) fn write_numbers(out: &mut FieldBuffer, names: [&'static str; 3], numbers: [u64; 3]) {
    for (name, number) in names.into_iter().zip(numbers) {
        out.number(name, number);
    }
}

/// Writes a parameter: its name, then a number that structured fields can contain.
pub(super) fn write_part(out: &mut String, name: &str, number: u64) {
    out.push_str(name);
    write_number(out, integer(number));
}

/// Writes a List (RFC 9651).
pub(super) fn write_list<'d>(
    out: &mut String,
    decisions: &[NamedDecision<'d>],
    write_item: impl Fn(&NamedDecision<'d>, &mut String),
) {
    for (index, decision) in decisions.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_item(decision, out);
    }
}

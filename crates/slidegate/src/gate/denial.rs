//! A denial as a sentence for the client, with the time to wait.

use std::time::Duration;

use super::{Decisions, PolicyDecision};
use crate::block::Block;
use crate::cost::CostUnit;
use crate::decision::{Amounts, Decision, Reason};
use crate::hold::MAX_HOLDS;
use crate::quota::{Algorithm, Quota};
use crate::time::{Timestamp, format_wait, millis_ceil, secs_ceil};

/// Retry delay when the wait depends on other requests to end.
const SOON: Duration = Duration::from_secs(1);

/// Longest key in a sentence, in characters. Keys themselves have no maximum length.
pub const MAX_KEY: usize = 128;

/// Sent to a client whose request names a policy that cannot decide. It must not reveal the
/// policies.
pub const UNDECIDED: &str = "The rate limit of this request is not configured correctly.";

/// The largest Integer of a structured field: 15 digits (RFC 9651, 3.3.1). Larger numbers are
/// clamped to it.
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Clamps a number to the Integer range of a structured field.
#[must_use]
#[inline]
pub fn integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
}

/// A decision with the name and the quota of its policy.
#[derive(Debug, Clone, Copy)]
pub struct NamedDecision<'d> {
    /// The policy's name.
    pub name: &'d str,
    /// The quota that decided.
    pub quota: &'d Quota,
    /// The decision on the key.
    pub decision: &'d Decision,
    /// The unit of cost, if known.
    pub unit: Option<CostUnit>,
    /// The name of the unit, if the policy has one other than requests.
    pub unit_name: Option<&'d str>,
}

impl<'d> From<&PolicyDecision<'d>> for NamedDecision<'d> {
    #[inline]
    fn from(one: &PolicyDecision<'d>) -> Self {
        let policy = one.policy();
        let (unit, unit_name) = (policy.unit(), policy.said_unit());
        Self { name: policy.name(), quota: one.quota(), decision: one.decision(), unit, unit_name }
    }
}

impl NamedDecision<'_> {
    /// The wait of a denial; `None` if the request is allowed or never fits. At most a second if it
    /// only waits for other requests to end, as most end long before their time.
    #[inline]
    fn wait(&self) -> Option<Duration> {
        let wait = self.decision.retry_after().filter(|_| self.decision.is_denied())?;
        let waits_for_requests = match self.decision.reason() {
            Some(Reason::TooManyHolds) => true,
            Some(Reason::OverLimit) => self.quota.algorithm() == Algorithm::InFlight,
            _ => false,
        };
        Some(if waits_for_requests { wait.min(SOON) } else { wait })
    }

    /// The wait in seconds, rounded up, at least 1.
    #[must_use]
    #[inline]
    pub fn retry_after_s(&self) -> Option<u64> {
        self.wait().map(|wait| integer(secs_ceil(wait).max(1)))
    }

    /// The wait in milliseconds, rounded up, at least 1.
    #[must_use]
    #[inline]
    pub fn retry_after_ms(&self) -> Option<u64> {
        self.wait().map(|wait| integer(millis_ceil(wait).max(1)))
    }

    /// The date on which the key has room again: the border of its calendar window. Not if that waits for holds, which
    /// may end before.
    #[must_use]
    pub fn border(&self) -> Option<String> {
        let calendar = self.quota.calendar_window()?;
        let is_border = self.decision.reason() == Some(Reason::OverLimit) && self.decision.held == 0;
        let (now, wait) = (self.decision.at(), self.decision.retry_after().filter(|_| is_border)?);
        Some(calendar.border_text(now + wait, now))
    }

    /// The sentence about a denial: the policy, its key, and when to retry. `blocked_until` is the
    /// end of the key's block, if any.
    #[must_use]
    pub fn sentence(&self, key: Option<&str>, blocked_until: Option<Timestamp>) -> String {
        let Self { name, quota, decision, .. } = *self;
        let reason = decision.reason().unwrap_or(Reason::OverLimit);
        // Every denial gets here, and pushing pieces is several times faster than `format!`.
        let mut text = String::with_capacity(192);
        text.push_str("Policy `");
        text.push_str(name);
        text.push_str("` (");
        let is_in_flight = quota.algorithm() == Algorithm::InFlight;
        if is_in_flight {
            text.push_str(&quota.limit().to_string());
            text.push_str(" in flight)");
        } else {
            text.push_str(&quota.to_string());
            text.push(')');
        }
        let push_key = |text: &mut String| match key {
            Some(key) => {
                text.push_str("key `");
                text.push_str(key);
                text.push('`');
            }
            None => text.push_str("its key"),
        };
        let never = match reason {
            Reason::OverLimit => {
                text.push_str(" would be exceeded: ");
                push_key(&mut text);
                let Amounts { limit, used, held, .. } = decision.amounts();
                let (has, count) = if is_in_flight { (" has ", held) } else { (" has used ", used) };
                text.push_str(has);
                text.push_str(&count.to_string());
                text.push_str(" of ");
                text.push_str(&limit.to_string());
                if let Some(unit) = self.unit_name {
                    text.push(' ');
                    text.push_str(unit);
                }
                if is_in_flight {
                    text.push_str(" in flight");
                } else if decision.held > 0 {
                    text.push_str(" and holds ");
                    text.push_str(&held.to_string());
                    text.push_str(" for open reservations");
                }
                ". The request never fits, however long it waits."
            }
            Reason::Blocked => {
                text.push_str(" does not admit the request: ");
                push_key(&mut text);
                text.push_str(" is blocked");
                if let Some(end) = blocked_until {
                    text.push_str(" until ");
                    text.push_str(&end.to_rfc3339());
                }
                " until an operator lifts the block."
            }
            Reason::TooManyHolds => {
                text.push_str(" cannot reserve more: ");
                push_key(&mut text);
                text.push_str(" has ");
                text.push_str(&MAX_HOLDS.to_string());
                text.push_str(" open reservations, as many as a key may have");
                ". Settle some first."
            }
            Reason::StoreFull => {
                text.push_str(" cannot reserve now: the server has no room for more open reservations");
                ". Retry later."
            }
            Reason::QueueFull => {
                text.push_str(" lets no more requests wait: ");
                push_key(&mut text);
                text.push_str(" or the server has as many as may");
                ". Retry later."
            }
            Reason::StoreUnavailable => {
                text.push_str(" cannot be checked now: the store of its counters is unavailable");
                ". Retry later."
            }
        };
        match self.retry_after_s() {
            Some(1) => text.push_str(". Retry in 1 second."),
            Some(secs @ ..=60) => {
                text.push_str(". Retry in ");
                text.push_str(&secs.to_string());
                text.push_str(" seconds.");
            }
            Some(secs) => {
                text.push_str(". Retry in ");
                text.push_str(&format_wait(Duration::from_secs(secs)));
                if let Some(border) = self.border() {
                    text.push_str(", on ");
                    text.push_str(&border);
                }
                text.push('.');
            }
            None => text.push_str(never),
        }
        text
    }
}

impl Decisions<'_> {
    /// Why the request is denied, as a sentence for its client: the strictest policy, its key
    /// (truncated to 128 characters), and when to retry. `None` if the request is allowed.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    ///
    /// let gate = Gate::new(PolicySet::new([Policy::new("login", Quota::per_minute(0))?])?);
    /// let why = gate.check(&Request::new()).why().unwrap();
    /// assert!(why.starts_with("Policy `login` (0/1m) would be exceeded"), "{why}");
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    #[must_use]
    pub fn why(&self) -> Option<String> {
        if self.error().is_some() {
            return Some(UNDECIDED.to_owned());
        }
        let denied = self.strictest().filter(|one| one.decision().is_denied())?;
        if let Some(attribute) = denied.key().missing().filter(|_| denied.decision().is_blocked()) {
            let (name, quota) = (denied.policy().name(), denied.quota());
            return Some(format!(
                "Policy `{name}` ({quota}) does not admit the request: the request lacks `{attribute}`."
            ));
        }
        let key = (!denied.policy().scope().is_empty()).then(|| truncate(denied.key().to_string()));
        let blocked_until = denied.block().and_then(Block::ends_at);
        Some(NamedDecision::from(&denied).sentence(key.as_deref(), blocked_until))
    }
}

fn truncate(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_KEY) {
        text.truncate(end);
        text.push('…');
    }
    text
}

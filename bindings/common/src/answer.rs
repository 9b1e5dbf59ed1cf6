//! Decisions as packages return them: owned, and of plain values. Serialized, times are in milliseconds.

use std::time::Duration;

use serde::{Serialize, Serializer};
use slidegate::reserve::{Settlement, Ticket};
use slidegate::{Decision, Decisions, PolicyDecision};
use slidegate_http::headers::{HeaderOptions, Problem};

/// What a gate decided on a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Whether the request may pass.
    pub allowed: bool,
    /// The status of an HTTP response to it: 200, 429, or 503 where a shared store cannot decide.
    pub status: u16,
    /// Why it is denied, in a sentence for its client. `None` if it is allowed.
    pub why: Option<String>,
    /// The decisions of all policies that apply, shadow ones included, in their order. If there are none,
    /// the request is allowed and counted nowhere.
    pub policies: Vec<PolicyAnswer>,
    /// The position of the decision that binds: of the strictest policy. `None` if no enforced policy
    /// applies.
    pub strictest: Option<usize>,
    /// The header fields of the response, if they were [asked for](crate::Call::wants_headers).
    pub headers: Vec<(&'static str, String)>,
    /// Of a reservation that was allowed: what settles it.
    pub ticket: Option<String>,
    /// Why the shared store did not decide, if a fallback did.
    pub store_failure: Option<String>,
}

/// The decision of one policy, or of a limiter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyAnswer {
    /// The policy's name.
    pub policy: String,
    /// The key, as text: the values of the policy's scope.
    pub key: String,
    /// Whether the policy would let the request pass.
    pub allowed: bool,
    /// Whether its denial denies the request. False of shadow policies.
    pub enforced: bool,
    /// The limit.
    pub limit: u64,
    /// The window in microseconds. `None` after a change to a reservation.
    #[serde(rename = "windowMs", serialize_with = "as_millis")]
    pub window_us: Option<u64>,
    /// What the key has used, this request included.
    pub used: u64,
    /// What of it reservations hold.
    pub held: u64,
    /// What remains.
    pub remaining: u64,
    /// What this request costs under the policy.
    pub cost: u64,
    /// Microseconds until the same request fits: 0 if it was allowed, `None` if it never fits.
    #[serde(rename = "retryAfterMs", serialize_with = "as_millis")]
    pub retry_after_us: Option<u64>,
    /// Microseconds until nothing is used.
    #[serde(rename = "resetAfterMs", serialize_with = "as_whole_millis")]
    pub reset_after_us: u64,
    /// Why it is denied: `over_limit`, `blocked`, `too_many_holds`, `store_full`,
    /// `queue_full` or `store_unavailable`.
    pub reason: Option<&'static str>,
    /// Where the decision comes from: `store`, `cached`, `leased`, `local`, `allow` or `deny`.
    pub source: &'static str,
}

/// What a settlement, an extension or a cancellation did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settled {
    /// `changed`, `already_settled`, `expired`, `denied` or `unknown`.
    pub status: &'static str,
    /// The ticket for the next change.
    pub ticket: String,
    /// The outcome under each policy that held cost.
    pub policies: Vec<SettledPolicy>,
}

/// What it did under one policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SettledPolicy {
    /// The same words as [`Settled::status`].
    pub status: &'static str,
    /// The decision on the key after the change.
    pub decision: PolicyAnswer,
}

impl Answer {
    pub(crate) fn new(decisions: &Decisions<'_>, headers: Option<&HeaderOptions>) -> Self {
        let problem = Problem::of(decisions);
        Self {
            allowed: decisions.is_allowed(),
            status: problem.as_ref().map_or(200, |problem| problem.status),
            why: problem.map(|problem| problem.detail),
            policies: decisions.iter().map(|one| PolicyAnswer::of(&one)).collect(),
            strictest: decisions.strictest().and_then(|strictest| {
                let is_it = |one: PolicyDecision<'_>| {
                    (one.position(), one.request()) == (strictest.position(), strictest.request())
                };
                decisions.iter().position(is_it)
            }),
            headers: headers.map_or_else(Vec::new, |options| options.headers(decisions)),
            ticket: None,
            #[cfg(feature = "redis")]
            store_failure: decisions.store_failure().map(ToString::to_string),
            #[cfg(not(feature = "redis"))]
            store_failure: None,
        }
    }

    pub(crate) fn with_ticket(self, ticket: Option<&Ticket>) -> Self {
        Self { ticket: ticket.map(ToString::to_string), ..self }
    }
}

impl PolicyAnswer {
    fn of(one: &PolicyDecision<'_>) -> Self {
        Self {
            key: one.key().to_string(),
            enforced: one.policy().options().enforced,
            window_us: Some(micros(one.quota().window())),
            ..Self::new(one.policy().name(), one.decision())
        }
    }

    /// A decision on a key of which nothing more is known.
    fn new(policy: &str, decision: &Decision) -> Self {
        Self {
            policy: policy.to_owned(),
            key: String::new(),
            allowed: decision.is_allowed(),
            enforced: true,
            limit: decision.limit(),
            window_us: None,
            used: decision.used(),
            held: decision.held(),
            remaining: decision.remaining(),
            cost: decision.cost(),
            retry_after_us: decision.retry_after().map(micros),
            reset_after_us: micros(decision.reset_after()),
            reason: decision.reason().map(slidegate::Reason::name),
            source: decision.source().name(),
        }
    }
}

/// Milliseconds, rounded up, as JavaScript has its times: who retries after them is not too early.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn as_whole_millis<S: Serializer>(micros: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(micros.div_ceil(1000))
}

#[expect(clippy::ref_option, reason = "as serde calls it")]
fn as_millis<S: Serializer>(micros: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    micros.map(|micros| micros.div_ceil(1000)).serialize(serializer)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl From<Settlement> for Settled {
    fn from(settlement: Settlement) -> Self {
        let policies = settlement.iter().map(|key| SettledPolicy {
            status: key.status().name(),
            decision: PolicyAnswer::new(key.policy(), key.decision()),
        });
        Self {
            status: settlement.status().name(),
            policies: policies.collect(),
            ticket: settlement.ticket().to_string(),
        }
    }
}

//! Decisions as JSON: what binds, why, and what every policy says.

use serde::Serialize;
use slidegate::headers::Problem;
use slidegate::{Decisions, PolicyDecision, millis_ceil};

use crate::why::why;

/// The answer to one request. The first members are those of the decision that binds; `null` where none does.
#[derive(Serialize)]
pub(super) struct Answer<'d> {
    allowed: bool,
    policy: Option<&'d str>,
    key: Option<String>,
    why: String,
    limit: Option<u64>,
    used: Option<u64>,
    remaining: Option<u64>,
    /// What this call charged or gave back under that policy.
    cost: Option<u64>,
    /// 0 when allowed, `null` when the cost never fits.
    retry_after_ms: Option<u64>,
    reset_after_ms: Option<u64>,
    /// Where that decision comes from.
    source: Option<&'static str>,
    policies: Vec<One<'d>>,
    /// Present on a denial: the members of RFC 9457 and of the RateLimit draft.
    #[serde(flatten)]
    problem: Option<Denial<'d>>,
}

#[derive(Serialize)]
struct Denial<'d> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(rename = "violated-policies")]
    violated_policies: Vec<&'d str>,
}

/// What one policy says.
#[derive(Serialize)]
struct One<'d> {
    policy: &'d str,
    key: String,
    allowed: bool,
    /// False for a shadow policy, whose denials deny nothing.
    enforced: bool,
    limit: u64,
    window_ms: u64,
    used: u64,
    remaining: u64,
    cost: u64,
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    source: &'static str,
}

impl<'d> Answer<'d> {
    /// `absence` says why a fallback decided, if one did.
    pub(super) fn new(decisions: &'d Decisions<'_>, absence: &str) -> Self {
        let strictest = decisions.strictest();
        let of = |read: fn(&PolicyDecision<'_>) -> u64| strictest.as_ref().map(read);
        Self {
            allowed: decisions.is_allowed(),
            policy: strictest.map(|one| one.policy().name()),
            key: strictest.map(|one| one.key().to_string()),
            why: why(decisions, absence),
            limit: of(|one| one.limit),
            used: of(|one| one.used),
            remaining: of(|one| one.remaining),
            cost: of(|one| one.cost),
            retry_after_ms: match &strictest {
                Some(one) => one.retry_after().map(millis_ceil),
                None => Some(0),
            },
            reset_after_ms: of(|one| millis_ceil(one.reset_after())),
            source: strictest.map(|one| one.source.name()),
            policies: decisions.iter().map(|one| One::new(&one)).collect(),
            problem: Problem::of(decisions).map(|problem| Denial {
                r#type: problem.type_uri,
                title: problem.title,
                status: problem.status,
                detail: problem.detail,
                violated_policies: problem.violated_policies,
            }),
        }
    }
}

impl<'d> One<'d> {
    fn new(one: &PolicyDecision<'d>) -> Self {
        Self {
            policy: one.policy().name(),
            key: one.key().to_string(),
            allowed: one.is_allowed(),
            enforced: one.policy().is_enforced(),
            limit: one.limit,
            window_ms: millis_ceil(one.quota().window()),
            used: one.used,
            remaining: one.remaining,
            cost: one.cost,
            retry_after_ms: one.retry_after().map(millis_ceil),
            reset_after_ms: millis_ceil(one.reset_after()),
            source: one.source.name(),
        }
    }
}

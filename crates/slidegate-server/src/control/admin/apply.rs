//! Applies policy changes: the change, its log line and its description.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use slidegate::internal::Setting;
use slidegate::{Algorithm, Policy, PolicySet, Quota};
use slidegate_config::names::{self, candidate_of};
use slidegate_config::policy::Mode;
use slidegate_http::headers::millis_ceil;

use crate::access::Operator;
use crate::audit;
use crate::config::quota_text;
use crate::control::changes::{Cause, Counting, Document, Refusal, Terms, What};
use crate::control::state::Admin;
use crate::wire::problem::{self, Problem};

/// Maximum policy names in an error.
const MAX_LISTED: usize = 20;

/// Activates a policy's terms, unless the policy has changed since `document` was read.
pub(super) async fn put_in_force(
    admin: &Arc<Admin>,
    by: &Operator,
    (name, terms): (&str, &Terms),
    document: &Document,
    what: (What, &str),
) -> Result<Response, Problem> {
    let version = document.policies.get(name);
    let before = admin.app.policies().by_name(name).map(|policy| rate(policy.quota()));
    let mut done = in_words(None, Some(terms));
    if let (Some(before), Ok(after)) = (before, terms.quota.quota())
        && before != rate(&after)
    {
        done = format!("{before} -> {done}");
    }
    let id = admin
        .control
        .change(|document, now| {
            unchanged_since(document, name, version)?;
            let id = document.set_policy(name, Some(terms.clone()), what.0.clone(), &by.0, now);
            admin.control.active.check(document)?;
            Ok(id)
        })
        .await?;
    Ok(admin.changed(by, what.1, name, id, &done))
}

/// Describes a policy's terms after a change.
pub(super) fn in_words(before: Option<&Terms>, after: Option<&Terms>) -> String {
    let Some(terms) = after else {
        let was_added = before.is_some_and(|before| before.added.is_some());
        return if was_added { "taken away" } else { "as the configuration says" }.to_owned();
    };
    let of = |counting: &Counting| match counting.quota() {
        Ok(quota) if quota.algorithm() == Algorithm::InFlight => rate(&quota),
        Ok(quota) => {
            let burst = counting.burst.map(|burst| format!(", {burst} at once")).unwrap_or_default();
            format!("{} ({}){burst}", rate(&quota), quota.algorithm())
        }
        Err(why) => why,
    };
    let mode = if terms.mode == Mode::Shadow { ", shadow" } else { "" };
    let candidate =
        terms.candidate.as_ref().map(|one| format!(", candidate {}", of(one))).unwrap_or_default();
    let added = terms.added.as_ref().map(|keys| {
        let scope = keys.get("scope").map_or_else(String::new, Value::to_string);
        format!(", added at run time with scope {scope}")
    });
    format!("{}{mode}{candidate}{}", of(&terms.quota), added.unwrap_or_default())
}

/// `50 per month in Europe/Berlin`, or `20 in flight (lease 30s)`.
fn rate(quota: &Quota) -> String {
    match quota.algorithm() {
        Algorithm::InFlight => quota_text(quota),
        _ => format!("{} per {}", quota.limit(), quota.window_text()),
    }
}

impl Admin {
    /// The config keys of an active policy that was added at run time.
    pub(super) fn added<'d>(&self, document: &'d Document, name: &str) -> Option<&'d Map<String, Value>> {
        document.added(name).filter(|_| self.control.active.is_added(name))
    }

    /// The origin of a policy.
    pub(super) fn origin(&self, document: &Document, name: &str) -> &'static str {
        match document.policies.get(name) {
            None => "file",
            Some(_) if self.added(document, name).is_some() => "added",
            // A configured policy of this name takes precedence.
            Some(terms) if terms.added.is_some() => "file",
            Some(_) => "changed",
        }
    }

    /// The response to an active change. Also writes its log line.
    pub(super) fn changed(&self, by: &Operator, action: &str, policy: &str, id: u64, done: &str) -> Response {
        audit::operator(&by.0, action, policy, "", done);
        self.app.observer().mark_changed();
        problem::ok(&Changed { policy, change: Some(id), done })
    }
}

/// A change of a policy.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Changed<'a> {
    pub(super) policy: &'a str,
    /// Its number, for `undo`. `null`: it was a dry run.
    pub(super) change: Option<u64>,
    /// The change in words.
    pub(super) done: &'a str,
}

/// Rejects a change of a policy that was changed concurrently.
fn unchanged_since(document: &Document, name: &str, seen: Option<&Terms>) -> Result<(), Refusal> {
    if document.policies.get(name) == seen {
        return Ok(());
    }
    let detail = format!("policy `{name}` was changed by somebody else just now; look at it and try again");
    Err(Refusal::new(Cause::Conflict, detail))
}

/// The numbers of a quota.
#[derive(Serialize, JsonSchema)]
pub(super) struct Numbers {
    /// Maximum cost per window, or in flight at once under the algorithm `in-flight`.
    limit: u64,
    /// The window, or the lease of what is in flight. The longest it can be, if it is of a calendar.
    window_ms: u64,
    /// The calendar whose dates are the borders of the window, such as `month in Europe/Berlin from day 15`.
    calendar: Option<String>,
    algorithm: &'static str,
    /// What a token bucket admits at once.
    burst: Option<u64>,
}

impl Numbers {
    pub(super) fn of(quota: &Quota) -> Self {
        Self {
            limit: quota.limit(),
            window_ms: millis_ceil(quota.window()),
            calendar: quota.calendar_window().map(|calendar| calendar.to_string()),
            algorithm: quota.algorithm().name(),
            burst: (quota.algorithm().setting() == Setting::Burst).then(|| quota.burst()),
        }
    }
}

/// The error for an unknown policy.
pub(super) fn unknown(policies: &PolicySet, name: &str) -> Problem {
    let names: Vec<_> =
        names::listed(policies).map(Policy::name).filter(|name| candidate_of(name).is_none()).collect();
    let more = if names.len() > MAX_LISTED { ", ..." } else { "" };
    let listed = names.iter().take(MAX_LISTED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let detail = format!("unknown policy `{}`: must be one of {listed}{more}", name.escape_debug());
    Problem::new(StatusCode::NOT_FOUND, detail)
}

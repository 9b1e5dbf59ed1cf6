//! Adds policies at run time, for all instances.
//!
//! The body has the keys of the config file and is stored unchanged; each instance parses it again.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};
use slidegate_config::policy::Mode;

use super::apply::put_in_force;
use crate::access::Operator;
use crate::control::changes::{Cause, Counting, Refusal, Terms, What};
use crate::control::state::Admin;
use crate::wire::problem::Problem;

/// Keys valid only for an added policy; other policies have them in the config file.
const ITS_OWN: [&str; 16] = [
    "scope",
    "when",
    "on_missing",
    "fold",
    "excess",
    "on_excess",
    "counts",
    "estimate",
    "unsettled",
    "unit",
    "on_store_error",
    "overrides",
    "ipv6_prefix",
    "keys_shown",
    "notify",
    "escalate",
];
/// Maximum added policies: every request is matched against each. Permanent ones belong in the
/// config file.
const MAX_ADDED: usize = 64;
/// Maximum size of a policy as JSON, in bytes: all must fit into the control document.
const MAX_BYTES: usize = 8 * 1024;
const SCOPE: &str = "give the attributes that it counts by, for example `\"scope\": [\"user\"]`, or `[]` for one count \
                     of all requests";

/// Whether these keys describe a new policy, not just changes.
pub(super) fn is_policy(keys: &Map<String, Value>) -> bool {
    ITS_OWN.iter().any(|key| keys.contains_key(*key))
}

/// The fix for an unknown policy name.
pub(super) const HOW_TO_ADD: &str = "to add one, say its `scope` as well";

/// Adds a policy, or replaces an added one.
pub(super) async fn add(
    admin: &Arc<Admin>,
    by: &Operator,
    name: &str,
    keys: Map<String, Value>,
) -> Result<Response, Problem> {
    admin.control.poll().await;
    let document = admin.control.document();
    let app = &admin.app;
    let conflict = |detail: String| Problem::new(StatusCode::CONFLICT, detail);
    if admin.control.active.base().policies.by_name(name).is_some() {
        let key = ITS_OWN.iter().find(|key| keys.contains_key(**key)).copied().unwrap_or_default();
        let detail = format!(
            "policy `{name}` is of the configuration, where its `{key}` is changed; leave it out here"
        );
        return Err(conflict(detail));
    }
    let policies = app.policies();
    if !admin.control.active.is_added(name) && policies.by_name(name).is_some() {
        let detail =
            format!("there is a policy `{name}` already, which a protocol defines; choose another name");
        return Err(conflict(detail));
    }
    if !keys.contains_key("scope") {
        return Err(Problem::field("scope", format!("scope is missing; {SCOPE}")));
    }
    let bytes = Value::from(keys.clone()).to_string().len();
    if bytes > MAX_BYTES {
        let detail = format!(
            "the policy takes {bytes} bytes; {MAX_BYTES} is the most, so write it into the configuration"
        );
        return Err(Problem::field("body", detail));
    }
    let wrong = |detail: String| Problem::field("body", detail);
    let added = admin.control.active.read_added(name, &keys).map_err(wrong)?;
    let terms = Terms {
        quota: Counting::of(added.policy.quota()),
        mode: Mode::of(&added.policy),
        candidate: added.candidate.as_ref().map(Counting::of),
        added: Some(keys),
    };
    for counting in [Some(&terms.quota), terms.candidate.as_ref()].into_iter().flatten() {
        counting.quota().map_err(wrong)?;
    }
    if document.added(name).is_none() && document.count_added() >= MAX_ADDED {
        let refusal = Refusal::new(
            Cause::Conflict,
            format!(
                "{MAX_ADDED} policies were added at run time, which is the most; write lasting ones into the \
                 configuration"
            ),
        );
        return Err(refusal.into());
    }
    put_in_force(admin, by, (name, &terms), &document, (What::Set, "add")).await
}

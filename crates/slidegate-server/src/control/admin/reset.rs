//! Resets all keys of a policy, a bounded number per request.
//!
//! The client sends one request per step, with the previous step's cursor. So no request takes
//! long, and a client that stops sending stops the reset.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request as HttpRequest, StatusCode};
use axum::response::Response;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::store::{PolicyReset, ResetCursor};

use super::apply::unknown;
use super::reply::{InPath, body};
use crate::audit;
use crate::control::state::Admin;
use crate::wire::problem::{self, Problem};

/// Default number of keys scanned per step.
const KEYS: u64 = 1000;
/// Maximum keys scanned per step: some milliseconds of the server's time.
const MAX_KEYS: u64 = 10_000;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetStep {
    /// The cursor of the previous step; absent in the first step.
    cursor: Option<String>,
    /// Approximate number of keys, of all policies, to scan in this step.
    #[schemars(range(min = 1, max = MAX_KEYS), extend("default" = KEYS))]
    limit: Option<u64>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PolicyReset")]
pub(crate) struct ResetStepDone {
    policy: String,
    /// Keys of the policy that were reset since the reset began.
    forgotten: u64,
    /// Keys of all policies scanned since it began; approximate with a shared store.
    scanned: u64,
    /// Keys of all policies when it began; null if unknown.
    keys: Option<u64>,
    /// The cursor of the next step; null when the reset is complete.
    cursor: Option<String>,
    /// What was done, in words.
    done: String,
}

/// One step.
pub(super) async fn step(
    State(admin): State<Arc<Admin>>,
    InPath(name): InPath<String>,
    request: HttpRequest<Body>,
) -> Result<Response, Problem> {
    let (by, ResetStep { cursor, limit }) = body(request).await?;
    let policies = admin.app.policies();
    if policies.by_name(&name).is_none() {
        return Err(unknown(&policies, &name));
    }
    let limit = limit.unwrap_or(KEYS);
    if !(1..=MAX_KEYS).contains(&limit) {
        let detail = format!("invalid limit `{limit}`: must be a whole number from 1 to {MAX_KEYS}");
        return Err(Problem::field("limit", detail));
    }
    let wrong = |error: slidegate::Error| Problem::field("cursor", error.to_string());
    let cursor: Option<ResetCursor> = cursor.map(|text| text.parse()).transpose().map_err(wrong)?;
    if cursor.is_none() {
        audit::operator(&by.0, "reset-policy", &name, "", "started to forget all keys");
    }
    let step = admin.app.store().reset_policy_step(&name, cursor.as_ref(), limit).await;
    let PolicyReset { forgotten, scanned, keys, next, .. } = step.map_err(|error| {
        if error.is_policy() {
            return wrong(error);
        }
        let detail = format!("{error}; some keys may be forgotten: send the same step again");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let keys_forgotten = if forgotten == 1 { "1 key".to_owned() } else { format!("{forgotten} keys") };
    let done = match &next {
        Some(_) => format!("forgot {keys_forgotten} so far"),
        None => format!("forgot {keys_forgotten}"),
    };
    if next.is_none() {
        audit::operator(&by.0, "reset-policy", &name, "", &done);
        admin.app.observer().mark_changed();
    }
    let cursor = next.map(|next| next.to_string());
    Ok(problem::ok(&ResetStepDone { policy: name, forgotten, scanned, keys, cursor, done }))
}

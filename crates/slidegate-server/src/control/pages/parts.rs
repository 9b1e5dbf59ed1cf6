//! Helpers of the pages: the choice of a policy, and the error of a page that is off.

use axum::http::StatusCode;

use crate::engine::App;
use crate::wire::problem::Problem;
use crate::wire::query::Parameters;

/// The requested policy, which must be active.
pub(super) fn policy(query: &mut Parameters, app: &App) -> Result<Option<String>, Problem> {
    let Some(name) = query.take("policy") else { return Ok(None) };
    if app.observer().registry.load().in_force().iter().any(|counters| counters.name == name) {
        return Ok(Some(name));
    }
    let detail = format!("unknown policy `{}`: must be one that /v1/policies lists", name.escape_debug());
    Err(Problem::field("policy", detail).with_status(StatusCode::NOT_FOUND))
}

/// The error for data that the config disables.
pub(super) fn off(setting: &str) -> Problem {
    let detail =
        format!("this is switched off; write `{setting}: true` under `observe` in the configuration");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

//! `/v1/history`: the last hour in steps of ten seconds, with what was changed in it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use super::apply::in_words;
use super::state::Admin;
use crate::problem::{self, Problem};
use crate::query;
use crate::telemetry::{self, Marker, MarkerKind};

/// Longest history, in minutes.
const LONGEST: usize = 60;

pub(super) async fn history(State(admin): State<Arc<Admin>>, uri: Uri) -> Result<Response, Problem> {
    let minutes = minutes(&uri)?;
    let steps = telemetry::last_hour() * minutes / LONGEST;
    let mut report = telemetry::history(&admin.app, steps).ok_or_else(|| {
        let detail =
            "the history is switched off; write `metrics: true` under `observe` in the configuration";
        Problem::new(StatusCode::NOT_FOUND, detail)
    })?;
    let document = admin.control.document();
    report.markers.extend(document.changes.iter().map(|change| {
        let words = in_words(change.before.as_ref(), change.after.as_ref());
        let text = format!("{}: {words}, by {}", change.policy, change.by);
        Marker { at_ms: change.at_ms, what: MarkerKind::Changed, text }
    }));
    report.trim_markers();
    Ok(problem::ok(&report))
}

/// The length that is asked for.
fn minutes(uri: &Uri) -> Result<usize, Problem> {
    let mut minutes = None;
    for (name, value) in query::texts(uri.query().unwrap_or_default())? {
        if name != "minutes" || minutes.is_some() {
            let detail = format!("unknown parameter `{}`: must be `minutes`, once", name.escape_debug());
            return Err(Problem::new(StatusCode::BAD_REQUEST, detail));
        }
        let wanted = value.parse().ok().filter(|wanted| (1..=LONGEST).contains(wanted));
        minutes = Some(wanted.ok_or_else(|| {
            let value = value.escape_debug();
            Problem::field(
                "minutes",
                format!("invalid minutes `{value}`: must be a whole number from 1 to {LONGEST}"),
            )
        })?);
    }
    Ok(minutes.unwrap_or(LONGEST))
}

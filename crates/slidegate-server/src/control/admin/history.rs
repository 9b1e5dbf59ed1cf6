//! `/v1/history`: the last hour in steps of ten seconds, with the changes made in it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;

use super::apply::in_words;
use crate::control::pages;
use crate::control::state::Admin;
use crate::record::{Marker, MarkerKind};
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

/// Maximum history, in minutes.
const LONGEST: usize = 60;

pub(super) async fn history(State(admin): State<Arc<Admin>>, uri: Uri) -> Result<Response, Problem> {
    let mut query = Parameters::of(&uri)?;
    let instance = query.take("instance");
    let minutes = query.number("minutes", LONGEST, LONGEST)?;
    query.nothing_else("instance, minutes")?;
    let fleet = admin.fleet(instance.as_deref()).await.map_err(Problem::unknown_instance)?;
    let mut named = fleet.iter().flat_map(|fleet| &fleet.instances).filter(|_| instance.is_some());
    if let Some(other) = named.find(|one| !one.is_this) {
        let detail = format!("instance {} keeps its history itself; ask it", other.record.name);
        return Err(Problem::unknown_instance(detail));
    }
    let steps = pages::history::last_hour() * minutes / LONGEST;
    let mut report = pages::history::read(&admin.app, steps).ok_or_else(|| {
        let detail =
            "the history is switched off; write `metrics: true` under `observe` in the configuration";
        Problem::new(StatusCode::NOT_FOUND, detail)
    })?;
    if instance.is_none() {
        admin.add_other_instances(&mut report);
    }
    let document = admin.control.document();
    report.markers.extend(document.changes.iter().map(|change| {
        let words = in_words(change.before.as_ref(), change.after.as_ref());
        let text = format!("{}: {words}, by {}", change.policy, change.by);
        Marker { at_ms: change.at_ms, what: MarkerKind::Changed, text }
    }));
    report.trim_markers();
    Ok(problem::ok(&report))
}

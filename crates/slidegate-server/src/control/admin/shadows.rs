//! `/v1/shadow`: denials by shadow policies, and how candidates would decide differently.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate_config::names::{CANDIDATE, candidate_of};

use super::apply::Numbers;
use crate::clock::at_text;
use crate::control::state::Admin;
use crate::engine::shadow::{Differences, ShadowFigures};
use crate::wire::problem;

/// Maximum keys per candidate in a response, the most affected first.
const MAX_KEYS: usize = 100;

#[derive(Serialize, JsonSchema)]
pub(crate) struct Shadow<'a> {
    /// Number of instances summed: those with the config and policies of this one.
    instances: usize,
    /// Why the other instances are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet_error: Option<String>,
    candidates: Vec<Comparison<'a>>,
    shadows: Vec<WatchedPolicy<'a>>,
}

/// A candidate compared with its policy.
#[derive(Serialize, JsonSchema)]
struct Comparison<'a> {
    policy: &'a str,
    live: Numbers,
    candidate: Numbers,
    /// Checks decided by both.
    requests: u64,
    #[serde(flatten)]
    changed: Differences,
    /// When the comparison began; `null` before the first check.
    since: Option<String>,
    /// Keys of the responding instance, the most affected first, at most 100.
    keys: Vec<ComparedKey>,
}

#[derive(Serialize, JsonSchema)]
struct ComparedKey {
    key: String,
    #[serde(flatten)]
    changed: Differences,
}

/// A shadow policy.
#[derive(Serialize, JsonSchema)]
struct WatchedPolicy<'a> {
    policy: &'a str,
    would_deny: u64,
    requests: u64,
    /// When the count began; `null` before the first check.
    since: Option<String>,
}

pub(super) async fn shadow(State(admin): State<Arc<Admin>>) -> Response {
    let policies = admin.app.policies();
    let fleet = admin.fleet(None).await.ok().flatten();
    let figures = |name: &str| match &fleet {
        Some(fleet) => fleet.shadow(name).1,
        None => admin.app.shadows().figures(&policies, name),
    };
    let since = |figures: Option<ShadowFigures>| figures.map(|one| at_text(one.since_ms));
    let candidates = policies.iter().filter_map(|candidate| {
        let name = candidate_of(candidate.name())?;
        let live = policies.by_name(name)?;
        let compared = figures(candidate.name());
        let changed = compared.map_or_else(Differences::default, |one| Differences {
            newly_denied: one.newly_denied,
            newly_allowed: one.newly_allowed,
        });
        let own = admin.app.shadows().figures(&policies, candidate.name());
        let keys = own.map(|_| admin.app.shadows().keys(name)).unwrap_or_default();
        let mut keys: Vec<_> = keys.into_iter().collect();
        keys.sort_by(|(a, one), (b, two)| {
            let sum = |one: &Differences| one.newly_denied + one.newly_allowed;
            sum(two).cmp(&sum(one)).then_with(|| a.cmp(b))
        });
        let keys = keys
            .into_iter()
            .take(MAX_KEYS)
            .map(|(key, one)| ComparedKey { key: admin.app.observer().shown(name, &key), changed: one });
        Some(Comparison {
            policy: name,
            live: Numbers::of(live.quota()),
            candidate: Numbers::of(candidate.quota()),
            requests: compared.map_or(0, |one| one.requests),
            changed,
            since: since(compared),
            keys: keys.collect(),
        })
    });
    let in_shadow =
        policies.iter().filter(|policy| !policy.options().enforced && !policy.name().ends_with(CANDIDATE));
    let shadows = in_shadow.map(|policy| {
        let watched = figures(policy.name());
        WatchedPolicy {
            policy: policy.name(),
            would_deny: watched.map_or(0, |one| one.newly_denied),
            requests: watched.map_or(0, |one| one.requests),
            since: since(watched),
        }
    });
    problem::ok(&Shadow {
        instances: fleet.as_ref().map_or(1, |fleet| fleet.shadow("").0),
        fleet_error: fleet.as_ref().and_then(|fleet| fleet.error.clone()),
        candidates: candidates.collect(),
        shadows: shadows.collect(),
    })
}

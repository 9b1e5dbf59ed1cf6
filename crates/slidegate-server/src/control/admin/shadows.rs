//! `/v1/shadow`: denials by shadow policies, and how candidates would decide differently.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate_config::names::{CANDIDATE, candidate_of};

use super::apply::Numbers;
use crate::control::state::Admin;
use crate::engine::shadow::Differences;
use crate::wire::problem;

/// Maximum keys per candidate in a response, the most affected first.
const MAX_KEYS: usize = 100;

#[derive(Serialize, JsonSchema)]
pub(crate) struct Shadow<'a> {
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
    /// The most affected first, at most 100.
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
}

pub(super) async fn shadow(State(admin): State<Arc<Admin>>) -> Response {
    let policies = admin.app.policies();
    let seen = admin.app.shadows().seen();
    let candidates = policies.iter().filter_map(|candidate| {
        let name = candidate_of(candidate.name())?;
        let live = policies.by_name(name)?;
        let compared = seen.candidates.get(name).filter(|one| one.is_of(live.quota(), candidate.quota()));
        let changed = compared.map(|one| one.changed).unwrap_or_default();
        let mut keys: Vec<_> = compared.iter().flat_map(|one| &one.keys).collect();
        keys.sort_by_key(|(key, one)| (std::cmp::Reverse(one.newly_denied + one.newly_allowed), *key));
        let keys = keys
            .into_iter()
            .take(MAX_KEYS)
            .map(|(key, one)| ComparedKey { key: admin.app.observer().shown(name, key), changed: *one });
        Some(Comparison {
            policy: name,
            live: Numbers::of(live.quota()),
            candidate: Numbers::of(candidate.quota()),
            requests: compared.map_or(0, |one| one.requests),
            changed,
            keys: keys.collect(),
        })
    });
    let in_shadow =
        policies.iter().filter(|policy| !policy.options().enforced && !policy.name().ends_with(CANDIDATE));
    let shadows = in_shadow.map(|policy| {
        let watched = seen.shadows.get(policy.name()).copied().unwrap_or_default();
        WatchedPolicy { policy: policy.name(), would_deny: watched.would_deny, requests: watched.requests }
    });
    problem::ok(&Shadow { candidates: candidates.collect(), shadows: shadows.collect() })
}

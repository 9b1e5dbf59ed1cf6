//! `/v1/shadow`: denials by shadow policies, and how candidates would decide differently.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;
use slidegate_config::names::{CANDIDATE, candidate_of};

use super::apply::numbers;
use super::state::Admin;
use crate::wire::problem;

/// Maximum keys per candidate in a response, the most affected first.
const MAX_KEYS: usize = 100;

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
        let keys = keys.into_iter().take(MAX_KEYS).map(|(key, one)| {
            json!({
                "key": admin.app.observer().shown(name, key),
                "newly_denied": one.newly_denied,
                "newly_allowed": one.newly_allowed,
            })
        });
        Some(json!({
            "policy": name,
            "live": numbers(live.quota()),
            "candidate": numbers(candidate.quota()),
            "requests": compared.map_or(0, |one| one.requests),
            "newly_denied": changed.newly_denied,
            "newly_allowed": changed.newly_allowed,
            "keys": keys.collect::<Vec<_>>(),
        }))
    });
    let in_shadow =
        policies.iter().filter(|policy| !policy.is_enforced() && !policy.name().ends_with(CANDIDATE));
    let shadows = in_shadow.map(|policy| {
        let watched = seen.shadows.get(policy.name()).copied().unwrap_or_default();
        json!({ "policy": policy.name(), "would_deny": watched.would_deny, "requests": watched.requests })
    });
    problem::ok(
        &json!({ "candidates": candidates.collect::<Vec<_>>(), "shadows": shadows.collect::<Vec<_>>() }),
    )
}

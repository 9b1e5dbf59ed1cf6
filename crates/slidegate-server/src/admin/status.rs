//! `/v1/status`: what runs, since when, on which configuration, and how things stand with the store.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::Admin;
use super::reply::answer;
use crate::control::{at_text, now_ms};
use crate::observe::Spans;
use crate::store;

pub(super) async fn status(State(admin): State<Arc<Admin>>) -> Response {
    let front = &admin.front;
    let loaded = admin.loaded().clone();
    let (version, document, problem) = admin.control.current();
    let stats = front.stats();
    let mut store = front.shared().map_or_else(|| json!({ "kind": "memory" }), store::Shared::state);
    store["degraded"] = front.shared().is_some_and(store::Shared::is_degraded).into();
    answer(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "started_at": at_text(admin.started_ms),
        "uptime_ms": now_ms().saturating_sub(admin.started_ms),
        "ready": front.is_ready(),
        "listeners": admin.listeners,
        "config": {
            "source": loaded.source,
            "hash": loaded.hash,
            "loaded_at": at_text(loaded.at_ms),
            "reloads": loaded.reloads,
            "error": loaded.error,
        },
        "store": store,
        "traces": front.observer().traces().map(|traces| {
            let Spans { sent, failed, dropped } = traces.spans();
            json!({ "endpoint": traces.endpoint(), "sent": sent, "failed": failed, "dropped": dropped })
        }),
        "memory": { "keys": stats.keys, "max_keys": stats.max_keys, "dropped": stats.dropped },
        "changes": {
            "version": version,
            "count": document.policies.len() + document.living(now_ms()).count(),
            "error": problem,
            "refused": front.refused(),
        },
    }))
}

//! `/v1/status`: version, uptime, configuration, store and run-time changes.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::state::Admin;
use crate::config::Right;
use crate::control::changes::{ControlStatus, at_text, now_ms};
use crate::control::fleet::{FleetView, Instance, ROLLOUT};
use crate::listener::{Connection, ConnectionBudget, ConnectionCaps};
use crate::record::Spans;
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

pub(super) async fn status(
    State(admin): State<Arc<Admin>>,
    request: Request<Body>,
) -> Result<Response, Problem> {
    let app = &admin.app;
    let mut query = Parameters::of(request.uri())?;
    let instance = query.take("instance");
    query.nothing_else("instance")?;
    let connection = Connection::of(request.extensions());
    let may_write = app.access.operator(request.headers(), request.uri(), Right::Write, connection).is_ok();
    drop(request);
    let fleet = app.fleet(instance.as_deref()).await.map_err(Problem::unknown_instance)?;
    let observer = app.observer();
    let config = observer.config();
    let date = |at| at_text(observer.wall_time(at).as_micros() / 1000);
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let ControlStatus { id, document, location, problem, losses, last_loss } = admin.control.status();
    let now = now_ms();
    let stats = app.store().stats();
    let mut store = app.store_status();
    store["degraded"] = app.is_degraded().into();
    Ok(problem::ok(&json!({
        "version": env!("CARGO_PKG_VERSION"),
        "time_zones": slidegate::time_zone_data().map(|(version, source)| json!({ "version": version, "source": source })),
        "started_at": date(observer.started_at),
        "uptime_ms": millis(observer.uptime()),
        "may_write": may_write,
        "ready": app.readiness.is_ready(),
        "listeners": admin.listeners,
        "connections": connections(&app.connections),
        "config": {
            "source": admin.config_source,
            "hash": config.hash,
            "loaded_at": date(config.at),
            "reloads": config.loads,
            "rejected": config.error.is_some(),
            "error": config.error.or(config.pending),
        },
        "store": store,
        "fleet": fleet.as_ref().map(fleet_json),
        "traces": observer.traces().map(|traces| {
            let Spans { sent, failed, dropped } = traces.spans();
            json!({ "endpoint": traces.endpoint(), "sent": sent, "failed": failed, "dropped": dropped })
        }),
        "memory": {
            "keys": stats.keys,
            "max_keys": stats.max_keys,
            "dropped": stats.dropped,
            "bytes": stats.bytes,
            "max_bytes": stats.max_bytes,
            "holds": stats.holds,
            "max_holds": stats.max_holds,
        },
        "snapshot": app.snapshots.as_ref().map(|snapshots| {
            let status = snapshots.status().clone();
            json!({
                "path": snapshots.path(),
                "interval_ms": millis(snapshots.interval()),
                "saved": status.saved,
                "failed": status.failed,
                "error": status.error,
                "last": status.last.map(|last| json!({
                    "at": at_text(last.at_ms),
                    "keys": last.content.keys,
                    "bytes": last.content.bytes,
                    "duration_ms": millis(last.took),
                })),
                "restored": status.restored.map(|restored| json!({
                    "keys": restored.keys,
                    "expired": restored.expired,
                    "unknown_policy": restored.unknown_policy,
                    "other_algorithm": restored.other_algorithm,
                    "written_at": at_text(restored.written_at.as_micros() / 1000),
                    "downtime_ms": millis(restored.downtime),
                })),
                "rejected": status.rejected.map(|rejected| json!({
                    "reason": rejected.reason,
                    "kept_as": rejected.kept_as,
                })),
            })
        }),
        "changes": {
            "version": id.version,
            "epoch": (id.epoch != 0).then(|| format!("{:016x}", id.epoch)),
            "digest": document.digest(now),
            "place": location,
            "losses": losses,
            "last_loss": last_loss.map(|last| json!({
                "at": at_text(last.at_ms),
                "found": last.found,
                "restored_at": last.restored_ms.map(at_text),
            })),
            "count": document.count_in_force(now),
            "error": problem,
            "refused": app.active.refused(),
        },
    })))
}

/// The instances, their totals, and whether they differ.
fn fleet_json(fleet: &FleetView) -> Value {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let [versions, configs] = fleet.distinct();
    let [allowed, denied] = fleet.rates();
    let instances = fleet.instances.iter().map(|Instance { id, is_this, record }| {
        let [allowed, denied] = record.recent.rates();
        json!({
            "name": record.name,
            "id": id,
            "this": is_this,
            "version": record.version,
            "started_at": at_text(record.started_ms),
            "config": record.config,
            "changes": record.changes,
            "changes_digest": record.changes_digest,
            "degraded": record.degraded,
            "allowed": record.allowed,
            "denied": record.denied,
            "allowed_per_s": allowed,
            "denied_per_s": denied,
        })
    });
    json!({
        "error": fleet.error,
        "unreadable_records": fleet.unreadable,
        "allowed_per_s": allowed,
        "denied_per_s": denied,
        "degraded": fleet.instances.iter().filter(|one| one.record.degraded).count(),
        "differ": fleet.differs_for.map(|differs_for| json!({
            "for_ms": millis(differs_for),
            "longer_than_a_rollout": differs_for >= ROLLOUT,
            "versions": versions,
            "configs": configs,
        })),
        "instances": instances.collect::<Vec<_>>(),
    })
}

/// Open connections and their caps, file descriptors, and counts of connections by protocol.
fn connections(budget: &ConnectionBudget) -> Value {
    let ConnectionCaps { total, per_peer } = budget.caps();
    let (limit, open) = budget.descriptors();
    let protocols: Map<String, Value> = budget
        .protocols()
        .iter()
        .map(|one| {
            let refused: u64 = one.refusals().map(|(_, count)| count).sum();
            let closed: Map<_, _> =
                one.closings().map(|(reason, count)| (reason.name().to_owned(), count.into())).collect();
            let counts =
                json!({ "open": one.open(), "accepted": one.accepted(), "refused": refused, "closed": closed });
            (one.protocol.to_owned(), counts)
        })
        .collect();
    json!({
        "open": budget.open(),
        "max": total,
        "max_per_peer": per_peer,
        "descriptors": { "open": open, "limit": limit },
        "protocols": protocols,
    })
}

//! `/v1/status`: version, uptime, configuration, store and run-time changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::store::MemoryStats;

use crate::clock::{at_text, millis, now_ms};
use crate::config::{Right, longest_window};
use crate::control::changes::{ControlStatus, Location};
use crate::control::fleet::{FleetView, Instance, ROLLOUT};
use crate::control::pages::findings::Findings;
use crate::control::pages::history::undelivered;
use crate::control::state::Admin;
use crate::engine::snapshots::{RejectedSnapshot, Snapshots};
use crate::engine::{App, StoreState};
use crate::listener::{Connection, ConnectionBudget, ConnectionCaps};
use crate::record::{Spans, TurnOutcome, Waits};
use crate::wire::ports::Listener;
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

#[derive(Serialize, JsonSchema)]
pub(crate) struct Status<'a> {
    version: &'static str,
    /// The time zone database of calendar windows, if there is one.
    time_zones: Option<TimeZones>,
    started_at: String,
    uptime_ms: u64,
    /// Whether the caller may change limits.
    may_write: bool,
    ready: bool,
    /// The first serves these routes.
    listeners: &'a [Listener],
    connections: ConnectionStatus,
    config: ConfigStatus<'a>,
    store: StoreStatus,
    /// The instances that share the store. `null`: there is no shared store, or `store.fleet` is `false`.
    fleet: Option<FleetStatus<'a>>,
    traces: Option<TraceStatus<'a>>,
    memory: MemoryStatus,
    /// The snapshot of the memory store, if `store.memory.snapshot` is configured.
    snapshot: Option<SnapshotBody<'a>>,
    changes: ChangeStatus,
    policies: Findings,
    waiting: WaitStatus,
    /// Notifications that were not reported, and messages that did not reach the webhook, since the start.
    undelivered: u64,
}

/// Calls of this instance that [wait for their turn](waiting.md), and what became of those before, since the start.
#[derive(Serialize, JsonSchema)]
struct WaitStatus {
    /// Calls that wait now.
    now: usize,
    /// How long the oldest of them has waited.
    oldest_ms: u64,
    /// Calls that were admitted, at once or after a wait.
    turns: u64,
    /// Calls denied because there was no turn in time.
    late: u64,
    /// Calls denied because as many waited as may.
    full: u64,
    /// Calls whose client hung up.
    gone: u64,
    /// How long half of the admitted calls waited at most, rounded up to 1, 2, 5, 10 and so on. `null`: none was admitted.
    p50_ms: Option<u64>,
    /// How long 99 of 100 of them waited at most.
    p99_ms: Option<u64>,
}

impl WaitStatus {
    fn of(waits: &Waits) -> Self {
        let ((now, oldest), count) = (waits.now(), |outcome| waits.count_of(outcome));
        Self {
            now,
            oldest_ms: millis(oldest),
            turns: count(TurnOutcome::Turn),
            late: count(TurnOutcome::Late),
            full: count(TurnOutcome::Full),
            gone: count(TurnOutcome::Gone),
            p50_ms: waits.within(0.5).map(millis),
            p99_ms: waits.within(0.99).map(millis),
        }
    }
}

#[derive(Serialize, JsonSchema)]
struct TimeZones {
    /// Such as `2026a`.
    version: &'static str,
    /// Whose it is.
    #[schemars(extend("enum" = ["bundled", "system"]))]
    source: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct StoreStatus {
    #[serde(flatten)]
    state: StoreState,
    /// Whether policies use their fallbacks.
    degraded: bool,
    /// A loss of usage that limits still suffer from, as any instance found it. `null`: none is known.
    usage_lost: Option<UsageLoss>,
}

/// The store had lost usage: keys were evicted, or history was gone after a failover, a restart without persistence
/// or a `FLUSHALL`. Until the windows that ran then have passed, keys may be admitted once more.
#[derive(Serialize, JsonSchema)]
struct UsageLoss {
    /// When it was found.
    at: String,
    /// The policy whose window is the longest.
    policy: String,
    /// Its window, such as `1h` or `month in Europe/Berlin`.
    window: String,
    /// When that window has passed.
    until: String,
}

impl UsageLoss {
    /// The last loss that an instance found, unless every window has passed since.
    fn of(app: &App, fleet: Option<&FleetView>) -> Option<Self> {
        let now = now_ms();
        let found =
            fleet.into_iter().flat_map(|fleet| &fleet.instances).filter_map(|one| one.record.usage_lost_ms);
        let lost_ms = found.chain(app.shared()?.usage_lost_ms()).filter(|at| *at <= now).max()?;
        let policies = app.policies();
        let longest = longest_window(&policies)?;
        let until_ms = lost_ms.saturating_add(millis(longest.quota().window()));
        (until_ms > now).then(|| Self {
            at: at_text(lost_ms),
            policy: longest.name().to_owned(),
            window: longest.quota().window_text(),
            until: at_text(until_ms),
        })
    }
}

#[derive(Serialize, JsonSchema)]
struct ConnectionStatus {
    /// Open connections of all protocols.
    open: usize,
    /// Maximum of all protocols together; lower than configured if file descriptors are short.
    max: usize,
    /// Maximum of one client address.
    max_per_peer: usize,
    descriptors: DescriptorStatus,
    /// By protocol.
    protocols: BTreeMap<&'static str, ProtocolStatus>,
}

#[derive(Serialize, JsonSchema)]
struct DescriptorStatus {
    /// File descriptors in use. `null`: unknown.
    open: Option<usize>,
    /// The limit of the process. `null`: none.
    limit: Option<u64>,
}

/// The connections of one protocol.
#[derive(Serialize, JsonSchema)]
struct ProtocolStatus {
    open: usize,
    accepted: u64,
    /// Connections refused because too many were open and in use.
    refused: u64,
    /// Connections that the service closed, by reason.
    closed: BTreeMap<&'static str, u64>,
}

#[derive(Serialize, JsonSchema)]
struct ConfigStatus<'a> {
    /// The path of the config file, `command line` or `default`.
    source: &'a str,
    /// SHA-256 of the active config file.
    hash: String,
    loaded_at: String,
    /// Successful reloads since the start.
    reloads: u64,
    /// Whether `error` is why the last file was rejected.
    rejected: bool,
    /// Why the last file was rejected, or which of its settings need a restart.
    error: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct FleetStatus<'a> {
    /// Why the other instances are unknown.
    error: Option<&'a str>,
    /// When they were last known, if they are unknown.
    alone_since: Option<String>,
    /// Records in the store that no instance wrote.
    unreadable_records: u64,
    /// Allowed checks of the instances listed.
    allowed_per_s: f64,
    /// Denied checks of the instances listed.
    denied_per_s: f64,
    /// Calls that wait for their turn, on the instances listed.
    waiting: u64,
    /// How many may decide by fallbacks, as the store is unavailable.
    degraded: usize,
    /// How long versions, configurations or time zone data have differed. `null`: they agree.
    differ: Option<VersionDifference<'a>>,
    instances: Vec<InstanceStatus<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct VersionDifference<'a> {
    for_ms: u64,
    /// Whether this is more than five minutes.
    longer_than_a_rollout: bool,
    versions: BTreeSet<&'a str>,
    configs: BTreeSet<&'a str>,
    /// Versions of the time zone data, such as `2026a`.
    time_zones: BTreeSet<&'a str>,
}

/// An instance, as it describes itself.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Instance")]
struct InstanceStatus<'a> {
    /// Host and port.
    name: &'a str,
    /// 16 hexadecimal digits, drawn when it started.
    id: &'a str,
    /// Whether it is the one that responds.
    this: bool,
    version: &'a str,
    /// The version of its time zone data.
    time_zones: Option<&'a str>,
    started_at: String,
    /// Digest of the config file and of the active policies.
    config: &'a str,
    /// Active run-time changes.
    changes: u64,
    /// See `digest` of the status.
    changes_digest: u64,
    degraded: bool,
    /// Allowed checks since its start.
    allowed: u64,
    /// Denied checks since its start.
    denied: u64,
    /// In its last interval of about 3 seconds.
    allowed_per_s: f64,
    denied_per_s: f64,
    /// Calls that waited for their turn when it last published.
    waiting: u64,
}

/// Spans, and the collector that they are sent to.
#[derive(Serialize, JsonSchema)]
struct TraceStatus<'a> {
    endpoint: &'a str,
    #[serde(flatten)]
    spans: Spans,
}

#[derive(Serialize, JsonSchema)]
struct MemoryStatus {
    keys: usize,
    max_keys: usize,
    /// Keys that were evicted while they still counted.
    dropped: u64,
    bytes: usize,
    max_bytes: Option<usize>,
    /// Open reservations.
    holds: usize,
    max_holds: usize,
}

#[derive(Serialize, JsonSchema)]
struct SnapshotBody<'a> {
    path: &'a Path,
    interval_ms: u64,
    saved: u64,
    failed: u64,
    /// Why the last snapshot was not written; null if it was.
    error: Option<String>,
    last: Option<LastSnapshotBody>,
    restored: Option<RestoredSnapshot>,
    rejected: Option<RejectedSnapshot>,
}

/// The last snapshot that was written.
#[derive(Serialize, JsonSchema)]
struct LastSnapshotBody {
    at: String,
    keys: u64,
    bytes: u64,
    duration_ms: u64,
}

/// What the start restored.
#[derive(Serialize, JsonSchema)]
struct RestoredSnapshot {
    keys: u64,
    expired: u64,
    unknown_policy: u64,
    other_algorithm: u64,
    written_at: String,
    downtime_ms: u64,
}

/// Run-time changes.
#[derive(Serialize, JsonSchema)]
struct ChangeStatus {
    /// The version of the active document. Each change increases it.
    version: u64,
    /// Random; replaced when changes are restored after the store lost them. `null` in memory.
    #[schemars(extend("pattern" = "^[0-9a-f]{16}$"))]
    epoch: Option<String>,
    /// Equal on all instances that enforce the same changes; 0 without changes.
    digest: u64,
    /// Where the active changes are stored. `lost`: the store lost some, and they are not restored yet. `unknown`:
    /// the store is unreachable or holds something else.
    place: Location,
    /// How often the store had lost active changes.
    losses: u64,
    last_loss: Option<LossBody>,
    count: usize,
    error: Option<String>,
    /// Rejected changes, described.
    refused: Vec<String>,
}

#[derive(Serialize, JsonSchema)]
struct LossBody {
    at: String,
    /// What the store held at that time.
    found: String,
    /// When all changes were restored; null until then.
    restored_at: Option<String>,
}

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
    let fleet = admin.fleet(instance.as_deref()).await.map_err(Problem::unknown_instance)?;
    let observer = app.observer();
    let config = observer.config();
    let date = |at| at_text(observer.wall_time(at).as_micros() / 1000);
    let MemoryStats { keys, max_keys, dropped, bytes, max_bytes, holds, max_holds, .. } = app.store().stats();
    Ok(problem::ok(&Status {
        version: env!("CARGO_PKG_VERSION"),
        time_zones: slidegate::clock::time_zone_data().map(|(version, source)| TimeZones { version, source }),
        started_at: date(observer.started_at),
        uptime_ms: millis(observer.uptime()),
        may_write,
        ready: app.readiness.is_ready(),
        listeners: &admin.listeners,
        connections: ConnectionStatus::of(&app.connections),
        config: ConfigStatus {
            source: &admin.config_source,
            hash: config.hash,
            loaded_at: date(config.at),
            reloads: config.loads,
            rejected: config.error.is_some(),
            error: config.error.or(config.pending),
        },
        store: StoreStatus {
            state: app.store_state(),
            degraded: app.is_degraded(),
            usage_lost: UsageLoss::of(app, fleet.as_ref()),
        },
        fleet: fleet.as_ref().map(|fleet| FleetStatus::of(fleet, date(observer.started_at + fleet.heard_at))),
        traces: observer
            .traces()
            .map(|traces| TraceStatus { endpoint: traces.endpoint(), spans: traces.spans() }),
        memory: MemoryStatus { keys, max_keys, dropped, bytes, max_bytes, holds, max_holds },
        snapshot: app.snapshots.as_ref().map(SnapshotBody::of),
        changes: ChangeStatus::of(&admin),
        policies: Findings::of(&admin, fleet.as_ref()),
        waiting: WaitStatus::of(&observer.waits),
        undelivered: undelivered(observer),
    }))
}

impl<'a> SnapshotBody<'a> {
    fn of(snapshots: &'a Snapshots) -> Self {
        let status = snapshots.status().clone();
        Self {
            path: snapshots.path(),
            interval_ms: millis(snapshots.interval()),
            saved: status.saved,
            failed: status.failed,
            error: status.error,
            last: status.last.map(|last| LastSnapshotBody {
                at: at_text(last.at_ms),
                keys: last.content.keys,
                bytes: last.content.bytes,
                duration_ms: millis(last.took),
            }),
            restored: status.restored.map(|restored| RestoredSnapshot {
                keys: restored.keys,
                expired: restored.expired,
                unknown_policy: restored.unknown_policy,
                other_algorithm: restored.other_algorithm,
                written_at: at_text(restored.written_at.as_micros() / 1000),
                downtime_ms: millis(restored.downtime),
            }),
            rejected: status.rejected,
        }
    }
}

impl ChangeStatus {
    fn of(admin: &Admin) -> Self {
        let ControlStatus { id, document, location, problem, losses, last_loss } = admin.control.status();
        let now = now_ms();
        Self {
            version: id.version,
            epoch: (id.epoch != 0).then(|| format!("{:016x}", id.epoch)),
            digest: document.digest(now),
            place: location,
            losses,
            last_loss: last_loss.map(|last| LossBody {
                at: at_text(last.at_ms),
                found: last.found,
                restored_at: last.restored_ms.map(at_text),
            }),
            count: document.count_in_force(now),
            error: problem,
            refused: admin.control.active.refused(),
        }
    }
}

impl<'a> FleetStatus<'a> {
    fn of(fleet: &'a FleetView, heard_at: String) -> Self {
        let [versions, configs, time_zones] = fleet.distinct();
        let [allowed_per_s, denied_per_s] = fleet.rates();
        let instances = fleet.instances.iter().map(InstanceStatus::of);
        Self {
            error: fleet.error.as_deref(),
            alone_since: fleet.error.as_ref().map(|_| heard_at),
            unreadable_records: fleet.unreadable,
            allowed_per_s,
            denied_per_s,
            waiting: fleet.instances.iter().fold(0, |sum, one| sum.saturating_add(one.record.waiting)),
            degraded: fleet.instances.iter().filter(|one| one.record.degraded).count(),
            differ: fleet.differs_for.map(|differs_for| VersionDifference {
                for_ms: millis(differs_for),
                longer_than_a_rollout: differs_for >= ROLLOUT,
                versions,
                configs,
                time_zones,
            }),
            instances: instances.collect(),
        }
    }
}

impl<'a> InstanceStatus<'a> {
    fn of(Instance { id, is_this, record }: &'a Instance) -> Self {
        let [allowed_per_s, denied_per_s] = record.recent.rates();
        Self {
            name: &record.name,
            id,
            this: *is_this,
            version: &record.version,
            time_zones: record.time_zones.as_deref(),
            started_at: at_text(record.started_ms),
            config: &record.config,
            changes: record.changes,
            changes_digest: record.changes_digest,
            degraded: record.degraded,
            allowed: record.allowed,
            denied: record.denied,
            allowed_per_s,
            denied_per_s,
            waiting: record.waiting,
        }
    }
}

impl ConnectionStatus {
    fn of(budget: &ConnectionBudget) -> Self {
        let ConnectionCaps { total: max, per_peer: max_per_peer } = budget.caps();
        let (limit, open) = budget.descriptors();
        let protocols = budget.protocols();
        let protocols = protocols.iter().map(|one| {
            let status = ProtocolStatus {
                open: one.open(),
                accepted: one.accepted(),
                refused: one.refusals().map(|(_, count)| count).sum(),
                closed: one.closings().map(|(reason, count)| (reason.name(), count)).collect(),
            };
            (one.protocol, status)
        });
        Self {
            open: budget.open(),
            max,
            max_per_peer,
            descriptors: DescriptorStatus { open, limit },
            protocols: protocols.collect(),
        }
    }
}

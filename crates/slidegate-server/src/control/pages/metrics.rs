//! All metrics, as `OpenMetrics` text.
//!
//! Labels are policies, protocols and nodes, whose numbers are bounded. Keys are never labels, because
//! clients choose them. A test compares the dashboard and the alerts in `deploy/` with the metrics in this
//! file.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use slidegate::store::NodeState;
use slidegate::{Amount, Policy, PolicySet, Quota, clock::Timestamp, verb::Verb};
use slidegate_config::names;

use super::envoy_metrics::EnvoyMetrics;
use super::findings::Findings;
use super::lease_metrics::leases;
use super::page::Page;
use super::wait_metrics::waits;
use crate::access::attempts::AuthAttempts;
use crate::caller::Protocol;
use crate::clock::{millis, now_ms};
use crate::control::state::Admin;
use crate::engine::store::Shared;
use crate::engine::{App, OpenCost};
use crate::listener::ConnectionBudget;
use crate::record::histogram::Reading;
use crate::record::notifications::Drop;
use crate::record::observer::Observer;
use crate::record::policy_counters::{Counts, HoldOutcome, OTHERS, Outcome, PolicyCounters, SOURCES};
use crate::record::settled_shares::SettledShares;
use crate::record::traces::Spans;
use crate::record::webhook::WebhookCounts;
use crate::record::{VERBS, verb_name};
use crate::wire::malformed::{Flaw, Handling};

/// Maximum policies with their own series, up to 20 each. The others are summed under [`OTHERS`].
const MAX_POLICIES: usize = 1000;
/// Maximum nodes of a shared store with their own series. Clusters rarely have a hundred masters.
const MAX_NODES: usize = 256;

/// The current metrics as `OpenMetrics`; [`Format`](super::exposition::Format) converts them.
pub(super) fn page(admin: &Arc<Admin>) -> String {
    let mut registry = Registry::with_prefix("slidegate");
    registry.register_collector(Box::new(Scrape(Arc::clone(admin))));
    // The metric names of envoyproxy/ratelimit have no prefix.
    let mut reference = Registry::default();
    reference.register_collector(Box::new(EnvoyMetrics(Arc::clone(&admin.app))));
    let mut page = String::new();
    let written = text::encode_registry(&mut page, &registry)
        .and_then(|()| text::encode_registry(&mut page, &reference))
        .and_then(|()| text::encode_eof(&mut page));
    written.expect("text takes text");
    page
}

/// Seconds since the epoch.
#[allow(clippy::cast_precision_loss)] // Prometheus uses seconds as doubles
fn seconds(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e6
}

#[allow(clippy::cast_precision_loss)] // as above
fn signed_seconds(us: i64) -> f64 {
    us as f64 / 1e6
}

#[derive(Debug)]
struct Scrape(Arc<Admin>);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let app = &*self.0.app;
        let mut page = Page(encoder);
        process(&mut page, app)?;
        connections(&mut page, &app.connections)?;
        policies(&mut page, app.observer(), &app.policies())?;
        open_reservations(&mut page, app)?;
        requests(&mut page, app.observer())?;
        malformed(&mut page, app.observer())?;
        authentications(&mut page, app.access.attempts())?;
        configuration(&mut page, app.observer())?;
        spans(&mut page, app.observer())?;
        notifications(&mut page, app.observer())?;
        let help = "Keys with more than half of the denials of their policy on all instances, in the last ten minutes";
        let flooding = Findings::of(&self.0, self.0.known_fleet().as_ref()).flooding_keys;
        page.value("flooding_keys", help, count(flooding.len()))?;
        escalations(&mut page, app.observer())?;
        streams(&mut page, app.observer())?;
        snapshots(&mut page, app)?;
        let Some(shared) = app.shared() else { return Ok(()) };
        changes(&mut page, &self.0)?;
        store(&mut page, &self.0, shared)
    }
}

fn process(page: &mut Page<'_>, app: &App) -> fmt::Result {
    let (observer, memory) = (app.observer(), app.store().stats());
    page.info("build", "The version of the service", [("version", env!("CARGO_PKG_VERSION"))])?;
    let started_at = seconds(observer.wall_time(observer.started_at));
    page.seconds("start_time", "Start time of the service, in seconds since the Unix epoch", started_at)?;
    page.value("keys", "Keys in the memory store", count(memory.keys))?;
    page.value("max_keys", "Maximum keys in the memory store", count(memory.max_keys))?;
    page.value(
        "memory_bytes",
        "Bytes that the keys of the memory store take, as allocated",
        count(memory.bytes),
    )?;
    let help = "Open reservations in the memory store, each counted on every key that it holds cost of";
    page.value("holds", help, count(memory.holds))?;
    let help =
        "Tickets to settle, extend or cancel that the store does not know; nothing was charged or released";
    page.total("unknown_tickets", help, app.store().unknown_tickets())?;
    page.value("max_holds", "Maximum open reservations in the memory store", count(memory.max_holds))?;
    let pending = app.store().pending_settlements();
    let help = "Settlements that wait for a shared store, which does not reply";
    page.value("settlements_pending", help, pending.waiting)?;
    let help = "Settlements that waited for a shared store: sent to it, or dropped as the time of their \
                reservation was over or too many waited";
    let ended = [("sent", pending.sent), ("dropped", pending.dropped)];
    let ended = ended.map(|(outcome, count)| ([("outcome", outcome)], count));
    page.counter("settlements_queued", help, ended)?;
    if let Some(max_bytes) = memory.max_bytes {
        page.value("max_memory_bytes", "Maximum bytes of the memory store", count(max_bytes))?;
    }
    let dropped =
        "Keys evicted from a full memory store while they still counted; they may be denied too long";
    page.total("keys_dropped", dropped, memory.dropped)?;
    waits(page, &observer.waits)
}

fn connections(page: &mut Page<'_>, budget: &ConnectionBudget) -> fmt::Result {
    let protocols = budget.protocols();
    let each = || protocols.iter().map(|one| (one, [("protocol", one.protocol)]));
    let open = each().map(|(one, labels)| (labels, count(one.open())));
    page.gauge("connections", "Open connections by protocol", open)?;
    let help =
        "Maximum connections of all protocols together; fewer than configured if file descriptors are short";
    page.value("max_connections", help, count(budget.caps().total))?;
    let accepted = each().map(|(one, labels)| (labels, one.accepted()));
    page.counter("connections_accepted", "Accepted connections by protocol", accepted)?;
    let refused = each().flat_map(|(one, [protocol])| {
        one.refusals().map(move |(reason, count)| ([protocol, ("reason", reason.name())], count))
    });
    let help =
        "Refused connections: no room in total, for the peer, for the protocol, or no file descriptors";
    page.counter("connections_refused", help, refused)?;
    let closed = each().flat_map(|(one, [protocol])| {
        one.closings().map(move |(reason, count)| ([protocol, ("reason", reason.name())], count))
    });
    let help =
        "Connections that the service closed: evicted to make room for another one, or beyond a timeout";
    page.counter("connections_closed", help, closed)?;
    let bytes = each().map(|(one, labels)| (labels, count(one.unfinished_bytes())));
    let help =
        "Memory of requests that have not arrived whole, beyond what each connection may hold uncounted";
    page.gauge("unfinished_request_bytes", help, bytes)?;
    let refused = each().map(|(one, labels)| (labels, one.unfinished_refused()));
    let help = "Requests that were given up before they arrived whole, as the memory for these was full";
    page.counter("unfinished_requests_refused", help, refused)?;
    let (limit, open) = budget.descriptors();
    if let Some(open) = open {
        page.value("open_fds", "Open file descriptors of the process", count(open))?;
    }
    match limit {
        Some(limit) => page.value("max_fds", "Limit of file descriptors of the process", limit),
        None => Ok(()),
    }
}

fn snapshots(page: &mut Page<'_>, app: &App) -> fmt::Result {
    let Some(snapshots) = &app.snapshots else { return Ok(()) };
    let (status, now) = (snapshots.status().clone(), now_ms());
    let age_ms = status.last.map_or(millis(app.observer().uptime()), |last| now.saturating_sub(last.at_ms));
    #[allow(clippy::cast_precision_loss)] // exact for 285 thousand years
    let age = age_ms as f64 / 1000.0;
    page.seconds("snapshot_age", "Time since the last snapshot was written, or since the start", age)?;
    let interval = snapshots.interval().as_secs_f64();
    page.seconds("snapshot_interval", "Configured time between two snapshots", interval)?;
    let took = status.last.map_or(0.0, |last| last.took.as_secs_f64());
    page.seconds("snapshot_duration", "How long the last snapshot took", took)?;
    let bytes = status.last.map_or(0, |last| last.content.bytes);
    page.value("snapshot_bytes", "Size of the last snapshot", bytes)?;
    let outcomes = [("saved", status.saved), ("failed", status.failed)];
    let outcomes = outcomes.map(|(outcome, count)| ([("outcome", outcome)], count));
    page.counter("snapshots", "Snapshots by outcome", outcomes)?;
    let help = "Whether the snapshot that was found at the start was damaged and set aside";
    page.value("snapshot_rejected", help, u64::from(status.rejected.is_some()))
}

fn spans(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let Some(traces) = observer.traces() else { return Ok(()) };
    let Spans { sent, failed, dropped } = traces.spans();
    let outcomes = [("sent", sent), ("failed", failed), ("dropped", dropped)];
    let help = "Spans by outcome: failed means rejected by the collector, dropped means that the memory for them was full";
    page.counter("spans", help, outcomes.map(|(outcome, count)| ([("outcome", outcome)], count)))
}

fn notifications(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let notifications = &observer.notifications;
    let reasons = Drop::ALL.map(|why| ([("reason", why.name())], notifications.count_of(why)));
    let help = "Notifications that were not reported: too many keys, too many waiting, the shared store did not say \
                which instance reports, or no receiver took a total for as long as it is kept";
    page.counter("notifications_dropped", help, reasons)?;
    let Some(webhook) = &notifications.webhook else { return Ok(()) };
    let WebhookCounts { sent, failed, dropped, retries } = webhook.counts();
    let outcomes = [("sent", sent), ("failed", failed), ("dropped", dropped)];
    let outcomes = outcomes.map(|(outcome, count)| ([("outcome", outcome)], count.load(Relaxed)));
    let help = "Messages to the webhook by outcome: failed means that all attempts failed, dropped that too many waited";
    page.counter("webhook_messages", help, outcomes)?;
    page.total("webhook_retries", "Attempts to send a message to the webhook again", retries.load(Relaxed))
}

fn escalations(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let escalations = &observer.escalations;
    let help = "Keys that this instance blocked, as they were denied as often as `escalate` names";
    page.total("escalations", help, escalations.count_blocked())?;
    let reasons = escalations.count_dropped().map(|(reason, count)| ([("reason", reason)], count));
    let help =
        "Keys that were not blocked although they earned it, or whose count of denials was lost, by reason";
    page.counter("escalations_dropped", help, reasons)
}

fn streams(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let [operators, keys] = &observer.streams;
    let refused = [("operators", operators.refused()), ("keys", keys.refused())];
    let help = "Event streams that were refused, as their token had as many as it leaves free for others: tokens of \
                operators, and of one key";
    page.counter("streams_refused", help, refused.map(|(tokens, count)| ([("tokens", tokens)], count)))
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn policies(page: &mut Page<'_>, observer: &Observer, policies: &PolicySet) -> fmt::Result {
    let registry = observer.registry.load();
    let (shown, others) = registry.in_force().split_at(registry.in_force().len().min(MAX_POLICIES));
    decisions(page, shown, others)?;
    reservations(page, shown, others)?;
    costs(page, shown, others)?;
    counts(page, shown, others)?;
    quotas(page, policies)
}

/// Counters of policies that are shown, and of the others, which are summed.
type PolicyCounterList = [Arc<PolicyCounters>];

fn decisions(page: &mut Page<'_>, shown: &PolicyCounterList, others: &PolicyCounterList) -> fmt::Result {
    let checks = |counters: &Arc<PolicyCounters>| {
        let counters = Arc::clone(counters);
        let all = Outcome::ALL.into_iter().flat_map(|outcome| SOURCES.map(|source| (outcome, source)));
        all.map(move |(outcome, source)| {
            let labels = [("verdict", outcome.name()), ("source", source.name())];
            (labels, counters.checks(outcome, source), outcome == Outcome::Allow && source == SOURCES[0])
        })
    };
    let mut decisions = Vec::new();
    for counters in shown {
        for (labels, count, is_first) in checks(counters) {
            // Few of the 18 combinations occur. The first is always exported, so every policy is visible.
            if count > 0 || is_first {
                decisions.push(([("policy", counters.name.as_str()), labels[0], labels[1]], count));
            }
        }
    }
    if !others.is_empty() {
        let tables: Vec<Vec<_>> = others.iter().map(|counters| checks(counters).collect()).collect();
        for at in 0..tables[0].len() {
            let count = tables.iter().map(|table| table[at].1).sum();
            let [verdict, source] = tables[0][at].0;
            if count > 0 {
                decisions.push(([("policy", OTHERS), verdict, source], count));
            }
        }
    }
    let help = "Checks by policy, verdict and source of the decision; shadow_deny does not deny the request";
    page.counter("decisions", help, decisions)
}

fn reservations(page: &mut Page<'_>, shown: &PolicyCounterList, others: &PolicyCounterList) -> fmt::Result {
    let reservations =
        |counters: &Arc<PolicyCounters>| HoldOutcome::ALL.map(|outcome| counters.holds(outcome));
    let mut outcomes = Vec::new();
    let mut add = |policy, counts: [u64; HoldOutcome::ALL.len()]| {
        let counted = HoldOutcome::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
        outcomes.extend(
            counted.map(|(outcome, count)| ([("policy", policy), ("outcome", outcome.name())], count)),
        );
    };
    shown.iter().for_each(|counters| add(counters.name.as_str(), reservations(counters)));
    let rest = others.iter().map(reservations);
    add(OTHERS, rest.fold(Default::default(), |sum, one| std::array::from_fn(|at| sum[at] + one[at])));
    let help = "Reservations by policy and outcome: reserved, settled, extended, cancelled, extension_denied, \
                already_settled, late, unknown; expired, of those made by this instance";
    page.counter("reservations", help, outcomes)?;
    let share = |counters: &PolicyCounterList| {
        SettledShares::read(&counters.iter().map(|counters| &*counters.settled_shares))
    };
    let each = shown.iter().map(|one| (one.name.as_str(), share(std::slice::from_ref(one))));
    let settled = each.chain([(OTHERS, share(others))]).filter(|(_, reading)| reading.count > 0);
    let help = "What reservations were settled to, as a share of what they held; above 1, less was held than it cost";
    let descriptor = ("settled_share", help, None, MetricType::Histogram);
    let settled = settled.map(|(name, reading)| ([("policy", name)], reading));
    page.family(descriptor, settled, |encoder, reading| reading.encode(encoder))
}

/// Charged, denied and refunded cost: whole units, with decimals where costs are weighted.
fn costs(page: &mut Page<'_>, shown: &PolicyCounterList, others: &PolicyCounterList) -> fmt::Result {
    let add = |sum: [Amount; 3], one: [Amount; 3]| std::array::from_fn(|at| sum[at] + one[at]);
    let rest = others.iter().map(|counters| counters.costs()).reduce(add);
    let costs = shown.iter().map(|counters| (counters.name.as_str(), counters.costs()));
    let costs: Vec<_> = costs.chain(rest.map(|rest| (OTHERS, rest))).collect();
    let help = "Charged cost, penalties included; of reservations what they were settled to, or charged at their end";
    let names = [
        ("cost_admitted", help),
        ("cost_refused", "Cost of denied checks"),
        ("cost_refunded", "Refunded cost"),
    ];
    for (at, (name, help)) in names.into_iter().enumerate() {
        let samples = costs.iter().map(|(policy, costs)| ([("policy", *policy)], costs[at]));
        page.family((name, help, None, MetricType::Counter), samples, |mut encoder, cost| {
            if cost == cost.floor().into() {
                return encoder.encode_counter::<NoLabelSet, _, u64>(&cost.floor(), None);
            }
            let decimal: f64 = cost.to_string().parse().unwrap_or_default();
            encoder.encode_counter::<NoLabelSet, _, u64>(&decimal, None)
        })?;
    }
    Ok(())
}

fn counts(page: &mut Page<'_>, shown: &PolicyCounterList, others: &PolicyCounterList) -> fmt::Result {
    let shown_counts: Vec<(&str, Counts)> =
        shown.iter().map(|counters| (counters.name.as_str(), counters.counts())).collect();
    let rest: Vec<Counts> = others.iter().map(|counters| counters.counts()).collect();
    let mut each = |name, help, read: fn(&Counts) -> u64| {
        let rest = (!rest.is_empty()).then(|| (OTHERS, rest.iter().map(read).sum()));
        let samples = shown_counts.iter().map(|(name, counts)| (*name, read(counts))).chain(rest);
        page.counter(name, help, samples.map(|(name, count)| ([("policy", name)], count)))
    };
    each("blocked", "Checks denied because their key is blocked", |counts| counts.blocked)?;
    let near = "Charged checks that left their key at 80 % of its limit or more";
    each("near_limit", near, |counts| counts.near_limit)?;
    let help = "Keys that reached a share of their limit that `notify` names, reported by this instance";
    each("notifications", help, |counts| counts.notifications)?;
    let help =
        "Checks that the policy did not limit, as they lack an attribute of its scope (on_missing: skip)";
    each("missing_attribute", help, |counts| counts.missing_attribute)
}

fn quotas(page: &mut Page<'_>, policies: &PolicySet) -> fmt::Result {
    let shown = || names::listed(policies).take(MAX_POLICIES);
    let limits = shown().map(|policy| ([("policy", policy.name())], policy.quota().limit()));
    page.gauge("policy_limit", "Maximum cost per window", limits)?;
    let of_tiers = |policy: &Policy| {
        let name = policy.name().to_owned();
        let tiers = policy.options().tiers.iter().flat_map(|tiers| &tiers.quotas);
        let limit = |(tier, quota): (&String, &Quota)| {
            ([("policy", name.clone()), ("tier", tier.clone())], quota.limit())
        };
        tiers.map(limit).collect::<Vec<_>>()
    };
    page.gauge("policy_tier_limit", "Maximum cost per window of a tier", shown().flat_map(of_tiers))?;
    let windows = shown().map(|policy| ([("policy", policy.name())], policy.quota().window().as_secs_f64()));
    let descriptor =
        ("policy_window", "Length of the window, in seconds", Some(&Unit::Seconds), MetricType::Gauge);
    page.family(descriptor, windows, |mut encoder, seconds| encoder.encode_gauge(&seconds))?;
    let enforced = shown().map(|policy| ([("policy", policy.name())], u64::from(policy.options().enforced)));
    page.gauge("policy_enforced", "1 if the policy is enforced, 0 if it is a shadow policy", enforced)
}

fn open_reservations(page: &mut Page<'_>, app: &App) -> fmt::Result {
    let registry = app.observer().registry.load();
    let (shown, others) = registry.in_force().split_at(registry.in_force().len().min(MAX_POLICIES));
    let open = app.open_reservations();
    let reserving = |counters: &Arc<PolicyCounters>| counters.holds(HoldOutcome::Reserved) > 0;
    let of = |counters: &Arc<PolicyCounters>| open.get(counters.name.as_str()).copied().unwrap_or_default();
    let mut costs: Vec<(&str, OpenCost)> =
        shown.iter().filter(|one| reserving(one)).map(|one| (one.name.as_str(), of(one))).collect();
    if others.iter().any(reserving) {
        let add = |sum: OpenCost, one: OpenCost| OpenCost {
            reservations: sum.reservations + one.reservations,
            held: sum.held.saturating_add(one.held),
        };
        costs.push((OTHERS, others.iter().map(of).fold(OpenCost::default(), add)));
    }
    let help = "Reservations that this instance made and that are open: not settled here, and not over";
    let samples = costs.iter().map(|(policy, cost)| ([("policy", *policy)], cost.reservations));
    page.gauge("reservations_open", help, samples)?;
    let samples = costs.iter().map(|(policy, cost)| ([("policy", *policy)], cost.held));
    page.gauge("held_cost", "What these reservations hold", samples)?;
    let help = "Reservations of this instance that are not among the open ones, because there were too many";
    page.total("reservations_unnoted", help, app.reservations_not_noted())
}

fn requests(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let mut requests = Vec::new();
    for protocol in Protocol::ALL {
        for verb in VERBS {
            for (verdict, name) in ["allow", "deny"].into_iter().enumerate() {
                let count = observer
                    .counters
                    .sum(|seen| seen.requests[verdict][verb as usize][protocol as usize].load(Relaxed));
                // Most of the 32 combinations never occur.
                if count > 0 || (protocol, verb) == (Protocol::Http, Verb::Check) {
                    requests.push((
                        [("protocol", protocol.name()), ("verb", verb_name(verb)), ("verdict", name)],
                        count,
                    ));
                }
            }
        }
    }
    page.counter("requests", "Requests by protocol, verb and verdict of all policies together", requests)?;
    // A protocol without requests may have no listener.
    let latencies = Protocol::ALL.map(|protocol| (protocol, observer.latency[protocol as usize].read()));
    let used =
        || latencies.iter().filter(|(protocol, latency)| *protocol == Protocol::Http || latency.count > 0);
    let unmatched = used().map(|(protocol, _)| {
        let count = observer.counters.sum(|seen| seen.unmatched[*protocol as usize].load(Relaxed));
        ([("protocol", protocol.name())], count)
    });
    page.counter("unmatched_requests", "Checks that no policy applied to; they are not limited", unmatched)?;
    let left_out = "Denials without an event, because there were too many";
    page.total("denials_unrecorded", left_out, observer.events.left_out())?;
    let latencies = used().map(|(protocol, latency)| ([("protocol", protocol.name())], latency));
    let help = "Time from reading a request to its reply, per decision";
    let descriptor = ("decision_duration", help, Some(&Unit::Seconds), MetricType::Histogram);
    page.family(descriptor, latencies, |encoder, reading: &Reading| reading.encode(encoder))
}

fn malformed(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let mut counts = Vec::new();
    for protocol in Protocol::ALL {
        for handling in Handling::ALL {
            for flaw in Flaw::ALL {
                let labels =
                    [("protocol", protocol.name()), ("reason", flaw.name()), ("outcome", handling.name())];
                let count = observer.malformed.count(protocol, flaw, handling);
                // Most combinations never occur. A counter that appears with its first event has no increase,
                // so each protocol starts with one.
                if count > 0 || (flaw, handling) == (Flaw::Invalid, Handling::Refused) {
                    counts.push((labels, count));
                }
            }
        }
    }
    let help = "Malformed input of clients by protocol and reason; refused means that the client, or a proxy for it, \
                got an error instead of a decision";
    page.counter("malformed", help, counts)
}

fn authentications(page: &mut Page<'_>, attempts: &AuthAttempts) -> fmt::Result {
    let counts = Protocol::ALL.into_iter().flat_map(|protocol| {
        let labels = move |reason| [("protocol", protocol.name()), ("reason", reason)];
        attempts.counts(protocol).map(|(reason, count)| (labels(reason), count))
    });
    let help = "Failed authentications: wrong passwords and tokens, and attempts rejected because the address had too many failures";
    page.counter("failed_authentications", help, counts)
}

fn configuration(page: &mut Page<'_>, observer: &Observer) -> fmt::Result {
    let known = observer.config();
    if !known.hash.is_empty() {
        page.info("config", "The active configuration", [("hash", known.hash.as_str())])?;
    }
    let loaded_at = seconds(observer.wall_time(known.at));
    page.seconds(
        "config_loaded_timestamp",
        "When the active configuration was loaded, in seconds since the Unix epoch",
        loaded_at,
    )?;
    let loads = [("loaded", known.loads), ("refused", known.failures)];
    let loads = loads.map(|(result, count)| ([("result", result)], count));
    page.counter("config_reloads", "Config reloads since the start, by result", loads)?;
    if let Some(live) = observer.files.get() {
        let [loaded, refused] = live.loads();
        let loads = [("loaded", loaded), ("refused", refused)];
        let loads = loads.map(|(result, count)| ([("result", result)], count));
        page.counter(
            "envoy_config_reloads",
            "Reloads of envoyproxy/ratelimit config files, by result",
            loads,
        )?;
    }
    let help = "1 if the last config reload succeeded, 0 if it was rejected and an older config is active";
    page.value("config_last_reload_successful", help, u64::from(known.error.is_none()))
}

/// Run-time changes, which a shared store keeps for all instances.
fn changes(page: &mut Page<'_>, admin: &Admin) -> fmt::Result {
    let (seen, document, now_ms) = (&admin.app.observer().changes, admin.control.document(), now_ms());
    let in_force = count(document.count_in_force(now_ms));
    page.value("control_changes", "Active run-time changes: policies, blocked keys and overrides", in_force)?;
    let help = "Digest of the active run-time changes: equal on instances with equal changes, 0 for none";
    page.value("control_digest", help, document.digest(now_ms))?;
    let help = "1 if the store holds the active run-time changes; 0 after a loss until they are written back, and while \
                the store is unreachable or holds other changes";
    page.value("control_stored", help, u64::from(seen.are_stored.load(Relaxed)))?;
    let help = "How often the store lost run-time changes; they stayed active";
    page.total("control_losses", help, seen.losses.load(Relaxed))
}

fn store(page: &mut Page<'_>, admin: &Admin, shared: Shared<'_>) -> fmt::Result {
    let (observer, fleet_differs_for) = (admin.app.observer(), admin.fleet_differs_for());
    let stats = shared.store().stats();
    let degraded = u64::from(shared.is_degraded());
    page.value(
        "store_degraded",
        "1 while decisions may come from fallbacks, because the store is unavailable",
        degraded,
    )?;
    let help = "1 if limits are shared, 0 if the last self-test found that the store refuses or does not answer \
                what decisions need";
    page.value("store_shared", help, u64::from(shared.not_shared().is_none()))?;
    if let Some(instances) = shared.instances() {
        let help = "Instances that share the store, as configured or last counted; each has that share of a limit in \
                    fallbacks";
        page.value("store_instances", help, instances)?;
    }
    let help = "How often the list of instances held what no instance wrote, and was replaced";
    page.total("store_instances_replaced", help, stats.instances_replaced)?;
    if let Some(differs_for) = fleet_differs_for {
        let help = "How long instances that share the store have differed in version, configuration or time zone data; 0: they agree";
        page.seconds("fleet_differs", help, differs_for.as_secs_f64())?;
    }
    page.total("store_calls", "Script calls to the store", stats.calls)?;
    let help = "Requests decided by fallbacks, because the store did not reply in time";
    page.total("store_fallbacks", help, shared.fallbacks().fallbacks)?;
    let help = "Checks that were batched with another call";
    page.total("store_batched_checks", help, stats.batched)?;
    let help = "Checks denied by a cached denial, without a call";
    page.total("store_cached_denials", help, stats.cached_denials)?;
    leases(page, &stats.leases)?;
    let help = "Calls that reached the store after their deadline and charged nothing";
    page.total("store_late_calls", help, stats.late)?;
    let errors = stats.errors.iter().map(|(kind, count)| ([("kind", *kind)], *count));
    page.counter("store_errors", "Failed calls to the store, by kind of failure", errors)?;
    let jumps = stats.clock_jumps;
    let directions = [("forward", jumps.forward), ("backward", jumps.backward)];
    let directions = directions.map(|(direction, count)| ([("direction", direction)], count));
    page.counter("store_clock_jumps", "Clock jumps of the store's servers", directions)?;
    let help = "Resolution of the clock as scripts read it; a millisecond where they may not call TIME";
    page.seconds("store_clock_resolution", help, signed_seconds(stats.clock_resolution_us.cast_signed()))?;
    let help = "Keys evicted by the store's servers, which resets limits";
    page.total("store_evicted_keys", help, stats.evicted_keys)?;
    let help =
        "How often the store was found to have lost usage: a failover, a restart, FLUSHALL or evicted keys";
    page.total("store_usage_losses", help, stats.usage_losses)?;
    let help = "Size of the last clock jump of a server, negative if backward; 0 if there was none";
    page.seconds("store_clock_last_jump", help, signed_seconds(jumps.last_us))?;
    let help = "Duration of requests decided by the store, batched ones included";
    page.histogram("store_decision_duration", help, &observer.store_latency.read())?;
    nodes(page, &shared.store().nodes())
}

fn nodes(page: &mut Page<'_>, nodes: &[NodeState]) -> fmt::Result {
    let nodes = || nodes.iter().take(MAX_NODES).map(|node| (node, [("node", node.node.as_str())]));
    let connected = nodes().map(|(node, labels)| (labels, u64::from(node.connected)));
    page.gauge("store_node_connected", "1 while the node is connected", connected)?;
    let module = nodes().map(|(node, labels)| (labels, u64::from(node.has_module)));
    page.gauge(
        "store_node_module",
        "1 if the node has slidegate's native module, which then decides",
        module,
    )?;
    let states = nodes().flat_map(|(node, [label])| {
        let states = [("closed", "closed"), ("open", "open"), ("half-open", "half_open")];
        states.map(|(state, name)| ([label, ("state", name)], u64::from(node.breaker == state)))
    });
    page.gauge("store_node_breaker", "1 for the current state of the node's circuit breaker", states)?;
    let timeouts = nodes().map(|(node, labels)| (labels, node.timeouts));
    page.counter("store_node_timeouts", "Calls without a reply within their deadline", timeouts)?;
    let reconnects = nodes().map(|(node, labels)| (labels, node.reconnects));
    page.counter("store_node_reconnects", "Reconnects after lost connections", reconnects)?;
    let redirects = nodes().map(|(node, labels)| (labels, node.moved + node.ask));
    page.counter("store_node_redirects", "Redirects to another node (MOVED and ASK)", redirects)
}

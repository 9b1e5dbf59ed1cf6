//! The once-a-second task: publishes rates, samples the history and rotates the periods of the top
//! keys.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use slidegate::clock::{Clock, Timestamp};
use slidegate_config::names::candidate_of;
use tokio::time::MissedTickBehavior;

use super::history;
use crate::engine::App;
use crate::record::events::Message;
use crate::record::history::STEP;
use crate::record::observer::Observer;
use crate::record::policy_counters::Counts;
use crate::record::top::PERIOD;

/// Interval between rate messages.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum policies per message, the first with decisions: a dashboard with more would be
/// unreadable.
const MAX_POLICIES: usize = 256;

/// Decisions since the last message, of all policies or of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Rates {
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
}

#[derive(Debug, Serialize)]
struct LiveTick<'t> {
    at: String,
    #[serde(flatten)]
    all: Rates,
    /// Only policies with decisions.
    by_policy: BTreeMap<&'t str, Rates>,
    store_degraded: bool,
}

impl Rates {
    fn between(before: Counts, now: Counts) -> Self {
        Self {
            allowed: now.allowed - before.allowed,
            denied: now.denied - before.denied,
            shadow_denied: now.shadow_denied - before.shadow_denied,
        }
    }
}

/// Runs until dropped.
pub(crate) async fn tick(app: Arc<App>) {
    let observer = app.observer();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut turned_at = observer.clock.now();
    let mut sampled_at = observer.started_at;
    let mut last: Option<LiveTotals> = None;
    loop {
        ticks.tick().await;
        let at = observer.clock.now();
        if at - turned_at >= PERIOD {
            turned_at = at;
            let outdated = observer.top.turn();
            // In the background: neither decisions nor other tasks may wait for the drop.
            drop(tokio::task::spawn_blocking(move || drop(outdated)));
        }
        if at - sampled_at >= STEP {
            sampled_at = at;
            history::sample(&app);
        }
        if let Some(traces) = &observer.traces {
            traces.report_losses();
        }
        // Skipped without subscribers: summing many policies is not free.
        last = observer.events.has_listeners().then(|| {
            let totals = LiveTotals::of(observer);
            if let Some(last) = &last {
                let degraded = app.is_degraded();
                let at = observer.wall_time(at);
                observer.events.send(Message::Rates(totals.since(last, at, degraded)));
            }
            totals
        });
    }
}

/// A snapshot of the counters.
struct LiveTotals {
    /// In requests; several policies may decide one request.
    all: Rates,
    by_policy: BTreeMap<String, Counts>,
}

impl LiveTotals {
    fn of(observer: &Observer) -> Self {
        let registry = observer.registry.load();
        let by_policy = registry.in_force().iter().map(|counters| (counters.name.clone(), counters.counts()));
        // Candidates' denials are compared at `/v1/shadow`.
        let by_policy: BTreeMap<_, _> = by_policy.filter(|(name, _)| candidate_of(name).is_none()).collect();
        let [allowed, denied] = observer.checks();
        let shadow_denied = by_policy.values().map(|counts| counts.shadow_denied).sum();
        Self { all: Rates { allowed, denied, shadow_denied }, by_policy }
    }

    fn since(&self, last: &Self, at: Timestamp, store_degraded: bool) -> Arc<str> {
        let of = |(name, now): (&'_ String, &Counts)| {
            let before = last.by_policy.get(name).copied().unwrap_or_default();
            Rates::between(before, *now)
        };
        let by_policy = self.by_policy.iter().map(|one| (one.0.as_str(), of(one)));
        let by_policy: BTreeMap<_, _> =
            by_policy.filter(|(_, rates)| *rates != Rates::default()).take(MAX_POLICIES).collect();
        let all = Rates {
            allowed: self.all.allowed - last.all.allowed,
            denied: self.all.denied - last.all.denied,
            // The counts of a removed policy are dropped.
            shadow_denied: self.all.shadow_denied.saturating_sub(last.all.shadow_denied),
        };
        let tick = LiveTick { at: crate::engine::explanation::time(at), all, by_policy, store_degraded };
        serde_json::to_string(&tick).expect("strings and numbers serialize").into()
    }
}

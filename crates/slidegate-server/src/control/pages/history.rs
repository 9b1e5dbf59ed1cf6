//! Samples the service into its history, every ten seconds and on each read.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use slidegate::clock::Clock;

use crate::engine::App;
use crate::record::Observer;
use crate::record::history::{HistoryReport, STEPS, Sample, State};
use crate::record::notifications::Drop;

/// Adds a step to the history.
pub(super) fn sample(app: &App) {
    if app.observer().options.metrics {
        with_sample(app, |sample| app.observer().history.add(sample));
    }
}

/// The newest steps, the unfinished one included. `None` if metrics are disabled.
pub(crate) fn read(app: &App, steps: usize) -> Option<HistoryReport> {
    app.observer()
        .options
        .metrics
        .then(|| with_sample(app, |sample| app.observer().history.read(sample, steps)))
}

/// Number of steps in an hour.
pub(crate) const fn last_hour() -> usize {
    STEPS
}

/// Notifications that were not reported, and messages that did not reach the webhook, since the start.
pub(crate) fn undelivered(observer: &Observer) -> u64 {
    let notifications = &observer.notifications;
    let dropped: u64 = Drop::ALL.iter().map(|why| notifications.count_of(*why)).sum();
    let counts = notifications.webhook.as_ref().map(|webhook| webhook.counts());
    dropped + counts.map_or(0, |counts| counts.failed.load(Relaxed) + counts.dropped.load(Relaxed))
}

fn with_sample<T>(app: &App, use_sample: impl FnOnce(&Sample<'_>) -> T) -> T {
    let (observer, memory) = (app.observer(), app.store().stats());
    let registry = observer.registry.load();
    let now = observer.clock.now();
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let open = app.open_reservations();
    let state = State {
        keys: count(memory.keys),
        dropped_keys: memory.dropped,
        open_reservations: open.values().map(|open| open.reservations).sum(),
        pending_settlements: app.store().pending_settlements().waiting,
        undelivered: undelivered(observer),
        is_degraded: app.is_degraded(),
    };
    let held: HashMap<_, _> = open.into_iter().map(|(policy, open)| (policy, open.held)).collect();
    use_sample(&Sample {
        at_ms: observer.wall_time(now).as_micros() / 1000,
        uptime: now - observer.started_at,
        requests: observer.checks(),
        state,
        policies: registry.all(),
        held,
        store: app.shared().map(|_| &observer.store_latency),
    })
}

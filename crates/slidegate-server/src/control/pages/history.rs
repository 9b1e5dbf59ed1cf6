//! Samples the service into its history, every ten seconds and on each read.

use std::collections::HashMap;

use slidegate::clock::Clock;

use crate::engine::App;
use crate::record::history::{HistoryReport, STEPS, Sample, State};

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

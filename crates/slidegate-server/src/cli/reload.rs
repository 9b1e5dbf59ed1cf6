//! Reloading while the service runs: when the file changes, and on SIGHUP. A bad file changes nothing.

use std::sync::Arc;

use slidegate::{Clock, SystemClock};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::admin::Admin;
use crate::app::changes::Base;
use crate::config::{Config, Fingerprint, Loaded, Sources, differences};
use slidegate_envoy::{Debounced, POLL_EVERY};

/// What asks for a reload. Made before the service tells that it is there: until then a SIGHUP ends the process.
pub(super) struct Causes {
    hangups: Signal,
    watched: Debounced<Fingerprint>,
}

impl Causes {
    /// # Errors
    /// When the system does not let the process handle signals.
    pub(super) fn new(watched: Debounced<Fingerprint>) -> std::io::Result<Self> {
        Ok(Self { hangups: signal(SignalKind::hangup())?, watched })
    }
}

/// Reloads for as long as the service runs. `running` is the configuration that it was started with.
pub(super) async fn run(admin: Arc<Admin>, sources: Sources, causes: Causes, running: Config) {
    let Causes { mut hangups, mut watched } = causes;
    let mut ticks = tokio::time::interval(POLL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let is_asked = tokio::select! {
            _ = ticks.tick() => false,
            _ = hangups.recv() => true,
        };
        if watched.is_due(sources.look()) || is_asked {
            let sources = sources.clone();
            // Reading a file may wait for a disk.
            let Ok(loaded) = tokio::task::spawn_blocking(move || sources.load()).await else { return };
            let outcome =
                loaded.map_err(|errors| errors.to_string()).and_then(|loaded| take(&admin, &running, loaded));
            if let Err(refused) = outcome {
                refuse(&admin, &refused);
            }
        }
    }
}

/// Puts a configuration in force, as far as that can be done while the service runs.
fn take(admin: &Admin, running: &Config, loaded: Loaded) -> Result<(), String> {
    let Loaded { config, hash } = loaded;
    let differences = differences(running, &config);
    if differences.contains(&"attributes: addresses") {
        return Err(
            "attributes: addresses differs, which policies were read by; restart the service to change it"
                .into(),
        );
    }
    let left = (!differences.is_empty()).then(|| {
        let differences = differences.join(", ");
        format!(
            "{differences} changed, which takes effect at the next start; restart the service to apply it"
        )
    });
    let Config { policies, candidates, admin: rules, observe, .. } = config;
    let count = policies.iter().len();
    let observer = admin.app.observer();
    observer.show_keys(observe.keys_shown);
    // Goes through all keys in memory.
    tokio::task::block_in_place(|| admin.app.active.set_base(Base { policies, candidates }))
        .map_err(|error| error.to_string())?;
    admin.app.access.set(rules);
    {
        let mut known = admin.loaded();
        (known.hash, known.at, known.error) = (hash.clone(), SystemClock::new().now(), left.clone());
        known.reloads += 1;
    }
    observer.config_loaded(&hash);
    tracing::info!(policies = count, "the configuration was loaded again");
    if let Some(left) = left {
        tracing::warn!("{left}");
    }
    Ok(())
}

fn refuse(admin: &Admin, refused: &str) {
    for line in refused.lines() {
        tracing::error!("{line}");
    }
    tracing::error!("the configuration was not loaded; the last good one stays in force");
    admin.loaded().error = Some(refused.to_owned());
    admin.app.observer().config_refused(refused);
}

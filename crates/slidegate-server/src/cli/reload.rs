//! Hot reload: reloads the config file when it changes and on SIGHUP. An invalid file is rejected
//! and the running config stays active.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::notify::Notifier;
use crate::config::{Config, Fingerprint, Sources, differences};
use crate::control::changes::Base;
use crate::control::state::Admin;
use crate::debounce::{Debounced, POLL_EVERY};
use crate::engine::App;

/// Triggers of a reload. Created before the startup message: until then, SIGHUP ends the process.
pub(super) struct Triggers {
    hangups: Signal,
    watched: Debounced<Fingerprint>,
}

impl Triggers {
    /// # Errors
    /// The system rejects the signal handler.
    pub(super) fn new(watched: Debounced<Fingerprint>) -> std::io::Result<Self> {
        Ok(Self { hangups: signal(SignalKind::hangup())?, watched })
    }
}

/// Reloads until the service stops. `running` is the configuration it started with.
pub(super) async fn run(
    admin: Arc<Admin>,
    sources: Sources,
    triggers: Triggers,
    running: Config,
    notifier: Notifier,
) {
    let Triggers { mut hangups, mut watched } = triggers;
    loop {
        let is_requested = tokio::time::timeout(POLL_EVERY, hangups.recv()).await.is_ok();
        if watched.is_due(sources.look()) || is_requested {
            watched.mark_reported();
            notifier.reloading();
            let sources = sources.clone();
            // Reading a file may block.
            let Ok(loaded) = tokio::task::spawn_blocking(move || sources.load()).await else { return };
            let outcome = loaded
                .map_err(|errors| errors.to_string())
                .and_then(|config| apply(&admin, &running, config));
            if let Err(errors) = outcome {
                reject(&admin.app, &errors);
            }
            notifier.ready();
        }
    }
}

/// Applies the settings that can be hot-reloaded.
fn apply(admin: &Admin, running: &Config, config: Config) -> Result<(), String> {
    let differences = differences(running, &config);
    if differences.iter().any(|name| name == "attributes: addresses") {
        return Err(
            "attributes: addresses changed, which cannot be hot-reloaded; restart the service to apply it"
                .into(),
        );
    }
    let pending = (!differences.is_empty()).then(|| {
        let differences = differences.join(", ");
        format!("{differences} changed, which cannot be hot-reloaded; restart the service to apply it")
    });
    config.log_warnings();
    let Config { policies, candidates, escalations, admin: rules, observe, file, .. } = config;
    let count = policies.iter().len();
    let observer = admin.app.observer();
    observer.show_keys(observe.keys_shown);
    // Visits all keys in memory.
    tokio::task::block_in_place(|| admin.control.active.set_base(Base { policies, candidates, escalations }))
        .map_err(|error| error.to_string())?;
    admin.app.access.set(rules);
    observer.config_loaded(&file.hash, pending.clone());
    tracing::info!(policies = count, "config reloaded");
    if let Some(pending) = pending {
        tracing::warn!("{pending}");
    }
    Ok(())
}

fn reject(app: &App, errors: &str) {
    for line in errors.lines() {
        tracing::error!("{line}");
    }
    tracing::error!("config rejected; the running config stays active");
    app.observer().config_refused(errors);
}

//! Service manager notifications: the status line and the watchdog.

use std::sync::Arc;
use std::time::Duration;

use slidegate_config::names::{candidate_of, listed};
use tokio::time::{sleep, timeout};

use crate::engine::App;
use crate::service_manager::ServiceManager;

/// Interval between polls of the status.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The state shown in the status line.
#[derive(Debug, Clone)]
pub(super) struct Notifier {
    manager: ServiceManager,
    app: Arc<App>,
    /// Listener addresses.
    listening: String,
}

impl Notifier {
    pub(super) fn new(manager: ServiceManager, app: Arc<App>, listening: String) -> Self {
        Self { manager, app, listening }
    }

    /// Reports that listeners are bound and the config is active. Also ends a reload.
    pub(super) fn ready(&self) {
        if self.manager.is_present() && self.app.readiness.is_ready() {
            self.manager.ready(&self.status());
        }
    }

    /// Reports a reload; [`ready`](Self::ready) follows. Neither is sent during shutdown, because
    /// the manager would take it for another start.
    pub(super) fn reloading(&self) {
        if self.app.readiness.is_ready() {
            self.manager.reloading();
        }
    }

    /// Reports the shutdown, which may take `longest`.
    pub(super) fn stopping(&self, longest: Duration) {
        self.manager.stopping(longest, &format!("shutting down; was {}", self.status()));
    }

    /// Sends the status when it changes, until shutdown begins.
    pub(super) async fn follow_status(self) {
        if !self.manager.is_present() {
            return;
        }
        let mut sent = self.status();
        while self.app.readiness.is_ready() {
            let status = self.status();
            if status != sent {
                self.manager.status(&status);
                sent = status;
            }
            sleep(STATUS_INTERVAL).await;
        }
    }

    /// Notifies the watchdog after each completed self-check. If one hangs, so does the service,
    /// and the manager restarts it. An unavailable shared store is not a hang: fallbacks decide.
    pub(super) async fn feed_watchdog(self) {
        let Some(interval) = self.manager.watchdog_interval() else { return };
        loop {
            if timeout(interval, self.app.self_check()).await.is_ok() {
                self.manager.alive();
            } else {
                tracing::error!("the self-check for the watchdog did not complete in time");
            }
            sleep(interval).await;
        }
    }

    /// Addresses, policies and problems, in one line.
    fn status(&self) -> String {
        let policies = self.app.policies();
        let policies = listed(&policies).filter(|policy| candidate_of(policy.name()).is_none());
        let policies = match policies.count() {
            1 => "1 policy".to_owned(),
            count => format!("{count} policies"),
        };
        let store = match (self.app.shared().is_some(), self.app.is_degraded()) {
            (false, _) => "memory store",
            (true, false) => "shared store",
            (true, true) => "shared store unavailable, policies use their fallbacks",
        };
        let config = if self.app.observer().config().error.is_some() {
            "; config rejected, the running config stays active"
        } else {
            ""
        };
        format!("serving {}; {policies}; {store}{config}", self.listening)
    }
}

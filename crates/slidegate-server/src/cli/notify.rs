//! Keeps the service manager informed: the status in words, and the watchdog.

use std::sync::Arc;
use std::time::Duration;

use slidegate_config::names::{candidate_of, listed};
use tokio::time::{sleep, timeout};

use crate::app::App;
use crate::service_manager::ServiceManager;

/// Time between polls of the status.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The state of the service, as its status shows it.
#[derive(Debug, Clone)]
pub(super) struct Notifier {
    manager: ServiceManager,
    app: Arc<App>,
    /// The addresses.
    listening: String,
}

impl Notifier {
    pub(super) fn new(manager: ServiceManager, app: Arc<App>, listening: String) -> Self {
        Self { manager, app, listening }
    }

    /// The listeners are bound and the configuration is active. Also ends a reload.
    pub(super) fn ready(&self) {
        if self.manager.is_present() && self.app.readiness.is_ready() {
            self.manager.ready(&self.status());
        }
    }

    /// The configuration is being reloaded; [`ready`](Self::ready) follows. Neither is sent during
    /// the shutdown, which a manager must not take for another start.
    pub(super) fn reloading(&self) {
        if self.app.readiness.is_ready() {
            self.manager.reloading();
        }
    }

    /// The shutdown has begun, and may take this long.
    pub(super) fn stopping(&self, longest: Duration) {
        self.manager.stopping(longest, &format!("shutting down; was {}", self.status()));
    }

    /// Sends the status when it changes, until the shutdown begins.
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

    /// Notifies the watchdog while self-checks come back. One that does not means that the service
    /// hangs, and the manager restarts it. An unavailable shared store does not: fallbacks answer.
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

    /// The addresses, the policies and what is wrong, in one line.
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

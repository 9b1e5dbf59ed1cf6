//! Graceful shutdown. After SIGTERM or SIGINT the service drains: it reports that it is not ready
//! but still serves everyone. Then it closes its listeners and finishes open requests.
//!
//! Load balancers notice lost readiness seconds late. Without the delay, they would send requests
//! to closed listeners.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The drain delay, unless every listener is local. Kubernetes and most load balancers stop sending
/// requests to an instance within this time.
pub(crate) const DRAIN_DELAY: Duration = Duration::from_secs(5);

/// The shutdown signals.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Registers the signal handlers.
    ///
    /// # Errors
    /// The system rejects the handlers.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for a signal and returns its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

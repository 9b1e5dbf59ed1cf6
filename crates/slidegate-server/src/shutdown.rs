//! Shutting down: on SIGTERM or SIGINT the service stops listening and finishes what it has begun.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the service.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Takes the signals over from here on.
    ///
    /// # Errors
    /// When the system does not let the process handle signals.
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one and gives its name.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

//! Bound ports: serving, and their lines in the startup banner and `/v1/status`.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;

use crate::listener::BoundSocket;

/// A listener of the service.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct Listener {
    /// `debug` and `metrics` are ports of envoyproxy/ratelimit.
    #[schemars(extend("enum" = ["http", "resp", "grpc", "debug", "metrics"]))]
    pub(crate) protocol: &'static str,
    /// An address and port, or `unix:` and a path.
    pub(crate) address: String,
    pub(crate) tls: bool,
}

/// The URLs of bound sockets for the startup banner, and their listeners. `scheme` is for TCP
/// sockets.
pub(crate) fn listed(
    protocol: &'static str,
    sockets: &[BoundSocket],
    scheme: &str,
) -> (String, Vec<Listener>) {
    let url = |socket: &BoundSocket| match socket {
        BoundSocket::Tcp(_) => format!("{scheme}://{}", socket.name()),
        BoundSocket::Unix(_) => socket.name(),
    };
    let listener = |socket: &BoundSocket| {
        let tls = matches!(scheme, "https" | "rediss") && socket.address().is_some();
        Listener { protocol, address: socket.name(), tls }
    };
    let urls = sockets.iter().map(url).collect::<Vec<_>>().join(", ");
    (urls, sockets.iter().map(listener).collect())
}

/// A bound port that does not accept connections yet. `S` is the state that it needs to serve.
pub(crate) struct Port<S> {
    /// The name and the URLs in the startup banner.
    pub(crate) banner: (&'static str, String),
    pub(crate) listeners: Vec<Listener>,
    serve: ServeFn<S>,
}

type ServeFn<S> = Box<dyn FnOnce(S, Shutdown) -> Pin<Box<dyn Future<Output = usize> + Send>> + Send>;

/// The shutdown of a port.
#[derive(Debug, Clone)]
pub(crate) struct Shutdown {
    /// True once the service is no longer ready; requests are still served.
    pub(crate) draining: watch::Receiver<bool>,
    /// How long the service drains.
    pub(crate) drain_delay: Duration,
    /// True once listeners must close.
    pub(crate) stopped: watch::Receiver<bool>,
    /// Grace period for open requests.
    pub(crate) grace: Duration,
}

impl<S> Port<S> {
    /// `serve` returns the number of connections still open after the grace period.
    pub(crate) fn new<F>(
        banner: (&'static str, String),
        listeners: Vec<Listener>,
        serve: impl FnOnce(S, Shutdown) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = usize> + Send + 'static,
    {
        Self { banner, listeners, serve: Box::new(move |with, shutdown| Box::pin(serve(with, shutdown))) }
    }

    /// Serves until shutdown. Returns the number of connections still open after the grace period. Its protocol is in the
    /// connection budget, and so in the metrics, before the first poll.
    pub(crate) fn serve(self, with: S, shutdown: Shutdown) -> impl Future<Output = usize> + Send {
        (self.serve)(with, shutdown)
    }
}

impl Listener {
    /// Whether only local programs can connect.
    pub(crate) fn is_local(&self) -> bool {
        self.address.starts_with("unix:")
            || self.address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
    }
}

impl Shutdown {
    /// Waits until the service is no longer ready.
    pub(crate) async fn draining(&self) {
        // The sender says so before it is dropped.
        let _ = self.draining.clone().wait_for(|draining| *draining).await;
    }

    /// Waits until long-lived connections should move to other instances: after half of the drain
    /// delay, when load balancers know that this instance is not ready.
    pub(crate) async fn reconnecting(&self) {
        self.draining().await;
        tokio::time::sleep(self.drain_delay / 2).await;
    }

    /// Waits until the listeners must close.
    pub(crate) async fn begun(mut self) {
        // The sender says so before it is dropped.
        let _ = self.stopped.wait_for(|stopped| *stopped).await;
    }
}

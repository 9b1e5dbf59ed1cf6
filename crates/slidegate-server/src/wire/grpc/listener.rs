//! The gRPC listener: a TCP port, with or without TLS, and a Unix socket.
//!
//! On shutdown it first reports `NOT_SERVING`, then ends health watch streams, so they do not delay the
//! shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, split};
use tokio::sync::{Notify, watch};

use super::RateLimitHandler;
use super::connection::{ConnectionError, serve_connection};
use super::services::GrpcServices;
use crate::config::GrpcSettings;
use crate::listener::{
    Accepted, Acceptor, Admission, BoundSocket, Certificates, Connection, ConnectionBudget, ConnectionSpec,
    Slot, Timeouts, TlsProfile, WRITE_TIMEOUT,
};
use crate::log_limit::log_limited;
use crate::wire::ports::{Port, Shutdown, listed};

/// The listener's TLS profile. gRPC needs HTTP/2.
pub(crate) const TLS: TlsProfile = TlsProfile { section: "grpc", alpn: "h2" };
/// A client that does not complete the HTTP/2 preface and settings within this time is disconnected.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// The reply when no connection is free: empty SETTINGS, and GOAWAY with `ENHANCE_YOUR_CALM`, so no stream
/// was processed.
const REFUSAL: &[u8] = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00\
    \x00\x00\x1c\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0btoo many connections";
/// Interval between health polls.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Binds the gRPC port, if configured. `handler` extracts the handler from the state that ports are served
/// with.
///
/// # Errors
/// An address cannot be bound, or the certificates are invalid, in one line.
pub(crate) fn bind<S: 'static>(
    settings: GrpcSettings,
    services: fn(S) -> (Arc<RateLimitHandler>, Arc<ConnectionBudget>),
) -> Result<Option<Port<S>>, String> {
    let Some(grpc) = GrpcListener::bind(settings)? else { return Ok(None) };
    let scheme = if grpc.certificates.is_some() { "https" } else { "http" };
    let (urls, listeners) = listed("grpc", &grpc.sockets, scheme);
    Ok(Some(Port::new(("grpc", urls), listeners, move |with, shutdown: Shutdown| {
        let (handler, budget) = services(with);
        grpc.serve(handler, &budget, shutdown)
    })))
}

/// A bound listener that accepts no connections yet.
#[derive(Debug)]
struct GrpcListener {
    sockets: Vec<BoundSocket>,
    certificates: Option<Arc<Certificates>>,
    settings: GrpcSettings,
}

impl GrpcListener {
    /// Binds the configured addresses. `None` if there are none.
    ///
    /// # Errors
    /// An address cannot be bound, or the certificates are invalid, in one line.
    fn bind(settings: GrpcSettings) -> Result<Option<Self>, String> {
        if !settings.is_served() {
            return Ok(None);
        }
        let certificates = settings.tls.clone().map(|files| Certificates::load(files, TLS));
        let certificates = certificates.transpose()?.map(Arc::new);
        let sockets =
            BoundSocket::bind(settings.listen, settings.socket.as_ref(), 1, ("grpc", "address with --grpc"))?;
        Ok(Some(Self { sockets, certificates, settings }))
    }

    /// Serves until shutdown, then waits at most the grace period for open calls.
    ///
    /// Returns the number of connections closed after the grace period.
    fn serve(
        self,
        handler: Arc<RateLimitHandler>,
        budget: &Arc<ConnectionBudget>,
        shutdown: Shutdown,
    ) -> impl Future<Output = usize> + Send + use<> {
        let spec = ConnectionSpec {
            protocol: "grpc",
            max: None,
            timeouts: Timeouts {
                opening: Some(OPENING_TIMEOUT),
                // Frames that need no reply are normal. Pings detect dead clients.
                request: None,
                idle: None,
                write: Some(WRITE_TIMEOUT),
            },
            refusal: REFUSAL,
        };
        let admission = Admission::new(&self.sockets, self.certificates.clone(), budget, spec);
        self.run(handler, admission, shutdown)
    }

    async fn run(
        self,
        handler: Arc<RateLimitHandler>,
        admission: Arc<Admission>,
        shutdown: Shutdown,
    ) -> usize {
        let services = Arc::new(GrpcServices::new(handler));
        services.set_health(services.handler.is_healthy()).await;
        let health = tokio::spawn(report_health(Arc::clone(&services), shutdown.clone()));
        let goaway = Arc::new(watch::Sender::new(GoAway::None));
        let connections = GrpcConnections {
            services: Arc::clone(&services),
            settings: self.settings,
            goaway: Arc::clone(&goaway),
        };
        let mut acceptor = match Acceptor::over(self.sockets, &admission) {
            Ok(acceptor) => acceptor,
            Err(error) => {
                log_limited!(ERROR, None, %error, "cannot watch the sockets of gRPC");
                return 0;
            }
        };
        let (mut is_draining, grace) = (false, shutdown.grace);
        let drain = shutdown.clone();
        let (reconnect, stop) = (drain.reconnecting(), shutdown.begun());
        tokio::pin!(reconnect, stop);
        loop {
            tokio::select! {
                accepted = acceptor.accept() => connections.spawn(accepted),
                () = &mut reconnect, if !is_draining => {
                    is_draining = true;
                    goaway.send_replace(GoAway::Older);
                }
                () = &mut stop => break,
            }
        }
        drop(acceptor);
        // It has reported `NOT_SERVING`, or does so now.
        let _ = health.await;
        services.end_health().await;
        goaway.send_replace(GoAway::All);
        admission.connections.closed_within(grace).await
    }
}

/// Which connections get GOAWAY: their clients start no more calls on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAway {
    None,
    /// Connections opened before the message: the service drains. Newer clients have just connected and would
    /// return at once.
    Older,
    All,
}

/// Serves connections.
#[derive(Clone)]
struct GrpcConnections {
    services: Arc<GrpcServices>,
    settings: GrpcSettings,
    goaway: Arc<watch::Sender<GoAway>>,
}

impl GrpcConnections {
    /// Serves a connection in its own task.
    fn spawn(&self, accepted: Accepted) {
        let Accepted { stream, connection: client, certificates, .. } = accepted;
        let slot = Arc::clone(stream.slot());
        let Some(certificates) = certificates else { return self.serve(split(stream), client, slot) };
        let connections = self.clone();
        tokio::spawn(async move {
            if let Some(stream) = certificates.accept(stream, client.peer).await {
                connections.serve(split(stream), client, slot);
            }
        });
    }

    /// Runs one connection until shutdown or its maximum age.
    fn serve<R, W>(&self, halves: (R, W), client: Connection, slot: Arc<Slot>)
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let stop = Arc::new(Notify::new());
        let stopping = Arc::clone(&stop);
        let services = Arc::clone(&self.services);
        let stopped = Box::pin(async move { stopping.notified().await });
        let connection = serve_connection(halves, services, (client, Arc::clone(&slot)), stopped);
        let mut goaway = self.goaway.subscribe();
        let GrpcSettings { max_connection_age, max_connection_age_grace, .. } = self.settings;
        tokio::spawn(async move {
            let deadline = async {
                tokio::select! {
                    () = goaway_due(&mut goaway) => {}
                    () = elapsed(max_connection_age) => {}
                }
                stop.notify_one();
                elapsed(max_connection_age_grace).await;
            };
            let ended = tokio::select! {
                ended = connection => ended,
                () = deadline => Ok(()),
            };
            if let Err(error) = ended {
                match error {
                    ConnectionError::Unread => slot.unread(),
                    ConnectionError::Flooded => slot.flooded(),
                    ConnectionError::Http2(_) => {}
                }
                log_limited!(DEBUG, client.peer, %error, "grpc connection ended");
            }
        });
    }
}

/// Completes when this connection must send GOAWAY.
async fn goaway_due(goaway: &mut watch::Receiver<GoAway>) {
    // A connection whose handshake ends after the listener closed gets it at once.
    let opened = *goaway.borrow_and_update();
    // The sender lives as long as its connections.
    let _ = goaway.wait_for(|now| *now == GoAway::All || *now != opened).await;
}

/// Completes after this time; never, if `None`.
async fn elapsed(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// Reports health changes until the service drains, then reports `NOT_SERVING`.
async fn report_health(services: Arc<GrpcServices>, shutdown: Shutdown) {
    let mut was_healthy = None;
    let draining = shutdown.draining();
    tokio::pin!(draining);
    loop {
        let is_healthy = services.handler.is_healthy();
        if was_healthy.replace(is_healthy) != Some(is_healthy) {
            services.set_health(is_healthy).await;
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_EVERY) => {}
            () = &mut draining => return services.set_health(false).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that misreads the refusal reports a protocol error instead.
    #[test]
    fn the_length_of_the_refusal_is_right() {
        // Without the 9 bytes of the frame header.
        assert_eq!(usize::from(REFUSAL[11]), REFUSAL.len() - 9 - 9);
    }
}

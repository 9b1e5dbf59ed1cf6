//! The gRPC listener: a TCP port, with or without TLS, and a Unix socket.
//!
//! On shutdown it reports `NOT_SERVING` first, then ends the streams of clients that watch the
//! health, so that they do not delay the shutdown.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, watch};

use slidegate_envoy::{Client, GrpcServices, GrpcSettings, serve_connection, serve_unix_connection};

use super::RateLimitHandler;
use super::certificates::Certificates;
use crate::app::App;
use crate::listener::{
    Accepted, Acceptor, BoundSocket, ConnectionBudget, ConnectionSpec, Refusal, Timeouts, WRITE_TIMEOUT,
};
use crate::log_limit::log_limited;
use crate::ports::{Listener, Port, Shutdown};

/// A client of the Unix socket. The permissions of the file decide who may connect.
const UNIX_CLIENT: Client = Client { peer: None, is_local: true, is_verified: false };
/// A client that does not complete the HTTP/2 preface and settings within this time is
/// disconnected.
const OPENING_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Permissions of a Unix socket's file: its owner and its group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Time between polls of the certificate files and of the health.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Binds the gRPC port, if it is configured. `handler` takes the handler from what ports are served
/// with.
///
/// # Errors
/// An address cannot be bound, or the certificates are invalid, in one line.
pub(crate) fn bind<S: 'static>(
    settings: GrpcSettings,
    services: fn(S) -> (Arc<RateLimitHandler>, Arc<ConnectionBudget>),
) -> Result<Option<Port<S>>, String> {
    let Some(grpc) = GrpcListener::bind(settings)? else { return Ok(None) };
    let listener = |(address, tls)| Listener { protocol: "grpc", address, tls };
    let listeners = grpc.addresses().map(listener).collect();
    Ok(Some(Port::new(("grpc", grpc.summary()), listeners, move |with, shutdown: Shutdown| {
        let (handler, budget) = services(with);
        grpc.serve(handler, budget, shutdown)
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
        let certificates = settings.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let tcp = settings.listen.map(|listen| BoundSocket::tcp(listen, "address with --grpc"));
        let unix = settings.socket.as_deref();
        let unix = unix.map(|path| BoundSocket::unix(path, SOCKET_MODE, "path with `grpc: {socket: ...}`"));
        let sockets = tcp.into_iter().chain(unix).collect::<Result<_, _>>()?;
        Ok(Some(Self { sockets, certificates, settings }))
    }

    /// Its addresses as text.
    fn summary(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let url = |socket: &BoundSocket| match socket {
            BoundSocket::Tcp(_) => format!("{scheme}://{}", socket.name()),
            BoundSocket::Unix(_) => socket.name(),
        };
        self.sockets.iter().map(url).collect::<Vec<_>>().join(", ")
    }

    /// Its addresses, each with whether it uses TLS.
    fn addresses(&self) -> impl Iterator<Item = (String, bool)> {
        let has_tls = self.certificates.is_some();
        self.sockets.iter().map(move |socket| (socket.name(), has_tls && socket.address().is_some()))
    }

    /// Serves until the shutdown, then waits at most the grace period for open calls.
    ///
    /// Returns how many connections were closed after the grace period.
    async fn serve(
        self,
        handler: Arc<RateLimitHandler>,
        budget: Arc<ConnectionBudget>,
        shutdown: Shutdown,
    ) -> usize {
        let services = Arc::new(GrpcServices::new(handler));
        services.set_health(services.handler().is_healthy()).await;
        let health = tokio::spawn(report_health(Arc::clone(&services), shutdown.clone()));
        let certificates = self.certificates.clone();
        let reload = certificates.map(|certificates| tokio::spawn(reload_certificates(certificates)));
        let goaway = Arc::new(watch::Sender::new(GoAway::None));
        let connections = Connections {
            services: Arc::clone(&services),
            certificates: self.certificates,
            settings: self.settings,
            goaway: Arc::clone(&goaway),
        };
        let spec = ConnectionSpec {
            protocol: "grpc",
            max: None,
            has_tls: connections.certificates.is_some(),
            timeouts: Timeouts {
                opening: Some(OPENING_TIMEOUT),
                // Frames that need no reply are normal. Pings detect clients that are gone.
                request: None,
                idle: None,
                write: Some(WRITE_TIMEOUT),
            },
            refusal: Refusal::Grpc,
        };
        let mut acceptor = Acceptor::new(self.sockets, &budget, spec);
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
        acceptor.stop();
        reload.inspect(tokio::task::JoinHandle::abort);
        // It has reported `NOT_SERVING`, or does so now.
        let _ = health.await;
        services.end_health().await;
        goaway.send_replace(GoAway::All);
        acceptor.close(grace).await
    }
}

/// Which connections are told to start no more calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GoAway {
    None,
    /// Those opened before the message: the service drains. Newer clients have just connected, and
    /// would come back at once.
    Older,
    All,
}

/// Serves connections.
#[derive(Clone)]
struct Connections {
    services: Arc<GrpcServices<App>>,
    certificates: Option<Arc<Certificates>>,
    settings: GrpcSettings,
    goaway: Arc<watch::Sender<GoAway>>,
}

impl Connections {
    /// A client on TCP. If client certificates are required, it has shown one.
    fn tcp_client(&self, peer: IpAddr) -> Client {
        Client {
            peer: Some(peer),
            is_local: self.settings.listen.is_some_and(|listen| listen.ip().is_loopback()),
            is_verified: self.settings.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some()),
        }
    }

    /// Serves a connection in its own task.
    fn spawn(&self, accepted: Accepted) {
        let services = Arc::clone(&self.services);
        let peer = accepted.ip();
        let Some(ip) = peer else {
            return self.drive(UNIX_CLIENT, move |stop| {
                serve_unix_connection(accepted.stream, services, UNIX_CLIENT, stop)
            });
        };
        let client = self.tcp_client(ip);
        let Some(certificates) = self.certificates.clone() else {
            return self.serve(accepted.stream, client);
        };
        let connections = self.clone();
        tokio::spawn(async move {
            let handshake = certificates.handshake(accepted.stream, ip);
            match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => connections.serve(stream, client),
                Ok(Err(error)) => log_limited!(WARN, peer, %error, "rejected a grpc connection"),
                Err(_) => log_limited!(DEBUG, peer, "TLS handshake timed out"),
            }
        });
    }

    fn serve<I>(&self, stream: I, client: Client)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let services = Arc::clone(&self.services);
        self.drive(client, move |stop| serve_connection(stream, services, client, stop));
    }

    /// Runs one connection in its own task. Its argument completes on shutdown or at the maximum
    /// age.
    fn drive<F>(&self, client: Client, serve: impl FnOnce(BoxFuture<'static, ()>) -> F)
    where
        F: Future<Output = Result<(), hyper::Error>> + Send + 'static,
    {
        let stop = Arc::new(Notify::new());
        let stopping = Arc::clone(&stop);
        let connection = serve(Box::pin(async move { stopping.notified().await }));
        let mut goaway = self.goaway.subscribe();
        let GrpcSettings { max_connection_age, max_connection_age_grace, .. } = self.settings;
        tokio::spawn(async move {
            let deadline = async {
                tokio::select! {
                    () = told(&mut goaway) => {}
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
                log_limited!(DEBUG, client.peer, %error, "grpc connection ended");
            }
        });
    }
}

/// Completes when this connection is told to start no more calls.
async fn told(goaway: &mut watch::Receiver<GoAway>) {
    // One that is opened after the listener has closed, behind a long handshake, is told at once.
    let opened = *goaway.borrow_and_update();
    // The sender lives as long as there are connections.
    let _ = goaway.wait_for(|now| *now == GoAway::All || *now != opened).await;
}

/// Completes after this time, or never.
async fn elapsed(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// Reloads changed certificates.
async fn reload_certificates(certificates: Arc<Certificates>) {
    loop {
        tokio::time::sleep(POLL_EVERY).await;
        certificates.poll();
    }
}

/// Reports changes of the health, until the service drains and reports that it is not serving.
async fn report_health(services: Arc<GrpcServices<App>>, shutdown: Shutdown) {
    let mut was_healthy = None;
    let draining = shutdown.draining();
    tokio::pin!(draining);
    loop {
        let is_healthy = services.handler().is_healthy();
        if was_healthy.replace(is_healthy) != Some(is_healthy) {
            services.set_health(is_healthy).await;
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_EVERY) => {}
            () = &mut draining => return services.set_health(false).await,
        }
    }
}

//! The gRPC listener: a TCP port, with or without TLS, and a Unix socket.
//!
//! On shutdown it reports `NOT_SERVING` first, then ends the streams of clients that watch the
//! health, so that they do not delay the shutdown.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use slidegate_envoy::{Client, GrpcServices, GrpcSettings, serve_connection, serve_unix_connection};

use super::RateLimitHandler;
use super::certificates::Certificates;
use crate::app::App;
use crate::listener::accepted;
use crate::log_limit::log_limited;
use crate::ports::{Listener, Port, Shutdown};

/// A client of the Unix socket. The permissions of the file decide who may connect.
const UNIX_CLIENT: Client = Client { peer: None, is_local: true, is_verified: false };
/// Most concurrent connections; further ones wait to be accepted. A proxy has a few per thread.
const MAX_CONNECTIONS: usize = 4096;
const MAX_CONNECTIONS_U32: u32 = 4096;
/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time between polls of the certificate files and of the health.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Binds the gRPC port, if it is configured. `handler` takes the handler from what ports are served
/// with.
///
/// # Errors
/// An address cannot be bound, or the certificates are invalid, in one line.
pub(crate) async fn bind<S: 'static>(
    settings: GrpcSettings,
    handler: fn(S) -> Arc<RateLimitHandler>,
) -> Result<Option<Port<S>>, String> {
    let Some(grpc) = GrpcListener::bind(settings).await? else { return Ok(None) };
    let listener = |(address, tls)| Listener { protocol: "grpc", address, tls };
    let listeners = grpc.addresses().into_iter().map(listener).collect();
    Ok(Some(Port::new(("grpc", grpc.summary()), listeners, move |with, shutdown: Shutdown| {
        grpc.serve(handler(with), shutdown)
    })))
}

/// A bound listener that accepts no connections yet.
#[derive(Debug)]
struct GrpcListener {
    tcp: Option<TcpListener>,
    socket: Option<UnixSocket>,
    certificates: Option<Arc<Certificates>>,
    settings: GrpcSettings,
}

/// A bound Unix socket, whose file is removed on drop.
#[derive(Debug)]
struct UnixSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl GrpcListener {
    /// Binds the configured addresses. `None` if there are none.
    ///
    /// # Errors
    /// An address cannot be bound, or the certificates are invalid, in one line.
    async fn bind(settings: GrpcSettings) -> Result<Option<Self>, String> {
        if !settings.is_served() {
            return Ok(None);
        }
        let certificates = settings.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let tcp = match settings.listen {
            Some(listen) => Some(TcpListener::bind(listen).await.map_err(|error| {
                format!("cannot listen on {listen} for grpc: {error}; choose another address with --grpc")
            })?),
            None => None,
        };
        let socket = settings.socket.as_deref().map(bind_socket).transpose()?;
        Ok(Some(Self { tcp, socket, certificates, settings }))
    }

    /// Its addresses as text.
    fn summary(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let tcp = self.address().map(|address| format!("{scheme}://{address}"));
        let socket = self.socket.as_ref().map(|socket| format!("unix:{}", socket.path.display()));
        tcp.into_iter().chain(socket).collect::<Vec<_>>().join(", ")
    }

    /// Its addresses, each with whether it uses TLS.
    fn addresses(&self) -> Vec<(String, bool)> {
        let tcp = self.address().map(|address| (address.to_string(), self.certificates.is_some()));
        let socket = self.socket.as_ref().map(|socket| (format!("unix:{}", socket.path.display()), false));
        tcp.into_iter().chain(socket).collect()
    }

    fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Serves until the shutdown, then waits at most the grace period for open calls.
    ///
    /// Returns how many connections were closed after the grace period.
    async fn serve(self, handler: Arc<RateLimitHandler>, shutdown: Shutdown) -> usize {
        let services = Arc::new(GrpcServices::new(handler));
        services.set_health(services.handler().is_healthy()).await;
        let health = tokio::spawn(report_health(Arc::clone(&services), shutdown.clone()));
        let certificates = self.certificates.clone();
        let reload = certificates.map(|certificates| tokio::spawn(reload_certificates(certificates)));
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let goaway = Arc::new(watch::Sender::new(GoAway::None));
        let connections = Connections {
            services: Arc::clone(&services),
            settings: self.settings.clone(),
            goaway: Arc::clone(&goaway),
        };
        let (mut is_draining, grace) = (false, shutdown.grace);
        let drain = shutdown.clone();
        let (reconnect, stop) = (drain.reconnecting(), shutdown.begun());
        tokio::pin!(reconnect, stop);
        loop {
            tokio::select! {
                ((stream, peer), permit) = accepted(&permits, || accept_tcp(self.tcp.as_ref())) => {
                    // Responses are small and written whole: Nagle's algorithm would only delay
                    // them.
                    let _ = stream.set_nodelay(true);
                    let peer = Some(peer.ip());
                    match self.certificates.clone() {
                        None => connections.spawn(stream, connections.tcp_client(peer), permit),
                        Some(certificates) => {
                            let connections = connections.clone();
                            tokio::spawn(async move {
                                let handshake = certificates.handshake(stream);
                                match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                                    Ok(Ok(stream)) => connections.spawn(stream, connections.tcp_client(peer), permit),
                                    Ok(Err(error)) => log_limited!(WARN, peer, %error, "rejected a grpc connection"),
                                    Err(_) => log_limited!(DEBUG, peer, "TLS handshake timed out"),
                                }
                            });
                        }
                    }
                },
                (stream, permit) = accepted(&permits, || accept_unix(self.socket.as_ref())) => {
                    connections.spawn_unix(stream, permit);
                },
                () = &mut reconnect, if !is_draining => {
                    is_draining = true;
                    goaway.send_replace(GoAway::Older);
                }
                () = &mut stop => break,
            }
        }
        // No new connections, and no socket file.
        drop((self.tcp, self.socket));
        reload.inspect(tokio::task::JoinHandle::abort);
        // It has reported `NOT_SERVING`, or does so now.
        let _ = health.await;
        services.end_health().await;
        goaway.send_replace(GoAway::All);
        // Each connection returns its permit when it ends.
        let all = permits.acquire_many(MAX_CONNECTIONS_U32);
        match tokio::time::timeout(grace, all).await {
            Ok(_) => 0,
            Err(_) => MAX_CONNECTIONS - permits.available_permits(),
        }
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
    settings: GrpcSettings,
    goaway: Arc<watch::Sender<GoAway>>,
}

impl Connections {
    /// A client on TCP. If client certificates are required, it has shown one.
    fn tcp_client(&self, peer: Option<IpAddr>) -> Client {
        Client {
            peer,
            is_local: self.settings.listen.is_some_and(|listen| listen.ip().is_loopback()),
            is_verified: self.settings.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some()),
        }
    }

    fn spawn<I>(&self, stream: I, client: Client, permit: OwnedSemaphorePermit)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let services = Arc::clone(&self.services);
        self.drive(client, permit, move |stop| serve_connection(stream, services, client, stop));
    }

    fn spawn_unix(&self, stream: UnixStream, permit: OwnedSemaphorePermit) {
        let services = Arc::clone(&self.services);
        self.drive(UNIX_CLIENT, permit, move |stop| {
            serve_unix_connection(stream, services, UNIX_CLIENT, stop)
        });
    }

    /// Runs one connection in its own task. Its argument completes on shutdown or at the maximum
    /// age.
    fn drive<F>(
        &self,
        client: Client,
        permit: OwnedSemaphorePermit,
        serve: impl FnOnce(BoxFuture<'static, ()>) -> F,
    ) where
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
            drop(permit);
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

async fn accept_tcp(tcp: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match tcp {
        Some(tcp) => tcp.accept().await,
        None => std::future::pending().await,
    }
}

async fn accept_unix(socket: Option<&UnixSocket>) -> io::Result<UnixStream> {
    match socket {
        Some(socket) => socket.listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Binds a Unix socket, and replaces one that a dead process left behind.
fn bind_socket(path: &Path) -> Result<UnixSocket, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!(
            "cannot listen on {} for grpc: {error}; choose another path with `grpc: {{socket: ...}}`",
            path.display()
        )
    };
    let is_socket = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket());
    if is_socket {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(failed(&"another process listens there"));
        }
        std::fs::remove_file(path).map_err(|error| failed(&error))?;
    }
    let listener = UnixListener::bind(path).map_err(|error| failed(&error))?;
    Ok(UnixSocket { listener, path: path.to_owned() })
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

//! The gRPC door: where it listens, how many come in, and how it closes.
//!
//! A stopping door says `NOT_SERVING` first, then ends the streams of those who watch its health, so that they do not hold
//! it open until the grace is over.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::MissedTickBehavior;

use super::authority::OneAuthority;
use super::certificates::Certificates;
use super::connection;
use super::limits::Limits;
use super::service::Services;
use crate::access::Connection;
use crate::config::Grpc;
use crate::log_limit::log_limited;
use crate::ports::{Listener, Port, Shutdown};

/// A client of the socket file: who may open it is for the file's permissions to say.
const SOCKET: Connection = Connection { peer: None, is_local: true, is_verified: false };
/// Most connections at once; later ones wait to be accepted. A proxy has a few for each of its threads.
const MAX_CONNECTIONS: usize = 4096;
const MAX_CONNECTIONS_U32: u32 = 4096;
/// How long to wait when accepting fails, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client that has not finished its TLS handshake in this time is cut off.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks at the files of certificates, and at the store where health follows it.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Binds the gRPC port, if the configuration has one. `limits` takes the service from what ports are served with.
///
/// # Errors
/// One line: an address or path that cannot be listened to, or certificates that cannot be read.
pub(crate) async fn bind<S: 'static>(
    config: Grpc,
    limits: fn(S) -> Arc<Limits>,
) -> Result<Option<Port<S>>, String> {
    let Some(door) = Door::bind(config).await? else { return Ok(None) };
    let listener = |(address, tls)| Listener { protocol: "grpc", address, tls };
    let listeners = door.addresses().into_iter().map(listener).collect();
    Ok(Some(Port::new(("grpc", door.places()), listeners, move |with, shutdown: Shutdown| {
        let grace = shutdown.grace;
        door.serve(limits(with), shutdown.begun(), grace)
    })))
}

/// A bound door that nobody is let in by yet.
#[derive(Debug)]
struct Door {
    tcp: Option<TcpListener>,
    socket: Option<Socket>,
    certificates: Option<Arc<Certificates>>,
    config: Grpc,
}

/// A bound socket file, which goes with the value.
#[derive(Debug)]
struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Door {
    /// Binds what the configuration names. `None` if it names nothing.
    ///
    /// # Errors
    /// One line: an address or path that cannot be listened to, or certificates that are none.
    async fn bind(config: Grpc) -> Result<Option<Self>, String> {
        if !config.is_served() {
            return Ok(None);
        }
        let certificates = config.tls.clone().map(Certificates::load).transpose()?.map(Arc::new);
        let tcp = match config.listen {
            Some(listen) => Some(TcpListener::bind(listen).await.map_err(|error| {
                format!("cannot listen to {listen} for grpc: {error}; choose another address with --grpc")
            })?),
            None => None,
        };
        let socket = config.socket.as_deref().map(bind_socket).transpose()?;
        Ok(Some(Self { tcp, socket, certificates, config }))
    }

    /// Where it listens, for people.
    fn places(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let tcp = self.address().map(|address| format!("{scheme}://{address}"));
        let socket = self.socket.as_ref().map(|socket| format!("unix:{}", socket.path.display()));
        tcp.into_iter().chain(socket).collect::<Vec<_>>().join(", ")
    }

    /// Where it listens: addresses, each with whether it speaks TLS.
    fn addresses(&self) -> Vec<(String, bool)> {
        let tcp = self.address().map(|address| (address.to_string(), self.certificates.is_some()));
        let socket = self.socket.as_ref().map(|socket| (format!("unix:{}", socket.path.display()), false));
        tcp.into_iter().chain(socket).collect()
    }

    fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// Serves until `stop` completes, then lets open calls finish for at most `grace`.
    ///
    /// Returns how many connections were cut off when the grace was over.
    async fn serve(self, limits: Arc<Limits>, stop: impl Future, grace: Duration) -> usize {
        let services = Arc::new(Services::new(limits));
        services.set_health(services.limits().is_well()).await;
        let lookers = [
            self.certificates.clone().map(|certificates| tokio::spawn(watch_files(certificates))),
            Some(tokio::spawn(watch_health(Arc::clone(&services)))),
        ];
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let (stopping, stopped) = watch::channel(());
        let terms = Terms { services: Arc::clone(&services), config: self.config.clone(), stopped };
        tokio::pin!(stop);
        loop {
            tokio::select! {
                (stream, place) = accepted(&places, || accept_tcp(self.tcp.as_ref())) => {
                    // Answers are small and written whole: waiting to fill a packet would only delay them.
                    let _ = stream.set_nodelay(true);
                    let peer = stream.peer_addr().ok().map(|peer| peer.ip());
                    match self.certificates.clone() {
                        None => terms.spawn(stream, terms.tcp(peer), place),
                        Some(certificates) => {
                            let terms = terms.clone();
                            tokio::spawn(async move {
                                let handshake = certificates.handshake(stream);
                                match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                                    Ok(Ok(stream)) => terms.spawn(stream, terms.tcp(peer), place),
                                    Ok(Err(error)) => log_limited!(WARN, peer, %error, "refused a grpc connection"),
                                    Err(_) => log_limited!(DEBUG, peer, "a TLS handshake took too long"),
                                }
                            });
                        }
                    }
                },
                (stream, place) = accepted(&places, || accept_unix(self.socket.as_ref())) => {
                    terms.spawn(OneAuthority::new(stream), SOCKET, place);
                },
                _ = &mut stop => break,
            }
        }
        // Nobody new, and a socket file that nobody finds.
        drop((self.tcp, self.socket));
        lookers.into_iter().flatten().for_each(|looker| looker.abort());
        services.end_health().await;
        stopping.send_replace(());
        // Each connection gives its place back when it has ended.
        let all = places.acquire_many(MAX_CONNECTIONS_U32);
        match tokio::time::timeout(grace, all).await {
            Ok(_) => 0,
            Err(_) => MAX_CONNECTIONS - places.available_permits(),
        }
    }
}

/// On what terms connections are served.
#[derive(Clone)]
struct Terms {
    services: Arc<Services>,
    config: Grpc,
    /// Changes when the door closes.
    stopped: watch::Receiver<()>,
}

impl Terms {
    /// A client that is connected by TCP. Where certificates are asked for, it has shown one.
    fn tcp(&self, peer: Option<IpAddr>) -> Connection {
        Connection {
            peer,
            is_local: self.config.listen.is_some_and(|listen| listen.ip().is_loopback()),
            is_verified: self.config.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some()),
        }
    }

    /// Serves one connection in a task of its own.
    fn spawn<I>(&self, stream: I, client: Connection, place: OwnedSemaphorePermit)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { services, config, mut stopped } = self.clone();
        tokio::spawn(async move {
            let is_asked_to_end = Arc::new(Notify::new());
            let asked = Arc::clone(&is_asked_to_end);
            let connection =
                connection::serve(stream, services, client, async move { asked.notified().await });
            let patience = async {
                tokio::select! {
                    _ = stopped.changed() => {}
                    () = passed(config.max_connection_age) => {}
                }
                is_asked_to_end.notify_one();
                passed(config.max_connection_age_grace).await;
            };
            let ended = tokio::select! {
                ended = connection => ended,
                () = patience => Ok(()),
            };
            if let Err(error) = ended {
                log_limited!(DEBUG, client.peer, %error, "grpc connection ended");
            }
            drop(place);
        });
    }
}

/// Ends after this span, never if there is none.
async fn passed(span: Option<Duration>) {
    match span {
        Some(span) => tokio::time::sleep(span).await,
        None => std::future::pending().await,
    }
}

/// The next connection, once there is a place for it.
async fn accepted<I, F>(places: &Arc<Semaphore>, accept: impl Fn() -> F) -> (I, OwnedSemaphorePermit)
where
    F: Future<Output = io::Result<I>>,
{
    loop {
        let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
        match accept().await {
            Ok(stream) => return (stream, place),
            Err(error) => {
                log_limited!(WARN, None, %error, "cannot accept a grpc connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept_tcp(tcp: Option<&TcpListener>) -> io::Result<tokio::net::TcpStream> {
    match tcp {
        Some(tcp) => tcp.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

async fn accept_unix(socket: Option<&Socket>) -> io::Result<tokio::net::UnixStream> {
    match socket {
        Some(socket) => socket.listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

/// Binds a socket file, over one that a dead process left behind.
fn bind_socket(path: &Path) -> Result<Socket, String> {
    let failed = |error: &dyn std::fmt::Display| {
        format!(
            "cannot listen to {} for grpc: {error}; choose another path with `grpc: {{socket: ...}}`",
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
    Ok(Socket { listener, path: path.to_owned() })
}

/// Takes changed certificates into use.
async fn watch_files(certificates: Arc<Certificates>) {
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        certificates.look();
    }
}

/// Tells the health service how things are.
async fn watch_health(services: Arc<Services>) {
    let mut was_well = None;
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let is_well = services.limits().is_well();
        if was_well.replace(is_well) != Some(is_well) {
            services.set_health(is_well).await;
        }
    }
}

//! The RESP listener: serves accepted connections on the workers, and lets them finish at shutdown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::connection;
use super::session::Session;
use super::shared::ListenerState;
use super::workers::Workers;
use crate::app::App;
use crate::config::Resp;
use crate::listener::{
    Accepted, Acceptor, BoundSocket, ConnectionSpec, DetachedStream, Refusal, Timeouts, WRITE_TIMEOUT,
};
use crate::log_limit::log_limited;
use crate::ports::{Listener, Port, Shutdown};

/// A client that does not complete a command within this time is disconnected.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of the TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Binds the port, if the configuration has one. `app` takes the app from what ports are served
/// with.
///
/// # Errors
/// One line: the address cannot be listened to, or threads cannot be started.
pub(crate) fn bind<S: 'static>(
    settings: Option<Resp>,
    app: fn(S) -> Arc<App>,
) -> Result<Option<Port<S>>, String> {
    let Some(settings) = settings else { return Ok(None) };
    let socket = BoundSocket::tcp(settings.listen, "address with --resp")?;
    let tls = settings.tls.is_some();
    let workers = Workers::start().map_err(|error| format!("cannot start threads: {error}"))?;
    let url = format!("{}://{}", if tls { "rediss" } else { "redis" }, socket.name());
    let listeners = vec![Listener { protocol: "resp", address: socket.name(), tls }];
    Ok(Some(Port::new(("resp", url), listeners, move |with, shutdown: Shutdown| {
        let Shutdown { stopped, grace, .. } = shutdown;
        serve(socket, settings, workers, app(with), stopped, grace)
    })))
}

/// Serves until `stop` is true, then gives connections at most `grace` to reply to the commands
/// they have read.
///
/// Returns how many connections were still open after the grace period.
async fn serve(
    socket: BoundSocket,
    settings: Resp,
    workers: Workers,
    app: Arc<App>,
    stop: watch::Receiver<bool>,
    grace: Duration,
) -> usize {
    let Resp { password, tls, idle_timeout, max_connections, listen } = settings;
    let spec = ConnectionSpec {
        protocol: "resp",
        max: Some(max_connections),
        has_tls: tls.is_some(),
        timeouts: Timeouts {
            // Pools connect before they have anything to ask; `idle_timeout` bounds that.
            opening: None,
            request: Some(COMMAND_TIMEOUT),
            idle: None,
            write: Some(WRITE_TIMEOUT),
        },
        refusal: Refusal::Resp,
    };
    let mut acceptor = Acceptor::new(vec![socket], &app.connections, spec);
    let shared = Arc::new(ListenerState::new(
        password,
        listen.ip().is_loopback(),
        max_connections,
        Arc::clone(&acceptor.connections),
    ));
    let tls = tls.map(TlsAcceptor::from);
    let mut stopped = stop.clone();
    loop {
        let Accepted { stream, peer } = tokio::select! {
            accepted = acceptor.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        let Some(peer) = peer else { continue };
        // Another thread serves the connection, so the socket leaves this thread's runtime.
        let stream = match stream.detach() {
            Ok(stream) => stream,
            Err(error) => {
                log_limited!(WARN, Some(peer.ip()), %error, "cannot hand a RESP connection to its thread");
                continue;
            }
        };
        let session = Session::new(Arc::clone(&shared), peer);
        let served = ServedConnection {
            session,
            app: Arc::clone(&app),
            tls: tls.clone(),
            idle: idle_timeout,
            stop: stop.clone(),
        };
        workers.run(served.run(stream, peer));
    }
    acceptor.close(grace).await
}

/// What serves one connection.
struct ServedConnection {
    session: Session,
    app: Arc<App>,
    tls: Option<TlsAcceptor>,
    idle: Duration,
    stop: watch::Receiver<bool>,
}

impl ServedConnection {
    /// Serves until the connection closes.
    async fn run(self, stream: DetachedStream, peer: SocketAddr) {
        if let Err(error) = self.serve(stream).await {
            log_limited!(DEBUG, Some(peer.ip()), %error, %peer, "RESP connection closed with an error");
        }
    }

    async fn serve(self, stream: DetachedStream) -> io::Result<()> {
        let Self { session, app, tls, idle, stop } = self;
        let stream = stream.attach()?;
        let Some(tls) = tls else { return connection::serve(stream, session, app, idle, stop).await };
        let handshake = tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await;
        let stream = handshake.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        connection::serve(stream, session, app, idle, stop).await
    }
}

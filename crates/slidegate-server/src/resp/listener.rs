//! The RESP listener: serves accepted connections on the workers, and lets them finish at shutdown.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::connection;
use super::session::Session;
use super::shared::ListenerState;
use crate::app::App;
use crate::config::Resp;
use crate::listener::{
    Accepted, Acceptor, BoundSocket, Certificates, ConnectionSpec, Refusal, Timeouts, TlsProfile,
    TrackedStream, WRITE_TIMEOUT, Workers,
};
use crate::log_limit::log_limited;
use crate::ports::{Port, Shutdown, listed};

/// TLS of the port.
pub(crate) const TLS: TlsProfile = TlsProfile { section: "resp", alpn: "" };
/// A client that does not complete a command within this time is disconnected.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Binds the port, if the configuration has one. `services` takes the app and the workers from what
/// ports are served with.
///
/// # Errors
/// One line: the address cannot be listened to, or the certificates are invalid.
pub(crate) fn bind<S: 'static>(
    settings: Option<Resp>,
    services: fn(S) -> (Arc<App>, Arc<Workers>),
) -> Result<Option<Port<S>>, String> {
    let Some(settings) = settings else { return Ok(None) };
    let certificates = settings.tls.clone().map(|files| Certificates::load(files, TLS)).transpose()?;
    let certificates = certificates.map(Arc::new);
    let options = ("resp", "address with --resp");
    let sockets = BoundSocket::bind(settings.listen, settings.socket.as_ref(), options)?;
    let (urls, listeners) = listed("resp", &sockets, if certificates.is_some() { "rediss" } else { "redis" });
    Ok(Some(Port::new(("resp", urls), listeners, move |with, shutdown: Shutdown| {
        let (app, workers) = services(with);
        BoundResp { sockets, certificates, settings }.serve(app, workers, shutdown)
    })))
}

/// The bound port.
struct BoundResp {
    sockets: Vec<BoundSocket>,
    certificates: Option<Arc<Certificates>>,
    settings: Resp,
}

impl BoundResp {
    /// Serves until the shutdown, then gives connections at most the grace period to reply to the
    /// commands they have read.
    ///
    /// Returns how many connections were still open after the grace period.
    async fn serve(self, app: Arc<App>, workers: Arc<Workers>, shutdown: Shutdown) -> usize {
        let Resp { password, idle_timeout, max_connections, .. } = self.settings;
        let spec = ConnectionSpec {
            protocol: "resp",
            max: Some(max_connections),
            timeouts: Timeouts {
                // Pools connect before they have anything to ask; `idle_timeout` bounds that.
                opening: None,
                request: Some(COMMAND_TIMEOUT),
                idle: None,
                write: Some(WRITE_TIMEOUT),
            },
            refusal: Refusal::Resp,
        };
        let mut acceptor = Acceptor::new(self.sockets, self.certificates, &app.connections, spec);
        let connections = Arc::clone(&acceptor.connections);
        let shared = Arc::new(ListenerState::new(password, max_connections, connections));
        let Shutdown { stopped: stop, grace, .. } = shutdown;
        let mut stopped = stop.clone();
        loop {
            let Accepted { stream, peer, connection, certificates } = tokio::select! {
                accepted = acceptor.accept() => accepted,
                _ = stopped.wait_for(|stop| *stop) => break,
            };
            let session = Session::new(Arc::clone(&shared), peer, connection);
            let (app, stop) = (Arc::clone(&app), stop.clone());
            let served = ServedConnection { session, app, certificates, idle: idle_timeout, stop };
            workers.serve(stream, connection.peer, |stream| served.run(stream));
        }
        acceptor.close(grace).await
    }
}

/// What serves one connection.
struct ServedConnection {
    session: Session,
    app: Arc<App>,
    certificates: Option<Arc<Certificates>>,
    idle: Duration,
    stop: watch::Receiver<bool>,
}

impl ServedConnection {
    /// Serves until the connection closes.
    async fn run(self, stream: TrackedStream) {
        let peer = self.session.connection().peer;
        if let Err(error) = self.serve(stream).await {
            log_limited!(DEBUG, peer, %error, peer = peer.map(tracing::field::display), "RESP connection closed with an error");
        }
    }

    async fn serve(self, stream: TrackedStream) -> io::Result<()> {
        let Self { session, app, certificates, idle, stop } = self;
        let Some(certificates) = certificates else {
            return connection::serve(stream, session, app, idle, stop).await;
        };
        match certificates.accept(stream, session.connection().peer).await {
            Some(stream) => connection::serve(stream, session, app, idle, stop).await,
            None => Ok(()),
        }
    }
}

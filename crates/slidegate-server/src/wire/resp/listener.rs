//! The RESP listener: serves accepted connections on the workers and lets them finish at shutdown.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::connection;
use super::session::Session;
use super::shared::ListenerState;
use crate::config::Resp;
use crate::engine::App;
use crate::listener::{
    Accepted, Admission, BoundSocket, Certificates, ConnectionSpec, Serve, Timeouts, TlsProfile,
    WRITE_TIMEOUT, Workers,
};
use crate::log_limit::log_limited;
use crate::wire::ports::{Port, Shutdown, listed};

/// The port's TLS profile.
pub(crate) const TLS: TlsProfile = TlsProfile { section: "resp", alpn: "" };
/// The reply when no connection is free: Redis's own text, which clients know.
const REFUSAL: &[u8] = b"-ERR max number of clients reached\r\n";
/// A client that does not complete a command within this time is disconnected.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Binds the port, if configured. `services` extracts the app and the workers from the state that
/// ports are served with.
///
/// # Errors
/// One line: the address cannot be listened to, or the certificates are invalid.
pub(crate) fn bind<S: 'static>(
    settings: Option<Resp>,
    services: fn(S) -> (Arc<App>, Workers),
) -> Result<Option<Port<S>>, String> {
    let Some(settings) = settings else { return Ok(None) };
    let certificates = settings.tls.clone().map(|files| Certificates::load(files, TLS)).transpose()?;
    let certificates = certificates.map(Arc::new);
    let options = ("resp", "address with --resp");
    let sockets = BoundSocket::bind(settings.listen, settings.socket.as_ref(), Workers::count(), options)?;
    let (urls, listeners) = listed("resp", &sockets, if certificates.is_some() { "rediss" } else { "redis" });
    Ok(Some(Port::new(("resp", urls), listeners, move |with, shutdown: Shutdown| {
        let (app, workers) = services(with);
        BoundResp { sockets, certificates, settings }.serve(app, &workers, shutdown)
    })))
}

struct BoundResp {
    sockets: Vec<BoundSocket>,
    certificates: Option<Arc<Certificates>>,
    settings: Resp,
}

impl BoundResp {
    /// Serves until shutdown, then gives connections at most the grace period to reply to commands
    /// already read.
    ///
    /// Returns the number of connections still open after the grace period.
    fn serve(
        self,
        app: Arc<App>,
        workers: &Workers,
        shutdown: Shutdown,
    ) -> impl Future<Output = usize> + Send + use<> {
        let Resp { password, idle_timeout, max_connections, .. } = self.settings;
        let spec = ConnectionSpec {
            protocol: "resp",
            max: Some(max_connections),
            timeouts: Timeouts {
                // Pools connect before they have requests; `idle_timeout` bounds that.
                opening: None,
                request: Some(COMMAND_TIMEOUT),
                idle: None,
                write: Some(WRITE_TIMEOUT),
            },
            refusal: REFUSAL,
        };
        let admission = Admission::new(&self.sockets, self.certificates, &app.connections, spec);
        let connections = Arc::clone(&admission.connections);
        let shared = Arc::new(ListenerState::new(password, max_connections, connections));
        let Shutdown { stopped: stop, grace, .. } = shutdown.clone();
        let connections = RespConnections { shared, app, idle: idle_timeout, stop };
        let mut accepting = workers.accept(self.sockets, &admission, &connections);
        async move {
            shutdown.begun().await;
            accepting.shutdown().await;
            admission.connections.closed_within(grace).await
        }
    }
}

/// Serves connections on the workers.
#[derive(Clone)]
struct RespConnections {
    shared: Arc<ListenerState>,
    app: Arc<App>,
    idle: Duration,
    stop: watch::Receiver<bool>,
}

impl Serve for RespConnections {
    async fn serve(self, accepted: Accepted) {
        let Self { shared, app, idle, stop } = self;
        let Accepted { stream, peer, connection: client, certificates } = accepted;
        let slot = Arc::clone(stream.slot());
        let session = Session::new(shared, peer, client);
        let ended = match certificates {
            None => connection::serve(stream, (session, slot), app, idle, stop).await,
            Some(certificates) => {
                let Some(stream) = certificates.accept(stream, client.peer).await else { return };
                connection::serve(stream, (session, slot), app, idle, stop).await
            }
        };
        if let Err(error) = ended {
            let peer = client.peer;
            log_limited!(DEBUG, peer, %error, peer = peer.map(tracing::field::display), "RESP connection closed with an error");
        }
    }
}

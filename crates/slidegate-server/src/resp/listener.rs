//! The RESP listener: accepts connections, bounds them, and lets them finish at shutdown.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::connection;
use super::session::Session;
use super::shared::ListenerState;
use super::workers::Workers;
use crate::app::App;
use crate::config::Resp;
use crate::log_limit::log_limited;
use crate::ports::{self, Listener, Port, Shutdown};

/// Pause after a failed accept, which most often means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Deadline of the TLS handshake.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// Binds the port, if the configuration has one. `app` takes the app from what ports are served
/// with.
///
/// # Errors
/// One line: the address cannot be listened to, or threads cannot be started.
pub(crate) async fn bind<S: 'static>(
    settings: Option<Resp>,
    app: fn(S) -> Arc<App>,
) -> Result<Option<Port<S>>, String> {
    let Some(settings) = settings else { return Ok(None) };
    let (listener, address) = ports::bind(settings.listen, "address with --resp").await?;
    let tls = settings.tls.is_some();
    let workers = Workers::start().map_err(|error| format!("cannot start threads: {error}"))?;
    let url = format!("{}://{address}", if tls { "rediss" } else { "redis" });
    let listeners = vec![Listener { protocol: "resp", address: address.to_string(), tls }];
    Ok(Some(Port::new(("resp", url), listeners, move |with, shutdown: Shutdown| {
        let Shutdown { stopped, grace, .. } = shutdown;
        serve(listener, settings, workers, app(with), stopped, grace)
    })))
}

/// Serves until `stop` is true, then gives connections at most `grace` to reply to the commands
/// they have read.
///
/// Returns how many connections were still open after the grace period.
async fn serve(
    listener: TcpListener,
    settings: Resp,
    workers: Workers,
    app: Arc<App>,
    stop: watch::Receiver<bool>,
    grace: Duration,
) -> usize {
    let Resp { password, tls, idle_timeout, max_connections, listen } = settings;
    let shared = Arc::new(ListenerState::new(password, listen.ip().is_loopback(), max_connections));
    let tls = tls.map(TlsAcceptor::from);
    let mut stopped = stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        // Another thread serves the connection, so the socket leaves this thread's runtime.
        let accepted = accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
        let (mut stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log_limited!(WARN, None, %error, "failed to accept a RESP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&shared.permits).try_acquire_owned() else {
            // Redis's own text. The rejected client must not block the accept loop.
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            continue;
        };
        let session = Session::new(Arc::clone(&shared), peer);
        let (app, stop, tls) = (Arc::clone(&app), stop.clone(), tls.clone());
        workers.run(async move {
            if let Err(error) = handle_connection(stream, tls, session, app, idle_timeout, stop).await {
                log_limited!(DEBUG, Some(peer.ip()), %error, %peer, "RESP connection closed with an error");
            }
            drop(permit);
        });
    }
    drop(listener);
    let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
    match tokio::time::timeout(grace, shared.permits.acquire_many(all)).await {
        Ok(_) => 0,
        Err(_) => shared.connected(),
    }
}

/// Serves one connection until it closes.
async fn handle_connection(
    stream: std::net::TcpStream,
    tls: Option<TlsAcceptor>,
    session: Session,
    app: Arc<App>,
    idle: Duration,
    stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    // Replies of a pipeline are written at once; Nagle's algorithm would only delay them.
    stream.set_nodelay(true)?;
    let stream = TcpStream::from_std(stream)?;
    let Some(tls) = tls else { return connection::serve(stream, session, app, idle, stop).await };
    let handshake = tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await;
    let stream = handshake.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    connection::serve(stream, session, app, idle, stop).await
}

//! RESP: decisions for clients of Redis, under our own commands and those of redis-cell and throttlecrab.
//!
//! It speaks RESP2 and RESP3 and holds no keys and values: what a client may say stands in `resp/command.rs`, and in
//! docs/resp.md with every reply.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::app::App;
use crate::config::{Password, Resp};
use crate::log_limit::log_limited;
use session::Session;
pub(crate) use workers::Workers;

mod command;
mod connection;
mod decide;
mod frame;
mod reply;
mod session;
mod throttle;
mod transaction;
mod workers;

/// How long to wait when accepting fails, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A client that does not agree on encryption in this time is cut off.
const TLS_TIMEOUT: Duration = Duration::from_secs(10);

/// What all connections of the port share.
#[derive(Debug)]
struct Door {
    password: Option<Password>,
    /// Whether the port can be reached from this machine only.
    is_local: bool,
    max_connections: usize,
    /// One for each connection there may be.
    places: Arc<Semaphore>,
    /// Connections that ever came.
    arrivals: AtomicU64,
}

impl Door {
    fn connected(&self) -> usize {
        self.max_connections - self.places.available_permits()
    }
}

/// Serves until `stop` is true, then lets connections answer what they have read for at most `grace`.
///
/// Returns how many connections were cut off when the grace was over.
pub(crate) async fn serve(
    listener: TcpListener,
    settings: Resp,
    workers: Workers,
    app: Arc<App>,
    stop: watch::Receiver<bool>,
    grace: Duration,
) -> usize {
    let Resp { password, tls, idle_timeout, max_connections, listen } = settings;
    let is_local = listen.ip().is_loopback();
    let places = Arc::new(Semaphore::new(max_connections));
    let door = Arc::new(Door { password, is_local, max_connections, places, arrivals: AtomicU64::new(0) });
    let tls = tls.map(|tls| TlsAcceptor::from(tls.config));
    let mut stopped = stop.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break,
        };
        // The thread that accepts is not the one that serves.
        let accepted = accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer)));
        let (mut stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                log_limited!(WARN, None, %error, "cannot accept a connection of the RESP port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&door.places).try_acquire_owned() else {
            // Redis's own words. A client that has no place is not waited for.
            let _ = stream.write(b"-ERR max number of clients reached\r\n");
            continue;
        };
        let session = Session::new(Arc::clone(&door), peer);
        let (app, stop, tls) = (Arc::clone(&app), stop.clone(), tls.clone());
        workers.run(async move {
            if let Err(error) = attend(stream, tls, session, app, idle_timeout, stop).await {
                log_limited!(DEBUG, Some(peer.ip()), %error, %peer, "connection of the RESP port ended");
            }
            drop(place);
        });
    }
    drop(listener);
    let all = u32::try_from(max_connections).unwrap_or(u32::MAX);
    match tokio::time::timeout(grace, door.places.acquire_many(all)).await {
        Ok(_) => 0,
        Err(_) => door.connected(),
    }
}

/// One connection, from its greeting to its end.
async fn attend(
    stream: std::net::TcpStream,
    tls: Option<TlsAcceptor>,
    session: Session,
    app: Arc<App>,
    idle: Duration,
    stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    // The answers of a pipeline are written at once: waiting to fill a packet would only delay them.
    stream.set_nodelay(true)?;
    let stream = TcpStream::from_std(stream)?;
    let Some(tls) = tls else { return connection::serve(stream, session, app, idle, stop).await };
    let agreed = tokio::time::timeout(TLS_TIMEOUT, tls.accept(stream)).await;
    let stream = agreed.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
    connection::serve(stream, session, app, idle, stop).await
}

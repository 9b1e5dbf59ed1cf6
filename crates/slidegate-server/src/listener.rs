//! The listener: accepts HTTP connections, bounds them, and lets them finish when the service ends.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::protocol::Doors;

/// Most connections at once, each of which holds up to [`MAX_HEADER_BYTES`] in buffers; later ones wait to be
/// accepted. Under the usual limit of 65,536 file descriptors.
const MAX_CONNECTIONS: usize = 16_384;
/// A client that does not send its whole request head in this time is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of a request, query string included.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// How long to wait when accepting fails, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` completes, then lets open requests finish for at most `grace`.
///
/// Returns how many connections were cut off when the grace was over.
pub(crate) async fn serve(
    listener: TcpListener,
    doors: Arc<Doors>,
    stop: impl Future,
    grace: Duration,
) -> usize {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            _ = &mut stop => break,
        };
        let (stream, peer, place) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let doors = Arc::clone(&doors);
        let service = service_fn(move |request| {
            let doors = Arc::clone(&doors);
            async move { Ok::<_, Infallible>(doors.answer(peer.ip(), request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            // Head and body in one piece: for answers of this size copying costs less than gathering.
            .writev(false)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    let open = MAX_CONNECTIONS - places.available_permits();
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_ok() {
        return 0;
    }
    open.min(MAX_CONNECTIONS - places.available_permits())
}

/// The next connection, once there is a place for it.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    // Answers are small and written whole: waiting to fill a packet would only delay them.
    stream.set_nodelay(true)?;
    Ok((stream, peer, place))
}

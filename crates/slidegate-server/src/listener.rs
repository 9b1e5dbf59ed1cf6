//! The listener: accepts HTTP connections, bounds them, and lets them finish when the service ends.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::log_limit::log_limited;

/// Most connections at once, each of which holds up to [`MAX_HEADER_BYTES`] in buffers; later ones wait to be
/// accepted. Under the usual limit of 65,536 file descriptors.
const MAX_CONNECTIONS: usize = 16_384;
/// A client that does not send its whole request head in this time is cut off.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest head of a request, query string included.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// How long to wait when accepting fails, most often for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What stands behind a listener.
pub(crate) trait Answers: Clone + Send + 'static {
    type Body: hyper::body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Answers a request from this peer.
    fn answer(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

impl Answers for Router {
    type Body = axum::body::Body;

    async fn answer(&self, _: IpAddr, request: Request<Incoming>) -> Response<Self::Body> {
        let service = TowerToHyperService::new(self.clone());
        let Ok(answer) = service.call(request).await.map_err(|never: Infallible| match never {});
        answer
    }
}

/// Serves until `stop` completes, then lets open requests finish for at most `grace`.
///
/// Returns how many connections were cut off when the grace was over.
pub(crate) async fn serve(
    listener: TcpListener,
    answers: impl Answers,
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
                log_limited!(WARN, None, %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let answers = answers.clone();
        let service = service_fn(move |request| {
            let answers = answers.clone();
            async move { Ok::<_, Infallible>(answers.answer(peer.ip(), request).await) }
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
                log_limited!(DEBUG, Some(peer.ip()), %error, "connection ended");
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

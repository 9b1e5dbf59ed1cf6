//! The HTTP listener: accepts connections up to a maximum and drains them at shutdown.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::log_limit::log_limited;

/// Maximum open connections, each with up to [`MAX_HEADER_BYTES`] of buffers; more wait to be
/// accepted. Below the usual limit of 65,536 file descriptors.
const MAX_CONNECTIONS: usize = 16_384;
/// A client that does not send a complete request head within this time is disconnected.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a request head, query string included.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Pause after a failed accept, which most often means that file descriptors ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Handles the requests of a listener.
pub(crate) trait Handler: Clone + Send + 'static {
    type Body: hyper::body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Responds to a request from this peer.
    fn handle(
        &self,
        peer: IpAddr,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

impl Handler for Router {
    type Body = axum::body::Body;

    async fn handle(&self, _: IpAddr, request: Request<Incoming>) -> Response<Self::Body> {
        let service = TowerToHyperService::new(self.clone());
        let Ok(response) = service.call(request).await.map_err(|never: Infallible| match never {});
        response
    }
}

/// Serves until `stop` completes, then gives open requests at most `grace` to finish.
///
/// Returns how many connections were still open after the grace period.
pub(crate) async fn serve(
    listener: TcpListener,
    handler: impl Handler,
    stop: impl Future,
    grace: Duration,
) -> usize {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    tokio::pin!(stop);
    loop {
        let ((stream, peer), permit) = tokio::select! {
            accepted = accepted(&permits, || listener.accept()) => accepted,
            _ = &mut stop => break,
        };
        // Responses are small and written whole; Nagle's algorithm would only delay them.
        let _ = stream.set_nodelay(true);
        let handler = handler.clone();
        let service = service_fn(move |request| {
            let handler = handler.clone();
            async move { Ok::<_, Infallible>(handler.handle(peer.ip(), request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            // For small responses, copying head and body together is faster than vectored writes.
            .writev(false)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                log_limited!(DEBUG, Some(peer.ip()), %error, "connection closed with an error");
            }
            drop(permit);
        });
    }
    drop(listener);
    let open = MAX_CONNECTIONS - permits.available_permits();
    if tokio::time::timeout(grace, graceful.shutdown()).await.is_ok() {
        return 0;
    }
    open.min(MAX_CONNECTIONS - permits.available_permits())
}

/// The next connection, once a permit is free. Failures to accept are logged and retried.
pub(crate) async fn accepted<C, F>(
    permits: &Arc<Semaphore>,
    accept: impl Fn() -> F,
) -> (C, OwnedSemaphorePermit)
where
    F: Future<Output = std::io::Result<C>>,
{
    loop {
        let permit = Arc::clone(permits).acquire_owned().await.expect("the semaphore is never closed");
        match accept().await {
            Ok(connection) => return (connection, permit),
            Err(error) => {
                log_limited!(WARN, None, %error, "failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

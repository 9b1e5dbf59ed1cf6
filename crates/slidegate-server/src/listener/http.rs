//! HTTP/1 over accepted connections, and their graceful shutdown.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;

use super::accept::{Accepted, Acceptor};
use super::budget::ConnectionBudget;
use super::counters::{ConnectionSpec, Refusal};
use super::socket::BoundSocket;
use super::timeouts::{Timeouts, WRITE_TIMEOUT};
use crate::log_limit::log_limited;

/// A client that does not send a complete request head within this time is disconnected.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a request head, query string included.
const MAX_HEADER_BYTES: usize = 64 * 1024;

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

/// Bound sockets that serve HTTP.
#[derive(Debug)]
pub(crate) struct HttpListener {
    /// The label of its metrics.
    pub(crate) protocol: &'static str,
    pub(crate) sockets: Vec<BoundSocket>,
    /// How long a connection may be idle between two requests.
    pub(crate) idle_timeout: Duration,
}

impl HttpListener {
    /// Serves until `stop` completes, then gives open requests at most `grace` to finish.
    ///
    /// Returns how many connections were still open after the grace period.
    pub(crate) async fn serve(
        self,
        handler: impl Handler,
        budget: &Arc<ConnectionBudget>,
        stop: impl Future,
        grace: Duration,
    ) -> usize {
        let timeouts = Timeouts {
            opening: Some(HEAD_TIMEOUT),
            request: Some(HEAD_TIMEOUT),
            idle: Some(self.idle_timeout),
            write: Some(WRITE_TIMEOUT),
        };
        let (protocol, refusal) = (self.protocol, Refusal::Http);
        let spec = ConnectionSpec { protocol, max: None, has_tls: false, timeouts, refusal };
        let mut acceptor = Acceptor::new(self.sockets, budget, spec);
        let graceful = GracefulShutdown::new();
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                accepted = acceptor.accept() => accepted,
                _ = &mut stop => break,
            };
            spawn(accepted, handler.clone(), &graceful);
        }
        // The sockets close first, then idle connections, then those that are replied to.
        let closed = acceptor.close(grace);
        tokio::join!(closed, tokio::time::timeout(grace, graceful.shutdown())).0
    }
}

/// Serves one connection in its own task.
fn spawn(accepted: Accepted, handler: impl Handler, graceful: &GracefulShutdown) {
    let Some(peer) = accepted.ip() else { return };
    let slot = Arc::clone(accepted.stream.slot());
    let service = service_fn(move |request| {
        slot.serving();
        let handler = handler.clone();
        async move { Ok::<_, Infallible>(handler.handle(peer, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        // The connection budget has the timeouts, without a timer for each request.
        .header_read_timeout(None)
        // For small responses, copying head and body together is faster than vectored writes.
        .writev(false)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(accepted.stream), service);
    let connection = graceful.watch(connection);
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            log_limited!(DEBUG, Some(peer), %error, "connection closed with an error");
        }
    });
}

//! HTTP/1 over accepted connections, with graceful shutdown.

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::io;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::{Service as _, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::accept::{Accepted, Admission, Connection};
use super::budget::{ConnectionBudget, Slot};
use super::certificates::Certificates;
use super::counters::ConnectionSpec;
use super::refusal::linger;
use super::socket::BoundSocket;
use super::timeouts::{Timeouts, WRITE_TIMEOUT};
use super::unfinished::{Part, TrackedBody};
use super::workers::{Serve, Workers};
use crate::log_limit::log_limited;

/// A client that does not send a complete request head within this time is disconnected.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The reply when no connection is free.
const REFUSAL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    content-type: application/problem+json\r\n\
    content-length: 116\r\n\
    cache-control: no-store\r\n\
    retry-after: 1\r\n\
    connection: close\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,\"detail\":\"too many connections; retry in a second\"}";
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");
/// Maximum size of a request head, including the query string.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Maximum bytes read and dropped after a reply to a client that may still be writing: four times the largest
/// head that Go proxies forward by default. A proxy that sees a broken pipe instead of the reply may let the
/// request pass.
const MAX_LINGER: usize = 4 * 1024 * 1024;
/// Maximum bytes per read: the size of the HTTP library's first buffer.
const READ_BYTES: usize = 8 * 1024;

/// Handles the requests of a listener.
pub(crate) trait Handler: Clone + Send + Sync + 'static {
    type Body: hyper::body::Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>>
        + Send
        + 'static;

    /// Responds to this client's request.
    fn handle(
        &self,
        client: Connection,
        request: Request<TrackedBody>,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Routes that run on the shared runtime, not on a worker: they may block there, and a long request delays no
/// decision.
#[derive(Debug, Clone)]
pub(crate) struct SharedRoutes {
    routes: TowerToHyperService<Router>,
    runtime: Handle,
}

impl SharedRoutes {
    /// Must be called on the shared runtime.
    pub(crate) fn new(routes: Router) -> Self {
        Self { routes: TowerToHyperService::new(routes), runtime: Handle::current() }
    }

    pub(crate) async fn call(&self, request: Request<TrackedBody>) -> Response<Body> {
        // Dropped when the client disconnects, which aborts the request.
        let mut task = JoinSet::new();
        task.spawn_on(self.routes.call(request), &self.runtime);
        match task.join_next().await {
            Some(Ok(Ok(response))) => response,
            Some(Err(error)) if error.is_panic() => resume_unwind(error.into_panic()),
            // The shared runtime has stopped: the process exits.
            _ => pending().await,
        }
    }
}

impl Handler for SharedRoutes {
    type Body = Body;

    async fn handle(&self, _: Connection, request: Request<TrackedBody>) -> Response<Self::Body> {
        self.call(request).await
    }
}

/// Bound sockets that serve HTTP.
#[derive(Debug)]
pub(crate) struct HttpListener {
    /// The label of its metrics.
    pub(crate) protocol: &'static str,
    pub(crate) sockets: Vec<BoundSocket>,
    /// Certificates of the TCP sockets. `None`: no TLS.
    pub(crate) certificates: Option<Arc<Certificates>>,
    /// Maximum idle time between two requests.
    pub(crate) idle_timeout: Duration,
}

impl HttpListener {
    /// Serves until `stop` completes, then gives open requests at most `grace` to finish.
    ///
    /// Returns the number of connections still open after the grace period.
    pub(crate) fn serve<H: Handler, F: Future + Send>(
        self,
        handler: H,
        workers: &Workers,
        budget: Arc<ConnectionBudget>,
        stop: F,
        grace: Duration,
    ) -> impl Future<Output = usize> + Send + use<H, F> {
        let timeouts = Timeouts {
            opening: Some(HEAD_TIMEOUT),
            request: Some(HEAD_TIMEOUT),
            idle: Some(self.idle_timeout),
            write: Some(WRITE_TIMEOUT),
        };
        let (protocol, refusal) = (self.protocol, REFUSAL);
        let spec = ConnectionSpec { protocol, max: None, timeouts, refusal };
        let admission = Admission::new(&self.sockets, self.certificates, &budget, spec);
        let mut accepting = workers.accept(self.sockets, &admission, &HttpConnections { handler });
        async move {
            stop.await;
            // The sockets close first, then idle connections, then those with a request.
            accepting.shutdown().await;
            budget.end(&admission.connections);
            admission.connections.closed_within(grace).await
        }
    }
}

/// Serves connections on the workers.
#[derive(Debug, Clone)]
struct HttpConnections<H> {
    handler: H,
}

impl<H: Handler> Serve for HttpConnections<H> {
    async fn serve(self, accepted: Accepted) {
        let Accepted { stream, connection: client, certificates, .. } = accepted;
        let slot = Arc::clone(stream.slot());
        match certificates {
            None => self.drive(stream, slot, client).await,
            Some(certificates) => {
                let Some(stream) = certificates.accept(stream, client.peer).await else { return };
                self.drive(stream, slot, client).await;
            }
        }
    }
}

impl<H: Handler> HttpConnections<H> {
    /// Serves one connection until it ends.
    async fn drive<I>(self, io: I, slot: Arc<Slot>, client: Connection)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut io = TokioIo::new(io);
        if self.exchange(&mut io, &slot, client).await == End::MaybeUnread {
            // A client that has gone needs no reply. The connection keeps its place in the budget, which
            // bounds their number.
            let _ = linger(io.into_inner(), MAX_LINGER).await;
        }
    }

    /// Responds to requests until none follows.
    async fn exchange<I>(self, io: &mut TokioIo<I>, slot: &Arc<Slot>, client: Connection) -> End
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        // Each request counts a reference. A count shared by all connections would bounce between processors.
        let heads = Arc::new(AtomicUsize::new(0));
        let io = io.inner_mut();
        let input = HeadReader { io, slot: Arc::clone(slot), heads: Arc::clone(&heads), known: 0, bytes: 0 };
        let shared = Arc::new((Arc::clone(slot), self.handler, heads, AtomicBool::new(false)));
        let of_requests = Arc::clone(&shared);
        let service = service_fn(move |request: Request<Incoming>| {
            let shared = Arc::clone(&of_requests);
            shared.0.serving();
            shared.2.fetch_add(1, Ordering::Relaxed);
            shared.3.store(!request.body().is_end_stream(), Ordering::Relaxed);
            let request = request.map(|body| TrackedBody::new(body, &shared.0));
            async move {
                let mut response = shared.1.handle(client, request).await;
                shared.2.fetch_add(1, Ordering::Relaxed);
                // Some responses contain clients' keys; no browser may treat one as a page.
                response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, NO_SNIFF);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            // The connection budget enforces the timeouts, without a timer per request.
            .header_read_timeout(None)
            // For small responses, copying head and body together is faster than vectored writes.
            .writev(false)
            .max_buf_size(MAX_HEADER_BYTES)
            .serve_connection(TokioIo::new(input), service);
        let mut connection = pin!(connection);
        let mut is_ending = false;
        let ended = poll_fn(|cx| {
            loop {
                if !is_ending && slot.is_ending() {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                let polled = connection.as_mut().poll(cx);
                // Shutdown may have begun between the check above and the poll's registration of its waker.
                if polled.is_ready() || is_ending || !slot.is_ending() {
                    return polled;
                }
            }
        });
        let ended = ended.await;
        let last_had_body = shared.3.load(Ordering::Relaxed);
        let end = if ended.is_err() || last_had_body && !is_ending { End::MaybeUnread } else { End::AllRead };
        if let Err(error) = ended {
            log_limited!(DEBUG, client.peer, %error, "connection closed with an error");
        }
        end
    }
}

/// Bytes that a client may still be sending when its connection ends.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// None: the last request was read completely.
    AllRead,
    /// The rest of a head that was too large or invalid, or of an unread body.
    MaybeUnread,
}

/// Counts bytes read of a request head, and the HTTP library's read buffer. Reads in small parts, or the
/// library would keep a buffer as large as one read.
struct HeadReader<I> {
    io: I,
    slot: Arc<Slot>,
    /// Complete heads plus their responses: odd while a request is served.
    heads: Arc<AtomicUsize>,
    /// Their number at the last read.
    known: usize,
    /// Bytes read since then, if no request is served.
    bytes: usize,
}

impl<I: AsyncRead + Unpin> AsyncRead for HeadReader<I> {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let heads = this.heads.load(Ordering::Relaxed);
        if heads != this.known {
            (this.known, this.bytes) = (heads, 0);
        }
        let (spare, before) = (buffer.remaining(), buffer.filled().len());
        let polled = if spare <= READ_BYTES {
            Pin::new(&mut this.io).poll_read(cx, buffer)
        } else {
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(READ_BYTES));
            let polled = Pin::new(&mut this.io).poll_read(cx, &mut part);
            let read = part.filled().len();
            buffer.advance(read);
            polled
        };
        if heads.is_multiple_of(2) {
            this.bytes += buffer.filled().len() - before;
        }
        if polled.is_pending()
            && let Err(too_much) =
                this.slot.hold(Part::Buffers, this.bytes + spare.saturating_sub(2 * READ_BYTES))
        {
            this.slot.too_much();
            return Poll::Ready(Err(io::Error::other(too_much)));
        }
        polled
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for HeadReader<I> {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    #[inline]
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that misreads the refusal reports a protocol error instead.
    #[test]
    fn the_length_of_the_refusal_is_right() {
        let text = std::str::from_utf8(REFUSAL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{}", body.len());
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["status"], 503);
    }
}

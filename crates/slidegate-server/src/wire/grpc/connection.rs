//! One HTTP/2 connection and its bounds.
//!
//! Uses hyper directly instead of tonic's server, which spawns a task per call and has no setting for that or
//! for the send buffer. Here all calls of a connection run in its task: moving each to another thread costs
//! more than the decision, and a proxy has one connection per thread.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, Stream};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::frame::MAX_FRAME_BYTES;
use super::header_blocks::{Authority, HeaderBlocks};
use super::incomplete::IncompleteCalls;
use super::received::{ReadTurn, Received};
use super::reflection::MAX_CALLS;
use super::services::{ConnectionCalls, GrpcServices};
use super::unread::{CountedBody, UnreadResponses};
use crate::listener::{Connection, Slot};

/// Maximum concurrent calls of one connection: Envoy's own default. Clients queue further ones.
const MAX_STREAMS: u32 = 1024;
/// Maximum header list of a call, uncompressed. Larger than any rewritten block may become; blocks that pass
/// unread take at most a hundred bytes of memory for each of theirs.
const MAX_HEADER_LIST_BYTES: u32 = 256 * 1024;
/// Flow-control windows: one message for a call, several for a connection.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Maximum bytes buffered per call for a client that does not read: larger than any response except those of
/// reflection, which are sent in parts.
const MAX_SEND_BYTES: usize = 16 * 1024;
/// Maximum pending calls that the client has reset, against rapid reset attacks (CVE-2023-44487). A proxy
/// resets calls of clients that have gone, so such a client must not end the connection: a [`ReadTurn`] has
/// fewer frames, and after each turn none is pending.
const MAX_RESETS: usize = 1024;
/// Maximum time for completed calls before other connections have their turn, and calls between two clock
/// reads.
const MAX_TURN: Duration = Duration::from_micros(500);
const CALLS_PER_CLOCK_READ: u32 = 16;
/// A silent client is pinged after this time and disconnected if it does not reply in time.
const PING_AFTER: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Why a connection failed.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// A protocol violation or a socket error.
    Http2(hyper::Error),
    /// The client granted no room for a response for 10 to 20 seconds.
    Unread,
    /// The client sent too many frames that belong to no call.
    Flooded,
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http2(error) => error.fmt(f),
            Self::Unread => f.write_str("the client grants no room for a response"),
            Self::Flooded => f.write_str("the client sends too many frames that belong to no call"),
        }
    }
}

impl std::error::Error for ConnectionError {}

/// Serves one connection, given as its two halves, until either side closes it. When `stop` completes, the
/// connection drains: it sends GOAWAY and completes open calls.
///
/// # Errors
/// The connection failed.
pub(super) async fn serve_connection<R, W>(
    (sent, to_client): (R, W),
    services: Arc<GrpcServices>,
    (client, slot): (Connection, Arc<Slot>),
    stop: impl Future<Output = ()>,
) -> Result<(), ConnectionError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let mut unread = UnreadResponses::default();
    let waiting = unread.waiting();
    let calls = ConnectionCalls {
        incomplete: Arc::new(IncompleteCalls::new(slot)),
        reflections: Arc::new(Semaphore::new(MAX_CALLS)),
    };
    let turn = Arc::new(ReadTurn::default());
    let authority = if client.peer.is_none() { Authority::Replaced } else { Authority::Kept };
    let received = HeaderBlocks::new(Received::new(sent, Arc::clone(&turn)), authority);
    let stream = tokio::io::join(received, to_client);
    let answer = hyper::service::service_fn(move |request| {
        let (services, waiting) = (Arc::clone(&services), Arc::clone(&waiting));
        let calls = calls.clone();
        async move {
            let response = services.call(request, client, calls).await;
            Ok::<_, Infallible>(response.map(|body| CountedBody::new(body, waiting)))
        }
    });
    let started = StartedCalls::default();
    let connection = bounded(&started).serve_connection(TokioIo::new(stream), answer);
    let (mut connection, mut stop) = (pin!(connection), pin!(stop));
    let mut calls = FuturesUnordered::new();
    let mut is_stopping = false;
    poll_fn(|cx| {
        turn.begin();
        if !is_stopping && stop.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        // Calls left from the last turn come first, or newly read ones would pile up.
        if !run(&mut calls, cx) {
            return Poll::Pending;
        }
        // Reads, which starts calls. They wake the task, and the next poll writes their responses.
        let ended = connection.as_mut().poll(cx);
        started.move_to(&calls);
        run(&mut calls, cx);
        match ended {
            Poll::Ready(_) if turn.is_flooded() => Poll::Ready(Err(ConnectionError::Flooded)),
            Poll::Ready(ended) => Poll::Ready(ended.map_err(ConnectionError::Http2)),
            Poll::Pending => unread.poll_overdue(cx).map(|()| Err(ConnectionError::Unread)),
        }
    })
    .await
}

/// HTTP/2 with bounds. Calls become futures that are started.
fn bounded(started: &StartedCalls) -> http2::Builder<StartedCalls> {
    let mut http2 = http2::Builder::new(started.clone());
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(MAX_SEND_BYTES)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIMEOUT)
        // No gRPC client reads it.
        .auto_date_header(false);
    http2
}

/// Polls woken calls for a bounded time. Returns whether all were polled; if not, wakes the task.
fn run(calls: &mut FuturesUnordered<BoxFuture<'static, ()>>, cx: &mut Context<'_>) -> bool {
    let (mut completed, mut started) = (0_u32, None);
    while let Poll::Ready(Some(())) = Pin::new(&mut *calls).poll_next(cx) {
        completed += 1;
        if completed.is_multiple_of(CALLS_PER_CLOCK_READ) {
            let now = Instant::now();
            if now.duration_since(*started.get_or_insert(now)) >= MAX_TURN {
                cx.waker().wake_by_ref();
                return false;
            }
        }
    }
    true
}

/// Started calls that the connection's task has not yet taken over.
#[derive(Clone, Default)]
struct StartedCalls(Arc<Mutex<Vec<BoxFuture<'static, ()>>>>);

impl StartedCalls {
    fn move_to(&self, calls: &FuturesUnordered<BoxFuture<'static, ()>>) {
        let mut started = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        started.drain(..).for_each(|call| calls.push(call));
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StartedCalls {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

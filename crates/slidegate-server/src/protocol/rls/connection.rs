//! One HTTP/2 connection and its bounds.
//!
//! Driven by hyper directly: tonic's own server wraps every call in layers that this service does not use. All calls of a
//! connection run in its one task, since handing each to another thread costs more than the decision; a proxy has a
//! connection for each of its threads.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::service::{Boxed, Services};
use crate::access::Connection;

/// Most calls at once on one connection. Envoy's own default is as large; a client waits with more.
const MAX_STREAMS: u32 = 1024;
/// Largest head of a call, uncompressed: a path, a few fields of gRPC and of tracing.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Largest frame, the least that HTTP/2 allows as a maximum (RFC 9113, 4.2): messages are smaller.
pub(super) const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// What a client may send before it is read: on a call as much as a message may have, on a connection some of them.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// What is kept of answers that a client does not read, on each call.
const MAX_SEND_BYTES: usize = 64 * 1024;
/// Calls that a client may open and reset before it has to wait, against floods of resets (CVE-2023-44487).
const MAX_RESETS: usize = 64;
/// A client that was silent for this long is asked whether it lives, and cut off if it does not say so in time.
const PING_AFTER: Duration = Duration::from_secs(60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves one connection until either side ends it. After `stop` completes, the client is told to begin no more calls, and
/// those that have begun are finished.
///
/// # Errors
/// What ended it other than either side's will.
pub(super) async fn serve<I>(
    stream: I,
    services: Arc<Services>,
    client: Connection,
    stop: impl Future<Output = ()>,
) -> Result<(), hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = hyper::service::service_fn(move |request| {
        let services = Arc::clone(&services);
        async move { Ok::<_, Infallible>(services.call(request, client).await) }
    });
    let begun = Begun::default();
    let connection = http2::Builder::new(begun.clone())
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
        // A field that no gRPC client reads.
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), answer);
    let (mut connection, mut stop) = (pin!(connection), pin!(stop));
    let mut calls = FuturesUnordered::new();
    let mut is_stopping = false;
    poll_fn(|cx| {
        if !is_stopping && stop.as_mut().poll(cx).is_ready() {
            is_stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        // Reads what has come, which begins calls; what they answer is written at the next turn, which they ask for.
        let ended = connection.as_mut().poll(cx);
        begun.take_into(&calls);
        run(&mut calls, cx);
        ended
    })
    .await
}

/// Lets every call that can go on do so.
fn run(calls: &mut FuturesUnordered<Boxed<'static, ()>>, cx: &mut Context<'_>) {
    while let Poll::Ready(Some(())) = Pin::new(&mut *calls).poll_next(cx) {}
}

/// Calls that the connection has begun and that wait to be taken into its task.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<Boxed<'static, ()>>>>);

impl Begun {
    fn take_into(&self, calls: &FuturesUnordered<Boxed<'static, ()>>) {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        begun.drain(..).for_each(|call| calls.push(call));
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Begun {
    fn execute(&self, call: F) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::pin(call));
    }
}

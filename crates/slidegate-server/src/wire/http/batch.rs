//! `POST /v1/check/batch`: many requests, decided one after another.
//!
//! A batch under many policies may take seconds and reply with hundreds of megabytes. So it is
//! decided in short turns, and what does not fit into one part of the reply is decided only as the
//! client reads.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request as HttpRequest, header};
use axum::response::{IntoResponse, Response as HttpResponse};
use futures_util::stream::unfold;
use slidegate::verb::Verb;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::answer::Batch;
use super::idempotency;
use super::reply::{JSON, call, ok, undecided};
use super::request::{BatchBody, MAX_REQUESTS, RequestBody};
use crate::engine::App;
use crate::wire::fields::NO_STORE;
use crate::wire::json_body;
use crate::wire::problem::Problem;

/// Maximum body of a batch: it is parsed in one step, in less than a millisecond.
const MAX_BODY: usize = 256 * 1024;
/// A reply of at least this size goes out in parts.
const PART_BYTES: usize = 64 * 1024;
/// Time after which a batch lets others be served.
const MAX_TURN: Duration = Duration::from_micros(500);

/// Parts of a reply. An error ends the reply early.
type Parts = mpsc::Sender<Result<Bytes, io::Error>>;

/// Decides requests one after another, in order. If one is invalid, none is decided.
pub(super) async fn check_batch(
    State(app): State<Arc<App>>,
    request: HttpRequest<Body>,
) -> Result<HttpResponse, Problem> {
    let (head, body) = request.into_parts();
    idempotency::none(&head.headers)?;
    let body = json_body::read(body, MAX_BODY).await?;
    let (parts, mut written) = mpsc::channel(1);
    let mut deciding = Box::pin(decide(app, head.headers, body, parts.clone()));
    let first = tokio::select! {
        biased;
        Some(first) = written.recv() => first,
        decided = &mut deciding => {
            let last = decided?;
            // Perhaps a part has been written without a pause.
            let first = written.try_recv().ok().and_then(Result::ok).unwrap_or_default();
            return Ok(ok([first, last].concat()));
        }
    };
    tokio::spawn(async move {
        let last = deciding.await.map_err(|problem| io::Error::other(problem.detail().to_owned()));
        // If the client is gone, nobody reads it.
        let _ = parts.send(last).await;
    });
    Ok(in_parts(first, written))
}

/// A reply whose length is not known yet.
fn in_parts(
    first: Result<Bytes, io::Error>,
    written: mpsc::Receiver<Result<Bytes, io::Error>>,
) -> HttpResponse {
    let parts = unfold((Some(first), written), async |(first, mut written)| {
        let part = match first {
            Some(first) => first,
            None => written.recv().await?,
        };
        Some((part, (None, written)))
    });
    ([(header::CONTENT_TYPE, JSON), (header::CACHE_CONTROL, NO_STORE)], Body::from_stream(parts))
        .into_response()
}

/// Decides a batch and writes the decisions. Returns the last part.
async fn decide(app: Arc<App>, headers: HeaderMap, body: Bytes, parts: Parts) -> Result<Bytes, Problem> {
    let call = call(&app, &headers);
    let batch: BatchBody<'_> = json_body::parse(&body)?;
    let count = batch.requests.len();
    if count > MAX_REQUESTS {
        let detail = format!("the batch has {count} requests; send at most {MAX_REQUESTS}");
        return Err(Problem::field("requests", detail));
    }
    let read = |(at, ask)| RequestBody::request(ask, &app).map_err(|problem: Problem| problem.in_batch(at));
    let requests = batch.requests.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut reply = Batch::default();
    let mut turn = Instant::now();
    for (at, request) in requests.iter().enumerate() {
        if turn.elapsed() >= MAX_TURN {
            yield_now().await;
            turn = Instant::now();
        }
        let decisions = call.apply(Some(Verb::Check), std::slice::from_ref(request), None).await;
        if let Some(error) = decisions.error() {
            return Err(undecided(&error).in_batch(at));
        }
        reply.push(&decisions);
        if reply.len() >= PART_BYTES && parts.send(Ok(reply.take_part().into())).await.is_err() {
            // The client is gone.
            return Ok(Bytes::new());
        }
    }
    Ok(reply.end().into())
}

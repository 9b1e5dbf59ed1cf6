//! HTTP: decisions as JSON under `/v1`, with the standard response headers.
//!
//! `openapi.json` beside this file describes every route; a test holds the two together.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Request as HttpRequest, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde_json::json;
use slidegate::{Decisions, Verb};

use crate::front::Front;
use crate::observe::Door;
use crate::store;
use answer::Answer;
use body::{Ask, Batch, MAX_BATCH, MAX_BATCH_BODY, MAX_BODY};

pub(crate) use body::{parse as parse_body, read as read_body};
pub(crate) use problem::Problem;

mod answer;
mod body;
mod problem;

type Shared = State<Arc<Front>>;
type Answered = Result<Response, Problem>;

/// Every path and what it takes.
fn table() -> [(&'static str, MethodRouter<Arc<Front>>); 9] {
    [
        ("/v1/check", get(check_by_query).post(check)),
        ("/v1/check/batch", post(check_batch)),
        ("/v1/peek", post(peek)),
        ("/v1/refund", post(refund)),
        ("/v1/penalize", post(penalize)),
        ("/v1/reset", post(reset)),
        ("/healthz", get(healthz)),
        ("/readyz", get(readyz)),
        ("/openapi.json", get(openapi)),
    ]
}

/// The routes over a front, beside others on the same listener, whose paths are told to who looks for one.
pub(crate) fn routes(front: Arc<Front>, others: Router, paths: &'static [&'static str]) -> Router {
    table()
        .into_iter()
        .fold(Router::new(), |router, (path, methods)| router.route(path, methods))
        .with_state(front)
        .merge(others)
        .merge(crate::dashboard::routes())
        .fallback(move |uri| unknown_path(uri, paths))
        .method_not_allowed_fallback(wrong_method)
}

async fn check(State(front): Shared, request: HttpRequest<Body>) -> Answered {
    by_body(&front, Verb::Check, request).await
}

async fn peek(State(front): Shared, request: HttpRequest<Body>) -> Answered {
    by_body(&front, Verb::Peek, request).await
}

async fn refund(State(front): Shared, request: HttpRequest<Body>) -> Answered {
    by_body(&front, Verb::Refund, request).await
}

async fn penalize(State(front): Shared, request: HttpRequest<Body>) -> Answered {
    by_body(&front, Verb::Penalize, request).await
}

async fn check_by_query(State(front): Shared, uri: Uri) -> Answered {
    let start = front.observer().start();
    let ask = Ask::from_query(uri.query().unwrap_or_default())?;
    let request = ask.request(&front)?;
    let response = respond(&front, Verb::Check, &front.decide(Door::Http, Verb::Check, &request).await);
    front.observer().decided(Door::Http, start, 1);
    Ok(response)
}

async fn by_body(front: &Front, verb: Verb, request: HttpRequest<Body>) -> Answered {
    let bytes = body::read(request.into_body(), MAX_BODY).await?;
    let start = front.observer().start();
    let ask: Ask<'_> = body::parse(&bytes)?;
    let request = ask.request(front)?;
    let response = respond(front, verb, &front.decide(Door::Http, verb, &request).await);
    front.observer().decided(Door::Http, start, 1);
    Ok(response)
}

/// 429 for a check that is denied, 200 for every other answer: a look that finds no room has done its work. Only a
/// check is a request that a client may be told about in header fields.
fn respond(front: &Front, verb: Verb, decisions: &Decisions<'_>) -> Response {
    let denied = verb == Verb::Check && decisions.is_denied();
    let (status, media_type) =
        if denied { (StatusCode::TOO_MANY_REQUESTS, problem::MEDIA_TYPE) } else { (StatusCode::OK, JSON) };
    let mut response = Response::new(Body::from(problem::json(&Answer::new(decisions, front.absence()))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, media_type);
    headers.insert(header::CACHE_CONTROL, NO_STORE);
    if verb == Verb::Check {
        for (name, value) in front.headers().headers(decisions) {
            let value =
                HeaderValue::try_from(value).expect("names of policies and numbers are safe in headers");
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    response
}

/// Requests decided one after the other; the answers stand in their order. All must be readable, or none is decided.
async fn check_batch(State(front): Shared, request: HttpRequest<Body>) -> Answered {
    let bytes = body::read(request.into_body(), MAX_BATCH_BODY).await?;
    let start = front.observer().start();
    let batch: Batch<'_> = body::parse(&bytes)?;
    if batch.requests.len() > MAX_BATCH {
        let detail = format!("the batch has {} requests; send at most {MAX_BATCH}", batch.requests.len());
        return Err(Problem::field("requests", detail));
    }
    let read = |(at, ask)| Ask::request(ask, &front).map_err(|problem: Problem| problem.in_batch(at));
    let requests = batch.requests.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut decisions = Vec::with_capacity(requests.len());
    for request in &requests {
        decisions.push(front.decide(Door::Http, Verb::Check, request).await);
    }
    let answers: Vec<_> = decisions.iter().map(|one| Answer::new(one, front.absence())).collect();
    let response = ok(problem::json(&json!({ "decisions": answers })));
    front.observer().decided(Door::Http, start, u64::try_from(answers.len()).unwrap_or(u64::MAX));
    Ok(response)
}

async fn reset(State(front): Shared, request: HttpRequest<Body>) -> Answered {
    let bytes = body::read(request.into_body(), MAX_BODY).await?;
    let ask: Ask<'_> = body::parse(&bytes)?;
    let request = ask.request(&front)?;
    let existed = front.reset(&request).await.map_err(|error| {
        let detail = format!("{error}; the keys may be forgotten or not, so send it again");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    Ok(ok(problem::json(&json!({ "existed": existed }))))
}

/// The process lives.
async fn healthz() -> Response {
    ok(problem::json(&json!({ "status": "ok" })))
}

/// New requests may come: not while the service is shutting down. They may while a shared store is away, since each
/// policy has its fallback: instances that left the load balancer one and all would limit nothing.
async fn readyz(State(front): Shared) -> Response {
    let stats = front.stats();
    let ready = front.is_ready();
    let body = json!({
        "status": if ready { "ready" } else { "shutting down" },
        "keys": stats.keys,
        "max_keys": stats.max_keys,
        "dropped_keys": stats.dropped,
        "degraded": front.shared().is_some_and(store::Shared::is_degraded),
        "store": front.shared().map_or_else(|| json!({ "kind": "memory" }), store::Shared::state),
    });
    let mut response = ok(problem::json(&body));
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

async fn openapi() -> Response {
    ok(include_bytes!("http/openapi.json").to_vec())
}

async fn unknown_path(uri: Uri, others: &[&str]) -> Problem {
    let own = table();
    let paths: Vec<_> = own.iter().map(|(path, _)| *path).chain(others.iter().copied()).collect();
    let detail = format!("there is no `{}`; the paths are {}", uri.path().escape_debug(), paths.join(", "));
    Problem::new(StatusCode::NOT_FOUND, detail)
}

async fn wrong_method(request: HttpRequest<Body>) -> Problem {
    let detail = format!(
        "{} does not take {}; the `Allow` header says what it takes",
        request.uri().path().escape_debug(),
        request.method()
    );
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// A decision is true once: no cache may keep it.
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

fn ok(body: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, JSON), (header::CACHE_CONTROL, NO_STORE)], body).into_response()
}

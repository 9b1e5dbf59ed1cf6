//! The HTTP API: decisions as JSON under `/v1`, with the standard response headers.
//!
//! `http/openapi.json` describes every route. A test writes it from `http/openapi.rs` and the structs of bodies and
//! responses, and another compares it with the routes.

use std::future::ready;
use std::slice;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request as HttpRequest, StatusCode, Uri, header};
use axum::response::Response as HttpResponse;
use axum::routing::{get, post};
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture};
use http_body_util::{Either, Full};
use reply::{AppAnswer, call, ok, respond};
use request::{MAX_BODY, RequestBody};
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::store::MemoryStats;
use slidegate::verb::Verb;

use crate::access::Action;
use crate::audit;
use crate::caller::Protocol;
use crate::engine::App;
use crate::engine::StoreState;
use crate::listener::{Connection, SharedRoutes, TrackedBody};
use crate::wire::json_body;
use crate::wire::problem::{self, Problem};
use crate::wire::routes::Routes;

mod acquire;
mod answer;
mod batch;
mod cost;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod holds;
mod idempotency;
#[cfg(test)]
mod openapi;
mod reply;
mod request;
mod text;

/// A complete response, or the router's.
pub(super) type AnyResponse = HttpResponse<Either<Full<Bytes>, Body>>;

/// A request that changes or reads the usage of keys.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operation {
    One(Verb),
    Batch,
    Acquire,
    Reserve,
    Settle,
    Extend,
    Cancel,
    Reset,
}

/// The paths of the operations, the most frequent first.
const OPERATIONS: [(&str, Operation); 11] = [
    ("/v1/check", Operation::One(Verb::Check)),
    ("/v1/reserve", Operation::Reserve),
    ("/v1/settle", Operation::Settle),
    ("/v1/extend", Operation::Extend),
    ("/v1/cancel", Operation::Cancel),
    ("/v1/acquire", Operation::Acquire),
    ("/v1/peek", Operation::One(Verb::Peek)),
    (BATCH, Operation::Batch),
    ("/v1/refund", Operation::One(Verb::Refund)),
    ("/v1/penalize", Operation::One(Verb::Penalize)),
    ("/v1/reset", Operation::Reset),
];

const BATCH: &str = "/v1/check/batch";

impl Operation {
    pub(super) fn of(path: &str) -> Option<Self> {
        OPERATIONS.iter().find(|(of, _)| *of == path).map(|(_, operation)| *operation)
    }

    fn action(self) -> Action {
        match self {
            Self::One(Verb::Refund | Verb::Penalize) | Self::Reset => Action::Adjust,
            _ => Action::Decide,
        }
    }

    /// The methods, as in the field `Allow`.
    fn methods(self) -> &'static str {
        if matches!(self, Self::One(Verb::Check)) { "GET,HEAD,POST" } else { "POST" }
    }
}

/// The other routes, and `others` on the same listener. `direct_paths` are served before the router.
pub(super) fn routes(app: Arc<App>, others: Routes, direct_paths: &[&'static str]) -> Router {
    // Without access control: they reveal nothing about limits, keys or clients.
    let open = [("/healthz", get(healthz)), ("/readyz", get(readyz)), ("/openapi.json", get(openapi))];
    let batch = Router::new().route(BATCH, post(batch::check_batch)).with_state(Arc::clone(&app));
    let (router, more) = Routes::over(app, open).and(others).into_parts();
    let paths = OPERATIONS.iter().map(|(path, _)| *path).chain(more).chain(direct_paths.iter().copied());
    let paths: Arc<str> = paths.collect::<Vec<_>>().join(", ").into();
    router
        .merge(batch)
        .fallback(async move |uri: Uri| {
            let detail = format!("unknown path `{}`: must be one of {paths}", uri.path().escape_debug());
            Problem::new(StatusCode::NOT_FOUND, detail)
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Problem::wrong_method(&uri, &method))
}

/// Performs an operation on the connection's worker, except batches, which take long. Counts malformed requests.
pub(super) fn perform(
    app: &App,
    shared: &SharedRoutes,
    operation: Operation,
    client: Connection,
    request: HttpRequest<TrackedBody>,
) -> impl Future<Output = AnyResponse> {
    let performed = match (refusal(app, operation, client, &request), operation) {
        (Some(refusal), _) => future::Either::Right(ready(refusal).boxed()),
        (None, Operation::One(verb)) => {
            future::Either::Left(decide_one(app, verb, client, request).map(complete))
        }
        (None, Operation::Batch) => {
            let shared = shared.clone();
            future::Either::Right(async move { shared.call(request).await.map(Either::Right) }.boxed())
        }
        (None, Operation::Acquire) => boxed(acquire::acquire(app, client, request)),
        (None, Operation::Reserve) => boxed(holds::reserve(app, client, request)),
        (None, Operation::Settle) => boxed(holds::settle(app, request)),
        (None, Operation::Extend) => boxed(holds::extend(app, request)),
        (None, Operation::Cancel) => boxed(holds::cancel(app, request)),
        (None, Operation::Reset) => boxed(reset(app, client, request)),
    };
    performed.inspect(|response| app.observer().malformed.refused(Protocol::Http, response.status()))
}

/// Less frequent than checks, and larger.
fn boxed<'a, Check>(
    performed: impl Future<Output = AppAnswer> + Send + 'a,
) -> future::Either<Check, BoxFuture<'a, AnyResponse>> {
    future::Either::Right(performed.map(complete).boxed())
}

/// The response to a request with another method, or of a client that may not perform the operation.
fn refusal(
    app: &App,
    operation: Operation,
    client: Connection,
    request: &HttpRequest<TrackedBody>,
) -> Option<AnyResponse> {
    let (method, uri) = (request.method(), request.uri());
    if !operation.methods().split(',').any(|allowed| allowed == method.as_str()) {
        let mut response = complete(Err(Problem::wrong_method(uri, method)));
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(operation.methods()));
        return Some(response);
    }
    let permission = app.access.decision(method, request.headers(), operation.action(), client);
    permission.err().map(|problem| complete(Err(problem)))
}

fn complete(performed: AppAnswer) -> AnyResponse {
    performed.unwrap_or_else(Problem::response).map(Either::Left)
}

/// Decides the request in the body of a `POST`, or else in the query. Not `async` itself, as its future would contain
/// the whole request. The response reuses the memory of the request's headers.
fn decide_one(
    app: &App,
    verb: Verb,
    connection: Connection,
    request: HttpRequest<TrackedBody>,
) -> impl Future<Output = AppAnswer> {
    let (Parts { method, uri, headers, .. }, body) = request.into_parts();
    async move {
        let bytes = if method == Method::POST { Some(json_body::read(body, MAX_BODY).await?) } else { None };
        let call = call(app, &headers);
        let id = idempotency::id(verb, &headers)?;
        let ask: RequestBody<'_> = match &bytes {
            Some(bytes) => json_body::parse(bytes)?,
            None => RequestBody::from_query(uri.query().unwrap_or_default())?,
        };
        let request = ask.request(app)?;
        if verb == Verb::Check
            && let Some(wait) = acquire::preferred_wait(&headers)
        {
            // Boxed, as it is larger than all other checks.
            return Box::pin(acquire::check_within(app, &call, (&request, headers), wait, connection)).await;
        }
        let decisions = call.apply(Some(verb), slice::from_ref(&request), id).await;
        if matches!(verb, Verb::Refund | Verb::Penalize) {
            let by = app.access.caller(&headers, connection);
            audit::moved(&by, verb, &decisions, |policy, key| app.observer().shown(policy, key));
        }
        respond(app, verb, &decisions, headers)
    }
}

async fn reset(app: &App, client: Connection, request: HttpRequest<TrackedBody>) -> AppAnswer {
    idempotency::none(request.headers())?;
    let by = app.access.caller(request.headers(), client);
    let bytes = json_body::read(request.into_body(), MAX_BODY).await?;
    let ask: RequestBody<'_> = json_body::parse(&bytes)?;
    let request = ask.request(app)?;
    let existed = app.reset_for(&by, &request).await.map_err(|error| {
        let detail = format!("{error}; the keys may be forgotten or not, so send it again");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    Ok(ok(problem::json(&Reset { existed })))
}

#[derive(Serialize, JsonSchema)]
struct Reset {
    /// Whether anything counted on one of the keys.
    existed: bool,
}

/// Liveness.
async fn healthz() -> HttpResponse {
    problem::ok(&HealthBody { status: "ok" })
}

#[derive(Serialize, JsonSchema)]
struct HealthBody {
    #[schemars(extend("const" = "ok"))]
    status: &'static str,
}

/// Readiness: see [`crate::engine::readiness`]. Addresses, errors and numbers are for those who may
/// read the status.
async fn readyz(State(app): State<Arc<App>>, request: HttpRequest<Body>) -> HttpResponse {
    let ready = app.readiness.is_ready();
    let connection = Connection::of(request.extensions());
    let may_read = app.access.may_read(request.headers(), request.uri(), connection);
    let details = may_read.then(|| {
        let MemoryStats { keys, max_keys, dropped: dropped_keys, bytes, max_bytes, .. } = app.store().stats();
        let store = app.store_state();
        Details { keys, max_keys, dropped_keys, memory_bytes: bytes, max_memory_bytes: max_bytes, store }
    });
    let status = if ready { "ready" } else { "shutting down" };
    let body = Ready { status, degraded: app.is_degraded(), reason: app.degradation(), details };
    drop(request);
    let mut response = problem::ok(&body);
    if !ready {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

#[derive(Serialize, JsonSchema)]
struct Ready {
    #[schemars(extend("enum" = ["ready", "shutting down"]))]
    status: &'static str,
    /// Whether a shared store is unreachable and policies use their fallbacks. The instance still accepts requests.
    degraded: bool,
    /// Why policies use their fallbacks, in words. Who may read the status also gets the other fields.
    reason: Option<&'static str>,
    #[serde(flatten)]
    details: Option<Details>,
}

#[derive(Serialize, JsonSchema)]
struct Details {
    keys: usize,
    max_keys: usize,
    /// Keys that a full store evicted while they still counted. Above 0, raise `store.memory.max_keys` or `max_bytes`.
    dropped_keys: u64,
    /// Bytes that the keys of the memory store take, as allocated.
    memory_bytes: usize,
    /// Maximum bytes of the memory store, if `store.memory.max_bytes` is set.
    max_memory_bytes: Option<usize>,
    store: StoreState,
}

async fn openapi() -> HttpResponse {
    ok(include_bytes!("http/openapi.json").to_vec())
}

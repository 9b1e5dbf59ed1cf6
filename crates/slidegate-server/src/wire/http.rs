//! The HTTP API: decisions as JSON under `/v1`, with the standard response headers.
//!
//! `http/openapi.json` describes every route. A test writes it from `http/openapi.rs` and the structs of bodies and
//! responses, and another compares it with the routes.

use axum::BoxError;
use std::slice;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{Method, Request as HttpRequest, StatusCode, Uri};
use axum::middleware::{from_fn_with_state, map_response_with_state};
use axum::response::Response as HttpResponse;
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use futures_util::FutureExt;
use http_body_util::Full;
use reply::{AppAnswer, AppState, call, ok, respond};
use request::{MAX_BODY, RequestBody};
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::store::MemoryStats;
use slidegate::verb::Verb;

use crate::access::{self, Action};
use crate::audit;
use crate::caller::Protocol;
use crate::engine::App;
use crate::engine::StoreState;
use crate::listener::{Connection, TrackedBody};
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

/// The path of a check, the most frequent request.
pub(super) const CHECK: &str = "/v1/check";

/// These routes and `others` on the same listener. `direct_paths` are served before the router.
pub(super) fn routes(app: Arc<App>, others: Routes, direct_paths: &[&'static str]) -> Router {
    let deciders = (Arc::clone(&app.access), Action::Decide);
    let adjusters = (Arc::clone(&app.access), Action::Adjust);
    let counting = Arc::clone(&app);
    let deciding = [
        (CHECK, verb_route(Verb::Check, MethodFilter::GET.or(MethodFilter::POST))),
        ("/v1/check/batch", post(batch::check_batch)),
        ("/v1/peek", verb_route(Verb::Peek, MethodFilter::POST)),
    ];
    let adjusting = [
        ("/v1/refund", verb_route(Verb::Refund, MethodFilter::POST)),
        ("/v1/penalize", verb_route(Verb::Penalize, MethodFilter::POST)),
        ("/v1/reset", post(reset)),
    ];
    // Without access control: they reveal nothing about limits, keys or clients.
    let open = [("/healthz", get(healthz)), ("/readyz", get(readyz)), ("/openapi.json", get(openapi))];
    let deciding =
        Routes::over(Arc::clone(&app), deciding.into_iter().chain(holds::routes()).chain([acquire::route()]))
            .behind(|router| router.route_layer(from_fn_with_state(deciders, access::may_act)))
            .behind(|router| router.layer(map_response_with_state(counting, count_refused)));
    let adjusting = Routes::over(Arc::clone(&app), adjusting)
        .behind(|router| router.route_layer(from_fn_with_state(adjusters, access::may_act)));
    let (router, mut paths) = deciding.and(adjusting).and(Routes::over(app, open)).and(others).into_parts();
    paths.extend(direct_paths);
    let paths: Arc<str> = paths.join(", ").into();
    router
        .fallback(async move |uri: Uri| {
            let detail = format!("unknown path `{}`: must be one of {paths}", uri.path().escape_debug());
            Problem::new(StatusCode::NOT_FOUND, detail)
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| Problem::wrong_method(&uri, &method))
}

/// Counts malformed requests, of the routes that decide.
async fn count_refused(State(app): AppState, response: HttpResponse) -> HttpResponse {
    app.observer().malformed.refused(Protocol::Http, response.status());
    response
}

/// A route that decides one request, with this verb and by these methods.
fn verb_route(verb: Verb, methods: MethodFilter) -> MethodRouter<Arc<App>> {
    on(methods, async move |State(app): AppState, request: HttpRequest<Body>| -> AppAnswer {
        let connection = Connection::of(request.extensions());
        decide_one(&app, verb, connection, request).await
    })
}

/// A check, by `GET` or `POST`.
pub(super) fn check(
    app: &App,
    client: Connection,
    request: HttpRequest<TrackedBody>,
) -> impl Future<Output = HttpResponse<Full<Bytes>>> {
    decide_one(app, Verb::Check, client, request).map(|decided| {
        decided.unwrap_or_else(|problem| {
            app.observer().malformed.refused(Protocol::Http, problem.status());
            problem.response()
        })
    })
}

/// Decides the request in the body of a `POST`, or else in the query. Not `async` itself, as its future would contain
/// the whole request. The response reuses the memory of the request's headers.
fn decide_one<I, O>(
    app: &App,
    verb: Verb,
    connection: Connection,
    request: HttpRequest<I>,
) -> impl Future<Output = Result<HttpResponse<O>, Problem>>
where
    I: hyper::body::Body<Data = Bytes, Error: Into<BoxError>>,
    O: From<Vec<u8>>,
{
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

async fn reset(State(app): AppState, request: HttpRequest<Body>) -> AppAnswer {
    idempotency::none(request.headers())?;
    let by = app.access.caller(request.headers(), Connection::of(request.extensions()));
    let bytes = json_body::read(request.into_body(), MAX_BODY).await?;
    let ask: RequestBody<'_> = json_body::parse(&bytes)?;
    let request = ask.request(&app)?;
    let existed = app.reset_for(&by, &request).await.map_err(|error| {
        let detail = format!("{error}; the keys may be forgotten or not, so send it again");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    Ok(problem::ok(&Reset { existed }))
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
async fn readyz(State(app): AppState, request: HttpRequest<Body>) -> HttpResponse {
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

//! The HTTP paths of envoyproxy/ratelimit: `/json`, `/healthcheck`, `/rlconfig` and `/stats`, with
//! its bodies and codes.
//!
//! `/json` accepts any method and returns 400 for every error, as envoyproxy/ratelimit does;
//! scripts rely on it.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use http_body_util::{BodyExt, Limited};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use serde_json::Deserializer;
use tokio::time::timeout;

use super::handler::{RateLimitHandler, has_refund, without_refunds};
use super::message::{Code, RateLimitRequest};
use super::{BODY_TIMEOUT, reflection};
use crate::access::Action;
use crate::caller::Protocol;
use crate::listener::Connection;
use crate::log_limit::log_limited;
use crate::wire::malformed::{Flaw, Handling};

/// Maximum body: parsing takes many times as much memory.
const MAX_BODY: usize = 64 * 1024;

type Route = (&'static str, MethodRouter<Arc<RateLimitHandler>>);

/// Paths of the HTTP port.
pub(crate) fn routes() -> [Route; 2] {
    [("/json", any(decide)), ("/healthcheck", get(healthcheck))]
}

/// The path of the running config, for operators.
pub(crate) fn config_routes() -> [Route; 1] {
    [("/rlconfig", get(rlconfig))]
}

/// The debug port's router. Every unknown path lists the known ones, as in envoyproxy/ratelimit.
pub(crate) fn debug_router(handler: Arc<RateLimitHandler>) -> Router {
    Router::new()
        .route("/rlconfig", get(rlconfig))
        .route("/stats", get(stats))
        .fallback(|| async {
            "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n"
        })
        .with_state(handler)
}

async fn decide(State(handler): State<Arc<RateLimitHandler>>, request: Request) -> Response {
    let app = &handler.app;
    let (head, body) = request.into_parts();
    let caller = app.observer().caller(Protocol::Grpc, &head.headers);
    let authorize =
        |action| app.access.decision(&head.method, &head.headers, action, Connection::of(&head.extensions));
    if let Err(problem) = authorize(Action::Decide) {
        return problem.into_response();
    }
    let refused = || {
        app.observer().malformed.record(Protocol::Grpc, Flaw::Invalid, Handling::Refused);
        bad_request()
    };
    let Some(mut call) = read(body).await else { return refused() };
    if has_refund(&call)
        && let Err(problem) = authorize(Action::Adjust)
        && !without_refunds(&mut call, app)
    {
        return problem.into_response();
    }
    let turn = handler.turn(&head.headers, Connection::of(&head.extensions));
    let mut response = match handler.answer(call, &caller, turn).await {
        Ok(response) => response,
        Err(status) => {
            log_limited!(DEBUG, None, %status, "rejected a call of /json");
            return if status.code() == tonic::Code::InvalidArgument { refused() } else { bad_request() };
        }
    };
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        // Only a denial because of the store has a body for the client.
        Code::OverLimit if !response.raw_body.is_empty() => StatusCode::SERVICE_UNAVAILABLE,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    response.raw_body.clear();
    let mut json = DynamicMessage::new(descriptor("RateLimitResponse"));
    json.transcode_from(&response).expect("it is this message");
    let json = serde_json::to_string(&json).expect("every message can be JSON");
    (status, [(header::CONTENT_TYPE, "application/json")], json).into_response()
}

fn bad_request() -> Response {
    (StatusCode::BAD_REQUEST, "Bad Request\n").into_response()
}

/// Reads a call; `None` if the body is malformed, too large or late.
async fn read(body: Body) -> Option<RateLimitRequest> {
    let body = timeout(BODY_TIMEOUT, Limited::new(body, MAX_BODY).collect());
    let bytes = body.await.ok()?.ok()?.to_bytes();
    let mut json = Deserializer::from_slice(&bytes);
    let call = DynamicMessage::deserialize(descriptor("RateLimitRequest"), &mut json).ok()?;
    json.end().ok()?;
    call.transcode_to().ok()
}

/// A message's descriptor, which maps JSON as defined by protocol buffers.
fn descriptor(name: &str) -> MessageDescriptor {
    static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
        DescriptorPool::decode(reflection::DESCRIPTORS).expect("the descriptors are a FileDescriptorSet")
    });
    let name = format!("envoy.service.ratelimit.v3.{name}");
    POOL.get_message_by_name(&name).expect("the service has this message")
}

async fn healthcheck(State(handler): State<Arc<RateLimitHandler>>) -> Response {
    if handler.app.readiness.is_ready() && handler.is_healthy() {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "").into_response()
    }
}

async fn rlconfig(State(handler): State<Arc<RateLimitHandler>>) -> String {
    let config = handler.files.as_ref().and_then(|files| files.live.current());
    config.map(|config| config.dump()).unwrap_or_default()
}

/// Statistics may contain request values, so they are only on the debug port.
async fn stats(State(handler): State<Arc<RateLimitHandler>>) -> String {
    handler.files.as_ref().map(|files| files.live.stats()).unwrap_or_default()
}

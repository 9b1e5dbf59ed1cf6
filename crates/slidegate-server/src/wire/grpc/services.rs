//! The gRPC services, and the routing of calls to them.
//!
//! `ShouldRateLimit` is matched first. Only reflection uses tonic's generated server, whose buffers
//! exceed the messages of the others.

use std::sync::Arc;

use futures_util::TryFutureExt;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use tokio::sync::Semaphore;
use tokio::task::unconstrained;
use tonic::body::Body;
use tonic::{Code, Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_server::Health;
use tonic_health::server::{HealthReporter, HealthService};
use tower::service_fn;

use super::codec::{grpc, unary};
use super::handler::{RateLimitHandler, has_refund, without_refunds};
use super::incomplete::{IncompleteCalls, message_of};
use super::message::RateLimitRequest;
use super::{MAX_MESSAGE_BYTES, MAX_OTHER_MESSAGE_BYTES, SERVICE_NAME, reflection};
use crate::access::{Access, Action};
use crate::caller::Protocol;
use crate::listener::Connection;
use crate::wire::malformed::{Flaw, Handling};

/// The path of the rate-limit call.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Names in the health service: the whole server, the name used by envoyproxy/ratelimit, and the
/// service.
const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// All gRPC services: rate limits, health and reflection.
#[allow(missing_debug_implementations)] // boxed closures have none
pub(super) struct GrpcServices {
    pub(super) handler: Arc<RateLimitHandler>,
    health: HealthService,
    health_reporter: HealthReporter,
    /// By path prefix.
    reflection: Vec<(&'static str, reflection::BoxService)>,
}

/// State shared by the calls of one connection.
#[derive(Debug, Clone)]
pub(super) struct ConnectionCalls {
    pub(super) incomplete: Arc<IncompleteCalls>,
    /// Permits for reflection calls.
    pub(super) reflections: Arc<Semaphore>,
}

impl GrpcServices {
    pub(super) fn new(handler: Arc<RateLimitHandler>) -> Self {
        let health_reporter = HealthReporter::new();
        let health = HealthService::from_health_reporter(health_reporter.clone());
        let reflection = reflection::services();
        Self { handler, health, health_reporter, reflection }
    }

    /// Handles one call of a connection.
    pub(super) async fn call(
        &self,
        request: HttpRequest<Incoming>,
        connection: Connection,
        calls: ConnectionCalls,
    ) -> HttpResponse<Body> {
        let path = request.uri().path();
        if path == SHOULD_RATE_LIMIT {
            let response = self.rate_limit(request, connection, &calls.incomplete).await;
            self.count_refused(&response);
            return response;
        }
        match path.strip_prefix("/grpc.health.v1.Health/") {
            // Boxed, or rate-limit calls would be as large as these.
            Some("Check") => {
                // It only takes a read lock. A client may make a thousand calls at once; without
                // `unconstrained`, calls beyond the task's tokio budget would wait for its next
                // poll.
                let check = |message| {
                    unconstrained(self.health.check(Request::new(message))).map_ok(Response::into_inner)
                };
                let request = message_of(request, &calls.incomplete);
                return Box::pin(unary(request, MAX_OTHER_MESSAGE_BYTES, check)).await;
            }
            Some("Watch") => {
                let watch = service_fn(|request: Request<HealthCheckRequest>| self.health.watch(request));
                let request = message_of(request, &calls.incomplete);
                return Box::pin(async {
                    grpc(MAX_OTHER_MESSAGE_BYTES).server_streaming(watch, request).await
                })
                .await;
            }
            _ => {}
        }
        match self.reflection.iter().find(|(beginning, _)| path.starts_with(beginning)) {
            Some((_, service)) => match calls.reflections.try_acquire_owned() {
                Ok(permit) => service(request).await.map(|body| reflection::hold(body, permit)),
                Err(_) => Status::resource_exhausted(reflection::TOO_MANY).into_http(),
            },
            None => {
                let message = format!("unknown method `{}`; call {SHOULD_RATE_LIMIT}", path.escape_debug());
                Status::unimplemented(message).into_http()
            }
        }
    }

    /// Handles a rate-limit call.
    async fn rate_limit(
        &self,
        request: HttpRequest<Incoming>,
        connection: Connection,
        calls: &Arc<IncompleteCalls>,
    ) -> HttpResponse<Body> {
        // Web pages can send other media types without a preflight; the gRPC specification requires
        // 415.
        let media_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if !media_type.is_some_and(|media_type| media_type.starts_with(b"application/grpc")) {
            let mut response = HttpResponse::new(Body::default());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let handler = &*self.handler;
        let app = &*handler.app;
        let mut presented = request.headers().get_all(header::AUTHORIZATION).iter();
        // Copied, because it would keep its read buffer alive.
        let authorization = presented.next().and_then(|one| HeaderValue::from_bytes(one.as_bytes()).ok());
        if presented.next().is_some() {
            return Status::unauthenticated("more than one `authorization`: send exactly one").into_http();
        }
        let authorization = authorization.as_ref();
        if let Err(status) = authorize(&app.access, authorization, Action::Decide, connection) {
            return status.into_http();
        }
        let caller = &app.observer().caller(Protocol::Grpc, request.headers());
        let turn = handler.turn(request.headers(), connection);
        let request = message_of(request, calls);
        let answer = async move |mut call: RateLimitRequest| {
            if has_refund(&call)
                && let Err(status) = authorize(&app.access, authorization, Action::Adjust, connection)
                && !without_refunds(&mut call, app)
            {
                return Err(status);
            }
            handler.answer(call, caller, turn).await
        };
        unary(request, MAX_MESSAGE_BYTES, |call| app.complete(turn.is_some(), answer(call))).await
    }

    /// Counts a malformed rate-limit call.
    fn count_refused(&self, response: &HttpResponse<Body>) {
        let malformed = &self.handler.app.observer().malformed;
        malformed.refused(Protocol::Grpc, response.status());
        // An error has no message, so its status is in the headers.
        let Some(status) = Status::from_header_map(response.headers()) else { return };
        let flaw = match status.code() {
            // Internal: cannot be decoded.
            Code::InvalidArgument | Code::Internal => Flaw::Invalid,
            Code::OutOfRange => Flaw::TooLarge,
            Code::DeadlineExceeded => Flaw::Late,
            Code::ResourceExhausted => Flaw::TooMany,
            _ => return,
        };
        malformed.record(Protocol::Grpc, flaw, Handling::Refused);
    }

    /// Sets the health status of all services.
    pub(super) async fn set_health(&self, is_serving: bool) {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in HEALTH_NAMES {
            self.health_reporter.set_service_status(name, status).await;
        }
    }

    /// Ends health watch streams. Set `NOT_SERVING` before.
    pub(super) async fn end_health(&self) {
        let mut reporter = self.health_reporter.clone();
        for name in HEALTH_NAMES {
            reporter.clear_service_status(name).await;
        }
    }
}

/// Whether a client may do this. `authorization` is the metadata of that name.
fn authorize(
    access: &Access,
    authorization: Option<&HeaderValue>,
    action: Action,
    connection: Connection,
) -> Result<(), Status> {
    access.call(authorization, action, connection).map_err(|problem| match problem.status() {
        StatusCode::FORBIDDEN => Status::permission_denied(problem.detail()),
        _ => Status::unauthenticated(problem.detail()),
    })
}

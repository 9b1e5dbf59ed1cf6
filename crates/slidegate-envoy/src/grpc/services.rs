//! The gRPC services and the routing of calls to them.
//!
//! `ShouldRateLimit` is matched first. Only reflection uses tonic's generated server, whose buffers
//! are larger than the messages of the others.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use futures_util::future::{BoxFuture, Either, FutureExt, Ready, ready};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::server::UnaryService;
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;

use super::codec::{rate_limit, unary};
use super::health::{HealthCalls, HealthMethod};
use super::incomplete::{IncompleteCalls, SharedMemory, message_of};
use super::{BoxService, reflection};
use crate::handler::{RateLimitHandler, has_refund};
use crate::host::{Action, Client, Host};
use crate::kuadrant::{self, CommitRequest, CommitResponse, ReserveRequest, ReserveResponse};
use crate::message::{CallMessage, EncodedResponse};

/// The path of the rate-limit call.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Names in the health service: the whole server, the name that envoyproxy/ratelimit uses, and the
/// services.
const HEALTH_NAMES: [&str; 4] = ["", "ratelimit", SERVICE_NAME, kuadrant::SERVICE_NAME];

/// Most header fields of a call. A call of Envoy has about ten.
const MAX_HEADER_FIELDS: usize = 32;

/// All gRPC services: rate limits, health and reflection.
#[allow(missing_debug_implementations)] // boxed closures have none
pub struct GrpcServices<H> {
    handler: Arc<RateLimitHandler<H>>,
    health: HealthCalls,
    /// By the prefix of their paths.
    reflection: Vec<(&'static str, BoxService)>,
    /// What incomplete calls hold beyond the share of their connection.
    pub(super) memory: Arc<SharedMemory>,
}

/// What the calls of one connection share.
#[derive(Debug, Clone)]
pub(super) struct ConnectionCalls {
    pub(super) incomplete: Arc<IncompleteCalls>,
    /// The calls of reflection that it may begin.
    pub(super) reflections: Arc<Semaphore>,
}

impl<H: Host> GrpcServices<H> {
    /// The services over a handler.
    pub fn new(handler: Arc<RateLimitHandler<H>>) -> Self {
        let health = HealthCalls::new(&HEALTH_NAMES);
        Self { handler, health, reflection: reflection::services(), memory: Arc::default() }
    }

    /// The handler of rate-limit calls.
    pub fn handler(&self) -> &RateLimitHandler<H> {
        &self.handler
    }

    /// Handles one call of a connection.
    pub(super) async fn call(
        &self,
        request: HttpRequest<Incoming>,
        client: Client,
        calls: ConnectionCalls,
    ) -> HttpResponse<Body> {
        let fields = request.headers().len();
        if fields > MAX_HEADER_FIELDS {
            let detail = format!("the call has {fields} header fields: must be at most {MAX_HEADER_FIELDS}");
            return Status::resource_exhausted(detail).into_http();
        }
        if let Some(method) = Method::of(request.uri().path()) {
            return self.rate_limit(method, request, client, &calls.incomplete).await;
        }
        if let Some(method) = HealthMethod::of(request.uri().path()) {
            // Boxed, because the rate-limit calls would otherwise be as large as these.
            return Box::pin(self.health.call(method, message_of(request, &calls.incomplete))).await;
        }
        let path = request.uri().path();
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

    /// Handles a call of a rate-limit service.
    async fn rate_limit(
        &self,
        method: Method,
        request: HttpRequest<Incoming>,
        client: Client,
        calls: &Arc<IncompleteCalls>,
    ) -> HttpResponse<Body> {
        // Web pages can send other media types without a preflight; the gRPC specification
        // requires 415.
        let media_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
        if !media_type.is_some_and(|media_type| media_type.starts_with(b"application/grpc")) {
            let mut response = HttpResponse::new(Body::default());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let handler = &*self.handler;
        let host = handler.host();
        let mut presented = request.headers().get_all(header::AUTHORIZATION).iter();
        // Copied, as it would keep the buffer that it was read into.
        let authorization = presented.next().and_then(|one| HeaderValue::from_bytes(one.as_bytes()).ok());
        if presented.next().is_some() {
            return Status::unauthenticated("more than one `authorization`: send exactly one").into_http();
        }
        if let Err(status) = host.authorize(authorization.as_ref(), Action::Decide, client) {
            return status.into_http();
        }
        let caller = &host.caller(request.headers());
        let request = message_of(request, calls);
        let call = RateLimitCall { handler, caller, authorization, client, method };
        match method {
            Method::ShouldRateLimit | Method::CheckRateLimit | Method::Report => {
                rate_limit(call, request).await
            }
            Method::Reserve => unary::<_, ReserveRequest>(call, request).await,
            Method::Commit => unary::<_, CommitRequest>(call, request).await,
        }
    }

    /// Sets the health status of all services.
    pub async fn set_health(&self, is_serving: bool) {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.health.set(status).await;
    }

    /// Ends the streams of clients that watch the health. Set `NOT_SERVING` before.
    pub async fn end_health(&self) {
        self.health.end().await;
    }
}

/// The calls of the rate-limit services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Envoy's.
    ShouldRateLimit,
    /// Those of Kuadrant.
    CheckRateLimit,
    Report,
    Reserve,
    Commit,
}

impl Method {
    /// The one of this path.
    fn of(path: &str) -> Option<Self> {
        if path == SHOULD_RATE_LIMIT {
            return Some(Self::ShouldRateLimit);
        }
        match path.strip_prefix('/')?.strip_prefix(kuadrant::SERVICE_NAME)? {
            "/CheckRateLimit" => Some(Self::CheckRateLimit),
            "/Report" => Some(Self::Report),
            "/Reserve" => Some(Self::Reserve),
            "/Commit" => Some(Self::Commit),
            _ => None,
        }
    }
}

/// A call, which tonic hands its decoded message.
struct RateLimitCall<'s, H: Host> {
    handler: &'s RateLimitHandler<H>,
    caller: &'s H::Caller,
    authorization: Option<HeaderValue>,
    client: Client,
    method: Method,
}

/// What a call returns.
type Answer<'s, M> = BoxFuture<'s, Result<Response<M>, Status>>;

impl<'s, H: Host> UnaryService<CallMessage> for RateLimitCall<'s, H> {
    type Response = EncodedResponse;
    type Future = Either<Ready<Result<Response<EncodedResponse>, Status>>, Answer<'s, EncodedResponse>>;

    fn call(&mut self, request: Request<CallMessage>) -> Self::Future {
        let Self { handler, caller, client, method, .. } = *self;
        if has_refund(request.get_ref())
            && let Err(status) = handler.host().authorize(self.authorization.as_ref(), Action::Adjust, client)
        {
            return Either::Left(ready(Err(status)));
        }
        let decide = async move {
            let message = request.get_ref();
            let response = match method {
                Method::CheckRateLimit => handler.check_rate_limit(message, caller).await,
                Method::Report => handler.report(message, caller).await,
                _ => handler.should_rate_limit(message, caller).await,
            };
            response.map(Response::new)
        };
        if handler.host().is_immediate() {
            // Not boxed, as the requests and decisions of a call are kilobytes.
            return Either::Left(ready(decide.now_or_never().expect("an immediate host does not wait")));
        }
        Either::Right(Box::pin(decide))
    }
}

impl<'s, H: Host> UnaryService<ReserveRequest> for RateLimitCall<'s, H> {
    type Response = ReserveResponse;
    type Future = Answer<'s, ReserveResponse>;

    fn call(&mut self, request: Request<ReserveRequest>) -> Self::Future {
        let Self { handler, caller, .. } = *self;
        Box::pin(async move { handler.reserve(request.into_inner(), caller).await.map(Response::new) })
    }
}

impl<'s, H: Host> UnaryService<CommitRequest> for RateLimitCall<'s, H> {
    type Response = CommitResponse;
    type Future = Answer<'s, CommitResponse>;

    fn call(&mut self, request: Request<CommitRequest>) -> Self::Future {
        let Self { handler, caller, .. } = *self;
        Box::pin(async move { handler.commit(request.into_inner(), caller).await.map(Response::new) })
    }
}

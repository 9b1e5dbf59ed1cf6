//! The gRPC services and the routing of calls to them.
//!
//! `ShouldRateLimit` is matched first and does not use tonic's generated server, whose buffers are
//! larger than the messages.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request as HttpRequest, Response as HttpResponse, StatusCode};
use tonic::body::Body;
use tonic::codec::BufferSettings;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use super::{BoxService, MAX_MESSAGE_BYTES, boxed, reflection};
use crate::handler::{RateLimitHandler, has_refund};
use crate::host::{Action, Client, Host};
use crate::timed_body::TimedBody;

/// Initial size of a call's buffers: most messages are smaller.
const BUFFER_BYTES: usize = 1024;
/// The path of the rate-limit call.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Names in the health service: the whole server, the name that envoyproxy/ratelimit uses, and the
/// service.
const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// All gRPC services: rate limits, health and reflection.
#[allow(missing_debug_implementations)] // boxed closures have none
pub struct GrpcServices<H> {
    handler: Arc<RateLimitHandler<H>>,
    reporter: HealthReporter,
    health: BoxService,
    /// By the prefix of their paths.
    reflection: Vec<(&'static str, BoxService)>,
}

impl<H: Host> GrpcServices<H> {
    /// The services over a handler.
    pub fn new(handler: Arc<RateLimitHandler<H>>) -> Self {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        Self {
            handler,
            reporter,
            health: boxed(health.max_decoding_message_size(MAX_MESSAGE_BYTES)),
            reflection: reflection::services(),
        }
    }

    /// The handler of rate-limit calls.
    pub fn handler(&self) -> &RateLimitHandler<H> {
        &self.handler
    }

    /// Handles one call.
    pub(super) async fn call(&self, request: HttpRequest<Incoming>, client: Client) -> HttpResponse<Body> {
        let path = request.uri().path();
        if path == SHOULD_RATE_LIMIT {
            // Web pages can send other media types without a preflight; the gRPC specification
            // requires 415.
            let media_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
            if !media_type.is_some_and(|media_type| media_type.starts_with(b"application/grpc")) {
                let mut response = HttpResponse::new(Body::default());
                *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return response;
            }
            let host = self.handler.host();
            let authorization = request.headers().get(header::AUTHORIZATION).cloned();
            if let Err(status) = host.authorize(authorization.as_ref(), Action::Decide, client) {
                return status.into_http();
            }
            let mut grpc = Grpc::new(Codec).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let caller = host.caller(request.headers());
            let call = ShouldRateLimit { handler: &self.handler, caller: &caller, authorization, client };
            return grpc.unary(call, request.map(TimedBody::new)).await;
        }
        if path.starts_with("/grpc.health.v1.Health/") {
            return (self.health)(request).await;
        }
        match self.reflection.iter().find(|(beginning, _)| path.starts_with(beginning)) {
            Some((_, service)) => service(request).await,
            None => {
                let message = format!("unknown method `{}`; call {SHOULD_RATE_LIMIT}", path.escape_debug());
                Status::unimplemented(message).into_http()
            }
        }
    }

    /// Sets the health status of all services.
    pub async fn set_health(&self, is_serving: bool) {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in HEALTH_NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// Ends the streams of clients that watch the health. Set `NOT_SERVING` before.
    pub async fn end_health(&self) {
        let mut reporter = self.reporter.clone();
        for name in HEALTH_NAMES {
            reporter.clear_service_status(name).await;
        }
    }
}

/// The handler as a service of tonic.
struct ShouldRateLimit<'s, H: Host> {
    handler: &'s RateLimitHandler<H>,
    caller: &'s H::Caller,
    authorization: Option<HeaderValue>,
    client: Client,
}

impl<'s, H: Host> UnaryService<RateLimitRequest> for ShouldRateLimit<'s, H> {
    type Response = RateLimitResponse;
    type Future = BoxFuture<'s, Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let Self { handler, caller, client, .. } = *self;
        if has_refund(request.get_ref())
            && let Err(status) = handler.host().authorize(self.authorization.as_ref(), Action::Adjust, client)
        {
            return Box::pin(std::future::ready(Err(status)));
        }
        Box::pin(async move { handler.should_rate_limit(request.get_ref(), caller).await.map(Response::new) })
    }
}

/// The codec of tonic with smaller buffers.
#[derive(Debug, Clone, Copy)]
struct Codec;

/// The codec of tonic.
type Messages = ProstCodec<RateLimitResponse, RateLimitRequest>;

impl Codec {
    fn buffers() -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, MAX_MESSAGE_BYTES)
    }
}

impl tonic::codec::Codec for Codec {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = ProstDecoder<RateLimitRequest>;

    fn encoder(&mut self) -> Self::Encoder {
        Messages::raw_encoder(Self::buffers())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Messages::raw_decoder(Self::buffers())
    }
}

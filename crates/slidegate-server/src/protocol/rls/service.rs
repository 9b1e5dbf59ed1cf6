//! The services behind the gRPC door, and how a call finds its own.
//!
//! `ShouldRateLimit` is matched first and answered without the generated server: its buffers are as small as its messages.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::SERVICE_NAME;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
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
use tower_service::Service;

use super::limits::Limits;
use super::{ask, reflection};
use crate::access::{Action, Connection};
use crate::caller::{Caller, Protocol};

/// Largest message of a call: sixty-four descriptors of a kilobyte each.
pub(super) const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// What a call's buffers begin with: most messages are smaller.
const BUFFER_BYTES: usize = 1024;
/// The path of the one call that matters.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Names that the health service knows: the whole server, what envoyproxy/ratelimit calls itself, and the service.
const HEALTH_NAMES: [&str; 3] = ["", "ratelimit", SERVICE_NAME];

/// A future that can be stored.
pub(super) type Boxed<'s, T> = Pin<Box<dyn Future<Output = T> + Send + 's>>;
/// A service that is seldom called.
pub(super) type Seldom =
    Box<dyn Fn(HttpRequest<Incoming>) -> Boxed<'static, HttpResponse<Body>> + Send + Sync>;

/// Everything that can be called.
pub(super) struct Services {
    limits: Arc<Limits>,
    reporter: HealthReporter,
    health: Seldom,
    /// By the beginning of its calls' paths.
    reflection: Vec<(&'static str, Seldom)>,
}

impl Services {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        let reporter = HealthReporter::new();
        let health = HealthServer::new(HealthService::from_health_reporter(reporter.clone()));
        Self {
            limits,
            reporter,
            health: seldom(health.max_decoding_message_size(MAX_MESSAGE_BYTES)),
            reflection: reflection::services(),
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Answers one call.
    pub(super) async fn call(
        &self,
        request: HttpRequest<Incoming>,
        client: Connection,
    ) -> HttpResponse<Body> {
        let path = request.uri().path();
        if path == SHOULD_RATE_LIMIT {
            // Other media types are those that a web page can send without asking; the specification has 415 for them.
            let media_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
            if !media_type.is_some_and(|media_type| media_type.starts_with(b"application/grpc")) {
                let mut refused = HttpResponse::new(Body::default());
                *refused.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                return refused;
            }
            let authorization = request.headers().get(header::AUTHORIZATION).cloned();
            if let Err(status) = may(&self.limits, authorization.as_ref(), Action::Decide, client) {
                return status.into_http();
            }
            let mut grpc = Grpc::new(Codec).max_decoding_message_size(MAX_MESSAGE_BYTES);
            let caller = self.limits.app().observer().caller(Protocol::Grpc, request.headers());
            let call = ShouldRateLimit { limits: &self.limits, caller: &caller, authorization, client };
            return grpc.unary(call, request).await;
        }
        if path.starts_with("/grpc.health.v1.Health/") {
            return (self.health)(request).await;
        }
        match self.reflection.iter().find(|(beginning, _)| path.starts_with(beginning)) {
            Some((_, service)) => service(request).await,
            None => {
                let known = format!("there is no `{}`; call {SHOULD_RATE_LIMIT}", path.escape_debug());
                Status::unimplemented(known).into_http()
            }
        }
    }

    /// Tells everyone who asks or watches whether this server is to be used.
    pub(super) async fn set_health(&self, is_serving: bool) {
        let status = if is_serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in HEALTH_NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// Says that it does not serve any more, and ends the streams of those who watch.
    pub(super) async fn end_health(&self) {
        self.set_health(false).await;
        let mut reporter = self.reporter.clone();
        for name in HEALTH_NAMES {
            reporter.clear_service_status(name).await;
        }
    }
}

/// Makes a service one that can be stored beside others.
pub(super) fn seldom<S>(service: S) -> Seldom
where
    S: Service<HttpRequest<Incoming>, Response = HttpResponse<Body>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Box::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await.unwrap_or_else(|never| match never {}) })
    })
}

/// Whether the client may do this.
fn may(
    limits: &Limits,
    authorization: Option<&HeaderValue>,
    action: Action,
    client: Connection,
) -> Result<(), Status> {
    limits.app().access.call(authorization, action, client).map_err(|problem| match problem.status() {
        StatusCode::FORBIDDEN => Status::permission_denied(problem.detail()),
        _ => Status::unauthenticated(problem.detail()),
    })
}

/// The one call, for tonic.
struct ShouldRateLimit<'s> {
    limits: &'s Limits,
    caller: &'s Caller,
    authorization: Option<HeaderValue>,
    client: Connection,
}

impl<'s> UnaryService<RateLimitRequest> for ShouldRateLimit<'s> {
    type Response = RateLimitResponse;
    type Future = Boxed<'s, Result<Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let Self { limits, caller, client, .. } = *self;
        if ask::gives_back(request.get_ref())
            && let Err(status) = may(limits, self.authorization.as_ref(), Action::Adjust, client)
        {
            return Box::pin(std::future::ready(Err(status)));
        }
        Box::pin(async move { limits.decide(request.get_ref(), caller).await.map(Response::new) })
    }
}

/// Protobuf messages in buffers of their size.
#[derive(Debug, Clone, Copy)]
struct Codec;

/// What tonic's own codec is built of.
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

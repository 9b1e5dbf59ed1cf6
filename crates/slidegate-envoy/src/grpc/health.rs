//! The health service, of which tonic-health has the states.
//!
//! Its calls do not use tonic's generated server, whose buffers are a thousand times as large as
//! the messages.

use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use tokio::task::unconstrained;
use tonic::body::Body;
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService, WatchStream};

use super::codec::{grpc, unary};
use super::incomplete::MessageBody;

/// The calls of the health service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthMethod {
    Check,
    Watch,
}

impl HealthMethod {
    /// The one of this path.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path.strip_prefix("/grpc.health.v1.Health/")? {
            "Check" => Some(Self::Check),
            "Watch" => Some(Self::Watch),
            _ => None,
        }
    }
}

/// The health of each service, by its name.
#[derive(Debug)]
pub(super) struct HealthCalls {
    names: &'static [&'static str],
    reporter: HealthReporter,
    service: HealthService,
}

impl HealthCalls {
    /// Of the services with these names.
    pub(super) fn new(names: &'static [&'static str]) -> Self {
        let reporter = HealthReporter::new();
        let service = HealthService::from_health_reporter(reporter.clone());
        Self { names, reporter, service }
    }

    /// Handles one call.
    pub(super) async fn call(
        &self,
        method: HealthMethod,
        request: HttpRequest<MessageBody<Incoming>>,
    ) -> HttpResponse<Body> {
        let call = HealthCall(&self.service);
        match method {
            HealthMethod::Check => unary::<_, HealthCheckRequest>(call, request).await,
            HealthMethod::Watch => grpc().server_streaming(call, request).await,
        }
    }

    /// Sets the health of all services.
    pub(super) async fn set(&self, status: ServingStatus) {
        for name in self.names {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// Ends the streams of clients that watch the health.
    pub(super) async fn end(&self) {
        let mut reporter = self.reporter.clone();
        for name in self.names {
            reporter.clear_service_status(name).await;
        }
    }
}

/// A call, which tonic calls with the decoded message.
struct HealthCall<'s>(&'s HealthService);

impl<'s> UnaryService<HealthCheckRequest> for HealthCall<'s> {
    type Response = HealthCheckResponse;
    type Future = BoxFuture<'s, Result<Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        // It only takes a lock for reading. A client may make a thousand calls at once: without
        // this, those beyond tokio's budget of a task would be kept until its next poll.
        Box::pin(unconstrained(self.0.check(request)))
    }
}

impl<'s> ServerStreamingService<HealthCheckRequest> for HealthCall<'s> {
    type Response = HealthCheckResponse;
    type ResponseStream = WatchStream;
    type Future = BoxFuture<'s, Result<Response<WatchStream>, Status>>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        self.0.watch(request)
    }
}

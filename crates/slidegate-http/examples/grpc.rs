//! Limit a tonic gRPC service. A denied call gets `RESOURCE_EXHAUSTED`, with the wait in
//! `RetryInfo`.
//!
//! The service is tonic's own health check, so that the example needs no protobuf compiler. Any
//! other service works the same way.
//!
//! ```sh
//! cargo run -p slidegate --example grpc --features tower
//! grpcurl -plaintext 127.0.0.1:3000 grpc.health.v1.Health/Check
//! ```

use std::error::Error;

use http::Response;
use slidegate::{Gate, Match, Policy, PolicySet, Quota};
use slidegate_http::layer::{Attribute, Denied, RateLimitLayer};
use tonic::transport::Server;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let gate = Gate::new(PolicySet::new([
        Policy::new("per-ip", Quota::per_minute(5))?.with_scope(["ip"]),
        // The path of a gRPC request is its method.
        Policy::new("watches", Quota::per_minute(1))?
            .with_condition("method", Match::equals("/grpc.health.v1.Health/Watch"))
            .with_scope(["ip"]),
    ])?);
    let limit = RateLimitLayer::builder(gate)
        .attribute("ip", Attribute::client_addr())
        .attribute("method", Attribute::path())
        .peer(|extensions| Some(extensions.get::<TcpConnectInfo>()?.remote_addr()?.ip()))
        .denied(exhausted)
        .build()?;

    let (_reporter, health) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::bind(listen_address().parse()?)?;
    println!("listening on {}", incoming.local_addr()?);
    // tonic's body type cannot be created from text, so the layer needs `any_body`.
    Server::builder().layer(limit.any_body()).add_service(health).serve_with_incoming(incoming).await?;
    Ok(())
}

/// A gRPC denial: the status in header fields, the details in protobuf, and no body.
fn exhausted(denied: &Denied<'_>) -> Response<String> {
    let wait = denied.decisions().strictest().and_then(|strictest| strictest.decision().retry_after());
    let mut details = ErrorDetails::new();
    if wait.is_some() {
        details.set_retry_info(wait);
    }
    Status::with_error_details(Code::ResourceExhausted, denied.problem().detail, details).into_http()
}

fn listen_address() -> String {
    std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into())
}

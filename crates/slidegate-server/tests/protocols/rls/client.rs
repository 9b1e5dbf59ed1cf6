//! A gRPC client of the tests, and summaries of its responses.

use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value};
use slidegate_testkit::service::Server;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub(crate) type Client = RateLimitServiceClient<Channel>;

/// A server with a gRPC listener on a free port.
pub(crate) fn start(args: &[&str]) -> Server {
    Server::start(&[&["--grpc", "127.0.0.1:0"], args].concat())
}

/// The URL of the gRPC listener in the greeting: `http://127.0.0.1:40000`.
pub(crate) fn grpc_url(server: &Server) -> String {
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("grpc       "));
    line.unwrap_or_else(|| panic!("no gRPC listener: {}", server.greeting)).to_owned()
}

pub(crate) async fn channel(server: &Server) -> Channel {
    Endpoint::new(grpc_url(server)).unwrap().connect().await.expect("the listener accepts")
}

pub(crate) async fn client(server: &Server) -> Client {
    Client::new(channel(server).await)
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..RateLimitDescriptor::default() }
}

/// The same with hits of its own.
pub(crate) fn hitting(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor }
}

pub(crate) fn user(name: &str) -> RateLimitDescriptor {
    descriptor(&[("user", name)])
}

pub(crate) async fn ask(
    client: &mut Client,
    descriptors: &[RateLimitDescriptor],
    hits: u32,
) -> Result<RateLimitResponse, Status> {
    let request =
        RateLimitRequest { domain: "web".into(), descriptors: descriptors.to_vec(), hits_addend: hits };
    client.should_rate_limit(request).await.map(tonic::Response::into_inner)
}

pub(crate) async fn answer(client: &mut Client, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
    ask(client, descriptors, 0).await.expect("an answer")
}

/// The code of each status and what remains there.
pub(crate) fn statuses(answer: &RateLimitResponse) -> Vec<(Code, u32)> {
    answer.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect()
}

pub(crate) fn limit(status: &DescriptorStatus) -> (u32, Unit, &str) {
    let limit = status.current_limit.as_ref().expect("there is a limit");
    (limit.requests_per_unit, limit.unit(), &limit.name)
}

pub(crate) fn seconds(status: &DescriptorStatus) -> i64 {
    let span = status.duration_until_reset.expect("it is always present");
    assert_eq!(span.nanos, 0, "Envoy drops them");
    span.seconds
}

pub(crate) fn string<'m>(metadata: &'m Struct, name: &str) -> &'m str {
    match &metadata.fields[name].kind {
        Some(Kind::StringValue(text)) => text,
        other => panic!("{name} is {other:?}"),
    }
}

/// Waits until `holds` does, as long as it takes on a loaded machine.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what} did not come about in a minute");
}

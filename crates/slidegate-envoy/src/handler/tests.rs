//! Calls through the handler, over a gate in memory on a clock that the tests move.

use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::Message;
use slidegate::{
    Decisions, Gate, HoldOptions, ManualClock, MemoryStore, PolicyDecision, PolicySet, Request, Settlement,
    Ticket, Timestamp,
};

use super::*;
use crate::config::ConfigWatcher;
use crate::host::{Action, Client};
use crate::settings::HeaderNames;

const RULES: &str = "
domain: domain
descriptors:
  - {key: second, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: day, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: fifteen, rate_limit: {unit: hour, requests_per_unit: 15}}
  - {key: fourteen, rate_limit: {unit: hour, requests_per_unit: 14}}
";

/// A service that is a gate and nothing else.
struct TestHost {
    gate: Gate,
    headers: HeaderOptions,
}

impl Host for TestHost {
    type Caller = ();

    fn caller(&self, _: &HeaderMap) {}

    fn is_immediate(&self) -> bool {
        true
    }

    async fn decide<'r>(&self, (): &(), requests: &'r [Request<'r>]) -> Decisions<'r> {
        self.gate.apply(requests)
    }

    async fn reserve<'r>(
        &self,
        (): &(),
        requests: &'r [Request<'r>],
        options: HoldOptions<'r>,
    ) -> Result<(Decisions<'r>, Option<String>), Status> {
        let reserved = self.gate.reserve_all(requests, options);
        let (decisions, ticket) =
            reserved.map_err(|error| Status::invalid_argument(error.to_string()))?.into_parts();
        Ok((decisions, ticket.map(|ticket| ticket.to_string())))
    }

    async fn settle(&self, (): &(), ticket: &Ticket, cost: u64) -> Result<Option<Settlement>, Status> {
        self.gate.settle(ticket, cost).map(Some).map_err(|error| Status::unavailable(error.to_string()))
    }

    fn complete<'r>(
        &self,
        request: &mut Request<'r>,
        attributes: impl Iterator<Item = (&'r str, &'r str)>,
    ) -> Result<(), String> {
        request.extend(attributes);
        Ok(())
    }

    fn authorize(&self, _: Option<&HeaderValue>, _: Action, _: Client) -> Result<(), Status> {
        Ok(())
    }

    fn authorize_http(&self, _: &Parts, _: Action) -> Result<(), axum::response::Response> {
        Ok(())
    }

    fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    fn headers(&self) -> &HeaderOptions {
        &self.headers
    }

    fn explain(&self, decision: &PolicyDecision<'_>) -> String {
        decision.key().to_string()
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn is_degraded(&self) -> bool {
        false
    }

    fn log_rejected_call(&self, _: &Status) {}
}

/// A handler with these rules in fixed windows, whose clock is at `secs`.
fn at(test: &str, secs: u64) -> (RateLimitHandler<TestHost>, ManualClock) {
    let path = std::env::temp_dir().join(format!("slidegate-rls-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("rules.yaml"), RULES).unwrap();
    let mut settings = Settings::of_folder(path.clone());
    settings.options.algorithm = "fixed-window".parse().unwrap();
    settings.headers = Some(HeaderNames {
        limit: "RateLimit-Limit".into(),
        remaining: "RateLimit-Remaining".into(),
        reset: "RateLimit-Reset".into(),
    });
    let (watcher, live) = ConfigWatcher::start(&settings, &PolicySet::default()).unwrap();
    std::fs::remove_dir_all(path).unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(secs));
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let gate = Gate::with_memory(watcher.policies().unwrap(), store);
    let host = Arc::new(TestHost { gate, headers: HeaderOptions::default() });
    let files = Some(ConfigFiles { live, settings });
    (RateLimitHandler::new(host, &GrpcSettings::default(), files), clock)
}

/// Decides descriptors of one entry each, with so many hits.
async fn send(handler: &RateLimitHandler<TestHost>, keys: &[&str], hits: u64) -> RateLimitResponse {
    let descriptor = |key: &&str| RateLimitDescriptor {
        entries: vec![Entry { key: (*key).into(), value: "value".into() }],
        hits_addend: Some(UInt64Value { value: hits }),
        ..RateLimitDescriptor::default()
    };
    let descriptors = keys.iter().map(descriptor).collect();
    let call = RateLimitRequest { domain: "domain".into(), descriptors, hits_addend: 0 };
    let response = handler.should_rate_limit(&CallMessage::from(call), &()).await.unwrap();
    RateLimitResponse::decode(&*response.0).unwrap()
}

fn statuses(response: &RateLimitResponse) -> Vec<(Code, u32, i64)> {
    let each = response.statuses.iter();
    let reset =
        |one: &Option<envoy_types::pb::google::protobuf::Duration>| one.map_or(-1, |span| span.seconds);
    each.map(|one| (one.code(), one.limit_remaining, reset(&one.duration_until_reset))).collect()
}

/// Users who migrate compare numbers: in both, fixed windows begin at whole units of the epoch.
#[tokio::test]
async fn fixed_windows_count_and_reset_as_in_envoyproxy_ratelimit() {
    let (handler, clock) = at("windows", 1234);
    assert_eq!(statuses(&send(&handler, &["second"], 5).await), [(Code::Ok, 5, 1)]);
    // The first has no limit; the statuses keep the order of the descriptors.
    assert_eq!(
        statuses(&send(&handler, &["none", "minute"], 10).await),
        [(Code::Ok, 0, -1), (Code::Ok, 0, 26)]
    );
    let over = send(&handler, &["none", "minute"], 1).await;
    assert_eq!((over.overall_code(), statuses(&over)[1]), (Code::OverLimit, (Code::OverLimit, 0, 26)));
    clock.advance(Duration::from_secs(25));
    assert_eq!(statuses(&send(&handler, &["minute"], 1).await), [(Code::OverLimit, 0, 1)]);
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&send(&handler, &["minute"], 1).await), [(Code::Ok, 9, 60)]);

    let (handler, _) = at("long-windows", 1_000_000);
    send(&handler, &["hour", "day"], 10).await;
    let over = send(&handler, &["hour", "day"], 1).await;
    assert_eq!(statuses(&over), [(Code::OverLimit, 0, 800), (Code::OverLimit, 0, 36_800)]);
    assert_eq!(
        statuses(&send(&handler, &["hour"], 0).await),
        [(Code::Ok, 0, 800)],
        "a peek at a full key is OK"
    );
}

/// The three headers describe the descriptor that limits the client first.
#[tokio::test]
async fn headers_describe_the_least_remaining_or_the_last_denial() {
    let fields = |response: &RateLimitResponse| {
        let headers = response.response_headers_to_add.iter();
        headers.map(|header| format!("{}: {}", header.key, header.value)).collect::<Vec<_>>()
    };
    let (handler, _) = at("headers", 2222);
    let full = send(&handler, &["minute"], 10).await;
    assert_eq!(fields(&full), ["RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 58"]);
    send(&handler, &["hour"], 3).await;
    let least = send(&handler, &["day", "hour", "none"], 1).await;
    assert_eq!(fields(&least)[1..], ["RateLimit-Remaining: 6", "RateLimit-Reset: 1378"]);
    let denied = send(&handler, &["hour", "minute", "day"], 1).await;
    assert_eq!(
        fields(&denied),
        ["RateLimit-Limit: 10", "RateLimit-Remaining: 0", "RateLimit-Reset: 58", "retry-after: 58"]
    );
}

/// Unlike in envoyproxy/ratelimit, a denied call charges nothing, neither on its limit nor on
/// others.
#[tokio::test]
async fn a_denied_call_charges_nothing() {
    let (handler, _) = at("free", 1234);
    assert_eq!(statuses(&send(&handler, &["hour", "day"], 11).await)[0], (Code::OverLimit, 0, 0));
    assert_eq!(statuses(&send(&handler, &["hour"], 10).await), [(Code::Ok, 0, 2366)]);
    assert_eq!(statuses(&send(&handler, &["day", "hour"], 5).await)[0], (Code::Ok, 10, 0));
    assert_eq!(statuses(&send(&handler, &["day"], 10).await), [(Code::Ok, 0, 85_166)]);
    // As in envoyproxy/ratelimit with STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT: only one of the two
    // has room for 2.
    send(&handler, &["fifteen", "fourteen"], 13).await;
    let over = statuses(&send(&handler, &["fifteen", "fourteen"], 2).await);
    assert_eq!(over, [(Code::Ok, 2, 2366), (Code::OverLimit, 0, 2366)]);
    assert_eq!(statuses(&send(&handler, &["fifteen"], 2).await), [(Code::Ok, 0, 2366)]);
}

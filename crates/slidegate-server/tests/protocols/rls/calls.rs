//! What a call asks, what is charged for it, and what its answer says.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, Token};
use tonic::Code as GrpcCode;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::client::{
    answer, ask, channel, client, descriptor, hitting, limit, seconds, start, statuses, string, user,
};

/// Envoy makes x-ratelimit-* of the statuses and logs of them: one that is not filled is a header
/// that is missing.
#[tokio::test]
async fn every_status_says_code_limit_remaining_and_reset() {
    let server =
        start(&["--policy", "3/1h per user", "--policy", "100/1m per path", "--policy", "7/2s per odd"]);
    let mut client = client(&server).await;
    let descriptors = [
        user("alice"),
        descriptor(&[("path", "/")]),
        descriptor(&[("odd", "x")]),
        descriptor(&[("no", "x")]),
    ];
    let first = answer(&mut client, &descriptors).await;
    assert_eq!(first.overall_code(), Code::Ok);
    assert_eq!(statuses(&first), [(Code::Ok, 2), (Code::Ok, 99), (Code::Ok, 6), (Code::Ok, 0)]);
    assert_eq!(limit(&first.statuses[0]), (3, Unit::Hour, "per-user"));
    assert_eq!(limit(&first.statuses[1]), (100, Unit::Minute, "per-path"));
    assert_eq!(limit(&first.statuses[2]), (7, Unit::Unknown, "per-odd"));
    assert_eq!(seconds(&first.statuses[0]), 3600);
    assert_eq!(first.statuses[3], DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() });
    assert_eq!((&first.response_headers_to_add[..], &first.dynamic_metadata), (&[][..], &None));
}

/// A refused descriptor must not burn what another has, nor be burnt itself.
#[tokio::test]
async fn descriptors_are_charged_all_or_none() {
    let server = start(&["--policy", "2/1h per user", "--policy", "5/1h per path"]);
    let mut client = client(&server).await;
    let both = [user("alice"), descriptor(&[("path", "/")])];
    for _ in 0..2 {
        assert_eq!(answer(&mut client, &both).await.overall_code(), Code::Ok);
    }
    for _ in 0..3 {
        let denied = answer(&mut client, &both).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!(statuses(&denied), [(Code::OverLimit, 0), (Code::Ok, 3)]);
    }
    assert_eq!(statuses(&answer(&mut client, &both[1..]).await), [(Code::Ok, 2)]);
    // Two descriptors on one key ask for both hits at once.
    let twice = answer(&mut client, &[user("bob"), user("bob"), user("bob")]).await;
    assert_eq!(statuses(&twice), [(Code::OverLimit, 2); 3]);
    assert_eq!(statuses(&answer(&mut client, &[user("bob"), user("bob")]).await), [(Code::Ok, 0); 2]);
}

/// Batches and tokens cost more than one, a look must cost nothing, and what was not used comes
/// back.
#[tokio::test]
async fn hits_are_those_of_the_descriptor_then_of_the_call_then_one() {
    let server = start(&["--policy", "10/1h per user"]);
    let mut client = client(&server).await;
    let mut remaining = async |descriptor: RateLimitDescriptor, hits| {
        let answer = ask(&mut client, &[descriptor], hits).await.unwrap();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    assert_eq!(remaining(user("a"), 0).await, (Code::Ok, 9));
    assert_eq!(remaining(user("a"), 3).await, (Code::Ok, 6));
    assert_eq!(remaining(hitting(2, user("a")), 3).await, (Code::Ok, 4));
    assert_eq!(remaining(hitting(0, user("a")), 3).await, (Code::Ok, 4));
    assert_eq!(remaining(hitting(5, user("a")), 0).await, (Code::OverLimit, 4));
    assert_eq!(remaining(hitting(4, user("a")), 0).await, (Code::Ok, 0));
    assert_eq!(remaining(hitting(0, user("a")), 0).await, (Code::Ok, 0), "a look at a full key is no denial");
    let back = |hits| RateLimitDescriptor { is_negative_hits: true, ..hitting(hits, user("a")) };
    assert_eq!(remaining(back(6), 0).await, (Code::Ok, 6));
    assert_eq!(remaining(back(100), 0).await, (Code::Ok, 10), "no more comes back than was charged");
    assert_eq!(remaining(user("a"), 0).await, (Code::Ok, 9));

    // A denied client retries, with the refund.
    let mixed = [back(1), hitting(11, user("b"))];
    let denied = answer(&mut client, &mixed).await;
    assert_eq!(statuses(&denied), [(Code::Ok, 9), (Code::OverLimit, 10)]);
    let mixed = [back(1), hitting(10, user("b"))];
    assert_eq!(statuses(&answer(&mut client, &mixed).await), [(Code::Ok, 10), (Code::Ok, 0)]);
}

/// A service that answers with tokens knows their number afterwards: what exceeds is waited out,
/// and looks must see it.
#[tokio::test]
async fn costs_known_afterwards_are_charged_in_full_and_looks_deny_then() {
    let folder = TempDir::new("rls-tokens");
    let config = folder.file(
        "tokens.yaml",
        "policies:\n  - {name: tokens, scope: [user], quota: 7/1h, excess: charge}\n  - {name: calls, scope: [call], quota: 9/1h}\n",
    );
    let server = start(&["--config", &config]);
    let mut client = client(&server).await;
    let look = [hitting(0, user("alice")), descriptor(&[("call", "x")])];
    let charge = [hitting(4, user("alice"))];
    for (seen, left) in [(Code::Ok, 3), (Code::Ok, 0)] {
        assert_eq!(answer(&mut client, &look).await.overall_code(), seen);
        assert_eq!(statuses(&answer(&mut client, &charge).await), [(Code::Ok, left)]);
    }
    let denied = answer(&mut client, &look).await;
    assert_eq!(denied.overall_code(), Code::OverLimit);
    assert_eq!(
        statuses(&denied),
        [(Code::OverLimit, 0), (Code::Ok, 7)],
        "the refused call is charged nowhere"
    );
    let metadata = denied.dynamic_metadata.unwrap();
    assert_eq!((string(&metadata, "policy"), string(&metadata, "key")), ("tokens", "alice"));
    let wait: u64 = denied.response_headers_to_add[0].value.parse().unwrap();
    assert!((3000..=3600).contains(&wait), "{wait}");
}

/// A limit that comes with the request takes the policy's place, and what was used goes on
/// counting.
#[tokio::test]
async fn a_limit_of_the_request_decides_instead_of_the_policies() {
    let server = start(&["--policy", "2/1h per user using sliding-window"]);
    let mut client = client(&server).await;
    let own = |requests_per_unit, unit: Unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }),
        ..user("alice")
    };
    assert_eq!(statuses(&answer(&mut client, &[user("alice")]).await), [(Code::Ok, 1)]);
    let wider = answer(&mut client, &[own(5, Unit::Hour)]).await;
    assert_eq!(statuses(&wider), [(Code::Ok, 3)]);
    assert_eq!(limit(&wider.statuses[0]), (5, Unit::Hour, "per-user"));
    assert_eq!(statuses(&answer(&mut client, &[user("alice")]).await), [(Code::OverLimit, 0)]);
    let other = RateLimitDescriptor { entries: user("x").entries, ..own(1, Unit::Day) };
    assert_eq!(limit(&answer(&mut client, &[other]).await.statuses[0]), (1, Unit::Day, "per-user"));
    // One that is none leaves the policies in force.
    let unknown = answer(&mut client, &[own(5, Unit::Unknown)]).await;
    assert_eq!(limit(&unknown.statuses[0]), (2, Unit::Hour, "per-user"));
}

/// A new limit is tried before it denies, and the enforced one beside it must still be reported.
#[tokio::test]
async fn shadow_policies_are_told_and_never_deny() {
    let folder = TempDir::new("rls-shadow");
    let config = folder.file(
        "shadow.yaml",
        "policies:\n  - {name: tried, scope: [user], quota: 1/1h, mode: shadow}\n  - {name: kept, scope: [path], quota: 5/1h}\n",
    );
    let server = start(&["--config", &config]);
    let mut client = client(&server).await;
    assert_eq!(statuses(&answer(&mut client, &[user("alice")]).await), [(Code::Ok, 0)]);
    let over = answer(&mut client, &[user("alice")]).await;
    assert_eq!((over.overall_code(), statuses(&over)), (Code::Ok, vec![(Code::Ok, 0)]));
    assert_eq!(limit(&over.statuses[0]), (1, Unit::Hour, "tried"));
    let both = answer(&mut client, &[descriptor(&[("user", "alice"), ("path", "/")])]).await;
    assert_eq!(limit(&both.statuses[0]), (5, Unit::Hour, "kept"));
}

/// Access logs of the proxy are where a denial is looked up: they must say who denied and why.
#[tokio::test]
async fn a_denial_says_policy_key_and_why_and_when_to_come_again() {
    let server = start(&["--policy", "1/1h per user,path named login"]);
    let mut client = client(&server).await;
    let descriptors = [descriptor(&[("other", "x")]), descriptor(&[("path", "/login"), ("user", "alice")])];
    answer(&mut client, &descriptors).await;
    let denied = answer(&mut client, &descriptors).await;
    let metadata = denied.dynamic_metadata.as_ref().unwrap();
    assert_eq!(string(metadata, "policy"), "login");
    assert_eq!(string(metadata, "key"), "alice,/login");
    let why = string(metadata, "why");
    assert!(why.starts_with("login: `alice,/login` has used 1 of 1 per 1h; the cost fits in "), "{why}");
    assert_eq!(string(metadata, "source"), "store");
    assert_eq!(metadata.fields["descriptor"].kind, Some(Kind::NumberValue(1.0)));
    assert_eq!(metadata.fields["limit"].kind, Some(Kind::NumberValue(1.0)));
    let [retry_after] = &denied.response_headers_to_add[..] else { panic!("{denied:?}") };
    assert_eq!(retry_after.key, "retry-after");
    let wait: i64 = retry_after.value.parse().unwrap();
    assert_eq!(wait, seconds(&denied.statuses[1]));
    assert!((3000..=3600).contains(&wait), "{wait}");
    // What never fits has no time to come again.
    let never = ask(&mut client, &[descriptor(&[("path", "/x"), ("user", "a")])], 2).await.unwrap();
    assert_eq!(never.response_headers_to_add, []);
    assert_eq!(never.dynamic_metadata.unwrap().fields["retry_after_ms"].kind, Some(Kind::NullValue(0)));
}

/// Clients that read the standard fields get them from every answer, if the configuration says so.
#[tokio::test]
async fn response_headers_are_those_of_the_configuration() {
    let folder = TempDir::new("rls-headers");
    let config = folder.file(
        "headers.yaml",
        "policies: [{name: p, scope: [user], quota: 1/1h}]\ngrpc: {listen: '127.0.0.1:0', response_headers: true}\n\
         headers: {x_ratelimit: off, retry_after_ms: true}\n",
    );
    let server = Server::start(&["--config", &config]);
    let mut client = client(&server).await;
    let names = |answer: &RateLimitResponse| {
        let headers = answer.response_headers_to_add.iter();
        headers.map(|header| format!("{}: {}", header.key, header.value)).collect::<Vec<_>>()
    };
    let allowed = names(&answer(&mut client, &[user("alice")]).await);
    assert_eq!(allowed, [r#"ratelimit-policy: "p";q=1;w=3600"#, r#"ratelimit: "p";r=0;t=3600"#]);
    let denied = names(&answer(&mut client, &[user("alice")]).await);
    assert_eq!(denied[0], r#"ratelimit-policy: "p";q=1;w=3600"#);
    assert!(
        denied[2].starts_with("retry-after: 3") && denied[3].starts_with("retry-after-ms: 3"),
        "{denied:?}"
    );
    assert_eq!(denied.len(), 4);
}

/// Malformed calls return an error that names the mistake, and the next call succeeds.
#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason() {
    let server = start(&["--policy", "9/1h per user", "--policy", "9/1h per ip"]);
    let mut client = client(&server).await;
    let domain = |domain: &str, descriptors: Vec<RateLimitDescriptor>| RateLimitRequest {
        domain: domain.into(),
        descriptors,
        hits_addend: 0,
    };
    for (request, expected) in [
        (domain("", vec![user("a")]), "rate limit domain must not be empty"),
        (domain("web", vec![]), "rate limit descriptor list must not be empty"),
    ] {
        let error = client.should_rate_limit(request).await.unwrap_err();
        assert_eq!((error.code(), error.message()), (GrpcCode::InvalidArgument, expected));
    }
    // Envoy may copy a large head into each descriptor.
    let large = vec![user(&"x".repeat(60 << 10)); 60];
    assert_eq!(client.should_rate_limit(domain("web", large)).await.unwrap().into_inner().statuses.len(), 60);
    let large = client.should_rate_limit(domain("web", vec![user(&"x".repeat(4 << 20))])).await.unwrap_err();
    assert_eq!(large.code(), GrpcCode::OutOfRange, "{large}");
    let metrics = server.get("/metrics").body;
    for (reason, count) in [("invalid", 2), ("too_large", 1)] {
        let line = format!(
            "slidegate_malformed_total{{protocol=\"grpc\",reason=\"{reason}\",outcome=\"refused\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    assert_eq!(statuses(&answer(&mut client, &[user("a")]).await), [(Code::Ok, 8)]);
    // The error of an unknown path names the right one.
    let mut health = HealthClient::with_origin(channel(&server).await, "http://x/none".parse().unwrap());
    let error = health.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(
        error.message(),
        "unknown method `/none/grpc.health.v1.Health/Check`; call /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    );
}

/// Refunds raise what a client may use, so this port must not bypass the tokens of the others.
#[tokio::test]
async fn hits_are_given_back_with_a_token_where_tokens_are_configured() {
    let Token { secret: token, entry, .. } = Token::new("envoy", "decide");
    let variables = [("SLIDEGATE_ADMIN_TOKENS", entry.as_str())];
    let folder = TempDir::new("rls-tokens");
    let policy = "policies: [{name: per-user, scope: [user], quota: 9/1h}]\n";
    let open = folder.file("open.yaml", policy);
    let strict = folder.file("strict.yaml", format!("{policy}admin: {{decisions: token}}\n"));
    for (config, needs_token) in [(&open, false), (&strict, true)] {
        let args = ["--grpc", "127.0.0.1:0", "--config", config];
        let server = Server::start_with(&args, &variables);
        let mut client = client(&server).await;
        let back = RateLimitDescriptor { is_negative_hits: true, ..hitting(1, user("alice")) };
        let mut call = async |descriptor: RateLimitDescriptor, token: Option<&str>| {
            let descriptors = vec![descriptor];
            let call = RateLimitRequest { domain: "web".into(), descriptors, hits_addend: 0 };
            let mut call = tonic::Request::new(call);
            if let Some(token) = token {
                call.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
            }
            client.should_rate_limit(call).await.map(drop).map_err(|status| status.code())
        };
        let denied = Err(tonic::Code::Unauthenticated);
        assert_eq!(call(user("alice"), None).await, if needs_token { denied } else { Ok(()) });
        assert_eq!(call(back.clone(), None).await, denied);
        assert_eq!(call(back.clone(), Some("sg_wrong")).await, denied);
        assert_eq!(call(user("alice"), Some(&token)).await, Ok(()));
        assert_eq!(call(back, Some(&token)).await, Ok(()));
    }
}

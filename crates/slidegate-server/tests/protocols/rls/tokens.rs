//! Token limits: a look before, a charge at the end of the stream, with files of
//! envoyproxy/ratelimit as they are.
//!
//! No test here writes a key of ours into the files unless it is about that key.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use slidegate_testkit::TempDir;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::client::{Client, channel, client, descriptor, hitting, statuses, until};

/// The two services of the reference's own example of quotas, with a unit that no test outlasts.
const SERVICES: &str = "---
domain: quota
descriptors:
  - key: service
    value: service_1
    quota_mode: true
    rate_limit:
      unit: hour
      requests_per_unit: 1
  - key: service
    value: service_2
    quota_mode: true
    rate_limit:
      unit: hour
      requests_per_unit: 2
  - key: tokens
    rate_limit:
      unit: hour
      requests_per_unit: 7
  - key: tried
    shadow_mode: true
    rate_limit:
      unit: hour
      requests_per_unit: 2
  - key: key2
    rate_limit:
      unit: hour
      requests_per_unit: 20
  - key: key3
    rate_limit:
      unit: hour
      requests_per_unit: 10
";

/// A server with these files alone, and with this Redis if there is one.
fn serve(folder: &TempDir, files: &str, redis: Option<&RedisServer>, args: &[&str]) -> Server {
    folder.file("rules/quota.yaml", files);
    let url = redis.map(RedisServer::url).unwrap_or_default();
    // The default deadline of 50 ms is short for a busy machine.
    let settings = folder.file("settings.conf", "store: {deadline: 10s}\n");
    let store: &[&str] = if redis.is_some() { &["--redis", &url, "--config", &settings] } else { &[] };
    let rules = format!("{}/rules", folder.as_str());
    Server::start(&[&["--grpc", "127.0.0.1:0", "--envoy-config", &rules], store, args].concat())
}

/// Asks with the hits of each descriptor; `None` says none, as Envoy does where a route does not.
async fn ask(client: &mut Client, asked: &[(&str, &str, Option<u64>)]) -> RateLimitResponse {
    let one = |(key, value, hits): &(&str, &str, Option<u64>)| {
        let plain = descriptor(&[(key, value)]);
        match hits {
            Some(hits) => hitting(*hits, plain),
            None => plain,
        }
    };
    let descriptors: Vec<RateLimitDescriptor> = asked.iter().map(one).collect();
    let request = RateLimitRequest { domain: "quota".into(), descriptors, hits_addend: 0 };
    client.should_rate_limit(request).await.expect("an answer").into_inner()
}

async fn code(client: &mut Client, asked: &[(&str, &str, Option<u64>)]) -> Code {
    ask(client, asked).await.overall_code()
}

const SERVICE_1: &str = "service_1";
const SERVICE_2: &str = "service_2";

/// Both kinds of store.
fn stores() -> [Option<RedisServer>; 2] {
    [None, Some(RedisServer::start())]
}

/// A limit of tokens that never denies costs money: every request looks, and charges one hit when
/// its stream ends.
#[tokio::test]
async fn a_look_passes_at_the_limit_and_denies_once_more_was_asked_for() {
    for redis in &stores() {
        // Envoy says the one hit or leaves it out, as its route does.
        for charge in [Some(1), None] {
            let folder = TempDir::new("rls-tokens-one");
            let server = serve(&folder, SERVICES, redis.as_ref(), &[]);
            let mut client = client(&server).await;
            if let Some(redis) = redis {
                redis.admin(&["FLUSHALL"]);
            }
            for passed in 0..3 {
                let look = [("service", SERVICE_2, Some(0))];
                assert_eq!(code(&mut client, &look).await, Code::Ok, "{passed} {charge:?}");
                ask(&mut client, &[("service", SERVICE_2, charge)]).await;
            }
            let denied = ask(&mut client, &[("service", SERVICE_2, Some(0))]).await;
            assert_eq!(denied.overall_code(), Code::OverLimit, "{charge:?}");
            assert_eq!(statuses(&denied), [(Code::OverLimit, 0)]);
            let wait: u64 = denied.response_headers_to_add[0].value.parse().unwrap();
            assert!((3000..=3600).contains(&wait), "{wait}");
        }
    }
}

/// Who spreads requests over services by what is left of each must use up the first, then the
/// second, and then stop.
#[tokio::test]
async fn looks_at_two_services_send_requests_to_the_first_that_has_room() {
    for redis in &stores() {
        let folder = TempDir::new("rls-tokens-two");
        let server = serve(&folder, SERVICES, redis.as_ref(), &[]);
        let mut client = client(&server).await;
        let mut served = Vec::new();
        loop {
            let look = [("service", SERVICE_1, Some(0)), ("service", SERVICE_2, Some(0))];
            let answer = ask(&mut client, &look).await;
            if answer.overall_code() == Code::OverLimit {
                break;
            }
            let first = answer.statuses.iter().position(|status| status.code() == Code::Ok).unwrap();
            served.push([SERVICE_1, SERVICE_2][first]);
            ask(&mut client, &[("service", [SERVICE_1, SERVICE_2][first], Some(1))]).await;
        }
        assert_eq!(served, [SERVICE_1, SERVICE_1, SERVICE_2, SERVICE_2, SERVICE_2]);
    }
}

/// Tokens that were used are used, whatever the charge for them was answered; and a check is
/// refused for nothing.
#[tokio::test]
async fn refused_charges_count_for_looks_and_for_no_check() {
    for redis in &stores() {
        let folder = TempDir::new("rls-tokens-refused");
        let server = serve(&folder, SERVICES, redis.as_ref(), &[]);
        let mut client = client(&server).await;
        let alice = |hits| [("tokens", "alice", Some(hits))];
        for (hits, expected) in
            [(4, Code::Ok), (4, Code::OverLimit), (4, Code::OverLimit), (0, Code::OverLimit)]
        {
            assert_eq!(code(&mut client, &alice(hits)).await, expected, "{hits}");
        }
        let denied = ask(&mut client, &alice(0)).await.dynamic_metadata.unwrap();
        let why = super::client::string(&denied, "why");
        assert!(why.contains("has used 12 of 7 per 1h"), "{why}");
        // What was refused leaves to checks what it found.
        assert_eq!(statuses(&ask(&mut client, &alice(3)).await), [(Code::Ok, 0)]);
        assert_eq!(code(&mut client, &[("tokens", "bob", Some(0))]).await, Code::Ok);

        // A request that a look has denied did not take place: what it would have cost counts for
        // nobody.
        let both = [("tokens", "alice", Some(0)), ("key2", "carol", Some(30))];
        assert_eq!(code(&mut client, &both).await, Code::OverLimit);
        let look = ask(&mut client, &[("key2", "carol", Some(0))]).await;
        assert_eq!(statuses(&look), [(Code::Ok, 20)]);

        // A limit that only reports says so of looks, too.
        for hits in [2, 2] {
            assert_eq!(code(&mut client, &[("tried", "alice", Some(hits))]).await, Code::Ok);
        }
        assert_eq!(statuses(&ask(&mut client, &[("tried", "alice", Some(0))]).await), [(Code::Ok, 0)]);

        // Anyone who is forgiven is forgiven everything.
        let body = r#"{"policy":"quota.tokens","attributes":{"descriptor":"quota~tokens=alice"}}"#;
        let reset = server.change("POST", "/v1/reset", &[], body);
        assert_eq!(reset.status, 200, "{}", reset.body);
        assert_eq!(statuses(&ask(&mut client, &alice(0)).await), [(Code::Ok, 7)]);
    }
}

/// An ordinary limit that somebody hammers must not be made to write for every denial.
#[tokio::test]
async fn denials_of_a_limit_that_nobody_looks_at_write_nothing() {
    let redis = RedisServer::start();
    let folder = TempDir::new("rls-tokens-ordinary");
    let server = serve(&folder, SERVICES, Some(&redis), &[]);
    let mut client = client(&server).await;
    for asked in 0..40 {
        let expected = if asked < 10 { Code::Ok } else { Code::OverLimit };
        assert_eq!(code(&mut client, &[("key3", "alice", None)]).await, expected, "{asked}");
    }
    let keys = redis.admin(&["KEYS", "sg1:quota.key3:*"]);
    assert!(keys.contains("key3=alice") && !keys.contains("refused"), "{keys}");
}

/// Anyone who changes from the reference may keep its numbers: there a denial uses up what other
/// limits have.
#[tokio::test]
async fn refused_hits_count_as_in_the_reference_where_that_is_asked_for() {
    let both = [("key2", "x", None), ("key3", "x", None)];
    let rule =
        SERVICES.replace("  - key: key2\n", "  - key: key2\n    metadata: {slidegate: {excess: count}}\n");
    let all: &[&str] = &["--envoy-excess", "count"];
    // The files, the arguments, and what is left of both after fifteen requests, of which the
    // second has room for ten.
    for (files, args, left) in
        [(SERVICES, &[][..], (10, 0)), (&rule, &[], (5, 0)), (SERVICES, all, (5, 0)), (&rule, all, (5, 0))]
    {
        for redis in &stores() {
            let folder = TempDir::new("rls-tokens-count");
            let server = serve(&folder, files, redis.as_ref(), args);
            let mut client = client(&server).await;
            for asked in 0..15 {
                let expected = if asked < 10 { Code::Ok } else { Code::OverLimit };
                assert_eq!(code(&mut client, &both).await, expected, "{asked}");
            }
            let looks = [("key2", "x", Some(0)), ("key3", "x", Some(0))];
            let answer = ask(&mut client, &looks).await;
            let remaining: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
            assert_eq!((remaining[0], remaining[1]), left, "{args:?}");
            // Where every hit counts, the second limit has counted fifteen of ten.
            let expected = if args.is_empty() { Code::Ok } else { Code::OverLimit };
            assert_eq!(answer.statuses[1].code(), expected, "{args:?}");
        }
    }
}

/// Limits that deny together count every hit as well, and a look that denies keeps no hit of
/// another limit from counting.
#[tokio::test]
async fn every_hit_counts_in_quota_mode_and_beside_looks_where_that_is_asked_for() {
    for redis in &stores() {
        let folder = TempDir::new("rls-tokens-count-quota");
        let server = serve(&folder, SERVICES, redis.as_ref(), &["--envoy-excess", "count"]);
        let mut client = client(&server).await;
        let both = [("service", SERVICE_1, None), ("service", SERVICE_2, None)];
        for expected in [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit] {
            assert_eq!(code(&mut client, &both).await, expected);
        }
        let used = |service: &str| {
            let path = format!("/v1/keys/quota.service_{service}/quota~service%3D{service}");
            let key = server.get(&path).json();
            key["used"].as_u64().unwrap_or_else(|| panic!("{key}"))
        };
        assert_eq!((used(SERVICE_1), used(SERVICE_2)), (4, 4));
        let beside = [("service", SERVICE_1, Some(0)), ("key2", "x", Some(3))];
        assert_eq!(code(&mut client, &beside).await, Code::OverLimit);
        assert_eq!(statuses(&ask(&mut client, &[("key2", "x", Some(0))]).await), [(Code::Ok, 17)]);
    }
}

/// A setting that is off must be off: health that follows Redis takes every instance out at once
/// when Redis is gone.
#[tokio::test(flavor = "multi_thread")]
async fn healthcheck_follows_redis_where_the_variable_says_so() {
    for (follows, expected) in [(true, 500), (false, 200)] {
        let folder = TempDir::new("rls-health");
        folder.file("config/quota.yaml", SERVICES);
        let redis = RedisServer::start();
        let address = redis.address();
        let variables = [
            ("RUNTIME_ROOT", folder.as_str()),
            ("DEBUG_HOST", "127.0.0.1"),
            ("DEBUG_PORT", "0"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", &address),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", if follows { "true" } else { "false" }),
        ];
        let server = Server::start_with(&["--grpc", "127.0.0.1:0", "--envoy-env"], &variables);
        let mut health = HealthClient::new(channel(&server).await);
        let mut is_serving = async || {
            let asked = HealthCheckRequest { service: "ratelimit".into() };
            health.check(asked).await.unwrap().into_inner().status() == ServingStatus::Serving
        };
        until("redis is connected", async || server.get("/healthcheck").status == 200).await;
        until("grpc says so", async || is_serving().await).await;
        redis.kill();
        until("redis is missed", async || server.get("/v1/status").body.contains("\"degraded\":true")).await;
        until("both say so", async || {
            server.get("/healthcheck").status == expected && is_serving().await != follows
        })
        .await;
        redis.restart();
        until("redis is back", async || server.get("/healthcheck").status == 200 && is_serving().await).await;
    }
}

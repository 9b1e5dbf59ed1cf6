//! Blocked keys: every protocol says that, by whom and until when, with the key's own limit.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::UInt64Value;
use envoy_types::pb::google::protobuf::value::Kind;
use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

const POLICIES: &str = "
policies:
  - {name: per-user, scope: [user], quota: 5/1m, on_store_error: allow}
resp:
  listen: 127.0.0.1:0
grpc:
  listen: 127.0.0.1:0
";
const MALLORY: &str = r#"{"attributes":{"user":"mallory"}}"#;
const BLOCKED: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

/// Blocks the key for an hour; until when.
fn block(server: &Server) -> String {
    let blocked = server.change("POST", "/v1/keys/per-user/mallory/block", &[], r#"{"for": "1h"}"#);
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    blocked.json()["block"]["until"].as_str().unwrap().to_owned()
}

/// Support must see at once that a customer is blocked, and not "0 of 0, never fits".
#[test]
fn http_tells_the_block_the_real_limit_and_the_rest_of_the_block() {
    let folder = TempDir::new("blocked-http");
    let log = folder.file("log", "");
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    assert_eq!(server.post("/v1/check", MALLORY).status, 200);
    let until = block(&server);
    let denied = server.post("/v1/check", MALLORY);
    let body = denied.json();
    assert_eq!((denied.status, &body["type"], &body["reason"]), (429, &json!(BLOCKED), &json!("blocked")));
    assert_eq!((&body["limit"], &body["used"], &body["remaining"]), (&json!(5), &json!(1), &json!(0)));
    assert_eq!(body["block"], json!({ "until": until, "by": "loopback" }));
    assert_eq!(
        body["why"],
        format!("per-user: `mallory` is blocked until {until} by loopback, and has used 1 of 5 per 1m")
    );
    let detail = body["detail"].as_str().unwrap();
    let beginning = "Policy `per-user` (5/1m) does not admit the request: key `mallory` is blocked until 2";
    assert!(detail.starts_with(beginning) && !detail.contains("loopback"), "{detail}");
    let retry_after: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3590..=3600).contains(&retry_after), "{retry_after}");
    assert_eq!(denied.header("ratelimit-policy"), Some("\"per-user\";q=5;w=60"));
    assert_eq!(denied.header("ratelimit"), Some(&*format!("\"per-user\";r=0;t={retry_after}")));
    assert_eq!(
        (denied.header("x-ratelimit-limit"), denied.header("x-ratelimit-remaining")),
        (Some("5"), Some("0"))
    );
    server.assert_matches_openapi("POST", "/v1/check", Some(MALLORY), 429);
    server.assert_matches_openapi("POST", "/v1/peek", Some(MALLORY), 200);
    let key = server.get("/v1/keys/per-user/mallory").json();
    assert_eq!((&key["limit"], &key["reason"]), (&json!(5), &json!("blocked")));

    // What a proxy hands on to the end user names no operator.
    let fields = "x-user: mallory\r\nx-forwarded-method: GET\r\nx-forwarded-uri: /\r\nx-forwarded-host: example.org\r\n";
    let auth = server.ask_with(fields, "GET", "/v1/auth/caddy", None);
    assert_eq!((auth.status, &auth.json()["type"]), (429, &json!(BLOCKED)));
    assert!(!auth.body.contains("loopback"), "{}", auth.body);

    let mut event = Value::Null;
    until_true("the denial is an event", || {
        event = server.get("/v1/events").json()["events"][0].clone();
        !event.is_null()
    });
    assert_eq!((&event["reason"], &event["limit"]), (&json!("blocked"), &json!(5)));
    assert_eq!(event["block"], json!({ "until": until, "by": "loopback" }));
    assert!(event["retry_after_ms"].as_u64().unwrap() > 3_590_000, "{event}");
    let mut line = String::new();
    until_true("the log has a line", || {
        let log = std::fs::read_to_string(&log).unwrap();
        let found = log.lines().find(|line| line.contains("slidegate::denials")).map(str::to_owned);
        found.is_some_and(|found| {
            line = found;
            true
        })
    });
    for part in
        ["reason=\"blocked\"", &format!("blocked_until=\"{until}\""), "blocked_by=\"loopback\"", "limit=5"]
    {
        assert!(line.contains(part), "{part}: {line}");
    }
    let metrics = server.get("/metrics").body;
    let counted =
        metrics.lines().find_map(|line| line.strip_prefix("slidegate_blocked_total{policy=\"per-user\"} "));
    assert!(counted.is_some_and(|count| count.parse::<u64>().unwrap() >= 1), "{counted:?}");

    server.change("POST", "/v1/keys/per-user/mallory/unblock", &[], "{}");
    let allowed = server.post("/v1/check", MALLORY);
    assert_eq!((allowed.status, &allowed.json()["used"]), (200, &json!(2)));
    assert_eq!((&allowed.json()["reason"], &allowed.json()["block"]), (&Value::Null, &Value::Null));
}

/// RESP clients read the reason where HTTP clients do.
#[test]
fn resp_tells_the_block() {
    let folder = TempDir::new("blocked-resp");
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", POLICIES)]);
    let until = block(&server);
    let mut stream = TcpStream::connect(server.address_of("resp")).unwrap();
    stream.write_all(b"RL.CHECK per-user mallory\r\nRL.CHECK per-user bob\r\nQUIT\r\n").unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let reason = format!("blocked until {until} by loopback");
    assert!(replies.starts_with("*7\r\n:0\r\n:5\r\n:0\r\n:35"), "{replies}");
    assert!(replies.contains(&format!("+store\r\n${}\r\n{reason}\r\n", reason.len())), "{replies}");
    assert!(
        replies.ends_with("*7\r\n:1\r\n:5\r\n:4\r\n:0\r\n:60000\r\n+store\r\n$-1\r\n+OK\r\n"),
        "{replies}"
    );
}

/// Envoy must refuse a blocked client also where it only looks, as it does before costs are known.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_denies_charges_and_looks_of_a_blocked_key() {
    let folder = TempDir::new("blocked-grpc");
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", POLICIES)]);
    let until = block(&server);
    let url = format!("http://{}", server.address_of("grpc"));
    let mut client = RateLimitServiceClient::connect(url).await.unwrap();
    for hits in [1, 0] {
        let entry = Entry { key: "user".into(), value: "mallory".into() };
        let hits_addend = Some(UInt64Value { value: hits });
        let descriptor =
            RateLimitDescriptor { entries: vec![entry], hits_addend, ..RateLimitDescriptor::default() };
        let request =
            RateLimitRequest { domain: "web".into(), descriptors: vec![descriptor], hits_addend: 0 };
        let answer = client.should_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), Code::OverLimit, "{hits} hits");
        let status = &answer.statuses[0];
        assert_eq!((status.code(), status.limit_remaining), (Code::OverLimit, 0));
        assert_eq!(status.current_limit.as_ref().unwrap().requests_per_unit, 5);
        assert!((3590..=3600).contains(&status.duration_until_reset.unwrap().seconds), "{status:?}");
        let metadata = answer.dynamic_metadata.unwrap();
        let summary = |name: &str| match &metadata.fields[name].kind {
            Some(Kind::StringValue(text)) => text.clone(),
            other => panic!("{name} is {other:?}"),
        };
        assert_eq!(summary("reason"), "blocked");
        assert!(
            summary("why").contains(&format!("is blocked until {until} by loopback")),
            "{}",
            summary("why")
        );
    }
}

/// Over Redis servers of the tests. `scripts/test --fast` leaves them out.
mod on_redis {
    use super::*;

    /// Over a shared store a block must hold while that is away, and its end must take effect at
    /// once on every instance.
    #[test]
    fn a_block_holds_over_a_shared_store_that_comes_and_goes() {
        let redis = RedisServer::start();
        let folder = TempDir::new("blocked-redis");
        // Long enough for a busy machine, and short enough to wait for it while the store is held.
        let config = folder.file("slidegate.yaml", format!("{POLICIES}store: {{deadline: 3s}}\n"));
        let args = ["--config", config.as_str(), "--redis", &redis.url()];
        let (one, other) = (Server::start(&args), Server::start(&args));
        // Denials of the limit are cached; the block overrides them, and ends.
        for status in [200, 200, 200, 200, 200, 429] {
            assert_eq!(one.post("/v1/check", MALLORY).status, status);
        }
        block(&one);
        let reason = |server: &Server| server.post("/v1/check", MALLORY).json()["reason"].clone();
        assert_eq!(reason(&one), "blocked");
        until_true("the other instance blocks it too", || reason(&other) == "blocked");
        let denied = other.post("/v1/check", MALLORY).json();
        assert_eq!((&denied["limit"], &denied["used"]), (&json!(5), &json!(5)));
        // The store, or what it said less than 100 ms ago: never a fallback.
        assert!(["store", "cached"].contains(&denied["source"].as_str().unwrap()), "{denied}");
        one.post("/v1/reset", MALLORY);
        assert_eq!(reason(&one), "blocked");

        redis.pause();
        let denied = one.post("/v1/check", MALLORY);
        assert_eq!((denied.status, &denied.json()["reason"]), (429, &json!("blocked")));
        assert!(denied.json()["why"].as_str().unwrap().contains("is blocked until"), "{}", denied.body);
        redis.resume();
        until_true("the store decides again", || one.post("/v1/check", MALLORY).json()["source"] == "store");

        one.change("POST", "/v1/keys/per-user/mallory/unblock", &[], "{}");
        assert_eq!(one.post("/v1/check", MALLORY).status, 200);
        until_true("the other instance lets it pass too", || other.post("/v1/check", MALLORY).status == 200);
    }
}

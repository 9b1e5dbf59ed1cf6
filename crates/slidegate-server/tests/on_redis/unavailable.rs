//! An unavailable store: policies that deny then say so on every protocol, with the store's
//! failure.
//!
//! Every test starts the servers it needs, on loopback, and ends them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::google::protobuf::value::Kind;
use serde_json::{Value, json};
use slidegate_testkit::http::Response;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

const POLICIES: &str = "
policies:
  - {name: login, scope: [user], quota: 5/1m, on_store_error: deny}
  - {name: smooth, scope: [user], quota: 100/1m, on_store_error: allow}
resp:
  listen: 127.0.0.1:0
grpc:
  listen: 127.0.0.1:0
";
const UNAVAILABLE: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
/// The headers that nginx and Caddy send for a request.
const PROXY: &str = "x-user: alice\r\nx-original-method: GET\r\nx-original-uri: /\r\nx-forwarded-method: GET\r\n\
                     x-forwarded-uri: /\r\nx-forwarded-host: example.org\r\n";
const ALICE: &str = r#"{"attributes":{"user":"alice"}}"#;

fn start(folder: &TempDir, redis: &RedisServer) -> Server {
    // Longer than a reply takes on a busy machine.
    let store = format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url());
    Server::start(&["--config", &folder.file("slidegate.yaml", format!("{POLICIES}{store}"))])
}

/// Makes the store refuse writes although it replies.
fn make_replica(redis: &RedisServer) {
    redis.admin(&["REPLICAOF", "127.0.0.1", "1"]);
}

/// Asserts the wait of a denial by a fallback, which is between 1 and 3 seconds.
fn assert_unknown_wait(answer: &Response) {
    let seconds: u64 = answer.header("retry-after").expect("a wait").parse().unwrap();
    assert!((1..=3).contains(&seconds), "{seconds}");
    let ms = answer.json()["retry_after_ms"].as_u64().unwrap();
    assert!((1000..=3000).contains(&ms), "{ms}");
}

/// Operators must read what Redis said, and clients must not think that they have exceeded a limit.
#[test]
fn a_policy_that_denies_without_its_store_answers_503_and_names_the_failure() {
    let redis = RedisServer::start();
    let folder = TempDir::new("unavailable-http");
    let server = start(&folder, &redis);
    assert_eq!(server.post("/v1/check", ALICE).status, 200);
    make_replica(&redis);
    let denied = server.post("/v1/check", ALICE);
    let body = denied.json();
    assert_eq!((denied.status, &body["status"], &body["type"]), (503, &json!(503), &json!(UNAVAILABLE)));
    assert_eq!((&body["allowed"], &body["source"]), (&json!(false), &json!("deny")));
    assert_eq!(
        (&body["reason"], &body["violated-policies"]),
        (&json!("store_unavailable"), &json!(["login"]))
    );
    let why = body["why"].as_str().unwrap();
    let beginning =
        format!("login: `alice` was not counted; decided by fallback `deny` (redis at {}: ", redis.address());
    assert!(why.starts_with(&beginning) && why.contains("READONLY You can't write"), "{why}");
    let detail = body["detail"].as_str().unwrap();
    assert!(
        detail.starts_with(
            "Policy `login` (5/1m) cannot be checked now: the store of its counters is unavailable. Retry in "
        ),
        "{detail}"
    );
    assert_unknown_wait(&denied);
    // What remains is unknown.
    for name in ["ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
        assert_eq!(denied.header(name), None);
    }
    assert_eq!(denied.header("ratelimit-policy"), Some("\"login\";q=5;w=60, \"smooth\";q=100;w=60"));
    server.assert_matches_openapi("POST", "/v1/check", Some(ALICE), 503);
    server.assert_matches_openapi("POST", "/v1/peek", Some(ALICE), 503);
    assert_eq!(server.get("/v1/check?user=alice").status, 503);

    // A proxy forwards the response. nginx accepts only 403, so a header has the real status.
    for (path, status, header) in [("/v1/auth/caddy", 503, None), ("/v1/auth/nginx", 403, Some("503"))] {
        let denied = server.ask_with(PROXY, "GET", path, None);
        assert_eq!((denied.status, denied.header("slidegate-status")), (status, header), "{}", denied.body);
        assert_eq!((&denied.json()["type"], &denied.json()["status"]), (&json!(UNAVAILABLE), &json!(503)));
        assert_unknown_wait(&denied);
        assert!(
            !denied.body.contains("redis"),
            "end users must not see details of the store: {}",
            denied.body
        );
    }

    let mut event = Value::Null;
    until_true("the denial is an event", || {
        event = server.get("/v1/events?policy=login").json()["events"][0].clone();
        !event.is_null()
    });
    assert_eq!((&event["reason"], &event["source"]), (&json!("store_unavailable"), &json!("deny")));
    assert!(event["store_failure"].as_str().unwrap().contains("READONLY"), "{event}");

    redis.admin(&["REPLICAOF", "NO", "ONE"]);
    until_true("the store decides again", || server.post("/v1/check", ALICE).json()["source"] == "store");
}

/// Out of memory and a key of another program are different failures with different fixes.
#[test]
fn why_names_what_the_store_refused() {
    let redis = RedisServer::start();
    let folder = TempDir::new("unavailable-why");
    let server = start(&folder, &redis);
    redis.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    let why = server.post("/v1/check", ALICE).json()["why"].as_str().unwrap().to_owned();
    assert!(why.contains("OOM command not allowed"), "{why}");
    redis.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    until_true("the store decides again", || server.post("/v1/check", ALICE).json()["source"] == "store");
    let keys = redis.admin(&["KEYS", "sg1:*login*"]);
    let key = keys.lines().next().expect("the policy has a key").trim().to_owned();
    redis.admin(&["DEL", &key]);
    redis.admin(&["LPUSH", &key, "x"]);
    let mut why = String::new();
    until_true("the script meets the list", || {
        why = server.post("/v1/check", ALICE).json()["why"].as_str().unwrap().to_owned();
        why.contains("fallback")
    });
    assert!(why.contains("WRONGTYPE") && why.contains("another program writes keys"), "{why}");
}

/// A client of the RESP port must not count this as a denial: it is an error with its own code.
#[test]
fn resp_replies_with_an_error() {
    let redis = RedisServer::start();
    let folder = TempDir::new("unavailable-resp");
    let server = start(&folder, &redis);
    make_replica(&redis);
    let mut stream = TcpStream::connect(server.address_of("resp")).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap());
    for command in ["RL.CHECK login alice", "RL.CHECK login alice PEEK", "RL.REQUEST user alice"] {
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let beginning = "-UNAVAILABLE policy `login` denies while the store is unavailable; retry in ";
        let rest = line.strip_prefix(beginning).unwrap_or_else(|| panic!("{line}"));
        let (seconds, cause) = rest.split_once(" s: redis at ").unwrap_or_else(|| panic!("{line}"));
        assert!(["1", "2", "3"].contains(&seconds) && cause.contains("READONLY"), "{line}");
    }
    // A policy that allows replies as usual.
    stream.write_all(b"RL.CHECK smooth alice\r\n").unwrap();
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert_eq!(line, "*7\r\n");
}

/// Envoy admits a request if the call fails, so a policy that denies must reply a denial with a
/// reason.
#[tokio::test(flavor = "multi_thread")]
async fn envoy_gets_a_denial_with_a_body_that_explains_it() {
    let redis = RedisServer::start();
    let folder = TempDir::new("unavailable-grpc");
    let server = start(&folder, &redis);
    make_replica(&redis);
    let url = format!("http://{}", server.address_of("grpc"));
    let mut client = RateLimitServiceClient::connect(url).await.unwrap();
    let entry = Entry { key: "user".into(), value: "alice".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request = RateLimitRequest { domain: "web".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let answer = client.should_rate_limit(request).await.unwrap().into_inner();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let body: Value = serde_json::from_slice(&answer.raw_body).unwrap();
    assert_eq!((&body["type"], &body["status"]), (&json!(UNAVAILABLE), &json!(503)));
    let headers: Vec<_> =
        answer.response_headers_to_add.iter().map(|field| (&*field.key, &*field.value)).collect();
    assert!(headers.contains(&("content-type", "application/problem+json")), "{headers:?}");
    assert!(headers.iter().any(|(name, value)| *name == "retry-after" && ["1", "2", "3"].contains(value)));
    let metadata = answer.dynamic_metadata.unwrap();
    let field = |name: &str| match &metadata.fields[name].kind {
        Some(Kind::StringValue(text)) => text.clone(),
        other => panic!("{name} is {other:?}"),
    };
    assert_eq!((field("reason").as_str(), field("policy").as_str()), ("store_unavailable", "login"));
    assert!(field("why").contains("READONLY"), "{}", field("why"));
}

/// A gateway settles once, at the end of a stream: an outage at that moment must not charge the
/// customer for all that was reserved, and must not need a queue in each client.
#[test]
fn the_last_settlement_of_a_reservation_waits_for_the_store() {
    let folder = TempDir::new("queued");
    let redis = RedisServer::builder().start();
    let store = format!("store: {{redis: '{}', deadline: 1s}}\n", redis.url());
    let file = folder.file("slidegate.yaml", format!("{POLICIES}{store}"));
    let mut server = Server::start_logging_to(&["--config", &file], Stdio::piped());
    let metric = |name: &str| {
        let page = server.get("/metrics").body;
        let line = page.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        line.expect("the metric is there").trim().parse::<f64>().unwrap()
    };
    let reserve = || {
        let body = json!({ "attributes": { "user": "alice" }, "policy": "smooth", "cost": 10 });
        let reserved = server.post("/v1/reserve", &body.to_string());
        assert_eq!(reserved.status, 200, "{}", reserved.body);
        reserved.json()["ticket"].as_str().unwrap().to_owned()
    };
    let tickets: [String; 3] = std::array::from_fn(|_| reserve());
    redis.pause();
    let settled = server.post("/v1/settle", &json!({ "ticket": tickets[0], "cost": 3 }).to_string());
    assert_eq!((settled.status, settled.json()), (202, json!({ "outcome": "queued", "policies": [] })));
    let mut resp = BufReader::new(TcpStream::connect(server.address_of("resp")).unwrap());
    write!(resp.get_mut(), "RL.CANCEL {}\r\n", tickets[1]).unwrap();
    let mut lines = resp.by_ref().lines().map(Result::unwrap);
    assert_eq!([lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap()], ["*9", "$6", "queued"]);
    // What a later call supersedes is not queued.
    for (route, body) in [
        ("/v1/settle", json!({ "ticket": tickets[2], "cost": 1, "final": false })),
        ("/v1/extend", json!({ "ticket": tickets[2] })),
    ] {
        let failed = server.post(route, &body.to_string());
        assert_eq!(failed.status, 503, "{}", failed.body);
    }
    assert!(metric("slidegate_settlements_pending ") >= 2.0);
    redis.resume();
    until_true("they are sent", || metric("slidegate_settlements_pending ") == 0.0);
    assert_eq!(metric("slidegate_settlements_queued_total{outcome=\"sent\"} "), 2.0);
    let key = server.get("/v1/keys/smooth/alice").json();
    assert_eq!((&key["used"], &key["held"]), (&json!(3), &json!(10)));

    // What still waits at the end is logged.
    redis.kill();
    assert_eq!(server.post("/v1/cancel", &json!({ "ticket": tickets[2] }).to_string()).status, 202);
    let log = server.take_log();
    server.signal("TERM");
    assert!(server.wait().success());
    let lost = BufReader::new(log).lines().map(Result::unwrap).find(|line| line.contains("settlements=1"));
    assert!(lost.expect("a line").contains("lost settlements: the store stayed unreachable"));
}

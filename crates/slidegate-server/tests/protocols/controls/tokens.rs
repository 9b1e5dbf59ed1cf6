//! Tokens that are taken back or changed, on every path, and what a token does not show to others.

use std::io::Read;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use slidegate_testkit::service::Token;
use tonic::Code as GrpcCode;
use tonic::metadata::MetadataValue;

use super::*;
use crate::rls::client::channel;

/// Without RESP, whose credential is a password that is not reloaded.
const CONFIG: &str = "grpc: {listen: '127.0.0.1:0'}\nauth: {preset: caddy}\n";

/// The line of a token in the file, with these rights and maybe a key.
fn file_line(token: &Token, scope: &str, key: Option<&str>) -> String {
    let (name, _) = token.entry.split_once(':').unwrap();
    let key = key.map(|key| format!(", key: '{key}'")).unwrap_or_default();
    format!("{{name: {name}, scope: [{scope}]{key}, sha256: {}}}", token.sha256)
}

fn admin(decisions: &str, lines: &[String]) -> String {
    format!("admin: {{decisions: {decisions}, tokens: [{}]}}\n{POLICIES}", lines.join(", "))
}

/// An instance with these rules.
fn start(folder: &TempDir, store: &str, policies: &str) -> Instance {
    let instance_file = folder.file("a.yaml", format!("{CONFIG}{store}{policies}"));
    let server = Server::start(&["--config", &instance_file]);
    Instance { server, file: instance_file, resp: 0 }
}

/// Puts other rules in force. The status may need a token.
fn reload(instance: &Instance, rules: &str, ops: &Token) {
    instance.server.reload(&instance.file, &format!("{CONFIG}{rules}"), &ops.header());
}

/// A stream, and the status of its answer.
fn open(instance: &Instance, path: &str, fields: &str) -> (BufReader<TcpStream>, String) {
    let mut stream = instance.server.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nconnection: close\r\n{fields}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut stream = BufReader::new(stream);
    let mut status = String::new();
    stream.read_line(&mut status).unwrap();
    (stream, status)
}

/// Somebody who left the company must not read on.
#[test]
fn a_stream_ends_when_its_token_may_not_read_it_any_more() {
    let folder = TempDir::new("controls-streams");
    let (ops, other) = (Token::new("ops", "read"), Token::new("other", "read"));
    let rule = |line: Option<String>| {
        admin(
            "open",
            &[Some(file_line(&ops, "read, write", None)), line].into_iter().flatten().collect::<Vec<_>>(),
        )
    };
    let (reads, own) =
        (Some(file_line(&other, "read", None)), Some(file_line(&other, "read", Some("per-user/alice"))));
    let instance = start(&folder, "", &rule(reads.clone()));
    let (all, one, live) = ("/v1/events", "/v1/events?policy=per-user&key=alice", "/v1/live");
    // What the token may do before and after; for each stream whether it stays open.
    let cases = [
        ("removed", reads.clone(), None, &[(all, false), (one, false), (live, false)][..]),
        (
            "right removed",
            reads.clone(),
            Some(file_line(&other, "decide", None)),
            &[(all, false), (live, false)],
        ),
        (
            "right added",
            reads.clone(),
            Some(file_line(&other, "read, write", None)),
            &[(all, true), (live, true)],
        ),
        ("limited to a key", reads, own.clone(), &[(all, false), (one, true), (live, false)]),
        ("another key", own.clone(), Some(file_line(&other, "read", Some("per-user/bob"))), &[(one, false)]),
        ("the same", own.clone(), own, &[(one, true)]),
    ];
    for (case, before, after, streams) in cases {
        reload(&instance, &rule(before), &ops);
        let opened: Vec<_> = streams.iter().map(|(path, _)| open(&instance, path, &other.header())).collect();
        reload(&instance, &rule(after), &ops);
        // A denial of alice, which every stream that stays shows.
        let body = json!({ "attributes": { "user": "alice" }, "cost": 101 });
        assert_eq!(instance.post("/v1/check", &body, "").0, 429);
        for ((mut stream, status), (path, stays)) in opened.into_iter().zip(streams) {
            assert!(status.contains("200"), "{case}, {path}: {status}");
            let mut read = String::new();
            if *stays {
                while !read.contains("event: denial") {
                    assert!(stream.read_line(&mut read).unwrap() > 0, "{case}, {path} ended: {read}");
                }
            } else {
                stream.read_to_string(&mut read).expect("the stream ends");
                assert!(!read.contains("event: denial"), "{case}, {path}: {read}");
            }
        }
    }
}

/// The next request of a token that was taken back is refused, whatever it asks and in whatever protocol.
#[test]
fn a_token_that_was_removed_does_nothing_on_any_path() {
    let folder = TempDir::new("controls-removed");
    let (ops, other) = (Token::new("ops", "read"), Token::new("other", "read"));
    let with = |scope: Option<&str>| {
        let line = scope.map(|scope| file_line(&other, scope, None));
        let lines: Vec<_> =
            [Some(file_line(&ops, "read, write, decide", None)), line].into_iter().flatten().collect();
        admin("token", &lines)
    };
    let instance = start(&folder, "", &with(Some("decide, read")));
    let alice = json!({ "attributes": { "user": "alice" } });
    let reserved = instance.post("/v1/reserve", &alice, &other.header());
    assert_eq!(reserved.0, 200, "{}", reserved.1);
    let ticket = json!({ "ticket": reserved.1["ticket"], "cost": 1 });
    let only = json!({ "ticket": reserved.1["ticket"] });
    let paths = [
        ("POST", "/v1/check", alice.clone()),
        ("GET", "/v1/check?user=alice", json!({})),
        ("POST", "/v1/check/batch", json!({ "requests": [alice] })),
        ("GET", "/v1/auth/caddy?user=alice", json!({})),
        ("POST", "/v1/reserve", alice.clone()),
        ("POST", "/v1/extend", only.clone()),
        ("POST", "/v1/settle", ticket),
        ("POST", "/v1/cancel", only),
        ("POST", "/v1/refund", alice.clone()),
        ("GET", "/v1/status", json!({})),
        ("GET", "/v1/events", json!({})),
    ];
    let proxy = "x-forwarded-method: GET\r\nx-forwarded-uri: /\r\nx-forwarded-host: a.example\r\n";
    let fields = format!("{proxy}{}", other.header());
    let runtime = Runtime::new().unwrap();
    let grpc = || {
        runtime.block_on(async {
            let bearer: MetadataValue<_> = format!("Bearer {}", other.secret).parse().unwrap();
            let with_token = move |mut request: tonic::Request<()>| {
                request.metadata_mut().insert("authorization", bearer.clone());
                Ok(request)
            };
            let channel = channel(&instance.server).await;
            let mut client = RateLimitServiceClient::with_interceptor(channel, with_token);
            let request =
                RateLimitRequest { domain: "web".into(), descriptors: vec![user("alice")], hits_addend: 1 };
            client.should_rate_limit(request).await.map_or_else(|status| status.code(), |_| GrpcCode::Ok)
        })
    };
    for (rules, status, code) in
        [(with(Some("decide, read")), 200, GrpcCode::Ok), (with(None), 401, GrpcCode::Unauthenticated)]
    {
        reload(&instance, &rules, &ops);
        for (method, path, body) in &paths {
            let body = (*method == "POST").then(|| body.to_string());
            let answer = instance.server.ask_with(&fields, method, path, body.as_deref());
            assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        }
        assert_eq!(grpc(), code);
    }
}

/// Order numbers are easy to guess: another client must not get the ticket, and with it the reservation.
#[test]
fn a_repeated_reservation_returns_its_ticket_to_its_caller_only() {
    let redis = RedisServer::start();
    for store in [String::new(), format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url())] {
        let folder = TempDir::new("controls-idempotency");
        let (one, other) = (Token::new("one", "read"), Token::new("other", "read"));
        let lines = [file_line(&one, "decide", None), file_line(&other, "decide", None)];
        for decisions in ["open", "token"] {
            let instance = start(&folder, &store, &admin(decisions, &lines));
            let user = format!("alice-{decisions}");
            let body = json!({ "attributes": { "user": user }, "cost": 10 });
            let reserve = |fields: &str| {
                let (status, answer) =
                    instance.post("/v1/reserve", &body, &format!("{fields}idempotency-key: order-1001\r\n"));
                assert_eq!(status, 200, "{answer}");
                (answer["ticket"].as_str().unwrap().to_owned(), answer["held"].as_u64().unwrap())
            };
            let (ticket, held) = reserve(&one.header());
            assert_eq!(held, 10);
            let (others, held) = reserve(&other.header());
            assert!(others != ticket && held == 20, "a reservation of its own");
            assert_eq!(reserve(&one.header()).0, ticket);
            assert_eq!(reserve(&other.header()).0, others);
            if decisions == "open" {
                let (anonymous, held) = reserve("");
                assert!(anonymous != ticket && anonymous != others && held == 30);
                assert_eq!(reserve("").0, anonymous, "who has no token is known by the address");
                let (unknown, _) = reserve("authorization: Bearer sg_unknown\r\n");
                assert_eq!(unknown, anonymous, "a token that is unknown proves nothing");
            }
            let cancel = json!({ "ticket": others });
            assert_eq!(instance.post("/v1/cancel", &cancel, &other.header()).0, 200);
            let settle = json!({ "ticket": ticket, "cost": 4 });
            let (status, settled) = instance.post("/v1/settle", &settle, &one.header());
            assert_eq!((status, &settled["outcome"]), (200, &json!("changed")));
        }
    }
}

/// By a `hash_tag`, one text names a key of each tenant. A customer must see neither those of others nor
/// keys that are masked alike.
#[test]
fn a_token_of_one_key_sees_no_events_of_other_keys() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("controls-tenants"));
    let store = format!("store: {{redis: '{}', deadline: 10s, hash_tag: tenant}}\n", redis.url());
    let (ops, own) = (Token::new("ops", "read"), Token::new("own", "read"));
    let rules = |scope: &str, key: &str| {
        let lines = [file_line(&ops, "read, write", None), file_line(&own, "read", Some(key))].join(", ");
        let policy = format!("{{name: per-user, scope: [{scope}], quota: 0/1h, keys_shown: masked}}");
        format!("admin: {{tokens: [{lines}]}}\npolicies: [{policy}]\n")
    };
    let instance = start(&folder, &store, &rules("user", "per-user/alice1"));
    let deny = |tenant: &str, user: &str| {
        let body = json!({ "attributes": { "tenant": tenant, "user": user } });
        assert_eq!(instance.post("/v1/check", &body, "").0, 429);
    };
    let path = "/v1/events?policy=per-user&key=alice1";
    let get = |path: &str| instance.server.ask_with(&own.header(), "GET", path, None);
    deny("acme", "alice1");
    deny("other", "alice1");
    let refused = get(path);
    assert_eq!(refused.status, 403, "{}", refused.body);
    assert!(refused.body.contains("add `tenant` to its scope"), "{}", refused.body);
    let (_, status) = open(&instance, path, &own.header());
    assert!(status.contains("403"), "{status}");
    drop(instance);

    let instance = start(&folder, &store, &rules("tenant, user", "per-user/acme,alice1"));
    for (tenant, user) in [("other", "alice1"), ("acme", "alice2"), ("acme", "alice1"), ("acme", "alice3")] {
        let body = json!({ "attributes": { "tenant": tenant, "user": user } });
        assert_eq!(instance.post("/v1/check", &body, "").0, 429);
    }
    let answer =
        instance.server.ask_with(&own.header(), "GET", "/v1/events?policy=per-user&key=acme%2Calice1", None);
    assert_eq!(answer.json()["events"].as_array().unwrap().len(), 1, "{}", answer.body);
}

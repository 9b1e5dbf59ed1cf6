//! What the service reports about calls that wait for their turn: metrics, status and explanations.
// How long a call has waited is one of the figures.
#![allow(clippy::disallowed_methods)]

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until_true};

const CONFIG: &str = "policies: [{name: api, scope: [user], quota: 1/1h, on_excess: wait 2s}]";

fn acquire(server: &Server, user: &str, timeout_ms: u64) -> bool {
    let body = json!({ "attributes": { "user": user }, "timeout_ms": timeout_ms });
    server.post("/v1/acquire", &body.to_string()).status == 200
}

/// Takes the whole limit of a user. Those who ask for more wait, as a reservation may end at any time.
fn reserve(server: &Server, user: &str) -> Value {
    let body = json!({ "attributes": { "user": user }, "ttl": "1h" });
    server.post("/v1/reserve", &body.to_string()).json()["ticket"].clone()
}

fn waiting(server: &Server) -> Value {
    server.get("/v1/status").json()["waiting"].clone()
}

/// Operators size limits and timeouts by these figures.
#[test]
fn the_figures_are_what_clients_did() {
    let folder = TempDir::new("waiting-figures");
    let server = &Server::start(&["--config", &folder.file("slidegate.yaml", CONFIG)]);
    assert!(acquire(server, "at-once", 0));
    assert!(!acquire(server, "at-once", 1000), "its next turn is in an hour");

    let ticket = reserve(server, "later");
    let (oldest_ms, longest) = std::thread::scope(|threads| {
        let started = Instant::now();
        let waiter = threads.spawn(|| acquire(server, "later", 60_000));
        until_true("a call waits", || server.count("slidegate_waiting") == 1);
        until_true("the wait takes a millisecond", || waiting(server)["oldest_ms"].as_u64() > Some(0));
        let now = waiting(server);
        assert_eq!(now["now"], 1);
        assert!(server.metric("slidegate_waiting_oldest_seconds") > 0.0);
        let top = run(&["top", "--once", "--url", &server.url]);
        let line = "waiting for a turn on this server: 1, the oldest for ";
        assert!(text(&top.stdout).contains(line), "{}{}", text(&top.stdout), text(&top.stderr));
        let cancelled = server.post("/v1/cancel", &json!({ "ticket": ticket }).to_string());
        assert_eq!(cancelled.status, 200, "{}", cancelled.body);
        assert!(waiter.join().unwrap(), "the cancelled reservation is its turn");
        (now["oldest_ms"].as_u64().unwrap(), started.elapsed())
    });

    reserve(server, "impatient");
    let body = json!({ "attributes": { "user": "impatient" }, "timeout_ms": 60_000 }).to_string();
    let mut client = server.connect();
    let head =
        format!("POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    client.write_all((head + &body).as_bytes()).unwrap();
    until_true("a call waits", || server.count("slidegate_waiting") == 1);
    drop(client);
    until_true("the call leaves the queue", || server.count("slidegate_waiting") == 0);

    let figures = waiting(server);
    for (outcome, member, expected) in
        [("turn", "turns", 2), ("late", "late", 1), ("full", "full", 0), ("gone", "gone", 1)]
    {
        let metric = format!("slidegate_waits_total{{outcome=\"{outcome}\"}}");
        assert_eq!(
            (server.count(&metric), figures[member].as_u64()),
            (expected, Some(expected)),
            "{outcome}"
        );
    }
    assert_eq!((&figures["now"], &figures["oldest_ms"]), (&json!(0), &json!(0)));
    assert_eq!(server.count("slidegate_wait_duration_seconds_count"), 2, "only turns have a wait");
    let waited = Duration::from_secs_f64(server.metric("slidegate_wait_duration_seconds_sum"));
    assert!(waited >= Duration::from_millis(oldest_ms), "{waited:?} of {oldest_ms} ms");
    // The call that was admitted at once took next to nothing.
    assert!(waited <= longest + Duration::from_secs(1), "{waited:?} of {longest:?}");
    let [half, most] = ["p50_ms", "p99_ms"].map(|member| figures[member].as_u64().unwrap());
    assert!(half <= most && most >= oldest_ms, "{figures}");
}

/// Who asks why a request takes seconds has to see that the policy lets it wait.
#[test]
fn explanations_say_that_requests_of_proxies_wait() {
    let folder = TempDir::new("waiting-explained");
    let file = folder.file("slidegate.yaml", CONFIG);
    let explained = run(&["explain", "--config", &file, "user=alice"]);
    let explained = text(&explained.stdout).replace("\n  ", " ");
    assert!(explained.contains("; requests of proxies wait up to 2s for their turn"), "{explained}");
    let json = run(&["explain", "--json", "--config", &file, "user=alice"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["policies"][0]["on_excess"], "wait 2s");

    let server = Server::start(&["--config", &file]);
    assert!(acquire(&server, "alice", 0));
    let denied = server.post("/v1/check", r#"{"attributes": {"user": "alice"}}"#).json();
    let why = denied["why"].as_str().unwrap();
    assert!(why.ends_with("; requests of proxies wait up to 2 s"), "{why}");
}

/// A queue may be needed before the next rollout.
#[test]
fn a_policy_that_is_added_lets_requests_wait() {
    let server = Server::start(&["--policy", "9/1h per ip"]);
    let added = json!({ "scope": ["user"], "quota": "1/1h", "on_excess": "wait 2s" });
    let answer = server.change("PUT", "/v1/policies/api", &[], &added.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    // Changed later, it keeps the wait.
    let answer = server.change("PUT", "/v1/policies/api", &[], r#"{"limit": 3}"#);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let policies = server.get("/v1/policies").json()["policies"].clone();
    let api = policies.as_array().unwrap().iter().find(|policy| policy["name"] == "api").unwrap().clone();
    assert_eq!(api["limit"], 3);
    let description = api["description"].as_str().unwrap();
    assert!(description.contains("Requests of proxies wait up to 2s for their turn."), "{description}");

    let configured = policies[0]["name"].as_str().unwrap();
    let refused =
        server.change("PUT", &format!("/v1/policies/{configured}"), &[], r#"{"on_excess": "wait 2s"}"#);
    assert_eq!(refused.status, 409);
    assert!(refused.body.contains("where its `on_excess` is changed"), "{}", refused.body);
}

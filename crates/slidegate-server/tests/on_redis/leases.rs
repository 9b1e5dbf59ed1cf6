//! Leases of two instances, as operators see them.

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until, until_true};

/// Long enough to look at a lease while it is open.
const POLICIES: &str = "policies: [{name: p, scope: [user], quota: 100000/1h, lease: 1s}]\n";

/// Checks of one key. Returns how many were admitted, and how many of them from a lease.
fn check(server: &Server, checks: usize) -> (u64, u64) {
    let request = json!({ "attributes": { "user": "alice" } }).to_string();
    let sources = (0..checks).map(|_| {
        let answer = server.post("/v1/check", &request);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["policies"][0]["source"].as_str().unwrap().to_owned()
    });
    let leased = sources.filter(|source| source == "leased").count();
    (checks as u64, leased as u64)
}

/// Who sees half of a limit held must find out by whom, and that it comes back.
#[test]
fn operators_see_who_leases_a_key_and_get_it_back_when_an_instance_stops() {
    let (folder, redis) = (TempDir::new("leases"), RedisServer::start());
    let config = format!("store: {{redis: '{}', deadline: 10s}}\n{POLICIES}", redis.url());
    let config = folder.file("slidegate.yaml", config);
    let (mut one, other) = (Server::start(&["--config", &config]), Server::start(&["--config", &config]));
    let (mut admitted, mut leased) = (0, 0);
    let key = |server: &Server| server.get("/v1/keys/p/alice").json();
    let shown = until("a lease that the other instance can name", || {
        let (more, from_leases) = check(&one, 50);
        (admitted, leased) = (admitted + more, leased + from_leases);
        let shown = key(&other);
        shown["holds"].as_array().unwrap().iter().any(|hold| hold["lease_of"].is_string()).then_some(shown)
    });
    let status = one.get("/v1/status").json();
    let instances = status["fleet"]["instances"].as_array().unwrap();
    let holder =
        instances.iter().find(|instance| instance["this"] == true).unwrap()["name"].as_str().unwrap();
    let hold = &shown["holds"][0];
    assert_eq!(hold["lease_of"], holder, "{shown}");
    assert!(hold["ends_in_ms"].as_u64().unwrap() <= 1000 && hold["held"] == shown["held"], "{shown}");

    let (more, from_leases) = check(&one, 10);
    (admitted, leased) = (admitted + more, leased + from_leases);
    assert!(leased > 0);
    let status = one.get("/v1/status").json();
    let state = &status["store"]["leases"]["p"];
    let count = |field: &str| state[field].as_u64().unwrap();
    assert_eq!(count("admitted"), leased, "{state}");
    assert_eq!(one.count("slidegate_store_leases_admitted_total{policy=\"p\"}"), leased);
    let shown = until("a lease by name", || {
        check(&one, 1);
        admitted += 1;
        let shown = run(&["key", "show", "p", "alice", "--url", &other.url]);
        Some(text(&shown.stdout)).filter(|text| text.contains(&format!("leased by {holder}")))
    });
    assert!(shown.contains("1 lease holds"), "{shown}");

    one.signal("TERM");
    assert!(one.wait().success());
    until_true("what the instance had leased is free", || {
        let shown = key(&other);
        let free: (&Value, &Value) = (&shown["used"], &shown["held"]);
        free == (&json!(admitted), &json!(0))
    });
}

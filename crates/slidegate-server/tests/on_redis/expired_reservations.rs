//! Reservations that expire, as instances that share a Redis server see them.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

/// How long reservations last here. A change that comes in the last quarter of a second is not seen by the
/// other instance, so this is longer than two calls take on a busy machine.
const TTL: &str = "5s";

/// A server on this store, whose deadline is longer than a reply takes on a busy machine.
fn instance(folder: &TempDir, redis: &RedisServer) -> Server {
    let config = format!(
        "store: {{redis: '{}', deadline: 10s}}\npolicies:\n  - {{name: tokens, scope: [user], quota: 1000/1h}}\n",
        redis.url()
    );
    Server::start(&["--config", &folder.file("slidegate.yaml", config)])
}

fn reserve(server: &Server, user: &str, cost: u64) -> Value {
    let body = json!({ "attributes": { "user": user }, "cost": cost, "ttl": TTL });
    let response = server.post("/v1/reserve", &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["ticket"].clone()
}

fn change(server: &Server, path: &str, body: &Value) -> Value {
    let response = server.post(path, &body.to_string());
    assert_eq!((response.status, &response.json()["outcome"]), (200, &json!("changed")), "{}", response.body);
    response.json()
}

/// Users and amounts of the expired reservations, by their ends: an instance reports what ends within a moment in
/// any order.
fn expired(server: &Server) -> Vec<(String, u64)> {
    let mut events = server.get("/v1/events").json()["events"].as_array().unwrap().clone();
    events.sort_by_key(|event| event["until"].as_str().unwrap().to_owned());
    let one = |event: &Value| {
        assert_eq!((&event["verdict"], &event["reason"]), (&json!("expired"), &json!("expired")));
        (event["key"].as_str().unwrap().to_owned(), event["held"].as_u64().unwrap())
    };
    events.iter().map(one).collect()
}

fn metric(server: &Server, line: &str) -> bool {
    server.get("/metrics").body.lines().any(|found| found == line)
}

/// Behind a load balancer, most reservations are settled by another instance than made them: these
/// have not expired, and what nobody settled is reported once.
#[test]
fn what_another_instance_settles_extends_or_resets_has_not_expired() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("expired-shared"));
    let (one, other) = (instance(&folder, &redis), instance(&folder, &redis));
    reserve(&one, "lost", 100);
    let settled = reserve(&one, "settled", 60);
    assert!(metric(&one, r#"slidegate_reservations_open{policy="tokens"} 2"#));
    assert!(metric(&one, r#"slidegate_held_cost{policy="tokens"} 160"#));
    change(&other, "/v1/settle", &json!({ "ticket": settled, "cost": 20 }));
    reserve(&one, "reset", 90);
    let reset = json!({ "attributes": { "user": "reset" } }).to_string();
    assert_eq!(other.post("/v1/reset", &reset).json(), json!({ "existed": true }));
    let parted = reserve(&one, "parted", 80);
    change(&other, "/v1/settle", &json!({ "ticket": parted, "cost": 30, "final": false }));
    let extended = json!({ "ticket": reserve(&one, "extended", 70), "ttl": "15s" });
    let extended = change(&other, "/v1/extend", &extended)["ticket"].clone();

    // The part was settled after the other reservation was made, so its time ends later.
    until_true("two reservations expire", || expired(&one).len() >= 2);
    assert_eq!(expired(&one), [("lost".to_owned(), 100), ("parted".to_owned(), 50)]);
    assert!(metric(&one, r#"slidegate_reservations_total{policy="tokens",outcome="expired"} 2"#));
    change(&other, "/v1/settle", &json!({ "ticket": extended, "cost": 10 }));
    until_true("nothing is open", || metric(&one, r#"slidegate_held_cost{policy="tokens"} 0"#));
    assert!(metric(&one, r#"slidegate_reservations_open{policy="tokens"} 0"#));
    assert_eq!(expired(&one).len(), 2);
    assert_eq!(expired(&other), []);
}

/// While the store does not reply, nothing is known of reservations in it: none is reported.
#[test]
fn a_reservation_that_ends_while_the_store_is_away_is_not_reported() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("expired-away"));
    let server = instance(&folder, &redis);
    reserve(&server, "alice", 60);
    drop(redis);
    until_true("nothing is open", || metric(&server, r#"slidegate_reservations_open{policy="tokens"} 0"#));
    thread::sleep(Duration::from_millis(300));
    assert_eq!(expired(&server), []);
}

//! Reservations behind Sentinel: what is held when the master is replaced.

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisSentinels;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until};

/// Costs and calls of the tests.
const POLICIES: &str = "policies:
  - {name: tokens, scope: [user], quota: 1000/1h}
  - {name: calls, scope: [user], in_flight: 2, lease: 1h}
";

/// Two instances that know the sentinels.
fn pair(folder: &TempDir, redis: &RedisSentinels) -> [Server; 2] {
    let config = format!("store: {{redis: '{}', deadline: 10s}}\n{POLICIES}", redis.url_as_user());
    let config = folder.file("slidegate.yaml", config);
    [(); 2].map(|()| Server::start(&["--config", &config]))
}

fn body(cost: u64) -> String {
    json!({ "attributes": { "user": "alice" }, "cost": cost, "ttl": "1h" }).to_string()
}

/// The verdict of the store on a reservation, as soon as the store is asked again.
fn reserve(server: &Server, cost: u64) -> (u16, Value) {
    until("the store decides", || {
        let answer = server.post("/v1/reserve", &body(cost));
        let decision = answer.json();
        // Instances cache denials.
        let is_shared = decision["source"] == "store" || decision["source"] == "cached";
        is_shared.then_some((answer.status, decision))
    })
}

/// Usage and what is held of `tokens`, as an instance shows the key.
fn tokens(server: &Server) -> (u64, u64) {
    let shown = until("the store is asked", || {
        let answer = server.get("/v1/keys/tokens/alice");
        (answer.status == 200).then(|| answer.json())
    });
    // What is not held is not shown.
    (shown["used"].as_u64().expect("usage is shown"), shown["held"].as_u64().unwrap_or(0))
}

/// Streams that began before a failover end after it: their cost must count once, and their permits
/// must come back.
#[test]
fn what_is_held_outlives_a_failover_and_is_settled_once() {
    let (redis, folder) = (RedisSentinels::start(), TempDir::new("failover-holds"));
    let [one, other] = &pair(&folder, &redis);
    let tickets = [0; 2].map(|_| {
        let (status, reserved) = reserve(one, 400);
        assert_eq!(status, 200, "{reserved}");
        reserved["ticket"].clone()
    });
    assert_eq!(reserve(other, 1).0, 429, "two calls are in flight");
    assert_eq!(tokens(other), (0, 800));
    let master = redis.master();
    master.until_followed_by(1);
    master.kill();
    redis.until_moved(master);

    assert_eq!(reserve(one, 1).0, 429, "they still are");
    // Each instance has seen the new master: what is settled before that is queued.
    for server in [one, other] {
        assert_eq!(tokens(server), (0, 800));
    }
    let settle = |server: &Server, ticket: &Value, cost: u64| {
        let answer = server.post("/v1/settle", &json!({ "ticket": ticket, "cost": cost }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["outcome"].clone()
    };
    // By the instance that did not make it.
    assert_eq!(settle(other, &tickets[0], 150), "changed");
    assert_eq!(settle(one, &tickets[0], 150), "already_settled");
    assert_eq!(tokens(one), (150, 400));
    let (status, reserved) = reserve(other, 400);
    assert_eq!(status, 200, "the permit came back: {reserved}");
    assert_eq!(reserve(other, 1).0, 429);
    assert_eq!(settle(one, &reserved["ticket"], 0), "changed");
    assert_eq!(settle(one, &tickets[1], 400), "changed");
    assert_eq!(tokens(other), (550, 0));
}

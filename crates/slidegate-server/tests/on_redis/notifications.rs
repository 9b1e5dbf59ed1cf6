//! Keys that reach a share of a limit that instances share.

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until_true};

fn ask(server: &Server, route: &str, user: &str, cost: u64) -> Value {
    server.post(route, &json!({ "attributes": { "user": user }, "cost": cost }).to_string()).json()
}

/// The thresholds that an instance reported of a key.
fn reported(server: &Server, user: &str) -> Vec<u64> {
    let events = server.get(&format!("/v1/events?policy=per-user&key={user}")).json();
    let events = events["events"].as_array().unwrap().iter().rev();
    events
        .filter(|event| event["verdict"] == "notify")
        .map(|event| event["threshold"].as_u64().unwrap())
        .collect()
}

/// A customer whose requests reach all instances is notified once, not once per instance.
#[test]
fn of_all_instances_one_reports_a_threshold_and_none_while_nobody_can_say_which() {
    let (folder, redis) = (TempDir::new("notify-shared"), RedisServer::start());
    let policy = "policies: [{name: per-user, scope: [user], quota: 100/1h, notify: [80%, 100%]}]\n";
    let text = format!("store: {{redis: '{}', deadline: 10s}}\n{policy}", redis.url_as_user());
    let file = folder.file("slidegate.yaml", text);
    let fleet = [(); 3].map(|()| Server::start(&["--config", &file]));
    let all = |user: &str| {
        let mut all: Vec<_> = fleet.iter().flat_map(|server| reported(server, user)).collect();
        all.sort_unstable();
        all
    };
    for round in 0..5 {
        let user = format!("user-{round}");
        // It goes up, down and up again on other instances.
        for (server, route, cost) in [
            (0, "/v1/check", 79),
            (1, "/v1/check", 1),
            (1, "/v1/refund", 10),
            (2, "/v1/check", 10),
            (2, "/v1/refund", 10),
            (0, "/v1/check", 30),
            (0, "/v1/refund", 50),
            (1, "/v1/check", 50),
        ] {
            ask(&fleet[server], route, &user, cost);
        }
        until_true("both are reported", || all(&user) == [80, 100]);
    }
    // Later than all claims of the above.
    ask(&fleet[0], "/v1/check", "last", 80);
    until_true("the last one is reported", || all("last") == [80]);
    let total: u64 =
        fleet.iter().map(|server| server.count("slidegate_notifications_total{policy=\"per-user\"}")).sum();
    assert_eq!(total, 11);
    until_true("it knows of all", || fleet[0].get("/readyz").json()["store"]["instances"] == 3);
    redis.kill();
    // The share of a third is 34.
    assert_eq!(ask(&fleet[0], "/v1/check", "alone", 34)["source"], "local");
    let dropped = "slidegate_notifications_dropped_total{reason=\"store_unavailable\"}";
    until_true("it is dropped", || fleet[0].count(dropped) == 2);
    assert_eq!(reported(&fleet[0], "alone"), [0; 0]);
}

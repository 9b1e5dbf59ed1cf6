//! Blocks that escalate, on instances that share a store.

use serde_json::{Value, json};
use slidegate_testkit::clock::ClockOffset;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until, until_true};

fn reason(server: &Server, user: &str) -> Value {
    server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string()).json()["reason"].clone()
}

fn denied_for_its_limit(server: &Server, user: &str) {
    for _ in 0..3 {
        assert_eq!(reason(server, user), "over_limit", "{user}");
    }
}

/// How many minutes are left of the block of a key, rounded up.
fn rest_of_block(server: &Server, user: &str) -> u64 {
    until(&format!("{user} is blocked"), || {
        let key = server.get(&format!("/v1/keys/login/{user}")).json();
        // Read before the block, which may come in between.
        let rest_ms = key["frees_after_ms"].as_u64()?;
        (key["block"]["by"] == "escalation").then(|| rest_ms.div_ceil(60_000))
    })
}

/// An attacker whose requests reach all instances must not start afresh on each of them.
#[test]
fn instances_share_blocks_and_levels_and_fallbacks_earn_none() {
    let (folder, redis) = (TempDir::new("escalation-shared"), RedisServer::start());
    let clock = ClockOffset::create(folder.path());
    let text = format!(
        "store: {{redis: '{}', deadline: 3s}}\n\
         policies: [{{name: login, scope: [user], quota: 0/1h, on_store_error: local,\n\
         \x20          escalate: {{after: 3 denials in 1h, block: [2m, 10m]}}}}]\n",
        redis.url_as_user()
    );
    let file = folder.file("slidegate.yaml", text);
    let [one, other] = [(); 2].map(|()| Server::start_with(&["--config", &file], &clock.variables()));
    denied_for_its_limit(&one, "mallory");
    assert_eq!(rest_of_block(&other, "mallory"), 2);
    assert_eq!(reason(&other, "mallory"), "blocked");
    until_true("it is in force where it was earned", || reason(&one, "mallory") == "blocked");

    clock.set(120_000_000);
    denied_for_its_limit(&other, "mallory");
    assert_eq!(rest_of_block(&one, "mallory"), 10);
    let undone = one.change("POST", "/v1/keys/login/mallory/unblock", &[], "{}");
    assert_eq!(undone.status, 200, "{}", undone.body);
    until_true("the other instance lets it pass too", || reason(&other, "mallory") == "over_limit");

    // The denial that showed it counts.
    assert_eq!([reason(&other, "mallory"), reason(&other, "mallory")], ["over_limit", "over_limit"]);
    assert_eq!(rest_of_block(&one, "mallory"), 2);

    // A fallback may deny what the shared limit would admit.
    redis.pause();
    let local = one.post("/v1/check", &json!({ "attributes": { "user": "alice" } }).to_string()).json();
    assert_eq!((&local["source"], &local["reason"]), (&json!("local"), &json!("over_limit")));
    (0..5).for_each(|_| assert_eq!(reason(&one, "alice"), "over_limit"));
    redis.resume();
    // Blocks come in the order in which they are earned, so one of alice would have come before.
    until_true("the store decides again, and its denials count", || reason(&one, "later") == "blocked");
    assert_eq!(one.get("/v1/keys/login/alice").json()["block"], Value::Null);
}

//! What is said of a key's plan by views and operators, who name the key and not its plan.

use serde_json::{Value, json};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until_true};

const POLICIES: &str = "
policies:
  - {name: log, scope: [user], window: 1h, limit: {by: plan, values: {free: 10, pro: 100}, default: 5}}
  - {name: bucket, scope: [user], window: 1h, algorithm: token-bucket, limit: {by: plan, values: {pro: 100}, default: 5}}
  - name: spend
    scope: [user]
    limit: { by: plan, values: { pro: 100 }, default: 5 }
    window: 1h
    counts: { usd: 1 }
  - name: month
    scope: [user]
    window: month
    time_zone: Europe/Berlin
    anchor: { attribute: day }
    limit: { by: plan, values: { pro: 100 }, default: 5 }
  - {name: own, scope: [user], window: 1h, limit: {by: plan, values: {pro: 100}, default: 5}, overrides: {alice: 70}}
";

/// `key show`, lists, refunds and penalties by the default limit show a paying customer "41 of 5".
#[test]
fn a_key_is_shown_and_changed_under_its_plan() {
    let (folder, redis) = (TempDir::new("plans"), RedisServer::start());
    let alone = Server::start(&["--config", &folder.file("alone.yaml", POLICIES)]);
    let store = format!("store: {{redis: '{}', deadline: 10s}}{POLICIES}", redis.url());
    let shared = folder.file("shared.yaml", store);
    let [one, two] = [(); 2].map(|()| Server::start(&["--config", &shared]));
    let check = |server: &Server, cost: u64, plan: &str| {
        let attributes = json!({ "user": "alice", "plan": plan, "day": "15" });
        let body = json!({ "attributes": attributes, "cost": { "usd": cost } }).to_string();
        let checked = server.post("/v1/check", &body);
        assert_eq!(checked.status, 200, "{}", checked.body);
    };
    for (decides, shows) in [(&alone, &alone), (&one, &one), (&one, &two)] {
        let key = |policy: &str| shows.get(&format!("/v1/keys/{policy}/alice")).json();
        let change = |policy: &str, action: &str, body: &Value| {
            shows.change("POST", &format!("/v1/keys/{policy}/alice/{action}"), &[], &body.to_string()).json()
        };
        for policy in ["log", "bucket", "spend", "month", "own"] {
            change(policy, "reset", &json!({}));
        }
        check(decides, 41, "pro");
        for (policy, limit, plan) in [
            ("log", 100, "pro"),
            ("bucket", 100, "pro"),
            ("spend", 100, "pro"),
            ("month", 100, "pro"),
            ("own", 70, ""),
        ] {
            let plan = if plan.is_empty() { Value::Null } else { json!(plan) };
            until_true(&format!("the plan is stored: {policy}"), || key(policy)["limit"] == limit);
            let found = key(policy);
            assert_eq!(
                [&found["plan"], &found["used"].as_f64().unwrap().round().into()],
                [&plan, &json!(41.0)],
                "{found}"
            );
            let listed = shows.get(&format!("/v1/keys?policy={policy}")).json()["keys"][0].clone();
            assert_eq!([&listed["limit"], &listed["plan"]], [&json!(limit), &plan], "{policy}: {listed}");
            let (limit, left) = (limit as f64, limit as f64 - 43.0);
            let charged = change(policy, "penalize", &json!({ "cost": 2 }));
            let numbers =
                [&charged["limit"], &charged["remaining"]].map(|number| number.as_f64().unwrap().round());
            assert_eq!(numbers, [limit, left], "{policy}: {charged}");
            let refunded = change(policy, "refund", &json!({ "cost": 3 }));
            let numbers =
                [&refunded["limit"], &refunded["remaining"]].map(|number| number.as_f64().unwrap().round());
            assert_eq!(numbers, [limit, left + 3.0], "{policy}: {refunded}");
        }
        let closest = shows.get("/v1/top?by=closest").json();
        for one in closest["keys"].as_array().unwrap() {
            let limit = if one["policy"] == "own" { 70 } else { 100 };
            assert_eq!(one["now"]["limit"], limit, "{one}");
        }
        // A denial charges nothing and leaves the plan, as does a peek.
        for (path, status) in [("/v1/check", 429), ("/v1/peek", 200)] {
            let body = json!({ "attributes": { "user": "alice" }, "cost": { "usd": 4 } }).to_string();
            assert_eq!(decides.post(path, &body).status, status);
            let found = key("log");
            assert_eq!((&found["limit"], &found["plan"]), (&json!(100), &json!("pro")), "{path}: {found}");
        }
        // A refund does not know the plan: it leaves it. A plan that was left is forgotten.
        let body = json!({ "attributes": { "user": "alice" }, "cost": 38 }).to_string();
        assert_eq!(decides.post("/v1/refund", &body).status, 200);
        assert_eq!(key("log")["limit"], 100);
        check(decides, 1, "free");
        until_true("the new plan is stored", || key("log")["plan"] == "free");
    }
    let shown = text(&run(&["key", "show", "log", "alice", "--url", &two.url]).stdout);
    assert!(shown.contains("of 10 per 1h (plan `free`, sliding-log)"), "{shown}");
    // What another program wrote counts for nothing.
    redis.admin(&["SET", "sg1:quota:{sg1:log:alice}", "5/1h"]);
    assert_eq!(two.get("/v1/keys/log/alice").json()["limit"], 5);
}

//! Weighted costs, as clients and operators see them: in units, with the decimals that were counted.

use serde_json::json;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run};

const POLICIES: &str = "
policies:
  - name: spend
    scope: [user]
    limit: { by: plan, values: { team: 500 }, default: 5 }
    window: 1h
    counts: { input: 0.000002, output: 0.00001 }
    unit: usd
    estimate: 0.05
    notify: 80%
resp: { listen: '127.0.0.1:0' }
admin: { tokens: [] }
";

fn start(folder: &TempDir) -> Server {
    Server::start(&["--config", &folder.file("slidegate.yaml", POLICIES)])
}

fn body(cost: &serde_json::Value) -> String {
    json!({ "attributes": { "user": "alice" }, "cost": cost }).to_string()
}

/// A bill is compared with what the limiter says, to the last decimal.
#[test]
fn answers_have_the_decimals_and_header_fields_whole_units() {
    let folder = TempDir::new("weighted-http");
    let server = start(&folder);
    let checked = server.post("/v1/check", &body(&json!({ "input": 90_000, "output": 4_000 })));
    let answer = checked.json();
    let numbers = [&answer["limit"], &answer["used"], &answer["remaining"], &answer["cost"]];
    assert_eq!(json!(numbers), json!([5, 0.22, 4.78, 0.22]), "{answer}");
    assert_eq!(answer["why"], "spend: `alice` has used 0.22 of 5 usd per 1h, 4.78 remain");
    assert_eq!(answer["policies"][0]["used"], 0.22);
    let field = checked.header("ratelimit").unwrap();
    assert!(field.starts_with("\"spend\";r=4;"), "{field}");
    let policy = checked.header("ratelimit-policy").unwrap();
    assert!(policy.contains("q=5"), "{policy}");

    let denied = server.post("/v1/check", &body(&json!({ "output": 478_001 })));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["used"], 0.22, "nothing was charged");
    let detail = denied.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("key `alice` has used 0.22 of 5 usd."), "{detail}");
    let fits = server.post("/v1/check", &body(&json!({ "output": 478_000 })));
    assert_eq!((fits.status, fits.json()["remaining"].clone()), (200, json!(0)));
    let refunded = server.post("/v1/refund", &body(&json!({ "output": 1 })));
    assert_eq!(refunded.json()["cost"], 0.00001);
    assert_eq!(refunded.json()["remaining"], 0.00001);
}

/// An estimate in cents must be held as cents, and what is settled is what is charged.
#[test]
fn reservations_hold_and_settle_fractions() {
    let folder = TempDir::new("weighted-reserve");
    let server = start(&folder);
    let reserved = server.post("/v1/reserve", r#"{"attributes": {"user": "alice"}}"#).json();
    assert_eq!((&reserved["held"], &reserved["remaining"]), (&json!(0.05), &json!(4.95)), "{reserved}");
    let key = server.get("/v1/keys/spend/alice").json();
    assert_eq!(
        (&key["held"], &key["holds"][0]["held"], &key["limit"]),
        (&json!(0.05), &json!(0.05), &json!(5)),
        "{key}"
    );
    let open = server.get("/v1/policies").json();
    let policy = &open["policies"][0];
    let said =
        [&policy["limit"], &policy["estimate"], &policy["unit"], &policy["counted"], &policy["held_cost"]];
    assert_eq!(
        json!(said),
        json!([5, 0.05, "usd", "0.000002 input + 0.00001 output", 1]),
        "what is held is rounded up"
    );
    let settle = json!({ "ticket": reserved["ticket"], "cost": { "input": 1, "output": 123 } });
    let settled = server.post("/v1/settle", &settle.to_string()).json();
    assert_eq!(settled["policies"][0]["used"], 0.001_232, "{settled}");
    assert_eq!(settled["policies"][0]["cost"], 0.001_232);
}

/// A thousand small costs are their sum on every page that adds them up.
#[test]
fn sums_are_not_those_of_rounded_costs() {
    let folder = TempDir::new("weighted-sums");
    let server = start(&folder);
    for _ in 0..500 {
        assert_eq!(server.post("/v1/check", &body(&json!({ "output": 900 }))).status, 200);
    }
    let metrics = server.get("/metrics").body;
    let line =
        |name: &str| metrics.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert_eq!(
        line("slidegate_cost_admitted_total{policy=\"spend\"}"),
        "slidegate_cost_admitted_total{policy=\"spend\"} 4.5"
    );
    assert_eq!(
        line("slidegate_policy_limit{policy=\"spend\"}"),
        "slidegate_policy_limit{policy=\"spend\"} 5"
    );
    let of_team = "slidegate_policy_tier_limit{policy=\"spend\",tier=\"team\"}";
    assert_eq!(line(of_team), format!("{of_team} 500"));
    let top = server.get("/v1/top?policy=spend").json();
    assert_eq!(top["keys"][0]["count"], 4.5, "{top}");
    let counts = server.get("/v1/policies").json()["policies"][0]["counts"].clone();
    assert_eq!(counts["cost_allowed"], 4.5, "{counts}");
    let events = server.get("/v1/events").json();
    let crossed = &events["events"][0];
    assert_eq!(
        (&crossed["threshold"], &crossed["used"], &crossed["limit"]),
        (&json!(80), &json!(4.005), &json!(5)),
        "{events}"
    );
}

/// An operator's tools speak of units, and take them.
#[test]
fn commands_and_changes_are_in_units() {
    let folder = TempDir::new("weighted-commands");
    let config = folder.file("slidegate.yaml", POLICIES);
    let valid = run(&["validate", &config]);
    let text = String::from_utf8(valid.stdout).unwrap();
    assert!(text.contains("limited to 5 per 1h"), "{text}");
    assert!(text.contains("What counts is 0.000002 input + 0.00001 output, in usd."), "{text}");
    let server = start(&folder);
    let listed = run(&["policy", "list", "--url", &server.url]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(
        listed.starts_with("spend: 5 usd per 1h (sliding-log), by plan: team 500; allowed 0"),
        "{listed}"
    );
    let raised =
        server.change("POST", "/v1/keys/spend/alice/override", &[], r#"{"quota": "8", "for": "1h"}"#).json();
    assert_eq!((&raised["limit"], &raised["override"]["limit"]), (&json!(8), &json!(8)), "{raised}");
    let charged = server.change("POST", "/v1/keys/spend/alice/penalize", &[], r#"{"cost": 3}"#).json();
    assert_eq!((&charged["used"], &charged["done"]), (&json!(3), &json!("3 usd was charged")), "{charged}");
    let lowered = server.change("PUT", "/v1/policies/spend", &[], r#"{"limit": 2}"#);
    assert_eq!(lowered.status, 200, "{}", lowered.body);
    let bob = server.post("/v1/check", r#"{"attributes": {"user": "bob"}, "cost": {"output": 200001}}"#);
    assert_eq!((bob.status, bob.json()["limit"].clone()), (429, json!(2)));
    let check = |cost| {
        let ran = run(&["check", "user=dave", "--cost", cost, "--url", &server.url]);
        (ran.status.code(), String::from_utf8([ran.stdout, ran.stderr].concat()).unwrap())
    };
    let (code, said) = check("input=90000,output=4000");
    assert!(code == Some(0) && said.contains("has used 0.22 of 2 usd"), "{code:?} {said}");
    let (code, said) = check("output=178001");
    assert_eq!(code, Some(1), "{said}");
    for (cost, problem) in [
        ("output=1,output=2", "`output` is given twice; give it once"),
        ("output=1,2", "must be a number, or numbers by name, for example input=900,output=4096"),
        ("output=-1", "must be a whole number from 0 to 9007199254740991"),
    ] {
        let (code, said) = check(cost);
        assert!(code == Some(2) && said.contains(problem), "{cost}: {code:?} {said}");
    }
    let added =
        r#"{"scope": ["user"], "quota": "9/1m", "counts": {"input": 0.000001, "output": 1}, "unit": "usd"}"#;
    let added = server.change("PUT", "/v1/policies/added", &[], added);
    assert_eq!(added.status, 200, "{}", added.body);
    let carol = server
        .post("/v1/check", r#"{"attributes": {"user": "carol"}, "policy": "added", "cost": {"input": 7}}"#);
    assert_eq!(carol.json()["used"], 0.000_007, "{}", carol.body);
}

/// One limit that cannot be in force must not look as if it were, nor keep the next changes from it: a block, above all.
#[test]
fn a_limit_beyond_what_weights_allow_is_refused_at_run_time() {
    let folder = TempDir::new("weighted-change");
    let server = start(&folder);
    let change =
        |method, path: &str, body: &serde_json::Value| server.change(method, path, &[], &body.to_string());
    let why = "invalid limit `9000000000`: a policy that weighs costs counts millionths; must be at most 8000000000";
    let added = json!({ "scope": [], "limit": 9_000_000_000_u64, "window": "1h", "counts": { "input": 1 } });
    for (method, path, body) in [
        ("PUT", "/v1/policies/spend", json!({ "limit": 9_000_000_000_u64 })),
        ("PUT", "/v1/policies/spend", json!({ "candidate": { "limit": 9_000_000_000_u64 } })),
        ("POST", "/v1/keys/spend/alice/override", json!({ "quota": "9000000000", "for": "1h" })),
        ("PUT", "/v1/policies/new", added),
    ] {
        let refused = change(method, path, &body);
        assert!((400..500).contains(&refused.status), "{path}: {}", refused.body);
        assert!(refused.body.contains(why), "{path}: {}", refused.body);
    }
    assert_eq!(server.get("/v1/changes").json()["changes"], json!([]));
    assert_eq!(change("POST", "/v1/keys/spend/alice/block", &json!({ "for": "1h" })).status, 200);
    assert_eq!(server.post("/v1/check", &body(&json!({ "input": 1 }))).status, 429);
}

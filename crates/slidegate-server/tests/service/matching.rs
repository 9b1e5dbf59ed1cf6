//! Which requests a policy is for: what is missing, folded, exempt or never matches is shown.

use std::fs::File;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, text};

const POLICIES: &str = "
policies:
  - {name: silent, scope: [user], quota: 5/1m}
  - {name: said, scope: [user], quota: 5/1m, on_missing: skip}
  - {name: one, scope: [ip], quota: 2/1m, on_missing: one-key, when: {path: {not: [/healthz, /readyz]}}}
  - {name: denied, scope: [account], quota: 5/1m, on_missing: deny, when: {path: /login}, fold: {path: [case, slash], account: case}}
  - {name: net, scope: [peer], quota: 5/1m, overrides: {10.0.0.0/8: 50, 10.1.0.0/16: unlimited}, on_missing: skip}
attributes: {addresses: [ip, peer]}
";

fn check(server: &Server, attributes: &Value) -> (u16, Value) {
    let answer = server.post("/v1/check", &json!({ "attributes": attributes }).to_string());
    (answer.status, answer.json())
}

/// Operators must see that a limit is none for some requests, in numbers and once in the log.
#[test]
fn a_policy_that_is_skipped_is_counted_logged_once_and_explained() {
    let folder = TempDir::new("matching");
    let log = folder.file("log", "");
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    for _ in 0..3 {
        assert_eq!(check(&server, &json!({ "path": "/healthz" })).0, 200);
    }
    assert_eq!(check(&server, &json!({ "path": "/healthz", "user": "alice" })).0, 200);
    let metrics = server.get("/metrics").body;
    for (policy, count) in [("silent", 3), ("said", 3), ("one", 0), ("denied", 0), ("net", 4)] {
        let line = format!("slidegate_missing_attribute_total{{policy=\"{policy}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let written = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<_> =
        written.lines().filter(|line| line.contains("lacks an attribute of the policy's scope")).collect();
    assert_eq!(lines.len(), 1, "{written}");
    assert!(lines[0].contains("silent"), "{written}");
    let explained = run(&["explain", "--config", &config, "path=/healthz"]);
    let said = text(&explained.stdout);
    assert!(
        said.contains(
            "silent: does not apply: user is not given, and the policy counts by it (on_missing: skip)"
        ),
        "{said}"
    );
}

/// What a client leaves out must not lift the limit that is meant to hold for everybody.
#[test]
fn what_is_missing_counts_as_one_or_is_denied() {
    let folder = TempDir::new("matching");
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start(&["--config", &config]);
    let nobody = json!({ "path": "/x" });
    assert_eq!([(); 3].map(|()| check(&server, &nobody).0), [200, 200, 429]);
    let key = server.get("/v1/keys/one/*").json();
    assert_eq!((&key["used"], &key["key"]), (&json!(2), &json!("*")));
    let blocked = server.change("POST", "/v1/keys/one/*/block", &[], r#"{"for": "1h"}"#);
    assert_eq!(blocked.status, 409, "{}", blocked.body);
    for path in ["/login", "/Login/", "/LOGIN;a=1"] {
        let (status, body) = check(&server, &json!({ "path": path, "ip": "192.0.2.1" }));
        assert_eq!((status, &body["policy"]), (429, &json!("denied")), "{path}: {body}");
        assert_eq!(
            body["why"],
            "denied: `*` lacks account, and is denied by on_missing, and has used 0 of 5 per 1m"
        );
        let detail = body["detail"].as_str().unwrap();
        assert!(detail.contains("the request lacks `account`"), "{detail}");
    }
    let account = |name| json!({ "path": "/login", "ip": "192.0.2.9", "account": name });
    assert_eq!(check(&server, &account("Zoe")).0, 200);
    assert_eq!(check(&server, &account("ZOE")).0, 200);
    assert_eq!(server.get("/v1/keys/denied/zoE").json()["used"], 2);
}

/// A partner's network and its robots, in the file and for an hour.
#[test]
fn networks_and_unlimited_keys_are_shown_as_they_are() {
    let folder = TempDir::new("matching");
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start(&["--config", &config]);
    let limit = |peer: &str| server.get(&format!("/v1/keys/net/{peer}")).json();
    for (peer, expected, unlimited) in
        [("10.9.9.9", 50, false), ("192.0.2.1", 5, false), ("10.1.1.1", 5, true)]
    {
        let key = limit(peer);
        assert_eq!((&key["limit"], &key["unlimited"]), (&json!(expected), &json!(unlimited)), "{peer}");
    }
    let request = |peer: &str| json!({ "peer": peer, "path": "/healthz" });
    let explained = run(&["explain", "--config", &config, "peer=10.1.1.1"]);
    assert!(text(&explained.stdout).contains("net: does not apply: its key is unlimited by an override"));
    let given = r#"{"for": "1h", "quota": "unlimited"}"#;
    let done = server.change("POST", "/v1/keys/net/192.0.2.1/override", &[], given);
    assert_eq!(done.status, 200, "{}", done.body);
    assert!(done.json()["done"].as_str().unwrap().starts_with("it is unlimited until "), "{}", done.body);
    assert_eq!([(); 9].map(|()| check(&server, &request("192.0.2.1")).0), [200; 9]);
    assert_eq!(limit("192.0.2.1")["override"]["limit"], Value::Null);
    let shown = run(&["key", "show", "net", "192.0.2.1", "--url", &server.url]);
    assert!(text(&shown.stdout).contains("unlimited by an override"), "{}", text(&shown.stdout));
    // A block binds an unlimited key as well.
    let blocked = server.change("POST", "/v1/keys/net/192.0.2.1/block", &[], r#"{"for": "1h"}"#);
    assert_eq!((blocked.status, check(&server, &request("192.0.2.1")).0), (200, 429));
    for action in ["unblock", "clear-override"] {
        assert_eq!(server.change("POST", &format!("/v1/keys/net/192.0.2.1/{action}"), &[], "{}").status, 200);
    }
    assert_eq!([(); 6].map(|()| check(&server, &request("192.0.2.1")).0), [200, 200, 200, 200, 200, 429]);
}

/// A file that limits nothing must not look like one that does.
#[test]
fn what_never_matches_is_told_by_validate_and_at_the_start() {
    let folder = TempDir::new("matching");
    let log = folder.file("log", "");
    let odd = "policies: [{name: p, scope: [“user”], quota: 5/1m}]\n";
    let config = folder.file("slidegate.yaml", odd);
    let warning = "policy `p`: scope: attribute `“user”` has a typographic quote (U+201C), so probably no request has it; \
                   did you mean `user`?";
    let validated = run(&["validate", &config]);
    assert_eq!(validated.status.code(), Some(0));
    assert!(
        text(&validated.stdout).contains(&format!("\nwarning: {warning}\n")),
        "{}",
        text(&validated.stdout)
    );
    drop(Server::start_logging_to(&["--config", &config], File::create(&log).unwrap()));
    let written = std::fs::read_to_string(&log).unwrap();
    assert!(written.contains(warning), "{written}");
}

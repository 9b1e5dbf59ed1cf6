//! Policies that are added while the service runs: through the route and the command, in a fleet,
//! and beside a file.

use std::process::{Output, Stdio};

use serde_json::{Value, json};
use slidegate_testkit::http::Response;
use slidegate_testkit::service::{Server, slidegate, text};
use slidegate_testkit::{TempDir, until_true};

const LOGIN: &str = "/v1/policies/login";

fn put(server: &Server, path: &str, body: &Value) -> Response {
    server.change("PUT", path, &[], &body.to_string())
}

fn check(server: &Server, attributes: &Value) -> u16 {
    server.post("/v1/check", &json!({ "attributes": attributes }).to_string()).status
}

fn command(server: &Server, args: &[&str]) -> Output {
    slidegate().args(args).args(["--url", &server.url]).stdin(Stdio::null()).output().unwrap()
}

fn said(server: &Server, args: &[&str]) -> String {
    let output = command(server, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

fn policy(server: &Server, name: &str) -> Value {
    let policies = server.get("/v1/policies").json()["policies"].clone();
    let found = policies.as_array().unwrap().iter().find(|policy| policy["name"] == name).cloned();
    found.unwrap_or_default()
}

/// Readers of JSON disagree on which of two members counts: one of them would put another limit in
/// force than was read.
#[test]
fn a_policy_with_a_member_twice_is_refused() {
    let server = Server::start(&["--policy", "9/1h per user"]);
    for body in [
        r#"{"scope":["ip"],"quota":"2/1h","quota":"2000/1h"}"#,
        r#"{"scope":["ip"],"quota":"2/1h","when":{"path":"/a","path":"/b"}}"#,
        r#"{"quota":"2/1h","quota":"2000/1h"}"#,
    ] {
        let refused = server.change("PUT", LOGIN, &[], body);
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
        assert!(refused.body.contains("duplicate field `"), "{body}: {}", refused.body);
    }
    assert_eq!(policy(&server, "login"), Value::Null);
}

/// Under an attack there is no time for a rollout: a limit that nobody foresaw must be there at
/// once, and go again.
#[test]
fn a_policy_is_added_changed_undone_and_taken_away() {
    let server = Server::start(&["--policy", "9/1h per user"]);
    let login =
        json!({ "when": { "path": "/login" }, "scope": ["ip"], "quota": "2/1h", "keys_shown": "hashed" });
    let answer = put(&server, LOGIN, &login);
    assert_eq!(
        (answer.status, answer.json()),
        (
            200,
            json!({
                "policy": "login", "change": 1,
                "done": "2 per 1h (sliding-log), added at run time with scope [\"ip\"]",
            })
        )
    );
    let alice = json!({ "path": "/login", "ip": "192.0.2.7" });
    assert_eq!([(); 3].map(|()| check(&server, &alice)), [200, 200, 429]);
    assert_eq!(check(&server, &json!({ "path": "/", "ip": "192.0.2.7" })), 200);
    let listed = policy(&server, "login");
    assert_eq!((&listed["origin"], &listed["when"]), (&json!("added"), &json!(["path is `/login`"])));
    server.assert_matches_openapi("GET", "/v1/policies", None, 200);
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
    // What was said of its keys counts from the first denial on.
    let event = server.get("/v1/events").json()["events"][0].clone();
    assert!(event["key"].as_str().unwrap().starts_with('#'), "{event}");

    // From here on it is changed like any other, keeps its usage, and keeps what it is.
    assert_eq!(
        said(&server, &["policy", "set", "login", "3/1h"]),
        "login: 2 per 1h -> 3 per 1h (sliding-log), added at run time with scope [\"ip\"] (change 2)"
    );
    assert_eq!([(); 2].map(|()| check(&server, &alice)), [200, 429]);
    assert_eq!(policy(&server, "login")["origin"], "added");
    said(&server, &["key", "block", "login", "192.0.2.8", "--for", "1h"]);
    assert_eq!(check(&server, &json!({ "path": "/login", "ip": "192.0.2.8" })), 429);
    // Another in its place.
    put(&server, LOGIN, &json!({ "scope": [], "limit": 1, "window": "1h", "mode": "shadow" }));
    let listed = policy(&server, "login");
    assert_eq!(
        (&listed["scope"], &listed["mode"], &listed["limit"]),
        (&json!([]), &json!("shadow"), &json!(1))
    );
    assert_eq!(
        said(&server, &["policy", "undo"]),
        "login: 3 per 1h (sliding-log), added at run time with scope [\"ip\"] (change 4)"
    );
    assert_eq!(said(&server, &["policy", "unset", "login"]), "login: taken away (change 5)");
    assert_eq!(policy(&server, "login"), Value::Null);
    assert_eq!(check(&server, &alice), 200);
    said(&server, &["policy", "undo"]);
    assert_eq!(policy(&server, "login")["limit"], 3);
    said(&server, &["policy", "undo", "2"]);
    assert_eq!(said(&server, &["policy", "undo", "1"]), "login: taken away (change 8)");

    // By the command, with flags or a file as the configuration has it.
    let args =
        ["policy", "set", "api", "5/1m", "--scope", "user,tenant", "--when", "path=/api", "--mode", "shadow"];
    assert_eq!(
        said(&server, &args),
        "api: 5 per 1m (sliding-log), shadow, added at run time with scope [\"user\",\"tenant\"] (change 9)"
    );
    let folder = TempDir::new("added-command");
    let file =
        folder.file("policy.yaml", "when: {path: {prefix: /v2/}}\nscope: [user]\nlimit: 7\nwindow: 1m\n");
    said(&server, &["policy", "set", "v2", "--from", &file]);
    assert_eq!(policy(&server, "v2")["when"], json!(["path begins with `/v2/`"]));
    assert!(said(&server, &["policy", "list"]).contains("v2: 7 per 1m (sliding-log), added at run time;"));
}

/// A name with a mistake in it must not become a new limit for everybody, and half a policy must
/// not become one.
#[test]
fn what_is_no_policy_is_refused_and_says_why() {
    let server = Server::start(&["--policy", "9/1h per user", "--resp", "127.0.0.1:0"]);
    let long = json!({ "scope": ["user"], "quota": "1/1s", "when": { "path": "x".repeat(8200) } });
    for (name, body, status, detail) in [
        (
            "per-usr",
            json!({ "quota": "5/1m" }),
            404,
            "unknown policy `per-usr`: must be one of `per-user`; to add one, say its `scope` as well",
        ),
        (
            "new",
            json!({ "when": { "path": "/x" }, "quota": "5/1m" }),
            400,
            "scope is missing; give the attributes that it counts by, for example `\"scope\": [\"user\"]`, or `[]` for one \
             count of all requests",
        ),
        (
            "new",
            json!({ "scope": ["user"], "limit": 5 }),
            400,
            "policy `new`: missing window: write it, for example `window: 60s`",
        ),
        (
            "a b",
            json!({ "scope": ["user"], "quota": "5/1m" }),
            400,
            "policy `a b`: invalid name `a b`: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`",
        ),
        (
            "new.candidate",
            json!({ "scope": ["user"], "quota": "5/1m" }),
            400,
            "policy `new.candidate`: invalid name `new.candidate`: must not end in `.candidate`, which is for candidates; \
             choose another",
        ),
        (
            "THROTTLE",
            json!({ "scope": ["key"], "quota": "5/1m" }),
            409,
            "there is a policy `THROTTLE` already, which a protocol defines; choose another name",
        ),
        (
            "per-user",
            json!({ "scope": ["ip"], "quota": "5/1m" }),
            409,
            "policy `per-user` is of the configuration, where its `scope` is changed; leave it out here",
        ),
        (
            "new",
            long,
            400,
            "the policy takes 8252 bytes; 8192 is the most, so write it into the configuration",
        ),
    ] {
        let answer = put(&server, &format!("/v1/policies/{}", name.replace(' ', "%20")), &body);
        assert_eq!((answer.status, answer.json()["detail"].as_str().unwrap()), (status, detail));
    }
    for n in 0..64 {
        let answer =
            put(&server, &format!("/v1/policies/p{n}"), &json!({ "scope": ["user"], "quota": "99/1h" }));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    let answer = put(&server, "/v1/policies/p64", &json!({ "scope": ["user"], "quota": "99/1h" }));
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str().unwrap()),
        (
            409,
            "64 policies were added at run time, which is the most; write lasting ones into the configuration"
        )
    );
    assert_eq!(put(&server, "/v1/policies/p63", &json!({ "scope": ["ip"], "quota": "99/1h" })).status, 200);
    let missing = command(&server, &["policy", "set", "x", "--from", "/nowhere.yaml"]);
    assert_eq!(
        text(&missing.stderr).trim_end(),
        "--from /nowhere.yaml: No such file or directory (os error 2); give the keys of one policy, for example `scope: \
         [user]` and `quota: 100/1m`"
    );
}

/// What was tried goes into the file at last, under its name: from then on the file says what it
/// is, and nobody wonders.
#[test]
fn a_file_that_brings_the_name_along_comes_first_and_it_is_said() {
    const POLICY: &str = "{name: per-user, scope: [user], quota: 9/1h}";
    let folder = TempDir::new("added-file");
    let file = folder.file("slidegate.yaml", format!("policies: [{POLICY}]"));
    let server = Server::start(&["--config", &file]);
    put(&server, LOGIN, &json!({ "scope": ["ip"], "quota": "2/1h" }));
    let ip = json!({ "ip": "192.0.2.7" });
    assert_eq!(check(&server, &ip), 200);
    folder.file("slidegate.yaml", format!("policies: [{POLICY}, {{name: login, scope: [ip], quota: 1/1h}}]"));
    until_true("the file is in force", || policy(&server, "login")["origin"] == "file");
    // Usage is kept by name.
    assert_eq!(check(&server, &ip), 429);
    let words = "policy `login` was added at run time, and the configuration has one of this name, which is in force; \
                 `slidegate policy unset login` takes the added one away";
    assert_eq!(server.get("/v1/status").json()["changes"]["refused"], json!([words]));
    // A change is one of the file's policy.
    assert_eq!(
        said(&server, &["policy", "set", "login", "5/1h"]),
        "login: 1 per 1h -> 5 per 1h (sliding-log) (change 2)"
    );
    assert_eq!(policy(&server, "login")["origin"], "changed");
    assert_eq!(server.get("/v1/status").json()["changes"]["refused"], json!([]));
    said(&server, &["policy", "undo"]);
    assert_eq!(policy(&server, "login")["limit"], 1);
    assert_eq!(said(&server, &["policy", "unset", "login"]), "login: taken away (change 4)");
    assert_eq!(policy(&server, "login")["origin"], "file");
    assert_eq!(server.get("/v1/status").json()["changes"]["refused"], json!([]));
}

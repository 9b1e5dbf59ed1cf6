//! The admin routes and the commands over them, through real sockets and real stores.

use std::fs::{self, File};
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use slidegate_testkit::http::Response;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, Token, slidegate, text};
use slidegate_testkit::{TempDir, until, until_true};

const POLICY: &str = "policies: [{name: per-user, scope: [user], quota: 2/1h}]\n";
const ALICE: &str = "/v1/keys/per-user/alice";

pub(crate) fn check(server: &Server, user: &str) -> Response {
    server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string())
}

pub(crate) fn post(server: &Server, path: &str, body: &Value) -> Response {
    server.change("POST", path, &[], &body.to_string())
}

pub(crate) fn command(server: &Server, args: &[&str]) -> Output {
    slidegate().args(args).args(["--url", &server.url]).stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn said(server: &Server, args: &[&str]) -> String {
    let output = command(server, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).trim_end().to_owned()
}

/// Anyone who can reach the port must not be able to unblock himself.
#[test]
fn a_token_is_needed_and_permits_what_it_says_and_is_never_logged() {
    let [(reader, read_line), (writer, write_line)] = ["read", "write"].map(|scope| {
        let Token { secret, entry, .. } = Token::new(scope, scope);
        (secret, entry)
    });
    let folder = TempDir::new("admin-tokens");
    let log = folder.file("log", "");
    let tokens = format!("{read_line},{write_line}");
    let variables = [("SLIDEGATE_ADMIN_TOKENS", tokens.as_str())];
    let args = ["--policy", "3/1h per user"];
    let server = Server::start_at("0.0.0.0:0", &variables, &args, File::create(&log).unwrap());
    let bearer = |token: &str| format!("Bearer {token}");
    let with = |method: &str, path: &str, token: &str| {
        server.change(method, path, &[("authorization", &bearer(token))], "{}")
    };
    let anonymous = server.get("/v1/status");
    assert_eq!((anonymous.status, anonymous.header("www-authenticate")), (401, Some("Bearer")));
    for wrong in ["", "sg_", &reader[..reader.len() - 1], &read_line] {
        assert_eq!(with("GET", "/v1/status", wrong).status, 401, "{wrong}");
        assert_eq!(with("POST", &format!("{ALICE}/reset"), wrong).status, 401, "{wrong}");
    }
    for path in ["/v1/status", "/v1/policies", "/v1/shadow", "/v1/changes", ALICE, "/v1/events", "/metrics"] {
        assert_eq!(server.get(path).status, 401, "{path}");
        assert_eq!(with("GET", path, &reader).status, 200, "{path}");
        assert_eq!(with("GET", path, &writer).status, 200, "{path}");
    }
    for (method, path) in [
        ("POST", format!("{ALICE}/reset")),
        ("PUT", "/v1/policies/per-user".to_owned()),
        ("DELETE", "/v1/policies/per-user".to_owned()),
        ("POST", "/v1/policies/per-user/promote".to_owned()),
        ("POST", "/v1/changes/1/undo".to_owned()),
    ] {
        assert_eq!(server.change(method, &path, &[], "{}").status, 401, "{path}");
        let refused = with(method, &path, &reader);
        assert_eq!(refused.status, 403);
        assert_eq!(
            refused.json()["detail"],
            "token `read` has the scope `read`, but `write` is required; create one with `slidegate token new --scope write`"
        );
    }
    assert_eq!(check(&server, "alice").status, 200);
    assert_eq!(with("POST", &format!("{ALICE}/reset"), &writer).status, 200);
    let logged = until("the change is in the log", || {
        let logged = fs::read_to_string(&log).unwrap();
        logged.contains("slidegate::audit").then_some(logged)
    });
    let line = logged.lines().find(|line| line.contains("slidegate::audit")).unwrap();
    let found = r#"by="write" action="reset" policy="per-user" key="alice" detail="its usage is forgotten: used 1 -> 0 of 3""#;
    assert!(line.contains(found), "{line}");
    assert!(!logged.contains("sg_"), "{logged}");
    assert!(!server.greeting.contains("sg_"));

    let file = folder.file("token", format!("{writer}\n"));
    assert!(
        said(&server, &["key", "show", "per-user", "alice", "--token-file", &file])
            .contains("has used 0 of 3")
    );
    let output = command(&server, &["policy", "list"]);
    assert_eq!(output.status.code(), Some(2));
    let why = "returned 401: token required; give it with --token-file or SLIDEGATE_TOKEN";
    assert!(text(&output.stderr).trim().ends_with(why), "{}", text(&output.stderr));
}

/// A service exposed by mistake must reject changes from the network, and must still limit.
#[test]
fn off_loopback_without_a_token_the_routes_are_off_and_decisions_are_served() {
    let folder = TempDir::new("admin-off");
    let log = folder.file("log", "");
    let args = ["--policy", "3/1h per user"];
    let server = Server::start_at("0.0.0.0:0", &[], &args, File::create(&log).unwrap());
    assert_eq!(check(&server, "alice").status, 200);
    let refused = server.get("/v1/policies");
    let detail = refused.json()["detail"].as_str().unwrap().to_owned();
    assert_eq!(refused.status, 403);
    assert!(detail.starts_with("admin routes are disabled: 0.0.0.0:"), "{detail}");
    assert!(detail.ends_with("create one with `slidegate token new`, or listen on 127.0.0.1"), "{detail}");
    assert_eq!(post(&server, &format!("{ALICE}/reset"), &json!({})).status, 403);
    until_true("the log says so", || fs::read_to_string(&log).unwrap().contains("admin routes are disabled"));
}

/// Browsers send what any page asks them to: to loopback as well.
#[test]
fn pages_of_other_sites_neither_read_nor_change() {
    let server = Server::start(&["--policy", "3/1h per user"]);
    let rebound = "GET /v1/status HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    let refused = Response::parse(&server.raw(rebound.as_bytes()));
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("invalid `Host` header: without tokens, admin routes accept only `localhost` and loopback addresses"), "{}", refused.body);
    let reset = format!("{ALICE}/reset");
    for field in [("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")] {
        assert_eq!(server.change("POST", &reset, &[field], "{}").status, 403, "{field:?}");
    }
    // What a form sends: no JSON.
    assert_eq!(server.ask("POST", &reset, Some("{}")).status, 415);
    assert_eq!(server.change("POST", &reset, &[("sec-fetch-site", "same-origin")], "{}").status, 200);
}

/// Who looks whether a port is open must not have to read three files and a command line.
#[test]
fn status_says_everywhere_it_listens() {
    let folder = TempDir::new("admin-listeners");
    let socket = format!("{}/grpc.sock", folder.as_str());
    let config = folder.file("slidegate.yaml", format!("grpc: {{socket: '{socket}'}}\n{POLICY}"));
    let args = ["--config", config.as_str(), "--resp", "127.0.0.1:0", "--grpc", "127.0.0.1:0"];
    let server = Server::start(&args);
    let greeted =
        |name: &str| server.greeting.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    let grpc = greeted("grpc").split(", ").next().unwrap().strip_prefix("http://").unwrap();
    let expected = json!([
        { "protocol": "http", "address": server.address, "tls": false },
        { "protocol": "resp", "address": greeted("resp").strip_prefix("redis://").unwrap(), "tls": false },
        { "protocol": "grpc", "address": grpc, "tls": false },
        { "protocol": "grpc", "address": format!("unix:{socket}"), "tls": false },
    ]);
    assert_eq!(server.get("/v1/status").json()["listeners"], expected);
}

/// The question of every support case: why is this customer denied, and what can be done about it?
#[test]
fn one_key_is_shown_and_helped() {
    let server = Server::start(&["--policy", "3/1h per user", "--policy", "50/1h named all"]);
    for status in [200, 200, 200, 429] {
        assert_eq!(check(&server, "alice").status, status);
    }
    let shown = server.get(ALICE).json();
    let number = |name: &str| shown[name].as_u64().unwrap();
    assert_eq!((number("used"), number("limit"), number("remaining")), (3, 3, 0));
    assert_eq!(shown["charges"].as_array().unwrap().len(), 3);
    assert_eq!(shown["room"][2]["used"], 0);
    assert!(number("retry_after_ms") > 3_000_000 && number("reset_after_ms") <= 3_600_000, "{shown}");
    assert_eq!((&shown["override"], &shown["block"]), (&Value::Null, &Value::Null));
    until_true("its denial is reported", || server.get(ALICE).json()["denials"][0]["key"] == "alice");

    let act = |action: &str, body: Value| post(&server, &format!("{ALICE}/{action}"), &body);
    assert_eq!(act("refund", json!({ "cost": 2 })).json()["done"], "2 was refunded");
    assert_eq!(act("penalize", json!({})).json()["used"], 2);
    assert_eq!(act("reset", json!({})).json()["done"], "its usage is forgotten");
    assert_eq!(act("reset", json!({})).json()["done"], "it had used nothing");
    // The other policy was never meant.
    assert_eq!(server.get("/v1/keys/all/*").json()["used"], 3);

    let blocked = act("block", json!({ "for": "1h" }));
    assert_eq!((blocked.status, &blocked.json()["block"]["by"]), (200, &json!("loopback")));
    assert_eq!((check(&server, "alice").status, check(&server, "bob").status), (429, 200));
    act("override", json!({ "quota": 7.to_string(), "for": "1h" }));
    assert_eq!(check(&server, "alice").status, 429);
    assert_eq!(act("unblock", json!({})).json()["done"], "it is blocked no more");
    let shown = server.get(ALICE).json();
    assert_eq!((&shown["limit"], &shown["override"]["limit"]), (&json!(7), &json!(7)));
    assert_eq!(act("clear-override", json!({})).json()["limit"], 3);
    assert_eq!(act("clear-override", json!({})).json()["done"], "it had no limit of its own for a time");
    act("block", json!({ "for": "100ms" }));
    until_true("the block ends by itself", || check(&server, "alice").status == 200);
    until_true("nothing is left of it", || server.get("/v1/status").json()["changes"]["count"] == 0);

    for (action, body, status, detail) in [
        ("block", json!({}), 400, "for is missing; give how long it lasts, for example `{\"for\": \"10m\"}`"),
        ("block", json!({ "for": "0s" }), 400, "invalid for `0s`: must be 1ms to 366d, for example `10m`"),
        (
            "block",
            json!({ "for": "400d" }),
            400,
            "invalid for `400d`: must be 1ms to 366d, for example `10m`",
        ),
        ("block", json!({ "for": "1h", "cost": 1 }), 400, "block does not take `cost`; leave it out"),
        (
            "refund",
            json!({ "cost": 0 }),
            400,
            "invalid cost `0`: must be a whole number from 1 to 9007199254740991",
        ),
        (
            "override",
            json!({ "for": "1h" }),
            400,
            "quota is missing; give for example `{\"quota\": \"1000/1m\"}`",
        ),
        (
            "explode",
            json!({}),
            404,
            "unknown action `explode`: must be reset, refund, penalize, block, unblock, override or clear-override",
        ),
    ] {
        let answer = act(action, body);
        assert_eq!((answer.status, answer.json()["detail"].as_str().unwrap()), (status, detail));
    }
    assert_eq!(act("block", json!({ "fro": "1h" })).status, 400);
    // What asks for a confirmation must know before that it is valid.
    let state = || ["used", "limit", "block"].map(|name| server.get(ALICE).json()[name].clone());
    let before = state();
    for (action, body, status) in [
        ("block", json!({ "for": "soon", "dry_run": true }), 400),
        ("block", json!({ "for": "1h", "dry_run": true }), 200),
        ("override", json!({ "for": "1h", "quota": "many", "dry_run": true }), 400),
        ("penalize", json!({ "cost": 1, "dry_run": true }), 200),
    ] {
        assert_eq!(act(action, body.clone()).status, status, "{body}");
        assert_eq!(state(), before, "{body}");
    }
    let put = |window: &str| {
        let body = json!({ "window": window, "dry_run": true }).to_string();
        server.change("PUT", "/v1/policies/per-user", &[], &body)
    };
    assert_eq!(put("soon").status, 400);
    let done = put("2h").json();
    assert!(done["change"].is_null() && done["done"].as_str().unwrap().contains("per 2h"), "{done}");
    assert_eq!(server.get("/v1/policies").json()["policies"][0]["origin"], "file");
    let unknown = server.get("/v1/keys/nobody/alice");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["detail"], "unknown policy `nobody`: must be one of `per-user`, `all`");
    // A key with everything in it, as it is printed and as a path carries it.
    assert_eq!(check(&server, "a/b,c%").status, 200);
    assert_eq!(server.get("/v1/keys/per-user/a%2Fb%252Cc%2525").json()["used"], 1);
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
}

/// Limits are changed under load: usage stays, and one command brings the old ones back.
#[test]
fn policies_are_changed_listed_undone_and_put_back() {
    let server = Server::start(&["--policy", "2/1h per user"]);
    for status in [200, 200, 429] {
        assert_eq!(check(&server, "alice").status, status);
    }
    let limit = || server.get("/v1/policies").json()["policies"][0].clone();
    assert_eq!(
        said(&server, &["policy", "set", "per-user", "4/1h"]),
        "per-user: 2 per 1h -> 4 per 1h (sliding-log) (change 1)"
    );
    assert_eq!(server.get(ALICE).json()["remaining"], 2);
    assert_eq!((&limit()["origin"], &limit()["limit"]), (&json!("changed"), &json!(4)));
    said(&server, &["policy", "set", "per-user", "--mode", "shadow"]);
    assert_eq!(check(&server, "alice").json()["policies"][0]["enforced"], false);
    let block = command(&server, &["key", "block", "per-user", "alice", "--for", "1h"]);
    assert!(text(&block.stderr).contains("in shadow and denies nobody"), "{}", text(&block.stderr));
    assert_eq!(said(&server, &["policy", "undo"]), "per-user: 4 per 1h (sliding-log) (change 3)");
    assert_eq!(said(&server, &["policy", "undo"]), "per-user: as the configuration says (change 4)");
    assert_eq!((&limit()["origin"], &limit()["limit"]), (&json!("file"), &json!(2)));
    let nothing = command(&server, &["policy", "undo"]);
    assert_eq!(text(&nothing.stderr).trim(), "404: there is no change that could be undone");
    let history = said(&server, &["policy", "history"]);
    assert_eq!(history.lines().count(), 4, "{history}");
    assert!(
        history
            .lines()
            .last()
            .unwrap()
            .contains("loopback  per-user: set: 4 per 1h (sliding-log) (undone by 4)"),
        "{history}"
    );
    said(&server, &["policy", "set", "per-user", "9/1m", "--algorithm", "token-bucket", "--burst", "20"]);
    assert_eq!((&limit()["burst"], &limit()["algorithm"]), (&json!(20), &json!("token-bucket")));
    said(&server, &["policy", "unset", "per-user"]);
    assert_eq!(limit()["algorithm"], "sliding-log");

    let put = |body: Value| server.change("PUT", "/v1/policies/per-user", &[], &body.to_string());
    for (body, detail) in [
        (json!({ "quota": "1/0s" }), "invalid window `0s`: must be 1ms to 366d, for example `1m`"),
        (json!({ "limit": 1u64 << 53 }), "invalid limit 9007199254740992: must be at most 9007199254740991"),
        (
            json!({ "quota": "1/1s", "limit": 1 }),
            "invalid quota: conflicts with limit or window; keep `quota`, or keep `limit` and `window`",
        ),
        (
            json!({ "burst": 3 }),
            "invalid burst `3`: the algorithm is sliding-log and only token-bucket has burst; leave it out or write \
             `algorithm: token-bucket`",
        ),
        (
            json!({ "algorithm": "leaky" }),
            "must be `sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`; did you mean `token-bucket`?",
        ),
        (json!({}), "no field is given; give for example `{\"quota\": \"200/1m\"}`, `mode` or `candidate`"),
    ] {
        let answer = put(body);
        assert_eq!((answer.status, answer.json()["detail"].as_str().unwrap()), (400, detail));
    }
    for (body, field, detail) in [
        (json!({ "candiate": "1/1s" }), "candiate", "`lease`, `mode`, `candidate`"),
        (json!({ "mode": "shaddow" }), "mode", "`shadow`"),
        (json!({ "limit": "ten" }), "limit", "expected a whole number"),
    ] {
        let answer = put(body).json();
        assert_eq!((&answer["status"], &answer["field"]), (&json!(400), &json!(field)), "{answer}");
        assert!(answer["detail"].as_str().unwrap().contains(detail), "{answer}");
    }
    assert_eq!(server.change("PUT", "/v1/policies/nope", &[], r#"{"limit":1}"#).status, 404);
    assert_eq!(server.change("DELETE", "/v1/policies/per-user", &[], "").status, 404);
    assert_eq!(limit()["limit"], 2);
}

/// Policies that a protocol defines cannot be changed here: the change would have no effect.
#[test]
fn policies_of_a_protocol_are_not_changed_here() {
    let server = Server::start(&["--resp", "127.0.0.1:0"]);
    let output = command(&server, &["policy", "set", "CL.THROTTLE", "5/1m"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr)
            .contains("policy `CL.THROTTLE` is not of the configuration; it is changed where it comes from"),
        "{}",
        text(&output.stderr)
    );
    let unknown = command(&server, &["policy", "set", "nobody", "5/1m"]);
    assert!(
        text(&unknown.stderr).contains(
            "unknown policy `nobody`: must be one of `per-user`; to add one, say its `scope` as well\n"
        ),
        "{}",
        text(&unknown.stderr)
    );
}

/// A limit is tried on real traffic before anybody is denied by it.
#[test]
fn a_candidate_shows_what_it_would_change_and_is_promoted() {
    let folder = TempDir::new("admin-candidate");
    let file = folder.file(
        "slidegate.yaml",
        "policies:
  - {name: per-user, scope: [user], quota: 2/1h, candidate: 4/1h}
  - {name: watched, scope: [user], quota: 1/1h, mode: shadow}
  - {name: other, scope: [user], when: {path: /other}, quota: 0/1h}
",
    );
    let server = Server::start(&["--config", &file]);
    for status in [200, 200, 429, 429, 429, 429] {
        assert_eq!(check(&server, "alice").status, status);
    }
    assert_eq!(check(&server, "bob").status, 200);
    // Denied by another policy: so it would be under the candidate.
    let other = json!({ "attributes": { "user": "bob", "path": "/other" } }).to_string();
    assert_eq!(server.post("/v1/check", &other).status, 429);
    let mut shadow = server.get("/v1/shadow").json();
    assert!(shadow["shadows"][0]["since"].take().is_string());
    let candidate = &shadow["candidates"][0];
    assert_eq!((&candidate["policy"], &candidate["requests"]), (&json!("per-user"), &json!(8)));
    assert_eq!((&candidate["newly_allowed"], &candidate["newly_denied"]), (&json!(2), &json!(0)));
    assert_eq!(candidate["keys"], json!([{ "key": "alice", "newly_allowed": 2, "newly_denied": 0 }]));
    assert_eq!((&candidate["live"]["limit"], &candidate["candidate"]["limit"]), (&json!(2), &json!(4)));
    assert_eq!(
        shadow["shadows"],
        json!([{ "policy": "watched", "would_deny": 6, "requests": 8, "since": null }])
    );
    server.assert_matches_openapi("GET", "/v1/shadow", None, 200);

    // Another candidate is counted from its own beginning.
    said(&server, &["policy", "set", "per-user", "--candidate", "1/1m"]);
    assert_eq!(server.get("/v1/shadow").json()["candidates"][0]["requests"], 0);
    assert_eq!((check(&server, "carol").status, check(&server, "carol").status), (200, 200));
    let candidate = server.get("/v1/shadow").json()["candidates"][0].clone();
    assert_eq!((&candidate["newly_allowed"], &candidate["newly_denied"]), (&json!(0), &json!(1)));

    assert_eq!(
        said(&server, &["policy", "promote", "per-user"]),
        "per-user: 2 per 1h -> 1 per 1m (sliding-log) (change 2)"
    );
    assert_eq!(check(&server, "carol").status, 429);
    assert_eq!(server.get("/v1/shadow").json()["candidates"], json!([]));
    let again = command(&server, &["policy", "promote", "per-user"]);
    assert!(
        text(&again.stderr).starts_with("409: policy `per-user` has no candidate"),
        "{}",
        text(&again.stderr)
    );
    said(&server, &["policy", "unset", "per-user"]);
    assert_eq!(server.get("/v1/shadow").json()["candidates"][0]["candidate"]["limit"], 4);
}

/// Over Redis servers of the tests. `scripts/test --fast` leaves them out.
mod on_redis {
    use super::*;

    /// A change that is reported but not made is worse than a rejected one.
    #[test]
    fn while_the_store_is_away_nothing_is_changed_and_what_was_stays() {
        let redis = RedisServer::start();
        let folder = TempDir::new("admin-store-away");
        let config = folder
            .file("slidegate.yaml", format!("{POLICY}store: {{redis: '{}', deadline: 10s}}\n", redis.url()));
        let server = Server::start(&["--config", &config]);
        said(&server, &["policy", "set", "per-user", "7/1h"]);
        redis.kill();
        for (method, path, body) in [
            ("PUT", "/v1/policies/per-user".to_owned(), json!({ "limit": 9 })),
            ("POST", format!("{ALICE}/block"), json!({ "for": "1h" })),
            ("POST", format!("{ALICE}/refund"), json!({ "cost": 1 })),
            ("POST", format!("{ALICE}/reset"), json!({})),
        ] {
            let answer = server.change(method, &path, &[], &body.to_string());
            assert_eq!(answer.status, 503, "{path}: {}", answer.body);
        }
        assert_eq!(server.get(ALICE).status, 503);
        assert_eq!(server.get("/v1/policies").json()["policies"][0]["limit"], 7);
        until_true("the status says why", || server.get("/v1/status").json()["changes"]["error"].is_string());

        // It comes back empty: what was changed is still in force, here and in whatever starts now.
        redis.restart();
        until_true("what was changed is in the store again", || {
            assert_eq!(server.get("/v1/policies").json()["policies"][0]["limit"], 7);
            let changes = server.get("/v1/status").json()["changes"].clone();
            (&changes["error"], &changes["place"]) == (&Value::Null, &json!("store"))
        });
        let other = Server::start(&["--config", &config]);
        assert_eq!(other.get("/v1/policies").json()["policies"][0]["limit"], 7);
        let answer = server.change("PUT", "/v1/policies/per-user", &[], r#"{"limit":9}"#);
        assert_eq!(answer.status, 200, "{}", answer.body);
        until_true("it can be changed again, everywhere", || {
            other.get("/v1/policies").json()["policies"][0]["limit"] == 9
        });
        // What another program wrote is no change of limits.
        redis.admin(&["SET", "sg1:control", "7\n{}"]);
        until_true("the foreign document is reported", || {
            let error = server.get("/v1/status").json()["changes"]["error"].clone();
            error.as_str().is_some_and(|error| error.starts_with("`sg1:control` holds no changes of limits"))
        });
        assert_eq!(server.get("/v1/policies").json()["policies"][0]["limit"], 9);
        let refused = server.change("PUT", "/v1/policies/per-user", &[], r#"{"limit":1}"#);
        assert_eq!(refused.status, 409, "{}", refused.body);
    }

    /// An instance with a cached denial must not deny a key after its reset.
    #[test]
    fn a_policy_is_reset_for_all_instances_on_a_store() {
        let redis = RedisServer::start();
        redis.admin(&["ACL", "SETUSER", "slidegate", "+scan", "+dbsize"]);
        let folder = TempDir::new("admin-reset");
        let config = format!("{POLICY}store: {{redis: '{}', deadline: 10s}}\n", redis.url_as_user());
        let config = folder.file("slidegate.yaml", config);
        let (one, two) = (Server::start(&["--config", &config]), Server::start(&["--config", &config]));
        let source = |server: &Server| check(server, "alice").json()["source"].clone();
        for user in ["alice", "bob", "carol"] {
            assert_eq!([(); 3].map(|()| check(&one, user).status), [200, 200, 429], "{user}");
        }
        until_true("the other instance caches the denial", || source(&two) == "cached");
        assert_eq!(said(&one, &["policy", "reset", "per-user", "--yes"]), "per-user: forgot 3 keys");
        until_true("the denial has ended there as well", || check(&two, "alice").status == 200);
        assert_eq!(check(&one, "bob").status, 200);

        redis.admin(&["ACL", "SETUSER", "slidegate", "-scan"]);
        let refused = command(&one, &["policy", "reset", "per-user", "--yes"]);
        assert_eq!(refused.status.code(), Some(2));
        let printed = text(&refused.stderr);
        assert!(
            printed.starts_with("503: ")
                && printed.contains("scan")
                && printed.contains("send the same step"),
            "{printed}"
        );
    }

    /// Where another attribute places keys, a key that is looked for elsewhere would be shown as
    /// unused, and reset in vain.
    #[test]
    fn keys_that_lie_by_another_attribute_are_found_by_it() {
        let redis = RedisServer::start();
        let folder = TempDir::new("admin-tag");
        let policies = "policies: [{name: per-user, scope: [user], quota: 3/1h}]";
        let config =
            format!("store: {{redis: '{}', hash_tag: tenant, deadline: 10s}}\n{policies}\n", redis.url());
        let server = Server::start(&["--config", &folder.file("slidegate.yaml", config)]);
        let request = json!({ "attributes": { "user": "alice", "tenant": "acme" } }).to_string();
        assert_eq!(server.post("/v1/check", &request).status, 200);
        let refused = server.get(ALICE);
        assert_eq!(refused.status, 400);
        assert_eq!(
            refused.json()["detail"],
            "keys lie in the store by `tenant` (hash_tag), which policy `per-user` does not count by; say whose, for example \
             `?tenant=acme`"
        );
        let show = ["key", "show", "per-user", "alice", "--tag"];
        assert!(said(&server, &[&show[..], &["tenant=acme"]].concat()).contains("has used 1 of 3"));
        assert!(said(&server, &[&show[..], &["tenant=other"]].concat()).contains("has used 0 of 3"));
        let reset = said(&server, &["key", "reset", "per-user", "alice", "--tag", "tenant=acme"]);
        assert_eq!(reset, "per-user: `alice`: its usage is forgotten");
        let other = server.get(&format!("{ALICE}?colour=red"));
        assert_eq!(other.json()["detail"], "`colour` says nothing about this key; leave it out");
    }
}

//! The audit log and the list of changes: every way to move what counts, with amounts before and after.

use std::fs::{self, File};
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::redis::Connection;
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until_true};

const REST: &str = "
resp: { listen: '127.0.0.1:0' }
policies: [{name: p, scope: [user], quota: 100/1h}, {name: hidden, scope: [user], quota: 100/1h, keys_shown: hashed}]
";

fn resp(server: &Server) -> Connection {
    let port = server.address_of("resp").rsplit(':').next().unwrap().parse().unwrap();
    Connection::tcp(port, Duration::from_secs(10)).unwrap()
}

/// Who gave away what, and how much, is asked after the fact, wherever it was done.
#[test]
fn what_operators_and_clients_move_is_in_the_log_with_amounts() {
    let (folder, redis) = (TempDir::new("audit"), RedisServer::start());
    let shared = format!("store: {{redis: '{}', deadline: 10s}}\n", redis.url());
    for store in ["", &shared] {
        let log = folder.file("log", "");
        let server = Server::start_logging_to(
            &["--config", &folder.file("slidegate.yaml", format!("{store}{REST}"))],
            File::create(&log).unwrap(),
        );
        let attributes = json!({ "attributes": { "user": "alice" }, "cost": 41 });
        assert_eq!(server.post("/v1/check", &attributes.to_string()).status, 200);
        let operate = |action: &str, body: Value| {
            let done = server.change("POST", &format!("/v1/keys/p/alice/{action}"), &[], &body.to_string());
            assert_eq!(done.status, 200, "{}", done.body);
        };
        let call = |path: &str, cost: u64| {
            let body = json!({ "attributes": { "user": "alice" }, "cost": cost, "policy": "p" }).to_string();
            let done = server.post(path, &body);
            assert_eq!(done.status, 200, "{}", done.body);
        };
        let mut resp = resp(&server);
        operate("refund", json!({ "cost": 3 }));
        operate("penalize", json!({ "cost": 2 }));
        operate("override", json!({ "quota": "70/1h", "for": "1h" }));
        operate("clear-override", json!({}));
        operate("block", json!({ "for": "1h" }));
        operate("unblock", json!({}));
        call("/v1/refund", 10);
        call("/v1/penalize", 5);
        resp.call(&["RL.REFUND", "p", "alice", "COST", "4"]).unwrap();
        resp.call(&["RL.RESET", "p", "alice"]).unwrap();
        call("/v1/penalize", 6);
        call("/v1/reset", 0);
        call("/v1/penalize", 7);
        operate("reset", json!({}));
        let expected = [
            ("loopback", "refund", "3 was refunded: used 41 -> 38 of 100"),
            ("loopback", "penalize", "2 was charged: used 38 -> 40 of 100"),
            ("loopback", "override", ": limit 100 -> 70"),
            ("loopback", "clear-override", "it has the limit of its policy again: limit 70 -> 100"),
            ("loopback", "block", "it is blocked until "),
            ("loopback", "unblock", "it is blocked no more"),
            ("address 127.0.0.1", "refund", "used 40 -> 30 of 100"),
            ("address 127.0.0.1", "penalize", "used 30 -> 35 of 100"),
            ("address 127.0.0.1", "refund", "used 35 -> 31 of 100"),
            ("address 127.0.0.1", "reset", "used 31 -> 0"),
            ("address 127.0.0.1", "penalize", "used 0 -> 6 of 100"),
            ("address 127.0.0.1", "reset", "used 6 -> 0"),
            ("address 127.0.0.1", "penalize", "used 0 -> 7 of 100"),
            ("loopback", "reset", "its usage is forgotten: used 7 -> 0 of 100"),
        ];
        let lines = || {
            let logged = fs::read_to_string(&log).unwrap();
            logged
                .lines()
                .filter(|line| line.contains("slidegate::audit"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        until_true("all is in the log", || lines().len() == expected.len());
        for (line, (by, action, words)) in lines().iter().zip(expected) {
            let start = format!(r#"by="{by}" action="{action}" policy="p" key="alice" detail=""#);
            assert!(line.contains(&start) && line.contains(words), "{line}: {by} {action} {words}");
        }
        // Those of operators are listed, newest first.
        let listed = server.get("/v1/changes").json();
        let listed = listed["keys"].as_array().unwrap();
        let operators = expected.iter().rev().filter(|(by, ..)| *by == "loopback");
        assert_eq!(listed.len(), operators.clone().count());
        for (one, (by, action, words)) in listed.iter().zip(operators) {
            assert_eq!([&one["by"], &one["what"], &one["key"]], [*by, *action, "alice"], "{one}");
            assert!(one["words"].as_str().unwrap().contains(words), "{one}");
        }
        let history = text(&run(&["policy", "history", "--url", &server.url]).stdout);
        assert!(
            history.starts_with("      20") && history.contains("loopback  p `alice`: reset: its usage"),
            "{history}"
        );
        // A key that is redacted is redacted here too.
        let hidden = server.change("POST", "/v1/keys/hidden/bob/penalize", &[], "{}");
        assert_eq!(hidden.status, 200, "{}", hidden.body);
        assert!(!server.get("/v1/changes").body.contains("bob"));
        assert!(!fs::read_to_string(&log).unwrap().contains("bob"));
        server.assert_matches_openapi("GET", "/v1/changes", None, 200);
    }
}

/// A client that refunds at its own rate must not fill the disk of the one that writes the log.
#[test]
fn lines_about_clients_are_limited_and_counted() {
    let folder = TempDir::new("audit-limit");
    let log = folder.file("log", "");
    let server = Server::start_logging_to(
        &["--config", &folder.file("slidegate.yaml", REST)],
        File::create(&log).unwrap(),
    );
    let mut resp = resp(&server);
    resp.call(&["RL.CHECK", "p", "alice", "COST", "100"]).unwrap();
    for _ in 0..2000 {
        resp.call(&["RL.REFUND", "p", "alice", "COST", "1"]).unwrap();
        resp.call(&["RL.CHECK", "p", "alice", "COST", "1"]).unwrap();
    }
    let logged = fs::read_to_string(&log).unwrap();
    let lines = logged.lines().filter(|line| line.contains("slidegate::audit")).count();
    assert!((10..1000).contains(&lines), "{lines}");
    until_true("the next line says how many were suppressed", || {
        resp.call(&["RL.REFUND", "p", "alice", "COST", "1"]).unwrap();
        resp.call(&["RL.CHECK", "p", "alice", "COST", "1"]).unwrap();
        fs::read_to_string(&log).unwrap().contains("suppressed=")
    });
}

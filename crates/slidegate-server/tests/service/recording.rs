//! Recording what the service decides on: all protocols, redaction, hot reload and full disks.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use slidegate_testkit::redis::Connection;
use slidegate_testkit::service::{Server, run, text};
use slidegate_testkit::{TempDir, until, until_true};

/// A service with these policies that records to `requests.jsonl`.
fn config(folder: &TempDir, policies: &str) -> String {
    let path = folder.path().join("requests.jsonl");
    folder.file("slidegate.yaml", format!("record: {{path: {}}}\npolicies:\n{policies}", path.display()))
}

/// The recorded lines.
fn recorded(folder: &TempDir) -> Vec<Value> {
    let text = fs::read_to_string(folder.path().join("requests.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn stop(mut server: Server) {
    server.signal("TERM");
    assert!(server.wait().success());
}

fn check(server: &Server, attributes: &Value) -> bool {
    let body = json!({ "attributes": attributes }).to_string();
    let answer = server.change("POST", "/v1/check", &[], &body);
    assert!([200, 429].contains(&answer.status), "{}", answer.body);
    answer.status == 200
}

/// The port of the RESP listener.
fn resp_port(server: &Server) -> u16 {
    let line = server.greeting.lines().find_map(|line| line.strip_prefix("resp "));
    line.and_then(|line| line.rsplit_once(':')).unwrap().1.trim().parse().unwrap()
}

/// What a recording lacks cannot be replayed: every protocol and verb must be in it, with its time.
#[test]
fn requests_of_every_verb_are_recorded_with_their_times_and_costs() {
    let folder = TempDir::new("recording-verbs");
    let config = config(&folder, "  - {name: per-user, scope: [user], limit: 10, window: 1m}\n");
    let server = Server::start(&["--config", &config, "--resp", "127.0.0.1:0"]);
    assert!(check(&server, &json!({ "user": "alice", "path": "/a" })));
    let mut resp = Connection::tcp(resp_port(&server), std::time::Duration::from_secs(10)).unwrap();
    for command in [
        "RL.CHECK per-user bob COST 3",
        "RL.CHECK per-user bob COST 3 PEEK",
        "RL.REFUND per-user bob COST 2",
        "RL.REQUEST user carol path /b",
        // Its quota is in no configuration.
        "THROTTLE dave 1 2 3",
    ] {
        let reply = resp.call(&command.split(' ').collect::<Vec<_>>()).unwrap();
        assert!(!matches!(reply, slidegate_testkit::redis::Reply::Error(_)), "{command}: {reply}");
    }
    stop(server);
    let lines = recorded(&folder);
    let times: Vec<_> = lines.iter().map(|line| line["time"].as_str().unwrap().to_owned()).collect();
    assert!(times.is_sorted(), "{times:?}");
    for time in &times {
        let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        assert_eq!(shape, "0000-00-00T00:00:00.000000Z");
    }
    let inputs: Vec<_> = lines
        .into_iter()
        .map(|mut line| {
            line.as_object_mut().unwrap().remove("time");
            line
        })
        .collect();
    let bob = json!({ "user": "bob" });
    assert_eq!(
        inputs,
        [
            json!({ "cost": 1, "attributes": { "user": "alice", "path": "/a" } }),
            json!({ "cost": 3, "policy": "per-user", "attributes": bob }),
            json!({ "cost": 3, "verb": "peek", "policy": "per-user", "attributes": bob }),
            json!({ "cost": 2, "verb": "refund", "policy": "per-user", "attributes": bob }),
            json!({ "cost": 1, "attributes": { "user": "carol", "path": "/b" } }),
        ]
    );
    let mode = folder.path().join("requests.jsonl").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// The end of a recording is often the incident: what was answered until then must be in it.
#[test]
fn every_request_that_was_answered_before_the_service_ended_is_recorded() {
    let folder = TempDir::new("recording-end");
    let config = config(&folder, "  - {name: p, scope: [user], limit: 1000000000, window: 1m}\n");
    let server = Server::start(&["--config", &config, "--resp", "127.0.0.1:0"]);
    let port = resp_port(&server);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut resp = Connection::tcp(port, std::time::Duration::from_secs(20)).unwrap();
            while let Ok(reply) = resp.call(&["RL.CHECK", "p", "alice"]) {
                assert!(!matches!(reply, slidegate_testkit::redis::Reply::Error(_)), "{reply}");
                answered.fetch_add(1, Ordering::SeqCst);
            }
        });
        until_true("the client is busy", || answered.load(Ordering::SeqCst) > 300);
        stop(server);
    });
    let (lines, answered) = (recorded(&folder).len() as u64, answered.into_inner());
    // The answer to the last one may have been lost with the connection.
    assert!((answered..=answered + 1).contains(&lines), "{lines} lines, {answered} answers");
}

/// A recording is given to others to look at: hidden keys must not be in it.
#[test]
fn attributes_are_hidden_as_their_policies_hide_keys() {
    let folder = TempDir::new("recording-hidden");
    let config = config(
        &folder,
        "  - {name: a, scope: [user], quota: 5/1m, keys_shown: hashed}\n  \
           - {name: b, scope: [token], quota: 5/1m, keys_shown: masked}\n",
    );
    let server = Server::start(&["--config", &config]);
    for user in ["mallory", "trent", "mallory"] {
        check(&server, &json!({ "user": user, "token": "secret-token", "path": "/a" }));
    }
    stop(server);
    let lines = recorded(&folder);
    let users: Vec<_> = lines.iter().map(|line| line["attributes"]["user"].as_str().unwrap()).collect();
    assert!(users.iter().all(|user| user.starts_with('#') && user.len() == 22), "{users:?}");
    assert!(users[0] == users[2] && users[0] != users[1], "{users:?}");
    let token = lines[0]["attributes"]["token"].as_str().unwrap();
    assert!(token.starts_with("se***#") && !token.contains("cret"), "{token}");
    assert_eq!(lines[0]["attributes"]["path"], "/a");
}

/// An incident is recorded when it happens, and a restart would end it.
#[test]
fn hot_reload_switches_recording_on_and_off_and_keeps_it_if_the_new_file_cannot_be_written() {
    let folder = TempDir::new("recording-reload");
    let policies = "policies: [{name: p, scope: [user], quota: 100/1m}]\n";
    let log = folder.file("log", "");
    let path = folder.file("slidegate.yaml", policies);
    let server = Server::start_logging_to(&["--config", &path], File::create(&log).unwrap());
    let status = || server.get("/v1/status").json();
    let reload = |text: &str, outcome: &str| {
        let count = || fs::read_to_string(&log).unwrap().matches(outcome).count();
        let before = count();
        folder.file("slidegate.yaml", text);
        server.signal("HUP");
        until_true("the config is reloaded", || count() > before);
    };
    check(&server, &json!({ "user": "before" }));
    assert_eq!(status()["recording"], Value::Null);
    assert!(!server.get("/metrics").body.contains("slidegate_recorded"));

    let file = folder.path().join("requests.jsonl");
    let on = format!("record: {{path: {}, files: 2}}\n{policies}", file.display());
    reload(&on, "config reloaded");
    check(&server, &json!({ "user": "during" }));
    until("the line is flushed within seconds", || (status()["recording"]["written"] == 1).then_some(()));
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
    assert!(server.get("/metrics").body.contains("slidegate_recorded_total{outcome=\"written\"} 1"));

    reload(&format!("record: {{path: /no/such/dir/r.jsonl}}\n{policies}"), "config rejected");
    let why = "record: cannot write `/no/such/dir/r.jsonl`: No such file or directory (os error 2); create its directory";
    assert!(fs::read_to_string(&log).unwrap().contains(why), "{}", fs::read_to_string(&log).unwrap());
    check(&server, &json!({ "user": "still" }));

    reload(&on.replace("files: 2", "files: 3"), "config reloaded");
    check(&server, &json!({ "user": "again" }));
    reload(policies, "config reloaded");
    check(&server, &json!({ "user": "after" }));
    assert_eq!(status()["recording"], Value::Null);
    let users: Vec<_> = recorded(&folder)
        .iter()
        .map(|line| line["attributes"]["user"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(users, ["during", "still", "again"]);
    stop(server);
}

/// A full disk must cost the recording, never the service.
#[test]
fn a_full_disk_is_counted_and_logged_once_and_decisions_go_on() {
    let folder = TempDir::new("recording-full");
    let log = folder.file("log", "");
    let text = "record: {path: /dev/full}\npolicies: [{name: p, scope: [user], quota: 100/1m}]\n";
    let path = folder.file("slidegate.yaml", text);
    let server = Server::start_logging_to(&["--config", &path], File::create(&log).unwrap());
    let status = || server.get("/v1/status").json()["recording"].clone();
    for count in 1..=2 {
        assert!(check(&server, &json!({ "user": "alice" })));
        until_true("the failure is counted", || status()["failed"] == count);
    }
    assert_eq!(status()["error"], "No space left on device (os error 28)");
    assert_eq!((&status()["written"], &status()["dropped"]), (&json!(0), &json!(0)));
    stop(server);
    let log = fs::read_to_string(&log).unwrap();
    assert_eq!(log.matches("requests cannot be recorded").count(), 1, "{log}");
}

/// Two instances that write one file would cut each other's lines.
#[test]
fn a_file_that_another_process_writes_is_an_error_at_the_start() {
    let folder = TempDir::new("recording-shared");
    let config = config(&folder, "  - {name: p, scope: [user], quota: 5/1m}\n");
    let server = Server::start(&["--config", &config]);
    let second = run(&["serve", "--config", &config, "--listen", "127.0.0.1:0"]);
    let path = Path::new(folder.as_str()).join("requests.jsonl");
    let expected = format!(
        "record: cannot write `{}`: another process writes it; give each process its own file",
        path.display()
    );
    assert!(text(&second.stderr).contains(&expected), "{}", text(&second.stderr));
    assert_eq!(second.status.code(), Some(2));
    stop(server);
}

/// A pipe would hold the start until somebody reads it.
#[test]
fn a_pipe_is_an_error_at_the_start() {
    let folder = TempDir::new("recording-pipe");
    let config = config(&folder, "  - {name: p, scope: [user], quota: 5/1m}\n");
    let path = Path::new(folder.as_str()).join("requests.jsonl");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let expected = |why: &str| format!("record: cannot write `{}`: {why}", path.display());
    let nobody_reads = run(&["serve", "--config", &config, "--listen", "127.0.0.1:0"]);
    let why = "No such device or address (os error 6)";
    assert!(text(&nobody_reads.stderr).contains(&expected(why)), "{}", text(&nobody_reads.stderr));
    let _reader = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let somebody_reads = run(&["serve", "--config", &config, "--listen", "127.0.0.1:0"]);
    let why = "it is a pipe or a socket: must be a file";
    assert!(text(&somebody_reads.stderr).contains(&expected(why)), "{}", text(&somebody_reads.stderr));
    assert_eq!((nobody_reads.status.code(), somebody_reads.status.code()), (Some(2), Some(2)));
}

/// A sample that has some requests of a key would make every limit look wide enough.
#[test]
fn a_sample_has_all_requests_of_a_key_or_none() {
    let folder = TempDir::new("recording-sample");
    let file = folder.path().join("requests.jsonl");
    let text = format!(
        "record: {{path: {}, sample: 0.5}}\npolicies: [{{name: p, scope: [user], quota: 5/1m}}]\n",
        file.display()
    );
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", text)]);
    for round in 0..3 {
        for user in 0..60 {
            check(&server, &json!({ "user": format!("user-{user}"), "round": round.to_string() }));
        }
    }
    stop(server);
    let mut counts = std::collections::HashMap::new();
    for line in recorded(&folder) {
        *counts.entry(line["attributes"]["user"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    assert!(counts.values().all(|count| *count == 3), "{counts:?}");
    // Half of 60 is 30; the standard deviation is 3.9, and this is five of them.
    assert!((10..=50).contains(&counts.len()), "{}", counts.len());
}

/// A what-if is only as good as its replay: the recording of a busy service must give the decisions
/// that the service gave, whatever the protocol and the verb.
#[test]
fn a_replay_of_the_recording_decides_as_the_service_did() {
    let folder = TempDir::new("recording-replay");
    let config = config(
        &folder,
        "  - {name: log, scope: [user], quota: 7/2s}\n  \
           - {name: bucket, scope: [user, app], quota: 5/3s, algorithm: token-bucket, keys_shown: masked}\n  \
           - {name: fixed, scope: [path], quota: 9/1s, algorithm: fixed-window, mode: shadow}\n  \
           - {name: window, scope: [ip], when: {path: {prefix: /api/}}, quota: 4/2s, algorithm: sliding-window, keys_shown: hashed}\n",
    );
    let server = Server::start(&["--config", &config, "--resp", "127.0.0.1:0"]);
    let port = resp_port(&server);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    // One after the other: which of two requests at the same time is first is not in a recording.
    let mut resp = Connection::tcp(port, std::time::Duration::from_secs(20)).unwrap();
    for _ in 0..1500 {
        let user = format!("user-{}", random(6));
        let path = ["/", "/api/items", "/login"][usize::try_from(random(3)).unwrap()];
        let ip = format!("2001:db8:{}:{}00::{}", random(2), random(2), random(200));
        let (cost, app) = (random(3) + 1, format!("app-{}", random(2)));
        let command = match random(8) {
            0 => format!("RL.CHECK log {user} COST {cost}"),
            1 => format!("RL.CHECK log {user} COST {cost} PEEK"),
            2 => format!("RL.REFUND log {user} COST 1"),
            3..6 => format!("RL.REQUEST user {user} app {app} path {path} ip {ip} COST {cost}"),
            _ => {
                check(&server, &json!({ "user": user, "app": app, "path": path, "ip": ip }));
                continue;
            }
        };
        resp.call(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let metrics = server.get("/metrics").body;
    let counted = |policy: &str| {
        let of = |verdicts: &[&str]| -> u64 {
            let is_of = |line: &&str| {
                line.starts_with("slidegate_decisions_total{")
                    && line.contains(&format!("policy=\"{policy}\""))
                    && verdicts.iter().any(|verdict| line.contains(&format!("verdict=\"{verdict}\"")))
            };
            let value = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
            metrics.lines().filter(is_of).map(value).sum()
        };
        (of(&["allow", "deny", "shadow_deny"]), of(&["deny", "shadow_deny"]))
    };
    let before = ["log", "bucket", "fixed", "window"].map(counted);
    stop(server);
    let log = folder.path().join("requests.jsonl").display().to_string();
    let output = run(&["replay", &log, "--config", &config, "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let policies = outcome["configured"]["policies"].as_array().unwrap();
    let after: Vec<_> = policies
        .iter()
        .map(|policy| (policy["seen"].as_u64().unwrap(), policy["denied"].as_u64().unwrap()))
        .collect();
    assert!(before.iter().all(|(seen, denied)| *denied > 0 && denied < seen), "{before:?}");
    assert_eq!(after, before);
}

/// A gateway tries out limits on what its own requests reserved and cost.
#[test]
fn reservations_are_recorded_with_their_settlements_and_replayed_as_they_were_decided() {
    let folder = TempDir::new("recording-holds");
    let config = config(
        &folder,
        "  - {name: tokens, scope: [user], limit: 100, window: 1h}\n  \
           - {name: output, scope: [user], limit: 50, window: 1h, counts: output}\n",
    );
    let server = Server::start(&["--config", &config]);
    let mut allowed = Vec::new();
    let mut reserve = |cost: Value| {
        let mut body = json!({ "attributes": { "user": "alice" }, "ttl": "1m" });
        if !cost.is_null() {
            body["cost"] = cost;
        }
        let answer = server.post("/v1/reserve", &body.to_string());
        allowed.push(answer.status == 200);
        answer.json()["ticket"].as_str().unwrap_or_default().to_owned()
    };
    let change = |path: &str, body: Value| {
        let answer = server.post(path, &body.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    let only_input = |cost: u64| json!({ "input": cost, "output": 0 });
    let first = reserve(only_input(60));
    change("/v1/settle", json!({ "ticket": first, "cost": only_input(10) }));
    // It fits because the first cost less than it held.
    let second = reserve(only_input(60));
    reserve(only_input(40));
    change("/v1/extend", json!({ "ticket": second, "hold": only_input(50), "ttl": "2m" }));
    let third = reserve(only_input(40));
    change("/v1/cancel", json!({ "ticket": second }));
    change("/v1/settle", json!({ "ticket": third, "cost": only_input(5), "final": false }));
    // 10 and 40 are taken.
    let fourth = reserve(json!({ "input": 5, "output": 45 }));
    reserve(json!({ "output": 6 }));
    change("/v1/settle", json!({ "ticket": fourth, "cost": { "output": 44 } }));
    reserve(json!({ "output": 5 }));
    reserve(Value::Null);
    reserve(Value::Null);
    stop(server);
    assert_eq!(allowed, [true, true, false, true, true, false, true, true, false]);

    let recording = folder.path().join("requests.jsonl").display().to_string();
    let output = run(&["replay", &recording, "--config", &config, "--each"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let each = out.lines().filter(|line| line.starts_with('{'));
    let replayed: Vec<Value> = each.map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<bool> = replayed.iter().map(|line| line["allowed"] == true).collect();
    assert_eq!(verdicts, allowed, "{out}");
    assert!(out.contains("reservations 6  denied because of what was held 3 "), "{out}");
    let diff = run(&["diff", &config, &config, "--log", &recording, "--format", "json"]);
    let diff: Value = serde_json::from_slice(&diff.stdout).unwrap();
    assert_eq!(
        (&diff["requests"], &diff["denied_old"], &diff["denied_new"]),
        (&9.into(), &3.into(), &3.into())
    );
}

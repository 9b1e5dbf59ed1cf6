//! Events of denials, and their lookups.

use super::*;

/// Anyone who is asked why a client was denied an hour ago has nothing but this.
#[test]
fn every_denial_says_why_and_can_be_looked_up() {
    let folder = TempDir::new("observe-events");
    let log = folder.file("log", "");
    let server = Server::start_logging_to(
        &["--config", &folder.file("slidegate.yaml", POLICIES)],
        File::create(&log).unwrap(),
    );
    assert!(events(&server, "").is_empty());
    for ip in ["192.0.2.1", "192.0.2.2"] {
        assert_eq!([(); 3].map(|()| check(&server, &json!({ "ip": ip }))), [true, true, false]);
    }
    let carol = json!({ "user": "carol" });
    assert_eq!(ask(&server, "/v1/check", &carol, 11)["allowed"], false);
    let all = events(&server, "");
    let found: Vec<_> = all.iter().map(|event| (event["seq"].as_u64().unwrap(), &event["policy"])).collect();
    assert_eq!(
        found,
        [(4, &json!("tried")), (3, &json!("per-user")), (2, &json!("per-ip")), (1, &json!("per-ip"))]
    );
    let denial = &all[2];
    assert_eq!((&denial["key"], &denial["attributes"]), (&json!("192.0.2.2"), &json!({ "ip": "192.0.2.2" })));
    assert_eq!([&denial["limit"], &denial["used"], &denial["cost"]], [2, 2, 1]);
    assert_eq!((&denial["window_ms"], &denial["algorithm"]), (&json!(3_600_000), &json!("sliding-log")));
    assert_eq!([&denial["source"], &denial["mode"], &denial["protocol"]], ["store", "enforce", "http"]);
    assert_eq!(denial["verdict"], "deny");
    let at = denial["at"].as_str().unwrap();
    assert!(at.len() == 24 && at.starts_with("20") && at.ends_with('Z'), "{at}");
    let wait = denial["retry_after_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&wait), "{wait}");
    // A cost that never fits has no wait, and what is in shadow says so.
    assert_eq!([&all[0]["retry_after_ms"], &all[1]["retry_after_ms"]], [&Value::Null; 2]);
    assert_eq!((&all[0]["mode"], &all[1]["mode"]), (&json!("shadow"), &json!("enforce")));

    let seqs = |query: &str| -> Vec<u64> {
        events(&server, query).iter().map(|event| event["seq"].as_u64().unwrap()).collect()
    };
    assert_eq!(seqs("?policy=per-ip"), [2, 1]);
    assert_eq!(seqs("?policy=per-ip&key=192.0.2.1"), [1]);
    assert_eq!(seqs("?key=carol&limit=1"), [4]);
    assert_eq!(seqs("?key=nobody"), [0; 0]);
    // The log has each key once, however often it is denied.
    assert!(!check(&server, &json!({ "ip": "192.0.2.1" })));
    let lines = lines_of(&log, 4);
    assert!(
        lines[0].contains("denied") && lines[0].contains("policy=\"per-ip\" key=\"192.0.2.1\""),
        "{lines:?}"
    );
    assert!(lines.iter().any(|line| line.contains("key=\"carol\"") && line.contains("mode=\"shadow\"")));
    assert_eq!(lines.iter().filter(|line| line.contains("192.0.2.1")).count(), 1);
}

/// A filter that is silently ignored shows another client's denials.
#[test]
fn what_cannot_be_asked_is_a_problem_that_names_it() {
    let folder = TempDir::new("observe-problems");
    let server = start(&folder, POLICIES);
    for (path, status, detail) in [
        (
            "/v1/events?polcy=p",
            400,
            "unknown parameter `polcy`: must be one of policy, key and limit, once each",
        ),
        ("/v1/events?limit=0", 400, "invalid limit `0`: must be a whole number from 1 to 1024"),
        ("/v1/events?policy=p", 404, "unknown policy `p`: must be one that /v1/policies lists"),
        ("/v1/top?by=name", 400, "invalid by `name`: must be `used`, `denied`, `closest` or `blocked`"),
        ("/v1/top?limit=1001", 400, "invalid limit `1001`: must be a whole number from 1 to 1000"),
        (
            "/v1/top?key=a&limit=1",
            400,
            "unknown parameter `key`: must be one of policy, by, limit and instance, once each",
        ),
        ("/v1/live?x", 400, "unknown parameter `x`: must be one of nothing, once each"),
    ] {
        let answer = server.get(path);
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (status, Some("application/problem+json"))
        );
        assert_eq!(answer.json()["detail"], detail, "{path}");
    }
    let off = "observe: {metrics: false, events: false, top: false}\n";
    let silent = start(&folder, &format!("{off}{POLICIES}"));
    for _ in 0..3 {
        check(&silent, &json!({ "ip": "192.0.2.1" }));
    }
    for (path, setting) in [("/metrics", "metrics"), ("/v1/events", "events"), ("/v1/top", "top")] {
        let answer = silent.get(path);
        let detail =
            format!("this is switched off; write `{setting}: true` under `observe` in the configuration");
        assert_eq!((answer.status, &answer.json()["detail"]), (404, &json!(detail)));
    }
}

//! Redacted and hostile keys in every output.

use super::*;

/// All outputs about these denials, the log included.
fn everything(config: &str, users: &[&str]) -> (String, Vec<Value>) {
    let folder = TempDir::new(&format!("observe-outputs-{}", config.len()));
    let log = folder.file("log", "");
    let arguments = ["--config", &folder.file("slidegate.yaml", config), "--log-json"];
    let server = Server::start_logging_to(&arguments, File::create(&log).unwrap());
    let mut stream = Stream::open(&server, "/v1/events", "");
    for user in users {
        assert!(check(&server, &json!({ "user": user, "tenant": "acme" })));
        assert!(!check(&server, &json!({ "user": user, "tenant": "acme" })));
    }
    let streamed: Vec<_> = users.iter().map(|_| stream.denial().1).collect();
    let lines = lines_of(&log, users.len());
    for line in &lines {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
    // By what the key is, its events are found in any case.
    for (user, event) in users.iter().zip(&streamed) {
        let key = format!("{},acme", event_key(user));
        let query = form_urlencoded::Serializer::new(String::new()).append_pair("key", &key).finish();
        assert_eq!(events(&server, &format!("?{query}")), std::slice::from_ref(event), "{query}");
    }
    let mut actual = vec![server.get("/metrics").body, lines.join("\n"), json!(streamed).to_string()];
    actual.extend(["/v1/events", "/v1/top", "/v1/top?by=denied"].map(|path| server.get(path).body));
    let shown = run(&["top", "--url", &server.url]);
    actual.push(text(&shown.stdout));
    (actual.join("\n"), streamed)
}

/// A key as texts have it.
fn event_key(user: &str) -> String {
    user.chars()
        .map(|c| match c {
            '%' | ',' => format!("%{:02X}", u32::from(c)),
            c if c.is_control() => c.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
            c => c.to_string(),
        })
        .collect()
}

/// A redacted key must not appear in any output.
#[test]
fn masked_and_hashed_keys_appear_in_no_output() {
    let users = ["mallory@example.com", "trent", "192.0.2.99", "ab"];
    for (how, start) in [("masked", "ma***,a***#"), ("hashed", "#")] {
        let config =
            format!("policies: [{{name: p, scope: [user, tenant], quota: 1/1h, keys_shown: {how}}}]");
        let (found, events) = everything(&config, &users);
        for secret in ["mallory", "allory", "example.com", "trent", "rent", "192.0.2", "acme"] {
            assert!(!found.contains(secret), "{how} reveals `{secret}`: {found}");
        }
        let key = events[0]["key"].as_str().unwrap();
        assert!(key.starts_with(start), "{key}");
        let keys: BTreeSet<_> = events.iter().map(|event| event["key"].as_str().unwrap()).collect();
        assert_eq!(keys.len(), users.len(), "{keys:?}");
        assert!(events[0]["attributes"]["tenant"].is_string(), "{}", events[0]);
    }
}

/// Keys come from anyone who sends requests; what shows them must not be steered by them.
#[test]
fn hostile_keys_break_no_line_of_any_output() {
    let users = [
        "\"} 1\nslidegate_fake_total 1\n",
        "x\r\nevent: denial\r\ndata: {}\r\n\r\n",
        "\u{1b}[2J\u{1b}]0;owned\u{7}",
        "a\u{2028}b\u{202e}c\u{0}",
        "' mode=\"shadow\" key=\"bob",
        "</script><script>alert(1)</script>",
    ];
    let config = "policies: [{name: p, scope: [user, tenant], quota: 1/1h}]";
    let (found, events) = everything(config, &users);
    assert_eq!(events.len(), users.len());
    for (user, event) in users.iter().zip(&events) {
        assert_eq!(event["key"], format!("{},acme", event_key(user)));
    }
    assert!(!found.chars().any(|c| c.is_control() && c != '\n'), "{found:?}");
    assert!(!found.lines().any(|line| line.starts_with("slidegate_fake") || line.starts_with("event:")));
}

//! Keys that are shown masked, hashed or cut: found by their redacted text, which never reveals
//! them.

use std::fs::File;

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::Server;

const POLICIES: &str = "
policies:
  - {name: hashed, scope: [card], quota: 1/1h, keys_shown: hashed}
  - {name: masked, scope: [mail], quota: 1/1h, keys_shown: masked, candidate: 0/1h}
  - {name: plain, scope: [user], quota: 1/1h}
";
const CARD: &str = "4111111111111111";
const MAIL: &str = "alice@example.org";

fn check(server: &Server, attribute: &str, value: &str) {
    server.post("/v1/check", &json!({ "attributes": { attribute: value } }).to_string());
}

/// A key as a path carries it.
fn path(policy: &str, key: &str) -> String {
    let escaped: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("/v1/keys/{policy}/{escaped}")
}

/// Support follows a link from a denial, and must reach that key without learning its text.
#[test]
fn what_is_shown_of_a_key_finds_it_and_tells_no_more() {
    let folder = TempDir::new("hidden-keys");
    let log = folder.file("log", "");
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    let mut found = String::new();
    for (policy, attribute, key) in [("hashed", "card", CARD), ("masked", "mail", MAIL)] {
        check(&server, attribute, key);
        check(&server, attribute, key);
        let event = server.get(&format!("/v1/events?policy={policy}")).json()["events"][0].clone();
        let shown = event["key"].as_str().unwrap().to_owned();
        let top = server.get(&format!("/v1/top?policy={policy}")).json()["keys"][0]["key"].clone();
        assert_eq!(top, shown, "one name for a key wherever it is shown");
        let seen = server.get(&path(policy, &shown));
        assert_eq!((seen.status, &seen.json()["used"]), (200, &json!(1)), "{}", seen.body);
        assert_eq!((&seen.json()["key"], &seen.json()["denials"][0]["key"]), (&json!(shown), &json!(shown)));
        let blocked =
            server.change("POST", &format!("{}/block", path(policy, &shown)), &[], r#"{"for": "1h"}"#);
        assert_eq!((blocked.status, &blocked.json()["block"]["by"]), (200, &json!("loopback")));
        // Who knows the key itself finds it as ever, with what was done to it.
        let raw = server.get(&path(policy, key)).json();
        assert_eq!((&raw["key"], raw["block"].is_object()), (&json!(key), true));
        let routes = ["/v1/events", "/v1/top", "/v1/shadow", "/v1/policies", "/v1/changes", "/metrics"];
        let lists = ["/v1/top?by=closest".to_owned(), format!("/v1/keys?policy={policy}")];
        for route in routes.into_iter().chain(lists.iter().map(String::as_str)) {
            found.push_str(&server.get(route).body);
        }
        found.push_str(&seen.body);
        found.push_str(&blocked.body);
    }
    assert!(found.contains("masked.candidate"), "a candidate decides the same keys");
    found.push_str(&std::fs::read_to_string(&log).unwrap());
    assert!(!found.contains(CARD) && !found.contains(MAIL), "{found}");
}

/// Nothing found must not look like a key that has used nothing.
#[test]
fn what_is_shown_of_an_unknown_key_is_refused_in_words() {
    let folder = TempDir::new("hidden-unknown");
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", POLICIES)]);
    let shown = format!("#{}", "A".repeat(21));
    let answer = server.get(&path("hashed", &shown));
    let words = format!(
        "`{shown}` is a redacted key of policy `hashed`, and this instance does not know the key: it stores the keys of \
         its last 1024 denials and the top keys of the last minutes; send the key itself"
    );
    assert_eq!((answer.status, answer.json()["detail"].as_str()), (404, Some(words.as_str())));
    // Keys as they are, whatever they look like, under a policy that hides none.
    for (policy, key) in [("plain", shown.as_str()), ("hashed", "#AAA"), ("masked", "a#BBBB")] {
        assert_eq!(server.get(&path(policy, key)).json()["used"], 0, "{key}");
    }
}

/// A long key is shown cut, and cut it is another one.
#[test]
fn a_long_key_is_found_by_what_is_left_of_it() {
    let folder = TempDir::new("hidden-long");
    let server = Server::start(&["--config", &folder.file("slidegate.yaml", POLICIES)]);
    let key = "k".repeat(900);
    check(&server, "user", &key);
    check(&server, "user", &key);
    let shown: Value = server.get("/v1/events?policy=plain").json()["events"][0]["key"].clone();
    let shown = shown.as_str().unwrap();
    assert!(shown.len() == 256 && shown.contains("...#"), "{shown}");
    assert_eq!(server.get(&path("plain", shown)).json()["used"], 1);
    let other = format!("{}{}", &shown[..255], if shown.ends_with('A') { 'B' } else { 'A' });
    assert_eq!(server.get(&path("plain", &other)).status, 404);
}

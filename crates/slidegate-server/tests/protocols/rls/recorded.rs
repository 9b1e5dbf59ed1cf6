//! Calls of Envoy in a recording.

use serde_json::{Value, json};
use slidegate_testkit::TempDir;

use super::client::{answer, client, descriptor, hitting, start, user};

/// Anyone who limits by Envoy wants to try other limits on the same calls.
#[tokio::test]
async fn descriptors_are_recorded_with_their_hits_and_refunds_only_if_the_call_was_allowed() {
    let folder = TempDir::new("rls-recorded");
    let file = folder.path().join("requests.jsonl");
    let config = format!(
        "record: {{path: {}}}\npolicies: [{{name: per-user, scope: [user], quota: 5/1h}}]\n",
        file.display()
    );
    let mut server = start(&["--config", &folder.file("slidegate.yaml", config)]);
    let mut client = client(&server).await;
    answer(&mut client, &[hitting(4, user("alice")), descriptor(&[("path", "/")])]).await;
    let mut refund = hitting(1, user("alice"));
    refund.is_negative_hits = true;
    answer(&mut client, &[refund.clone()]).await;
    // Denied: 3 + 4 are more than 5.
    answer(&mut client, &[hitting(4, user("alice")), refund]).await;
    server.signal("TERM");
    assert!(server.wait().success());
    let lines = std::fs::read_to_string(&file).unwrap();
    let inputs: Vec<_> = lines
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line.as_object_mut().unwrap().remove("time").unwrap();
            line
        })
        .collect();
    let alice = json!({ "domain": "web", "user": "alice" });
    assert_eq!(
        inputs,
        [
            json!({ "cost": 4, "attributes": alice }),
            json!({ "cost": 1, "attributes": { "domain": "web", "path": "/" } }),
            json!({ "cost": 1, "verb": "refund", "attributes": alice }),
            json!({ "cost": 4, "attributes": alice }),
        ]
    );
}

//! Calls of Envoy in a recording.

use std::path::Path;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, text};

use super::client::{answer, client, descriptor, hitting, start, user};

/// Ends a service while the runtime closes the connection of the client, whose end it waits for.
async fn stop(mut server: Server) {
    let stopped = tokio::task::spawn_blocking(move || {
        server.signal("TERM");
        server.wait().success()
    });
    assert!(stopped.await.unwrap());
}

/// The recorded lines without their times.
fn recorded(file: &Path) -> Vec<Value> {
    let lines = std::fs::read_to_string(file).unwrap();
    lines
        .lines()
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            line.as_object_mut().unwrap().remove("time").unwrap();
            line
        })
        .collect()
}

/// Anyone who limits by Envoy wants to try other limits on the same calls.
#[tokio::test]
async fn descriptors_of_a_call_are_recorded_together_with_their_hits_and_refunds() {
    let folder = TempDir::new("rls-recorded");
    let file = folder.path().join("requests.jsonl");
    let config = format!(
        "record: {{path: {}}}\npolicies: [{{name: per-user, scope: [user], quota: 5/1h}}]\n",
        file.display()
    );
    let server = start(&["--config", &folder.file("slidegate.yaml", config)]);
    let mut client = client(&server).await;
    answer(&mut client, &[hitting(4, user("alice")), descriptor(&[("path", "/")])]).await;
    let mut refund = hitting(1, user("alice"));
    refund.is_negative_hits = true;
    answer(&mut client, &[refund.clone()]).await;
    // Denied, without a refund: 3 + 4 are more than 5.
    answer(&mut client, &[hitting(4, user("alice")), refund.clone()]).await;
    answer(&mut client, &[refund, hitting(2, user("alice"))]).await;
    stop(server).await;
    let inputs = recorded(&file);
    let alice = json!({ "domain": "web", "user": "alice" });
    assert_eq!(
        inputs,
        [
            json!({ "requests": [
                { "cost": 4, "attributes": alice },
                { "cost": 1, "attributes": { "domain": "web", "path": "/" } },
            ] }),
            json!({ "cost": 1, "verb": "refund", "attributes": alice }),
            json!({ "cost": 4, "attributes": alice }),
            json!({ "cost": 0, "verb": "peek", "attributes": alice }),
            json!({ "cost": 2, "attributes": alice }),
            json!({ "cost": 1, "verb": "refund", "attributes": alice }),
        ]
    );
}

/// Limits in quota mode and peeks decide a call otherwise than others: a recording must say so.
#[tokio::test]
async fn roles_of_the_descriptors_of_config_files_are_recorded() {
    let folder = TempDir::new("rls-recorded-roles");
    let file = folder.path().join("requests.jsonl");
    let files = folder.path().join("envoy");
    std::fs::create_dir_all(&files).unwrap();
    let limits = "
domain: web
descriptors:
  - {key: pool1, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: pool2, quota_mode: true, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: tokens, rate_limit: {unit: year, requests_per_unit: 7}}
";
    std::fs::write(files.join("web.yaml"), limits).unwrap();
    let config = folder.file("slidegate.yaml", format!("record: {{path: {}}}\n", file.display()));
    let files = files.display().to_string();
    let server = start(&["--config", &config, "--envoy-config", &files]);
    let mut client = client(&server).await;
    answer(&mut client, &[descriptor(&[("pool1", "x")]), descriptor(&[("pool2", "x")])]).await;
    answer(&mut client, &[hitting(0, descriptor(&[("tokens", "x")])), descriptor(&[("pool1", "x")])]).await;
    stop(server).await;
    let lines = recorded(&file);
    // Role, verb, and whether a key over its limit denies.
    let roles = |line: &Value| -> Vec<(String, String, bool)> {
        let text = |request: &Value, name: &str| request[name].as_str().unwrap_or_default().to_owned();
        let requests = line["requests"].as_array().unwrap().iter();
        requests.map(|one| (text(one, "role"), text(one, "verb"), one["deny_over_limit"] == true)).collect()
    };
    let role = |role: &str, verb: &str, is_over: bool| (role.to_owned(), verb.to_owned(), is_over);
    let together = role("together", "", false);
    assert_eq!(roles(&lines[0]), [together.clone(), together.clone()]);
    assert_eq!(roles(&lines[1]), [role("", "peek", true), role("refusals", "", false), together]);
    assert_eq!(lines.len(), 2);
}

/// Without all or nothing, a replay charges what a denied call did not, and denies the next.
#[tokio::test]
async fn a_replay_of_calls_with_several_descriptors_has_the_totals_of_the_service() {
    let folder = TempDir::new("rls-recorded-replay");
    let file = folder.path().join("requests.jsonl");
    let config = format!(
        "record: {{path: {}}}\npolicies:\n  \
           - {{name: per-user, scope: [user], quota: 5/1h}}\n  \
           - {{name: per-path, scope: [path], quota: 9/1h, algorithm: token-bucket}}\n  \
           - {{name: all, scope: [domain], quota: 60/1h, mode: shadow}}\n",
        file.display()
    );
    let config = folder.file("slidegate.yaml", config);
    let server = start(&["--config", &config]);
    let mut client = client(&server).await;
    let (mut denied, mut asked) = (0, 0);
    for round in 0..40_u64 {
        let path = format!("/{}", round % 3);
        let user = |number: u64| user(&format!("user-{number}"));
        let mut descriptors = vec![
            hitting(1 + round % 2, user(round % 5)),
            descriptor(&[("path", &path)]),
            hitting(1, user(7 + round % 4)),
        ];
        if round % 4 == 0 {
            descriptors.push(hitting(0, user(round % 5)));
        }
        if round % 5 == 0 {
            let mut refund = hitting(1, user(1 + round % 3));
            refund.is_negative_hits = true;
            descriptors.push(refund);
        }
        let is_denied = answer(&mut client, &descriptors).await.overall_code() == Code::OverLimit;
        denied += u64::from(is_denied);
        asked += 1;
    }
    assert!(denied > 5 && denied < asked - 5, "{denied} of {asked} are denied");
    let counted = |policy: &str| {
        let metrics = server.get("/metrics").body;
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
    let of_service = ["per-user", "per-path", "all"].map(counted);
    stop(server).await;
    let output = run(&["replay", &file.display().to_string(), "--config", &config, "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let outcome: Value = serde_json::from_slice(&output.stdout).unwrap();
    let scenario = &outcome["configured"];
    assert_eq!((&scenario["requests"], &scenario["denied"]), (&json!(asked), &json!(denied)));
    let of_replay: Vec<_> = scenario["policies"]
        .as_array()
        .unwrap()
        .iter()
        .map(|policy| (policy["seen"].as_u64().unwrap(), policy["denied"].as_u64().unwrap()))
        .collect();
    assert_eq!(of_replay, of_service);
}

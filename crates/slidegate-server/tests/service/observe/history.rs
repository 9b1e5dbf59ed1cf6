//! `/v1/history`: the last hour.

use super::*;

/// Counts of the whole history, by policy, verdict and source.
fn totals(history: &Value) -> BTreeMap<String, u64> {
    let decisions = history["decisions"].as_array().unwrap().iter();
    let sum = |counts: &Value| counts.as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).sum();
    let name = |one: &Value| {
        ["policy", "verdict", "source"].map(|field| one[field].as_str().unwrap().to_owned()).join(" ")
    };
    decisions.map(|one| (name(one), sum(&one["counts"]))).collect()
}

/// Who opens the page in an incident needs the minutes before it.
#[test]
fn the_history_has_decisions_by_policy_verdict_and_source_and_what_was_changed() {
    let folder = TempDir::new("history");
    let server = start(&folder, POLICIES);
    for _ in 0..5 {
        check(&server, &json!({ "user": "alice", "ip": "192.0.2.7" }));
    }
    let history = server.get("/v1/history").json();
    let wanted = [
        ("per-ip allow store", 2),
        ("per-ip deny store", 3),
        ("per-user allow store", 5),
        ("tried allow store", 5),
    ];
    let wanted: BTreeMap<_, _> = wanted.map(|(name, count)| (name.to_owned(), count)).into();
    assert_eq!(totals(&history), wanted);
    let sum =
        |name: &str| history[name].as_array().unwrap().iter().map(|one| one.as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("allowed"), sum("denied")), (2, 3));
    assert!(history["keys"].as_array().unwrap().last().unwrap().as_u64().unwrap() >= 3);
    let steps = history["at_ms"].as_array().unwrap().len();
    for list in ["lasted_ms", "allowed", "keys", "settled", "degraded", "store"] {
        assert_eq!(history[list].as_array().unwrap().len(), steps, "{list}");
    }

    let changed = server.change("PUT", "/v1/policies/per-user", &[], r#"{"limit": 20}"#);
    assert_eq!(changed.status, 200, "{}", changed.body);
    folder.file("slidegate.yaml", "policies: [{name: per-user, limit: none}]");
    let markers = || server.get("/v1/history").json()["markers"].as_array().unwrap().clone();
    server.signal("HUP");
    slidegate_testkit::until_true("the rejected file has a marker", || markers().len() >= 3);
    let found: Vec<_> = markers().iter().map(|one| (one["what"].clone(), one["text"].clone())).collect();
    assert_eq!(found[0], (json!("started"), json!(concat!("slidegate ", env!("CARGO_PKG_VERSION")))));
    assert_eq!(found[1], (json!("changed"), json!("per-user: 20 per 1h (sliding-log), by loopback")));
    assert_eq!(found[2].0, "rejected");
    assert!(found[2].1.as_str().unwrap().contains("invalid limit"), "{found:?}");
    assert_eq!(
        server.get("/v1/history?minutes=61").json()["detail"],
        "invalid minutes `61`: must be a whole number from 1 to 60"
    );
}

/// The memory that is stated must not depend on what the service is asked to do.
#[test]
fn validate_states_the_memory_of_the_history_and_metrics_switch_it_off() {
    let folder = TempDir::new("history-off");
    let said = |config: &str| text(&run(&["validate", &folder.file("slidegate.yaml", config)]).stdout);
    let policies = "policies: [{name: per-user, scope: [user], quota: 10/1h}]\n";
    assert!(
        said(policies).contains("The history of the last hour takes up to 1.25 MiB."),
        "{}",
        said(policies)
    );
    let off = format!("{policies}observe: {{metrics: false}}\n");
    assert!(!said(&off).contains("The history of"), "{}", said(&off));
    let server = start(&folder, &off);
    let answer = server.get("/v1/history");
    assert_eq!(
        (answer.status, answer.json()["detail"].as_str().unwrap()),
        (404, "the history is switched off; write `metrics: true` under `observe` in the configuration")
    );
}

//! Metrics: formats and counts.

use super::*;
use slidegate_testkit::process::command;

/// Prints every sample of a page, one a line, as the parsers of Prometheus' own Python client read
/// it.
const READ_METRICS: &str = r#"
import sys
page = sys.stdin.read()
if sys.argv[1] == "openmetrics":
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
else:
    from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(page):
    assert family.documentation, family.name
    for sample in family.samples:
        labels = ",".join(f"{name}={value!r}" for name, value in sorted(sample.labels.items()))
        print(f"{family.type} {sample.name} {labels} {float(sample.value)}")
"#;

/// The samples that a real parser finds in a page, in a fixed order.
fn parsed(format: &str, page: &str) -> Vec<String> {
    let mut parser = command(installed("python/bin/python"))
        .args(["-c", READ_METRICS, format])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    parser.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = parser.wait_with_output().unwrap();
    assert!(output.status.success(), "{format} cannot be parsed: {page}");
    let mut samples: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    samples.sort_unstable();
    samples
}

/// A scraper that is sent a format it did not ask for drops the page, and every alert that rests on
/// it falls silent.
#[test]
fn metrics_come_in_the_text_format_that_is_asked_for_and_real_parsers_read_both() {
    let (folder, rules_folder) = (TempDir::new("observe-formats"), TempDir::new("observe-formats-rules"));
    let rules = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    rules_folder.file("rules.yaml", rules);
    let config = folder.file("slidegate.yaml", POLICIES);
    let server = Server::start(&["--config", &config, "--envoy-config", rules_folder.as_str()]);
    for user in ["a", "b"] {
        ask(&server, "/v1/check", &json!({ "user": user }), 4);
    }
    let call = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}"#;
    assert_eq!([(); 2].map(|()| server.post("/json", call).status), [200, 429]);
    let page = |accept: &str| server.ask_with(&format!("accept: {accept}\r\n"), "GET", "/metrics", None);
    for accept in ["*/*", "text/plain;version=0.0.4", "application/openmetrics-text;q=0.1, text/plain;q=0.2"]
    {
        let answer = page(accept);
        let found = (answer.header("content-type"), answer.header("vary"));
        assert_eq!(found, (Some("text/plain; version=0.0.4; charset=utf-8"), Some("Accept")), "{accept}");
        assert!(!answer.body.contains("# EOF") && !answer.body.contains("# UNIT"), "{}", answer.body);
    }
    let prometheus =
        "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    let metrics = page(prometheus);
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let found = (metrics.header("content-type"), metrics.header("vary"));
    assert_eq!(found, (Some(media_type), Some("Accept")));
    assert!(metrics.body.ends_with("# EOF\n") && metrics.body.matches("# EOF").count() == 1);

    // The same samples, but for what the older format has no type for, and what passes between two
    // pages.
    let comparable = |samples: Vec<String>| -> Vec<String> {
        let passes =
            ["_info", "_duration_", "_connections_accepted_", "slidegate_connections protocol", "_open_fds"];
        samples.into_iter().filter(|line| !passes.iter().any(|name| line.contains(name))).collect()
    };
    let (new, old) = (parsed("openmetrics", &metrics.body), parsed("text", &page("*/*").body));
    for line in [
        "counter slidegate_decisions_total policy='per-user',source='store',verdict='allow' 2.0",
        "gauge slidegate_policy_limit policy='per-user' 10.0",
        "unknown ratelimit_service_rate_limit_total_hits domain='d',key1='k' 2.0",
    ] {
        assert!(new.iter().any(|one| one == line), "{line}: {new:#?}");
        assert!(old.iter().any(|one| one == line), "{line}: {old:#?}");
    }
    assert!(old.iter().any(|line| line.starts_with("gauge slidegate_build_info version=")), "{old:#?}");
    assert_eq!(comparable(new), comparable(old));
}

/// An alert or an invoice is made of these: each must be what happened, to the last one.
#[test]
fn metrics_count_known_traffic_exactly() {
    let folder = TempDir::new("observe-metrics");
    let server = start(&folder, POLICIES);
    let (alice, ip) = (json!({ "user": "alice" }), json!({ "ip": "192.0.2.7" }));
    // 4 + 4 of 10 are near the limit, 3 more do not fit. In shadow 4 never fit.
    assert_eq!(ask(&server, "/v1/check", &alice, 4)["allowed"], true);
    assert_eq!(ask(&server, "/v1/check", &alice, 4)["allowed"], true);
    assert_eq!(ask(&server, "/v1/check", &alice, 3)["allowed"], false);
    ask(&server, "/v1/peek", &alice, 1);
    ask(&server, "/v1/refund", &alice, 2);
    ask(&server, "/v1/penalize", &alice, 5);
    assert_eq!([(); 3].map(|()| check(&server, &ip)), [true, true, false]);
    assert!(check(&server, &json!({ "nobody": "knows" })));
    let both = json!({ "attributes": { "user": "bob", "ip": "192.0.2.7" } });
    let batch = json!({ "requests": [both, both] }).to_string();
    assert_eq!(server.post("/v1/check/batch", &batch).status, 200);

    let now = metrics(&server);
    let decisions = |policy: &str, verdict: &str| {
        let labels = format!("policy=\"{policy}\",verdict=\"{verdict}\",source=\"store\"");
        count(&now, &format!("slidegate_decisions_total{{{labels}}}"))
    };
    assert_eq!([decisions("per-user", "allow"), decisions("per-user", "deny")], [4, 1]);
    assert_eq!([decisions("per-ip", "allow"), decisions("per-ip", "deny")], [2, 3]);
    assert_eq!([decisions("tried", "allow"), decisions("tried", "shadow_deny")], [3, 2]);
    let of = |name: &str, policy: &str| count(&now, &format!("slidegate_{name}{{policy=\"{policy}\"}}"));
    // What another policy denied was charged nowhere, and a penalty is charged.
    assert_eq!(["per-user", "per-ip"].map(|policy| of("cost_admitted_total", policy)), [13, 2]);
    assert_eq!(["per-user", "per-ip", "tried"].map(|policy| of("cost_refused_total", policy)), [3, 3, 0]);
    assert_eq!(of("cost_refunded_total", "per-user"), 2);
    assert_eq!(["per-user", "per-ip"].map(|policy| of("near_limit_total", policy)), [1, 1]);
    assert_eq!([of("policy_limit", "per-user"), of("policy_window_seconds", "per-user")], [10, 3600]);
    assert_eq!([of("policy_enforced", "per-user"), of("policy_enforced", "tried")], [1, 0]);
    let requests = |verb: &str, verdict: &str| {
        let labels = format!("protocol=\"http\",verb=\"{verb}\",verdict=\"{verdict}\"");
        count(&now, &format!("slidegate_requests_total{{{labels}}}"))
    };
    assert_eq!([requests("check", "allow"), requests("check", "deny")], [5, 4]);
    assert_eq!(
        [requests("peek", "allow"), requests("refund", "allow"), requests("penalize", "allow")],
        [1; 3]
    );
    assert_eq!(count(&now, "slidegate_unmatched_requests_total{protocol=\"http\"}"), 1);
    assert_eq!(count(&now, "slidegate_decision_duration_seconds_count{protocol=\"http\"}"), 12);
    assert_eq!(count(&now, "slidegate_decision_duration_seconds_bucket{le=\"+Inf\",protocol=\"http\"}"), 12);
    assert_eq!(count(&now, "slidegate_denials_unrecorded_total"), 0);
    assert_eq!(count(&now, "slidegate_keys"), 3);
}

/// Who sends what cannot be decided is seen, whatever it asks for.
#[test]
fn malformed_requests_of_every_operation_are_counted() {
    let server = Server::start(&["--policy", "10/1h per user"]);
    let counted = |reason: &str| {
        let name =
            format!("slidegate_malformed_total{{protocol=\"http\",reason=\"{reason}\",outcome=\"refused\"}}");
        let all = metrics(&server);
        if all.contains_key(&name) { count(&all, &name) } else { 0 }
    };
    for operation in [
        "check",
        "check/batch",
        "peek",
        "reserve",
        "settle",
        "extend",
        "cancel",
        "acquire",
        "refund",
        "penalize",
        "reset",
    ] {
        let path = format!("/v1/{operation}");
        for (method, body, status, reason) in [
            ("POST", "{\"attributes\": ", 400, "invalid"),
            ("POST", &*" ".repeat(300_000), 413, "too_large"),
            ("PATCH", "", 405, "method"),
        ] {
            let before = counted(reason);
            assert_eq!(server.ask(method, &path, Some(body)).status, status, "{method} {path}");
            assert_eq!(counted(reason), before + 1, "{method} {path}: {reason}");
        }
    }
}

//! The dashboard and the alerts in `deploy/`, compared with the metrics.

use super::*;

/// Names of metrics in a file, as they are asked for.
fn names_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let parts = text.split(|c: char| !is_part(c));
    parts.filter(|part| part.starts_with("slidegate_")).map(str::to_owned).collect()
}

/// A percentile between two buckets' ends is a guess: an alert on one fires at 11 ms or stays
/// silent at 49 ms.
#[test]
fn every_latency_that_an_alert_compares_with_is_the_end_of_a_bucket() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/prometheus/alerts.yml");
    let alerts = std::fs::read_to_string(path).unwrap();
    let server = Server::start(&["--policy", "1/1h per user", "--redis", "redis://127.0.0.1:1"]);
    check(&server, &json!({ "user": "alice" }));
    let page = server.get("/metrics").body;
    let mut compared = 0;
    for expression in alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")) {
        // `histogram_quantile(0.99, sum by (...) (rate(NAME_bucket[5m]))) > 0.025`
        for part in expression.split("histogram_quantile(").skip(1) {
            let at = part.find("_bucket").expect("a percentile of a histogram");
            let begins = part[..at].rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap() + 1;
            let name = &part[begins..at];
            let (_, threshold) = part.rsplit_once("))) > ").expect("a percentile is compared with a number");
            let threshold: f64 = threshold.split(' ').next().unwrap().parse().unwrap();
            let ends = page.lines().filter_map(|line| {
                let (_, end) = line.strip_prefix(name)?.strip_prefix("_bucket{")?.split_once("le=\"")?;
                end.split('"').next()?.parse::<f64>().ok()
            });
            let ends: Vec<f64> = ends.collect();
            assert!(ends.iter().any(|end| (end - threshold).abs() < 1e-9), "{threshold} of {name}: {ends:?}");
            compared += 1;
        }
    }
    assert_eq!(compared, alerts.matches("_seconds_bucket").count(), "every percentile was looked at");
    assert!(compared > 0);
}

/// A dashboard of metrics that are not there is empty, and an alert on one never fires.
#[test]
fn dashboard_and_alerts_use_what_is_exposed_and_every_alert_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    // An unreachable store: its metrics are still exported.
    let server = Server::start(&["--policy", "1/1h per user", "--redis", "redis://127.0.0.1:1"]);
    check(&server, &json!({ "user": "alice" }));
    let dir = TempDir::new("alerts");
    let (file, bounds) = (dir.path().join("snapshot"), ["--max-bytes", "1GiB"]);
    let mut args = vec!["--policy", "1/1h per user", "--snapshot", file.to_str().unwrap()];
    args.extend(bounds);
    let alone = Server::start(&args);
    check(&alone, &json!({ "user": "alice" }));
    let page = server.get("/metrics").body + &alone.get("/metrics").body;
    let mut exposed = BTreeSet::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let endings: &[&str] = match kind {
            "histogram" => &["_bucket", "_sum", "_count"],
            "counter" | "gauge" => &[""],
            other => panic!("{other}"),
        };
        exposed.extend(endings.iter().map(|ending| format!("{name}{ending}")));
    }
    let dashboard = read("deploy/grafana/slidegate.json");
    let alerts = read("deploy/prometheus/alerts.yml");
    for (file, text) in [("dashboard", &dashboard), ("alerts", &alerts)] {
        let used = names_in(text);
        assert!(used.len() > 5, "{file}: {used:?}");
        let unknown: Vec<_> = used.difference(&exposed).collect();
        assert!(unknown.is_empty(), "{file} uses {unknown:?}, exposed are {exposed:#?}");
    }
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.iter().all(|panel| panel["title"].is_string() && panel["targets"][0]["expr"].is_string()));
    // Labels that are asked for must be there too.
    for label in ["policy=", "verdict=", "source=", "door=", "node=", "state=", "result="] {
        assert!(page.contains(label), "{label}");
    }
    let operations = read("docs/observability.md");
    let names: Vec<_> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        assert!(operations.contains(&format!("| `{name}` |")), "{name} is not in the run book");
    }
    for metric in &exposed {
        let stem =
            ["_bucket", "_sum", "_count", "_total", "_info"].iter().find_map(|end| metric.strip_suffix(end));
        let stem = stem.unwrap_or(metric);
        assert!(operations.contains(stem), "{metric} is not explained");
    }
}

//! The dashboard and the alerts in `deploy/`, compared with the metrics.

use super::*;

/// Names of metrics in a file, as they are asked for.
fn names_in(text: &str) -> BTreeSet<String> {
    let parts = text.split(|c: char| !is_part(c));
    parts.filter(|part| part.starts_with("slidegate_")).map(str::to_owned).collect()
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The identifier that a text ends with.
fn last_name(text: &str) -> String {
    let begins = text.rfind(|c: char| !is_part(c)).map_or(0, |at| at + 1);
    text[begins..].to_owned()
}

/// The metrics of a page that have samples, with the labels of each.
fn served_labels(page: &str) -> BTreeMap<&str, BTreeSet<String>> {
    let mut served: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("slidegate_")) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let labels = rest.match_indices("=\"").map(|(at, _)| last_name(&rest[..at]));
        served.entry(name).or_default().extend(labels);
    }
    served
}

/// The labels that an expression groups or selects by, and those that its `legend` shows.
fn asked_labels(expression: &str, legend: &str) -> BTreeSet<String> {
    let groups = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    let grouped = groups.flat_map(|group| group.split(", ")).map(str::to_owned);
    let selected = expression
        .split('"')
        .step_by(2)
        .filter(|part| part.ends_with(['=', '~']))
        .map(|part| last_name(part.trim_end_matches(['=', '~', '!'])));
    let shown = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    let shown = shown.map(|name| name.trim().trim_start_matches("$labels.").to_owned());
    grouped.chain(selected).chain(shown).filter(|label| !label.starts_with("$value")).collect()
}

/// The metrics that a table of the documentation lists, with the labels of each. Labels in a code
/// span of their own are those of every metric of the cell.
fn documented_labels(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut documented = BTreeMap::new();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    for cell in cells.filter(|cell| cell.starts_with("`slidegate_")) {
        let codes: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        let of_all = codes.iter().filter(|code| code.starts_with('{')).flat_map(|code| labels_in(code));
        let of_all: BTreeSet<_> = of_all.collect();
        for code in codes.iter().filter(|code| !code.starts_with('{')) {
            let (name, own) = code.split_at(code.find('{').unwrap_or(code.len()));
            documented.insert(name, labels_in(own).chain(of_all.iter().copied()).collect());
        }
    }
    documented
}

/// The names in `{a,b}`.
fn labels_in(braces: &str) -> impl Iterator<Item = &str> {
    braces.trim_matches(['{', '}']).split(',').filter(|label| !label.is_empty())
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
            let name = &last_name(&part[..at]);
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
fn dashboard_and_alerts_use_what_is_exposed_and_every_metric_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let (dir, rules) = (TempDir::new("alerts"), TempDir::new("alerts-rules"));
    rules.file(
        "rules.yaml",
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1}}]",
    );
    // An unreachable store: its metrics are still exported.
    let shared =
        dir.file("shared.yaml", "store: {redis: redis://127.0.0.1:1, instances: 2}\n".to_owned() + POLICIES);
    let shared = Server::start(&["--config", &shared, "--envoy-config", rules.as_str()]);
    let options = format!(
        "store: {{memory: {{max_bytes: 1GiB, snapshot: {{path: {0}/snapshot}}}}}}\n\
         observe: {{traces: {{endpoint: 'http://127.0.0.1:1'}}}}\n\
         webhook: {{url: 'http://127.0.0.1:1', secret: whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw}}\n",
        dir.as_str()
    );
    let alone = Server::start(&["--config", &dir.file("alone.yaml", options + POLICIES)]);
    check(&shared, &json!({ "user": "alice" }));
    check(&alone, &json!({ "user": "alice" }));
    // Metrics of reservations have samples once there are reservations.
    let ticket = ask(&alone, "/v1/reserve", &json!({ "user": "alice" }), 2)["ticket"].clone();
    let settled = alone.post("/v1/settle", &json!({ "ticket": ticket, "cost": 1 }).to_string());
    assert_eq!(settled.status, 200, "{}", settled.body);
    let page = shared.get("/metrics").body + &alone.get("/metrics").body;
    let mut exposed = BTreeSet::new();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    for (name, kind) in families.filter(|(name, _)| name.starts_with("slidegate_")) {
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

    // Labels that are asked for must be there too; Prometheus adds `instance` and `job`.
    let served = served_labels(&page);
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let targets = targets
        .map(|target| (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap_or("")));
    let rules = alerts
        .split("- alert: ")
        .skip(1)
        .map(|rule| (rule.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap(), rule));
    for (expression, legend) in targets.chain(rules) {
        let names = names_in(expression);
        let of_names = names.iter().filter_map(|name| served.get(name.as_str())).flatten();
        let known: BTreeSet<_> = of_names.map(String::as_str).chain(["instance", "job"]).collect();
        for label in asked_labels(expression, legend) {
            assert!(known.contains(label.as_str()), "{expression}: no label `{label}`, but {known:?}");
        }
    }

    let operations = read("docs/observability.md");
    let documented = documented_labels(&operations);
    for name in &exposed {
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
        let explained = documented.get(name.as_str()).or_else(|| documented.get(family?));
        let explained = explained.unwrap_or_else(|| panic!("docs/observability.md lacks {name}"));
        if let Some(labels) = served.get(name.as_str()) {
            let labels: BTreeSet<_> =
                labels.iter().map(String::as_str).filter(|label| *label != "le").collect();
            assert_eq!(explained, &labels, "docs/observability.md: {name}");
        }
    }
    let is_exposed = |name: &str| exposed.contains(name) || exposed.contains(&format!("{name}_bucket"));
    let missing: Vec<_> = documented.keys().filter(|name| !is_exposed(name)).collect();
    assert!(missing.is_empty(), "docs/observability.md: not exposed: {missing:?}");
}

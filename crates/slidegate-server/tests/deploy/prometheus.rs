//! The alerts of `deploy/prometheus`: judged by promtool, each with an example and a runbook.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use slidegate_testkit::process::command;
use slidegate_testkit::service::text;

use super::kubernetes::parse;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(repository().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The alerts, in the order of the file.
fn alerts() -> Vec<Value> {
    list(&list(&parse(&read("deploy/prometheus/alerts.yml")), "groups")[0], "rules").to_vec()
}

fn name(alert: &Value) -> &str {
    alert["alert"].as_str().unwrap()
}

/// Nobody has seen most alerts fire before the night in which they should.
#[test]
fn every_alert_fires_in_its_example_and_only_then() {
    let examples = repository().join("deploy/prometheus/alerts_test.yml");
    let output = command("promtool").args(["test", "rules"]).arg(examples).output().unwrap();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let examples = parse(&read("deploy/prometheus/alerts_test.yml"));
    let evaluations = list(&examples, "tests").iter().flat_map(|test| list(test, "alert_rule_test"));
    let (firing, silent): (Vec<_>, Vec<_>) =
        evaluations.partition(|evaluation| !list(evaluation, "exp_alerts").is_empty());
    for alert in alerts() {
        let is_about = |evaluation: &&Value| evaluation["alertname"] == alert["alert"];
        let name = name(&alert);
        assert!(firing.iter().any(is_about), "alerts_test.yml has no example in which {name} fires");
        assert!(silent.iter().any(is_about), "alerts_test.yml has no example in which {name} is silent");
    }
}

/// Whoever is woken by an alert must not search for what to do, or read about one that is gone.
#[test]
fn every_alert_has_a_runbook_and_every_runbook_its_alert() {
    let page = read("docs/runbooks.md");
    let sections: BTreeSet<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let alerts = alerts();
    assert_eq!(sections, alerts.iter().map(name).collect());
    for alert in &alerts {
        let anchor = format!("docs/runbooks.md#{}", name(alert).to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], anchor);
        let section = page.split(&format!("\n## {}\n", name(alert))).nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        for part in ["- **Means:** ", "- **Users see:** ", "- **Look at:** ", "**Do:** "] {
            assert!(section.to_lowercase().contains(&part.to_lowercase()), "{}: no `{part}`", name(alert));
        }
    }
}

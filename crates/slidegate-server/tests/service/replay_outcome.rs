//! What a replay writes: JSON, text and the page, and what a diff says.

use std::collections::BTreeSet;

use serde_json::Value;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{run, slidegate, text};

/// 240 requests of six clients, some of them in bursts, and a malformed line.
fn log() -> String {
    let mut log = String::new();
    for n in 0..240 {
        let second = n * 2 - n % 7;
        let client = n % 6 * (n / 40 % 2);
        log += &format!(
            "192.0.2.{client} - user{client} [20/Nov/2026:10:{:02}:{:02} +0000] \"GET /{} HTTP/1.1\" {} 5 \"-\" \"-\"\n",
            second / 60,
            second % 60,
            ["", "login"][n % 2],
            [200, 404][n / 3 % 2]
        );
    }
    log + "not a log line\n"
}

const CONFIG: &str = "policies:\n  - name: per-ip\n    scope: [ip]\n    limit: 12\n    window: 1m\n  \
    - name: login\n    mode: shadow\n    when: { path: /login }\n    scope: [ip]\n    limit: 4\n    window: 30s\n";

fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{}/../../docs/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Every name of a field, wherever it is. The keys of the map from buckets to counts are numbers.
fn names(json: &Value, into: &mut BTreeSet<String>) {
    match json {
        Value::Object(fields) => {
            for (name, value) in fields {
                if !name.bytes().all(|byte| byte.is_ascii_digit()) {
                    into.insert(name.clone());
                }
                names(value, into);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        _ => {}
    }
}

/// Programs read these; a field that is not documented will be removed one day.
#[test]
fn every_field_of_the_json_is_documented() {
    let folder = TempDir::new("replay-json");
    let (log, config) = (folder.file("access.log", log()), folder.file("slidegate.yaml", CONFIG));
    let output =
        run(&["replay", &log, "--config", &config, "--json", "-", "--sweep", "per-ip.limit=2..40:2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON on standard output");
    let docs = page("replay-json.md");
    let documented = |name: &str| docs.contains(&format!("`{name}`"));
    let mut fields = BTreeSet::new();
    names(&json, &mut fields);
    assert!(fields.len() > 50, "{fields:?}");
    let missing: Vec<_> = fields.iter().filter(|name| !documented(name)).collect();
    assert!(missing.is_empty(), "docs/replay-json.md lacks {missing:?}");

    assert_eq!(json["schema"], 1);
    assert_eq!(json["log"]["malformed"], 1);
    let command = json["command"].as_str().unwrap();
    assert!(command.starts_with("slidegate replay ") && command.contains(" --sweep "), "{command}");
    let policy = &json["configured"]["policies"][0];
    assert!(policy["denied"].as_u64().unwrap() > 0, "the log is busy enough to mean something");
}

/// An operator sizes a machine by any form of the report.
#[test]
fn how_many_keys_there_were_at_once_is_in_every_form() {
    let folder = TempDir::new("replay-at-once");
    let (log, config) = (folder.file("access.log", log()), folder.file("slidegate.yaml", CONFIG));
    let file = |name: &str| format!("{}/{name}", folder.as_str());
    let (json, html) = (file("out.json"), file("out.html"));
    let output = run(&["replay", &log, "--config", &config, "--json", &json, "--report", &html]);
    let json: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let figure = |name: &str| json["configured"][name].as_u64().unwrap();
    assert!((4..=12).contains(&figure("keys_at_once")), "{json}");
    let grouped = |bytes: u64| {
        assert!((1000..1_000_000).contains(&bytes), "{bytes}");
        format!("{},{:03}", bytes / 1000, bytes % 1000)
    };
    let line = format!(
        "t once there were up to {} keys, which take up to {} bytes in memory and {} bytes in Redis",
        figure("keys_at_once"),
        grouped(figure("memory_bytes")),
        grouped(figure("redis_bytes"))
    );
    assert!(text(&output.stdout).contains(&format!("\na{line}\n")), "{}", text(&output.stdout));
    assert!(std::fs::read_to_string(html).unwrap().contains(&format!("<li>A{line}.</li>")));
}

/// A report is sent around; keys that may not be in the log of the service may not be in it either.
#[test]
fn redacted_keys_are_in_no_form_of_the_report() {
    let folder = TempDir::new("replay-redacted");
    let log = folder.file("access.log", log());
    let config = CONFIG.replace("    scope: [ip]", "    keys_shown: hashed\n    scope: [user]");
    let other = config.replace("limit: 12", "limit: 6").replace("keys_shown: hashed", "keys_shown: plain");
    let (config, other) = (folder.file("slidegate.yaml", config), folder.file("other.yaml", other));
    let file = |name: &str| format!("{}/{name}", folder.as_str());
    let (json, html) = (file("out.json"), file("out.html"));
    let output = run(&[
        "replay",
        &log,
        "--config",
        &config,
        "--json",
        &json,
        "--report",
        &html,
        "--sweep",
        "per-ip.limit=2..40:2",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let each = run(&["replay", &log, "--config", &config, "--each"]);
    let diff = run(&["diff", &config, &other, "--log", &log, "--format", "json"]);
    let files = [json, html].map(|path| std::fs::read_to_string(path).unwrap());
    let all = [output.stdout, each.stdout, diff.stdout].map(|bytes| text(&bytes));
    for form in files.iter().chain(&all) {
        // `user0` is the client that is denied; the malformed line has none.
        assert!(!form.contains("user0"), "{form}");
        assert!(form.contains('#'), "a hash stands for it");
    }
}

/// Logs of CI jobs and pipes show escape codes as rubbish.
#[test]
fn the_text_has_no_escape_codes_in_a_pipe_and_ascii_without_unicode() {
    let folder = TempDir::new("replay-text");
    let (log, config) = (folder.file("access.log", log()), folder.file("slidegate.yaml", CONFIG));
    let report = |locale: &str| {
        let output = slidegate()
            .args(["replay", &log, "--config", &config, "--sweep", "per-ip.limit=2..40"])
            .env("LC_ALL", locale)
            .env("TERM", "xterm-256color")
            .output()
            .unwrap();
        text(&output.stdout)
    };
    let (unicode, ascii) = (report("C.UTF-8"), report("C"));
    assert!(!unicode.contains('\u{1b}') && unicode.contains('█'), "{unicode}");
    assert!(ascii.is_ascii() && ascii.contains("####"), "{ascii}");
    assert!(unicode.contains("  <- recommended\n"), "{unicode}");
}

/// The errors that people meet first.
#[test]
fn options_that_cannot_be_met_are_one_line() {
    let folder = TempDir::new("replay-options");
    let (log, config) = (folder.file("access.log", log()), folder.file("slidegate.yaml", CONFIG));
    let error = |arguments: &[&str]| {
        let output = run(&[&["replay", &log, "--config", &config], arguments].concat());
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""));
        text(&output.stderr)
    };
    assert_eq!(
        error(&["--sweep", "limit=1..5"]),
        "invalid --sweep: there are 2 policies: name one, for example `per-ip.limit=1..5`\n"
    );
    assert_eq!(
        error(&["--json", "-", "--each"]),
        "--json and --each both write to standard output: give one of them a file\n"
    );
    assert_eq!(
        error(&["--deny-at-most", "all"]),
        "invalid --deny-at-most `all`: must be a share from 0% to 100% with at most four decimal places, for example \
         `0.1%`; see --help\n"
    );
    let missing = error(&["--json", "/nowhere/out.json"]);
    assert!(missing.starts_with("cannot write /nowhere/out.json: "), "{missing}");
}

/// The exit code is what a pipeline sees.
#[test]
fn a_diff_exits_with_1_above_the_threshold_and_2_for_errors() {
    let folder = TempDir::new("diff");
    let log = folder.file("access.log", log());
    let old = folder.file("old.yaml", CONFIG);
    let new = folder.file("new.yaml", CONFIG.replace("limit: 12", "limit: 6"));
    let diff = |arguments: &[&str]| run(&[&["diff", &old, &new, "--log", &log], arguments].concat());
    let plain = diff(&[]);
    assert_eq!(plain.status.code(), Some(0));
    let report = text(&plain.stdout);
    assert!(
        report.contains("newly denied ") && report.contains("\nKeys with newly denied requests\n"),
        "{report}"
    );
    assert_eq!(diff(&["--fail-above", "100%"]).status.code(), Some(0));
    let failed = diff(&["--fail-above", "0.1%", "--format", "json"]);
    assert_eq!(failed.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!((&json["failed"], &json["fail_above"]), (&Value::Bool(true), &Value::from("0.1%")));
    assert!(json["newly_denied"].as_u64().unwrap() > 0 && json["newly_allowed"] == 0, "{json}");
    let docs = page("replay-json.md");
    let mut fields = BTreeSet::new();
    names(&json, &mut fields);
    let missing: Vec<_> = fields.iter().filter(|name| !docs.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/replay-json.md lacks {missing:?}");

    // Several logs are one: a copy under another name doubles what clients asked for.
    let copy = folder.file("copy.log", self::log());
    let both = run(&["diff", &old, &new, "--log", &log, &copy, "--format", "json"]);
    let both: Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(
        (&both["requests"], both["log"]["files"].as_array().map(Vec::len)),
        (&Value::from(480), Some(2))
    );

    let same = run(&["diff", &old, &old, "--log", &log, "--fail-above", "0%", "--format", "markdown"]);
    assert_eq!(same.status.code(), Some(0), "nothing changes");
    assert!(text(&same.stdout).contains("| **newly denied** | 0 | 0% |"), "{}", text(&same.stdout));

    let missing = run(&["diff", &old, "nowhere.yaml", "--log", &log]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(text(&missing.stderr).contains("nowhere.yaml"), "{}", text(&missing.stderr));
    let empty = folder.file("empty.log", "");
    let output = run(&["diff", &old, &new, "--log", &empty]);
    assert_eq!(output.status.code(), Some(2), "an empty log must not pass for a check");
}

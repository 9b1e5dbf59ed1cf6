//! Simulated traffic through the command: reports, logs that `replay` reads, and their errors.

use std::fs;

use serde_json::Value;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{run, text};

/// The output of a command that succeeds.
fn output(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The line with the counts of a policy in a report.
fn counts(report: &str) -> &str {
    report.lines().find(|line| line.trim_start().starts_with("seen ")).unwrap_or_else(|| panic!("{report}"))
}

const ATTACK: [&str; 8] =
    ["simulate", "--duration", "10m", "--rate", "5/s", "--boundary", "100/1m", "--seed=3"];

/// What is reported of simulated traffic must be what a replay of its log reports.
#[test]
fn a_simulation_reports_what_a_replay_of_its_log_reports() {
    let folder = TempDir::new("simulate");
    for (style, algorithm) in
        [("recording", "fixed-window"), ("recording", "sliding-log"), ("combined", "sliding-log")]
    {
        let log = folder.path().join(format!("{style}-{algorithm}.log")).display().to_string();
        let policy = format!("100/1m per ip using {algorithm}");
        let simulated =
            output(&[&ATTACK[..], &["--policy", &policy, "--write", &log, "--style", style]].concat());
        let replayed = output(&["replay", &log, "--policy", &policy]);
        assert_eq!(counts(&simulated), counts(&replayed), "{style} {algorithm}");
        // Four attacks of 200 pass a fixed window, and half of each the log.
        let denied = if algorithm == "fixed-window" { "denied 0 " } else { "denied 400 " };
        assert!(counts(&simulated).contains(denied), "{simulated}");
    }
}

/// A colleague who repeats a simulation must get the same log.
#[test]
fn a_log_is_the_same_for_the_same_seed() {
    let log = |seed: &str| output(&["simulate", "--write", "-", "--duration", "5s", "--seed", seed]);
    assert_eq!(log("1"), log("1"));
    assert_ne!(log("1"), log("2"));
    let first: Value = serde_json::from_str(log("1").lines().next().unwrap()).unwrap();
    assert!(first["time"].as_str().unwrap().starts_with("2026-01-05T00:00:00."), "{first}");
    assert!(first["attributes"]["ip"].as_str().unwrap().starts_with("198.18."), "{first}");
}

/// Nothing to do and impossible options are said in one line.
#[test]
fn errors_name_the_option_and_the_way_out() {
    let error = |args: &[&str]| {
        let output = run(&[&["simulate"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        text(&output.stderr)
    };
    assert_eq!(
        error(&[]),
        "nothing to do with the requests; give policies, for example `--policy '100/1m per ip'`, or a log to write \
         with --write\n"
    );
    assert_eq!(
        error(&["--write", "-", "--policy", "1/1s"]),
        "the log and the report cannot both go to standard output; write the log to a file\n"
    );
    assert_eq!(
        error(&["--write", "-", "--rate", "1G/s"]),
        "too many requests: 600000000000 are expected, at most 1000000000 are simulated; use a shorter duration or a \
         lower rate\n"
    );
    let folder = TempDir::new("simulate-error");
    let missing = folder.path().join("no/such.log").display().to_string();
    assert_eq!(
        error(&["--write", &missing]),
        format!("cannot write {missing}: No such file or directory (os error 2)\n")
    );
}

/// A script that tries out policies must not take figures for an answer that say nothing.
#[test]
fn a_policy_that_judged_nothing_is_an_error_after_the_report() {
    let output = run(&["simulate", "--duration", "1s", "--policy", "5/1m per tenant"]);
    assert_eq!(output.status.code(), Some(2));
    // It has no options to map attributes, or to accept this.
    let error = "policy `per-tenant` judged nothing: it needs the attribute `tenant`, which never occurs in the log, \
                 which has `ip`, `method`, `path`, `status`, `user`, `user_agent`\n";
    assert_eq!(text(&output.stderr), error);
    let report = text(&output.stdout);
    assert!(report.starts_with("error: policy ") && report.contains("denied 0 "), "{report}");
}

/// The first file is what most people start from: it must be valid, and never replace another one.
#[test]
fn init_writes_a_valid_default_file_and_overwrites_nothing() {
    let folder = TempDir::new("init");
    let path = folder.path().join("slidegate.yaml").display().to_string();
    assert!(output(&["init", &path]).contains("written; check it with `slidegate validate"));
    assert!(
        output(&["validate", &path])
            .contains("is valid: 1 policy.\n  per-user: requests are limited to 100 per 1m")
    );
    let again = run(&["init", &path]);
    assert_eq!(again.status.code(), Some(2));
    assert_eq!(
        text(&again.stderr),
        format!("{path}: already exists; give another path, or --force to overwrite it\n")
    );
    fs::write(&path, "something else").unwrap();
    output(&["init", &path, "--force"]);
    assert!(fs::read_to_string(&path).unwrap().starts_with("# The default configuration of slidegate."));
    assert!(output(&["init", "-"]).contains("\npolicies:\n  # Each user may use 100"));
}

/// A proposal that denies ordinary clients is worse than none: its own log is the test.
#[test]
fn init_proposes_from_a_log_what_denies_at_most_the_stated_share() {
    let folder = TempDir::new("init-log");
    let log = folder.path().join("access.log").display().to_string();
    output(&[
        "simulate",
        "--write",
        &log,
        "--style",
        "combined",
        "--duration",
        "20m",
        "--rate",
        "40/s",
        "--keys",
        "400",
        "--zipf",
        "1.1",
        "--bursts",
        "80/20s",
        "--boundary",
        "300/1m",
    ]);
    // Some of the attempts to log in: the paths of the simulation are asked for with GET.
    let text_of_log = fs::read_to_string(&log).unwrap();
    let posts = text_of_log.lines().map(|line| line.replace("\"GET /login", "\"POST /login") + "\n");
    fs::write(&log, posts.collect::<String>()).unwrap();
    for share in ["1%", "0.1%"] {
        let config = folder.path().join(format!("{share}.yaml")).display().to_string();
        output(&["init", &config, "--from-log", &log, "--deny-at-most", share]);
        let yaml = fs::read_to_string(&config).unwrap();
        assert!(output(&["validate", &config]).contains("is valid: 3 policies."), "{yaml}");
        let outcome: Value =
            serde_json::from_str(&output(&["replay", &log, "--config", &config, "--json", "-"])).unwrap();
        let scenario = &outcome["scenarios"][0];
        let of = |policy: &Value, field: &str| policy[field].as_u64().unwrap();
        let policies = scenario["policies"].as_array().unwrap();
        let denied: u64 = policies.iter().map(|policy| of(policy, "denied")).sum();
        let seen: u64 = policies.iter().map(|policy| of(policy, "seen")).max().unwrap();
        let per_mille = if share == "1%" { 10 } else { 1 };
        assert!(denied * 1000 <= seen * per_mille, "{denied} of {seen}: {yaml}");
        // What the file says of itself is what the replay finds, and nobody is denied yet.
        assert!(yaml.contains(&format!("would deny {denied} requests (")), "{denied}: {yaml}");
        assert_eq!(yaml.matches("mode: shadow").count(), 3, "{yaml}");
        let login = yaml.split_once("- name: login-per-ip").unwrap().1;
        assert!(login.contains("path: { one_of: [\"/login\"] }"), "{yaml}");
    }
    let pipe = run(&["init", "-", "--from-log", "-"]);
    assert_eq!(text(&pipe.stderr), "the log is read twice, so it cannot be standard input; give a file\n");
}

//! What-if commands judge nothing that a log does not have, and say which configuration they use.

use std::process::Output;

use serde_json::Value;
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, slidegate, text};

/// 100 requests of four clients, one each second, by nobody who logged in.
fn log() -> String {
    let line = |n: u32| {
        format!(
            "192.0.2.{} - - [20/Nov/2026:10:{:02}:{:02} +0000] \"GET /items HTTP/1.1\" 200 5\n",
            n % 4,
            n / 60,
            n % 60
        )
    };
    (0..100).map(line).collect()
}

fn config(policies: &[(&str, &str)]) -> String {
    let policy = |(name, rest): &(&str, &str)| format!("  - {{ name: {name}, {rest} }}\n");
    format!("policies:\n{}", policies.iter().map(policy).collect::<String>())
}

/// Exit code, standard output, standard error.
fn outcome(output: &Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

const NO_USER: &str = "policy `per-user` judged nothing: it needs the attribute `user`, which never occurs in the log, which has \
     `ip`, `method`, `path`, `status`; map them with --field, or accept this with --allow-empty";

/// A check of a change in CI must not pass because the log cannot show what the change does.
#[test]
fn a_policy_whose_attribute_never_occurs_fails_every_what_if() {
    let folder = TempDir::new("evidence-attribute");
    let log = folder.file("access.log", log());
    let per_ip = ("per-ip", "scope: [ip], limit: 5, window: 1m");
    let lax = config(&[per_ip, ("per-user", "scope: [user], limit: 1000, window: 1m")]);
    let strict = folder.file("new.yaml", lax.replace("limit: 1000", "limit: 1"));
    let lax = folder.file("old.yaml", lax);
    let calls: [&[&str]; 3] = [
        &["replay", &log, "--config", &lax],
        &["replay", &log, "--config", &lax, "--sweep", "per-user.limit=1..10"],
        &["diff", &lax, &strict, "--log", &log],
    ];
    for call in calls {
        let (code, out, error) = outcome(&run(call));
        assert_eq!((code, error.as_str()), (Some(2), format!("{NO_USER}\n").as_str()), "{call:?}: {out}");
        assert!(out.contains(&format!("error: {NO_USER}\n")), "{call:?}: {out}");
        let (code, out, error) = outcome(&run(&[call, &["--allow-empty"]].concat()));
        assert_eq!((code, error.as_str()), (Some(0), ""), "{call:?}: {out}");
        assert!(out.contains(&format!("warning: {NO_USER}\n")), "{call:?}: {out}");
    }
    let (code, out, _) = outcome(&run(&["diff", &lax, &strict, "--log", &log, "--fail-above", "0.1%"]));
    assert_eq!(code, Some(2));
    assert!(out.contains("\nNot passed: ") && !out.contains("\nPassed: "), "{out}");
    let json = run(&["replay", &log, "--config", &lax, "--json", "-"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["errors"][0], json["warnings"].as_array().map(Vec::len)), (&NO_USER.into(), Some(0)));
}

/// A typing error in a condition removes a limit; the figures of both files then look the same.
#[test]
fn a_changed_policy_that_judged_nothing_does_not_pass() {
    let folder = TempDir::new("evidence-changed");
    let log = folder.file("access.log", log());
    let of = |path: &str| {
        config(&[("items", &format!("when: {{ path: {path} }}, scope: [ip], limit: 30, window: 1m"))])
    };
    let (old, new) = (folder.file("old.yaml", of("/items")), folder.file("new.yaml", of("/itmes")));
    let diff = |more: &[&str]| outcome(&run(&[&["diff", &old, &new, "--log", &log], more].concat()));
    let warning =
        "warning: policy `items` applied to none of 100 requests: its figures say nothing about it\n";
    let (code, out, _) = diff(&[]);
    assert_eq!(code, Some(0));
    assert!(out.contains(warning), "{out}");
    let one = folder.file("one.log", self::log().lines().next().unwrap());
    let out = text(&run(&["diff", &old, &new, "--log", &one]).stdout);
    assert!(out.contains("`items` applied to none of 1 request: "), "{out}");
    let line = format!(
        "policy `items` differs, and as in {new} it applied to none of 100 requests: this log cannot judge the \
         change; give one with such requests, or accept this with --allow-empty\n"
    );
    for option in ["--fail-above", "--fail-above-allowed"] {
        let (code, out, error) = diff(&[option, "10%"]);
        assert_eq!((code, error.as_str()), (Some(2), line.as_str()), "{out}");
        assert_eq!(diff(&[option, "10%", "--allow-empty"]).0, Some(0));
    }
    // What does not change needs no evidence.
    assert_eq!(outcome(&run(&["diff", &new, &new, "--log", &log, "--fail-above", "0%"])).0, Some(0));
}

/// A limit that is gone lets an attack through, and one policy can be hit while the sum looks small.
#[test]
fn thresholds_are_for_both_directions_and_for_each_policy() {
    let folder = TempDir::new("evidence-thresholds");
    let log = folder.file("access.log", log());
    let of = |limit: u32| {
        let first = ("first", format!("when: {{ ip: 192.0.2.1 }}, scope: [ip], limit: {limit}, window: 1h"));
        config(&[(first.0, &first.1), ("all", "scope: [ip], limit: 1000, window: 1m")])
    };
    // Of 25 requests of the one client, 20 or none are allowed.
    let (lax, strict) = (folder.file("lax.yaml", of(25)), folder.file("strict.yaml", of(20)));
    let diff = |old: &str, new: &str, more: &[&str]| {
        let output = run(&[&["diff", old, new, "--log", &log], more].concat());
        (output.status.code(), text(&output.stdout).lines().last().unwrap().to_owned(), text(&output.stderr))
    };
    let said = |code, line: &str| (Some(code), line.to_owned(), String::new());
    for (old, new, option, change) in [
        (&lax, &strict, "--fail-above", "newly denied"),
        (&strict, &lax, "--fail-above-allowed", "newly allowed"),
    ] {
        let line = |start: &str, end: &str| format!("{start} are {change}, {end}");
        assert_eq!(
            diff(old, new, &[option, "5%"]),
            said(0, &line("Passed: 5.0% of the requests", "at most 5% may be."))
        );
        assert_eq!(
            diff(old, new, &[option, "4.9%"]),
            said(1, &line("Failed: 5.0% of the requests", "more than 4.9%."))
        );
        assert_eq!(
            diff(old, new, &[option, "5%", option, "first=10%"]),
            said(1, &line("Failed: 20.0% of the requests under `first`", "more than 10%."))
        );
        assert_eq!(
            diff(old, new, &[option, "first=20%"]),
            said(0, &line("Passed: 20.0% of the requests under `first`", "at most 20% may be."))
        );
    }
    let json = run(&["diff", &lax, &strict, "--log", &log, "--fail-above", "first=10%", "--format", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        json["thresholds"],
        serde_json::json!([{
            "policy": "first", "change": "newly denied", "requests": 5, "of_requests": 25, "at_most": "10%",
            "exceeded": true
        }])
    );
    let unknown = run(&["diff", &lax, &strict, "--log", &log, "--fail-above", "frist=1%"]);
    assert_eq!(
        outcome(&unknown),
        (
            Some(2),
            String::new(),
            "invalid threshold: unknown policy `frist`: must be one of `all`, `first`\n".to_owned()
        )
    );
}

/// With a misspelt field, requests are counted by something else than the user wanted.
#[test]
fn a_field_that_never_occurs_is_an_error() {
    let folder = TempDir::new("evidence-field");
    let line =
        "{\"time\":\"2026-11-20T10:00:00Z\",\"ip\":\"192.0.2.1\",\"who\":\"192.0.2.9\",\"tokens\":5}\n";
    let log = folder.file("log.jsonl", line.repeat(2));
    let replay = |more: &[&str]| {
        outcome(&run(&[&["replay", &log, "--log-format", "json", "--policy", "1/1m per ip"], more].concat()))
    };
    let error = |option: &str| {
        format!("`{option}`: no line of the log has it; check the name, or accept this with --allow-empty\n")
    };
    let (code, out, said) = replay(&["--field", "ip=nosuchfield"]);
    assert_eq!((code, said), (Some(2), error("--field ip=nosuchfield")), "{out}");
    let (code, out, said) = replay(&["--field", "ip=who", "--cost-field", "tokns"]);
    assert_eq!((code, said), (Some(2), error("--cost-field tokns")), "{out}");
    assert_eq!(replay(&["--field", "ip=nosuchfield", "--allow-empty"]).0, Some(0));
    let (code, out, said) = replay(&["--field", "ip=who", "--cost-field", "tokens"]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("192.0.2.9"), "{out}");
}

/// Behind a load balancer, every request would be of one client otherwise, and the service sees many.
#[test]
fn the_client_is_derived_by_the_trusted_proxies_of_the_configuration() {
    let folder = TempDir::new("evidence-client");
    let line = |peer: &str, forwarded: &str| {
        format!("{peer} [20/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 \"{forwarded}\"\n")
    };
    let log = folder.file(
        "access.log",
        [
            line("10.0.0.1", "203.0.113.7"),
            line("10.0.0.1", "6.6.6.6, 203.0.113.7, 10.0.0.2"),
            line("10.0.0.1", "203.0.113.8"),
            // A stranger says what he wants.
            line("198.51.100.9", "203.0.113.7"),
            line("10.0.0.1", "-"),
        ]
        .concat(),
    );
    let format = "nginx:$remote_addr [$time_local] \"$request\" $status \"$http_x_forwarded_for\"";
    let keys = |more: &str| {
        let policies = config(&[("per-ip", "scope: [ip], limit: 0, window: 1m")]);
        let config = folder.file("slidegate.yaml", format!("{policies}{more}"));
        let output =
            run(&["replay", &log, "--config", &config, "--log-format", format, "--json", "-", "--top", "9"]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let keys = json["configured"]["policies"][0]["most_denied"].as_array().unwrap();
        let mut keys: Vec<(String, u64)> = keys
            .iter()
            .map(|key| (key["key"].as_str().unwrap().to_owned(), key["denied"].as_u64().unwrap()))
            .collect();
        keys.sort();
        keys
    };
    let key = |text: &str, denied| (text.to_owned(), denied);
    assert_eq!(keys(""), [key("10.0.0.1", 4), key("198.51.100.9", 1)], "no proxy is trusted");
    assert_eq!(
        keys("auth: { trusted_proxies: 10.0.0.0/8 }\n"),
        [key("10.0.0.1", 1), key("198.51.100.9", 1), key("203.0.113.7", 2), key("203.0.113.8", 1)]
    );
}

/// Whoever has run `init` expects that the next command uses what it wrote.
#[test]
fn the_file_in_the_current_directory_is_used_and_named() {
    let folder = TempDir::new("evidence-here");
    let log = folder.file("access.log", log());
    let here = |arguments: &[&str]| {
        outcome(&slidegate().current_dir(folder.as_str()).args(arguments).output().unwrap())
    };
    let default = "configuration: the default policy, as there is no ./slidegate.yaml; see --preset, --config and \
                   --policy\n";
    let (code, _, error) = here(&["explain", "user=alice"]);
    assert_eq!((code, error.as_str()), (Some(0), default));

    folder.file("slidegate.yaml", config(&[("mine", "scope: [ip], limit: 3, window: 1m")]));
    let calls: [&[&str]; 2] = [&["explain", "ip=192.0.2.1"], &["replay", &log]];
    for call in calls {
        let (code, out, error) = here(call);
        assert_eq!((code, error.as_str()), (Some(0), "configuration: slidegate.yaml\n"), "{call:?}");
        assert!(out.contains("mine"), "{call:?}: {out}");
    }
    assert!(here(&["validate"]).1.starts_with("slidegate.yaml is valid: 1 policy.\n"));
    // Policies on the command line are a configuration of their own.
    let (code, out, error) = here(&["replay", &log, "--policy", "9/1m per ip named other"]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    assert!(out.contains("other") && !out.contains("mine"), "{out}");

    let mut command = slidegate();
    command.current_dir(folder.as_str());
    let server = Server::start_as(command, "127.0.0.1:0", &[], std::process::Stdio::inherit());
    assert!(server.greeting.contains("\nconfig     slidegate.yaml\n"), "{}", server.greeting);
    assert!(server.greeting.contains("mine"), "{}", server.greeting);
}

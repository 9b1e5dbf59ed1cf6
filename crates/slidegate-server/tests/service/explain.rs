//! `slidegate explain`: why a request is limited as it is, without asking a server.

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{run, slidegate, text};

const POLICIES: &str = "
policies:
  - name: per-user
    scope: [user]
    quota: 100/1m
    overrides: {alice: 1000}
  - name: login
    when: {path: /login, method: [POST, PUT]}
    scope: [ip]
    quota: 5/1m
    mode: shadow
  - name: strangers
    when: {user: {present: false}, ip: {in: 10.0.0.0/8}}
    quota: 1/1s
";

/// What it says, and the code it ends with.
fn explain(args: &[&str]) -> (String, Option<i32>) {
    let output = run(&[&["explain"], args].concat());
    (text(&output.stdout) + &text(&output.stderr), output.status.code())
}

/// Who asks why a customer is limited has to see that it is their plan.
#[test]
fn the_plan_that_chose_a_limit_is_named() {
    let folder = TempDir::new("explain-tiers");
    let policies = "
policies:
  - name: per-user
    scope: [user]
    limit: {by: plan, values: {free: 100, pro: 10000}, default: 10}
    window: month
    time_zone: Europe/Berlin
    overrides: {vip: 7}
";
    let file = folder.file("slidegate.yaml", policies);
    for (attributes, expected) in [
        (
            &["user=a", "plan=pro"][..],
            "10000/month in Europe/Berlin, the limit for plan `pro`; others have 10/month in Europe/Berlin",
        ),
        (&["user=a", "plan=gold"], "10/month in Europe/Berlin"),
        (
            &["user=vip", "plan=pro"],
            "7/month in Europe/Berlin, an override; other keys have 10/month in Europe/Berlin",
        ),
    ] {
        let (found, code) = explain(&[&["--config", &file][..], attributes].concat());
        assert_eq!(code, Some(0), "{found}");
        let line = found.lines().next().unwrap();
        assert_eq!(line.split_once("`: ").unwrap().1, expected, "{found}");
    }
    let anchored = policies
        .replace("window: month", "window: month\n    fold: {plan: case}\n    anchor: {attribute: day}");
    let anchored = folder.file("anchored.yaml", &anchored);
    for (attributes, expected) in [
        (
            &["user=a", "plan=PRO", "day=15"][..],
            "10000/month in Europe/Berlin from day 15, the limit for plan `pro`; others have 10/month in Europe/Berlin; \
             the window begins on day 15 because day says so",
        ),
        (
            &["user=a", "plan=pro", "day=32"],
            "10000/month in Europe/Berlin, the limit for plan `pro`; others have 10/month in Europe/Berlin; the window \
             begins on day 1 because day has no day of the month",
        ),
        (
            &["user=a", "day=15"],
            "10/month in Europe/Berlin from day 15; the window begins on day 15 because day says so",
        ),
        (
            &["user=vip", "plan=pro", "day=15"],
            "7/month in Europe/Berlin from day 15, an override; other keys have 10/month in Europe/Berlin; the window \
             begins on day 15 because day says so",
        ),
    ] {
        let (found, _) = explain(&[&["--config", &anchored][..], attributes].concat());
        assert_eq!(found.lines().next().unwrap().split_once("`: ").unwrap().1, expected, "{found}");
    }
    let (found, _) = explain(&["--config", &anchored, "--json", "user=a", "plan=pro", "day=15"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    let quota = &found["policies"][0]["quota"];
    assert_eq!(
        (&quota["tier"], &quota["is_override"], &quota["anchor"]),
        (&json!("pro"), &json!(false), &json!({"attribute": "day", "day": 15}))
    );
    let (found, _) = explain(&["--config", &file, "--json", "user=a", "plan=pro"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    let quota = &found["policies"][0]["quota"];
    assert_eq!(
        (&quota["tier"], &quota["is_override"], &quota["window"]),
        (&json!("pro"), &json!(false), &json!("month in Europe/Berlin"))
    );
}

/// Anyone who asks why a request was denied, or why it was not, needs every policy and the reason.
#[test]
fn each_policy_is_said_to_apply_or_why_it_does_not() {
    let folder = TempDir::new("explain-policies");
    let file = folder.file("slidegate.yaml", POLICIES);
    let summary = |attributes: &[&str]| {
        let (found, code) = explain(&[&["--config", &file][..], attributes].concat());
        assert_eq!(code, Some(0), "{found}");
        found.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        summary(&["user=alice", "path=/login"]),
        [
            "per-user: applies to key `alice`: 1000/1m, an override; other keys have 100/1m",
            "login: does not apply: method is not given, and the policy is for requests whose method is `POST` or `PUT`; \
             ip is not given, and the policy counts by it",
            "strangers: does not apply: user is `alice`, and the policy is for requests whose user is absent; ip is not \
             given, and the policy is for requests whose ip is in 10.0.0.0/8",
            "1 policy applies",
        ]
    );
    assert_eq!(
        summary(&["user=bob", "path=/login", "method=POST", "ip=192.0.2.7"]),
        [
            "per-user: applies to key `bob`: 100/1m",
            "login: applies to key `192.0.2.7`: 5/1m; shadow, so it never denies",
            "strangers: does not apply: user is `bob`, and the policy is for requests whose user is absent; ip is \
             `192.0.2.7`, and the policy is for requests whose ip is in 10.0.0.0/8",
            "2 policies apply; the request is charged on all of them or none",
        ]
    );
    let narrow = |columns: &str, args: &[&str]| {
        let mut command = slidegate();
        let output =
            command.args(["explain", "--config", &file]).args(args).env("COLUMNS", columns).output().unwrap();
        text(&output.stdout)
    };
    for columns in ["", "80", "40"] {
        let shown = narrow(columns, &["user=bob", "path=/login", "method=POST", "ip=192.0.2.7"]);
        let width = columns.parse().unwrap_or(80);
        assert!(shown.lines().all(|line| line.chars().count() <= width), "{shown}");
        let joined = shown.replace("\n  ", " ");
        assert_eq!(joined.lines().count(), 4, "{joined}");
    }
    assert_eq!(summary(&["ip=10.1.2.3"])[2], "strangers: applies to key `*`: 1/1s");
    assert_eq!(summary(&["path=/"])[3], "no policy applies, so the request is not limited");
    let (found, _) = explain(&["--config", &file, "--json", "user=alice", "path=/"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        found["policies"][0],
        json!({
            "policy": "per-user",
            "applies": true,
            "mode": "enforce",
            "key": "alice",
            "quota": {"limit": 1000, "window": "1m", "algorithm": "sliding-log", "is_override": true, "tier": null, "counted": "cost"},
        })
    );
    assert_eq!(found["policies"][1]["why_not"].as_array().unwrap().len(), 3, "{found}");
    let page = include_str!("../../../../docs/config.md");
    let first = page.split("```yaml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (found, _) = explain(&["--config", &folder.file("first.yaml", first), "user=alice", "path=/login"]);
    assert!(page.contains(&format!("user=alice path=/login\n{found}```")), "{found}");
    // Without a file it is the default policy, as in `serve`.
    assert_eq!(
        explain(&["user=eve"]).0,
        "per-user: applies to key `eve`: 100/1m\n1 policy applies\nconfiguration: the default policy, as there is no \
         ./slidegate.yaml; see --preset, --config and --policy\n"
    );
}

/// The same for a descriptor: what was found at each level, what was not, and the counter.
#[test]
fn each_level_of_a_descriptor_is_told() {
    let folder = TempDir::new("explain-descriptors");
    folder.file("levels.yaml", include_str!("../fixtures/envoy/levels.yaml"));
    let summary = |descriptors: &[&str]| {
        let about = ["--envoy-config", folder.as_str(), "--domain", "test-domain"];
        let (found, code) = explain(&[&about, descriptors].concat());
        assert_eq!(code, Some(0), "{found}");
        found
    };
    let page = include_str!("../../../../docs/envoy-ratelimit.md");
    let example = summary(&["key1=value1,subkey1=something"]);
    assert!(page.contains(&format!("```text\n{example}```")), "{example}");
    assert_eq!(
        summary(&["key9=a"]),
        "domain     test-domain\n\
         entry 1    key9=a: nothing; there are `key1_value1`, `key2`, `key2_value2`, `key2_value3`, `key3`, `key4`, \
         `key5_value5`, `key6` and 1 more\n           \
         `key9_a` does not exist\n           \
         `key9` for any value does not exist\n\
         limit      none: nothing in the files matches entry 1\n"
    );
    let limit = |descriptor| {
        summary(&[descriptor]).lines().rev().find(|line| line.starts_with("limit")).unwrap().to_owned()
    };
    assert_eq!(
        limit("key1=value1"),
        "limit      none: `key1_value1` has no rate_limit of its own, only descriptors below it"
    );
    assert_eq!(limit("key2=value3"), "limit      none: `key2_value3` has no rate_limit, so it is allowed");
    assert_eq!(
        limit("key2=value2,subkey=x"),
        "limit      none: the request has 2 entries, and below `key2_value2` the files have none"
    );
    assert_eq!(limit("key6=x"), "limit      unlimited");
    assert!(summary(&["key2=a\\,b\\\\c"]).contains("\nkey        test-domain~key2=a,b\\\\c\n"));
    let (found, _) = explain(&["--envoy-config", folder.as_str(), "--domain", "other", "a=b"]);
    assert!(found.contains("\nentry 1    a=b: not searched\n"), "{found}");
    assert!(found.ends_with("limit      none: no file has the domain; there are `test-domain`\n"), "{found}");
}

/// A limit that replaces another one is the reason why that one counts nothing.
#[test]
fn limits_that_another_one_replaces_are_said_to_be() {
    let folder = TempDir::new("explain-replaced");
    folder.file("everything.yaml", include_str!("../fixtures/envoy/everything.yaml"));
    let about = ["--envoy-config", folder.as_str(), "--domain", "edge"];
    let (found, _) = explain(&[&about[..], &["remote_address=10.0.0.1", "plan=gold"]].concat());
    let parts: Vec<_> = found.split("\n\n").collect();
    assert!(
        parts[0].ends_with("\nreplaced   by another limit of this request, so it does not apply"),
        "{found}"
    );
    assert!(
        parts[0].contains(
            "\n           denies only if all other limits with quota_mode in the request deny too\n"
        )
    );
    assert!(parts[0].contains("limit      1000 per WEEK by token-bucket\n"), "{found}");
    assert!(parts[1].contains("\nreplaces   per-address\n") && !parts[1].contains("replaced"), "{found}");
    let (found, _) = explain(&[&about[..], &["--json", "remote_address=10.0.0.1", "plan=internal"]].concat());
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(
        (&found["descriptors"][0]["replaced"], &found["descriptors"][1]["replaced"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(found["descriptors"][0]["limit"]["name"], "per-address");
}

/// What cannot be explained must not look as if nothing applied.
#[test]
fn what_is_asked_wrongly_is_told_and_ends_with_2() {
    let folder = TempDir::new("explain-wrong");
    folder.file("levels.yaml", include_str!("../fixtures/envoy/levels.yaml"));
    let envoy = ["--envoy-config", folder.as_str()];
    for (args, expected) in [
        (
            vec!["--domain", "d", "a=b"],
            "--domain `d` requires envoyproxy/ratelimit files; give their folder with --envoy-config\n",
        ),
        (
            [&envoy[..], &["a=b"]].concat(),
            "--domain is missing; give the domain of the descriptors, for example `--domain edge`\n",
        ),
        (
            [&envoy[..], &["--domain", "d", "a=b,c"]].concat(),
            "invalid descriptor `a=b,c`: must be written as name=value, for example user=alice\n",
        ),
        (
            vec!["--policy", "5/1m", "alice"],
            "invalid attribute `alice`: must be written as name=value, for example user=alice\n",
        ),
        (
            vec!["--policy", "5/1m", "ip=here"],
            "invalid ip `here`: must be an IP address, for example `192.0.2.7` or `2001:db8::7`\n",
        ),
    ] {
        assert_eq!(explain(&args), (expected.to_owned(), Some(2)), "{args:?}");
    }
    let (found, code) = explain(&[&envoy[..], &["--domain", "d", "--limit", "10/EON", "a=b"]].concat());
    assert_eq!(code, Some(2));
    assert!(found.contains("must be written as count/unit, for example 10/MINUTE"), "{found}");
}

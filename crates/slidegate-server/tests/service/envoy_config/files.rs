//! Files that are read together, refused, and said back; and what the environment has to say about
//! that.

use super::matching::limit_of;
use super::{SHADOW, one_limit};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, slidegate, text};

/// Who splits a domain over files has either forgotten one or means it.
#[test]
fn files_of_one_domain_are_merged_only_where_that_is_wanted() {
    let folder = TempDir::new("envoy-merge");
    let file = |key: &str, limit: u32| {
        format!(
            "domain: test-domain\ndescriptors: [{{key: {key}, value: {key}, rate_limit: {{unit: day, requests_per_unit: \
             {limit}}}}}]\n"
        )
    };
    folder.file("a.yaml", file("a", 10));
    folder.file("b.yml", file("b", 20));
    folder.file("c.txt", "not a config file");
    folder.file(".d.yaml", "neither is: {this");
    let output = run(&["explain", "--envoy-config", folder.as_str(), "--domain", "test-domain", "a=a"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "b.yml: duplicate domain 'test-domain' in config file (line 1)\n");
    let merged = ["--envoy-merge-domains"];
    assert_eq!(limit_of(&folder, &merged, "test-domain", "a=a"), "10/DAY test-domain.a_a");
    assert_eq!(limit_of(&folder, &merged, "test-domain", "b=b"), "20/DAY test-domain.b_b");
    let twice = TempDir::new("envoy-merge-twice");
    twice.file("a.yaml", file("a", 10));
    twice.file("b.yaml", file("a", 20));
    let output =
        run(&["explain", "--envoy-config", twice.as_str(), "--envoy-merge-domains", "--domain", "d", "a=a"]);
    assert_eq!(
        text(&output.stderr),
        "b.yaml: duplicate descriptor composite key 'test-domain.a_a' (line 2)\n"
    );
}

/// envoyproxy/ratelimit reads each file: a limit that is left out without a word is none.
#[test]
fn files_of_any_name_are_read_or_named() {
    let folder = TempDir::new("envoy-names");
    let file = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{key: a, rate_limit: {{unit: day, requests_per_unit: 1}}}}]\n"
        )
    };
    for (name, domain) in [("a.yaml", "one"), ("b.conf", "two"), ("limits", "three"), ("c.json", "four")] {
        folder.file(name, file(domain));
        assert_eq!(limit_of(&folder, &[], domain, "a=x"), format!("1/DAY {domain}.a"), "{name}");
    }
    folder.file("README.md", "Limits of the edge.\n");
    let output = run(&["validate", "--envoy-config", folder.as_str()]);
    let out = text(&output.stdout);
    let expected =
        "warning: README.md: left out, as its name does not end in .yaml or .yml and it has no `domain`";
    assert!(output.status.success() && out.contains(expected), "{out}");
    let elsewhere = TempDir::new("envoy-names-log");
    let log = elsewhere.path().join("log");
    let server = Server::start_logging_to(
        &["--envoy-config", folder.as_str()],
        std::fs::File::create(&log).expect("a log"),
    );
    drop(server);
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(logged.contains("README.md: left out"), "{logged}");
}

/// Scripts and people look for the reference's words; people need the line, too.
#[test]
fn files_are_refused_in_the_words_of_the_reference() {
    let limit = |rate_limit: &str| {
        format!("domain: test-domain\ndescriptors:\n  - key: k\n    value: v\n    rate_limit: {rate_limit}\n")
    };
    for (file, words) in [
        ("domain: ''\n".to_owned(), "config file cannot have empty domain (line 1)"),
        (String::new(), "config file cannot have empty domain (line 1)"),
        ("domain: d\ndescriptors:\n  - value: v\n".into(), "descriptor has empty key (line 3)"),
        (
            "domain: d\ndescriptors:\n  - {key: a, value: b}\n  - {key: a, value: b}\n".into(),
            "duplicate descriptor composite key 'd.a_b' (line 4)",
        ),
        (
            "domain: d\ndescriptors:\n  - {key: a, value: b}\n  - {key: a_b}\n".into(),
            "duplicate descriptor composite key 'd.a_b' (line 4)",
        ),
        (limit("{unit: foo, requests_per_unit: 5}"), "invalid rate limit unit 'foo' (line 5)"),
        (limit("{unit: unknown, requests_per_unit: 5}"), "invalid rate limit unit 'unknown' (line 5)"),
        (limit("{requests_per_unit: 5}"), "invalid rate limit unit '' (line 5)"),
        (limit("{unlimited: true, unit: day}"), "should not specify rate limit unit when unlimited (line 5)"),
        (
            limit("{unit: day, requests_per_unit: 5, replaces: [{name: ''}]}"),
            "should not have an empty replaces entry (line 5)",
        ),
        (
            limit("{unit: day, requests_per_unit: 5, name: a, replaces: [{name: a}]}"),
            "replaces should not contain name of same descriptor (line 5)",
        ),
        (
            "domain: d\ndescriptors: [{key: k, value: v, share_threshold: true}]\n".into(),
            "share_threshold can only be used with wildcard values (containing '*'), but found key 'k_v' (line 2)",
        ),
        (
            "domain: d\ndescriptors:\n  - key: k\n    ratelimit: {}\n".into(),
            "config error, unknown key 'ratelimit' (line 4)",
        ),
        (limit("{unit: day, requestsperunit: 5}"), "config error, unknown key 'requestsperunit' (line 5)"),
        ("domain: d\n0.25: x\n".into(), "config error, key is not of type string: 0.25 (line 2)"),
        ("domain: d\nno: x\n".into(), "config error, key is not of type string: false (line 2)"),
        (
            "domain: d\ndescriptors:\n  - a\n".into(),
            "config error, yaml file contains list of type other than map: a (line 3)",
        ),
        (
            "domain: d\ndescriptors: [[a, 5]]\n".into(),
            "config error, yaml file contains list of type other than map: [a 5] (line 2)",
        ),
        (
            limit("{unit: day, requests_per_unit: 2.5}"),
            "error checking config: `requests_per_unit: 2.5` is a number with decimals or an exponent; write a whole \
             number (line 5)",
        ),
        (
            "domain: d\ndescriptors:\n  - key: version\n    value: 1.10\n".into(),
            "error checking config: `value: 1.10` is a number with decimals or an exponent; write `value: \"1.10\"`, in \
             quotes (line 4)",
        ),
        (
            "domain: d\ndescriptors:\n  - key: version\n    value: 1e3\n".into(),
            "error checking config: `value: 1e3` is a number with decimals or an exponent; write `value: \"1e3\"`, in \
             quotes (line 4)",
        ),
        (
            limit("{unit: day, requests_per_unit: -5}"),
            "error loading config file: yaml: unmarshal errors: line 5: cannot unmarshal !!int `-5` into uint32",
        ),
        (
            limit("{unit: day, requests_per_unit: a hundred of them}"),
            "error loading config file: yaml: unmarshal errors: line 5: cannot unmarshal !!str `a hundr...` into \
             uint32",
        ),
        (
            limit("often"),
            "error loading config file: yaml: unmarshal errors: line 5: cannot unmarshal !!str `often` into \
             config.YamlRateLimit",
        ),
        (
            "domain: d\ndescriptors: {key: k}\n".into(),
            "error loading config file: yaml: unmarshal errors: line 2: cannot unmarshal !!map into \
             []config.YamlDescriptor",
        ),
    ] {
        let folder = TempDir::new("envoy-refused");
        folder.file("bad.yaml", &file);
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--envoy-config", folder.as_str()]);
        assert_eq!(output.status.code(), Some(2), "{file}");
        assert_eq!(text(&output.stderr), format!("bad.yaml: {words}\n"), "{file}");
        let validated = run(&["validate", "--envoy-config", folder.as_str()]);
        assert_eq!((validated.status, &validated.stderr), (output.status, &output.stderr), "{file}");
        assert_eq!(text(&validated.stdout), "");
    }
    for (file, beginning) in [
        ("domain: {a\n", "bad.yaml: error loading config file: yaml: line "),
        ("domain: a\ndomain: b\n", "bad.yaml: error loading config file: yaml: line 2: "),
    ] {
        let folder = TempDir::new("envoy-refused");
        folder.file("bad.yaml", file);
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--envoy-config", folder.as_str()]);
        assert!(text(&output.stderr).starts_with(beginning), "{}", text(&output.stderr));
    }
    let empty = TempDir::new("envoy-empty");
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--envoy-config", empty.as_str()]);
    assert_eq!(
        text(&output.stderr),
        format!(
            "{}: contains no .yaml or .yml file; give the folder with the config files\n",
            empty.as_str()
        )
    );
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--envoy-config", "/no/such/folder"]);
    assert_eq!(
        text(&output.stderr),
        "/no/such/folder: cannot be read: No such file or directory (os error 2); check the path and its permissions\n"
    );
}

/// Who changes limits wants to know before they are in force whether they can be, and what they are
/// then.
#[test]
fn validate_reads_a_folder_as_serve_does_and_says_its_limits_back() {
    let folder = TempDir::new("envoy-validate");
    folder.file("shadow.yaml", SHADOW);
    folder.file(
        "typo.yaml",
        "domain: typo\ndescriptors: [{key: k, rate_limit: {unit: day, shadow_mode: true}}]\n",
    );
    let output = run(&["validate", "--envoy-config", folder.as_str()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines[0], format!("{} is valid: 5 limits in 2 domains.", folder.as_str()));
    assert_eq!(
        lines[2],
        "  shadow-domain.key1_value1.subkey1_subvalue1: unit=SECOND requests_per_unit=10, shadow_mode: true, quota_mode: \
         false"
    );
    assert_eq!(
        lines[6..],
        [
            "warning: typo.yaml: `shadow_mode` is ignored in a rate_limit; move it into a descriptor (line 2)",
            "warning: typo.yaml: rate_limit has no requests_per_unit, so every request is denied; add it (line 2)",
        ]
    );
    let policy = |name: &str| format!("policies: [{{name: {name}, quota: 1/1s}}]\n");
    let validate = |name: &str| {
        let file = folder.file("slidegate.conf", policy(name));
        let output = run(&["validate", &file, "--envoy-config", folder.as_str()]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, both) = validate("own");
    assert_eq!(code, Some(0), "{both}");
    assert!(
        both.contains("slidegate.conf is valid: 1 policy.\n")
            && both.contains(" is valid: 5 limits in 2 domains.\n")
    );
    let (code, found) = validate("typo.k");
    assert_eq!(code, Some(2));
    assert_eq!(found, "duplicate policy `typo.k`: names must be unique; rename one\n");

    // Who has all limits there still says here where it listens.
    let settings = folder.file("settings.conf", "grpc: {listen: '127.0.0.1:8081'}\n");
    let output = run(&["validate", &settings, "--envoy-config", folder.as_str()]);
    assert!(text(&output.stdout).starts_with(&format!("{settings} is valid: 0 policies.\n")), "{output:?}");
    let error = text(&run(&["validate", &settings]).stderr);
    assert!(
        error.starts_with(&format!("{settings}:1: missing policies: must be a list of at least one policy")),
        "{error}"
    );

    let environment = slidegate()
        .args(["validate", "--envoy-env"])
        .envs([("RUNTIME_ROOT", folder.as_str()), ("CONFIG_TYPE", "GRPC_XDS_SOTW")])
        .output()
        .unwrap();
    assert_eq!(environment.status.code(), Some(2));
    assert_eq!(
        text(&environment.stderr),
        "invalid CONFIG_TYPE `GRPC_XDS_SOTW`: set it to `FILE` or unset it, and put the limits into the folder that \
         RUNTIME_ROOT or --envoy-config names; a management server (xDS) is not supported\n"
    );
    assert_eq!(
        text(&run(&["validate"]).stderr),
        "nothing to validate; give a config file, or a folder of envoyproxy/ratelimit files with --envoy-config\n"
    );
}

/// A setting that is misread or ignored in silence is an outage some days later.
#[test]
fn the_environment_counts_only_where_it_is_asked() {
    let folder = TempDir::new("envoy-environment");
    folder.file("edge.yaml", one_limit(5));
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = slidegate();
        command.args(args).args(["--domain", "edge", "user=alice", "--json"]).envs(variables.iter().copied());
        let output = command.output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    let variables = [("CACHE_KEY_PREFIX", "blue"), ("SLIDEGATE_ENVOY_ALGORITHM", "fixed-window")];
    let asked = ["explain", "--envoy-env", "--envoy-config", folder.as_str()];
    let report = run(&asked, &variables);
    assert!(
        report.contains("\"key\": \"blue~edge~user=alice\"") && report.contains("\"fixed-window\""),
        "{report}"
    );
    let report = run(&["explain", "--envoy-config", folder.as_str()], &variables);
    assert!(
        report.contains("\"key\": \"edge~user=alice\"") && report.contains("\"sliding-log\""),
        "{report}"
    );
    let report = run(&[&asked[..], &["--envoy-algorithm", "token-bucket"]].concat(), &variables);
    assert!(report.contains("\"token-bucket\""), "{report}");
    assert!(!report.contains("time_zone"), "{report}");
    let report = run(&asked, &[("SLIDEGATE_ENVOY_CALENDAR", "Asia/Tokyo")]);
    assert!(
        report.contains("\"time_zone\": \"Asia/Tokyo\"") && report.contains("\"fixed-window\""),
        "{report}"
    );
    let report = run(&[&asked[..], &["--envoy-calendar", "Europe/Berlin"]].concat(), &variables);
    assert!(report.contains("\"time_zone\": \"Europe/Berlin\""), "{report}");
    let found =
        run(&asked, &[("BACKEND_TYPE", "memcache"), ("GRPC_PORT", "many"), ("SHADOW_MODE", "perhaps")]);
    assert_eq!(
        found,
        "invalid BACKEND_TYPE `memcache`: set it to `redis` or unset it; memcached is not supported\n\
         invalid SHADOW_MODE `perhaps`: must be `true` or `false`\n\
         invalid GRPC_PORT `many`: must be a port, for example `8081`\n"
    );
}

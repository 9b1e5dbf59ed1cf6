//! Files of envoyproxy/ratelimit: what they say about a descriptor, how they are refused, and how they are reloaded.
//!
//! The cases are those of the reference's own tests, on files of our own.

// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use common::{Folder, Server, run, slidegate, text};
use serde_json::{Value, json};

const LEVELS: &str = include_str!("fixtures/envoy/levels.yaml");
const SHADOW: &str = include_str!("fixtures/envoy/shadow.yaml");
const WILDCARDS: &str = include_str!("fixtures/envoy/wildcards.yaml");

/// Until a server has done what a test waits for: long enough for a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(120);

/// What `explain` says of a descriptor in one line: `5/SECOND test-domain.key1`, `unlimited`, or why there is no limit.
fn told(folder: &Folder, args: &[&str], domain: &str, descriptor: &str) -> String {
    let limit = explained(folder, args, domain, descriptor)["limit"].take();
    match limit["outcome"].as_str().unwrap() {
        "limited" => format!(
            "{}/{} {}",
            limit["requests_per_unit"],
            limit["unit"].as_str().unwrap(),
            limit["stat_key"].as_str().unwrap()
        ),
        "unlimited" => "unlimited".to_owned(),
        _ => "none".to_owned(),
    }
}

fn explained(folder: &Folder, args: &[&str], domain: &str, descriptor: &str) -> Value {
    let args =
        [&["explain", "--json", "--envoy-config", folder.path(), "--domain", domain, descriptor], args]
            .concat();
    let output = run(&args);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut told: Value = serde_json::from_slice(&output.stdout).unwrap();
    told["descriptors"][0].take()
}

fn cases(folder: &Folder, domain: &str, cases: &[(&str, &str)]) {
    for (descriptor, expected) in cases {
        assert_eq!(told(folder, &[], domain, descriptor), *expected, "{descriptor}");
    }
}

/// Another limit than the file says is denial of service or none of it.
#[test]
fn levels_values_and_depth_choose_the_limit() {
    let folder = Folder::new("envoy-levels");
    folder.file("levels.yaml", LEVELS);
    cases(
        &folder,
        "test-domain",
        &[
            ("key1=any", "none"),
            ("key1=value1", "none"),
            ("key2=value2,subkey=x", "none"),
            ("key5=value5,subkey5=subvalue", "none"),
            ("key5=value5", "15/DAY test-domain.key5_value5"),
            ("key5=value5,subkey5=subvalue5", "25/DAY test-domain.key5_value5.subkey5_subvalue5"),
            ("key1=value1,subkey1=something", "5/SECOND test-domain.key1_value1.subkey1"),
            ("key1=value1,subkey1=subvalue1", "10/SECOND test-domain.key1_value1.subkey1_subvalue1"),
            ("key2=something", "20/MINUTE test-domain.key2"),
            ("key2=value2", "30/MINUTE test-domain.key2_value2"),
            ("key2=value3", "none"),
            ("key3=any", "1/HOUR test-domain.key3"),
            ("key4=any", "1/DAY test-domain.key4"),
            ("key6=any", "unlimited"),
            ("key7=v", "70/MINUTE test-domain.key7_v"),
        ],
    );
    assert_eq!(explained(&folder, &[], "test-domain", "key4=any")["limit"]["name"], "key4_rate_limit");
    cases(&folder, "foo_domain", &[("key1=value1", "none")]);
    let own = ["--limit", "10/DAY"];
    assert_eq!(told(&folder, &own, "foo_domain", "key1=value1"), "none");
    assert_eq!(
        told(&folder, &own, "test-domain", "key1=value1,subkey1=something"),
        "10/DAY test-domain.key1_value1.subkey1_something"
    );
}

/// Who tries a limit in shadow must not deny anyone, and who does not must.
#[test]
fn shadow_mode_is_of_the_limit_that_has_it() {
    let folder = Folder::new("envoy-shadow");
    folder.file("shadow.yaml", SHADOW);
    for (descriptor, expected, is_shadow) in [
        ("key1=value1,subkey1=subvalue1", "10/SECOND shadow-domain.key1_value1.subkey1_subvalue1", true),
        ("key1=value1,subkey1=something", "5/SECOND shadow-domain.key1_value1.subkey1", false),
        ("key2=something", "20/MINUTE shadow-domain.key2", true),
        ("key2=value2", "30/MINUTE shadow-domain.key2_value2", false),
        ("key2=value3", "none", false),
    ] {
        assert_eq!(told(&folder, &[], "shadow-domain", descriptor), expected);
        let notes = explained(&folder, &[], "shadow-domain", descriptor)["limit"]["notes"].take();
        assert_eq!(notes == json!(["shadow: reports and never denies"]), is_shadow, "{descriptor}: {notes}");
    }
}

/// A pattern that fits too much limits strangers, one that fits too little limits nobody.
#[test]
fn wildcards_fit_what_they_should_and_nothing_else() {
    let folder = Folder::new("envoy-wildcards");
    folder.file("wildcards.yaml", WILDCARDS);
    let foo = "20/MINUTE test-domain.wild_foo*";
    let middle = "20/MINUTE test-domain.midWild_bar*b";
    let several = "10/MINUTE test-domain.multiWild_foo*bar*baz";
    cases(
        &folder,
        "test-domain",
        &[
            ("wild=foo1", foo),
            ("wild=foo2", foo),
            ("wild=bar", "none"),
            ("noWild=foo", "20/MINUTE test-domain.noWild_foo"),
            ("noWild=foo1", "none"),
            ("noVal=anything", "20/MINUTE test-domain.noVal"),
            ("midWild=barab", middle),
            ("midWild=bar123b", middle),
            ("midWild=barb", middle),
            ("midWild=bara", "none"),
            ("midWild=xbarb", "none"),
            ("multiWild=foo123bar456baz", several),
            ("multiWild=foobarbaz", several),
            ("multiWild=foo123baz", "none"),
            ("multiWild=bar456baz", "none"),
            ("nestedWild=val1,wild=goo2", "20/MINUTE test-domain.nestedWild_val1.wild_goo*"),
        ],
    );
    let key = |descriptor| explained(&folder, &[], "test-domain", descriptor)["limit"]["key"].take();
    assert_eq!([key("wild=foo1"), key("wild=foo2")], ["test-domain~wild=foo1", "test-domain~wild=foo2"]);
    let shared = "test-domain~shared=files*~method=GET";
    assert_eq!([key("shared=files1,method=GET"), key("shared=files2,method=GET")], [shared, shared]);
}

/// Who splits a domain over files has either forgotten one or means it.
#[test]
fn files_of_one_domain_are_merged_only_where_that_is_wanted() {
    let folder = Folder::new("envoy-merge");
    let file = |key: &str, limit: u32| {
        format!(
            "domain: test-domain\ndescriptors: [{{key: {key}, value: {key}, rate_limit: {{unit: day, requests_per_unit: \
             {limit}}}}}]\n"
        )
    };
    folder.file("a.yaml", file("a", 10));
    folder.file("b.yml", file("b", 20));
    folder.file("c.txt", "this is none");
    folder.file(".d.yaml", "neither is: {this");
    let output = run(&["explain", "--envoy-config", folder.path(), "--domain", "test-domain", "a=a"]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "b.yml: duplicate domain 'test-domain' in config file (line 1)\n");
    let merged = ["--envoy-merge-domains"];
    assert_eq!(told(&folder, &merged, "test-domain", "a=a"), "10/DAY test-domain.a_a");
    assert_eq!(told(&folder, &merged, "test-domain", "b=b"), "20/DAY test-domain.b_b");
    let twice = Folder::new("envoy-merge-twice");
    twice.file("a.yaml", file("a", 10));
    twice.file("b.yaml", file("a", 20));
    let output =
        run(&["explain", "--envoy-config", twice.path(), "--envoy-merge-domains", "--domain", "d", "a=a"]);
    assert_eq!(
        text(&output.stderr),
        "b.yaml: duplicate descriptor composite key 'test-domain.a_a' (line 2)\n"
    );
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
        (limit("{unit: day, requests_per_unit: 2.5}"), "error checking config (line 5)"),
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
        let folder = Folder::new("envoy-refused");
        folder.file("bad.yaml", &file);
        let output = run(&["serve", "--listen", "127.0.0.1:0", "--envoy-config", folder.path()]);
        assert_eq!(output.status.code(), Some(2), "{file}");
        assert_eq!(text(&output.stderr), format!("bad.yaml: {words}\n"), "{file}");
        let validated = run(&["validate", "--envoy-config", folder.path()]);
        assert_eq!((validated.status, &validated.stderr), (output.status, &output.stderr), "{file}");
        assert_eq!(text(&validated.stdout), "");
    }
    for (file, beginning) in [
        ("domain: {a\n", "bad.yaml: error loading config file: yaml: line "),
        ("domain: a\ndomain: b\n", "bad.yaml: error loading config file: yaml: line 2: "),
    ] {
        let folder = Folder::new("envoy-refused");
        folder.file("bad.yaml", file);
        let output = run(&["serve", "--envoy-config", folder.path()]);
        assert!(text(&output.stderr).starts_with(beginning), "{}", text(&output.stderr));
    }
    let empty = Folder::new("envoy-empty");
    let output = run(&["serve", "--envoy-config", empty.path()]);
    assert_eq!(
        text(&output.stderr),
        format!(
            "{}: holds no file whose name ends in .yaml or .yml; give the folder that does\n",
            empty.path()
        )
    );
    let output = run(&["serve", "--envoy-config", "/no/such/folder"]);
    assert_eq!(
        text(&output.stderr),
        "/no/such/folder: cannot be read: No such file or directory (os error 2); check the path and who may read it\n"
    );
}

/// Who changes limits wants to know before they are in force whether they can be, and what they are then.
#[test]
fn validate_reads_a_folder_as_serve_does_and_says_its_limits_back() {
    let folder = Folder::new("envoy-validate");
    folder.file("shadow.yaml", SHADOW);
    folder.file(
        "typo.yaml",
        "domain: typo\ndescriptors: [{key: k, rate_limit: {unit: day, shadow_mode: true}}]\n",
    );
    let output = run(&["validate", "--envoy-config", folder.path()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], format!("{} is valid: 5 limits in 2 domains.", folder.path()));
    assert_eq!(
        lines[2],
        "  shadow-domain.key1_value1.subkey1_subvalue1: unit=SECOND requests_per_unit=10, shadow_mode: true, quota_mode: \
         false"
    );
    assert_eq!(
        lines[6..],
        [
            "warning: typo.yaml: `shadow_mode` means nothing in a rate_limit; it belongs in a descriptor (line 2)",
            "warning: typo.yaml: rate_limit has no requests_per_unit, so nothing passes (line 2)",
        ]
    );
    let policy = |name: &str| format!("policies: [{{name: {name}, quota: 1/1s}}]\n");
    let validate = |name: &str| {
        let file = folder.file("slidegate.conf", policy(name));
        let output = run(&["validate", &file, "--envoy-config", folder.path()]);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, both) = validate("own");
    assert_eq!(code, Some(0), "{both}");
    assert!(
        both.contains("slidegate.conf is valid: 1 policies.\n")
            && both.contains(" is valid: 5 limits in 2 domains.\n")
    );
    let (code, told) = validate("typo.k");
    assert_eq!(code, Some(2));
    assert_eq!(told, "policy `typo.k` stands twice; give each its own name\n");

    // Who has all limits there still says here where it listens.
    let settings = folder.file("settings.conf", "grpc: {listen: '127.0.0.1:8081'}\n");
    let output = run(&["validate", &settings, "--envoy-config", folder.path()]);
    assert!(text(&output.stdout).starts_with(&format!("{settings} is valid: 0 policies.\n")), "{output:?}");
    let error = text(&run(&["validate", &settings]).stderr);
    assert!(error.starts_with(&format!("{settings}:1: policies is missing; ")), "{error}");

    let environment = slidegate()
        .args(["validate", "--envoy-env"])
        .envs([("RUNTIME_ROOT", folder.path()), ("CONFIG_TYPE", "GRPC_XDS_SOTW")])
        .output()
        .unwrap();
    assert_eq!(environment.status.code(), Some(2));
    assert_eq!(
        text(&environment.stderr),
        "CONFIG_TYPE is `GRPC_XDS_SOTW`; limits are read from files and not from a management server (xDS): put them into \
         the folder that RUNTIME_ROOT or --envoy-config names, and set CONFIG_TYPE to `FILE` or unset it\n"
    );
    assert_eq!(
        text(&run(&["validate"]).stderr),
        "there is nothing to validate; give a file, or a folder of envoyproxy/ratelimit's with --envoy-config\n"
    );
}

/// A volume of Kubernetes: files are links into `..data`, which is a link to a folder of this state.
struct Volume {
    folder: Folder,
    states: u32,
}

impl Volume {
    fn new(test: &str, content: &str) -> Self {
        let mut volume = Self { folder: Folder::new(test), states: 0 };
        volume.swap(content);
        symlink("..data/edge.yaml", volume.path("edge.yaml")).unwrap();
        volume
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder.path())
    }

    /// Puts another state in the place of the one that is there, as the kubelet does, and removes the old one.
    fn swap(&mut self, content: &str) {
        let old = format!("..state{}", self.states);
        self.states += 1;
        let new = format!("..state{}", self.states);
        fs::create_dir(self.path(&new)).unwrap();
        fs::write(self.path(&format!("{new}/edge.yaml")), content).unwrap();
        symlink(&new, self.path("..data_tmp")).unwrap();
        fs::rename(self.path("..data_tmp"), self.path("..data")).unwrap();
        let _ = fs::remove_dir_all(self.path(&old));
    }
}

fn one_limit(limit: u32) -> String {
    format!(
        "domain: edge\ndescriptors: [{{key: user, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
    )
}

/// Asks a server about the counter of alice.
fn asked(server: &Server, verb: &str, cost: u32) -> Value {
    let attributes = json!({"descriptor": "edge~user=alice"});
    let body = json!({"policy": "edge.user", "attributes": attributes, "cost": cost}).to_string();
    server.post(&format!("/v1/{verb}"), &body).json()
}

/// Waits until the server has done what it was given to do.
#[allow(clippy::disallowed_methods)] // Only real time ends a wait for a process.
fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        // Each look is a connection, of which a machine has only so many.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A deploy changes a limit, then breaks it, then mends it: what was counted stays, and nothing is ever unlimited.
#[test]
fn a_swapped_volume_is_taken_in_and_a_bad_one_is_not() {
    let mut volume = Volume::new("envoy-volume", &one_limit(5));
    let log = volume.folder.file("log.txt", "");
    let server = Server::start_logging_to(
        &["--envoy-config", volume.folder.path()],
        File::options().append(true).open(&log).unwrap(),
    );
    assert!(server.greeting.contains(": 1 limit in 1 domain\n"), "{}", server.greeting);
    let example = r#"'{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"me"}]}]}'"#;
    assert!(
        server.greeting.ends_with(&format!("curl -i -d {example} {}/json\n", server.url)),
        "{}",
        server.greeting
    );
    assert_eq!(asked(&server, "check", 3)["remaining"], 2);
    assert_eq!(asked(&server, "check", 3)["allowed"], false);

    volume.swap(&one_limit(10));
    wait_for("the new limit", || asked(&server, "peek", 1)["limit"] == 10);
    assert_eq!(asked(&server, "check", 3)["remaining"], 4, "what was counted stays");

    volume.swap("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: eon, requests_per_unit: 1}}]\n");
    let told = || fs::read_to_string(&log).unwrap();
    wait_for("the error", || told().contains("edge.yaml: invalid rate limit unit 'eon' (line 2)"));
    wait_for("what becomes of it", || {
        told().contains("configuration not taken; the last good one stays in force")
    });
    assert_eq!(asked(&server, "check", 4)["remaining"], 0, "the last good configuration is in force");

    volume.swap(&one_limit(0));
    wait_for("a limit that blocks", || asked(&server, "peek", 1)["limit"] == 0);

    volume
        .swap("domain: edge\ndescriptors: [{key: other, rate_limit: {unit: hour, requests_per_unit: 1}}]\n");
    wait_for("the limit to go", || asked(&server, "peek", 1)["field"] == "policy");

    volume.swap(&one_limit(100));
    wait_for("the limit to come back", || asked(&server, "peek", 1)["limit"] == 100);
    assert_eq!(asked(&server, "peek", 1)["used"], 10, "usage is kept by the limit's name");
}

/// The reference's own way: `current` is a link to a release, and the whole release is swapped.
#[test]
fn a_swapped_root_is_taken_in_by_the_environments_settings() {
    let folder = Folder::new("envoy-root");
    let path = |name: &str| format!("{}/{name}", folder.path());
    let release = |name: &str, limit: u32| {
        fs::create_dir_all(path(&format!("{name}/app/config"))).unwrap();
        fs::write(path(&format!("{name}/app/config/edge.yaml")), one_limit(limit)).unwrap();
    };
    release("r1", 5);
    symlink("r1", path("current")).unwrap();
    let root = path("current");
    let variables = [
        ("RUNTIME_ROOT", root.as_str()),
        ("RUNTIME_SUBDIRECTORY", "app"),
        ("HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
        ("CACHE_KEY_PREFIX", ""),
        ("LOG_LEVEL", "WARN"),
        ("USE_STATSD", "false"),
    ];
    let server = Server::start_with(&["--envoy-env", "--grpc", "127.0.0.1:0"], &variables);
    assert_eq!(asked(&server, "check", 5)["remaining"], 0);
    release("r2", 7);
    symlink("r2", path("next")).unwrap();
    fs::rename(path("next"), path("current")).unwrap();
    wait_for("the new release", || asked(&server, "peek", 1)["limit"] == 7);
    fs::write(path("r2/app/config/edge.yaml"), one_limit(8)).unwrap();
    wait_for("the file that was written over", || asked(&server, "peek", 1)["limit"] == 8);
    assert_eq!(asked(&server, "peek", 1)["used"], 5);
}

/// A pod may start before its configuration is there, if that was wanted.
#[test]
fn it_starts_without_files_only_where_that_is_wanted() {
    let folder = Folder::new("envoy-none");
    let root = format!("{}/runtime", folder.path());
    let variables = [
        ("RUNTIME_ROOT", root.as_str()),
        ("HOST", "127.0.0.1"),
        ("DEBUG_PORT", "0"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ];
    let server = Server::start_with(&["--envoy-env", "--grpc", "127.0.0.1:0"], &variables);
    assert!(server.greeting.contains("/runtime/config: nothing that can be read yet"), "{}", server.greeting);
    assert_eq!(asked(&server, "peek", 1)["field"], "policy");
    fs::create_dir_all(format!("{root}/config")).unwrap();
    fs::write(format!("{root}/config/edge.yaml"), one_limit(5)).unwrap();
    wait_for("the first files", || asked(&server, "peek", 1)["limit"] == 5);
    let output = slidegate()
        .args(["serve", "--envoy-env", "--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
        .envs([("RUNTIME_ROOT", "/no/such"), ("DEBUG_PORT", "0")])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).starts_with("/no/such/config: cannot be read: "),
        "{}",
        text(&output.stderr)
    );
}

/// Both at once is how one moves from one to the other.
#[test]
fn policies_of_ours_stand_beside_their_files_and_survive_a_reload() {
    let folder = Folder::new("envoy-beside");
    let edge = folder.file("edge.yaml", one_limit(5));
    let server = Server::start(&["--envoy-config", folder.path(), "--policy", "9/1h per user"]);
    let own = || server.post("/v1/check", r#"{"attributes":{"user":"bob"}}"#).json()["remaining"].take();
    assert_eq!(own(), 8);
    fs::write(&edge, one_limit(6)).unwrap();
    wait_for("the new limit", || asked(&server, "peek", 1)["limit"] == 6);
    assert_eq!(own(), 7);
    let output = run(&[
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--envoy-config",
        folder.path(),
        "--policy",
        "1/s named edge.user",
    ]);
    assert_eq!(text(&output.stderr), "policy `edge.user` stands twice; give each its own name\n");
    let output = run(&["serve", "--envoy-algorithm", "token-bucket"]);
    assert!(
        text(&output.stderr).contains("name their folder with --envoy-config"),
        "{}",
        text(&output.stderr)
    );
}

/// A setting that is misread or ignored in silence is an outage some days later.
#[test]
fn the_environment_counts_only_where_it_is_asked() {
    let folder = Folder::new("envoy-environment");
    folder.file("edge.yaml", one_limit(5));
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = slidegate();
        command.args(args).args(["--domain", "edge", "user=alice", "--json"]).envs(variables.iter().copied());
        let output = command.output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    let variables = [("CACHE_KEY_PREFIX", "blue"), ("SLIDEGATE_ENVOY_ALGORITHM", "fixed-window")];
    let asked = ["explain", "--envoy-env", "--envoy-config", folder.path()];
    let told = run(&asked, &variables);
    assert!(
        told.contains("\"key\": \"blue~edge~user=alice\"") && told.contains("\"fixed-window\""),
        "{told}"
    );
    let told = run(&["explain", "--envoy-config", folder.path()], &variables);
    assert!(told.contains("\"key\": \"edge~user=alice\"") && told.contains("\"sliding-log\""), "{told}");
    let told = run(&[&asked[..], &["--envoy-algorithm", "token-bucket"]].concat(), &variables);
    assert!(told.contains("\"token-bucket\""), "{told}");
    let told =
        run(&asked, &[("BACKEND_TYPE", "memcache"), ("GRPC_PORT", "many"), ("SHADOW_MODE", "perhaps")]);
    assert_eq!(
        told,
        "BACKEND_TYPE is `memcache`; set it to `redis`, or unset it: there is no memcached store\n\
         SHADOW_MODE is `perhaps`; write `true` or `false`\n\
         GRPC_PORT is `many`; give a port, for example `8081`\n"
    );
}

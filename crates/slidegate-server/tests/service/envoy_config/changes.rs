//! Files that change while a server runs.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slidegate_testkit::TempDir;
use slidegate_testkit::service::{Server, run, text};

use super::one_limit;

/// Until a server has done what a test waits for: long enough for a machine that is busy with
/// everything else.
const PATIENCE: Duration = Duration::from_secs(120);
/// A volume of Kubernetes: files are links into `..data`, which is a link to a folder of this
/// state.
struct Volume {
    folder: TempDir,
    states: u32,
}

impl Volume {
    fn new(test: &str, content: &str) -> Self {
        let mut volume = Self { folder: TempDir::new(test), states: 0 };
        volume.swap(content);
        symlink("..data/edge.yaml", volume.path("edge.yaml")).unwrap();
        volume
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.folder.as_str())
    }

    /// Puts another state in the place of the one that is there, as the kubelet does, and removes
    /// the old one.
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

/// A deploy changes a limit, then breaks it, then mends it: what was counted stays, and nothing is
/// ever unlimited.
#[test]
fn a_swapped_volume_is_taken_in_and_a_bad_one_is_not() {
    let mut volume = Volume::new("envoy-volume", &one_limit(5));
    let log = volume.folder.file("log.txt", "");
    let server = Server::start_logging_to(
        &["--envoy-config", volume.folder.as_str()],
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
    let log_text = || fs::read_to_string(&log).unwrap();
    wait_for("the error", || log_text().contains("edge.yaml: invalid rate limit unit 'eon' (line 2)"));
    wait_for("the outcome", || {
        log_text().contains("invalid config rejected; the running config stays active")
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
    let folder = TempDir::new("envoy-root");
    let path = |name: &str| format!("{}/{name}", folder.as_str());
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

/// Both at once is how one moves from one to the other.
#[test]
fn policies_of_ours_stand_beside_their_files_and_survive_a_reload() {
    let folder = TempDir::new("envoy-beside");
    let edge = folder.file("edge.yaml", one_limit(5));
    let server = Server::start(&["--envoy-config", folder.as_str(), "--policy", "9/1h per user"]);
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
        folder.as_str(),
        "--policy",
        "1/s named edge.user",
    ]);
    assert_eq!(text(&output.stderr), "duplicate policy `edge.user`: names must be unique; rename one\n");
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--envoy-algorithm", "token-bucket"]);
    assert_eq!(
        text(&output.stderr),
        "--envoy-algorithm, --envoy-calendar, --envoy-excess and --envoy-merge-domains require envoyproxy/ratelimit \
         files; give their folder with --envoy-config\n"
    );
}

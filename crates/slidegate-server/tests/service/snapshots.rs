//! Usage that outlives the process: restarts, crashes at any moment, damaged files, full disks.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use slidegate_testkit::clock::ClockOffset;
use slidegate_testkit::http;
use slidegate_testkit::service::{Server, slidegate, text};
use slidegate_testkit::{TempDir, until, until_true};

/// Four policies, one for each algorithm.
const POLICIES: &str = "
policies:
  - {name: log, scope: [user], quota: 1000000/1d}
  - {name: window, scope: [user], quota: 1000000/1d, algorithm: sliding-window}
  - {name: fixed, scope: [user], quota: 1000000/366d, algorithm: fixed-window}
  - {name: bucket, scope: [user], quota: 1000000/366d, algorithm: token-bucket}
";

/// A directory with a configuration, and the file of its snapshots.
struct Place {
    dir: TempDir,
    config: String,
    file: PathBuf,
}

impl Place {
    fn new(interval: &str, policies: &str) -> Self {
        let dir = TempDir::new("snapshots");
        let file = dir.path().join("usage.snapshot");
        let path = file.display();
        let store = format!("store: {{memory: {{snapshot: {{path: {path}, interval: {interval}}}}}}}\n");
        let config = dir.file("slidegate.yaml", format!("{store}{policies}"));
        Self { dir, config, file }
    }

    fn start(&self) -> Server {
        Server::start(&["--config", &self.config])
    }

    fn start_with_log(&self) -> Server {
        Server::start_logging_to(&["--config", &self.config], Stdio::piped())
    }

    /// The names of the files beside the configuration.
    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "slidegate.yaml");
        names.sort();
        names
    }
}

fn check(server: &Server, user: &str) -> Value {
    server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string()).json()
}

/// What each policy counts for a user.
fn used(server: &Server, user: &str) -> Vec<u64> {
    let body = json!({ "attributes": { "user": user } }).to_string();
    let peeked = server.post("/v1/peek", &body).json();
    peeked["policies"].as_array().unwrap().iter().map(|one| one["used"].as_u64().unwrap()).collect()
}

fn snapshot(server: &Server) -> Value {
    server.get("/v1/status").json()["snapshot"].clone()
}

fn stop(mut server: Server) -> String {
    server.signal("TERM");
    assert!(server.wait().success());
    let mut log = String::new();
    server.take_log().read_to_string(&mut log).unwrap();
    log
}

/// A deployment must not hand out every limit again, nor end blocks and changed limits.
#[test]
fn a_restart_keeps_usage_and_changes_made_at_run_time() {
    let place = Place::new("1h", POLICIES);
    let server = place.start_with_log();
    for _ in 0..3 {
        check(&server, "alice");
    }
    let change = |method: &str, path: &str, body: &str| {
        let changed = server.change(method, path, &[], body);
        assert!(changed.status < 300, "{}", changed.body);
    };
    change("POST", "/v1/keys/log/mallory/block", r#"{"for": "1h"}"#);
    change("PUT", "/v1/policies/added", r#"{"scope": ["user"], "quota": "7/1h"}"#);
    change("PUT", "/v1/policies/bucket", r#"{"limit": 20}"#);
    check(&server, "alice");
    assert_eq!(used(&server, "alice"), [4, 4, 4, 4, 1]);
    // A block is saved at once, not at the interval.
    until_true("the changes are saved", || snapshot(&server)["saved"].as_u64() > Some(0));
    stop(server);
    assert_eq!(place.files(), ["usage.snapshot", "usage.snapshot.lock"]);
    assert_eq!(fs::metadata(&place.file).unwrap().permissions().mode() & 0o777, 0o600);

    let server = place.start_with_log();
    assert_eq!(used(&server, "alice"), [4, 4, 4, 4, 1]);
    let blocked = check(&server, "mallory");
    assert_eq!((&blocked["allowed"], &blocked["reason"]), (&json!(false), &json!("blocked")), "{blocked}");
    let policies = server.get("/v1/policies").json();
    let policies = policies["policies"].as_array().unwrap();
    let limit_of = |name: &str| policies.iter().find(|one| one["name"] == name).unwrap()["limit"].clone();
    assert_eq!((limit_of("added"), limit_of("bucket")), (json!(7), json!(20)));
    let status = snapshot(&server);
    assert_eq!((&status["restored"]["keys"], &status["restored"]["unknown_policy"]), (&json!(5), &json!(0)));
    assert_eq!((&status["rejected"], &status["error"]), (&Value::Null, &Value::Null), "{status}");
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
    let log = stop(server);
    assert!(log.contains("usage was restored from the snapshot"), "{log}");
}

/// Machines fail in the middle of a write: whatever was saved before must be there, and nothing
/// that was never charged.
#[test]
fn a_process_that_is_killed_at_any_moment_leaves_the_last_good_snapshot() {
    const ROUNDS: u64 = 12;
    let place = Place::new("100ms", POLICIES);
    // What was charged in all rounds, and what of it a snapshot is known to have.
    let (mut charged, mut least) = (0, 0);
    for round in 0..ROUNDS {
        let server = place.start();
        let status = snapshot(&server);
        assert_eq!(status["rejected"], Value::Null, "round {round}");
        // Each policy's key was copied at its own moment.
        let found = used(&server, "alice");
        let is_possible = |count: &u64| (least..=charged).contains(count);
        assert!(found.iter().all(is_possible), "round {round}: {found:?} of {least} to {charged}");
        charged = *found.iter().max().unwrap();
        // A heavier file is killed in the middle more often.
        let filler = json!({ "attributes": { "user": format!("filler-{round}") } }).to_string();
        server.post("/v1/check", &filler);
        let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let url = format!("{}/v1/check", server.url);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let body = json!({ "attributes": { "user": "alice" } }).to_string();
                while !done.load(Ordering::SeqCst) {
                    sent.fetch_add(1, Ordering::SeqCst);
                    // The last one may be cut off by the kill.
                    let _ = http::try_send("POST", &url, "", &body);
                }
            });
            let saved = || snapshot(&server)["saved"].as_u64().unwrap();
            let wanted = 1 + round % 2;
            until_true("it was saved meanwhile", || sent.load(Ordering::SeqCst) > 3);
            let answered = *used(&server, "alice").iter().min().unwrap();
            // The next one may have been copied before that, and the one after it was not.
            let before = saved();
            until_true("and again", || saved() > before + wanted);
            least = answered;
            // At another point of the next snapshot in each round.
            std::thread::sleep(Duration::from_millis(round * 9));
            server.signal("KILL");
            done.store(true, Ordering::SeqCst);
        });
        charged += sent.load(Ordering::SeqCst);
    }
    let server = place.start();
    assert!(used(&server, "alice").iter().all(|count| (least..=charged).contains(count)));
    assert!(place.files().iter().all(|name| !name.contains("damaged")), "{:?}", place.files());
}

/// A file that is not whole must be noticed by somebody, and must not keep the service from
/// running.
#[test]
fn a_damaged_snapshot_is_rejected_loudly_and_kept() {
    let place = Place::new("1h", POLICIES);
    let server = place.start_with_log();
    check(&server, "alice");
    stop(server);
    let whole = fs::read(&place.file).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    let mut newer = whole.clone();
    newer[8] = 9;
    let cases = [
        (&whole[..whole.len() - 5], "is cut off or damaged"),
        (&flipped, "its checksum is wrong"),
        (&newer, "the snapshot has format 9, and this release reads 4"),
        (b"something else", "the file is not a snapshot of slidegate"),
    ];
    for (number, (content, why)) in cases.into_iter().enumerate() {
        fs::write(&place.file, content).unwrap();
        let server = place.start_with_log();
        assert_eq!(used(&server, "alice"), [0; 4], "{why}");
        let rejected = snapshot(&server)["rejected"].clone();
        assert!(rejected["reason"].as_str().unwrap().contains(why), "{rejected}");
        let aside = format!("{}.damaged-{}", place.file.display(), number + 1);
        assert_eq!(rejected["kept_as"], json!(aside));
        assert_eq!(fs::read(&aside).unwrap(), content);
        assert!(server.metric("slidegate_snapshot_rejected") > 0.5);
        check(&server, "alice");
        let log = stop(server);
        let line = log.lines().find(|line| line.contains("the snapshot was rejected")).unwrap_or(&log);
        assert!(line.contains("ERROR") && line.contains(&aside) && line.contains(why), "{line}");
    }
    // What was saved after that is good again.
    assert_eq!(used(&place.start(), "alice"), [1; 4]);
}

/// A misspelt directory is found at the start; one that is lost later must not stop the service.
#[test]
fn a_place_that_cannot_be_written_is_an_error_at_the_start_and_a_warning_later() {
    let missing = Place::new("1h", POLICIES);
    let name = missing.dir.path().join("no/usage").display().to_string();
    let refused = slidegate()
        .args(["serve", "--listen", "127.0.0.1:0", "--snapshot", &name, "--policy", "1/1s"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!refused.status.success());
    let expected = format!(
        "cannot save usage to `{name}`: No such file or directory (os error 2); create its directory"
    );
    assert!(text(&refused.stderr).contains(&expected), "{}", text(&refused.stderr));

    let dir = TempDir::new("lost");
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let store =
        format!("store: {{memory: {{snapshot: {{path: {}/usage, interval: 100ms}}}}}}", folder.display());
    let config = dir.file("slidegate.yaml", format!("{store}{POLICIES}"));
    let server = Server::start_logging_to(&["--config", &config], Stdio::piped());
    check(&server, "alice");
    until_true("it is saved", || snapshot(&server)["saved"].as_u64() > Some(0));
    let moved = dir.path().join("moved");
    fs::rename(&folder, &moved).unwrap();
    let error = until("it cannot be saved", || snapshot(&server)["error"].as_str().map(str::to_owned));
    assert!(error.contains("No such file or directory"), "{error}");
    assert!(server.metric("slidegate_snapshots_total{outcome=\"failed\"}") > 0.0);
    assert_eq!(check(&server, "alice")["allowed"], json!(true), "it goes on deciding");
    fs::rename(&moved, &folder).unwrap();
    until_true("it is saved again", || snapshot(&server)["error"].is_null());
    let log = stop(server);
    assert_eq!(log.matches("usage cannot be saved; the former snapshot stays").count(), 1, "{log}");
    assert!(log.contains("usage is saved again"), "{log}");
}

/// Two services on one file would each overwrite the usage of the other.
#[test]
fn a_second_process_on_the_same_file_is_refused() {
    let place = Place::new("1h", POLICIES);
    let server = place.start_with_log();
    let args = ["serve", "--listen", "127.0.0.1:0", "--config", &place.config];
    let refused = slidegate().args(args).stdin(Stdio::null()).output().unwrap();
    let path = place.file.display();
    let expected = format!("another process saves its usage to `{path}`; give each its own file");
    assert!(text(&refused.stderr).contains(&expected), "{}", text(&refused.stderr));
    // Killed, it leaves the lock to the next one.
    server.signal("KILL");
    drop(server);
    place.start();
}

/// An NTP step while a service restarts must not free anybody.
#[test]
fn a_wall_clock_that_is_corrected_during_a_restart_frees_nobody() {
    let place = Place::new("1h", "policies: [{name: p, scope: [user], quota: 3/10m}]\n");
    let clock = ClockOffset::create(place.dir.path());
    let start =
        || Server::start_at("127.0.0.1:0", &clock.variables(), &["--config", &place.config], Stdio::piped());
    let server = start();
    for _ in 0..3 {
        check(&server, "alice");
    }
    stop(server);
    for hours in [1, -1, 24] {
        clock.set(hours * 3_600_000_000);
        let server = start();
        let denied = check(&server, "alice");
        assert_eq!(denied["allowed"], json!(false), "{hours} h: {denied}");
        // Nor does it lock anybody for longer than the window.
        assert!(denied["retry_after_ms"].as_u64() <= Some(600_000), "{hours} h: {denied}");
        stop(server);
    }
}

/// Containers are configured by variables, and what is configured is said before anything is lost.
#[test]
fn the_variables_and_the_summary_name_the_file_and_the_bounds() {
    let place = Place::new("5s", POLICIES);
    let path = place.file.display().to_string();
    let variables = [("SLIDEGATE_SNAPSHOT", path.as_str()), ("SLIDEGATE_MAX_BYTES", "64Mi")];
    let server = Server::start_at("127.0.0.1:0", &variables, &["--policy", "9/1h per user"], Stdio::piped());
    let store = format!("store      memory, up to 64.0 MiB, saved to {path} every 1m\n");
    assert!(server.greeting.contains(&store), "{}", server.greeting);
    let memory = server.get("/v1/status").json()["memory"].clone();
    assert_eq!(memory["max_bytes"], json!(64 << 20));
    assert!(memory["bytes"].as_u64().unwrap() <= 64 << 20);
    assert!((server.metric("slidegate_max_memory_bytes") - f64::from(64 << 20)).abs() < 1.0);
    stop(server);
    let summary = slidegate().args(["validate", &place.config]).output().unwrap();
    let summary = text(&summary.stdout);
    assert!(summary.contains(&format!("Usage is saved to {path} every 5s and at shutdown.")), "{summary}");
    let worst = "At worst it takes 10.2 GiB: 1048576 keys of up to 10377 bytes, as of policy `log`.";
    assert!(summary.contains(worst), "{summary}");
}

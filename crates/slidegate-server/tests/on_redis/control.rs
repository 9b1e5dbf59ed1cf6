//! Run-time changes that the store loses: several instances on one real Redis server.
//!
//! Every test starts the servers it needs, on loopback, and ends them. An instance that must not
//! poll yet is stopped by a signal, so no test depends on timing.

use std::fs::File;
use std::path::PathBuf;

use serde_json::{Value, json};
use slidegate_testkit::redis::{RedisSentinels, RedisServer};
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until, until_true};

/// An instance and its log.
struct Instance {
    server: Server,
    log: PathBuf,
}

impl Instance {
    fn start(folder: &TempDir, name: &str, url: &str) -> Self {
        let log = PathBuf::from(folder.file(name, ""));
        let policies = "policies: [{name: per-user, scope: [user], quota: 9/1h}]\nstore: {deadline: 10s}\n";
        let config = folder.file(&format!("{name}.yaml"), policies);
        let args = ["--redis", url, "--config", &config];
        let server = Server::start_logging_to(&args, File::create(&log).unwrap());
        Self { server, log }
    }

    fn pair(folder: &TempDir, url: &str) -> [Self; 2] {
        ["a", "b"].map(|name| Self::start(folder, name, url))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Makes a change, and retries while the store is unavailable.
    fn change(&self, method: &str, path: &str, body: &Value) {
        until_true("a change is made", || {
            let answer = self.server.change(method, path, &[], &body.to_string());
            assert!([200, 503].contains(&answer.status), "{path}: {}", answer.body);
            answer.status == 200
        });
    }

    fn block(&self, user: &str) {
        self.change("POST", &format!("/v1/keys/per-user/{user}/block"), &json!({ "for": "1h" }));
    }

    /// Whether a check would be denied. Charges nothing.
    fn is_denied(&self, user: &str) -> bool {
        let body = json!({ "attributes": { "user": user } }).to_string();
        let decision = self.server.post("/v1/peek", &body).json();
        !decision["allowed"].as_bool().unwrap_or_else(|| panic!("no decision: {decision}"))
    }

    fn deny(&self, users: &[&str]) -> bool {
        users.iter().all(|user| self.is_denied(user))
    }

    /// The run-time changes in `/v1/status`.
    fn changes(&self) -> Value {
        self.server.get("/v1/status").json()["changes"].clone()
    }

    /// The active policies and their origins.
    fn policies(&self) -> Value {
        let policies = self.server.get("/v1/policies").json()["policies"].clone();
        let fields = |one: &Value| json!([one["name"], one["limit"], one["origin"]]);
        policies.as_array().unwrap().iter().map(fields).collect()
    }
}

/// Waits until all instances use the same control document and the store has it. Returns its
/// status.
fn until_all_agree(instances: &[&Instance]) -> Value {
    until("all instances have one document, and the store has it", || {
        let all: Vec<_> = instances.iter().map(|one| one.changes()).collect();
        let same = |field: &str| all.iter().all(|one| one[field] == all[0][field]);
        let is_one = ["version", "epoch", "digest"].into_iter().all(same);
        (is_one && all.iter().all(|one| one["place"] == "store")).then(|| all[0].clone())
    })
}

/// Makes every kind of change, then loses the document: it stays in force and is written back.
fn changes_survive(test: &str, lose: impl Fn(&RedisServer)) {
    let (redis, folder) = (RedisServer::start(), TempDir::new(test));
    let [a, b] = &Instance::pair(&folder, &redis.url());
    a.block("mallory");
    a.block("alice");
    b.change("POST", "/v1/keys/per-user/bob/override", &json!({ "quota": "0/1m", "for": "1h" }));
    a.change("PUT", "/v1/policies/per-user", &json!({ "limit": 5 }));
    let login = json!({ "when": { "path": "/login" }, "scope": ["ip"], "quota": "2/1h" });
    a.change("PUT", "/v1/policies/login", &login);
    a.change("PUT", "/v1/policies/gone", &json!({ "scope": ["ip"], "quota": "2/1h" }));
    b.change("DELETE", "/v1/policies/gone", &json!({}));
    a.change("POST", "/v1/keys/per-user/alice/unblock", &json!({}));
    let before = until_all_agree(&[a, b]);
    let policies = json!([["per-user", 5, "changed"], ["login", 2, "added"]]);
    assert_eq!(
        (&before["count"], &before["losses"], &before["last_loss"]),
        (&json!(4), &json!(0), &Value::Null)
    );

    lose(&redis);
    let mut polls = 0;
    until_true("the document is in the store again", || {
        polls += 1;
        for one in [a, b] {
            assert!(one.deny(&["mallory", "bob"]), "poll {polls}");
            assert_eq!(one.policies(), policies, "poll {polls}");
        }
        redis.ask(&["EXISTS", "sg1:control"]).is_ok_and(|reply| reply.to_string() == "1")
    });
    let after = until_all_agree(&[a, b]);
    assert_eq!((&after["digest"], &after["count"]), (&before["digest"], &before["count"]));
    assert_ne!(after["epoch"], before["epoch"]);
    assert!(after["version"].as_u64() > before["version"].as_u64(), "{before} {after}");
    for one in [a, b] {
        assert!(one.deny(&["mallory", "bob"]) && !one.is_denied("alice"));
        assert_eq!(one.policies(), policies);
        assert_eq!(json!(one.server.count("slidegate_control_digest")), after["digest"]);
        assert_eq!(
            (one.server.count("slidegate_control_stored"), one.server.count("slidegate_control_changes")),
            (1, 4)
        );
        assert!(!one.log().contains("changed elsewhere"), "{}", one.log());
    }
    // Each instance that noticed the loss reports it once.
    let seen: Vec<_> = [a, b].into_iter().filter(|one| one.changes()["losses"] == 1).collect();
    assert!(!seen.is_empty());
    for one in seen {
        let last = one.changes()["last_loss"].clone();
        assert!(last["at"].is_string() && last["restored_at"].is_string(), "{last}");
        assert_eq!(one.server.count("slidegate_control_losses_total"), 1);
        let log = one.log();
        let lines: Vec<_> =
            log.lines().filter(|line| line.contains("the store lost run-time changes")).collect();
        assert!(lines.len() == 1 && lines[0].contains("WARN"), "{log}");
        assert_eq!(log.matches("the store holds all run-time changes again").count(), 1, "{log}");
    }

    // An instance that starts now gets the changes, and the next change works.
    let c = Instance::start(&folder, "c", &redis.url());
    assert!(c.deny(&["mallory", "bob"]));
    assert_eq!(c.policies(), policies);
    c.change("POST", "/v1/keys/per-user/mallory/unblock", &json!({}));
    until_true("the change reaches the others", || !a.is_denied("mallory") && !b.is_denied("mallory"));
    a.server.assert_matches_openapi("GET", "/v1/status", None, 200);
}

/// A block must hold when Redis crashes and restarts empty.
#[test]
fn changes_survive_a_restart_without_data() {
    changes_survive("control-restart", RedisServer::restart);
}

/// A colleague who clears a cache must not unblock an attacker.
#[test]
fn changes_survive_flushall() {
    changes_survive("control-flushall", |redis| drop(redis.admin(&["FLUSHALL"])));
}

/// Nor one who deletes one key.
#[test]
fn changes_survive_the_deletion_of_their_key() {
    changes_survive("control-del", |redis| drop(redis.admin(&["DEL", "sg1:control"])));
}

/// The first change after a loss must keep the changes that its instance knows.
#[test]
fn a_change_made_before_the_other_instance_has_polled_keeps_those_of_both() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("control-write"));
    let [a, b] = &Instance::pair(&folder, &redis.url());
    a.block("mallory");
    let before = until_all_agree(&[a, b]);
    b.server.signal("STOP");
    redis.restart();
    a.block("evil2");
    b.server.signal("CONT");
    let after = until_all_agree(&[a, b]);
    for one in [a, b] {
        assert!(one.deny(&["mallory", "evil2"]) && !one.is_denied("alice"));
    }
    assert_ne!(after["epoch"], before["epoch"]);
    assert_eq!((&after["count"], &a.changes()["losses"]), (&json!(2), &json!(1)));
}

/// An instance that has just started does not know what was lost, and may write a version that
/// other instances have.
#[test]
fn a_change_by_an_instance_that_knows_nothing_is_merged_with_what_was_in_force() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("control-fresh"));
    let [a, b] = &Instance::pair(&folder, &redis.url());
    a.block("mallory");
    let before = until_all_agree(&[a, b]);
    for one in [a, b] {
        one.server.signal("STOP");
    }
    redis.admin(&["FLUSHALL"]);
    let c = Instance::start(&folder, "c", &redis.url());
    assert!(!c.is_denied("mallory"));
    c.block("evil2");
    assert_eq!(c.changes()["version"], before["version"]);
    for one in [a, b] {
        one.server.signal("CONT");
    }
    until_true("all changes are in force in all instances", || {
        [a, b, &c].into_iter().all(|one| one.deny(&["mallory", "evil2"]))
    });
    let after = until_all_agree(&[a, b, &c]);
    assert_eq!(after["count"], 2);
    let found =
        [a, b].into_iter().filter_map(|one| one.changes()["last_loss"]["found"].as_str().map(str::to_owned));
    let found: Vec<_> = found.collect();
    assert!(
        !found.is_empty() && found.iter().all(|found| found.contains("lacks changes that are in force")),
        "{found:?}"
    );
}

/// A replica that lags has an older document, and an instance may change it before an instance with
/// the newer one is back. Then two documents have the same version, and must not be confused.
#[test]
fn changes_survive_a_failover_to_a_replica_that_lags() {
    let (redis, folder) = (RedisSentinels::start(), TempDir::new("control-failover"));
    let [a, b] = &Instance::pair(&folder, &redis.url());
    a.block("mallory");
    until_all_agree(&[a, b]);
    let master = redis.master();
    master.until_followed_by(1);
    let replica = redis.servers().iter().find(|server| server.port() != master.port()).unwrap();
    let document = master.admin(&["GET", "sg1:control"]);
    assert_eq!(replica.admin(&["GET", "sg1:control"]), document);
    // The replication link breaks for good, while the replica can still be promoted.
    replica.admin(&["CONFIG", "SET", "masterauth", "wrong"]);
    replica.admin(&["CONFIG", "SET", "masteruser", "nobody"]);
    master.admin(&["CLIENT", "KILL", "TYPE", "REPLICA"]);

    b.server.signal("STOP");
    a.block("trent");
    a.server.signal("STOP");
    master.kill();
    let promoted = redis.until_moved(master);
    assert_eq!(promoted.admin(&["GET", "sg1:control"]), document, "it lags");
    b.server.signal("CONT");
    b.block("evil2");
    let of_b = b.changes();
    a.server.signal("CONT");
    until_true("all changes are in force in both instances", || {
        [a, b].into_iter().all(|one| one.deny(&["mallory", "trent", "evil2"]))
    });
    let after = until_all_agree(&[a, b]);
    assert_eq!((&of_b["version"], &after["version"], &after["count"]), (&json!(4), &json!(5), &json!(3)));
    assert_eq!(a.changes()["losses"], 1);

    // The older document alone is a loss, even if no instance writes.
    promoted.admin(&["SET", "sg1:control", &document]);
    until_true("the newer one is back", || promoted.admin(&["GET", "sg1:control"]).contains("evil2"));
    assert!([a, b].into_iter().all(|one| one.deny(&["mallory", "trent", "evil2"])));
}

/// A document that cannot be read is reported and stays, and so do the changes in force.
#[test]
fn a_document_that_cannot_be_read_is_reported_and_not_overwritten() {
    let (redis, folder) = (RedisServer::start(), TempDir::new("control-foreign"));
    let a = Instance::start(&folder, "a", &redis.url());
    a.block("mallory");
    let before = a.changes();
    for (round, foreign) in
        ["8\n{\"layout\":9}", "8 0123456789abcdef 0123456789abcdef\n{", "whatever"].iter().enumerate()
    {
        redis.admin(&["SET", "sg1:control", foreign]);
        let changes = until("it is reported", || Some(a.changes()).filter(|one| one["place"] == "unknown"));
        assert!(changes["error"].as_str().unwrap().contains("sg1:control"), "{changes}");
        assert_eq!((&changes["digest"], &changes["losses"]), (&before["digest"], &json!(round)));
        assert_eq!(a.server.count("slidegate_control_stored"), 0);
        let refused = a.server.change("POST", "/v1/keys/per-user/alice/block", &[], r#"{"for":"1h"}"#);
        assert!([409, 503].contains(&refused.status), "{}", refused.body);
        assert_eq!(redis.admin(&["GET", "sg1:control"]), *foreign);
        assert!(a.is_denied("mallory"));
        // After it is deleted, the changes are written back.
        redis.admin(&["DEL", "sg1:control"]);
        until_all_agree(&[&a]);
        assert!(redis.admin(&["GET", "sg1:control"]).contains("mallory"));
    }
}

/// Without a shared store there is nothing to lose: changes live and end with the process.
#[test]
fn changes_in_memory_are_as_they_were() {
    let server = Server::start(&["--policy", "9/1h per user"]);
    let changes = || server.get("/v1/status").json()["changes"].clone();
    assert_eq!(
        (&changes()["place"], &changes()["digest"], &changes()["version"]),
        (&json!("memory"), &json!(0), &json!(0))
    );
    let path = "/v1/keys/per-user/mallory/block";
    assert_eq!(server.change("POST", path, &[], r#"{"for":"1h"}"#).status, 200);
    let changed = changes();
    // The block, and its entry in the list of changes.
    let expected = (&json!(2), &Value::Null, &json!(0), &json!("memory"));
    assert_eq!((&changed["version"], &changed["epoch"], &changed["losses"], &changed["place"]), expected);
    server.assert_matches_openapi("GET", "/v1/status", None, 200);
    assert!(!server.get("/metrics").body.contains("slidegate_control_"));
}

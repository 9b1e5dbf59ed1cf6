//! Blocks that escalate: keys that are denied again and again are blocked, each time for longer.

use std::fs::File;

use serde_json::{Value, json};
use slidegate_testkit::clock::ClockOffset;
use slidegate_testkit::service::Server;
use slidegate_testkit::{TempDir, until, until_true};

const MINUTE_S: u64 = 60;
/// The date at which tests begin, in seconds since the epoch.
const START_S: u64 = 1_800_000_000;

/// Three requests in an hour, and blocks by the wall clock, which the test moves. So what a key has
/// used stays, and its next requests are denied for its limit when its block is over.
const POLICIES: &str = "
policies:
  - name: login
    scope: [user]
    quota: 3/1h
    escalate: { after: 3 denials in 1h, block: [2m, 10m] }
";

struct Service {
    server: Server,
    clock: ClockOffset,
    now_s: u64,
    _folder: TempDir,
}

impl Service {
    fn start(test: &str) -> Self {
        let folder = TempDir::new(test);
        let clock = ClockOffset::create(folder.path());
        clock.stand(START_S * 1_000_000);
        let config = folder.file("slidegate.yaml", POLICIES);
        let server = Server::start_with(&["--config", &config], &clock.variables());
        Self { server, clock, now_s: START_S, _folder: folder }
    }

    /// Advances the date by so long and a second, so that what ends then is over by any clock.
    fn advance(&mut self, seconds: u64) {
        self.now_s += seconds + 1;
        self.clock.stand(self.now_s * 1_000_000);
    }

    /// Why each of so many requests is denied; `null` if it is allowed.
    fn reasons(&self, user: &str, requests: usize) -> Vec<Value> {
        (0..requests).map(|_| check(&self.server, user)["reason"].clone()).collect()
    }

    /// Uses up the limit.
    fn exhaust(&self, user: &str) {
        assert_eq!(self.reasons(user, 3), [Value::Null, Value::Null, Value::Null], "{user}");
    }

    fn denied_for_its_limit(&self, user: &str, requests: usize) {
        assert_eq!(self.reasons(user, requests), vec![json!("over_limit"); requests], "{user}");
    }

    /// How many seconds are left of the block that a key earned, which comes a moment after its denials.
    fn rest_of_block(&self, user: &str) -> u64 {
        let until = until(&format!("{user} is blocked"), || {
            let block = block_of(&self.server, user);
            (block["by"] == "escalation").then(|| block["until"].as_str().unwrap().to_owned())
        });
        assert_eq!(check(&self.server, user)["reason"], "blocked");
        let until: jiff::Timestamp = until.parse().unwrap();
        u64::try_from(until.as_second()).unwrap() - self.now_s
    }

    /// Whether what a key did so far did not block it: blocks come in the order in which they are
    /// earned, and that of `other` comes later.
    fn is_free(&self, user: &str, other: &str) {
        self.exhaust(other);
        self.denied_for_its_limit(other, 3);
        self.rest_of_block(other);
        assert_eq!(block_of(&self.server, user), Value::Null, "{user}");
    }
}

fn check(server: &Server, user: &str) -> Value {
    server.post("/v1/check", &json!({ "attributes": { "user": user } }).to_string()).json()
}

fn block_of(server: &Server, user: &str) -> Value {
    server.get(&format!("/v1/keys/login/{user}")).json()["block"].clone()
}

/// Whoever guesses passwords gets fewer guesses each time, and whoever stops is free again.
#[test]
fn each_block_lasts_longer_than_the_one_before_until_the_key_behaves() {
    let mut service = Service::start("escalation-levels");
    service.exhaust("mallory");
    service.denied_for_its_limit("mallory", 3);
    assert_eq!(service.rest_of_block("mallory"), 2 * MINUTE_S);
    let why = check(&service.server, "mallory")["why"].as_str().unwrap().to_owned();
    assert!(why.contains("`mallory` is blocked until 2") && why.contains(" by escalation"), "{why}");
    // What is denied meanwhile counts for nothing.
    assert_eq!(service.reasons("mallory", 10), vec![json!("blocked"); 10]);

    for (pause, block) in [(2, 10), (10, 10), (21, 2)] {
        service.advance(pause * MINUTE_S);
        service.denied_for_its_limit("mallory", 3);
        assert_eq!(service.rest_of_block("mallory"), block * MINUTE_S, "after {pause} minutes");
    }
    assert_eq!(service.server.count("slidegate_escalations_total"), 4);
    assert_eq!(block_of(&service.server, "alice"), Value::Null);
}

/// A customer who retries twice must not be locked out for what was allowed or blocked before.
#[test]
fn only_denials_for_the_limit_count() {
    let mut service = Service::start("escalation-counts");
    service.exhaust("alice");
    service.denied_for_its_limit("alice", 2);
    // What costs nothing and what only looks is not denied.
    let looks = json!({ "attributes": { "user": "alice" } }).to_string();
    (0..5).for_each(|_| assert_eq!(service.server.post("/v1/peek", &looks).status, 200));
    service.is_free("alice", "first");

    // An operator's block is no denial for the limit either.
    let blocked = service.server.change("POST", "/v1/keys/login/alice/block", &[], r#"{"for": "5m"}"#);
    assert_eq!(blocked.status, 200, "{}", blocked.body);
    assert_eq!(service.reasons("alice", 5), vec![json!("blocked"); 5]);
    service.advance(5 * MINUTE_S);
    service.denied_for_its_limit("alice", 2);
    service.is_free("alice", "second");
    service.denied_for_its_limit("alice", 1);
    assert_eq!(service.rest_of_block("alice"), 2 * MINUTE_S);
}

/// Support that unblocks a customer must not see the next mistake punished as the third.
#[test]
fn an_unblock_gives_a_fresh_start() {
    let mut service = Service::start("escalation-undo");
    let unblock = |service: &Service| {
        let done = service.server.change("POST", "/v1/keys/login/alice/unblock", &[], "{}");
        assert_eq!(done.status, 200, "{}", done.body);
        done.json()["done"].as_str().unwrap().to_owned()
    };
    service.exhaust("alice");
    service.denied_for_its_limit("alice", 2);
    assert_eq!(unblock(&service), "it was not blocked");
    service.denied_for_its_limit("alice", 2);
    service.is_free("alice", "first");
    service.denied_for_its_limit("alice", 1);
    service.rest_of_block("alice");

    assert_eq!(unblock(&service), "it is blocked no more");
    service.denied_for_its_limit("alice", 2);
    service.is_free("alice", "second");
    service.denied_for_its_limit("alice", 1);
    assert_eq!(service.rest_of_block("alice"), 2 * MINUTE_S, "the first block again");

    service.advance(2 * MINUTE_S);
    assert_eq!(unblock(&service), "it was not blocked");
    service.denied_for_its_limit("alice", 3);
    assert_eq!(service.rest_of_block("alice"), 2 * MINUTE_S, "and again, as its level is forgotten");
}

/// A client without credentials can invent keys, and must neither fill the memory of all instances with
/// blocks nor lock out anybody else, nor take the operator's.
#[test]
fn a_flood_of_invented_keys_blocks_a_bounded_number_of_them_and_nobody_else() {
    const KEYS: u64 = 12_000;
    let folder = TempDir::new("escalation-flood");
    let policies = "policies:\n  - {name: login, scope: [user], quota: 0/1m, overrides: {alice: 1000000},\n\
                    \x20    escalate: {after: 1 denial in 1m, block: 1h}}\n";
    let (log, config) = (folder.file("log", ""), folder.file("slidegate.yaml", policies));
    let server = Server::start_logging_to(&["--config", &config], File::create(&log).unwrap());
    for batch in 0..KEYS / 100 {
        let one = |n| json!({ "attributes": { "user": format!("invented-{}", batch * 100 + n) } });
        let batch = json!({ "requests": (0..100).map(one).collect::<Vec<_>>() }).to_string();
        assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
        assert_eq!(check(&server, "alice")["allowed"], true);
    }
    let dropped =
        |reason| server.count(&format!("slidegate_escalations_dropped_total{{reason=\"{reason}\"}}"));
    let blocked = || server.count("slidegate_escalations_total");
    until_true("all are blocked or dropped", || {
        blocked() + dropped("queue_full") + dropped("too_many_blocks") == KEYS
    });
    assert_eq!(blocked(), 250);
    assert!(dropped("too_many_blocks") > 0);
    assert_eq!((dropped("not_stored"), dropped("table_full")), (0, 0));
    assert_eq!(check(&server, "invented-0")["reason"], "blocked");
    let last = format!("invented-{}", KEYS - 1);
    assert_eq!(check(&server, &last)["reason"], "over_limit", "its limit holds");
    assert_eq!(check(&server, "alice")["allowed"], true);

    let operator = server.change("POST", &format!("/v1/keys/login/{last}/block"), &[], r#"{"for": "5m"}"#);
    assert_eq!(operator.status, 200, "{}", operator.body);
    let lines = || std::fs::read_to_string(&log).unwrap();
    until_true("the bound is logged", || {
        lines().contains(
            "not blocked: escalation blocks at most as many keys of a policy as it leaves free for others",
        )
    });
    let about_blocks =
        lines().lines().filter(|line| line.contains("slidegate::escalations: blocked")).count();
    assert!((1..=60).contains(&about_blocks), "{about_blocks}");
}

/// What is written into the file must be in force without a restart, and what is taken out no more.
#[test]
fn escalation_is_hot_reloaded_and_part_of_added_policies() {
    let folder = TempDir::new("escalation-reload");
    let config = folder.file("slidegate.yaml", "policies: [{name: login, scope: [user], quota: 0/1m}]\n");
    let server = Server::start(&["--config", &config]);
    let reload = |escalate: &str| {
        let before = server.get("/v1/status").json()["config"]["hash"].clone();
        let text = format!("policies: [{{name: login, scope: [user], quota: 0/1m{escalate}}}]\n");
        folder.file("slidegate.yaml", text);
        server.signal("HUP");
        until_true("it is reloaded", || server.get("/v1/status").json()["config"]["hash"] != before);
    };
    check(&server, "alice");
    reload(", escalate: {after: 2 denials in 1m, block: 1h}");
    check(&server, "alice");
    check(&server, "alice");
    until_true("it is blocked", || block_of(&server, "alice")["by"] == "escalation");
    reload("");
    assert_eq!(block_of(&server, "alice")["by"], "escalation", "it lasts");
    (0..5).for_each(|_| drop(check(&server, "bob")));

    let added = json!({
        "scope": ["ip"], "quota": "0/1m", "escalate": { "after": "1 denial in 1m", "block": "1h" },
    });
    let done = server.change("PUT", "/v1/policies/added", &[], &added.to_string());
    assert_eq!(done.status, 200, "{}", done.body);
    server.post("/v1/check", &json!({ "attributes": { "ip": "192.0.2.7" } }).to_string());
    until_true("it is blocked", || {
        server.get("/v1/keys/added/192.0.2.7").json()["block"]["by"] == "escalation"
    });
    assert_eq!(block_of(&server, "bob"), Value::Null);
}

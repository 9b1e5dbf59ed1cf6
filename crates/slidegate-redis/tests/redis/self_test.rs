//! The self-test: servers that answer pings and refuse what decisions need.

use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{Algorithm, DecisionSource, Policy, Quota, Request};
use slidegate_redis::RedisStore;
use slidegate_testkit::redis::{RedisCluster, RedisServer, acl};
use slidegate_testkit::until_true;
use tokio::time::Instant;

use crate::callers::{check, daily, gate, options};
use crate::cluster::on_cluster;

/// The limit of the window that is watched.
const LIMIT: u32 = 5;

fn store(url: &str) -> RedisStore {
    RedisStore::new(options(url)).unwrap()
}

/// Keys that belong to slidegate.
fn keys(server: &RedisServer) -> String {
    server.admin(&["KEYS", "sg1:*"]).trim().to_owned()
}

async fn refusal(store: &RedisStore) -> String {
    let failure = store.self_test().await.unwrap_err();
    let text = failure.to_string();
    assert!(
        !text.contains(acl::USER) && !text.contains(acl::PASSWORD) && text.lines().count() == 1,
        "{text}"
    );
    text
}

/// A server that answers every ping and decides nothing looks healthy: each instance then admits
/// its share, or the whole limit, and the operator must read which right to grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_self_test_names_each_command_that_scripts_may_not_call() {
    let server = RedisServer::start();
    let store = store(&server.url_as_user());
    store.self_test().await.unwrap();
    assert_eq!(keys(&server), "", "nothing is left of the test");
    let set = |right: &str| server.admin(&["ACL", "SETUSER", acl::USER, right]);
    for command in
        ["time", "get", "set", "getrange", "setrange", "strlen", "exists", "rename", "pexpire", "del"]
    {
        set(&format!("-{command}"));
        let text = refusal(&store).await;
        let named = format!(
            "redis at {}: refuses `{command}` in scripts (if its user lacks the right, give it `+{command}`): ",
            server.address()
        );
        assert!(text.starts_with(&named), "{text}");
        assert_eq!(store.self_test().await.unwrap_err().kind(), "noperm");
        set(&format!("+{command}"));
        store.self_test().await.unwrap_or_else(|failure| panic!("{command}: {failure}"));
    }
    set("-get");
    set("-strlen");
    let text = refusal(&store).await;
    assert!(
        text.contains(": refuses `get`, `strlen` in scripts ") && text.contains("`+get +strlen`"),
        "{text}"
    );
}

/// Without scripts there is nothing that could name what is missing, but the server's own words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_self_test_names_what_keeps_scripts_from_running() {
    for (taken, named) in [
        ("-evalsha", "'evalsha'"),
        ("-script|load", "'script|load'"),
        ("-ping", "'ping'"),
        ("resetkeys", " key"),
    ] {
        let server = RedisServer::start();
        server.admin(&["ACL", "SETUSER", acl::USER, taken]);
        let text = refusal(&store(&server.url_as_user())).await;
        assert!(text.contains("NOPERM ") && text.contains(named), "{taken}: {text}");
    }
    let server = RedisServer::start();
    let refused_with = async |words: &str| {
        let text = refusal(&store(&server.url())).await;
        assert!(text.contains(words), "{words}: {text}");
    };
    server.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    refused_with("OOM ").await;
    server.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    server.admin(&["REPLICAOF", "127.0.0.1", "1"]);
    refused_with("READONLY ").await;
    server.kill();
    refused_with("cannot connect").await;
}

/// Users belong to one node: a cluster in which one master refuses shares most limits, not all.
#[test]
fn a_self_test_reaches_every_master_of_a_cluster() {
    on_cluster(async |cluster| reaches_every_master(cluster).await);
}

async fn reaches_every_master(cluster: &RedisCluster) {
    let store = store(&cluster.url_as_user());
    store.self_test().await.unwrap();
    for slot in [0, 6000, 12_000] {
        let master = cluster.master_of(slot);
        master.admin(&["ACL", "SETUSER", acl::USER, "-time"]);
        let text = refusal(&store).await;
        assert!(
            text.starts_with(&format!("redis at {}: refuses `time` in scripts ", master.address())),
            "{text}"
        );
        master.admin(&["ACL", "SETUSER", acl::USER, "+time"]);
    }
    let on_masters = |rights: &[&str]| {
        for slot in [0, 6000, 12_000] {
            cluster.master_of(slot).admin(&[&["ACL", "SETUSER", acl::USER], rights].concat());
        }
    };
    on_masters(&["+pttl", "+pexpiretime"]);
    cluster.master_of(6000).admin(&["ACL", "SETUSER", acl::USER, "-time"]);
    for _ in 0..2 {
        store.self_test().await.unwrap();
        assert_eq!(store.stats().clock_resolution_us, 1000, "one clock for all keys");
    }
    let gate = gate([daily(1)], options(&cluster.url_as_user()));
    gate.store().primary().self_test().await.unwrap();
    for user in 0..50 {
        let user = format!("user-{user}");
        let outcomes = [check(&gate, &user).await, check(&gate, &user).await];
        assert!(outcomes[0].by_store() && outcomes.map(|one| one.allowed) == [true, false], "{user}");
    }
    on_masters(&["+time", "-pttl", "-pexpiretime"]);
    store.self_test().await.unwrap();
    assert_eq!(store.stats().clock_resolution_us, 1);
    until_true("nothing is left", || cluster.nodes().iter().all(|node| !keys(node).contains("~test")));
}

/// Some services do not let scripts call `TIME`, which no right changes. Their limits would be those
/// of each instance alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_scripts_may_not_call_time_limits_are_shared_and_never_exceeded() {
    let server = RedisServer::start();
    let set = |rights: &[&str]| server.admin(&[&["ACL", "SETUSER", acl::USER], rights].concat());
    set(&["-time", "+pttl", "+pexpiretime"]);
    let window = Duration::from_millis(40);
    let exact = Policy::new("exact", Quota::new(LIMIT.into(), window).unwrap()).unwrap().with_scope(["user"]);
    let fixed = Quota::per_day(1000).with_algorithm(Algorithm::FixedWindow);
    let bucket = Quota::per_day(1000).with_algorithm(Algorithm::TokenBucket);
    let others = [fixed, bucket]
        .map(|quota| Policy::new(quota.algorithm().name(), quota).unwrap().with_scope(["user"]));
    let gate = gate([[exact].as_slice(), &others].concat(), options(&server.url_as_user()));
    let store = gate.store().primary();
    assert_eq!(store.stats().clock_resolution_us, 1);
    store.self_test().await.unwrap();
    assert_eq!(store.stats().clock_resolution_us, 1000);

    let (start, mut allowed) = (Instant::now(), Vec::new());
    let in_window = usize::try_from(LIMIT).unwrap();
    while allowed.len() < 20 * in_window {
        assert!(start.elapsed() < window * 3000, "only {} are admitted in two minutes", allowed.len());
        let sent = Instant::now();
        let outcome = check(&gate, "alice").await;
        assert!(outcome.by_store() || outcome.source == DecisionSource::CachedDenial);
        if outcome.allowed {
            allowed.push((sent, Instant::now()));
        }
    }
    // The clock of scripts lags by up to a millisecond; a window and that must not admit more.
    for (first, beyond) in allowed.iter().zip(allowed.iter().skip(in_window)) {
        assert!(beyond.1 - first.0 >= window, "{:?} for {LIMIT} and one more", beyond.1 - first.0);
    }

    let request = Request::new().with("user", "bob");
    let ticket = gate.reserve(&request.clone().with_cost(3)).await.into_ticket().unwrap();
    gate.settle(&ticket, 2).await.unwrap();
    let decisions = gate.peek(&request).await;
    assert!(decisions.iter().any(|one| one.policy().name() == "fixed-window" && one.decision().used() == 2));
    assert_eq!(store.count_instances(None).await.unwrap(), 1);
    assert!(gate.reset(&request).await.unwrap());

    // Nothing is written for the clock but the key itself, and not to a value that is another program's.
    assert!(gate.peek(&Request::new().with("user", "dave")).await.is_allowed());
    assert_eq!(server.admin(&["KEYS", "*dave*"]), "");
    server.admin(&["SET", "sg1:exact:mallory", "foreign"]);
    assert!(!check(&gate, "mallory").await.by_store());
    let failure = gate.store().stats().last_failure.unwrap();
    assert!(
        failure.contains("SLIDEGATE value is without an expiry; another program writes keys"),
        "{failure}"
    );
    assert_eq!(server.admin(&["GET", "sg1:exact:mallory"]), "foreign");
    server.admin(&["DEL", "sg1:exact:mallory"]);

    set(&["+time"]);
    store.self_test().await.unwrap();
    assert_eq!(store.stats().clock_resolution_us, 1);
    assert!(check(&gate, "carol").await.by_store());
}

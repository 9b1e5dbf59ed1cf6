//! The self-test: servers that answer pings and refuse what decisions need.

use slidegate::{FailureKind, RedisStore};
use slidegate_testkit::redis::{RedisCluster, RedisServer, acl};
use slidegate_testkit::until_true;

use crate::callers::options;
use crate::cluster::on_cluster;

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
        assert_eq!(store.self_test().await.unwrap_err().kind(), FailureKind::NoPermission);
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
    server.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(refusal(&store(&server.url())).await.contains("OOM "));
    server.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    server.admin(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(refusal(&store(&server.url())).await.contains("READONLY "));
    server.kill();
    assert!(refusal(&store(&server.url())).await.contains("cannot connect"));
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
    store.self_test().await.unwrap();
    until_true("nothing is left", || cluster.nodes().iter().all(|node| !keys(node).contains("~test")));
}

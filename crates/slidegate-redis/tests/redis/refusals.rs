//! Servers that refuse calls: without memory, replicas, permissions or their data. Each reason is
//! reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::DecisionSource;
use slidegate::store::ServiceStore;
use slidegate_redis::FailureKind;
use slidegate_testkit::redis::{FakeRedis, FakeReply, RedisServer, acl};
use slidegate_testkit::until_true;

use crate::callers::{
    self, check, daily, errors, fails_with, gate, hasty, healthy, last_failure, named, options,
    until_by_store, until_used,
};

/// Somebody else's endless script is their mistake; waiting for it would be ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_with_a_foreign_script_is_answered_for_until_that_is_killed() {
    let server = RedisServer::start();
    let gate = healthy(hasty(&server.url())).await;
    server.admin(&["CONFIG", "SET", "busy-reply-threshold", "50"]);
    let mut other = server.connect();
    let endless = std::thread::spawn(move || other.call(&["EVAL", "while true do end", "0"]));
    let busy = || server.ask(&["PING"]).is_ok_and(|reply| reply.to_string().starts_with("BUSY"));
    until_true("the script is at work", busy);
    fails_with(&gate, "alice", "BUSY ").await;
    assert!(errors(&gate, FailureKind::Busy) > 0, "{:?}", gate.store().stats());
    server.admin(&["SCRIPT", "KILL"]);
    endless.join().unwrap().unwrap();
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
}

/// Half a charge is worse than none: the request is denied by one policy and paid for under the
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_refuses_before_it_charges_any_policy() {
    let server = RedisServer::start();
    let policies = || [named("a", 100), named("b", 100)];
    let gate = gate(policies(), options(&server.url()).without_batching());
    until_used(&gate, "alice").await;
    until_by_store(&gate, "alice").await;
    let values = || {
        let mut conn = server.connect();
        ["sg1:a:alice", "sg1:b:alice", "sg1:a:bob", "sg1:b:bob"].map(|key| conn.call(&["GET", key]).unwrap())
    };
    let before = values();
    server.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    for user in ["alice", "bob"] {
        assert_eq!(check(&gate, user).await.source, DecisionSource::Local);
        assert!(last_failure(&gate).contains("OOM "), "{}", last_failure(&gate));
    }
    assert_eq!(values(), before);
    assert_eq!(errors(&gate, FailureKind::OutOfMemory), 2, "{:?}", gate.store().stats());
    assert_eq!(gate.store().stats().last_failure_kind, Some(FailureKind::OutOfMemory.name()));
    server.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(until_used(&gate, "alice").await, [1, 1]);
    assert_eq!(until_used(&gate, "bob").await, [0, 0]);
}

/// A replica holds the right numbers and takes no charges: it is no store until it is the master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_answered_for_until_it_is_a_master() {
    let (server, gone) = (RedisServer::start(), RedisServer::start());
    gone.kill();
    let gate = healthy(hasty(&server.url())).await;
    let witness = healthy(options(&server.url())).await;
    assert!(check(&witness, "alice").await.by_store());
    server.admin(&["REPLICAOF", "127.0.0.1", &gone.port().to_string()]);
    fails_with(&gate, "alice", "READONLY ").await;
    assert!(errors(&gate, FailureKind::ReadOnly) > 0, "{:?}", gate.store().stats());
    server.admin(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(until_used(&gate, "alice").await, [1]);
    until_by_store(&gate, "alice").await;
}

/// An operator who does not read which permission is missing will grant all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_and_found_when_it_is_granted() {
    for (taken, given, named) in [
        (&["-evalsha"][..], &["+evalsha"][..], "'evalsha'"),
        (&["-script|load"], &["+script|load"], "'script|load'"),
        (&["-time"], &["+time"], "'time'"),
        (&["resetkeys", "~other:*"], &["resetkeys", "~sg1:*"], "key"),
    ] {
        let server = RedisServer::start();
        let gate = healthy(options(&server.url_as_user())).await;
        let set = |rights: &[&str]| {
            server.admin(&[&["ACL", "SETUSER", acl::USER], rights].concat());
        };
        server.admin(&["SCRIPT", "FLUSH"]);
        set(taken);
        if named == "'time'" {
            // Asked for by itself once for each server, and by scripts.
            let gate = callers::gate([daily(9)], options(&server.url_as_user()));
            assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
            let failure = last_failure(&gate);
            assert!(failure.contains("NOPERM ") && failure.contains(named), "{taken:?}: {failure}");
        } else {
            assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
            let failure = last_failure(&gate);
            assert!(failure.contains("NOPERM ") && failure.contains(named), "{taken:?}: {failure}");
        }
        assert!(last_failure(&gate).lines().count() <= 1);
        set(given);
        assert_eq!(until_used(&gate, "alice").await, [0], "{taken:?}");
        until_by_store(&gate, "alice").await;
    }
}

/// Rights within the script are the user's: a command that only the script calls is missing as
/// well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_a_script_lacks_charges_nothing_and_is_reported() {
    let server = RedisServer::start();
    let gate = healthy(options(&server.url_as_user())).await;
    server.admin(&["ACL", "SETUSER", acl::USER, "-set"]);
    assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
    let failure = last_failure(&gate);
    let named =
        failure.contains("'set'") || failure.contains("scripts call time, get, set, getrange, setrange, ");
    assert!(named, "{failure}");
    assert_eq!(errors(&gate, FailureKind::NoPermission), 1, "{:?}", gate.store().stats());
    server.admin(&["ACL", "SETUSER", acl::USER, "+set"]);
    assert_eq!(until_used(&gate, "alice").await, [0]);
}

/// Passwords are rotated while everything runs: those who have the old one must say so, and try
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_changed_and_a_user_that_was_deleted_are_reported_and_found_again() {
    let server = RedisServer::start();
    let gate = healthy(options(&server.url_as_user())).await;
    let password = format!(">{}", acl::PASSWORD);
    let rights: Vec<_> = acl::MINIMUM.split_whitespace().collect();
    let again = [&["ACL", "SETUSER", acl::USER, "on", &password][..], &rights].concat();
    for (ends, user) in [
        (&["ACL", "SETUSER", acl::USER, "resetpass", ">another"][..], "alice"),
        (&["ACL", "DELUSER", acl::USER], "bob"),
    ] {
        server.admin(ends);
        // A deleted user's connections are ended by the server.
        server.admin(&["CLIENT", "KILL", "TYPE", "normal"]);
        until_true("the connection is lost", || !gate.store().primary().nodes()[0].connected);
        // Connections that the server ends may be reported first.
        fails_with(&gate, user, "WRONGPASS").await;
        let failure = last_failure(&gate);
        assert!(failure.contains("cannot connect: "), "{failure}");
        assert!(!failure.contains(acl::PASSWORD), "{failure}");
        assert!(errors(&gate, FailureKind::Authentication) > 0, "{:?}", gate.store().stats());
        server.admin(&again);
        assert_eq!(until_used(&gate, user).await, [0]);
    }
}

/// An operator who asks for replicas means it: without them nothing is charged, on no policy, and
/// it is said why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_replicas_it_needs_charges_nothing_until_it_has_them() {
    let server = RedisServer::start();
    let gate = healthy(options(&server.url())).await;
    server.admin(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    fails_with(&gate, "alice", "NOREPLICAS ").await;
    assert!(errors(&gate, FailureKind::TooFewReplicas) > 0, "{:?}", gate.store().stats());
    server.admin(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
}

/// A server that cannot write its snapshots refuses all writes, which looks like nothing from
/// outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_save_charges_nothing_until_it_can() {
    let server = RedisServer::builder().args(["--save", "3600 1000000", "--dbfilename", "taken"]).start();
    let gate = healthy(options(&server.url())).await;
    // A directory with something in it, where the snapshot is to be: also root cannot write it.
    let dir = server.admin(&["CONFIG", "GET", "dir"]).lines().last().unwrap().to_owned();
    let taken = std::path::Path::new(&dir).join("taken");
    std::fs::create_dir_all(taken.join("by-this")).unwrap();
    server.admin(&["BGSAVE"]);
    until_true("the snapshot has failed", || {
        server.admin(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
    });
    fails_with(&gate, "alice", "MISCONF ").await;
    assert!(errors(&gate, FailureKind::Misconfigured) > 0, "{:?}", gate.store().stats());
    std::fs::remove_dir_all(&taken).unwrap();
    server.admin(&["BGSAVE"]);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
    std::fs::remove_file(&taken).unwrap();
}

/// A large data set takes minutes to load: so long callers are answered for, and nothing is counted
/// twice afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_still_loads_its_data_is_answered_for_until_it_has() {
    // Three seconds and more, as a client that finds it gone tries again within half a second. It
    // reads its connections after so many bytes at the least, so after each of these keys: a
    // caller's deadline is long enough to be refused.
    let slowly = [
        "--key-load-delay",
        "2000",
        "--loading-process-events-interval-bytes",
        "1024",
        "--rdbcompression",
        "no",
    ];
    let server = Arc::new(RedisServer::builder().args(slowly).start());
    let gate = healthy(hasty(&server.url())).await;
    let witness = healthy(options(&server.url())).await;
    assert!(check(&witness, "alice").await.by_store());
    let value = "x".repeat(1100);
    for key in 0..1500 {
        server.admin(&["SET", &format!("other:{key}"), &value]);
    }
    server.admin(&["SAVE"]);
    server.kill();
    let restarted = tokio::task::spawn_blocking({
        let server = Arc::clone(&server);
        move || server.restart()
    });
    until_true("the server loads", || {
        server.ask(&["PING"]).is_ok_and(|reply| reply.to_string().contains("LOADING"))
    });
    fails_with(&gate, "alice", "LOADING ").await;
    assert!(errors(&gate, FailureKind::Loading) > 0, "{:?}", gate.store().stats());
    restarted.await.unwrap();
    assert_eq!(until_used(&gate, "alice").await, [1]);
    until_by_store(&gate, "alice").await;
}

/// Anyone who reads why must learn what the server said, and not that the attempt after that took
/// too long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_reported_although_the_next_attempt_is_not_answered_in_time() {
    let refused = AtomicBool::new(false);
    let fake = FakeRedis::greeting(move |command| match command[0].as_slice() {
        b"TIME" => "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n".into(),
        b"EVALSHA" if refused.swap(true, Ordering::SeqCst) => FakeReply::Send(Vec::new()),
        b"EVALSHA" => "-READONLY You can't write against a read only replica.\r\n".into(),
        _ => "+OK\r\n".into(),
    });
    let gate =
        gate([daily(5)], options(&fake.url()).with_deadline(Duration::from_secs(5)).without_batching());
    assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
    assert!(last_failure(&gate).contains("READONLY You can't write"), "{}", last_failure(&gate));
    assert_eq!(gate.store().stats().last_failure_kind, Some(FailureKind::ReadOnly.name()));
}

//! Faults: what callers are told while one server fails, and what it has charged them when it is back.
//!
//! Every check of these tests has to be answered in time; `callers::check` sees to that. What the fallback answered may
//! have been charged or not; what the store admitted was charged once.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{BreakerState, OnStoreError, PolicySet, Request, SharedGate, Source, Verb};

use crate::callers::{
    self, DEADLINE, LATER, Storm, Tally, all_at_once, check, check_cost, gate, hourly, last_failure, named,
    options, until_used, used,
};
use crate::support::acl;
use crate::support::proxy::{Mode, Proxy};
use crate::support::sentinel::Sentinels;
use crate::support::server::{Conn, Reply, Server};
use crate::support::until_true;

/// Long enough for a caller's every deadline, and so long that nobody waits for its end.
const FROZEN: Duration = Duration::from_secs(2);

/// A gate of one ample policy, on a server that nothing has happened to yet: it has been answered once.
async fn healthy(url: &str) -> Arc<SharedGate> {
    let gate = gate([hourly(1_000_000)], options(url).without_coalescing());
    for _ in 0..100 {
        if check(&gate, "first").await.by_store() {
            return gate;
        }
    }
    panic!("a healthy server does not answer: {:?}", gate.stats());
}

/// Checks until the store is said to fail for this reason; until then the fallback answers, and nothing else does.
///
/// The last of a caller's attempts may run out of time before it is told why.
async fn fails_with(gate: &SharedGate, user: &str, reason: &str) {
    for _ in 0..100 {
        let told = check(gate, user).await;
        assert_eq!((told.allowed, told.source), (true, Source::Local));
        if last_failure(gate).contains(reason) {
            return;
        }
    }
    panic!("does not fail with {reason}: {}", last_failure(gate));
}

fn evalsha_calls(server: &Server) -> u64 {
    server.commandstats("evalsha").calls
}

/// A service must start without its Redis, and use it as soon as it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_absent_at_the_start_is_used_when_it_appears() {
    let server = Server::start();
    server.kill();
    let gate = gate([hourly(100)], options(&server.url()));
    for _ in 0..3 {
        let told = check(&gate, "alice").await;
        assert_eq!((told.allowed, told.source), (true, Source::Local));
    }
    let failure = last_failure(&gate);
    assert!(failure.starts_with(&format!("redis at {}: cannot connect: ", server.address())), "{failure}");
    assert_eq!(gate.stats().fallbacks, 3);

    server.restart();
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
}

/// A crash must cost the requests that were under way, and nothing after the server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_and_comes_back_empty_is_used_again() {
    let server = Server::start();
    let gate = healthy(&server.url()).await;
    let storm = Storm::start(&gate, 16, |_| "alice".into());
    until_true("callers are answered", || evalsha_calls(&server) > 100);
    server.kill();
    until_true("the fallback answers", || gate.stats().fallbacks > 16);
    server.restart();
    until_used(&gate, "alice").await;
    let before = evalsha_calls(&server);
    until_true("callers are answered again", || evalsha_calls(&server) > before + 100);
    let Tally { allowed, ambiguous, .. } = storm.end().await;
    // What was charged before is lost: the bound is one-sided.
    let used = used(&server.url(), "alice").await;
    assert!((100..=allowed + ambiguous).contains(&used), "{used} of {allowed} and {ambiguous}");
    assert!(check(&gate, "alice").await.by_store());
}

/// A frozen server does on waking what it was sent; callers who were turned away long ago must not pay for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wakes_charges_nobody_who_has_given_up() {
    for coalescing in [false, true] {
        let server = Server::start();
        let options = options(&server.url());
        let gate = gate([hourly(1_000_000)], if coalescing { options } else { options.without_coalescing() });
        until_used(&gate, "alice").await;
        assert!(check(&gate, "alice").await.by_store());
        let before = evalsha_calls(&server);

        server.pause();
        let frozen = tokio::time::Instant::now();
        for told in all_at_once(&gate, 64, "alice").await {
            assert_eq!((told.allowed, told.source), (true, Source::Local));
        }
        tokio::time::sleep_until(frozen + FROZEN).await;
        server.resume();

        let sent = if coalescing { 1 } else { 64 };
        until_true("the late calls are made", || evalsha_calls(&server) >= before + sent);
        assert_eq!(used(&server.url(), "alice").await, 1, "coalescing: {coalescing}");
        assert_eq!(until_used(&gate, "alice").await, [1]);
    }
}

/// Connections end for many reasons, and many callers are on each: none may be charged twice, none may hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_survive_a_storm_of_killed_connections_and_are_charged_once() {
    let server = Server::start();
    let gate = healthy(&server.url()).await;
    let storm = Storm::start(&gate, 64, |_| "alice".into());
    for _ in 0..10 {
        until_true("there is a connection", || gate.nodes()[0].connected);
        let before = evalsha_calls(&server);
        until_true("callers are answered", || evalsha_calls(&server) > before + 64);
        server.admin(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    until_used(&gate, "alice").await;
    let tally = storm.end().await;
    assert!(tally.allowed >= 640, "{tally:?}");
    tally.assert_explains(used(&server.url(), "alice").await);
    assert!(gate.nodes()[0].reconnects >= 9, "{:?}", gate.nodes());
}

/// What wedges once in a hundred lost connections wedges every day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_lost_connections_wedge_nothing() {
    let server = Server::start();
    let gate = healthy(&server.url()).await;
    let storm = Storm::start(&gate, 64, |_| "alice".into());
    let mut conn = server.connect();
    let mut kills = 0;
    while kills < 1000 {
        if let Reply::Integer(killed) =
            conn.call(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).unwrap()
        {
            kills += killed;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    until_used(&gate, "alice").await;
    for _ in 0..100 {
        assert!(check(&gate, "bob").await.by_store(), "{}", last_failure(&gate));
    }
    storm.end().await.assert_explains(used(&server.url(), "alice").await);
}

/// The answer is lost, the charge is not: made again, it would charge twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_reply_is_cut_off_was_made_once() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    for bytes in [0, 3] {
        proxy.set(Mode::Pass);
        let gate = healthy(&proxy.url()).await;
        let before = (used(&server.url(), "alice").await, evalsha_calls(&server));
        proxy.set(Mode::CutReplyAfter(bytes));
        let told = check(&gate, "alice").await;
        assert_eq!(told.source, Source::Local);
        proxy.set(Mode::Pass);
        until_true("the connection is made again", || gate.nodes()[0].connected);
        assert_eq!(evalsha_calls(&server), before.1 + 1);
        assert_eq!(used(&server.url(), "alice").await, before.0 + 1);
        let failure = last_failure(&gate);
        assert!(
            failure.contains("before the answer came") || failure.contains("cannot be read"),
            "{failure}"
        );
    }
}

/// A request that did not arrive whole must not be carried out in part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_cut_in_the_middle_is_not_made_and_the_next_one_is() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    for bytes in [0, 10, 60] {
        proxy.set(Mode::Pass);
        let gate = healthy(&proxy.url()).await;
        let before = evalsha_calls(&server);
        proxy.set(Mode::CutRequestAfter(bytes));
        assert_eq!(check(&gate, "alice").await.source, Source::Local);
        proxy.set(Mode::Pass);
        assert_eq!(evalsha_calls(&server), before);
        assert_eq!(until_used(&gate, "alice").await, [0]);
    }
}

/// Where nothing comes back, each caller would wait for its deadline, all day long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_opens_the_breaker_after_a_few_calls_and_the_others_are_answered_at_once() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    let gate = healthy(&proxy.url()).await;
    proxy.set(Mode::BlackHole);
    let mut waited = 0;
    for _ in 0..30 {
        let told = check(&gate, "alice").await;
        assert_eq!(told.source, Source::Local);
        if told.took >= DEADLINE {
            waited += 1;
        }
        if gate.nodes()[0].breaker == BreakerState::Open {
            break;
        }
    }
    assert!(waited <= 5, "{waited} calls waited: {:?}", gate.nodes());
    // All but the probe of each tenth of a second.
    let mut at_once = 0;
    for _ in 0..200 {
        at_once += u32::from(check(&gate, "alice").await.took < DEADLINE / 2);
    }
    assert!(at_once >= 190, "{at_once} of 200: {:?}", gate.nodes());
    // Why it is left alone, not that it is.
    let why = last_failure(&gate);
    assert!(why.contains("did not answer") || why.contains("no connection could be made"), "{why}");

    proxy.set(Mode::Pass);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
}

/// A network that is slow but in time is no failure; one that is too slow must not slow down its callers with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_waited_for_within_the_deadline_and_no_longer() {
    let server = Server::start();
    let proxy = Proxy::before(server.port());
    let slow = |request, reply| Mode::Delay {
        request: Duration::from_millis(request),
        reply: Duration::from_millis(reply),
    };

    let gate = healthy(&proxy.url()).await;
    proxy.set(slow(15, 15));
    for _ in 0..10 {
        let told = check(&gate, "thirty").await;
        assert!(told.by_store() && told.took >= Duration::from_millis(30), "{told:?}: {:?}", gate.stats());
    }

    for (user, request, reply) in
        [("to-150", 150, 0), ("from-150", 0, 150), ("to-1000", 1000, 0), ("from-1000", 0, 1000)]
    {
        proxy.set(Mode::Pass);
        until_used(&gate, user).await;
        let before = evalsha_calls(&server);
        proxy.set(slow(request, reply));
        let mut tally = Tally::default();
        for _ in 0..10 {
            tally.add(check(&gate, user).await);
        }
        assert_eq!((tally.allowed, tally.denied), (0, 0), "{user}");
        proxy.set(Mode::Pass);
        until_true("the first of the calls has arrived", || evalsha_calls(&server) > before);
        until_used(&gate, user).await;
        let used = used(&server.url(), user).await;
        tally.assert_explains(used);
        if request >= 1000 {
            assert_eq!(used, 0, "{user}: what came too late has charged");
        }
    }
}

/// To its clients a paused server is one that takes its time; it does afterwards what it was told meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clients_are_paused_charges_nobody_afterwards() {
    for what in ["ALL", "WRITE"] {
        let server = Server::start();
        let gate = healthy(&server.url()).await;
        assert!(check(&gate, "alice").await.by_store());
        let before = evalsha_calls(&server);
        server.admin(&["CLIENT", "PAUSE", "1000", what]);
        // Fewer than let the connection be given up, and the calls on it with it.
        for told in all_at_once(&gate, 2, "alice").await {
            assert_eq!(told.source, Source::Local, "{what}");
        }
        until_true("the late calls are made", || evalsha_calls(&server) >= before + 2);
        assert_eq!(until_used(&gate, "alice").await, [1], "{what}");
        assert_eq!(used(&server.url(), "alice").await, 1, "{what}");
    }
}

/// Somebody else's endless script is their mistake; waiting for it would be ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_busy_with_a_foreign_script_is_answered_for_until_that_is_killed() {
    let server = Server::start();
    let gate = healthy(&server.url()).await;
    server.admin(&["CONFIG", "SET", "busy-reply-threshold", "50"]);
    let mut other = server.connect();
    let endless = std::thread::spawn(move || other.call(&["EVAL", "while true do end", "0"]));
    let busy = || server.ask(&["PING"]).is_ok_and(|reply| reply.to_string().starts_with("BUSY"));
    until_true("the script is at work", busy);
    fails_with(&gate, "alice", "BUSY ").await;
    server.admin(&["SCRIPT", "KILL"]);
    endless.join().unwrap().unwrap();
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
}

/// Half a charge is worse than none: the request is denied by one policy and paid for under the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_refuses_before_it_charges_any_policy() {
    let server = Server::start();
    let policies = || [named("a", 100), named("b", 100)];
    let gate = gate(policies(), options(&server.url()).without_coalescing());
    until_used(&gate, "alice").await;
    assert!(check(&gate, "alice").await.by_store());
    let values = || {
        let mut conn = server.connect();
        ["sg1:a:alice", "sg1:b:alice", "sg1:a:bob", "sg1:b:bob"].map(|key| conn.call(&["GET", key]).unwrap())
    };
    let before = values();
    server.admin(&["CONFIG", "SET", "maxmemory", "1"]);
    for user in ["alice", "bob"] {
        assert_eq!(check(&gate, user).await.source, Source::Local);
        assert!(last_failure(&gate).contains("OOM "), "{}", last_failure(&gate));
    }
    assert_eq!(values(), before);
    server.admin(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(until_used(&gate, "alice").await, [1, 1]);
    assert_eq!(until_used(&gate, "bob").await, [0, 0]);
}

/// Servers forget their scripts when they restart, fail over, or are told to; no caller should notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_loaded_again_without_a_failure() {
    let server = Server::start();
    let gate = gate([hourly(1_000_000)], options(&server.url()).deadline(LATER));
    let storm_of = |user: &'static str| {
        let gate = gate.clone();
        async move {
            let asked = (0..32).map(|_| {
                let gate = gate.clone();
                async move { check_cost(&gate, user, 1).await }
            });
            asked.collect::<tokio::task::JoinSet<_>>().join_all().await
        }
    };
    for round in 1..=5 {
        server.admin(&["SCRIPT", "FLUSH"]);
        assert!(storm_of("alice").await.iter().all(callers::Told::by_store));
        assert_eq!(until_used(&gate, "alice").await, [32 * round]);
    }
    assert_eq!(gate.stats().fallbacks, 0);
    assert!(server.commandstats("script|load").calls >= 5);
}

/// Whoever flushes a server has forgiven everybody: better than denying for what is nowhere written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_starts_anew_on_a_server_that_was_flushed() {
    let server = Server::start();
    let gate = gate([hourly(2)], options(&server.url()).deadline(LATER).without_remembering());
    for (used, allowed) in [(1, true), (2, true), (2, false)] {
        let told = check_cost(&gate, "alice", 1).await;
        assert_eq!((told.used, told.allowed, told.source), (used, allowed, Source::Store));
    }
    server.admin(&["FLUSHALL"]);
    let told = check_cost(&gate, "alice", 1).await;
    assert_eq!((told.used, told.allowed, told.source), (1, true, Source::Store));
}

/// A replica holds the right numbers and takes no charges: it is no store until it is the master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_became_a_replica_is_answered_for_until_it_is_a_master() {
    let (server, gone) = (Server::start(), Server::start());
    gone.kill();
    let gate = healthy(&server.url()).await;
    assert!(check(&gate, "alice").await.by_store());
    server.admin(&["REPLICAOF", "127.0.0.1", &gone.port().to_string()]);
    fails_with(&gate, "alice", "READONLY ").await;
    server.admin(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(until_used(&gate, "alice").await, [1]);
    assert!(check(&gate, "alice").await.by_store());
}

/// The operator has to be told which right is missing, or will grant all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_right_is_named_and_found_when_it_is_granted() {
    for (taken, given, named) in [
        (&["-evalsha"][..], &["+evalsha"][..], "'evalsha'"),
        (&["-script|load"], &["+script|load"], "'script|load'"),
        (&["-time"], &["+time"], "'time'"),
        (&["resetkeys", "~other:*"], &["resetkeys", "~sg1:*"], "key"),
    ] {
        let server = Server::start();
        let gate = healthy(&server.url_as_user()).await;
        let set = |rights: &[&str]| {
            server.admin(&[&["ACL", "SETUSER", acl::USER], rights].concat());
        };
        server.admin(&["SCRIPT", "FLUSH"]);
        set(taken);
        if named == "'time'" {
            // Asked for by itself once for each server, and by scripts.
            let gate = callers::gate([hourly(9)], options(&server.url_as_user()));
            assert_eq!(check(&gate, "alice").await.source, Source::Local);
            let failure = last_failure(&gate);
            assert!(failure.contains("NOPERM ") && failure.contains(named), "{taken:?}: {failure}");
        } else {
            assert_eq!(check(&gate, "alice").await.source, Source::Local);
            let failure = last_failure(&gate);
            assert!(failure.contains("NOPERM ") && failure.contains(named), "{taken:?}: {failure}");
        }
        assert!(last_failure(&gate).lines().count() <= 1);
        set(given);
        assert_eq!(until_used(&gate, "alice").await, [0], "{taken:?}");
        assert!(check(&gate, "alice").await.by_store());
    }
}

/// Rights within the script are the user's: a command that only the script calls is missing as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_a_script_lacks_charges_nothing_and_is_told() {
    let server = Server::start();
    let gate = healthy(&server.url_as_user()).await;
    server.admin(&["ACL", "SETUSER", acl::USER, "-set"]);
    assert_eq!(check(&gate, "alice").await.source, Source::Local);
    let failure = last_failure(&gate);
    let named =
        failure.contains("'set'") || failure.contains("scripts call time, get, set, getrange, setrange, ");
    assert!(named, "{failure}");
    server.admin(&["ACL", "SETUSER", acl::USER, "+set"]);
    assert_eq!(until_used(&gate, "alice").await, [0]);
}

/// Passwords are rotated while everything runs: those who have the old one must say so, and try again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_changed_and_a_user_that_was_deleted_are_told_and_found_again() {
    let server = Server::start();
    let gate = healthy(&server.url_as_user()).await;
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
        until_true("the connection is lost", || !gate.nodes()[0].connected);
        fails_with(&gate, user, "cannot connect: ").await;
        let failure = last_failure(&gate);
        assert!(failure.contains("WRONGPASS"), "{failure}");
        assert!(!failure.contains(acl::PASSWORD), "{failure}");
        server.admin(&again);
        assert_eq!(until_used(&gate, user).await, [0]);
    }
}

/// An answer for when the store is away is chosen by policy, and always says that it is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_policy_answers_by_its_own_fallback_and_says_so() {
    let server = Server::start();
    server.kill();
    for (then, source, allowed) in [
        (OnStoreError::Local, Source::Local, [true, true, false]),
        (OnStoreError::Allow, Source::Allow, [true, true, true]),
        (OnStoreError::Deny, Source::Deny, [false, false, false]),
    ] {
        let policies = PolicySet::new([hourly(6).on_store_error(then)]).unwrap();
        // Three instances: each has two of six.
        let gate = SharedGate::builder(policies, options(&server.url())).instances(3).build().unwrap();
        for allowed in allowed {
            let told = check(&gate, "alice").await;
            assert_eq!((told.allowed, told.source), (allowed, source), "{then:?}");
        }
        // Nobody asks whether these may pass.
        let request = Request::new().with("user", "alice");
        for verb in [Verb::Refund, Verb::Penalize] {
            assert!(gate.apply(verb, &request).await.is_allowed(), "{then:?} {verb:?}");
        }
        // A limit that is raised meanwhile is raised here as well: two more of each instance's share.
        gate.configure(PolicySet::new([hourly(12).on_store_error(then)]).unwrap()).unwrap();
        let allowed = allowed[0];
        assert_eq!(check(&gate, "alice").await.allowed, allowed, "{then:?}");
    }
    // Together: the one that denies denies for all, and each says what it is.
    let gate = gate(
        [
            named("a", 1),
            named("b", 1).on_store_error(OnStoreError::Allow),
            named("c", 1).on_store_error(OnStoreError::Deny),
        ],
        options(&server.url()),
    );
    for _ in 0..2 {
        let request = Request::new().with("user", "alice");
        let decisions = gate.check(&request).await;
        assert!(decisions.is_denied());
        let told: Vec<_> = decisions.iter().map(|one| (one.source, one.is_allowed())).collect();
        assert_eq!(told, [(Source::Local, true), (Source::Allow, true), (Source::Deny, false)]);
    }
}

/// What the store denies is denied, whatever a policy does without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_of_the_store_never_goes_to_the_fallback() {
    let server = Server::start();
    for then in [OnStoreError::Local, OnStoreError::Allow, OnStoreError::Deny] {
        server.admin(&["FLUSHALL"]);
        let options = options(&server.url()).deadline(LATER).without_remembering();
        let gate = gate([hourly(1).on_store_error(then)], options);
        assert!(check_cost(&gate, "alice", 1).await.allowed);
        for _ in 0..5 {
            let told = check_cost(&gate, "alice", 1).await;
            assert_eq!((told.allowed, told.source), (false, Source::Store), "{then:?}");
        }
        assert_eq!((gate.stats().fallbacks, gate.memory().stats().keys), (0, 0));
    }
}

/// A failover is what Sentinels are for: callers must be back without anybody's doing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_killed_is_left_for_the_one_that_the_sentinels_name() {
    let sentinels = Sentinels::start();
    let gate = healthy(&sentinels.url()).await;
    let storm = Storm::start(&gate, 16, |_| "alice".into());
    let old = sentinels.master();
    until_true("callers are answered", || evalsha_calls(old) > 100);
    old.kill();
    let new = sentinels.until_moved(old);
    until_used(&gate, "alice").await;
    let before = evalsha_calls(new);
    until_true("callers are answered by the new master", || evalsha_calls(new) > before + 100);
    let Tally { allowed, ambiguous, .. } = storm.end().await;
    let used = used(&new.url(), "alice").await;
    assert!(used <= allowed + ambiguous, "{used} of {allowed} and {ambiguous}");
    assert!(used > 100, "{used}: what was charged before is gone");
}

/// An operator who asks for replicas means it: without them nothing is charged, on no policy, and it is said why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_replicas_it_needs_charges_nothing_until_it_has_them() {
    let server = Server::start();
    let gate = healthy(&server.url()).await;
    server.admin(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    fails_with(&gate, "alice", "NOREPLICAS ").await;
    server.admin(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
}

/// A server that cannot write its snapshots refuses all writes, which looks like nothing from outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_save_charges_nothing_until_it_can() {
    let server = Server::builder().args(["--save", "3600 1000000", "--dbfilename", "taken"]).start();
    let gate = healthy(&server.url()).await;
    // A directory with something in it, where the snapshot is to be: also root cannot write it.
    let dir = server.admin(&["CONFIG", "GET", "dir"]).lines().last().unwrap().to_owned();
    let taken = std::path::Path::new(&dir).join("taken");
    std::fs::create_dir_all(taken.join("by-this")).unwrap();
    server.admin(&["BGSAVE"]);
    until_true("the snapshot has failed", || {
        server.admin(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
    });
    fails_with(&gate, "alice", "MISCONF ").await;
    std::fs::remove_dir_all(&taken).unwrap();
    server.admin(&["BGSAVE"]);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
    std::fs::remove_file(&taken).unwrap();
}

/// A large data set takes minutes to load: so long callers are answered for, and nothing is counted twice afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_still_loads_its_data_is_answered_for_until_it_has() {
    // A second and more, in which it answers now and then.
    let slowly = ["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    let server = Arc::new(Server::builder().args(slowly).start());
    let gate = healthy(&server.url()).await;
    assert!(check(&gate, "alice").await.by_store());
    for key in 0..1500 {
        server.admin(&["SET", &format!("other:{key}"), &"x".repeat(100)]);
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
    restarted.await.unwrap();
    assert_eq!(until_used(&gate, "alice").await, [1]);
    assert!(check(&gate, "alice").await.by_store());
}

/// Says where the server of the test below is.
const URL: &str = "SLIDEGATE_TEST_FAULTS_URL";

/// A program that has run out of file descriptors has worse troubles than a limiter: that one must not spin or panic, and
/// must be back when they are over.
#[test]
fn a_program_without_file_descriptors_is_answered_for_and_connects_when_it_has_some() {
    let server = Server::start();
    let tests = std::env::current_exe().unwrap();
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""]).arg(tests);
    limited.args(["--exact", "faults::a_program_that_opens_files_until_it_may_not", "--ignored"]);
    let ended = limited.env(URL, server.url()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

/// What the test above runs under a limit.
#[tokio::test]
#[ignore = "needs a limit on file descriptors, which another test sets"]
async fn a_program_that_opens_files_until_it_may_not() {
    let gate = gate([hourly(100)], options(&std::env::var(URL).unwrap()));
    let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!((10..64).contains(&files.len()), "{} files", files.len());
    for _ in 0..20 {
        assert_eq!(check(&gate, "alice").await.source, Source::Local);
    }
    let why = last_failure(&gate);
    assert!(why.contains("Too many open files"), "{why}");
    drop(files);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
}

/// A server that takes no more clients must not be hammered, nor anybody kept waiting for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_many_clients_is_answered_for_and_used_when_it_has_room() {
    let server = Server::start();
    let gate = gate([hourly(100)], options(&server.url()));
    let mut others = Vec::new();
    server.admin(&["CONFIG", "SET", "maxclients", "3"]);
    while let Ok(mut other) = Conn::tcp(server.port(), Duration::from_secs(5)) {
        if other.call(&["PING"]).is_err() || others.len() == 10 {
            break;
        }
        others.push(other);
    }
    for _ in 0..20 {
        assert_eq!(check(&gate, "alice").await.source, Source::Local);
    }
    let why = last_failure(&gate);
    assert!(why.contains("max number of clients") || why.contains("connect"), "{why}");
    others.clear();
    assert_eq!(until_used(&gate, "alice").await, [0]);
    assert!(check(&gate, "alice").await.by_store());
}

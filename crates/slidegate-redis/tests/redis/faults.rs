//! Faults: outcomes while a server is away, slow or cut off, and what it has charged when it is
//! back. Servers that answer and refuse are in `refusals.rs`.
//!
//! No check of these tests may hang; `callers::check` sees to that. What the fallback decided may
//! have been charged or not; what the store admitted was charged once.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use slidegate::store::{FallbackStore, ServiceStore};
use slidegate::{
    Algorithm, DecisionSource, OnStoreError, Policy, PolicySet, Quota, Request, SharedGate, verb::Verb,
};
use slidegate_redis::{FailureKind, RedisStore};
use slidegate_testkit::proxy::{Mode, Proxy};
use slidegate_testkit::redis::{Connection, RedisSentinels, RedisServer, Reply};
use slidegate_testkit::until_true;
use tokio::time::Instant;

use crate::callers::{
    self, LATER, Storm, Tally, all_at_once, check, check_cost, daily, errors, gate, hasty, healthy,
    last_failure, named, options, until_by_store, until_used, used,
};

/// The deadline of callers whose calls must be on their way to a server that does not reply in
/// time.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// Longer than that deadline.
const FROZEN: Duration = Duration::from_secs(3);

fn evalsha_calls(server: &RedisServer) -> u64 {
    server.commandstats("evalsha").calls
}

/// A service must start without its Redis, and use it as soon as it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_absent_at_the_start_is_used_when_it_appears() {
    let server = RedisServer::start();
    server.kill();
    let gate = gate([daily(100)], options(&server.url()));
    for _ in 0..3 {
        let outcome = check(&gate, "alice").await;
        assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local));
    }
    let failure = last_failure(&gate);
    assert!(failure.starts_with(&format!("redis at {}: cannot connect: ", server.address())), "{failure}");
    assert_eq!(gate.store().stats().fallbacks, 3);

    server.restart();
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
}

/// A crash must cost the requests that were under way, and nothing after the server is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_killed_and_comes_back_empty_is_used_again() {
    let server = RedisServer::start();
    let gate = healthy(options(&server.url())).await;
    let storm = Storm::start(&gate, 16, |_| "alice".into());
    until_true("callers are answered", || evalsha_calls(&server) > 100);
    server.kill();
    until_true("the fallback answers", || gate.store().stats().fallbacks > 16);
    server.restart();
    until_used(&gate, "alice").await;
    let before = evalsha_calls(&server);
    until_true("callers are answered again", || evalsha_calls(&server) > before + 100);
    let Tally { allowed, ambiguous, .. } = storm.end().await;
    // What was charged before is lost: the bound is one-sided.
    let used = used(&server.url(), "alice").await;
    assert!((100..=allowed + ambiguous).contains(&used), "{used} of {allowed} and {ambiguous}");
    until_by_store(&gate, "alice").await;
}

/// A frozen server executes on waking what it was sent; callers that gave up must not be charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wakes_charges_nobody_who_has_given_up() {
    for batching in [false, true] {
        let server = RedisServer::start();
        let witness = healthy(options(&server.url())).await;
        assert!(check(&witness, "alice").await.by_store());
        let options = options(&server.url()).with_deadline(UNDER_WAY);
        let gate = gate([daily(1_000_000)], if batching { options } else { options.without_batching() });
        until_used(&gate, "alice").await;
        let before = evalsha_calls(&server);

        server.pause();
        let frozen = Instant::now();
        for outcome in all_at_once(&gate, 64, "alice").await {
            assert_eq!((outcome.allowed, outcome.source), (true, DecisionSource::Local));
        }
        tokio::time::sleep_until(frozen + FROZEN).await;
        server.resume();

        until_true("the late calls are made", || evalsha_calls(&server) > before);
        assert_eq!(used(&server.url(), "alice").await, 1, "batching: {batching}");
        assert_eq!(until_used(&gate, "alice").await, [1]);
    }
}

/// Connections end for many reasons, and many callers are on each: none may be charged twice, none
/// may hang.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_survive_a_storm_of_killed_connections_and_are_charged_once() {
    let server = RedisServer::start();
    let gate = healthy(options(&server.url())).await;
    let storm = Storm::start(&gate, 64, |_| "alice".into());
    for _ in 0..10 {
        until_true("there is a connection", || gate.store().primary().nodes()[0].connected);
        let before = evalsha_calls(&server);
        until_true("callers are answered", || evalsha_calls(&server) > before + 64);
        server.admin(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    until_used(&gate, "alice").await;
    let tally = storm.end().await;
    assert!(tally.allowed >= 640, "{tally:?}");
    tally.assert_explains(used(&server.url(), "alice").await);
    assert!(gate.store().primary().nodes()[0].reconnects >= 9, "{:?}", gate.store().primary().nodes());
}

/// A client that hangs once in a hundred lost connections hangs every day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_lost_connections_wedge_nothing() {
    let server = RedisServer::start();
    let gate = healthy(options(&server.url())).await;
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
        until_by_store(&gate, "bob").await;
    }
    storm.end().await.assert_explains(used(&server.url(), "alice").await);
}

/// The reply is lost, the charge is not: a repeated call would charge twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_reply_is_cut_off_was_made_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    for bytes in [0, 3] {
        proxy.set(Mode::Pass);
        let gate = healthy(options(&proxy.url())).await;
        let before = (used(&server.url(), "alice").await, evalsha_calls(&server));
        proxy.set(Mode::CutReplyAfter(bytes));
        let outcome = check(&gate, "alice").await;
        assert_eq!(outcome.source, DecisionSource::Local);
        proxy.set(Mode::Pass);
        until_true("the connection is made again", || gate.store().primary().nodes()[0].connected);
        assert_eq!(evalsha_calls(&server), before.1 + 1);
        assert_eq!(used(&server.url(), "alice").await, before.0 + 1);
        let failure = last_failure(&gate);
        assert!(
            failure.contains("before the reply arrived") || failure.contains("malformed reply"),
            "{failure}"
        );
    }
}

/// A request that did not arrive whole must not be carried out in part.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_cut_in_the_middle_is_not_made_and_the_next_one_is() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    for bytes in [0, 10, 60] {
        proxy.set(Mode::Pass);
        let gate = healthy(options(&proxy.url())).await;
        let before = evalsha_calls(&server);
        proxy.set(Mode::CutRequestAfter(bytes));
        assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
        proxy.set(Mode::Pass);
        assert_eq!(evalsha_calls(&server), before);
        assert_eq!(until_used(&gate, "alice").await, [0]);
    }
}

/// Without a circuit breaker, each caller of a server that never replies would wait for its
/// deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_opens_the_breaker_after_a_few_calls_and_the_others_are_answered_at_once() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    let gate = healthy(hasty(&proxy.url())).await;
    proxy.set(Mode::BlackHole);
    let before = errors(&gate, FailureKind::Timeout);
    // The breaker opens, unless an attempt to reconnect fails before: then callers get its error.
    for _ in 0..30 {
        assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
        if gate.store().primary().nodes()[0].breaker == "open" {
            break;
        }
    }
    let waited = errors(&gate, FailureKind::Timeout) - before;
    assert!(waited <= 5, "{waited} calls waited: {:?}", gate.store().primary().nodes());
    // Probes wait for their deadline. A slow machine sends more of them, but most calls are not
    // probes.
    let before = errors(&gate, FailureKind::Timeout);
    for _ in 0..200 {
        check(&gate, "alice").await;
    }
    let probes = errors(&gate, FailureKind::Timeout) - before;
    assert!(probes < 100, "{probes} of 200 waited: {:?}", gate.store().primary().nodes());
    // The error names why the node is not called.
    let why = last_failure(&gate);
    let reasons = ["no reply within", "not connected within", "cannot connect"];
    assert!(reasons.iter().any(|reason| why.contains(reason)), "{why}");

    proxy.set(Mode::Pass);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
}

/// A slow reply within the deadline is not a failure; a later one must not delay its caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_server_is_waited_for_within_the_deadline_and_no_longer() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port());
    let slow = |request, reply| Mode::Delay {
        request: Duration::from_millis(request),
        reply: Duration::from_millis(reply),
    };

    let gate = healthy(options(&proxy.url())).await;
    proxy.set(slow(15, 15));
    for _ in 0..10 {
        let outcome = check(&gate, "thirty").await;
        assert!(
            outcome.by_store() && outcome.took >= Duration::from_millis(30),
            "{outcome:?}: {:?}",
            gate.store().stats()
        );
    }

    for (user, request, reply) in [("to-server", 3000, 0), ("from-server", 0, 3000)] {
        proxy.set(Mode::Pass);
        let gate = healthy(hasty(&proxy.url())).await;
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
        if request > 0 {
            assert_eq!(used, 0, "{user}: what came too late has charged");
        }
    }
}

/// A server whose clients are paused executes afterwards what they sent meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clients_are_paused_charges_nobody_afterwards() {
    for what in ["ALL", "WRITE"] {
        let server = RedisServer::start();
        let witness = healthy(options(&server.url())).await;
        assert!(check(&witness, "alice").await.by_store());
        let gate = healthy(options(&server.url()).with_deadline(UNDER_WAY)).await;
        let before = evalsha_calls(&server);
        server.admin(&["CLIENT", "PAUSE", "5000", what]);
        // Fewer than let the connection be given up, and the calls on it with it.
        for outcome in all_at_once(&gate, 2, "alice").await {
            assert_eq!(outcome.source, DecisionSource::Local, "{what}");
        }
        until_true("the late calls are made", || evalsha_calls(&server) > before);
        assert_eq!(until_used(&gate, "alice").await, [1], "{what}");
        assert_eq!(used(&server.url(), "alice").await, 1, "{what}");
    }
}

/// Servers lose their scripts when they restart, fail over, or are flushed; no caller should
/// notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_scripts_are_loaded_again_without_a_failure() {
    let server = RedisServer::start();
    let gate = gate([daily(1_000_000)], options(&server.url()).with_deadline(LATER));
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
        assert!(storm_of("alice").await.iter().all(callers::Outcome::by_store));
        assert_eq!(until_used(&gate, "alice").await, [32 * round]);
    }
    assert_eq!(gate.store().stats().fallbacks, 0);
    assert!(server.commandstats("script|load").calls >= 5);
}

/// A flush of the server resets all usage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_starts_anew_on_a_server_that_was_flushed() {
    let server = RedisServer::start();
    let gate = gate([daily(2)], options(&server.url()).with_deadline(LATER).without_denial_cache());
    for (used, allowed) in [(1, true), (2, true), (2, false)] {
        let outcome = check_cost(&gate, "alice", 1).await;
        assert_eq!((outcome.used, outcome.allowed, outcome.source), (used, allowed, DecisionSource::Store));
    }
    server.admin(&["FLUSHALL"]);
    let outcome = check_cost(&gate, "alice", 1).await;
    assert_eq!((outcome.used, outcome.allowed, outcome.source), (1, true, DecisionSource::Store));
}

/// Each policy chooses its fallback, and every decision of a fallback says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_policy_answers_by_its_own_fallback_and_says_so() {
    let server = RedisServer::start();
    server.kill();
    for (then, source, allowed) in [
        (OnStoreError::Local, DecisionSource::Local, [true, true, false]),
        (OnStoreError::Allow, DecisionSource::Allow, [true, true, true]),
        (OnStoreError::Deny, DecisionSource::Deny, [false, false, false]),
    ] {
        let policies = PolicySet::new([daily(6).with_on_store_error(then)]).unwrap();
        // Three instances: each has two of six.
        let redis = RedisStore::new(options(&server.url())).unwrap();
        let store = FallbackStore::new(redis).with_instances(3);
        let gate = SharedGate::with_store(policies, store).unwrap();
        for allowed in allowed {
            let outcome = check(&gate, "alice").await;
            assert_eq!((outcome.allowed, outcome.source), (allowed, source), "{then:?}");
        }
        // Nobody asks whether these may pass.
        let request = Request::new().with("user", "alice");
        for verb in [Verb::Refund, Verb::Penalize] {
            assert!(
                gate.apply_all(verb, std::slice::from_ref(&request)).await.is_allowed(),
                "{then:?} {verb:?}"
            );
        }
        // A limit that is raised meanwhile is raised here as well: two more of each instance's
        // share.
        gate.configure(PolicySet::new([daily(12).with_on_store_error(then)]).unwrap()).unwrap();
        let allowed = allowed[0];
        assert_eq!(check(&gate, "alice").await.allowed, allowed, "{then:?}");
    }
    // Together: the one that denies denies for all, and each says what it is.
    let gate = gate(
        [
            named("a", 1),
            named("b", 1).with_on_store_error(OnStoreError::Allow),
            named("c", 1).with_on_store_error(OnStoreError::Deny),
        ],
        options(&server.url()),
    );
    for _ in 0..2 {
        let request = Request::new().with("user", "alice");
        let decisions = gate.check(&request).await;
        assert!(decisions.is_denied());
        let outcome: Vec<_> =
            decisions.iter().map(|one| (one.decision().source(), one.decision().is_allowed())).collect();
        assert_eq!(
            outcome,
            [(DecisionSource::Local, true), (DecisionSource::Allow, true), (DecisionSource::Deny, false)]
        );
    }
}

/// An attacker who can make the store fail must not get every limit anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fallback_gives_what_remained_and_no_more_than_the_share() {
    let server = RedisServer::start();
    let policy = |algorithm: Algorithm, limit| {
        let quota = Quota::per_day(limit).with_algorithm(algorithm);
        PolicySet::new([Policy::new(algorithm.name(), quota).unwrap().with_scope(["user"])]).unwrap()
    };
    let mut cases = Vec::new();
    for algorithm in Algorithm::ALL {
        for (instances, used, expected) in [(1, 7, 3), (1, 0, 10), (5, 7, 2), (5, 9, 1), (5, 10, 0)] {
            let redis = RedisStore::new(options(&server.url())).unwrap();
            let store = FallbackStore::new(redis).with_instances(instances);
            let gate = SharedGate::with_store(policy(algorithm, 10), store).unwrap();
            let alice = format!("alice-{instances}-{used}");
            for _ in 0..used {
                assert!(check(&gate, &alice).await.by_store());
            }
            if used == 10 {
                assert!(!check(&gate, &alice).await.allowed);
            }
            cases.push((algorithm, gate, alice, 10 / instances, expected));
        }
    }
    server.kill();
    for (algorithm, gate, alice, share, expected) in cases {
        let what = format!("{algorithm}, {alice}");
        for (user, expected) in [(alice.as_str(), expected), ("bob", share)] {
            let mut admitted = 0;
            for _ in 0..12 {
                let request = Request::new().with("user", user);
                let decisions = gate.check(&request).await;
                let one = decisions.strictest().unwrap();
                assert_eq!(
                    (one.decision().source(), one.decision().limit()),
                    (DecisionSource::Local, share),
                    "{what}"
                );
                admitted += u64::from(one.decision().is_allowed());
                if one.decision().is_denied() {
                    let wait = one.decision().retry_after().expect("it will fit");
                    assert!(!wait.is_zero() && wait <= Duration::from_secs(2 * 86_400), "{what}: {wait:?}");
                }
            }
            assert_eq!(admitted, expected, "{what}: {user}");
        }
        // A limit that is raised meanwhile is raised here as well.
        gate.configure(policy(algorithm, 20)).unwrap();
        assert!(check(&gate, &alice).await.allowed, "{what}: another limit");
    }
}

/// A client whose wait was a second waits that second, not a whole window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_key_stays_denied_by_the_fallback_until_its_wait_ends() {
    const WINDOW: Duration = Duration::from_secs(3);
    for caches_denials in [true, false] {
        let server = RedisServer::start();
        let options = options(&server.url());
        let options = if caches_denials { options } else { options.without_denial_cache() };
        let quota = Quota::new(2, WINDOW).unwrap();
        let gate = gate([Policy::new("p", quota).unwrap().with_scope(["user"])], options);
        until_by_store(&gate, "warm-up").await;
        let begun = Instant::now();
        for allowed in [true, true, false] {
            let outcome = check(&gate, "alice").await;
            assert_eq!((outcome.allowed, outcome.by_store()), (allowed, true));
        }
        server.kill();
        let mut denied = 0;
        let freed = loop {
            let outcome = check(&gate, "alice").await;
            if outcome.allowed {
                break begun.elapsed();
            }
            denied += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!(denied > 0 && freed >= WINDOW, "admitted after {freed:?}");
    }
}

/// A key that was reset is a new key, whatever becomes of the store then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_key_has_its_whole_share_in_the_fallback() {
    let server = RedisServer::start();
    let gate = gate([daily(3)], options(&server.url()));
    for _ in 0..4 {
        check(&gate, "alice").await;
    }
    let request = Request::new().with("user", "alice");
    assert!(gate.reset(&request).await.unwrap());
    server.kill();
    for allowed in [true, true, true, false] {
        let outcome = check(&gate, "alice").await;
        assert_eq!((outcome.allowed, outcome.source), (allowed, DecisionSource::Local));
    }
}

/// A denial of the store stands, whatever the policy's fallback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_of_the_store_never_goes_to_the_fallback() {
    let server = RedisServer::start();
    for then in [OnStoreError::Local, OnStoreError::Allow, OnStoreError::Deny] {
        server.admin(&["FLUSHALL"]);
        let options = options(&server.url()).with_deadline(LATER).without_denial_cache();
        let gate = gate([daily(1).with_on_store_error(then)], options);
        assert!(check_cost(&gate, "alice", 1).await.allowed);
        for _ in 0..5 {
            let outcome = check_cost(&gate, "alice", 1).await;
            assert_eq!((outcome.allowed, outcome.source), (false, DecisionSource::Store), "{then:?}");
        }
        assert_eq!((gate.store().stats().fallbacks, gate.store().memory().stats().keys), (0, 0));
    }
}

/// After a failover by Sentinels, callers are served without an operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_killed_is_left_for_the_one_that_the_sentinels_name() {
    let sentinels = RedisSentinels::start();
    let gate = healthy(options(&sentinels.url())).await;
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

/// A master that is far away, or slow to accept, is as late as `connect_timeout` permits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_behind_sentinels_may_take_its_time_to_connect() {
    let sentinels = RedisSentinels::start().without_failover();
    let master = sentinels.master();
    master.pause();
    let gate = gate([daily(100)], options(&sentinels.url()).with_deadline(Duration::from_secs(60)));
    let asked = tokio::spawn(async move { check(&gate, "alice").await.source });
    // Each Sentinel is asked for the master, which has until then to say that it is one.
    tokio::time::sleep(Duration::from_millis(900)).await;
    master.resume();
    assert_eq!(asked.await.unwrap(), DecisionSource::Store);
}

/// Says where the server of the test below is.
const URL: &str = "SLIDEGATE_TEST_FAULTS_URL";

/// In a program without free file descriptors the limiter must neither spin nor panic, and must
/// recover.
#[test]
fn a_program_without_file_descriptors_is_answered_for_and_connects_when_it_has_some() {
    let server = RedisServer::start();
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
    let gate = gate([daily(100)], options(&std::env::var(URL).unwrap()));
    let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!((10..64).contains(&files.len()), "{} files", files.len());
    for _ in 0..20 {
        assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
    }
    let why = last_failure(&gate);
    assert!(why.contains("Too many open files"), "{why}");
    drop(files);
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
}

/// A server at its client limit must not be hammered, and callers must not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_too_many_clients_is_answered_for_and_used_when_it_has_room() {
    let server = RedisServer::start();
    let gate = gate([daily(100)], options(&server.url()));
    let mut others = Vec::new();
    server.admin(&["CONFIG", "SET", "maxclients", "3"]);
    while let Ok(mut other) = Connection::tcp(server.port(), Duration::from_secs(5)) {
        if other.call(&["PING"]).is_err() || others.len() == 10 {
            break;
        }
        others.push(other);
    }
    for _ in 0..20 {
        assert_eq!(check(&gate, "alice").await.source, DecisionSource::Local);
    }
    let why = last_failure(&gate);
    assert!(why.contains("max number of clients") || why.contains("connect"), "{why}");
    others.clear();
    assert_eq!(until_used(&gate, "alice").await, [0]);
    until_by_store(&gate, "alice").await;
}

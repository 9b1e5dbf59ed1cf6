//! Outages as they happen: slots on their way, servers that stand still or evict, networks whose
//! delay varies, clocks that are set, and clusters that stop.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use slidegate::store::ServiceStore;
use slidegate::{DecisionSource, Request};
use slidegate_redis::{FailureKind, RedisGate};
use slidegate_testkit::clock::ClockOffset;
use slidegate_testkit::proxy::{Mode, Proxy};
use slidegate_testkit::redis::RedisServer;
use slidegate_testkit::{TempDir, until_true};

use crate::callers::{
    LATER, Storm, Tally, check, daily, errors, gate, hasty, healthy, last_failure, named, options,
    until_by_store, until_used, used,
};
use crate::harness;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A tenant's keys share a slot. While that moves, some of them may be at each end, and no node can
/// run a script on both: nobody may be charged for one policy and not for the other.
#[test]
fn keys_of_a_hash_tag_at_both_ends_of_a_moving_slot_are_charged_together_or_not_at_all() {
    let cluster = harness::cluster();
    runtime().block_on(async {
        let tagged = |deadline| options(&cluster.url()).with_deadline(deadline).with_hash_tag("tenant");
        let request = Request::new().with("tenant", "try-again").with("user", "alice");
        // The key of one policy exists, that of the other does not.
        let first = gate([named("a", 9)], tagged(LATER));
        assert!(first.check(&request).await.is_allowed());
        let keys = || {
            let masters = cluster.nodes().iter().filter(|node| node.admin(&["ROLE"]).starts_with("master"));
            masters.flat_map(|node| {
                node.admin(&["KEYS", "sg1:{*}:[ab]:alice"]).lines().map(str::to_owned).collect::<Vec<_>>()
            })
        };
        let stored: Vec<_> = keys().collect();
        let [key] = stored.as_slice() else { panic!("{stored:?}") };
        let slot = cluster.slot_of(key);
        let from = cluster.master_of(slot);
        let masters = [0, 6000, 12_000].map(|slot| cluster.master_of(slot));
        let to = masters.into_iter().find(|node| node.port() != from.port()).unwrap();
        let migration = cluster.migrate_begin(slot, to);

        let both = gate([named("a", 9), named("b", 9)], tagged(Duration::from_millis(300)));
        let decisions = both.check(&request).await;
        assert!(
            decisions.iter().all(|one| one.decision().source() == DecisionSource::Local),
            "{decisions:?}"
        );
        let failure = last_failure(&both);
        assert!(failure.contains("TRYAGAIN"), "{failure}");
        assert!(errors(&both, FailureKind::ClusterDown) > 0, "{:?}", both.store().stats());
        assert_eq!(keys().collect::<Vec<_>>(), stored, "the other policy was not charged alone");

        // Within its deadline a check waits until the slot has moved, and is charged once.
        let patient = gate([named("a", 9), named("b", 9)], tagged(LATER));
        let waiting = tokio::spawn({
            let (patient, request) = (patient.clone(), request_of_alice());
            async move { used_under(&patient, &request, true).await }
        });
        until_true("the check is refused for now", || {
            let refused = from.admin(&["INFO", "errorstats"]) + &to.admin(&["INFO", "errorstats"]);
            refused.contains("errorstat_TRYAGAIN")
        });
        migration.end();
        assert_eq!(waiting.await.unwrap(), [2, 1]);
        assert_eq!(used_under(&patient, &request, false).await, [2, 1]);
        assert_eq!(patient.store().stats().fallbacks, 0);
        for node in masters {
            node.admin(&["FLUSHALL"]);
        }
    });
}

fn request_of_alice() -> Request<'static> {
    Request::new().with("tenant", "try-again").with("user", "alice")
}

/// What the store says is used under each policy, after a check or without one.
async fn used_under(gate: &RedisGate, request: &Request<'_>, checks: bool) -> Vec<u64> {
    let decisions = if checks { gate.check(request).await } else { gate.peek(request).await };
    assert!(decisions.iter().all(|one| one.decision().source() == DecisionSource::Store), "{decisions:?}");
    decisions.iter().map(|one| one.decision().used()).collect()
}

/// A server that stands still (a fork, a swapped page, `DEBUG SLEEP`) runs afterwards what it was
/// sent: too late to charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_sleeps_is_answered_for_and_charges_nobody_when_it_wakes() {
    let server = Arc::new(RedisServer::start());
    let gate = healthy(hasty(&server.url())).await;
    let mut tally = Tally::default();
    let sleeping = thread::spawn({
        let server = server.clone();
        move || server.ask_within(LATER, &["DEBUG", "SLEEP", "2"])
    });
    // A check that arrives together with the command would be executed before it and answered after
    // it, so the server must be asleep first.
    let answers = || server.ask_within(Duration::from_millis(100), &["PING"]).is_ok();
    while answers() && !sleeping.is_finished() {}
    while tally.ambiguous < 5 {
        tally.add(check(&gate, "alice").await);
    }
    let slept_until_the_last = !sleeping.is_finished();
    let failure = last_failure(&gate);
    let reasons = ["no reply within", "not connected within", "circuit breaker open"];
    assert!(reasons.iter().any(|reason| failure.contains(reason)), "{failure}");
    sleeping.join().unwrap().unwrap();
    until_used(&gate, "alice").await;
    let used = used(&server.url(), "alice").await;
    tally.assert_explains(used);
    assert!(!slept_until_the_last || used == tally.allowed, "{used} charged: {tally:?}");
    assert!(until_by_store(&gate, "alice").await.allowed);
}

/// Operators who let Redis evict must learn that limits were reset, and by how many keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_redis_evicts_start_again_and_the_examination_says_so() {
    let server =
        RedisServer::builder().args(["--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru"]).start();
    let gate = gate([daily(1)], options(&server.url()).without_denial_cache());
    assert!(check(&gate, "first").await.by_store());
    let outcome = check(&gate, "first").await;
    assert_eq!((outcome.allowed, outcome.by_store()), (false, true));
    let evicted = || {
        let info = server.admin(&["INFO", "stats"]);
        let line = info.lines().find_map(|line| line.strip_prefix("evicted_keys:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    // Other users push it out: their logs are larger than what is left.
    let mut users = 0;
    while server.admin(&["EXISTS", "sg1:p:first"]) == "1" {
        assert!(users < 50_000, "nothing is evicted: {}", server.admin(&["INFO", "memory"]));
        for _ in 0..500 {
            users += 1;
            assert!(check(&gate, &format!("user-{users}")).await.by_store());
        }
    }
    let before = evicted();
    assert!(before > 0);
    assert!(check(&gate, "first").await.allowed, "its limit has started again");
    let findings = gate.store().primary().examine().await;
    let says = |words: &str| findings.iter().any(|finding| finding.contains(words));
    assert!(says("evicts keys when it is full (maxmemory-policy is `allkeys-lru`)"), "{findings:?}");
    assert!(says("keys: limits were reset; give it more memory"), "{findings:?}");
    let counted = gate.store().primary().stats().evicted_keys;
    assert!((before..=evicted()).contains(&counted), "{counted} instead of {before} at least");
    assert!(says(&format!("has evicted {counted} keys")), "{findings:?}");
}

/// Where some replies are late and others are not, each check is decided within its deadline and
/// charged at most once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_whose_delay_varies_charges_each_check_at_most_once() {
    let server = RedisServer::start();
    let proxy = Arc::new(Proxy::before(server.port()));
    let gate = healthy(hasty(&proxy.url())).await;
    until_used(&gate, "alice").await;
    let over = Arc::new(AtomicBool::new(false));
    let shaking = thread::spawn({
        let (proxy, over) = (proxy.clone(), over.clone());
        move || {
            // The same delays in every run: some are longer than the deadline.
            let mut state = 1u64;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Duration::from_millis((state >> 33) % 120)
            };
            while !over.load(Ordering::Relaxed) {
                proxy.set(Mode::Delay { request: next(), reply: next() });
                thread::sleep(Duration::from_millis(20));
            }
        }
    });
    let storm = Storm::start(&gate, 8, |_| "alice".into());
    let timeouts = || errors(&gate, FailureKind::Timeout);
    until_true("some are decided by the store, and some are not", || {
        server.commandstats("evalsha").calls > 50 && timeouts() > 5
    });
    let tally = storm.end().await;
    over.store(true, Ordering::Relaxed);
    shaking.join().unwrap();
    proxy.set(Mode::Pass);
    until_used(&gate, "alice").await;
    tally.assert_explains(used(&server.url(), "alice").await);
    assert!(tally.ambiguous > 0, "{tally:?}");
}

/// Says where the server of the test below is.
const URL: &str = "SLIDEGATE_TEST_CLIENT_CLOCK_URL";
const DAY_US: i64 = 86_400_000_000;

/// Instances whose dates differ share one limit: the store's clock decides.
#[test]
fn the_wall_clock_of_a_client_decides_nothing() {
    let server = RedisServer::start();
    let dir = TempDir::new("client-clock");
    let clock = ClockOffset::create(dir.path());
    clock.set(DAY_US);
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args(["--exact", "outages::a_client_whose_clock_is_set", "--ignored", "--nocapture"]);
    client.env(URL, server.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
    clock.put_on(&mut client);
    let mut client = client.spawn().unwrap();
    let (mut go_on, says) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
    let mut said = String::new();
    for line in BufReader::new(says).lines() {
        let line = line.unwrap();
        if line.ends_with("ready") {
            // From a day ahead to a day behind.
            clock.set(-DAY_US);
            go_on.write_all(b"go on\n").unwrap();
        }
        said += &line;
        said.push('\n');
    }
    assert!(client.wait().unwrap().success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// What the test above runs, with a clock that it sets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server and a clock that another test sets"]
#[allow(clippy::disallowed_methods)] // The date itself is what is tested.
async fn a_client_whose_clock_is_set() {
    let date = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let gate = gate([daily(3)], options(&std::env::var(URL).unwrap()).without_denial_cache());
    let ahead = date();
    for used in 1..=2 {
        let outcome = check(&gate, "alice").await;
        assert_eq!((outcome.used, outcome.allowed, outcome.by_store()), (used, true, true));
    }
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    assert!(date() + Duration::from_secs(100_000) < ahead, "the clock was not set");
    let outcome = check(&gate, "alice").await;
    assert_eq!((outcome.used, outcome.allowed, outcome.by_store()), (3, true, true));
    let request = Request::new().with("user", "alice");
    let decisions = gate.check(&request).await;
    let denied = decisions.strictest().unwrap();
    assert_eq!((denied.decision().is_denied(), denied.decision().source()), (true, DecisionSource::Store));
    let wait = denied.decision().retry_after().unwrap();
    assert!((Duration::from_secs(86_000)..=Duration::from_secs(86_400)).contains(&wait), "{wait:?}");
    assert_eq!(gate.store().primary().stats().clock_jumps, slidegate::store::ClockJumps::default());
}

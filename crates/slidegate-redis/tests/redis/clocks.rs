//! Clocks: what is admitted when the server's clock is set back or forward.
//!
//! Tests move the clock by hand, so none waits for a window to pass.

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::ServiceStore;
use slidegate::{Algorithm, Calendar, DecisionSource, Policy, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;

use crate::callers::{LATER, check_cost, gate, options, until_used};

/// The window of the tests on clocks.
const WINDOW_US: u64 = 2_000_000;
const CLOCK_LIMIT: u64 = 10;
const START_US: u64 = 1_700_000_000_000_000;

/// How many of twice the limit are admitted now, all of them by the store.
async fn admitted(gate: &RedisGate) -> u64 {
    let mut admitted = 0;
    for _ in 0..2 * CLOCK_LIMIT {
        let outcome = check_cost(gate, "alice", 1).await;
        assert!(outcome.by_store(), "{outcome:?}: {:?}", gate.store().stats());
        admitted += u64::from(outcome.allowed);
    }
    admitted
}

fn timed_gate(server: &RedisServer, window: Duration) -> Arc<RedisGate> {
    let quota = Quota::new(CLOCK_LIMIT, window).unwrap();
    let policy = Policy::new("p", quota).unwrap().with_scope(["user"]);
    gate([policy], options(&server.url()).with_deadline(LATER).without_denial_cache())
}

/// When the server's clock is set back, limits must hold and nobody may be locked out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back_admits_no_more_and_locks_nobody_out_for_long() {
    let server = RedisServer::builder().with_clock().start();
    let gate = timed_gate(&server, Duration::from_micros(WINDOW_US));
    for (number, back_us) in [3_600_000_000, 500_000].into_iter().enumerate() {
        // Far enough from the one before that all usage has expired.
        let start = START_US + number as u64 * 100 * WINDOW_US;
        server.clock().stand(start);
        assert_eq!(admitted(&gate).await, CLOCK_LIMIT);
        let back = start - back_us;
        // Within the same true window, the clock shows times that it has shown before.
        for passed_us in [0, WINDOW_US / 2, WINDOW_US - 1] {
            server.clock().stand(back + passed_us);
            assert_eq!(admitted(&gate).await, 0, "{back_us} us back, {passed_us} us later");
        }
        // A small step is waited out; after a large one a new window begins.
        let locked_us = WINDOW_US + back_us.min(1_000_000);
        server.clock().stand(back + locked_us);
        assert_eq!(admitted(&gate).await, CLOCK_LIMIT, "{back_us} us back");
    }
}

/// Time that the server skipped cannot be distinguished from time that passed: it may free one
/// limit, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_forward_and_corrected_admits_one_limit_more_at_most() {
    let server = RedisServer::builder().with_clock().start();
    let gate = timed_gate(&server, Duration::from_micros(WINDOW_US));
    server.clock().stand(START_US);
    assert_eq!(admitted(&gate).await, CLOCK_LIMIT);
    server.clock().stand(START_US + 70_000_000);
    assert_eq!(admitted(&gate).await, CLOCK_LIMIT);
    // Corrected: the second limit counts for a window of the new time.
    for passed_us in [0, WINDOW_US / 2, WINDOW_US - 1] {
        server.clock().stand(START_US + passed_us);
        assert_eq!(admitted(&gate).await, 0, "{passed_us} us later");
    }
    server.clock().stand(START_US + WINDOW_US);
    assert_eq!(admitted(&gate).await, CLOCK_LIMIT);
}

/// A jump of the server's clock admits one limit more, so operators must see jumps in either
/// direction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jumps_of_the_servers_clock_are_counted_and_found_by_an_examination() {
    let server = RedisServer::builder().with_clock().start();
    let gate = timed_gate(&server, Duration::from_secs(3600));
    let jumps = || gate.store().primary().stats().clock_jumps;
    for _ in 0..3 {
        assert!(check_cost(&gate, "alice", 1).await.by_store());
    }
    assert_eq!((jumps().forward, jumps().backward), (0, 0));
    server.clock().set(7_200_000_000);
    let outcome = check_cost(&gate, "alice", CLOCK_LIMIT).await;
    assert!(outcome.allowed && outcome.by_store(), "admitted beside what was used before: {outcome:?}");
    assert_eq!((jumps().forward, jumps().backward), (1, 0));
    assert!((7_199_900_000..=7_200_100_000).contains(&jumps().last_us), "{:?}", jumps());
    let found = gate.store().primary().examine().await;
    let says = format!("the clock of redis at {} jumped ahead by 7", server.address());
    assert!(found.iter().any(|finding| finding.starts_with(&says)), "{found:?}");
    server.clock().set(0);
    assert!(check_cost(&gate, "alice", 0).await.by_store());
    assert_eq!((jumps().forward, jumps().backward), (1, 1));
    // Nothing has happened since.
    let _ = gate.store().primary().examine().await;
    for _ in 0..3 {
        assert!(check_cost(&gate, "alice", 0).await.by_store());
    }
    assert!(!gate.store().primary().examine().await.iter().any(|finding| finding.contains("jumped")));
    assert_eq!((jumps().forward, jumps().backward), (1, 1));
}

/// After a failover the new master's clock counts. If it runs ahead, that is a jump for every key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_server_with_another_clock_is_a_jump() {
    let first = RedisServer::builder().with_clock().start();
    let quota = Quota::per_hour(CLOCK_LIMIT);
    let policy = Policy::new("p", quota).unwrap().with_scope(["user"]);
    let gate = gate([policy], options(&first.url()).with_deadline(LATER).without_denial_cache());
    assert!(check_cost(&gate, "alice", 1).await.by_store());
    first.kill();
    let second = RedisServer::builder().with_clock().port(first.port()).start();
    second.clock().set(5_000_000);
    until_used(&gate, "alice").await;
    let jumps = gate.store().primary().stats().clock_jumps;
    assert_eq!((jumps.forward, jumps.backward), (1, 0));
    assert!((4_900_000..=5_100_000).contains(&jumps.last_us), "{jumps:?}");
}

/// Two time services that disagree make a clock jump forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_jumps_to_and_fro_ages_charges_by_its_forward_jumps_and_no_more() {
    const JUMP_US: u64 = 10_000_000;
    let server = RedisServer::builder().with_clock().start();
    let gate = timed_gate(&server, Duration::from_micros(6 * JUMP_US));
    let mut total = 0;
    for jump in 0..=12 {
        server.clock().stand(START_US + jump % 2 * JUMP_US);
        total += admitted(&gate).await;
    }
    // Six jumps forward age every charge by no more than one window.
    assert!((CLOCK_LIMIT..=2 * CLOCK_LIMIT).contains(&total), "{total}");
    server.clock().stand(START_US + 6 * JUMP_US + 1);
    let later = admitted(&gate).await;
    assert!(later > 0, "locked out a window after the last jump");
}

/// How a request is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Check,
    Once,
    Reserve,
}

/// An instance knows the server's time by its replies. One that it cannot read must not leave the key to the
/// fallback until a request on another key tells the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_is_set_back_by_more_than_a_window_leaves_decisions_shared() {
    const HOUR_US: u64 = 3_600_000_000;
    let minute = |algorithm| Quota::per_minute(10).with_algorithm(algorithm);
    let calendar = |calendar| Quota::calendar(10, calendar);
    for has_module in [false, true] {
        let server = RedisServer::builder().with_clock().module(has_module).start();
        for (name, quota, back_us) in [
            ("log", minute(Algorithm::SlidingLog), 2 * HOUR_US),
            ("window", minute(Algorithm::SlidingWindow), 2 * HOUR_US),
            ("fixed", minute(Algorithm::FixedWindow), 2 * HOUR_US),
            ("bucket", minute(Algorithm::TokenBucket), 2 * HOUR_US),
            ("in-flight", Quota::in_flight(10, Duration::from_secs(60)).unwrap(), 2 * HOUR_US),
            ("hour", calendar(Calendar::hour()), 96 * HOUR_US),
            ("day", calendar(Calendar::day()), 240 * HOUR_US),
            ("month", calendar(Calendar::month()), 2400 * HOUR_US),
        ] {
            for way in [Way::Check, Way::Once, Way::Reserve] {
                if way != Way::Reserve && name == "in-flight" {
                    continue;
                }
                server.clock().stand(START_US);
                let policy = Policy::new(name, quota).unwrap().with_scope(["user"]);
                let gate = gate([policy], options(&server.url()).with_deadline(LATER).without_denial_cache());
                let user = format!("{way:?}");
                let request = Request::new().with("user", &user);
                let decide = async |number: u32| {
                    let id = number.to_string();
                    let decided = match way {
                        Way::Check => gate.check(&request).await,
                        Way::Once => gate.check_once(&request, &id).await,
                        Way::Reserve => gate.reserve(&request).await.into_parts().0,
                    };
                    decided.strictest().unwrap().decision().source()
                };
                for number in 0..6 {
                    // The first decision may be what shows that the clock was set.
                    if number == 2 {
                        server.clock().stand(START_US - back_us);
                        decide(100).await;
                    }
                    let (source, stats) = (decide(number).await, gate.store().stats());
                    assert_eq!(
                        source,
                        DecisionSource::Store,
                        "{name} {way:?} {number}, module: {has_module}: {stats:?}"
                    );
                }
            }
        }
    }
}

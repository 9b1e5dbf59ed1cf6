//! Calendar windows that instances share: the server's clock decides which month it is.

use std::sync::Arc;

use slidegate::{Calendar, Policy, Quota, Request, SharedGate};
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{check_cost, gate, options};

/// 2026-03-31 22:00:00 in UTC: April begins in Berlin.
const APRIL_US: u64 = 1_774_994_400_000_000;

fn monthly(server: &RedisServer, calendar: Calendar) -> Arc<SharedGate> {
    let policy = Policy::new("p", Quota::calendar(10, calendar)).unwrap().with_scope(["user"]);
    gate([policy], options(&server.url()).without_denial_cache())
}

fn berlin() -> Calendar {
    Calendar::month().with_time_zone("Europe/Berlin").unwrap()
}

/// Two instances, of which each believes that it is another date than the server does, share one month, to the
/// microsecond of the server's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_month_on_two_instances_ends_by_the_servers_clock() {
    let server = RedisServer::builder().with_clock().start();
    let gates = [monthly(&server, berlin()), monthly(&server, berlin())];
    let admitted = async || {
        let mut admitted = 0;
        for at in 0..24 {
            let outcome = check_cost(&gates[at % 2], "alice", 1).await;
            assert!(outcome.by_store(), "{outcome:?}: {:?}", gates[at % 2].store().stats());
            admitted += u64::from(outcome.allowed);
        }
        admitted
    };
    for (time, expected) in [
        (APRIL_US - 86_400_000_000, 10),
        (APRIL_US - 1_000_000, 0),
        (APRIL_US - 1, 0),
        (APRIL_US, 10),
        // The clock is corrected by less than a second, and by more.
        (APRIL_US - 1, 0),
        (APRIL_US - 90_000_000, 0),
        (APRIL_US + 1, 0),
        // April has 30 days of 24 hours.
        (APRIL_US + 30 * 86_400_000_000 - 1, 0),
        (APRIL_US + 30 * 86_400_000_000, 10),
    ] {
        server.clock().stand(time);
        assert_eq!(
            admitted().await,
            expected,
            "{} us after the border",
            time.cast_signed() - APRIL_US.cast_signed()
        );
    }
}

/// Usage of the running month counts on when a customer moves to another zone or billing day.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_zone_or_anchor_keeps_the_usage_of_the_running_month() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(APRIL_US + 86_400_000_000);
    assert!(check_cost(&monthly(&server, berlin()), "alice", 7).await.allowed);
    for calendar in [Calendar::month(), Calendar::month().with_anchor(20).unwrap(), Calendar::week()] {
        let moved = monthly(&server, calendar);
        let outcome = check_cost(&moved, "alice", 4).await;
        assert!(outcome.by_store() && !outcome.allowed, "{calendar}: {outcome:?}");
        assert_eq!(outcome.used, 7, "{calendar}");
    }
}

/// A value by other borders of the same calendar is of an instance with other time zone data. It is refused, and
/// nothing is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn borders_that_differ_between_instances_are_refused_with_the_reason() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(APRIL_US + 86_400_000_000);
    let gate = monthly(&server, berlin());
    assert!(check_cost(&gate, "alice", 7).await.allowed);
    let mut redis = server.connect();
    let Reply::Bytes(value) = redis.call(&["GET", "sg1:p:alice"]).unwrap() else { panic!("no value") };
    // Bytes 7 to 14 are the end of the month: an hour later, as without the change of the clock.
    let end = value[7..14].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let mut other = value;
    other[7..14].copy_from_slice(&(end + 3_600_000_000).to_le_bytes()[..7]);
    redis.call(&[&b"SET"[..], b"sg1:p:alice", &other]).unwrap();
    let request = Request::new().with("user", "alice");
    let decisions = gate.check_async(&request).await;
    let decision = decisions.iter().next().unwrap();
    let failure = decision.store_failure().unwrap().to_string();
    assert!(failure.contains("instances have different time zone data"), "{failure}");
    assert_eq!(redis.call(&["GET", "sg1:p:alice"]).unwrap(), Reply::Bytes(other));
}

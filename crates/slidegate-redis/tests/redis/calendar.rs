//! Calendar windows that instances share: the server's clock decides which month it is.

use std::sync::Arc;

use slidegate::{Calendar, Policy, Quota};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{check_cost, gate, options};

/// 2026-03-31 22:00:00 in UTC: April begins in Berlin.
const APRIL_US: u64 = 1_774_994_400_000_000;

fn monthly(server: &RedisServer, calendar: Calendar) -> Arc<RedisGate> {
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

const HOUR_US: u64 = 3_600_000_000;

/// The end of the month that a key counts in, in its value: bytes 7 to 14.
fn end_of(value: &[u8]) -> u64 {
    value[7..14].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A government moves its clocks: what was counted by the data of before goes on counting on all instances, until the
/// later of both ends, and nobody has to reset a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_by_other_time_zone_data_counts_until_the_later_end() {
    // How much later the value ends than this instance's month, and when it counts no longer.
    let cases =
        [(HOUR_US.cast_signed(), HOUR_US), (-HOUR_US.cast_signed(), 0), (1_800_000_000, 1_800_000_000)];
    let cases = cases.into_iter().chain([(-3 * HOUR_US.cast_signed(), 0), (-24 * HOUR_US.cast_signed(), 0)]);
    for (with_module, (offset_us, later_us)) in
        [false, true].into_iter().flat_map(|with| cases.clone().map(move |one| (with, one)))
    {
        let what = format!("{offset_us} us, with the module: {with_module}");
        let server = RedisServer::builder().with_clock().module(with_module).start();
        let day = 86_400_000_000;
        server.clock().stand(APRIL_US + day);
        let gates = [monthly(&server, berlin()), monthly(&server, berlin())];
        assert!(check_cost(&gates[0], "alice", 7).await.allowed);
        let mut redis = server.connect();
        let mut value = async || match redis.call(&["GET", "sg1:p:alice"]).unwrap() {
            Reply::Bytes(value) => value,
            other => panic!("{what}: {other:?}"),
        };
        let may = end_of(&value().await);
        let old_end = may.checked_add_signed(offset_us).unwrap();
        let mut by_old_data = value().await;
        by_old_data[7..14].copy_from_slice(&old_end.to_le_bytes()[..7]);
        let mut admin = server.connect();
        admin.call(&[&b"SETRANGE"[..], b"sg1:p:alice", b"0", &by_old_data]).unwrap();
        let denied = check_cost(&gates[0], "alice", 4).await;
        assert!(denied.by_store() && !denied.allowed && denied.used == 7, "{what}: {denied:?}");
        assert_eq!(value().await, by_old_data, "a denial leaves it, {what}");
        let ends = may + later_us;
        for time in [old_end.min(may) - 1, old_end.min(may), ends - 1] {
            server.clock().stand(time);
            for gate in &gates {
                let denied = check_cost(gate, "alice", 4).await;
                assert!(
                    denied.by_store() && !denied.allowed && denied.used == 7,
                    "{what} at {time}: {denied:?}"
                );
            }
        }
        // With a charge, the later end is stored.
        assert!(check_cost(&gates[1], "alice", 3).await.allowed);
        assert_eq!(end_of(&value().await), ends, "{what}");
        server.clock().stand(ends);
        for gate in &gates {
            let allowed = check_cost(gate, "alice", 5).await;
            assert!(allowed.by_store() && allowed.allowed, "{what}: {allowed:?}");
        }
        assert!(!check_cost(&gates[0], "alice", 1).await.allowed, "one month for both, {what}");
        let june = end_of(&value().await);
        assert_eq!(june - may, 31 * day, "all end with the same date again, {what}");
    }
}

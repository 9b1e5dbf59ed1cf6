//! Totals of calendar windows that have ended: kept until they are acknowledged, by scripts and by the module.

// One test at a time uses the cluster.
#![allow(clippy::await_holding_lock)]

use slidegate::store::{ClosedTotal, ServiceStore};
use slidegate::{Calendar, Policy, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{check_cost, gate, options};
use crate::harness;

/// 2026-03-31 22:00:00 in UTC: April begins in Berlin.
const APRIL_US: u64 = 1_774_994_400_000_000;
const DAY_US: u64 = 86_400_000_000;
const MAY_US: u64 = APRIL_US + 30 * DAY_US;
const HOUR_US: u64 = 3_600_000_000;
const SECOND_US: u64 = 1_000_000;

fn monthly(is_kept: bool) -> Policy {
    let calendar = Calendar::month().with_time_zone("Europe/Berlin").unwrap();
    let policy = Policy::new("p", Quota::calendar(100, calendar)).unwrap().with_scope(["user"]);
    let policy = policy.with_tiers("plan", [("pro".to_owned(), Quota::calendar(50, calendar))]);
    policy.with_notify_closed(is_kept)
}

/// All totals, after keys with ended holds were charged, and these as text: key, microseconds to April, total.
async fn listed(gate: &RedisGate) -> (Vec<ClosedTotal>, Vec<(String, i64, u64)>) {
    let step = async || gate.store().primary().closed_step("p", None, 10_000).await.unwrap();
    for user in step().await.unsettled {
        gate.peek(&Request::new().with("user", &user)).await;
    }
    let found = step().await;
    assert!(found.next.is_none() && found.unsettled.is_empty(), "{found:?}");
    let of = |one: &ClosedTotal| {
        let after = one.ended.as_micros().cast_signed() - APRIL_US.cast_signed();
        let key = if one.key.starts_with('#') { "#" } else { &one.key };
        (key.to_owned(), after, one.used)
    };
    let mut texts: Vec<_> = found.totals.iter().map(of).collect();
    texts.sort();
    (found.totals, texts)
}

/// What the customer used until midnight is billed, no more and no less, whether they come back or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_total_is_listed_until_it_is_acknowledged() {
    for with_module in [false, true] {
        let server = RedisServer::builder().with_clock().module(with_module).start();
        let gate = gate([monthly(true)], options(&server.url()).without_denial_cache());
        let at = |us: u64| server.clock().stand(us);
        let charge = async |user: &str, cost| {
            let outcome = check_cost(&gate, user, cost).await;
            assert!(outcome.by_store() && outcome.allowed, "{outcome:?}");
            outcome.used
        };
        let expect = async |expected: &[(&str, i64, u64)], what: &str| {
            let (totals, texts) = listed(&gate).await;
            let expected: Vec<_> =
                expected.iter().map(|(key, end, used)| ((*key).to_owned(), *end, *used)).collect();
            assert_eq!(texts, expected, "{what}, with the module: {with_module}");
            totals
        };
        let acknowledge =
            async |totals: &[ClosedTotal]| gate.store().primary().acknowledge_closed(totals).await.unwrap();
        at(APRIL_US - 90 * SECOND_US);
        for (user, cost) in [("idle", 4), ("busy", 3), ("refunded", 5), ("mail@example.com", 1)] {
            charge(user, cost).await;
        }
        let settled = gate
            .reserve(&Request::new().with("user", "settled").with("plan", "pro").with_cost(9))
            .await
            .into_ticket()
            .unwrap();
        gate.settle(&settled, 8).await.unwrap();
        // Both are charged when they end: one before the border, one after it.
        let hold = |user| Request::new().with("user", user).with_cost(2);
        assert!(gate.reserve(&hold("held")).await.decisions().is_allowed());
        at(APRIL_US - 10 * SECOND_US);
        assert!(gate.reserve(&hold("open")).await.decisions().is_allowed());
        gate.refund(&Request::new().with("user", "refunded").with_cost(5)).await;
        at(APRIL_US - 1);
        charge("busy", 7).await;
        at(APRIL_US);
        charge("busy", 20).await;
        at(APRIL_US + 5 * SECOND_US - 1);
        expect(&[], "the clock may be set back").await;
        at(APRIL_US + 60 * SECOND_US);
        let all = [("#", 0, 1), ("busy", 0, 10), ("held", 0, 2), ("idle", 0, 4), ("settled", 0, 8)];
        let totals = expect(&all, "March is over").await;
        // Between listing and acknowledging, a key is charged, and another one loses all it used.
        charge("idle", 6).await;
        gate.refund(&Request::new().with("user", "busy").with_cost(20)).await;
        expect(&all, "a killed instance has acknowledged nothing").await;
        acknowledge(&totals[..2]).await;
        acknowledge(&totals).await;
        expect(&[], "all are acknowledged").await;
        at(APRIL_US - SECOND_US);
        expect(&[], "the clock is set back").await;
        charge("held", 9).await;
        at(APRIL_US + 3 * DAY_US);
        expect(&[], "what was charged after the report is not reported again").await;
        charge("busy", 30).await;
        at(MAY_US + 60 * SECOND_US);
        let april = MAY_US.cast_signed() - APRIL_US.cast_signed();
        expect(&[("busy", april, 30), ("idle", april, 6), ("open", april, 2)], "April is over").await;
        charge("busy", 1).await;
        at(MAY_US + 7 * DAY_US);
        expect(&[("busy", april, 30), ("idle", april, 6), ("open", april, 2)], "a week later").await;
        at(MAY_US + 9 * DAY_US);
        expect(&[("busy", april, 30)], "idle keys have expired").await;
    }
}

/// Bytes are memory of whoever runs Redis, and older releases read them.
#[tokio::test]
async fn only_a_policy_that_asks_keeps_totals() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(APRIL_US - SECOND_US);
    let mut redis = server.connect();
    let mut stored = async |is_kept: bool| {
        let gate = gate([monthly(is_kept)], options(&server.url()).without_denial_cache());
        let outcome = check_cost(&gate, "alice", 3).await;
        let Reply::Bytes(value) = redis.call(&["GET", "sg1:p:alice"]).unwrap() else { panic!("no value") };
        let Reply::Integer(lives) = redis.call(&["PTTL", "sg1:p:alice"]).unwrap() else { panic!("no TTL") };
        (outcome.used, value.len(), lives / 86_400_000)
    };
    // A changed policy keeps the usage of the running month.
    for (is_kept, expected) in [(false, (3, 21, 1)), (true, (6, 35, 8)), (false, (9, 21, 1))] {
        assert_eq!(stored(is_kept).await, expected);
    }
}

/// In a cluster each call is about one slot, and the keys are on all nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn totals_are_found_on_all_nodes_of_a_cluster() {
    let cluster = harness::cluster();
    let policy = Policy::new("closed", Quota::calendar(100, Calendar::hour())).unwrap().with_scope(["user"]);
    let gate = gate([policy.with_notify_closed(true)], options(&cluster.url()));
    let mut redis = Vec::new();
    for user in 0..30 {
        let user = format!("user-{user}");
        assert!(check_cost(&gate, &user, 3).await.allowed);
        // Its hour was an earlier one.
        let name = format!("sg1:closed:{user}");
        let mut node = cluster.master_of(cluster.slot_of(&name)).connect();
        let ended = (APRIL_US - HOUR_US).to_le_bytes();
        node.call(&[&b"SETRANGE"[..], name.as_bytes(), b"7", &ended[..7]]).unwrap();
        redis.push(name);
    }
    let store = gate.store().primary();
    let listed = async || {
        let (mut found, mut from) = (Vec::new(), None);
        loop {
            let step = store.closed_step("closed", from.as_ref(), 10).await.unwrap();
            found.extend(step.totals);
            from = step.next;
            if from.is_none() {
                return found;
            }
        }
    };
    let totals = listed().await;
    let mut names: Vec<_> = totals.iter().map(|one| String::from_utf8(one.name.clone()).unwrap()).collect();
    names.sort();
    names.dedup();
    redis.sort();
    assert_eq!(names, redis);
    assert!(totals.iter().all(|one| one.used == 3), "{totals:?}");
    store.acknowledge_closed(&totals).await.unwrap();
    assert_eq!(listed().await, []);
}

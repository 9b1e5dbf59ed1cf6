//! What charges nothing changes nothing: a key keeps its bytes and its expiry, whatever quota a call comes with.

use std::sync::Arc;
use std::time::Duration;

use slidegate::reserve::Extension;
use slidegate::{
    Algorithm, Calendar, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    verb::Verb,
};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{gate, options};

/// 2026-11-26 06:00:00 in UTC: a day after the 25th, a day before the 27th.
const NOW_US: u64 = 1_795_672_800_000_000;
const DAY: Duration = Duration::from_secs(86_400);

fn from_day(day: u8) -> Calendar {
    Calendar::month().with_anchor(day).unwrap()
}

fn length(limit: u64, window: Duration, algorithm: Algorithm) -> Quota {
    Quota::new(limit, window).unwrap().with_algorithm(algorithm)
}

/// The quotas that keys are charged under, up to 900 of 1000.
fn own_quotas() -> Vec<Quota> {
    let lengths = Algorithm::ALL.map(|algorithm| length(1000, DAY, algorithm));
    lengths.into_iter().chain([Quota::calendar(1000, from_day(25))]).collect()
}

/// The quotas that calls come with. Another change is another line.
fn other_quotas(own: Quota) -> Vec<Quota> {
    let zone = |calendar: Calendar| calendar.with_time_zone("Asia/Tokyo").unwrap();
    let fewer_slots = (own.calendar_window().is_none()).then(|| own.with_slots(7));
    [
        own,
        own.with_limit(10),
        own.with_limit(950),
        own.with_limit(5_000),
        own.with_burst(3),
        Quota::calendar(900, from_day(27)),
        Quota::calendar(900, Calendar::month()),
        Quota::calendar(900, zone(from_day(25))),
        Quota::calendar(900, Calendar::week()),
    ]
    .into_iter()
    .chain(fewer_slots)
    .chain(Algorithm::ALL.into_iter().flat_map(|algorithm| {
        [Duration::from_secs(60), DAY, 3 * DAY, Duration::from_millis(86_400_001)]
            .map(|window| length(900, window, algorithm))
    }))
    .collect()
}

/// What is asked of a key without a charge. Another verb is another line.
const QUESTIONS: [(&str, Verb, Asks); 7] = [
    ("a check of 0", Verb::Check, Asks::Nothing),
    ("a denied check", Verb::Check, Asks::More),
    ("a check that never fits", Verb::Check, Asks::TooMuch),
    ("a peek", Verb::Peek, Asks::Nothing),
    ("a peek that is denied", Verb::Peek, Asks::TooMuch),
    ("a refund of 0", Verb::Refund, Asks::Nothing),
    ("a penalty of 0", Verb::Penalize, Asks::Nothing),
];

#[derive(Debug, Clone, Copy)]
enum Asks {
    Nothing,
    /// More than is free, if anything is used.
    More,
    /// More than the limit.
    TooMuch,
}

impl Asks {
    fn cost(self, own: &Quota, other: &Quota) -> u64 {
        match self {
            Self::Nothing => 0,
            // Usage under one algorithm means nothing to another.
            Self::More if own.algorithm() == other.algorithm() => other.capacity(),
            Self::More | Self::TooMuch => other.capacity() + 1,
        }
    }
}

fn alice<'r>() -> Request<'r> {
    Request::new().with("user", "alice").under("p")
}

/// `p` has the quota under test, of which `full` admits nothing, so that it denies what is asked together.
fn policies(own: Quota) -> [Policy; 2] {
    let full = Quota::per_day(0).with_algorithm(own.algorithm());
    [("p", own), ("full", full)].map(|(name, quota)| Policy::new(name, quota).unwrap().with_scope(["user"]))
}

/// The bytes of alice's keys, and when they expire.
fn stored(server: &RedisServer) -> Vec<(Reply, Reply)> {
    let mut redis = server.connect();
    ["sg1:p:alice", "sg1:usage:{p:alice}", "sg1:usage:{sg1:p:alice}"]
        .map(|key| {
            let bytes = redis.call(&["DUMP", key]).unwrap();
            (bytes, redis.call(&["PEXPIRETIME", key]).unwrap())
        })
        .to_vec()
}

/// Asks all that charges nothing under every other quota, with a hold on the key or without.
async fn ask(server: &RedisServer, own: Quota, holds: bool) {
    server.admin(&["FLUSHALL"]);
    server.clock().stand(NOW_US);
    let gate: Arc<RedisGate> = gate(policies(own), options(&server.url()).without_denial_cache());
    assert!(gate.check(&alice().with_cost(400)).await.is_allowed());
    if own.calendar_window().is_none() {
        server.clock().stand(NOW_US + 50_000_000_000);
    }
    let by_store = |one: &slidegate::Decisions<'_>| one.store_failure().is_none();
    assert!(by_store(&gate.check(&alice().with_cost(500)).await));
    let request = alice().with_cost(2);
    let ticket = if holds { gate.reserve(&request).await.into_ticket() } else { None };
    let before = stored(server);
    for other in other_quotas(own) {
        let under = |cost| alice().with_quota(other).with_cost(cost);
        for (what, verb, asks) in QUESTIONS {
            let request = [under(asks.cost(&own, &other))];
            let answer = gate.apply_all(verb, &request).await;
            assert!(by_store(&answer), "{what} under {other}: {answer:?}");
            assert!(answer.iter().all(|one| one.decision().cost() == 0), "{what} under {other}: {answer:?}");
            assert_eq!(
                stored(server),
                before,
                "{what} under {other} of a key under {own}, with a hold: {holds}"
            );
        }
        let batch = [under(1), Request::new().with("user", "alice").under("full")];
        assert!(gate.apply_all(Verb::Check, &batch).await.is_denied());
        assert_eq!(stored(server), before, "a batch with a denial under {other} of a key under {own}");
        let request = under(0);
        assert!(gate.reserve(&request).await.decisions().is_allowed());
        assert_eq!(stored(server), before, "a reservation of 0 under {other} of a key under {own}");
        let request = under(other.capacity() + 1);
        assert!(gate.reserve(&request).await.decisions().is_denied());
        assert_eq!(stored(server), before, "a denied reservation under {other} of a key under {own}");
        // An instance with another configuration.
        let second = crate::callers::gate(policies(other), options(&server.url()).without_denial_cache());
        let request = alice().with_cost(other.capacity() + 1);
        assert!(second.check(&request).await.is_denied());
        assert_eq!(stored(server), before, "a check by an instance with {other} of a key under {own}");
    }
    if let Some(ticket) = ticket {
        // A hold that ends without a charge leaves the usage as it was.
        let denied = gate.extend(&ticket, Extension::new().with_total(5_000)).await;
        assert!(denied.is_ok());
        assert_eq!(stored(server)[1..], before[1..], "a denied extension of a key under {own}");
        gate.cancel(&ticket).await.unwrap();
    }
}

/// A customer's limit must not come back earlier or later because somebody asked about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_charges_nothing_leaves_bytes_and_expiry_by_scripts() {
    let server = RedisServer::builder().with_clock().module(false).start();
    for own in own_quotas() {
        for holds in [false, true] {
            ask(&server, own, holds).await;
        }
    }
}

/// The module's keys are those of scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_charges_nothing_leaves_bytes_and_expiry_by_the_module() {
    let server = RedisServer::builder().with_clock().module(true).start();
    for own in own_quotas() {
        ask(&server, own, false).await;
        ask(&server, own, true).await;
    }
    assert!(server.commandstats("slidegate.decide").calls > 0, "the module decides");
}

/// A fleet without Redis counts alike.
#[test]
fn what_charges_nothing_leaves_keys_in_memory_as_they_were() {
    for own in own_quotas() {
        let clock = ManualClock::at(Timestamp::from_micros(NOW_US));
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let gate = Gate::with_memory(PolicySet::new(policies(own)).unwrap(), store);
        assert!(gate.check(&alice().with_cost(400)).is_allowed());
        assert!(gate.check(&alice().with_cost(500)).is_allowed());
        let inspected = || format!("{:?}", gate.inspect(&alice().with_cost(1)).unwrap());
        let before = inspected();
        for other in other_quotas(own) {
            let under = |cost| alice().with_quota(other).with_cost(cost);
            for (what, verb, asks) in QUESTIONS {
                let answer = format!("{:?}", gate.apply_all(verb, &[under(asks.cost(&own, &other))]));
                assert_eq!(inspected(), before, "{what} under {other} of a key under {own}: {answer}");
            }
            let batch = [under(1), Request::new().with("user", "alice").under("full")];
            assert!(gate.apply_all(Verb::Check, &batch).is_denied());
            assert_eq!(inspected(), before, "a batch with a denial under {other} of a key under {own}");
            let request = under(0);
            assert!(gate.reserve(&request).decisions().is_allowed());
            assert_eq!(inspected(), before, "a reservation of 0 under {other} of a key under {own}");
        }
    }
}

/// A refund by support, who has no billing day, must not end the customer's month on another day: memory and
/// Redis give it back in the window that the key is in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_under_another_window_leaves_the_key_in_its_own() {
    for with_module in [false, true] {
        let server = RedisServer::builder().with_clock().module(with_module).start();
        server.clock().stand(NOW_US);
        for own in own_quotas() {
            for other in other_quotas(own).into_iter().filter(|other| other.algorithm() == own.algorithm()) {
                // A limit that is lower than what is used cuts a bucket, in both stores.
                let other = if other.limit() < 900 { other.with_limit(900) } else { other };
                server.admin(&["FLUSHALL"]);
                let redis = gate(policies(own), options(&server.url()).without_denial_cache());
                let clock = ManualClock::at(Timestamp::from_micros(NOW_US));
                let memory = Gate::with_memory(
                    PolicySet::new(policies(own)).unwrap(),
                    MemoryStore::builder().clock(clock).build(),
                );
                assert!(redis.check(&alice().with_cost(900)).await.is_allowed());
                assert!(memory.check(&alice().with_cost(900)).is_allowed());
                let expiry = stored(&server)[0].1.clone();
                let request = alice().with_quota(other).with_cost(3);
                let (theirs, ours) = (redis.refund(&request).await, memory.refund(&request));
                let text = |decisions: &slidegate::Decisions<'_>| {
                    let one = decisions.iter().next().unwrap();
                    format!(
                        "{:?}",
                        (one.decision().cost(), one.decision().used(), one.decision().remaining())
                    )
                };
                assert_eq!(text(&theirs), text(&ours), "{other} of {own}");
                let own_request = alice().with_cost(1);
                let theirs = redis.inspect(&own_request).await.unwrap().remove(0).decision;
                let ours = memory.inspect(&own_request).unwrap().remove(0).decision;
                assert_eq!(theirs.used(), 897, "a refund under {other} of {own}");
                // A log has no window of its own.
                let window = |quota: &Quota| (quota.window(), quota.calendar_window());
                if window(&own) != window(&other) && own.algorithm() != Algorithm::SlidingLog {
                    assert_eq!(theirs.reset_after(), ours.reset_after(), "a refund under {other} of {own}");
                    assert_eq!(stored(&server)[0].1, expiry, "a refund under {other} of {own}");
                }
            }
        }
    }
}

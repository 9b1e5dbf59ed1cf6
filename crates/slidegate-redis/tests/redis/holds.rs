//! Holds in Redis: tables of holds, several instances, clusters and outages.
//! `hold_histories.rs` compares decisions with those in memory.

use std::time::Duration;

use slidegate::reserve::{Extension, HoldStatus, Ticket, Unsettled};
use slidegate::store::ServiceStore;
use slidegate::{Algorithm, Counts, DecisionSource, Gate, Policy, PolicySet, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::{RedisServer, Reply};

use crate::callers::{options, redis_gate};
use crate::cluster::{PATIENT, on_cluster};
use crate::hold_histories::START_US;

pub(crate) fn tokens(limit: u64) -> PolicySet {
    PolicySet::new([Policy::new("tokens", Quota::per_minute(limit)).unwrap().with_scope(["user"])]).unwrap()
}

/// Operators see which keys there are, and a key without holds must not cost more than before.
#[tokio::test]
async fn a_key_is_as_it_was_when_its_last_hold_is_settled() {
    let server = RedisServer::builder().start();
    let gate = redis_gate(tokens(100), options(&server.url_as_user())).unwrap();
    let request = Request::new().with("user", "alice").with_cost(10);
    let mut conn = server.connect();
    let mut kinds = async || {
        let mut kind = |name: &str| match conn.call(&["GETRANGE", name, "0", "0"]).unwrap() {
            Reply::Bytes(bytes) => bytes.first().copied(),
            other => panic!("{other:?}"),
        };
        (kind("sg1:tokens:alice"), kind("sg1:usage:{sg1:tokens:alice}"))
    };
    assert!(gate.check(&request).await.is_allowed());
    assert_eq!(kinds().await, (Some(0x14), None));
    let ticket = gate.reserve(&request).await.into_ticket().unwrap();
    assert_eq!(kinds().await, (Some(0x15), Some(0x14)), "the table takes the key's place");
    assert!(gate.check(&request).await.is_allowed(), "a plain check counts what is held");
    assert_eq!(gate.peek(&request).await.strictest().unwrap().decision().held(), 10);
    gate.settle(&ticket, 25).await.unwrap();
    assert_eq!(kinds().await, (Some(0x14), None));
    assert_eq!(gate.peek(&request).await.strictest().unwrap().decision().used(), 45);
    assert_eq!(gate.store().primary().stats().errors.values().sum::<u64>(), 0);
}

/// A gateway that was suspended settles late, and again, as it does not know whether its call arrived.
#[tokio::test]
async fn a_late_settlement_that_is_repeated_within_a_minute_charges_once_on_any_instance() {
    let server = RedisServer::builder().with_clock().start();
    server.clock().stand(START_US);
    let policies = || {
        let policy = |name| Policy::new(name, Quota::per_day(1000)).unwrap().with_scope(["user"]);
        PolicySet::new([policy("charged"), policy("dropped").with_unsettled(Unsettled::Forget)]).unwrap()
    };
    let gate = || redis_gate(policies(), options(&server.url_as_user())).unwrap();
    let (one, other) = (gate(), gate());
    let request = Request::new().with("user", "alice").with_cost(60);
    let ticket = one.reserve_for(&request, Duration::from_secs(10)).await.unwrap().into_ticket().unwrap();
    server.clock().stand(START_US + 15_000_000);
    for (gate, cost, used) in [(&one, 70, [70, 70]), (&one, 70, [70, 70]), (&other, 70, [70, 70])] {
        let settled = gate.settle(&ticket, cost).await.unwrap();
        assert_eq!(settled.status(), HoldStatus::Expired);
        assert_eq!(settled.iter().map(|key| key.decision().used()).collect::<Vec<_>>(), used);
    }
    server.clock().stand(START_US + 70_000_000);
    let settled = other.settle(&ticket, 80).await.unwrap();
    assert_eq!(
        settled.iter().map(|key| (key.decision().cost(), key.decision().used())).collect::<Vec<_>>(),
        [(10, 80), (10, 80)]
    );
}

/// A client that is denied because others hold asks again and again: Redis must not decide each time.
#[tokio::test]
async fn a_denial_of_a_key_with_holds_is_cached_until_its_instance_settles_or_a_tenth_of_a_second() {
    let server = RedisServer::start();
    let streams = || {
        let quota = Quota::in_flight(1, Duration::from_secs(600)).unwrap();
        let policies = [
            Policy::new("streams", quota).unwrap().with_scope(["user"]).with_counts(Counts::Requests),
            Policy::new("tokens", Quota::per_day(1000)).unwrap().with_scope(["user"]),
        ];
        redis_gate(PolicySet::new(policies).unwrap(), options(&server.url()).with_deadline(PATIENT)).unwrap()
    };
    let (one, other) = (streams(), streams());
    let request = Request::new().with("user", "alice").with_cost(10);
    let source = async |gate: &RedisGate| {
        let reserved = gate.reserve(&request).await;
        assert!(reserved.decisions().is_denied());
        reserved.decisions().strictest().unwrap().decision().source()
    };
    let ticket = one.reserve(&request).await.into_ticket().unwrap();
    // Nothing is cached before invalidations are received.
    for _ in 0..1000 {
        if source(&one).await == DecisionSource::CachedDenial {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let calls = |gate: &RedisGate| gate.store().primary().stats().calls;
    let (begun, before) = (tokio::time::Instant::now(), calls(&one));
    let mut asked = 0;
    while begun.elapsed() < Duration::from_millis(500) {
        source(&one).await;
        asked += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // One call for each tenth of a second that has passed by the end, and the first.
    let most = u64::try_from(begun.elapsed().as_millis() / 100).unwrap() + 1;
    assert!(calls(&one) - before <= most && asked > most, "{} of {asked}", calls(&one) - before);

    // Its own settlement frees at once. A check and a cost that is smaller ask for themselves.
    while source(&one).await != DecisionSource::CachedDenial {}
    one.settle(&ticket, 10).await.unwrap();
    let ticket = one.reserve(&request).await.into_ticket().expect("it was settled here");

    // That of another instance is found when the denial is a tenth of a second old.
    while source(&one).await != DecisionSource::CachedDenial {}
    other.settle(&ticket, 10).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _ticket = one.reserve(&request).await.into_ticket().expect("it was settled elsewhere");

    // Without the cache, each is asked for.
    let plain = options(&server.url()).with_deadline(PATIENT).without_denial_cache();
    let quota = Quota::in_flight(1, Duration::from_secs(600)).unwrap();
    let policy = Policy::new("streams", quota).unwrap().with_scope(["user"]).with_counts(Counts::Requests);
    let plain = redis_gate(PolicySet::new([policy]).unwrap(), plain).unwrap();
    let before = calls(&plain);
    for _ in 0..5 {
        assert_eq!(source(&plain).await, DecisionSource::Store);
    }
    assert_eq!(calls(&plain) - before, 5);
}

/// Otherwise the key would be unused again while its usage counts.
#[tokio::test]
async fn a_key_with_holds_is_kept_as_long_as_what_is_charged_beside_them_counts() {
    let server = RedisServer::builder().start();
    // A fixed window may end any moment.
    for algorithm in Algorithm::ALL.into_iter().filter(|one| *one != Algorithm::FixedWindow) {
        let policies = |quota: Quota| {
            let policy = Policy::new(algorithm.name(), quota.with_algorithm(algorithm)).unwrap();
            PolicySet::new([policy.with_scope(["user"])]).unwrap()
        };
        let gate = redis_gate(policies(Quota::per_minute(10)), options(&server.url_as_user())).unwrap();
        let request = |cost| Request::new().with("user", "alice").with_cost(cost);
        let ttl_ms = || {
            let name = format!("sg1:{algorithm}:alice");
            server.admin(&["PTTL", &name]).trim().parse::<u64>().unwrap()
        };
        let minute = Duration::from_secs(60);
        let ticket = gate.reserve_for(&request(1), minute).await.unwrap().into_ticket().unwrap();
        assert!(gate.reserve_for(&request(1), minute).await.unwrap().decisions().is_allowed());
        assert!((60_000..=60_000 + 126_000).contains(&ttl_ms()), "{algorithm}: {}", ttl_ms());
        // From now on what is charged counts for up to an hour or two.
        gate.configure(policies(Quota::per_hour(10))).unwrap();
        assert!(gate.check(&request(8)).await.is_allowed());
        assert!((2_800_000..=60_000 + 7_206_000).contains(&ttl_ms()), "{algorithm}: {}", ttl_ms());
        assert_eq!(gate.settle(&ticket, 1).await.unwrap().status(), HoldStatus::Changed);
        assert!((2_800_000..=60_000 + 7_206_000).contains(&ttl_ms()), "{algorithm}: {}", ttl_ms());
    }
}

/// Holds take the places of others that end, unseen by the other instances. Each must be found.
#[tokio::test]
async fn holds_are_settled_once_wherever_other_instances_have_moved_them() {
    let server = RedisServer::builder().start();
    let gate = || redis_gate(tokens(1_000_000), options(&server.url_as_user())).unwrap();
    let gates = [gate(), gate()];
    let request = Request::new().with("user", "alice").with_cost(10);
    let (mut open, mut random, mut used) = (Vec::new(), 1u64, 0);
    for step in 0..1_200 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (gate, number) = (&gates[(random >> 40) as usize % 2], (random >> 33) as usize);
        if open.is_empty() || number % 10 < if step < 600 { 8 } else { 2 } {
            open.push(gate.reserve(&request).await.into_ticket().unwrap());
            continue;
        }
        let ticket: Ticket = open.swap_remove(number % open.len());
        let (settled, cost) = if number % 3 == 0 {
            open.push(ticket.clone());
            (gate.extend(&ticket, Extension::new()).await.unwrap(), 0)
        } else {
            (gate.settle(&ticket, 3).await.unwrap(), 3)
        };
        used += cost;
        assert_eq!(settled.status(), HoldStatus::Changed, "{step}");
        let counted =
            settled.iter().map(|one| (one.decision().used(), one.decision().held())).collect::<Vec<_>>();
        assert_eq!(counted, [(used, 10 * open.len() as u64)], "{step}");
        if cost > 0 {
            let again = gates[step % 2].settle(&ticket, 9).await.unwrap().status();
            assert_eq!(again, HoldStatus::AlreadySettled, "{step}");
        }
    }
}

/// A check beside holds must not cost two calls each time; and without them it costs what it did.
#[tokio::test]
async fn an_instance_knows_after_one_call_that_a_key_has_holds() {
    let server = RedisServer::builder().start();
    let gate = || redis_gate(tokens(1000), options(&server.url_as_user())).unwrap();
    let (one, other) = (gate(), gate());
    let request = Request::new().with("user", "alice").with_cost(10);
    let calls = async |gate: &RedisGate| {
        let before = gate.store().primary().stats().calls;
        assert!(gate.check(&request).await.is_allowed());
        gate.store().primary().stats().calls - before
    };
    let ticket = one.reserve(&request).await.into_ticket().unwrap();
    assert_eq!([calls(&one).await, calls(&one).await], [1, 1]);
    assert_eq!([calls(&other).await, calls(&other).await], [2, 1]);
    one.settle(&ticket, 1).await.unwrap();
    assert_eq!([calls(&one).await, calls(&other).await], [1, 1]);
}

/// A client repeats a check whose response was lost, and reservations begin and end in between.
#[tokio::test]
async fn a_repeated_check_is_charged_once_whether_or_not_its_key_has_holds() {
    let server = RedisServer::builder().start();
    let gate = || redis_gate(tokens(1000), options(&server.url_as_user())).unwrap();
    let (one, other) = (gate(), gate());
    let request = Request::new().with("user", "alice").with_cost(10);
    let check = async |gate: &RedisGate, id: &str| {
        let decided = gate.check_once(&request, id).await;
        let decision = decided.strictest().unwrap();
        assert_eq!(decision.decision().source(), DecisionSource::Store, "{:?}", gate.store().stats());
        (decision.decision().used(), decision.decision().held())
    };
    assert_eq!(check(&one, "before").await, (10, 0));
    let ticket = one.reserve(&request).await.into_ticket().unwrap();
    assert_eq!([check(&one, "before").await, check(&other, "before").await], [(10, 0); 2]);
    assert_eq!(check(&one, "beside").await, (20, 10));
    one.settle(&ticket, 5).await.unwrap();
    assert_eq!([check(&one, "beside").await, check(&other, "beside").await], [(20, 10); 2]);
    assert_eq!(one.peek(&request).await.strictest().unwrap().decision().used(), 25);
}

/// A limit over one key in each of several slots: a denial in one leaves no hold in the others.
#[test]
fn in_a_cluster_a_denied_reservation_holds_nothing_in_any_slot() {
    on_cluster(async |cluster| {
        let policies = || {
            let policy = |name: &str, limit| Policy::new(name, Quota::per_minute(limit)).unwrap();
            PolicySet::new([
                policy("wide", 100).with_scope(["user"]),
                policy("narrow", 10).with_scope(["team"]),
            ])
            .unwrap()
        };
        let gate = redis_gate(policies(), options(&cluster.url()).with_deadline(PATIENT)).unwrap();
        let request = |cost| Request::new().with("user", "alice").with("team", "red").with_cost(cost);
        let held = async || {
            let request = request(1);
            let found = gate.peek(&request).await;
            found.iter().map(|one| (one.decision().used(), one.decision().held())).collect::<Vec<_>>()
        };
        let (fits, exceeds) = (request(8), request(30));
        let ticket = gate.reserve(&fits).await.into_ticket().unwrap();
        assert_eq!(held().await, [(0, 8), (0, 8)]);
        for _ in 0..20 {
            assert!(gate.reserve(&exceeds).await.decisions().is_denied());
        }
        // What was held before the other slot denied is cancelled in the background.
        let mut found = held().await;
        for _ in 0..500 {
            if found == [(0, 8), (0, 8)] {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            found = held().await;
        }
        assert_eq!(found, [(0, 8), (0, 8)]);
        gate.settle(&ticket, 5).await.unwrap();
        assert_eq!(held().await, [(5, 0), (5, 0)]);
    });
}

/// An extension that one slot denies holds no more in the others, so a stream that stops has taken
/// no room from anyone.
#[test]
fn in_a_cluster_a_denied_extension_holds_no_more_in_any_slot() {
    on_cluster(async |cluster| {
        let policies = || {
            let policy = |name: &str, limit| Policy::new(name, Quota::per_minute(limit)).unwrap();
            let lows = ["a", "b", "c", "d"].map(|name| policy(name, 100).with_scope(["user"]));
            PolicySet::new(lows.into_iter().chain([policy("narrow", 10).with_scope(["team"])])).unwrap()
        };
        let gate = redis_gate(policies(), options(&cluster.url()).with_deadline(PATIENT)).unwrap();
        let request = Request::new().with("user", "extender").with("team", "extenders").with_cost(8);
        let ticket = gate.reserve(&request).await.into_ticket().unwrap();
        let part = gate.settle_so_far(&ticket, 3).await.unwrap();
        let denied = gate.extend(part.ticket(), Extension::new().with_total(30)).await.unwrap();
        assert_eq!(denied.status(), HoldStatus::Denied);
        assert!(
            denied.iter().all(|one| one.status() == HoldStatus::Denied && one.decision().held() == 5),
            "{denied:?}"
        );
        let counted: Vec<_> = gate
            .peek(&request)
            .await
            .iter()
            .map(|one| (one.decision().used(), one.decision().held()))
            .collect();
        assert_eq!(counted, [(3, 5); 5]);
        // The older ticket, and more that fits everywhere.
        assert_eq!(
            gate.extend(&ticket, Extension::new().with_total(9)).await.unwrap().status(),
            HoldStatus::Changed
        );
        assert_eq!(gate.settle(&ticket, 9).await.unwrap().status(), HoldStatus::Changed);
        let counted: Vec<_> = gate
            .peek(&request)
            .await
            .iter()
            .map(|one| (one.decision().used(), one.decision().held()))
            .collect();
        assert_eq!(counted, [(9, 0); 5]);
    });
}

/// A key with many long requests stays bounded, and says so; and what is charged at once is not
/// charged for a request that is denied by it.
#[tokio::test]
async fn a_key_with_1024_holds_takes_no_more_until_one_ends() {
    let server = RedisServer::builder().start();
    let policies = || {
        let scoped = |name: &str| Policy::new(name, Quota::per_day(1_000_000)).unwrap().with_scope(["user"]);
        PolicySet::new([scoped("requests").with_counts(Counts::Requests), scoped("tokens")]).unwrap()
    };
    let gate = redis_gate(policies(), options(&server.url_as_user()).with_deadline(PATIENT)).unwrap();
    let memory = Gate::new(policies());
    let request = Request::new().with("user", "alice").with_cost(3);
    let mut ticket = None;
    for _ in 0..1024 {
        ticket = gate.reserve(&request).await.into_ticket();
        assert!(memory.reserve(&request).decisions().is_allowed());
    }
    for reserved in [gate.reserve(&request).await, memory.reserve(&request)] {
        let reasons: Vec<_> = reserved
            .decisions()
            .iter()
            .map(|one| one.decision().reason().map(slidegate::Reason::name))
            .collect();
        assert_eq!(reasons, [None, Some("too_many_holds")]);
        assert_eq!(
            reserved.decisions().iter().next().unwrap().decision().used(),
            1024,
            "a denial charges nothing"
        );
    }
    assert!(gate.check(&request).await.is_allowed(), "what is charged at once needs no hold");
    gate.settle(&ticket.unwrap(), 1).await.unwrap();
    assert!(gate.reserve(&request).await.decisions().is_allowed());
}

/// A client that cancels again and again must not make Redis decide what it has denied to others.
#[tokio::test]
async fn a_cancellation_ends_cached_denials_of_its_own_keys_only() {
    let server = RedisServer::start();
    let policies = [
        Policy::new("requests", Quota::per_day(1))
            .unwrap()
            .with_scope(["user"])
            .with_counts(Counts::Requests),
        Policy::new("tokens", Quota::per_day(1000)).unwrap().with_scope(["user"]),
    ];
    let set = PolicySet::new(policies).unwrap();
    let gate = redis_gate(set, options(&server.url()).with_deadline(PATIENT)).unwrap();
    let asked = async |user: &str| {
        let request = Request::new().with("user", user).under("requests");
        gate.check(&request)
            .await
            .strictest()
            .map(|one| (one.decision().is_allowed(), one.decision().source()))
            .unwrap()
    };
    let cached = (false, DecisionSource::CachedDenial);
    assert_eq!(asked("victim").await, (true, DecisionSource::Store));
    while asked("victim").await != cached {
        // Nothing is cached before the store is subscribed.
        tokio::task::yield_now().await;
    }
    for _ in 0..3 {
        let request = Request::new().with("user", "mallory").with_cost(10);
        let ticket = gate.reserve(&request).await.into_ticket().unwrap();
        assert_eq!(asked("mallory").await, (false, DecisionSource::Store));
        assert_eq!(asked("mallory").await, cached);
        gate.cancel(&ticket).await.unwrap();
        assert_eq!(asked("victim").await, cached);
        // What was charged at once is given back, and found at once.
        let request = Request::new().with("user", "mallory").with_cost(10);
        let ticket = gate.reserve(&request).await.into_ticket().unwrap();
        gate.cancel(&ticket).await.unwrap();
    }
}

/// Scripts are gone after a restart, and connections break at any time.
#[tokio::test]
async fn a_settlement_survives_lost_scripts_and_a_lost_connection() {
    let server = RedisServer::builder().start();
    let gate = redis_gate(tokens(100), options(&server.url_as_user()).with_deadline(PATIENT)).unwrap();
    let request = Request::new().with("user", "alice").with_cost(10);
    for lost in [&["SCRIPT", "FLUSH"][..], &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]] {
        let ticket = gate.reserve(&request).await.into_ticket().unwrap();
        server.admin(lost);
        assert_eq!(gate.settle(&ticket, 4).await.unwrap().status(), HoldStatus::Changed, "{lost:?}");
    }
    assert_eq!(gate.peek(&request).await.strictest().unwrap().decision().used(), 8);
}

/// While Redis is away, a fallback holds and settles in the process that decided, and a settlement of
/// what Redis holds is an error that can be repeated.
#[tokio::test]
async fn while_the_store_is_away_reservations_are_held_by_the_fallback() {
    let server = RedisServer::builder().start();
    let gate = redis_gate(tokens(100), options(&server.url_as_user())).unwrap();
    let request = Request::new().with("user", "alice").with_cost(10);
    let before = gate.reserve(&request).await.into_ticket().unwrap();
    server.kill();
    let reserved = gate.reserve(&request).await;
    assert_eq!(reserved.decisions().strictest().unwrap().decision().source(), DecisionSource::Local);
    let local = reserved.into_ticket().unwrap();
    assert_eq!(gate.settle(&local, 4).await.unwrap().status(), HoldStatus::Changed);
    assert!(gate.settle(&before, 4).await.is_err());
    assert_eq!(gate.peek(&request).await.strictest().unwrap().decision().used(), 4);
}

/// An operator forgets a customer, or a whole policy, with all that is held.
#[tokio::test]
async fn a_reset_forgets_usage_and_holds() {
    let server = RedisServer::builder().start();
    let gate = redis_gate(tokens(100), options(&server.url())).unwrap();
    let request = Request::new().with("user", "alice").with_cost(10);
    let names = || server.admin(&["KEYS", "sg1:*alice*"]);
    for by_policy in [false, true] {
        assert!(gate.check(&request).await.is_allowed());
        let ticket = gate.reserve(&request).await.into_ticket().unwrap();
        assert_eq!(names().lines().count(), 2, "{}", names());
        if by_policy {
            assert_eq!(gate.reset_policy("tokens").await.unwrap(), 1);
        } else {
            assert!(gate.reset(&request).await.unwrap());
        }
        assert_eq!(names().trim(), "");
        assert_eq!(gate.settle(&ticket, 7).await.unwrap().status(), HoldStatus::AlreadySettled);
        assert_eq!(gate.peek(&request).await.strictest().unwrap().decision().used(), 0);
    }
}

//! Tickets of holds in Redis: any instance knows them, and nobody else can make or change one.

use std::time::Duration;

use slidegate::reserve::{HoldOptions, HoldStatus, Ticket};
use slidegate::{Counts, Gate, Policy, PolicySet, Quota, Request};
use slidegate_testkit::redis::RedisServer;

use crate::callers::{options, redis_gate};
use crate::hold_histories::{compare, decisions};
use crate::holds::tokens;

/// Any instance settles, from the text of the ticket alone.
#[tokio::test]
async fn another_instance_settles_a_ticket_and_a_repeated_call_charges_once() {
    let server = RedisServer::builder().start();
    let gate = || redis_gate(tokens(100), options(&server.url_as_user())).unwrap();
    let (one, other) = (gate(), gate());
    let request = Request::new().with("user", "alice").with_cost(60);
    let text = one.reserve(&request).await.into_ticket().unwrap().to_string();
    let ticket: Ticket = text.parse().unwrap();
    assert_eq!(other.settle(&ticket, 20).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(one.settle(&ticket, 90).await.unwrap().status(), HoldStatus::AlreadySettled);
    assert_eq!(one.peek(&request).await.strictest().unwrap().decision().used(), 20);
}

/// A client whose connection broke reserves again, and must not hold twice, whichever instance it
/// reaches; and its ticket works.
#[tokio::test]
async fn a_repeated_reservation_holds_once_and_has_one_ticket() {
    let server = RedisServer::builder().start();
    let policies = || {
        let policy = |name, quota| Policy::new(name, quota).unwrap().with_scope(["user"]);
        let requests = policy("requests", Quota::per_minute(60)).with_counts(Counts::Requests);
        let permits = policy("permits", Quota::in_flight(5, Duration::from_secs(30)).unwrap());
        let permits = permits.with_counts(Counts::Requests);
        PolicySet::new([requests, policy("tokens", Quota::per_minute(1000)), permits]).unwrap()
    };
    let shared = || redis_gate(policies(), options(&server.url_as_user())).unwrap();
    let (one, other, memory) = (shared(), shared(), Gate::new(policies()));
    let request = Request::new().with("user", "alice").with_cost(100);
    let ttl = Some(Duration::from_secs(300));
    let once = |id| HoldOptions { ttl, id: Some(id) };
    let theirs = [
        one.reserve_all(std::slice::from_ref(&request), once("order-7")).await.unwrap(),
        one.reserve_all(std::slice::from_ref(&request), once("order-7")).await.unwrap(),
        other.reserve_all(std::slice::from_ref(&request), once("order-7")).await.unwrap(),
    ];
    let ours = [(); 2].map(|()| memory.reserve_all(std::slice::from_ref(&request), once("order-7")).unwrap());
    for same in [&theirs[..], &ours] {
        for one in same {
            compare(&decisions(one), &decisions(&same[0]), "repeated");
            assert_eq!(one.ticket(), same[0].ticket());
        }
    }
    // Another cost, and a check, are other requests.
    let more = Request::new().with("user", "alice").with_cost(200);
    let [again, checked] = [
        one.reserve_all(std::slice::from_ref(&more), once("order-7")).await.unwrap().into_ticket().unwrap(),
        one.reserve_all(std::slice::from_ref(&request), once("order-8"))
            .await
            .unwrap()
            .into_ticket()
            .unwrap(),
    ];
    assert!(one.check_once(&request, "order-7").await.is_allowed());
    let state = |decided: slidegate::Decisions<'_>| {
        decided.iter().map(|one| (one.decision().used(), one.decision().held())).collect::<Vec<_>>()
    };
    let expected = [(4, 0), (100, 400), (0, 3)];
    assert_eq!(state(one.peek(&request).await), expected);
    assert!(
        memory.reserve_all(std::slice::from_ref(&more), once("order-7")).unwrap().decisions().is_allowed()
    );
    assert!(
        memory.reserve_all(std::slice::from_ref(&request), once("order-8")).unwrap().decisions().is_allowed()
    );
    assert!(memory.check_once(&request, "order-7").is_allowed());
    assert_eq!(state(memory.peek(&request)), expected);
    // One hold each, which one ticket settles.
    let ticket = theirs[2].ticket().unwrap();
    for ticket in [ticket, &again, &checked] {
        assert_eq!(other.settle(ticket, 10).await.unwrap().status(), HoldStatus::Changed);
        assert_eq!(one.settle(ticket, 10).await.unwrap().status(), HoldStatus::AlreadySettled);
    }
    assert_eq!(state(one.peek(&request).await), [(4, 0), (130, 0), (0, 0)]);
}

/// Otherwise a client that can settle could charge any key, or give back what others used.
#[tokio::test]
async fn a_ticket_that_another_store_made_is_unknown() {
    let server = RedisServer::builder().start();
    let options = || options(&server.url_as_user());
    let one = redis_gate(tokens(100), options()).unwrap();
    let memory = Gate::new(tokens(100));
    let request = Request::new().with("user", "alice").with_cost(60);
    let ticket = one.reserve(&request).await.into_ticket().unwrap();
    let foreign = memory.reserve(&request).into_ticket().unwrap();
    let secret = redis_gate(tokens(100), options().with_key_secret("another")).unwrap();
    for (gate, ticket) in [(&secret, &ticket), (&one, &foreign)] {
        let settled = gate.settle(ticket, 20).await.unwrap();
        assert_eq!((settled.status(), settled.iter().len()), (HoldStatus::Unknown, 0));
    }
    assert_eq!(memory.settle(&ticket, 20).unwrap().status(), HoldStatus::Unknown);
    assert_eq!(one.peek(&request).await.strictest().unwrap().decision().held(), 60);
}

/// Instances are configured alike and share nothing but the store.
#[tokio::test]
async fn a_secret_that_is_not_configured_is_drawn_and_shared_and_outlives_an_emptied_store() {
    let server = RedisServer::builder().start();
    let gate = || redis_gate(tokens(1000), options(&server.url_as_user())).unwrap();
    let (one, other) = (gate(), gate());
    let request = Request::new().with("user", "alice").with_cost(60);
    let lost = one.reserve(&request).await.into_ticket().unwrap();
    let settled = one.reserve(&request).await.into_ticket().unwrap();
    assert_eq!(other.settle(&settled, 10).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(one.settle(&settled, 10).await.unwrap().status(), HoldStatus::AlreadySettled);
    server.admin(&["FLUSHALL"]);
    // Lost, and not settled.
    assert_eq!(other.settle(&lost, 10).await.unwrap().status(), HoldStatus::Unknown);
    assert_eq!(one.settle(&lost, 10).await.unwrap().status(), HoldStatus::Unknown);
    let again = one.reserve(&request).await.into_ticket().unwrap();
    let third = gate();
    assert_eq!(third.settle(&again, 10).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(third.peek(&request).await.strictest().unwrap().decision().used(), 10);
}

/// Whoever holds a ticket can change its text: it must grant nothing that was not given.
#[tokio::test]
async fn a_ticket_with_any_changed_byte_is_unknown_or_refused_and_changes_nothing() {
    let server = RedisServer::builder().start();
    let policies = PolicySet::new([
        Policy::new("requests", Quota::per_minute(10))
            .unwrap()
            .with_scope(["user"])
            .with_counts(Counts::Requests),
        Policy::new("tokens", Quota::per_minute(1000)).unwrap().with_scope(["user"]),
    ]);
    let gate = redis_gate(policies.unwrap(), options(&server.url_as_user())).unwrap();
    let request = Request::new().with("user", "alice").with_cost(100);
    let text = gate.reserve(&request).await.into_ticket().unwrap().to_string();
    let usage = async || {
        let peeked = gate.peek(&request).await;
        peeked.iter().map(|one| (one.decision().used(), one.decision().held())).collect::<Vec<_>>()
    };
    let before = usage().await;
    for at in 0..text.len() {
        let mut forged = text.clone().into_bytes();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        let Ok(forged) = String::from_utf8(forged).unwrap().parse::<Ticket>() else { continue };
        assert_eq!(gate.cancel(&forged).await.unwrap().status(), HoldStatus::Unknown, "byte {at}");
        assert_eq!(gate.settle(&forged, 7).await.unwrap().status(), HoldStatus::Unknown, "byte {at}");
    }
    assert_eq!(usage().await, before);
    // Cancelled after its settlement, it gives nothing back.
    let ticket: Ticket = text.parse().unwrap();
    assert_eq!(gate.settle(&ticket, 7).await.unwrap().status(), HoldStatus::Changed);
    assert_eq!(gate.cancel(&ticket).await.unwrap().status(), HoldStatus::AlreadySettled);
    assert_eq!(usage().await, [(1, 0), (7, 0)]);
}

//! Holds at the edges of times, bounds and costs.

use slidegate::{
    Algorithm, Counts,
    reserve::{Extension, HoldStatus},
};

use super::*;

fn inspected_holds(bench: &Bench) -> usize {
    bench.gate.inspect(&Request::new()).unwrap()[0].holds.len()
}

/// What costs nothing is held nowhere, so it always fits.
#[test]
fn a_reservation_of_nothing_takes_no_place() {
    let bench = Bench::under(Quota::per_minute(10_000));
    let _ = bench.reserve(0, secs(10));
    assert_eq!(inspected_holds(&bench), 0);
    for _ in 0..1024 {
        let _ = bench.reserve(1, secs(10));
    }
    let _ = bench.reserve(0, secs(10));
    assert_eq!(inspected_holds(&bench), 1024, "as many as a key may have");

    let clock = ManualClock::at(START);
    let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let store = MemoryStore::builder().clock(clock).max_keys(4).build();
    let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
    let is_reserved = |user: &str, cost: u64| {
        let request = Request::new().with("user", user).with_cost(cost);
        gate.reserve(&request).decisions().is_allowed()
    };
    assert!(is_reserved("a", 1) && is_reserved("b", 1));
    assert_eq!(
        (is_reserved("c", 1), is_reserved("c", 0)),
        (false, true),
        "as many as the store has room for"
    );
}

/// Where the store has no room for what has ended, nothing else may be dropped for it.
#[test]
fn a_settlement_in_parts_keeps_its_hold_in_a_full_store() {
    let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
    let store = MemoryStore::builder().clock(ManualClock::at(START)).max_keys(4).build();
    let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
    let requests = ["a", "b"].map(|user| Request::new().with("user", user).with_cost(5));
    let tickets = requests.each_ref().map(|request| gate.reserve(request).into_ticket().unwrap());
    assert!(!gate.reserve(&Request::new().with("user", "c")).decisions().is_allowed(), "it is full");
    gate.settle_so_far(&tickets[0], 2).unwrap();
    let peeked = gate.peek(&requests[0]);
    let of_key = peeked.iter().next().unwrap();
    assert_eq!((of_key.decision().used(), of_key.decision().held()), (2, 3));
    assert_eq!(gate.settle(&tickets[0], 4).unwrap().status(), HoldStatus::Changed);
    assert_eq!(gate.peek(&requests[0]).iter().next().unwrap().decision().used(), 4);
}

/// An extension asks for what it adds, on every key of the reservation, and is for all of them or none.
#[test]
fn an_extension_under_two_policies_asks_for_the_difference() {
    let policy = |name, limit| Policy::new(name, Quota::per_minute(limit)).unwrap();
    let bench = Bench::new([policy("tokens", 10), policy("all", 1000)]);
    let ticket = bench.reserve(6, secs(10));
    let extend = |ticket: &Ticket, cost| {
        let extended = bench.gate.extend(ticket, Extension::new().with_total(cost)).unwrap();
        let statuses: Vec<_> = extended.iter().map(|key| key.status()).collect();
        (statuses, extended.into_ticket())
    };
    let (statuses, ticket) = extend(&ticket, 9);
    assert_eq!((statuses, bench.usage()), (vec![HoldStatus::Changed; 2], (0, 9, 1)));
    assert_eq!(extend(&ticket, 11).0, [HoldStatus::Denied; 2]);
    // Once it has ended, nothing is asked for.
    bench.at(secs(20));
    let settled = bench.gate.settle(&ticket, 10).unwrap();
    assert_eq!(settled.status(), HoldStatus::Expired);
    assert_eq!(extend(settled.ticket(), 100).0, [HoldStatus::Expired; 2]);
}

/// `RateLimit-Reset` is read from the waits of a key, also while its only cost is held.
#[test]
fn waits_of_a_key_with_holds_reach_to_the_end_of_their_charges() {
    let bench = Bench::under(Quota::per_minute(10));
    let waits = |bench: &Bench| {
        let request = Request::new();
        let peeked = bench.gate.peek(&request);
        let one = peeked.iter().next().unwrap();
        (one.decision().reset_after(), one.decision().frees_after())
    };
    bench.at(secs(5));
    let ticket = bench.reserve(4, secs(30));
    assert_eq!(waits(&bench), (secs(90), None), "it is charged when its time is over");
    bench.at(secs(10));
    assert!(bench.gate.check(&Request::new().with_cost(3)).is_allowed());
    bench.at(secs(15));
    assert_eq!(waits(&bench), (secs(80), Some(secs(55))), "what is used is free first");
    bench.at(secs(35) - micros(1));
    let cancelled = bench.gate.cancel(&ticket).unwrap();
    let after = *only(&cancelled).decision();
    assert_eq!(
        (after.reset_after(), after.frees_after()),
        (secs(35) + micros(1), Some(secs(35) + micros(1)))
    );
}

/// A cancellation gives back what was charged at once, and never what others charged since.
#[test]
fn a_cancellation_gives_back_while_the_charge_counts() {
    for algorithm in Algorithm::ALL {
        let requests = Quota::per_minute(10).with_algorithm(algorithm);
        let requests = Policy::new("requests", requests).unwrap().with_counts(Counts::Requests);
        let tokens = Policy::new("tokens", Quota::per_hour(1000)).unwrap();
        let new = || Bench::new([requests.clone(), tokens.clone()]);
        let bench = new();
        bench.gate.cancel(&bench.reserve(5, secs(300))).unwrap();
        let request = Request::new();
        let first = bench.gate.peek(&request);
        let first = first.iter().next().unwrap();
        // That it has ended is remembered, and uses nothing.
        assert_eq!(
            (first.decision().used(), first.decision().held(), first.decision().reset_after()),
            (0, 0, Duration::ZERO),
            "{algorithm}"
        );
        // A window later only the other request counts.
        let bench = new();
        let ticket = bench.reserve(5, secs(300));
        bench.at(secs(60) - micros(1));
        assert!(bench.gate.check(&Request::new()).is_allowed());
        bench.at(secs(60));
        let before = bench.usage().0;
        bench.gate.cancel(&ticket).unwrap();
        assert_eq!(bench.usage().0, before, "{algorithm}");
    }
}

/// A permit is not a cost that was used: there is nothing to refund.
#[test]
fn nothing_is_refunded_under_a_limit_on_what_is_in_flight() {
    let bench = Bench::under(Quota::in_flight(3, secs(10)).unwrap());
    let _ = bench.reserve(1, secs(10));
    let request = Request::new();
    assert_eq!(bench.gate.refund(&request).iter().next().unwrap().decision().cost(), 0);
    assert_eq!(bench.usage(), (0, 1, 2));
}

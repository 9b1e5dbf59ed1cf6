//! Limits on what is in flight.

use slidegate::reserve::{Extension, HoldStatus};

use super::*;

fn in_flight(limit: u64, lease: Duration) -> Bench {
    Bench::under(Quota::in_flight(limit, lease).unwrap())
}

fn take(bench: &Bench) -> Result<Ticket, Option<Duration>> {
    let request = Request::new();
    let reserved = bench.gate.reserve(&request);
    let wait = reserved.decisions().strictest().unwrap().decision().retry_after();
    reserved.into_ticket().ok_or(wait)
}

/// Holders crash. Their permits come back at the end of their lease, to the microsecond.
#[test]
fn a_permit_of_a_dead_holder_is_back_when_its_lease_ends() {
    let bench = in_flight(3, secs(10));
    let dead: Vec<Ticket> = (0..3)
        .map(|second| {
            bench.at(secs(second));
            take(&bench).unwrap()
        })
        .collect();
    bench.at(secs(10) - micros(1));
    assert_eq!(take(&bench), Err(Some(micros(1))));
    bench.at(secs(10));
    let _fourth = take(&bench).unwrap();
    assert_eq!(bench.usage(), (0, 3, 0));
    bench.at(secs(10) + Duration::from_millis(500));
    assert_eq!(bench.settle(&dead[0], 1).status(), HoldStatus::Expired);
    assert_eq!(bench.usage(), (0, 3, 0), "another's permit does not go");
}

/// A release that is sent twice must not free what another one holds.
#[test]
fn a_permit_is_given_back_once() {
    let bench = in_flight(1, secs(10));
    let first = take(&bench).unwrap();
    bench.settle(&first, 1);
    let _second = take(&bench).unwrap();
    assert_eq!(bench.settle(&first, 1).status(), HoldStatus::AlreadySettled);
    assert!(take(&bench).is_err());
}

/// A request that runs long keeps its permit as long as it says so.
#[test]
fn a_heartbeat_in_time_keeps_the_permit() {
    let bench = in_flight(1, secs(10));
    let mut ticket = take(&bench).unwrap();
    assert_eq!(ticket.heartbeat(), micros(3_333_333));
    for second in [3, 12, 21] {
        bench.at(secs(second));
        let extended = bench.gate.extend(&ticket, Extension::new()).unwrap();
        assert_eq!(extended.status(), HoldStatus::Changed);
        ticket = extended.into_ticket();
        assert!(take(&bench).is_err());
    }
    bench.at(secs(31));
    assert_eq!(bench.gate.extend(&ticket, Extension::new()).unwrap().status(), HoldStatus::Expired);
    assert!(take(&bench).is_ok());
}

/// A stream that settles what it used so far is still running.
#[test]
fn a_settlement_in_parts_keeps_the_permit_to_the_last_one() {
    let bench = in_flight(1, secs(10));
    let ticket = take(&bench).unwrap();
    bench.at(secs(9));
    let part = bench.gate.settle_so_far(&ticket, 1).unwrap();
    assert_eq!(part.status(), HoldStatus::Changed);
    bench.at(secs(18));
    assert!(take(&bench).is_err(), "the part was a heartbeat as well");
    bench.settle(part.ticket(), 1);
    assert!(take(&bench).is_ok());
}

/// nginx and Envoy cannot give back, so they only ask.
#[test]
fn a_check_asks_for_a_permit_and_takes_none() {
    let bench = in_flight(1, secs(10));
    let request = Request::new();
    for _ in 0..3 {
        assert!(bench.gate.check(&request).is_allowed());
    }
    let _permit = take(&bench).unwrap();
    let denied = bench.gate.check(&request);
    assert_eq!(denied.strictest().unwrap().decision().retry_after(), Some(secs(10)));
    assert!(bench.gate.penalize(&request).is_allowed() && bench.gate.refund(&request).is_allowed());
    assert_eq!(bench.usage(), (0, 1, 0));
}

/// After the limit is lowered, holders keep their permits.
#[test]
fn a_lowered_limit_waits_for_those_who_run() {
    let bench = in_flight(3, secs(60));
    let running: Vec<Ticket> = (0..3).map(|_| take(&bench).unwrap()).collect();
    let lowered = Policy::new("tokens", Quota::in_flight(1, secs(60)).unwrap()).unwrap();
    bench.gate.configure(PolicySet::new([lowered]).unwrap()).unwrap();
    assert_eq!(bench.usage(), (0, 3, 0));
    for (ended, ticket) in running.iter().enumerate() {
        assert!(take(&bench).is_err(), "{ended} ended");
        bench.settle(ticket, 1);
    }
    assert!(take(&bench).is_ok());
}

/// Large requests weigh more than one permit.
#[test]
fn a_cost_weighs_as_many_permits() {
    let bench = in_flight(10, secs(60));
    let ticket = bench.reserve(7, secs(60));
    assert!(bench.try_reserve(4, secs(60)).is_err());
    let _small = bench.reserve(3, secs(60));
    bench.settle(&ticket, 7);
    assert_eq!(bench.usage(), (0, 3, 7));
}

/// Threads that take and give back at random never run more than the limit at once.
#[test]
fn threads_never_run_more_than_the_limit_at_once() {
    use std::sync::atomic::{AtomicU64, Ordering};

    let policy = Policy::new("jobs", Quota::in_flight(3, secs(60)).unwrap()).unwrap();
    let gate = Gate::new(PolicySet::new([policy]).unwrap());
    let (running, most) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let request = Request::new();
                    let Some(ticket) = gate.reserve(&request).into_ticket() else { continue };
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    std::thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    gate.settle(&ticket, 1).unwrap();
                }
            });
        }
    });
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)));
    let request = Request::new();
    assert_eq!(gate.peek(&request).strictest().unwrap().decision().held(), 0);
}

/// Workers whose lease was too short all report late: that must not keep others from starting.
#[test]
fn permits_that_are_given_back_late_take_no_room() {
    let bench = in_flight(1000, secs(10));
    let late: Vec<Ticket> = (0..1000).map(|_| take(&bench).unwrap()).collect();
    bench.at(secs(11));
    for ticket in &late {
        let settled = bench.settle(ticket, 1);
        assert_eq!((settled.status(), only(&settled).decision().cost()), (HoldStatus::Expired, 0));
    }
    let taken = (0..1001).map(|_| take(&bench).is_ok()).filter(|is_taken| *is_taken).count();
    assert_eq!(taken, 1000);
}

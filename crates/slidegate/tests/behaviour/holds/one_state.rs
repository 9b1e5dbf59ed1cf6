//! A reservation has one state for all of its keys, and only its own store knows its ticket.

use proptest::prelude::*;
use slidegate::{
    Counts,
    reserve::{Extension, HoldStatus},
};

use super::*;

/// What happens next. A ticket is named by how many were made after it.
#[derive(Debug, Clone)]
enum Step {
    Advance(u64),
    /// Cost, time, and whether only the policy that counts requests is named.
    Reserve(u64, u64, bool),
    Change(usize, Kind),
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Settle(u64),
    Part(u64),
    Extend,
    Cancel,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        3 => (0u64..20).prop_map(Kind::Settle),
        2 => (0u64..20).prop_map(Kind::Part),
        1 => Just(Kind::Extend),
        3 => Just(Kind::Cancel),
    ];
    prop_oneof![
        2 => prop_oneof![0u64..1_000, 0u64..40_000].prop_map(Step::Advance),
        4 => (1u64..20, 1_000u64..40_000, any::<bool>()).prop_map(|(cost, ttl, one)| Step::Reserve(cost, ttl, one)),
        6 => (0usize..4, kind).prop_map(|(at, kind)| Step::Change(at, kind)),
    ]
}

/// What the model knows of a reservation: nothing but when it was made, and whether it is open.
struct Made {
    ticket: Ticket,
    at: u64,
    /// When it ends, or would have ended. Without holds it has no end.
    until: Option<u64>,
    ttl: u64,
    is_open: bool,
}

const WINDOW_US: u64 = 60_000;

fn usage(bench: &Bench) -> Vec<(u64, u64)> {
    let request = Request::new();
    bench.gate.peek(&request).iter().map(|one| (one.decision().used(), one.decision().held())).collect()
}

/// Carries out a history, and compares the requests that count with a list of them.
fn history(steps: &[Step]) {
    let window = micros(WINDOW_US);
    let bench = Bench::new([
        Policy::new("requests", Quota::new(1000, window).unwrap()).unwrap().with_counts(Counts::Requests),
        Policy::new("tokens", Quota::new(1000, window).unwrap()).unwrap(),
    ]);
    let (mut now, mut made) = (0, Vec::<Made>::new());
    // When each request was charged that was not given back, the oldest first.
    let mut requests = Vec::new();
    for step in steps {
        match *step {
            Step::Advance(us) => {
                now += us;
                bench.at(micros(now));
            }
            Step::Reserve(cost, ttl, is_alone) => {
                let mut request = Request::new().with_cost(cost);
                if is_alone {
                    request = request.under("requests");
                }
                let reserved = bench.gate.reserve_for(&request, micros(ttl)).unwrap();
                if let Some(ticket) = reserved.into_ticket() {
                    let until = (!is_alone).then_some(now + ttl);
                    made.push(Made { ticket, at: now, until, ttl, is_open: true });
                    requests.push(now);
                }
            }
            Step::Change(at, kind) => {
                let Some(at) = made.len().checked_sub(at + 1) else { continue };
                let one = &mut made[at];
                let is_open = one.is_open && one.until.is_none_or(|until| now < until);
                let before = usage(&bench);
                let settlement = match kind {
                    Kind::Settle(cost) => bench.gate.settle(&one.ticket, cost),
                    Kind::Part(cost) => bench.gate.settle_so_far(&one.ticket, cost),
                    Kind::Extend => bench.gate.extend(&one.ticket, Extension::new()),
                    Kind::Cancel => bench.gate.cancel(&one.ticket),
                };
                let status = settlement.unwrap().status();
                let has_holds = one.until.is_some();
                if has_holds {
                    assert_eq!(status == HoldStatus::Changed, is_open, "{kind:?}: {status:?}");
                }
                // After the time that its ticket says a settlement is late: it may charge, and gives nothing
                // back. This ticket is from before all extensions.
                let is_late = has_holds && now >= one.at + one.ttl;
                if !is_open && !is_late {
                    assert_eq!(usage(&bench), before, "{kind:?} after the end");
                }
                let is_last = matches!(kind, Kind::Settle(_) | Kind::Cancel);
                if is_open && matches!(kind, Kind::Cancel) {
                    // A refund takes the oldest charge, which ends first.
                    requests.retain(|charged| now - *charged < WINDOW_US);
                    if now - one.at < WINDOW_US && !requests.is_empty() {
                        requests.remove(0);
                    }
                }
                if is_open && is_last {
                    one.is_open = false;
                } else if is_open {
                    one.until = one.until.map(|_| now + one.ttl);
                }
            }
        }
        let counted = requests.iter().filter(|charged| now - **charged < WINDOW_US).count() as u64;
        assert_eq!(usage(&bench)[0].0, counted, "{step:?}");
    }
}

proptest! {
    /// A gateway that retries, and a client that looks for a way around its limit, send the same calls.
    #[test]
    fn requests_are_given_back_only_by_the_cancellation_that_ends_a_reservation(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        history(&steps);
    }
}

/// By reserve, settle and cancel, 200 requests passed under a limit of 60 requests a minute.
#[test]
fn a_cancellation_after_the_last_settlement_gives_no_request_back() {
    for name in [None, Some("requests")] {
        let bench = Bench::new([
            Policy::new("requests", Quota::per_minute(60)).unwrap().with_counts(Counts::Requests),
            Policy::new("tokens", Quota::per_minute(100_000)).unwrap(),
        ]);
        let mut passed = 0;
        for _ in 0..200 {
            let mut request = Request::new().with_cost(100);
            if let Some(name) = name {
                request = request.under(name);
            }
            let Some(ticket) = bench.gate.reserve(&request).into_ticket() else { continue };
            passed += 1;
            bench.settle(&ticket, 80);
            bench.gate.cancel(&ticket).unwrap();
        }
        assert_eq!(passed, 60, "{name:?}");
    }
}

/// Whoever holds a ticket can change its text: it must grant nothing that was not given.
#[test]
fn a_ticket_with_any_changed_byte_is_unknown_or_refused_and_changes_nothing() {
    let bench = Bench::new([
        Policy::new("requests", Quota::per_minute(10)).unwrap().with_counts(Counts::Requests),
        Policy::new("tokens", Quota::per_minute(1000)).unwrap(),
    ]);
    let text = bench.reserve(100, secs(60)).to_string();
    let before = usage(&bench);
    let mut unknown = 0;
    for at in 0..text.len() {
        for other in ['A', 'B', '_'].into_iter().filter(|other| !text[at..].starts_with(*other)) {
            let mut forged: Vec<char> = text.chars().collect();
            forged[at] = other;
            // The last character may have bits that mean nothing; then the text is refused.
            let Ok(forged) = forged.into_iter().collect::<String>().parse::<Ticket>() else { continue };
            for settlement in [
                bench.gate.cancel(&forged),
                bench.gate.settle(&forged, 7),
                bench.gate.settle_so_far(&forged, 7),
                bench.gate.extend(&forged, Extension::new()),
            ] {
                let settlement = settlement.unwrap();
                assert_eq!(settlement.status(), HoldStatus::Unknown, "byte {at}");
                assert_eq!(settlement.iter().len(), 0);
                // What it returns is not sealed either.
                assert_eq!(settlement.ticket(), &forged);
            }
            unknown += 1;
        }
    }
    assert!(unknown > text.len(), "most texts are read");
    assert_eq!(usage(&bench), before);
    let other = Bench::under(Quota::per_minute(1000));
    let ticket: Ticket = text.parse().unwrap();
    assert_eq!(other.gate.settle(&ticket, 7).unwrap().status(), HoldStatus::Unknown, "of another store");
    assert_eq!(bench.settle(&ticket, 7).status(), HoldStatus::Changed);
}

/// A gateway must learn that its limits are gone, and not that all is settled.
#[test]
fn a_ticket_of_policies_that_were_removed_is_unknown() {
    let bench = Bench::under(Quota::per_minute(100));
    let ticket = bench.reserve(10, secs(60));
    let other = Policy::new("other", Quota::per_minute(5)).unwrap();
    bench.gate.configure(PolicySet::new([other]).unwrap()).unwrap();
    assert_eq!(bench.settle(&ticket, 10).status(), HoldStatus::Unknown);
}

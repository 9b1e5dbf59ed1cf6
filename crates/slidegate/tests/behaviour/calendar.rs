//! Calendar windows: fixed windows whose borders are dates.

use slidegate::{
    Calendar, Gate, Limiter, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
};

const DAY: u64 = 86_400;
/// 2026-01-31 12:00:00 in UTC.
const JANUARY: u64 = 1_769_860_800;

fn store(secs: u64) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(secs));
    (MemoryStore::builder().max_keys(100).clock(clock.clone()).build(), clock)
}

/// A request in the last microsecond belongs to the month that ends, one at the border to the next.
#[test]
fn a_month_ends_at_its_border_to_the_microsecond() {
    let (store, clock) = store(JANUARY);
    let limiter = Limiter::with_store(Quota::calendar(10, Calendar::month()), store);
    let decision = limiter.check_cost("alice", 4);
    assert_eq!((decision.remaining(), decision.reset_after().as_secs()), (6, DAY / 2));
    let border = Timestamp::from_secs(JANUARY + DAY / 2);
    assert_eq!(decision.reset_at(), border);
    clock.set(Timestamp::from_micros(border.as_micros() - 1));
    assert_eq!(limiter.check_cost("alice", 6).remaining(), 0);
    let denied = limiter.check("alice");
    assert!(denied.is_denied());
    assert_eq!(denied.retry_after().unwrap().as_micros(), 1);
    clock.set(border);
    let next = limiter.check_cost("alice", 10);
    assert!(next.is_allowed());
    // February has 28 days.
    assert_eq!(next.reset_after().as_secs(), 28 * DAY);
}

/// A clock that is corrected must not grant a month twice.
#[test]
fn a_clock_that_steps_back_over_the_border_grants_nothing() {
    let (store, clock) = store(JANUARY + DAY / 2);
    let limiter = Limiter::with_store(Quota::calendar(10, Calendar::month()), store);
    assert!(limiter.check_cost("alice", 10).is_allowed());
    for back_us in [1, 900_000, 5_000_000, 7 * DAY * 1_000_000] {
        clock.set(Timestamp::from_micros((JANUARY + DAY / 2) * 1_000_000 - back_us));
        assert!(limiter.check("alice").is_denied(), "{back_us}");
    }
    clock.set(Timestamp::from_secs(JANUARY + DAY / 2 + 28 * DAY));
    assert!(limiter.check_cost("alice", 10).is_allowed());
}

/// Each customer has the month of their invoice, and one month of usage when the day changes.
#[test]
fn an_attribute_says_on_which_day_the_month_of_a_request_begins() {
    let (store, _clock) = store(JANUARY);
    let quota = Quota::calendar(10, Calendar::month());
    let policy = Policy::new("p", quota).unwrap().with_scope(["user"]).with_anchor_attribute("billing_day");
    let policy = policy.with_override(["vip"], Quota::calendar(70, Calendar::month()));
    let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
    let ask = |user: &str, day: Option<&str>| {
        let request = Request::new().with("user", user).with_cost(3);
        let request = day.into_iter().fold(request, |request, day| request.with("billing_day", day));
        let decisions = gate.check(&request);
        let decision = decisions.strictest().unwrap();
        (decision.decision().used(), decision.decision().limit(), decision.decision().reset_after().as_secs())
    };
    let half = DAY / 2;
    for (user, day, expected) in [
        ("alice", Some("31"), (3, 10, 27 * DAY + half)),
        ("alice", Some("15"), (6, 10, 14 * DAY + half)),
        ("bob", Some("32"), (3, 10, half)),
        ("carol", Some("first"), (3, 10, half)),
        ("dave", None, (3, 10, half)),
        ("vip", Some("2"), (3, 70, DAY + half)),
    ] {
        assert_eq!(ask(user, day), expected, "{user} {day:?}");
    }
}

/// A look without the day of a customer must not move what they used into their next month.
#[test]
fn a_peek_in_other_windows_moves_no_usage() {
    let (store, clock) = store(JANUARY);
    let policy = Policy::new("p", Quota::calendar(10, Calendar::month())).unwrap().with_scope(["user"]);
    let policy = policy.with_anchor_attribute("billing_day");
    let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
    let bare = Request::new().with("user", "alice");
    let alice = bare.clone().with("billing_day", "15");
    let used = || gate.peek(&alice).strictest().unwrap().decision().used();
    assert!(gate.check(&alice.clone().with_cost(7)).is_allowed());
    for (day, expected) in [(0, 7), (10, 7), (15, 0)] {
        clock.set(Timestamp::from_secs(JANUARY + day * DAY));
        assert_eq!(used(), expected, "{day}");
        assert_eq!(gate.peek(&bare).verdict(), slidegate::Verdict::Allow);
    }
}

/// Moving a customer to another billing day or another zone is no reason to forget what they used.
#[test]
fn another_anchor_keeps_the_usage_of_the_running_window() {
    let (store, clock) = store(JANUARY);
    let set = |calendar| {
        PolicySet::new([Policy::new("p", Quota::calendar(10, calendar)).unwrap().with_scope(["user"])])
            .unwrap()
    };
    let gate = Gate::with_memory(set(Calendar::month()), store);
    let alice = Request::new().with("user", "alice");
    assert!(gate.check(&alice.clone().with_cost(7)).is_allowed());
    gate.configure(set(Calendar::month().with_anchor(15).unwrap())).unwrap();
    let decisions = gate.peek(&alice);
    let decision = decisions.strictest().unwrap();
    assert_eq!(
        (decision.decision().used(), decision.quota().to_string()),
        (7, "10/month from day 15".to_owned())
    );
    // It counts until the new border: February 15.
    assert_eq!(decision.decision().reset_after().as_secs(), 14 * DAY + DAY / 2);
    clock.set(Timestamp::from_secs(JANUARY + 14 * DAY + DAY / 2));
    assert_eq!(gate.peek(&alice).strictest().unwrap().decision().used(), 0);
}

//! Inspections: what people see when they ask why a key is denied.

use std::net::IpAddr;
use std::time::Duration;

use slidegate::{
    Algorithm, Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
    store::KeyUse,
};

const START: Timestamp = Timestamp::from_secs(1_000_000_020);

/// A gate with one policy at 10 per minute for each user, at the beginning of a minute.
fn gate(algorithm: Algorithm) -> (Gate, ManualClock) {
    let clock = ManualClock::at(START);
    let store = MemoryStore::builder().clock(clock.clone()).build();
    let quota = Quota::per_minute(10).with_algorithm(algorithm);
    let policy = Policy::new("per-user", quota).unwrap().with_scope(["user"]);
    (Gate::with_memory(PolicySet::new([policy]).unwrap(), store), clock)
}

fn seconds(found: &KeyUse) -> Vec<(u64, u64)> {
    found.charges.iter().map(|run| ((run.at - START).as_secs(), run.cost)).collect()
}

/// "Why is alice denied?" is asked about charges, not about sums.
#[test]
fn a_log_shows_every_charge_that_counts_and_when_it_is_free_again() {
    let (gate, clock) = gate(Algorithm::SlidingLog);
    let alice = |cost| Request::new().with("user", "alice").with_cost(cost);
    for cost in [3, 2, 5] {
        assert!(gate.check(&alice(cost)).is_allowed());
        clock.advance(Duration::from_secs(10));
    }
    let found = gate.inspect(&alice(1)).unwrap().remove(0);
    assert_eq!((found.policy.as_str(), found.key.as_str()), ("per-user", "alice"));
    assert_eq!(seconds(&found), [(0, 3), (10, 2), (20, 5)]);
    assert_eq!((found.decision.used(), found.decision.is_denied()), (10, true));
    assert_eq!(found.decision.retry_after(), Some(Duration::from_secs(30)));
    let room: Vec<_> = found.forecast.iter().map(|room| (room.after.as_secs(), room.used)).collect();
    assert_eq!(room, [(30, 7), (40, 5), (50, 0)]);
    clock.advance(Duration::from_secs(30));
    assert_eq!(seconds(&gate.inspect(&alice(1)).unwrap()[0]), [(10, 2), (20, 5)]);
    let nobody = gate.inspect(&Request::new().with("user", "nobody")).unwrap().remove(0);
    assert_eq!((nobody.decision.used(), nobody.charges.len(), nobody.forecast.len()), (0, 0, 0));
    assert!(gate.inspect(&Request::new()).unwrap().is_empty());
}

/// A sum that is shown as if it were charges would be a wrong answer.
#[test]
fn counters_show_the_sums_that_they_keep() {
    for (algorithm, charges, used) in [
        (Algorithm::SlidingWindow, vec![(0, 4), (60, 2)], 5),
        (Algorithm::FixedWindow, vec![(60, 2)], 2),
        (Algorithm::TokenBucket, vec![], 2),
    ] {
        let (gate, clock) = gate(algorithm);
        let alice = |cost| Request::new().with("user", "alice").with_cost(cost);
        assert!(gate.check(&alice(4)).is_allowed());
        clock.advance(Duration::from_secs(75));
        assert!(gate.check(&alice(2)).is_allowed());
        let found = gate.inspect(&alice(0)).unwrap().remove(0);
        assert_eq!((seconds(&found), found.decision.used()), (charges, used), "{algorithm}");
        assert_eq!(found.decision.used(), gate.peek(&alice(0)).strictest().unwrap().decision().used());
        let last = found.forecast.last().unwrap();
        assert_eq!((last.used, last.after), (0, found.decision.reset_after()), "{algorithm}");
    }
}

/// Peeking must not charge, nor end a caller's inline quota.
#[test]
fn looking_changes_nothing() {
    let (gate, _) = gate(Algorithm::SlidingLog);
    let inline = Request::new().with("user", "alice").under("per-user").with_quota(Quota::per_hour(3));
    let _ = gate.check(&inline);
    let alice = Request::new().with("user", "alice");
    for _ in 0..2 {
        let found = gate.inspect(&alice).unwrap().remove(0);
        assert_eq!((found.quota, found.decision.used()), (Quota::per_hour(3), 1));
    }
    assert_eq!(gate.check(&inline).strictest().unwrap().decision().used(), 2);
}

/// Operators change one thing of a policy, and everything else must stay as it was configured.
#[test]
fn a_policy_is_changed_in_one_thing_at_a_time() {
    let policy = Policy::new("p", Quota::per_minute(5)).unwrap().with_scope(["ip"]).with_enforced(false);
    let address = |text: &str| -> IpAddr { text.parse().unwrap() };
    let policy = policy
        .with_override([address("2001:db8::1")], Quota::per_minute(7))
        .with_override([address("192.0.2.1")], Quota::per_minute(8))
        // The same /56: one key.
        .without_override([address("2001:db8::2")])
        .with_override([address("2001:db8::2")], Quota::per_minute(9));
    assert_eq!(policy.options().override_count(), 2);
    let policy =
        policy.with_quota(Quota::per_hour(6).with_algorithm(Algorithm::FixedWindow)).with_enforced(true);
    let gate = Gate::new(PolicySet::new([policy.clone(), policy.with_name("q").unwrap()]).unwrap());
    let limit = |text: &str| {
        let request = Request::new().with("ip", address(text));
        gate.peek(&request)
            .iter()
            .map(|one| (one.policy().name().to_owned(), one.decision().limit()))
            .collect::<Vec<_>>()
    };
    assert_eq!(limit("2001:db8::3"), [("p".to_owned(), 9), ("q".to_owned(), 9)]);
    assert_eq!(limit("192.0.2.1")[0].1, 8);
    assert_eq!(limit("192.0.2.2")[0].1, 6);
}

//! Shares of the room for holds in memory: what one client takes, others must still find.

use slidegate::{
    Gate, MemoryStore, Policy, PolicySet, Quota, Reason, Request, clock::ManualClock, reserve::Ticket,
};

use super::secs;

/// A gate with this many holds at most, for two policies of users and one of what is in flight.
fn gate(max_keys: usize) -> (Gate, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
    let scoped = |name: &str, quota| Policy::new(name, quota).unwrap().with_scope(["user"]);
    let policies = [
        scoped("attacked", Quota::per_day(1_000_000)),
        scoped("other", Quota::per_minute(10)),
        scoped("streams", Quota::in_flight(2, secs(30)).unwrap()),
    ];
    (Gate::with_memory(PolicySet::new(policies).unwrap(), store), clock)
}

fn reserve(gate: &Gate, policy: &str, user: &str, ttl_ms: u64) -> Result<Ticket, Option<Reason>> {
    let request = Request::new().with("user", user).under(policy);
    let reserved = gate.reserve_for(&request, std::time::Duration::from_millis(ttl_ms)).unwrap();
    let reason = reserved.decisions().strictest().unwrap().decision().reason();
    reserved.into_ticket().ok_or(reason)
}

/// Reserves for one user after the other until it is denied. Returns how many were admitted.
fn fill(gate: &Gate, policy: &str, users: u32, ttl_ms: u64) -> usize {
    let mut admitted = 0;
    for n in 0_u32.. {
        match reserve(gate, policy, &format!("attacker-{}", n % users), ttl_ms) {
            Ok(_) => admitted += 1,
            Err(reason) => {
                assert_eq!(reason, Some(Reason::StoreFull));
                break;
            }
        }
    }
    admitted
}

/// Reservations of a millisecond count for the window once they have ended, and take no room for open
/// ones, whoever asks.
#[test]
fn reservations_that_are_over_take_no_room() {
    let (gate, clock) = gate(4096);
    for round in 0..3 {
        assert_eq!(fill(&gate, "attacked", u32::MAX, 1), 2048, "round {round}");
        assert_eq!(gate.store().stats().holds, 2048);
        clock.advance(secs(1));
        for user in ["alice", "bob"] {
            assert!(reserve(&gate, "attacked", user, 1000).is_ok(), "{user}");
            assert!(reserve(&gate, "streams", user, 1000).is_ok(), "{user}");
        }
        clock.advance(secs(1));
    }
    // They are charged as if their keys had been accessed.
    let request = Request::new().with("user", "attacker-7").under("attacked");
    let decisions = gate.peek(&request);
    let first = decisions.iter().next().unwrap();
    assert_eq!((first.decision().used(), first.decision().held()), (3, 0));
}

/// A reservation that finds no room must not search the whole store, and the next one goes on.
#[test]
fn a_few_that_are_over_are_found_among_many_that_are_open() {
    let (gate, clock) = gate(16_384);
    let brief: Vec<_> = (0..100).map(|n| reserve(&gate, "attacked", &format!("brief-{n}"), 1)).collect();
    assert!(brief.iter().all(Result::is_ok));
    assert_eq!(fill(&gate, "attacked", u32::MAX, 3_600_000), 8192 - 100);
    clock.advance(secs(1));
    let admitted = (0..400).filter(|n| reserve(&gate, "attacked", &format!("late-{n}"), 3_600_000).is_ok());
    assert_eq!(admitted.count(), 100);
}

/// However many reservations one client makes, under whatever keys, other policies have room.
#[test]
fn a_policy_takes_at_most_half_of_the_room_and_two_of_them_a_third_each() {
    let (gate, _clock) = gate(3000);
    assert_eq!(fill(&gate, "attacked", u32::MAX, 3_600_000), 1500);
    for user in ["alice", "bob"] {
        assert!(reserve(&gate, "other", user, 1000).is_ok(), "{user}");
        assert!(reserve(&gate, "streams", user, 1000).is_ok(), "{user}");
    }
    // Each takes no more than is left.
    assert_eq!(fill(&gate, "other", u32::MAX, 3_600_000), 747);
    assert!(reserve(&gate, "streams", "carol", 1000).is_ok());
    let denied = reserve(&gate, "attacked", "dave", 1000);
    assert_eq!(denied.map(|_| ()), Err(Some(Reason::StoreFull)));
}

/// Some users who hold a thousand each must not close the policy for those who hold one.
#[test]
fn a_key_takes_no_more_than_it_leaves_to_the_other_keys_of_its_policy() {
    let (gate, _clock) = gate(4096);
    let admitted = fill(&gate, "attacked", 4, 3_600_000);
    assert!((1800..1850).contains(&admitted), "{admitted}: four of 455, which leaves 228");
    for n in 0..100 {
        assert!(reserve(&gate, "attacked", &format!("user-{n}"), 1000).is_ok(), "{n}");
    }
}

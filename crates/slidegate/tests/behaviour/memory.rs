//! The memory store: bounded whatever comes, loud when it is too small, empty again when nothing
//! counts.

use std::collections::HashSet;
use std::time::Duration;

use slidegate::{
    Algorithm, Gate, Limiter, MemoryStore,
    clock::{ManualClock, Timestamp},
};
use slidegate::{Policy, PolicySet, Quota, Request};

/// Keys of a store for each of its shards.
const KEYS_PER_SHARD: usize = 1024;

fn limiter(quota: Quota, max_keys: usize) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
    (Limiter::with_store(quota, store), clock)
}

fn each(quota: Quota) -> impl Iterator<Item = Quota> {
    Algorithm::ALL.into_iter().map(move |algorithm| quota.with_algorithm(algorithm))
}

/// Charges that many keys, all different.
fn fill(limiter: &Limiter, name: &str, keys: usize) {
    for n in 0..keys {
        let _ = limiter.check(format!("{name}-{n}"));
    }
}

/// A flood of made-up users is the oldest attack on a limiter: its memory.
#[test]
fn a_store_holds_no_more_than_its_keys_whatever_comes() {
    for (quota, max_keys) in each(Quota::per_hour(10)).zip([1, 10, 1000, 5000]).chain(
        // Each algorithm has its own table in a shard: the tightest store for each.
        each(Quota::per_hour(10)).map(|quota| (quota, 1)),
    ) {
        let (limiter, _) = limiter(quota, max_keys);
        let (mut most, mut admitted) = (0, 0);
        for n in 0..100_000_u32 {
            // A new key may be taken for one that was evicted.
            admitted += u64::from(limiter.check(n.to_le_bytes()).is_allowed());
            most = most.max(limiter.stats().keys);
        }
        assert_eq!(most, max_keys, "{quota:?}");
        let stats = limiter.stats();
        assert_eq!((stats.keys, stats.max_keys), (max_keys, max_keys), "{quota:?}");
        // All of them counted still: each dropped key is counted.
        assert_eq!(stats.dropped, admitted - max_keys as u64, "{quota:?}");
    }
}

/// Keys of several policies and algorithms share one bound.
#[test]
fn all_policies_of_a_gate_share_the_bound() {
    let policies = each(Quota::per_hour(10))
        .map(|quota| Policy::new(quota.algorithm().name(), quota).unwrap().with_scope(["user"]));
    let clock = ManualClock::new();
    // Two shards: a new key in one that is empty finds nothing there whose place it could take.
    let store = MemoryStore::builder().max_keys(2 * KEYS_PER_SHARD).clock(clock).build();
    let gate = Gate::with_memory(PolicySet::new(policies).unwrap(), store);
    for n in 0..20_000 {
        let user = n.to_string();
        assert!(gate.check(&Request::new().with("user", &user)).is_allowed());
        assert!(gate.store().stats().keys <= gate.store().stats().max_keys + 1);
    }
    assert_eq!(gate.store().stats().dropped, 4 * 20_000 - gate.store().stats().keys as u64);
}

/// What makes a flood harmless: the keys of real users, which come again, stay, and new ones take
/// each other's place.
#[test]
fn a_flood_of_new_keys_does_not_reset_busy_ones() {
    for quota in each(Quota::per_hour(10)) {
        for (max_keys, busy) in [(10, 9), (1000, 500), (5000, 2500)] {
            let (limiter, _) = limiter(quota, max_keys);
            for key in 0..busy {
                let _ = limiter.check_cost(format!("busy-{key}"), 1);
                let _ = limiter.check_cost(format!("busy-{key}"), 6);
            }
            let admitted = (0..30_000).filter(|n| limiter.check(format!("flood-{n}")).is_allowed()).count();
            // To the last one: among the places looked at there is always one of the flood.
            let lost = (0..busy).filter(|key| limiter.peek(format!("busy-{key}")).used() == 0).count();
            assert_eq!(lost, 0, "{quota:?}: of {busy} in {max_keys}");
            assert!(limiter.stats().dropped >= (admitted - max_keys.min(admitted)) as u64, "{quota:?}");
        }
    }
}

/// Nine busy keys in ten leave a flood little room, and now and then a place where all are busy:
/// some are lost.
#[test]
fn a_store_that_is_nearly_full_of_busy_keys_loses_one_to_two_hundred_new_ones_at_most() {
    let (limiter, _) = limiter(Quota::per_hour(10), 10_000);
    for key in 0..9000 {
        let _ = limiter.check_cost(format!("busy-{key}"), 1);
        let _ = limiter.check_cost(format!("busy-{key}"), 6);
    }
    fill(&limiter, "flood", 10_000);
    let lost = (0..9000).filter(|key| limiter.peek(format!("busy-{key}")).used() == 0).count();
    assert!(lost <= 10_000 / 200, "{lost} of 9000 to 10000 new ones");
}

/// An attacker whose made-up users come twice pushes out others of that kind before anyone near the
/// limit.
#[test]
fn the_keys_that_have_used_least_go_first() {
    for quota in each(Quota::per_hour(10)) {
        let (limiter, _) = limiter(quota, 1000);
        for key in 0..500 {
            let _ = limiter.check_cost(format!("full-{key}"), 4);
            let _ = limiter.check_cost(format!("full-{key}"), 6);
        }
        for n in 0..30_000 {
            let _ = limiter.check(format!("flood-{n}"));
            let _ = limiter.check(format!("flood-{n}"));
        }
        let lost = (0..500).filter(|key| limiter.check(format!("full-{key}")).is_allowed()).count();
        assert!(lost <= 30_000 / 2000, "{quota:?}: {lost} of 500 to 30000 new ones");
    }
}

/// A key that was dropped while it counted starts afresh: that must be reported, and nothing else.
#[test]
fn dropped_counts_the_keys_that_counted_and_no_others() {
    for quota in each(Quota::per_second(5)) {
        let (limiter, clock) = limiter(quota, 100);
        fill(&limiter, "first", 100);
        assert_eq!(limiter.stats().dropped, 0, "{quota:?}");
        // Capacity that expired keys leave can be reused.
        clock.advance(Duration::from_secs(5));
        fill(&limiter, "second", 100);
        assert_eq!((limiter.stats().dropped, limiter.stats().keys), (0, 100), "{quota:?}");
        fill(&limiter, "third", 7);
        assert_eq!((limiter.stats().dropped, limiter.stats().keys), (7, 100), "{quota:?}");
    }
}

/// Where some have expired and some not, the reported number of dropped keys must be exact.
#[test]
fn dropped_is_the_number_of_keys_that_were_evicted() {
    let (limiter, clock) = limiter(Quota::new(5, Duration::from_secs(10)).unwrap(), 1000);
    fill(&limiter, "expired", 200);
    clock.advance(Duration::from_secs(8));
    fill(&limiter, "counting", 800);
    clock.advance(Duration::from_secs(4));
    fill(&limiter, "new", 600);
    while limiter.sweep(10_000) > 0 {}
    let stats = limiter.stats();
    assert_eq!(stats.dropped, 800 + 600 - stats.keys as u64);
    assert!(stats.dropped >= 400, "{stats:?}");
}

/// A service that has seen a million users must not hold the memory of those that are long gone.
#[test]
fn expired_keys_leave_beside_new_ones() {
    for quota in each(Quota::per_second(5)) {
        let (limiter, clock) = limiter(quota, 100_000);
        let mut most = 0;
        for n in 0..50_000 {
            let _ = limiter.check(format!("key-{n}"));
            clock.advance(Duration::from_millis(10));
            most = most.max(limiter.stats().keys);
        }
        // A hundred a second, each counting for two seconds at most and known to have expired a
        // tick later; then the sweep has to come round.
        assert!(most < 2000, "{quota:?}: {most}");
        assert_eq!(limiter.stats().dropped, 0, "{quota:?}");
    }
}

/// Decisions on known keys are company enough for the expired to leave: no new key has to come for
/// that.
#[test]
fn expired_keys_leave_beside_decisions_on_others() {
    for quota in each(Quota::per_second(5)) {
        let (limiter, clock) = limiter(quota, 1000);
        fill(&limiter, "key", 900);
        clock.advance(Duration::from_secs(5));
        for _ in 0..64 * 1024 {
            limiter.peek("other");
        }
        assert_eq!(limiter.stats().keys, 0, "{quota:?}");
    }
}

/// An idle program gives its memory back from a timer.
#[test]
fn a_sweep_empties_a_store_in_which_nothing_counts() {
    for quota in each(Quota::per_minute(5)) {
        let (limiter, clock) = limiter(quota, 10_000);
        fill(&limiter, "key", 7000);
        assert_eq!((limiter.sweep(50_000), limiter.stats().keys), (0, 7000), "{quota:?}");
        clock.advance(Duration::from_secs(122));
        assert_eq!((limiter.sweep(50_000), limiter.stats().keys), (7000, 0), "{quota:?}");
        assert_eq!(limiter.stats().dropped, 0, "{quota:?}");
        assert_eq!(limiter.check("key-1").remaining(), 4, "{quota:?}");
    }
}

/// Scanners ask for what is never given; their names must not fill the store.
#[test]
fn what_charges_nothing_stores_nothing() {
    for quota in each(Quota::per_minute(5)) {
        let (limiter, _) = limiter(quota, 100);
        for n in 0..1000 {
            let key = format!("key-{n}");
            limiter.peek(&key);
            let _ = limiter.check_cost(&key, 0);
            assert!(limiter.check_cost(&key, 6).is_denied());
            limiter.refund(&key, 3);
            limiter.penalize(&key, 0);
            limiter.reset(&key);
        }
        assert_eq!((limiter.stats().keys, limiter.stats().dropped), (0, 0), "{quota:?}");
    }
}

/// Keys of all shapes that have ever been mistaken for another: by a separator, a terminator, a
/// prefix, a case.
fn awkward_keys() -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = [
        "", "\0", "\0\0", " ", "a", "A", "a\0", "\0a", "a:b", "a,b", "{a}", "{}", "*", "a*", "a?", "[a]",
        "\r\n", "%00", "%", "a%2Cb", "é", "e\u{301}", "\u{feff}", "null", "-1",
    ]
    .iter()
    .map(|key| key.as_bytes().to_vec())
    .collect();
    keys.extend([vec![0xFF], vec![0xFF, 0xFE], vec![0xC3], vec![0xC3, 0x28], vec![0x80; 3]]);
    // Every length around the one up to which keys are stored as they are, full of zeros, of ones
    // and of text.
    for len in 1..70 {
        keys.extend([vec![0; len], vec![0xFF; len], vec![b'x'; len]]);
    }
    let long = vec![b'k'; 10_000];
    for at in [0, 5000, 9999] {
        let mut other = long.clone();
        other[at] = b'l';
        keys.push(other);
    }
    keys.extend([long[..9999].to_vec(), long]);
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Two users under one counter is the worst bug a limiter can have.
#[test]
fn keys_of_any_bytes_and_length_never_meet() {
    let keys = awkward_keys();
    for quota in each(Quota::per_hour(1_000_000)) {
        let (limiter, _) = limiter(quota, 10_000);
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(limiter.check_cost(key, n as u64 + 1).used(), n as u64 + 1, "{key:?}");
        }
        assert_eq!(limiter.stats().keys, keys.len(), "{quota:?}");
        for (n, key) in keys.iter().enumerate() {
            assert_eq!(limiter.peek(key).used(), n as u64 + 1, "{key:?}");
        }
    }
}

/// The same within a gate, where a key has several parts: a border between them must not wander.
#[test]
fn keys_of_several_parts_never_meet() {
    let policy = Policy::new("pair", Quota::per_hour(1_000_000)).unwrap().with_scope(["a", "b"]);
    let store = MemoryStore::builder().max_keys(100_000).clock(ManualClock::new()).build();
    let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
    let parts: Vec<_> = awkward_keys().into_iter().filter(|part| part.len() < 20).collect();
    let mut texts = HashSet::new();
    for a in &parts {
        for b in &parts {
            let request = Request::new().with("a", a.as_slice()).with("b", b.as_slice());
            let decisions = gate.check(&request);
            let strictest = decisions.strictest().unwrap();
            assert_eq!(strictest.decision().used(), 1, "{a:?} {b:?}");
            assert!(texts.insert(strictest.key().to_string()), "{a:?} {b:?} look like another");
        }
    }
}

/// Simulations and wrong clocks reach far; a store that forgets all keys there would silently
/// enforce nothing.
#[test]
fn keys_are_kept_in_any_century() {
    for year in [0_u64, 30, 143, 230, 1000, 100_000] {
        let start = Timestamp::from_secs(year * 365 * 86_400);
        for quota in each(Quota::per_hour(3)) {
            let clock = ManualClock::at(start);
            let limiter =
                Limiter::with_store(quota, MemoryStore::builder().max_keys(100).clock(clock.clone()).build());
            let _ = limiter.check_cost("key", 3);
            limiter.sweep(1000);
            assert!(limiter.check("key").is_denied(), "{year} years after 1970: {quota:?}");
        }
    }
}

/// After a bad deploy all keys of a policy are to start afresh, in steps that hold nobody up, and
/// none of another.
#[test]
fn a_policy_is_reset_in_steps_under_every_algorithm_and_no_other_policy() {
    for quota in each(Quota::per_hour(9)) {
        let policy = |name| Policy::new(name, quota).unwrap().with_scope(["user"]);
        let policies = PolicySet::new([policy("a"), policy("b")]).unwrap();
        let gate = Gate::with_memory(policies.clone(), MemoryStore::builder().max_keys(50_000).build());
        let users: Vec<_> = (0..10_000).map(|user| format!("user-{user}")).collect();
        for user in &users {
            assert!(gate.check(&Request::new().with("user", user)).is_allowed());
        }
        let (mut next, mut steps, mut scanned) = (None, 0, 0);
        let last = loop {
            let step = gate.reset_policy_step("a", next.as_ref(), 1000).unwrap();
            // A step ends with the shard in which it has looked at as many keys. Some may be looked
            // at twice.
            assert!(step.scanned - scanned < 1000 + 2048, "{step:?}");
            (steps, scanned) = (steps + 1, step.scanned);
            match step.next {
                Some(cursor) => next = Some(cursor.to_string().parse().unwrap()),
                None => break step,
            }
        };
        assert_eq!((last.forgotten, last.keys), (10_000, Some(20_000)), "{quota}");
        assert!(steps >= 5, "{steps} of about 1000 keys each");
        assert_eq!(gate.store().stats().keys, 10_000);
        let used: Vec<_> = gate
            .peek(&Request::new().with("user", "user-1"))
            .iter()
            .map(|one| one.decision().used())
            .collect();
        assert_eq!(used, [0, 1], "{quota}");
        assert_eq!(
            (gate.reset_policy("b"), gate.reset_policy("b"), gate.store().stats().keys),
            (Ok(10_000), Ok(0), 0)
        );
        let elsewhere = "node.1.0.0.0.0.-".parse().unwrap();
        let refused = gate.reset_policy_step("a", Some(&elsewhere), 1).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the cursor is that of a shared store, and this one is in memory; give none to begin"
        );
    }
}

/// A large burst at a low rate takes decades to drain. A clock that steps back a little must not make
/// a sweep take it for one that was empty long ago.
#[test]
fn a_bucket_that_drains_for_decades_outlives_a_step_of_the_clock() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_002));
    let quota = Quota::per_second(1).with_algorithm(Algorithm::TokenBucket).with_burst(10_u64.pow(17));
    let store = MemoryStore::builder().max_keys(10).clock(clock.clone()).build();
    let limiter = Limiter::with_store(quota, store);
    let _ = limiter.check_cost("key", 10_u64.pow(17));
    clock.set(Timestamp::from_secs(1_800_000_000));
    assert_eq!(limiter.sweep(10_000), 0);
    assert_eq!(limiter.peek("key").used(), 10_u64.pow(17));
}

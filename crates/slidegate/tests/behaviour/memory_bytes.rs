//! The memory store's bytes: what it counts is what the allocator gives out, and its bound holds
//! for every mix of keys.

use std::time::Duration;

use slidegate::{
    Algorithm, Excess, Gate, Limiter, MemoryStore, Policy, PolicySet, Quota, Request, clock::ManualClock,
    store::MemoryStats, verb::Verb,
};

use crate::counting;

/// What the store says and what the allocator says may differ by this part: allocators round up.
const MARGIN: (u64, u64) = (1, 8);

fn bounded(max_bytes: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::builder().max_bytes(max_bytes).clock(clock.clone()).build(), clock)
}

/// Live bytes of a thread that has built one store since `before`.
fn live_since(before: i64) -> u64 {
    u64::try_from(counting::live_bytes() - before).unwrap()
}

/// Compares what the store counts with what is allocated.
fn assert_true(stats: MemoryStats, live: u64, what: &str) {
    let counted = stats.bytes as u64;
    let (part, whole) = MARGIN;
    assert!(counted >= live, "{what}: counts {counted} and takes {live}");
    assert!(counted - live <= counted * part / whole, "{what}: counts {counted} and takes only {live}");
}

/// Asserts that nothing is over the bound.
fn assert_bounded(stats: MemoryStats, live: u64, what: &str) {
    let max_bytes = stats.max_bytes.unwrap() as u64;
    assert!(stats.bytes as u64 <= max_bytes, "{what}: {stats:?}");
    assert!(live <= max_bytes, "{what}: {live} of {stats:?}");
}

/// An operator gives the service a gigabyte: a flood of made-up users must not take more.
#[test]
fn a_flood_of_keys_takes_no_more_than_the_bound_and_uses_most_of_it() {
    for algorithm in Algorithm::ALL {
        for max_bytes in [1 << 20, 3_000_000] {
            let before = counting::live_bytes();
            let (store, _clock) = bounded(max_bytes);
            let limiter = Limiter::with_store(Quota::per_hour(10).with_algorithm(algorithm), store);
            let mut admitted = 0;
            for n in 0..150_000_u32 {
                // A new key may be taken for one that was evicted. Costs of more than one take as much
                // room beside the key as their sums.
                admitted += u64::from(limiter.check_cost(n.to_le_bytes(), 2).is_allowed());
                if n % 64 == 0 {
                    assert_bounded(limiter.stats(), live_since(before), algorithm.name());
                }
            }
            let stats = limiter.stats();
            assert_true(stats, live_since(before), algorithm.name());
            assert!(stats.bytes > max_bytes / 8 * 7, "{algorithm}: room is wasted: {stats:?}");
            assert_eq!(stats.dropped + stats.keys as u64, admitted, "{algorithm}: each eviction is counted");
        }
    }
}

/// What makes a flood harmless: users who come again keep their counts under this bound as well.
#[test]
fn a_flood_does_not_reset_busy_keys_when_bytes_are_short() {
    for algorithm in Algorithm::ALL {
        let (store, _clock) = bounded(1 << 20);
        let limiter = Limiter::with_store(Quota::per_hour(40).with_algorithm(algorithm), store);
        let busy = if algorithm == Algorithm::SlidingLog { 2000 } else { 5000 };
        for key in 0..busy {
            let _ = limiter.check_cost(format!("busy-{key}"), 5);
            let _ = limiter.check_cost(format!("busy-{key}"), 20);
        }
        for n in 0..100_000_u32 {
            let _ = limiter.check(n.to_le_bytes());
        }
        let lost = (0..busy).filter(|key| limiter.peek(format!("busy-{key}")).used() != 25).count();
        assert_eq!(lost, 0, "{algorithm}: of {busy}; {:?}", limiter.stats());
    }
}

/// Logs grow long after their keys were admitted: that must be bounded too, and charged to keys that
/// matter less.
#[test]
fn logs_that_grow_take_no_more_than_the_bound() {
    let before = counting::live_bytes();
    let (store, clock) = bounded(1 << 20);
    let limiter = Limiter::with_store(Quota::per_hour(1000), store);
    for round in 0..60_u32 {
        for key in 0..10_000_u32 {
            // Some keys use much more than others.
            if round % (1 + key % 16) == 0 {
                let _ = limiter.check(key.to_le_bytes());
            }
        }
        clock.advance(Duration::from_millis(10));
        assert_bounded(limiter.stats(), live_since(before), &format!("round {round}"));
    }
    assert_true(limiter.stats(), live_since(before), "logs");
    assert!(limiter.stats().dropped > 0);
    clock.advance(Duration::from_secs(7200));
    for _ in 0..20 {
        limiter.sweep(1 << 20);
    }
    assert_eq!(limiter.stats().keys, 0);
    assert_true(limiter.stats(), live_since(before), "nothing");
}

/// After a change of policies, keys of the old kind must make room for those of the new one.
#[test]
fn keys_of_one_algorithm_make_room_for_those_of_another() {
    let policies = Algorithm::ALL.map(|algorithm| {
        Policy::new(algorithm.name(), Quota::per_hour(50).with_algorithm(algorithm))
            .unwrap()
            .with_scope(["user"])
    });
    let (store, _clock) = bounded(1 << 20);
    let gate = Gate::with_memory(PolicySet::new(policies).unwrap(), store);
    let beside = beside_the_store(&gate);
    let around = Algorithm::ALL.into_iter().chain(Algorithm::ALL);
    for (turn, algorithm) in around.enumerate() {
        for n in 0..40_000 {
            let user = format!("{turn}-{n}");
            let _ = gate.check(&Request::new().with("user", &user).under(algorithm.name()));
            if n % 64 == 0 {
                assert_bounded(gate.store().stats(), live_since(beside), algorithm.name());
            }
        }
        let user = format!("{turn}-39999");
        let last = Request::new().with("user", &user).under(algorithm.name());
        assert!(
            gate.peek(&last).strictest().unwrap().decision().used() >= 1,
            "{algorithm}: the newest key is held"
        );
        let (keys, fit) = (gate.store().stats().keys, (1 << 20) / 110);
        assert!(keys > fit / 2, "{algorithm}: {keys} keys where {fit} fit");
    }
}

/// Live bytes of this thread that are not of the gate's store, which is empty.
fn beside_the_store(gate: &Gate) -> i64 {
    counting::live_bytes() - i64::try_from(gate.store().stats().bytes).unwrap()
}

/// Clients of RESP bring their own quotas, which are kept for each key.
#[test]
fn quotas_that_come_with_requests_are_part_of_the_bound() {
    let (store, _clock) = bounded(2 << 20);
    let policy = Policy::new("p", Quota::per_minute(1).with_algorithm(Algorithm::TokenBucket)).unwrap();
    let gate = Gate::with_memory(PolicySet::new([policy.with_scope(["user"])]).unwrap(), store);
    let beside = beside_the_store(&gate);
    for n in 0..100_000_u64 {
        let user = n.to_string();
        let quota = Quota::per_hour(1 + n % 9).with_algorithm(Algorithm::TokenBucket);
        let _ = gate.check(&Request::new().with("user", &user).with_quota(quota));
        if n % 64 == 0 {
            let stats = gate.store().stats();
            assert!(stats.bytes <= stats.max_bytes.unwrap(), "{stats:?}");
        }
    }
    let (stats, live) = (gate.store().stats(), live_since(beside));
    assert_true(stats, live, "with the quotas");
    let each = MemoryStore::bytes_per_inline_quota() + 63;
    assert!(stats.keys > stats.bytes / each, "{each} bytes a key at most: {stats:?}");
}

/// `slidegate validate` prints the worst case of a configuration, and people buy memory by it.
#[test]
fn the_worst_case_is_no_less_than_what_a_full_store_takes_and_not_much_more() {
    const KEYS: u32 = 20_000;
    let log = |limit| Quota::per_hour(limit);
    let quotas = [
        log(1),
        log(5),
        log(100),
        log(400).with_slots(300),
        log(10).with_algorithm(Algorithm::SlidingWindow),
        log(10).with_algorithm(Algorithm::FixedWindow),
        log(10).with_algorithm(Algorithm::TokenBucket),
    ];
    for quota in quotas {
        // The first cost is more than one, and each charge is at another instant.
        for (excess, cost) in [(Excess::Refuse, 1), (Excess::Refuse, 2)] {
            let clock = ManualClock::new();
            let builder = MemoryStore::builder().max_keys(KEYS as usize).clock(clock.clone());
            let bytes_per_key = MemoryStore::bytes_per_key(&quota, excess);
            let estimate = builder.estimate(bytes_per_key);
            let before = counting::live_bytes();
            let limiter = Limiter::with_store(quota, builder.build());
            let times = quota.limit().div_ceil(cost).min(301);
            for n in 0..KEYS {
                let _ = limiter.check_cost(n.to_le_bytes(), cost.min(quota.limit()));
            }
            for _ in 1..times {
                clock.advance(Duration::from_secs(3600) / 310);
                for n in 0..KEYS {
                    let _ = limiter.check(n.to_le_bytes());
                }
            }
            // A full store keeps what evicted keys owe.
            for n in KEYS..KEYS + KEYS / 20 {
                let _ = limiter.check(n.to_le_bytes());
            }
            let (stats, live) = (limiter.stats(), live_since(before));
            let what = format!("{quota:?}, first cost {cost}");
            assert_eq!((stats.keys, estimate.keys), (KEYS as usize, KEYS as usize), "{what}");
            assert!(stats.bytes <= estimate.bytes, "{what}: {stats:?} of {estimate:?}");
            assert!(live <= estimate.bytes as u64, "{what}: {live} of {estimate:?}");
            // Tables are a seventh empty on average, and a log of single costs has none stored.
            assert!(live >= estimate.bytes as u64 / 10 * 6, "{what}: {live} of only {estimate:?}");
        }
    }
}

/// An operator who sizes a container for reservations must not read too little, nor far too much.
#[test]
fn the_estimate_of_open_holds_is_what_keys_with_so_many_take() {
    const KEYS: u64 = 2900;
    const POLICIES: u64 = 10;
    for (in_flight, holds) in [(false, 1), (false, 3), (false, 20), (true, 1), (true, 7)] {
        let quota = if in_flight {
            Quota::in_flight(20, Duration::from_secs(60)).unwrap()
        } else {
            Quota::per_hour(20).with_algorithm(Algorithm::TokenBucket)
        };
        // There are at most as many holds as keys. Ten policies leave room for an eleventh, and the
        // last key for as much as it takes.
        let all_holds = usize::try_from(KEYS).unwrap() * holds;
        let max_keys = all_holds + all_holds / 10 + 2 * holds;
        let names: Vec<_> = (0..POLICIES).map(|n| format!("p{n}")).collect();
        let gate = |max_keys| {
            let policies = names.iter().map(|name| Policy::new(name, quota).unwrap().with_scope(["user"]));
            let store = MemoryStore::builder().max_keys(max_keys).clock(ManualClock::new()).build();
            Gate::with_memory(PolicySet::new(policies).unwrap(), store)
        };
        let empty = gate(max_keys).store().stats().bytes;
        let gate = gate(max_keys);
        for n in 0..KEYS {
            let user = n.to_string();
            let policy = &names[usize::try_from(n % POLICIES).unwrap()];
            let request = Request::new().with("user", user.as_str()).under(policy);
            // What is used lies in another table than what is held.
            assert!(in_flight || gate.check(&request.clone().with_cost(0)).is_allowed());
            for _ in 0..holds {
                assert!(gate.reserve(&request).decisions().is_allowed());
            }
        }
        let stats = gate.store().stats();
        assert_eq!(stats.holds, all_holds);
        let each = MemoryStore::bytes_per_holds(holds);
        let estimate = usize::try_from(KEYS).unwrap() * each;
        let taken = stats.bytes - empty;
        assert!(taken <= estimate, "{holds}, {in_flight}: {taken} of {estimate}");
        assert!(taken >= estimate / 10 * 6, "{holds}, {in_flight}: {taken} of only {estimate}");
    }
}

/// A bound must not cost decisions: without new keys or longer logs nothing is allocated or evicted.
#[test]
fn decisions_on_known_keys_of_a_full_store_allocate_nothing() {
    for algorithm in Algorithm::ALL {
        let (store, clock) = bounded(1 << 20);
        let quota = Quota::per_hour(20).with_algorithm(algorithm);
        let policy = Policy::new("p", quota).unwrap().with_scope(["user"]);
        let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
        for n in 0..30_000 {
            let _ = gate.check(&Request::new().with("user", n.to_string().as_str()));
        }
        let request = Request::new().with("user", "29999");
        // A charge and its refund may make a log longer for a time, a denial never does.
        let is_denied = algorithm == Algorithm::SlidingLog;
        for _ in 0..if is_denied { 20 } else { 1 } {
            let _ = gate.check(&request);
        }
        let (dropped, before) = (gate.store().stats().dropped, counting::allocations());
        assert!(dropped > 0);
        for _ in 0..1000 {
            let decisions = gate.apply_all(Verb::Check, std::slice::from_ref(&request));
            assert_eq!(decisions.is_denied(), is_denied);
            if !is_denied {
                gate.refund(&request);
            }
            clock.advance(Duration::from_millis(1));
        }
        assert_eq!(counting::allocations(), before, "{algorithm}");
        assert_eq!(gate.store().stats().dropped, dropped, "{algorithm}");
    }
}

//! Memory by the byte: what a decision allocates, which is nothing, and what a key takes.
//!
//! Counts what the global allocator is asked for, on the thread that asks.

use std::time::Duration;

use slidegate::{Algorithm, Gate, Limiter, Match, MemoryStore, clock::ManualClock};
use slidegate::{Policy, PolicySet, Quota, Request};

use crate::counting;

/// How often `work` took memory.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = counting::allocations();
    work();
    counting::allocations() - before
}

fn store(max_keys: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::new();
    (MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build(), clock)
}

fn each(quota: Quota) -> impl Iterator<Item = Quota> {
    Algorithm::ALL.into_iter().map(move |algorithm| quota.with_algorithm(algorithm))
}

/// A counter that counts nothing would prove anything.
#[test]
fn the_counter_counts() {
    let before = counting::live_bytes();
    let mut kept = Vec::new();
    assert_eq!(allocations(|| kept.push(Box::new([0_u8; 100]))), 2);
    assert!(counting::live_bytes() >= before + 100);
    drop(kept);
    assert_eq!(counting::live_bytes(), before);
}

/// An allocation is a lock and a cache miss; a limiter in front of everything has no use for
/// either.
#[test]
fn decisions_on_known_keys_allocate_nothing() {
    let long = "a name too long to be stored as it is, and so known by its hash".to_owned();
    for quota in each(Quota::per_second(50)) {
        for key in ["alice", "", &long] {
            let (store, clock) = store(1000);
            let limiter = Limiter::with_store(quota, store);
            let round = || {
                for n in 0..200 {
                    let _ = limiter.check(key);
                    let _ = limiter.check_cost(key, n % 3);
                    limiter.peek(key);
                    limiter.refund(key, n % 2);
                    clock.advance(Duration::from_millis(7));
                }
            };
            // The log grows to what the limit can fill.
            round();
            assert_eq!(allocations(round), 0, "{quota:?} {key:?}");
            clock.advance(Duration::from_millis(1999));
            assert_eq!(allocations(round), 0, "after a pause: {quota:?} {key:?}");
        }
    }
}

/// The same for coarse logs and odd costs, whose runs are merged and of every width.
#[test]
fn decisions_on_a_coarse_log_allocate_nothing() {
    let (store, clock) = store(1000);
    let limiter = Limiter::with_store(Quota::per_second(100_000_000).with_slots(20), store);
    let round = || {
        for n in 0_u64..500 {
            let _ = limiter.check_cost("key", n * n * 10);
            clock.advance(Duration::from_millis(3));
        }
    };
    round();
    assert_eq!(allocations(round), 0);
}

/// A real request meets a few policies and brings a few attributes: still nothing.
#[test]
fn decisions_of_a_gate_with_a_few_policies_allocate_nothing() {
    for quota in each(Quota::per_second(50)) {
        let policies = [
            Policy::new("per-user", quota).unwrap().with_scope(["user"]).with_override(["bob"], quota),
            Policy::new("per-pair", quota).unwrap().with_scope(["ip", "user"]),
            Policy::new("login", quota)
                .unwrap()
                .with_condition("path", Match::glob("/v?/login*").unwrap())
                .with_enforced(false),
        ];
        let (store, clock) = store(1000);
        let gate = Gate::with_memory(PolicySet::new(policies).unwrap(), store);
        let address: std::net::IpAddr = "2001:db8::1".parse().unwrap();
        let round = || {
            for n in 0..200 {
                let request = Request::new()
                    .with("user", "alice")
                    .with("ip", address)
                    .with("path", "/v1/login?next=home")
                    .with("method", "POST")
                    .with("host", "example.org")
                    .with("token", "0123456789abcdef")
                    .with_cost(n % 3);
                let decisions = gate.check(&request);
                assert_eq!(decisions.iter().len(), 3);
                let strictest = decisions.strictest().unwrap();
                std::hint::black_box((strictest.policy().name(), strictest.quota(), decisions.verdict()));
                gate.peek(&request);
                gate.refund(&request);
                clock.advance(Duration::from_millis(7));
            }
        };
        round();
        assert_eq!(allocations(round), 0, "{quota:?}");
    }
}

/// Half a million calls over a thousand keys for an hour: what a service holds must not creep.
#[test]
fn a_steady_load_holds_no_more_at_its_end_than_at_its_begin() {
    for quota in each(Quota::per_second(5)) {
        let (store, clock) = store(2000);
        let limiter = Limiter::with_store(quota, store);
        let names: Vec<_> = (0..1000).map(|n| format!("key-{n}")).collect();
        let round = || {
            for n in 0..50_000 {
                let _ = limiter.check(&names[n * 7919 % 1000]);
                clock.advance(Duration::from_micros(200));
            }
        };
        round();
        let before = counting::live_bytes();
        (0..10).for_each(|_| round());
        assert!(counting::live_bytes() <= before, "{quota:?}: {} more", counting::live_bytes() - before);
    }
}

/// Bytes that 100,000 keys take, by the key, each charged `charges` times at different instants.
fn bytes_per_key(quota: Quota, max_keys: usize, charges: u64) -> f64 {
    const KEYS: u32 = 100_000;
    let (store, clock) = store(max_keys);
    let limiter = Limiter::with_store(quota, store);
    let before = counting::live_bytes();
    for _ in 0..charges {
        for n in 0..KEYS {
            let _ = limiter.check(n.to_le_bytes());
        }
        clock.advance(Duration::from_micros(1));
    }
    assert_eq!(limiter.stats().dropped, 0);
    assert_eq!(limiter.stats().keys, KEYS as usize);
    let held = counting::live_bytes() - before;
    f64::from(i32::try_from(held).unwrap()) / f64::from(KEYS)
}

/// People size their machines by these figures, which the documentation of `MemoryStore` gives.
#[test]
fn a_key_takes_the_bytes_that_the_documentation_says() {
    for max_keys in [1 << 20, 200_000, 110_000] {
        for quota in each(Quota::per_hour(1000)) {
            let bytes = bytes_per_key(quota, max_keys, 1);
            let (least, most) = match quota.algorithm() {
                Algorithm::SlidingLog => (91.0, 105.0),
                _ => (46.0, 63.0),
            };
            assert!(bytes >= least && bytes <= most, "{quota:?} of {max_keys}: {bytes:.1} bytes a key");
        }
    }
}

/// An empty store of a million keys is what every program pays that only might limit something.
#[test]
fn a_store_takes_256_bytes_for_each_1024_keys_and_gives_the_rest_back() {
    let before = counting::live_bytes();
    let (store, clock) = store(1 << 20);
    let empty = counting::live_bytes() - before;
    assert!(empty <= 257 * 1024, "{} bytes for each 1024 keys", empty / 1024);
    let limiter = Limiter::with_store(Quota::per_second(1), store);
    for n in 0..100_000_u32 {
        let _ = limiter.check(n.to_le_bytes());
    }
    clock.advance(Duration::from_secs(10));
    // Each sweep halves the tables that have become too large.
    for _ in 0..8 {
        limiter.sweep(1 << 20);
    }
    assert_eq!(limiter.stats().keys, 0);
    let held = counting::live_bytes() - before - empty;
    // The largest table that is not halved any more has 64 places of 73 bytes.
    assert!(held <= 1024 * 64 * 73, "{held}");
}

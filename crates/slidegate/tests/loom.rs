//! Every order of events that two or three threads can meet in, tried by a model checker.
//!
//! Built and run by `scripts/test --all` with `--cfg loom`; an ordinary build has nothing here. Under
//! `cfg(loom)` a store's secret is fixed, so that a key lies in the same shard every time the model
//! is run.
#![cfg(loom)]
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

use loom::sync::{Arc, Mutex};
use loom::thread;

use slidegate::internal::Slice;
use slidegate::{Algorithm, Gate, Limiter, MemoryStore, clock::ManualClock};
use slidegate::{Policy, PolicySet, Quota, Request};

/// A store of two shards: the least in which locks can be taken in two orders.
fn store() -> MemoryStore {
    MemoryStore::builder().max_keys(2048).clock(ManualClock::new()).build()
}

/// A check and a charge in two steps would let both through.
#[test]
fn of_requests_that_meet_on_a_limit_of_one_exactly_one_is_admitted() {
    for threads in [2, 3] {
        for algorithm in Algorithm::ALL {
            loom::model(move || {
                let quota = Quota::per_minute(1).with_algorithm(algorithm);
                let limiter = Arc::new(Limiter::with_store(quota, store()));
                let others: Vec<_> = (1..threads)
                    .map(|_| {
                        let limiter = limiter.clone();
                        thread::spawn(move || u64::from(limiter.check("key").is_allowed()))
                    })
                    .collect();
                let mine = u64::from(limiter.check("key").is_allowed());
                let admitted = others.into_iter().map(|other| other.join().unwrap()).sum::<u64>() + mine;
                assert_eq!(admitted, 1, "{algorithm}");
                assert_eq!((limiter.peek("key").used(), limiter.stats().keys), (1, 1), "{algorithm}");
            });
        }
    }
}

/// Two keys of each of two requests, in two shards: locked as they come, each waits for the other
/// forever.
#[test]
fn requests_that_lock_the_same_shards_in_opposite_order_do_not_wait_for_each_other() {
    // Where a key lies is not to be seen from outside. Of so many pairs some lie crosswise.
    for pair in 0..16 {
        loom::model(move || {
            let policy = |name: &str| Policy::new(name, Quota::per_minute(1)).unwrap().with_scope([name]);
            let policies = PolicySet::new([policy("user"), policy("path")]).unwrap();
            let gate = Arc::new(Gate::with_memory(policies, store()));
            let check = move |gate: &Gate, turn: u32| {
                let (user, path) = (format!("u{pair}-{turn}"), format!("p{pair}-{turn}"));
                gate.check(&Request::new().with("user", &user).with("path", &path)).is_allowed()
            };
            let other = {
                let gate = gate.clone();
                thread::spawn(move || check(&gate, 1))
            };
            assert!(check(&gate, 2));
            assert!(other.join().unwrap());
        });
    }
}

/// Requests that share one policy's key and not the other's: who is denied on the one is charged on
/// neither.
#[test]
fn requests_that_meet_under_two_policies_are_charged_on_both_or_none() {
    for pair in 0..4 {
        loom::model(move || {
            let one = Policy::new("all", Quota::per_minute(1)).unwrap();
            let other = Policy::new("per-user", Quota::per_minute(5)).unwrap().with_scope(["user"]);
            let gate = Arc::new(Gate::with_memory(PolicySet::new([other, one]).unwrap(), store()));
            let names = [format!("a{pair}"), format!("b{pair}")];
            let check = |gate: &Gate, user: &str| gate.check(&Request::new().with("user", user)).is_allowed();
            let thread = {
                let (gate, user) = (gate.clone(), names[0].clone());
                thread::spawn(move || check(&gate, &user))
            };
            let mine = check(&gate, &names[1]);
            let theirs = thread.join().unwrap();
            assert!(mine != theirs, "one of two under a limit of one for all");
            for (user, admitted) in names.iter().zip([theirs, mine]) {
                let used: Vec<_> = gate
                    .peek(&Request::new().with("user", user))
                    .iter()
                    .map(|one| one.decision().used())
                    .collect();
                assert_eq!(used, [u64::from(admitted), 1]);
            }
        });
    }
}

/// New keys that make room for themselves count each other exactly, or the store would grow or
/// shrink by the race.
#[test]
fn keys_that_come_and_go_at_once_are_counted_exactly() {
    loom::model(|| {
        let limiter = Arc::new(Limiter::with_store(Quota::per_minute(1), store()));
        let other = {
            let limiter = limiter.clone();
            thread::spawn(move || {
                limiter.check("a");
                limiter.reset("a");
                limiter.check("b");
            })
        };
        limiter.check("b");
        limiter.check("c");
        limiter.sweep(2048);
        other.join().unwrap();
        assert_eq!(limiter.stats().keys, 2);
        assert_eq!(limiter.stats().dropped, 0);
    });
}

/// A limit that changes while requests are under way: each is decided under one or the other, and
/// none is lost.
///
/// The cell that holds the quota is not known to the model checker: what it tries is the order of
/// the locks.
#[test]
fn requests_that_meet_a_change_of_the_limit_are_all_counted() {
    for algorithm in Algorithm::ALL {
        loom::model(move || {
            let quota = |limit| Quota::per_minute(limit).with_algorithm(algorithm);
            let limiter = Arc::new(Limiter::with_store(quota(1), store()));
            let other = {
                let limiter = limiter.clone();
                thread::spawn(move || (0..2).map(|_| limiter.check("key").cost()).sum::<u64>())
            };
            limiter.configure(quota(3));
            let mine = limiter.check("key").cost();
            let admitted = other.join().unwrap() + mine;
            assert!((2..=3).contains(&admitted), "{algorithm}: {admitted}");
            assert_eq!(limiter.peek("key").used(), admitted, "{algorithm}");
        });
    }
}

/// Policies that are replaced while requests are planned and decided: a request may still be decided
/// under the old set after the keys were converted to the new one. Its charge must count all the
/// same, and no more may pass than the larger limit.
///
/// The pointer to the policies is not known to the model checker: it is read before the locks, and
/// what is tried is the order of the locks.
#[test]
fn requests_that_meet_a_change_of_the_policies_are_all_counted() {
    for algorithm in Algorithm::ALL {
        for (old, new) in [((1, 60), (3, 60)), ((3, 60), (1, 60)), ((2, 60), (2, 30)), ((2, 30), (4, 60))] {
            loom::model(move || {
                let set = |(limit, secs): (u64, u64)| {
                    let quota = Quota::new(limit, std::time::Duration::from_secs(secs)).unwrap();
                    let policy = Policy::new("p", quota.with_algorithm(algorithm)).unwrap();
                    PolicySet::new([policy.with_scope(["user"])]).unwrap()
                };
                let gate = Arc::new(Gate::with_memory(set(old), store()));
                let check =
                    |gate: &Gate| u64::from(gate.check(&Request::new().with("user", "key")).is_allowed());
                let other = {
                    let gate = gate.clone();
                    thread::spawn(move || check(&gate) + check(&gate))
                };
                gate.configure(set(new)).unwrap();
                let mine = check(&gate);
                let admitted = other.join().unwrap() + mine;
                let change = format!("{algorithm}, {old:?} to {new:?}");
                assert!((1..=old.0.max(new.0)).contains(&admitted), "{change}: {admitted}");
                let request = Request::new().with("user", "key");
                let used = gate.peek(&request).strictest().unwrap().decision().used();
                assert_eq!(used, admitted, "{change}");
            });
        }
    }
}

/// A cost that is taken while its lease is settled must be in what it is settled to, and one that is put back
/// afterwards must not be in that of the next.
#[test]
fn what_threads_take_of_leases_and_do_not_put_back_is_what_the_leases_are_settled_to() {
    loom::model(|| {
        let lease = Arc::new(Mutex::new(Some(Slice::new(1, 2, 10))));
        let taken = |lease: &Mutex<Option<Slice>>| {
            let mut lease = lease.lock().unwrap();
            lease.as_mut().filter(|slice| slice.left() > 0)?.take(1, || 9).then(|| lease.as_ref().unwrap().id)
        };
        let admitted = {
            let lease = lease.clone();
            thread::spawn(move || u64::from(taken(&lease).is_some()))
        };
        // Its request is denied by another policy.
        let lost = {
            let lease = lease.clone();
            thread::spawn(move || {
                let Some(id) = taken(&lease) else { return 0 };
                let mut lease = lease.lock().unwrap();
                let same = lease.as_mut().filter(|slice| slice.id == id);
                same.map_or(1, |slice| {
                    slice.put_back(1);
                    0
                })
            })
        };
        // It is ended before its call is sent, and the reply brings the next.
        let ended = lease.lock().unwrap().take();
        let first = ended.map_or(0, Slice::end);
        *lease.lock().unwrap() = Some(Slice::new(2, 1, 10));
        let used = admitted.join().unwrap() + lost.join().unwrap();
        let second = lease.lock().unwrap().take().map_or(0, Slice::end);
        assert_eq!(first + second, used);
        assert!(first <= 2 && second <= 1);
    });
}

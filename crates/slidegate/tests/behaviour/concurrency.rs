//! Many threads at once: what is admitted is what the limit says, to the last request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use slidegate::{
    Algorithm, Gate, Limiter, Match, MemoryStore,
    clock::{Clock, ManualClock},
};
use slidegate::{Policy, PolicySet, Quota, Request, clock::Timestamp};

const THREADS: u64 = 8;
/// Far more than any run takes, far less than anyone who watches it bears.
const DEADLOCK: Duration = Duration::from_secs(60);

/// Runs `work` on every thread, given its number; returns the sum of what they return.
fn sum_over_threads(threads: u64, work: impl Fn(u64) -> u64 + Sync) -> u64 {
    thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..threads).map(|nth| scope.spawn(move || work(nth))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// Fails, where otherwise a deadlock would hang.
fn finishes(work: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let running = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    if wait.recv_timeout(DEADLOCK) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("the threads wait for each other");
    }
    running.join().unwrap();
}

/// A check and a charge in two steps let 51 through a limit of 50.
#[test]
fn threads_on_one_key_share_exactly_the_limit() {
    for algorithm in Algorithm::ALL {
        for (limit, threads) in [(5, 100), (20, 20), (1000, THREADS)] {
            let quota = Quota::per_minute(limit).with_algorithm(algorithm);
            let store = MemoryStore::builder().clock(ManualClock::new()).build();
            let limiter = Limiter::with_store(quota, store);
            let each = limit / threads + 20;
            let admitted = sum_over_threads(threads, |_| {
                (0..each).map(|_| u64::from(limiter.check("key").is_allowed())).sum()
            });
            assert_eq!(admitted, limit, "{algorithm}: {threads} threads");
            assert_eq!(limiter.peek("key").used(), limit, "{algorithm}: {threads} threads");
        }
    }
}

/// A single race rarely fails; thousands, each started at one moment, do.
#[test]
fn threads_that_meet_on_a_fresh_key_share_its_limit_every_time() {
    const ROUNDS: u64 = 3000;
    const MEETING: u64 = 3;
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_minute(1).with_algorithm(algorithm);
        let store = MemoryStore::builder().max_keys(10_000).clock(ManualClock::new()).build();
        let limiter = Limiter::with_store(quota, store);
        let arrived = AtomicU64::new(0);
        let admitted = sum_over_threads(MEETING, |_| {
            let race = |round: u64| {
                arrived.fetch_add(1, Ordering::AcqRel);
                while arrived.load(Ordering::Acquire) < MEETING * (round + 1) {
                    // There may be fewer processors than threads.
                    thread::yield_now();
                }
                u64::from(limiter.check(round.to_le_bytes()).is_allowed())
            };
            (0..ROUNDS).map(race).sum()
        });
        assert_eq!(admitted, ROUNDS, "{algorithm}");
    }
}

/// The clock of a real service runs on while threads overtake each other between reading it and
/// being decided.
#[test]
fn threads_on_the_system_clock_share_exactly_the_limit() {
    for algorithm in Algorithm::ALL {
        // So long that nothing comes free meanwhile, and that no aligned window begins.
        let quota = Quota::new(5000, Quota::MAX_WINDOW).unwrap().with_algorithm(algorithm);
        let limiter = Limiter::new(quota);
        let admitted = sum_over_threads(THREADS, |nth| {
            let cost = 1 + nth % 3;
            let asks = 2 * 5000 / THREADS;
            (0..asks).map(|_| limiter.check_cost("key", cost).cost()).sum()
        });
        assert_eq!(admitted, 5000, "{algorithm}");
    }
}

/// Charges, refunds and penalties that meet must not lose one another.
#[test]
fn what_threads_charge_and_give_back_adds_up() {
    for algorithm in Algorithm::ALL {
        let quota = Quota::per_minute(100_000).with_algorithm(algorithm);
        let store = MemoryStore::builder().clock(ManualClock::new()).build();
        let limiter = Limiter::with_store(quota, store);
        let net = sum_over_threads(THREADS, |nth| {
            (0..2000).fold(0, |net: u64, n| match (n + nth) % 4 {
                0 => net + limiter.penalize("key", 3).cost(),
                // Two of the five that this thread has charged: there is always as much to refund.
                1 if n >= 4 => net - limiter.refund("key", 2).cost(),
                _ => net + limiter.check_cost("key", 1).cost(),
            })
        });
        assert_eq!(limiter.peek("key").used(), net, "{algorithm}");
    }
}

/// What the shadow policy would let through.
const WATCHED: u64 = 200;

/// Four policies over two attributes, of which requests meet different ones; one shadow among them.
fn overlapping() -> PolicySet {
    let policy =
        |name, limit, algorithm| Policy::new(name, Quota::per_hour(limit).with_algorithm(algorithm)).unwrap();
    PolicySet::new([
        policy("per-user", 700, Algorithm::SlidingLog).with_scope(["user"]),
        policy("per-path", 300, Algorithm::SlidingWindow).with_scope(["path"]),
        policy("both", 150, Algorithm::FixedWindow)
            .with_condition("path", Match::one_of(["a", "b"]))
            .with_scope(["path", "user"]),
        policy("watched", WATCHED, Algorithm::TokenBucket).with_scope(["user"]).with_enforced(false),
    ])
    .unwrap()
}

/// Half a charge is a client that pays for requests it was denied; two locks in two orders are a
/// service that stands.
#[test]
fn overlapping_policies_charge_all_or_none_and_never_wait_for_each_other() {
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    finishes(|| {
        // Shards enough that the keys of a request lie in several.
        let store = MemoryStore::builder().max_keys(64 * 1024).clock(ManualClock::new()).build();
        let gate = Gate::with_memory(overlapping(), store);
        // What allowed requests cost, by user and path.
        let allowed: [[AtomicU64; 4]; 4] = Default::default();
        sum_over_threads(THREADS, |nth| {
            for n in 0..1500_u64 {
                let turn = usize::try_from(n * (2 * nth + 1) + nth).unwrap();
                let (user, path) = (turn % 4, turn / 4 % 4);
                let cost = 1 + n % 3;
                let request =
                    Request::new().with("user", NAMES[user]).with("path", NAMES[path]).with_cost(cost);
                let decisions = gate.check(&request);
                let charged = decisions.iter().filter(|one| one.decision().cost() > 0).count();
                if decisions.is_allowed() {
                    let enforced = decisions.iter().filter(|one| one.policy().options().enforced);
                    assert!(enforced.map(|one| one.decision().cost()).all(|charged| charged == cost));
                    allowed[user][path].fetch_add(cost, Ordering::Relaxed);
                } else {
                    assert_eq!(charged, 0);
                }
            }
            0
        });
        let sum = |users: &[usize], paths: &[usize]| -> u64 {
            let cells = users.iter().flat_map(|user| paths.iter().map(|path| &allowed[*user][*path]));
            cells.map(|cell| cell.load(Ordering::Relaxed)).sum()
        };
        let every = [0, 1, 2, 3];
        for user in every {
            for path in every {
                let request = Request::new().with("user", NAMES[user]).with("path", NAMES[path]);
                for one in gate.peek(&request).iter() {
                    let expected = match one.policy().name() {
                        "per-user" => sum(&[user], &every),
                        "per-path" => sum(&every, &[path]),
                        "both" => sum(&[user], &[path]),
                        // Counts what fits it and nothing else, to within the greatest cost.
                        _ => sum(&[user], &every).min(WATCHED),
                    };
                    let name = one.policy().name();
                    assert!(one.decision().used() <= one.decision().limit(), "{name}");
                    if name == "watched" {
                        assert!(
                            one.decision().used() <= expected && one.decision().used() + 3 > expected,
                            "{name}"
                        );
                    } else {
                        assert_eq!(one.decision().used(), expected, "{name} of {}", one.key());
                    }
                }
            }
        }
    });
}

/// Resets, sweeps, limits that change and a store that overflows, all at once: nobody panics,
/// nothing is lost.
#[test]
fn a_store_under_pressure_keeps_its_bound_and_its_senses() {
    finishes(|| {
        let clock = ManualClock::new();
        let store = MemoryStore::builder().max_keys(3000).clock(clock.clone()).build();
        let gate = Gate::with_memory(overlapping(), store);
        let fewer = || PolicySet::new(overlapping().iter().skip(1).cloned()).unwrap();
        sum_over_threads(THREADS, |nth| {
            for n in 0..3000_u64 {
                let (user, path) = ((n * (nth + 1) % 7000).to_string(), (n % 900).to_string());
                let request = Request::new().with("user", &user).with("path", &path);
                match n % 64 {
                    60 => drop(gate.reset(&request)),
                    61 => drop(gate.refund(&request)),
                    62 => drop(gate.penalize(&request)),
                    63 if nth == 0 => clock.advance(Duration::from_secs(7)),
                    63 if nth == 1 => {
                        gate.configure(if n % 128 == 63 { fewer() } else { overlapping() }).unwrap();
                    }
                    63 => drop(gate.store().sweep(500)),
                    _ => drop(gate.check(&request)),
                }
            }
            0
        });
        // One key for each shard past the first may be there that found nothing to take the place
        // of.
        assert!(gate.store().stats().keys <= 3000 + 1, "{:?}", gate.store().stats());
        assert!(gate.store().stats().dropped > 0, "{:?}", gate.store().stats());
        clock.advance(Duration::from_secs(3 * 3600));
        gate.store().sweep(20_000);
        assert_eq!(gate.store().stats().keys, 0);
    });
}

/// A clock whose one reading can be kept back, like a thread that loses the processor just after
/// it.
#[derive(Debug)]
struct Held {
    clock: ManualClock,
    state: &'static (Mutex<Reading>, Condvar),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Anyone who reads next is kept back.
    Next,
    /// Somebody has read, and is kept back.
    Kept,
    /// Nobody is kept back.
    Free,
}

impl Clock for Held {
    fn now(&self) -> Timestamp {
        let now = self.clock.now();
        let (state, changed) = self.state;
        let mut reading = state.lock().unwrap();
        if *reading == Reading::Next {
            *reading = Reading::Kept;
            changed.notify_all();
            // In vain if the other waits for a lock that this thread holds: then there is nothing
            // to overtake.
            let patience = Duration::from_millis(300);
            drop(changed.wait_timeout_while(reading, patience, |reading| *reading == Reading::Kept).unwrap());
        }
        now
    }
}

/// A machine that stands still for a few seconds leaves requests with the time of before; others
/// pass them by.
///
/// Time in process never runs back, so an old reading is no step of the clock and must not move the
/// history.
#[test]
fn a_thread_with_an_old_reading_of_the_clock_does_not_make_charges_expire_early() {
    for algorithm in Algorithm::ALL {
        let state: &'static _ = Box::leak(Box::new((Mutex::new(Reading::Free), Condvar::new())));
        // Five seconds before a border of aligned windows.
        let start = Timestamp::from_secs(1_000_000_020 - 5);
        let clock = ManualClock::at(start);
        let store = MemoryStore::builder().clock(Held { clock: clock.clone(), state }).build();
        let limiter = Limiter::with_store(Quota::per_minute(10).with_algorithm(algorithm), store);
        let set = |reading| {
            *state.0.lock().unwrap() = reading;
            state.1.notify_all();
        };
        let mut admitted = Vec::new();
        let mut check = |secs: u64, cost: u64| {
            clock.set(start + Duration::from_secs(secs));
            if limiter.check_cost("key", cost).is_allowed() {
                admitted.push((secs, cost));
            }
        };
        set(Reading::Next);
        thread::scope(|scope| {
            // Reads second 0 and is kept back; a cost that never fits, so it charges nothing
            // itself.
            scope.spawn(|| limiter.check_cost("key", 11));
            let kept = state.1.wait_while(state.0.lock().unwrap(), |reading| *reading != Reading::Kept);
            drop(kept.unwrap());
            check(7, 10);
            set(Reading::Free);
        });
        for secs in 8..65 {
            (0..10).for_each(|_| check(secs, 1));
        }
        let sum: u64 = admitted.iter().map(|(_, cost)| cost).sum();
        let most = match algorithm {
            // A bucket drains by ten in a minute.
            Algorithm::TokenBucket => 19,
            _ => 10,
        };
        assert!(sum <= most, "{algorithm}: {sum} of {most} within a minute: {admitted:?}");
    }
}

//! The memory store under concurrency, on a clock that is moved by hand.
//!
//! Threads decide in rounds at one moment. Within a round usage only grows, so whatever the order
//! of its requests was, two things must hold after it for every key: what was admitted in the last
//! window is at most the limit; and a denied request no longer fits into all of its policies.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use slidegate::{
    Gate, MemoryStore, Policy, PolicySet, Quota, Request,
    clock::{ManualClock, Timestamp},
};

const USERS: usize = 10_000;
const GROUPS: usize = 64;
const USER_LIMIT: u64 = 40;
const GROUP_LIMIT: u64 = 900;
const WINDOW_MS: u64 = 1000;
/// Requests of each thread in one round.
const ROUND: usize = 4096;
/// The longest time between two rounds.
const MAX_STEP_MS: u64 = 40;

/// A decided request.
#[derive(Debug, Clone, Copy)]
struct Decided {
    user: usize,
    cost: u64,
    allowed: bool,
}

/// What a key was admitted, as a list of charges.
#[derive(Debug, Default, Clone)]
struct Charges {
    list: VecDeque<(u64, u64)>,
    used: u64,
}

impl Charges {
    /// A charge at t counts in (now - window, now].
    fn expire(&mut self, now: u64) {
        while let Some(&(at, cost)) = self.list.front()
            && at + WINDOW_MS <= now
        {
            self.used -= cost;
            self.list.pop_front();
        }
    }

    fn add(&mut self, now: u64, cost: u64) {
        self.used += cost;
        self.list.push_back((now, cost));
    }
}

fn group(user: usize) -> usize {
    user % GROUPS
}

pub(crate) fn run(decisions: u64) -> Result<String, String> {
    let window = Duration::from_millis(WINDOW_MS);
    let policy = |name: &str, limit| {
        let quota = Quota::new(limit, window).expect("the quota is valid");
        Policy::new(name, quota).expect("the name is valid").with_scope([name])
    };
    let policies = PolicySet::new([policy("user", USER_LIMIT), policy("group", GROUP_LIMIT)]);
    let clock = ManualClock::at(Timestamp::from_micros(1_000_000_000));
    let store = MemoryStore::builder().max_keys(4 * USERS).clock(clock.clone()).build();
    let gate = Gate::with_memory(policies.expect("the names differ"), store);
    let threads = thread::available_parallelism().map_or(2, usize::from).max(2);
    let names: Vec<String> = (0..USERS).map(|user| format!("user-{user}")).collect();
    let groups: Vec<String> = (0..GROUPS).map(|group| format!("group-{group}")).collect();
    let (barrier, is_over) = (Barrier::new(threads + 1), AtomicBool::new(false));
    let checked = AtomicU64::new(0);
    let rounds: Vec<_> = (0..threads).map(|_| std::sync::Mutex::new(Vec::with_capacity(ROUND))).collect();
    let started = Instant::now();

    thread::scope(|scope| {
        for (seed, round) in rounds.iter().enumerate() {
            let (gate, names, groups, barrier, is_over) = (&gate, &names, &groups, &barrier, &is_over);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed as u64);
                let zipf = Zipf::new(USERS as f64, 1.05).expect("the exponent is valid");
                loop {
                    barrier.wait();
                    if is_over.load(Relaxed) {
                        return;
                    }
                    let mut round = round.lock().expect("nobody else panicked");
                    round.clear();
                    for _ in 0..ROUND {
                        let user = zipf.sample(&mut random) as usize - 1;
                        let cost = random.random_range(0..4);
                        let request = Request::new()
                            .with("user", names[user].as_str())
                            .with("group", groups[group(user)].as_str())
                            .with_cost(cost);
                        let allowed = gate.check(&request).is_allowed();
                        round.push(Decided { user, cost, allowed });
                    }
                    drop(round);
                    barrier.wait();
                }
            });
        }
        let end = |outcome| {
            is_over.store(true, Relaxed);
            barrier.wait();
            outcome
        };
        let mut random = StdRng::seed_from_u64(99);
        let (mut of_user, mut of_group) = (vec![Charges::default(); USERS], vec![Charges::default(); GROUPS]);
        let (mut now, mut admitted, mut denied) = (1_000_000, 0u64, 0u64);
        while checked.load(Relaxed) < decisions {
            now += random.random_range(0..=MAX_STEP_MS);
            clock.set(Timestamp::from_micros(now * 1000));
            barrier.wait();
            barrier.wait();
            let rounds: Vec<_> =
                rounds.iter().map(|round| round.lock().expect("no thread panicked")).collect();
            let all = || rounds.iter().flat_map(|round| round.iter());
            of_group.iter_mut().for_each(|charges| charges.expire(now));
            for decided in all() {
                of_user[decided.user].expire(now);
                if decided.allowed && decided.cost > 0 {
                    of_user[decided.user].add(now, decided.cost);
                    of_group[group(decided.user)].add(now, decided.cost);
                }
            }
            for decided in all() {
                let used = (of_user[decided.user].used, of_group[group(decided.user)].used);
                if used.0 > USER_LIMIT || used.1 > GROUP_LIMIT {
                    return end(Err(format!("{used:?} of ({USER_LIMIT}, {GROUP_LIMIT}) after {decided:?}")));
                }
                let fits = used.0 + decided.cost <= USER_LIMIT && used.1 + decided.cost <= GROUP_LIMIT;
                if !decided.allowed && fits {
                    return end(Err(format!("{decided:?} was denied and still fits beside {used:?}")));
                }
                admitted += u64::from(decided.allowed);
                denied += u64::from(!decided.allowed);
            }
            checked.fetch_add((threads * ROUND) as u64, Relaxed);
        }
        let seconds = started.elapsed().as_secs_f64();
        end(Ok(format!(
            "memory: {} decisions by {threads} threads in {seconds:.0} s, {admitted} admitted, {denied} denied, \
             none wrong",
            admitted + denied
        )))
    })
}

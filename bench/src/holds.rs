//! Reserving and settling in memory, compared with a check through the same gate.

use std::hint::black_box;

use cpu_time::ThreadTime;
use slidegate::{Gate, MemoryStore, Policy, PolicySet, Quota, Request, reserve::Ticket};

use crate::keys::KeyText;
use crate::options::Options;

/// Calls of each kind in a round.
const CALLS: u32 = 100_000;
/// Reservations made before they are settled: the holds of a round on one key are few.
const BATCH: u32 = 8;
/// Never reached, and so high that the log merges charges into steps.
const LIMIT: u64 = 1_000_000_000;

/// A store for fewer keys takes fewer holds than are open here.
const MIN_KEYS: usize = 4096;

/// Keys, and holds that are open on each of them all the time.
const CASES: [(u32, u32); 4] = [(1, 0), (1, 100), (1, 1000), (100_000, 0)];

/// CPU nanoseconds of one call in a round.
#[derive(Clone, Copy)]
struct Round {
    check: f64,
    reserve: f64,
    settle: f64,
}

pub(crate) fn run(options: &Options) {
    println!("\n## holds in memory, one thread, CPU ns\n");
    println!("| keys | open | check | reserve | settle | reserve and settle, x check |");
    println!("|--:|--:|--:|--:|--:|--:|");
    let gates: Vec<_> = CASES.map(|(keys, open)| gate(keys, open)).into();
    let mut rounds = vec![Vec::new(); CASES.len()];
    for _ in 0..options.rounds {
        for ((gate, (keys, _)), rounds) in gates.iter().zip(CASES).zip(&mut rounds) {
            rounds.push(round(gate, keys));
        }
    }
    for ((keys, open), rounds) in CASES.into_iter().zip(&rounds) {
        let median = |of: fn(&Round) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        println!(
            "| {keys} | {open} | {:.0} | {:.0} | {:.0} | {:.2} |",
            median(|round| round.check),
            median(|round| round.reserve),
            median(|round| round.settle),
            median(|round| (round.reserve + round.settle) / round.check),
        );
    }
}

fn gate(keys: u32, open: u32) -> Gate {
    let quota = Quota::per_hour(LIMIT);
    let policy = Policy::new("bench", quota).expect("a name").with_scope(["user"]);
    let store = MemoryStore::builder().max_keys((2 * keys as usize).max(MIN_KEYS)).build();
    let gate = Gate::with_memory(PolicySet::new([policy]).expect("one policy"), store);
    let mut text = KeyText::new();
    for key in 0..keys {
        let request = Request::new().with("user", text.write(key).as_str());
        assert!(gate.check(&request).is_allowed());
        for _ in 0..open {
            // Open for an hour.
            let reserved = gate.reserve_for(&request, std::time::Duration::from_secs(3600));
            assert!(reserved.expect("an hour is allowed").decisions().is_allowed());
        }
    }
    gate
}

fn round(gate: &Gate, keys: u32) -> Round {
    let mut text = KeyText::new();
    // Far apart, as requests of users are.
    let key = |at: u32| (u64::from(at) * 7919 % u64::from(keys)) as u32;
    let per_call = |time: ThreadTime| {
        #[allow(clippy::cast_precision_loss)]
        let ns = time.elapsed().as_nanos() as f64;
        ns / f64::from(CALLS)
    };
    let start = ThreadTime::now();
    for at in 0..CALLS {
        let request = Request::new().with("user", text.write(key(at)).as_str());
        black_box(gate.check(&request));
    }
    let check = per_call(start);
    // Reading this clock takes as long as a check, and is done for each batch.
    let mut clock = 0.0;
    for _ in 0..CALLS / BATCH {
        clock += per_call(ThreadTime::now());
    }
    let (mut reserve, mut settle) = (0.0, 0.0);
    let mut tickets: Vec<Ticket> = Vec::with_capacity(BATCH as usize);
    for batch in 0..CALLS / BATCH {
        let start = ThreadTime::now();
        for at in batch * BATCH..(batch + 1) * BATCH {
            let request = Request::new().with("user", text.write(key(at)).as_str());
            tickets.extend(gate.reserve(&request).into_ticket());
        }
        reserve += per_call(start);
        let start = ThreadTime::now();
        for ticket in tickets.drain(..) {
            black_box(gate.settle(&ticket, 1).expect("the memory store replies"));
        }
        settle += per_call(start);
    }
    Round { check, reserve: reserve - clock, settle: settle - clock }
}

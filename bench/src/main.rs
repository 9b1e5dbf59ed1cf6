//! slidegate compared with other rate limiters: cost per decision, bytes per key, and how both
//! grow.
//!
//! Every contender decides the same keys in the same run, in turn, because the speed of a machine
//! drifts. A row is the median of its rounds. `bench/README.md` describes the rows.

mod cases;
mod clock;
mod holds;
mod keys;
mod measure;
mod memory;
mod options;
mod peers;
mod policies;
mod report;

use cases::Case;
use keys::KeyText;
use measure::Cost;
use options::{Mode, Options};
use peers::{Contender, Peer};
use report::Row;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

fn main() {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{}", options::USAGE);
            std::process::exit(2);
        }
    };
    match options.mode {
        Mode::All => {
            decisions(&options);
            memory_per_key(&options);
            growth(&options);
            holds::run(&options);
            policies::run(&options);
            clock::run();
        }
        Mode::Clock => clock::run(),
        Mode::Decisions => decisions(&options),
        Mode::Memory => memory_per_key(&options),
        Mode::Growth => growth(&options),
        Mode::Holds => holds::run(&options),
        Mode::Policies => policies::run(&options),
        Mode::Profile => profile(&options),
    }
}

/// A contender with the keys of a case, one handle per thread.
struct Entrant {
    contender: Contender,
    handles: Vec<Box<dyn Peer>>,
    /// Live bytes it took to hold the keys, divided by their number.
    bytes_per_key: f64,
    costs: Vec<Cost>,
}

impl Entrant {
    /// Builds the contender and charges every key once, or up to its limit if everything is to be
    /// denied.
    fn enter(contender: Contender, case: Case, keys: u32, threads: usize) -> Option<Self> {
        let before = memory::live();
        let mut handles = contender.build(case.rule(), keys, threads)?;
        for _ in 0..case.passes() {
            fill(handles[0].as_mut(), keys);
        }
        #[allow(clippy::cast_precision_loss)]
        let bytes_per_key = (memory::live() - before) as f64 / f64::from(keys);
        Some(Self { contender, handles, bytes_per_key, costs: Vec::new() })
    }
}

/// Checks every key once, in order.
fn fill(peer: &mut dyn Peer, keys: u32) {
    let mut text = KeyText::new();
    let mut some = Vec::new();
    for first in (0..keys).step_by(1000) {
        some.clear();
        some.extend(first..keys.min(first + 1000));
        peer.decide_all(&mut text, &some);
    }
}

/// Runs the rounds of one case: in each, every contender decides the same keys, one after the
/// other.
fn rounds(options: &Options, case: Case, keys: u32, threads: usize, entrants: &mut [Entrant]) {
    for round in 0..options.rounds {
        let decisions = options.decisions.unwrap_or_else(|| case.decisions());
        let asked: Vec<Vec<u32>> =
            (0..threads).map(|thread| case.draw(keys, decisions, round * threads + thread)).collect();
        for entrant in &mut *entrants {
            let share = asked[0].len() / entrant.contender.slowness();
            let asked: Vec<&[u32]> = asked.iter().map(|keys| &keys[..share]).collect();
            entrant.costs.push(measure::race(&mut entrant.handles, &asked));
        }
    }
}

fn decisions(options: &Options) {
    for &threads in &options.threads {
        for &case in &options.cases {
            let keys = case.keys(options.keys);
            let mut entrants: Vec<_> = options
                .contenders
                .iter()
                .filter_map(|&contender| Entrant::enter(contender, case, keys, threads))
                .collect();
            rounds(options, case, keys, threads, &mut entrants);
            let rows: Vec<_> = entrants.iter().map(|entrant| Row::of(entrant, keys)).collect();
            report::decisions(case, keys, threads, &rows);
        }
    }
}

/// Bytes of a key that was charged once, and of one whose log is full.
fn memory_per_key(options: &Options) {
    report::memory_heading();
    let keys = options.keys;
    for &contender in options.contenders.iter().filter(|contender| contender.holds_keys()) {
        let before = memory::live();
        let Some(mut handles) = contender.build(Case::Uniform.rule(), keys, 1) else { continue };
        let mut text = KeyText::new();
        let (mut worst, mut now) = (0.0, 0.0);
        // Tables grow in steps: take the worst moment between half of the keys and all of them.
        let step = (keys / 100).max(1);
        for first in (0..keys).step_by(step as usize) {
            let end = keys.min(first + step);
            handles[0].decide_all(&mut text, &(first..end).collect::<Vec<_>>());
            #[allow(clippy::cast_precision_loss)]
            let bytes = (memory::live() - before) as f64 / f64::from(end);
            now = bytes;
            if end >= keys / 2 {
                worst = f64::max(worst, bytes);
            }
        }
        report::memory(contender, &format!("{keys} keys, charged once"), now, Some(worst));
    }
    if options.contenders.contains(&Contender::SlidegateLog) {
        for (limit, keys) in [(100, 100_000), (1000, 10_000)] {
            let before = memory::live();
            let rule = cases::Rule { limit, window: std::time::Duration::from_secs(3600) };
            let mut handles =
                Contender::SlidegateLog.build(rule, keys, 1).expect("slidegate holds any quota");
            for _ in 0..limit {
                fill(handles[0].as_mut(), keys);
            }
            #[allow(clippy::cast_precision_loss)]
            let bytes = (memory::live() - before) as f64 / f64::from(keys);
            let what = format!("{keys} keys, full logs of {limit}");
            report::memory(Contender::SlidegateLog, &what, bytes, None);
        }
    }
}

/// Cost of a decision over a thousand to ten million keys.
fn growth(options: &Options) {
    let sizes: Vec<u32> = [1_000, 10_000, 100_000, 1_000_000, 10_000_000]
        .into_iter()
        .filter(|&size| size <= options.most_keys)
        .collect();
    let contenders: Vec<_> = options.contenders.iter().filter(|c| c.slowness() == 1).collect();
    let mut costs = vec![Vec::new(); contenders.len()];
    for &keys in &sizes {
        let mut entrants: Vec<_> = contenders
            .iter()
            .filter_map(|&&contender| Entrant::enter(contender, Case::Growth, keys, 1))
            .collect();
        rounds(options, Case::Growth, keys, 1, &mut entrants);
        for (costs, entrant) in costs.iter_mut().zip(&entrants) {
            costs.push(Row::of(entrant, keys).cpu_ns);
        }
    }
    let rows: Vec<_> = contenders.into_iter().copied().zip(costs).collect();
    report::growth(&sizes, &rows);
}

/// One contender and one case, run once: for a profiler.
fn profile(options: &Options) {
    let (case, contender) = (options.cases[0], options.contenders[0]);
    let (keys, threads) = (case.keys(options.keys), options.threads[0]);
    let Some(mut entrant) = Entrant::enter(contender, case, keys, threads) else {
        eprintln!("{} does not take part in {}", contender.name(), case.name());
        std::process::exit(2);
    };
    let once = Options { rounds: 1, ..options.clone() };
    rounds(&once, case, keys, threads, std::slice::from_mut(&mut entrant));
    report::decisions(case, keys, threads, &[Row::of(&entrant, keys)]);
}

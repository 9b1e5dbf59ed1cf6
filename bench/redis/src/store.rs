//! The cost of a decision in Redis under concurrent load, and the throughput.

use std::sync::Arc;

use crate::Failed;
use crate::drive::{Progress, Until, Users, drive};
use crate::figures::{float, median, ratio};
use crate::options::Options;
use crate::peers::{Habits, Peer, gate, quota};
use crate::server::{Server, Work};

const MANY_KEYS: u64 = 10_000;
/// A limit that no run reaches.
const AMPLE: u64 = 1_000_000_000;
/// A limit that every run reaches.
const SCARCE: u64 = 10;
/// Tasks that prepare the keys of a row.
const FILLING_TASKS: u64 = 64;

/// The requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    name: &'static str,
    limit: u64,
    keys: u64,
    habits: &'static [Habits],
}

const TOGETHER: Habits = Habits { coalesces: true, remembers: false };
const REMEMBERING: Habits = Habits { coalesces: true, remembers: true };

const CASES: [Case; 4] = [
    Case { name: "hot key", limit: AMPLE, keys: 1, habits: &[Habits::NONE, TOGETHER] },
    Case { name: "hot key, denied", limit: SCARCE, keys: 1, habits: &[Habits::NONE, TOGETHER, REMEMBERING] },
    Case { name: "10,000 keys", limit: AMPLE, keys: MANY_KEYS, habits: &[Habits::NONE, TOGETHER] },
    Case {
        name: "10,000 keys, denied",
        limit: SCARCE,
        keys: MANY_KEYS,
        habits: &[Habits::NONE, TOGETHER, REMEMBERING],
    },
];

const TASKS: [u64; 3] = [1, 64, 1_000];

/// One row: a case, a mode and a number of tasks.
struct Row {
    case: Case,
    habits: Habits,
    tasks: u64,
    peer: Arc<Peer>,
    rounds: Vec<Round>,
}

struct Round {
    progress: Progress,
    work: Work,
}

impl Round {
    fn per_second(&self) -> f64 {
        float(self.progress.decisions) / self.progress.seconds
    }

    fn calls(&self) -> f64 {
        float(self.work.calls) / float(self.progress.decisions)
    }

    fn script_us(&self) -> f64 {
        self.work.script_us / float(self.progress.decisions)
    }

    fn cpu_us(&self) -> f64 {
        self.work.cpu_us / float(self.progress.decisions)
    }

    /// Decisions in a second of Redis's CPU time.
    fn per_cpu_second(&self) -> f64 {
        1e6 / self.cpu_us()
    }

    fn allowed(&self) -> f64 {
        float(self.progress.allowed) / float(self.progress.decisions)
    }
}

pub(crate) async fn run(server: &Server, options: &Options) -> Result<(), Failed> {
    let mut meter = server.meter().await?;
    let mut rows = Vec::new();
    for case in CASES {
        for &tasks in &TASKS {
            for &habits in case.habits {
                let peer = Arc::new(gate(server, quota(case.limit)?, habits)?);
                rows.push(Row { case, habits, tasks, peer, rounds: Vec::new() });
            }
        }
    }
    for _ in 0..options.rounds {
        let mut last = None;
        for row in &mut rows {
            // Until all keys exist, and then all denials are cached.
            let mut fill = row.case.keys;
            if last.replace(row.case) != Some(row.case) {
                meter.forget_keys().await?;
                fill += row.case.keys * row.case.limit.min(SCARCE);
            }
            drive(&row.peer, FILLING_TASKS, Until::Decisions(fill), Users::InTurn(row.case.keys)).await?;
            let before = meter.read().await?;
            let progress =
                drive(&row.peer, row.tasks, Until::Elapsed(options.time), Users::InTurn(row.case.keys))
                    .await?;
            row.rounds.push(Round { progress, work: meter.read().await? - before });
        }
    }
    report(&rows);
    Ok(())
}

fn report(rows: &[Row]) {
    println!("\n## store\n");
    println!(
        "| {:<19} | {:>5} | {:<23} | {:>11} | {:>10} | {:>9} | {:>8} | {:>18} | {:>8} | {:>7} |",
        "case",
        "tasks",
        "mode",
        "decisions/s",
        "calls each",
        "script us",
        "CPU us",
        "decisions/CPU s",
        "x single",
        "allowed"
    );
    println!("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|");
    for row in rows {
        let single = rows
            .iter()
            .find(|other| (other.case, other.tasks, other.habits) == (row.case, row.tasks, Habits::NONE));
        let middle = |of: fn(&Round) -> f64| median(row.rounds.iter().map(of));
        let times = single.map_or(f64::NAN, |single| {
            ratio(
                row.rounds.iter().map(Round::per_cpu_second),
                single.rounds.iter().map(Round::per_cpu_second),
            )
        });
        println!(
            "| {:<19} | {:>5} | {:<23} | {:>11.0} | {:>10.4} | {:>9.3} | {:>8.3} | {:>18.0} | {:>8.2} | {:>6.0}% |",
            row.case.name,
            row.tasks,
            row.habits.name(),
            middle(Round::per_second),
            middle(Round::calls),
            middle(Round::script_us),
            middle(Round::cpu_us),
            middle(Round::per_cpu_second),
            times,
            middle(Round::allowed) * 100.0,
        );
    }
}

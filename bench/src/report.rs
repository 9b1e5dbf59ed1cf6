//! The tables, in Markdown.

use crate::Entrant;
use crate::cases::Case;
use crate::clock::ClockFigures;
use crate::measure::Cost;
use crate::peers::Contender;

/// One contender in one case: medians over the rounds.
pub(crate) struct Row {
    contender: Contender,
    wall_ns: f64,
    pub(crate) cpu_ns: f64,
    /// CPU time in the least disturbed round.
    best_ns: f64,
    /// Half of the interquartile range of the rounds, as a share of the median.
    spread: f64,
    denied: f64,
    /// `None` if there are few keys.
    bytes_per_key: Option<f64>,
}

/// Elapsed time over CPU time above which a case is marked as disturbed.
const MOST_WAITING: f64 = 1.15;
/// Minimum number of keys for meaningful bytes per key.
const MANY_KEYS: u32 = 1000;

impl Row {
    pub(crate) fn of(entrant: &Entrant, keys: u32) -> Self {
        let cpu = sorted(&entrant.costs, |cost| cost.cpu_ns);
        let quarter = |n: usize| cpu[(cpu.len() - 1) * n / 4];
        Self {
            contender: entrant.contender,
            wall_ns: median(&sorted(&entrant.costs, |cost| cost.wall_ns)),
            cpu_ns: median(&cpu),
            best_ns: cpu[0],
            spread: (quarter(3) - quarter(1)) / 2.0 / median(&cpu),
            denied: median(&sorted(&entrant.costs, |cost| cost.denied)),
            bytes_per_key: (keys >= MANY_KEYS && entrant.contender.holds_keys())
                .then_some(entrant.bytes_per_key),
        }
    }
}

fn sorted(costs: &[Cost], of: impl Fn(&Cost) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = costs.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[middle - 1] + sorted[middle]) / 2.0 } else { sorted[middle] }
}

/// Times as fast as governor, if it took part; `of` picks the cost that is compared.
fn against_governor(rows: &[Row], row: &Row, of: impl Fn(&Row) -> f64) -> String {
    let governor = rows.iter().find(|row| row.contender == Contender::Governor);
    governor.map_or_else(String::new, |governor| format!("{:.2}", of(governor) / of(row)))
}

pub(crate) fn decisions(case: Case, keys: u32, threads: usize, rows: &[Row]) {
    let rule = case.rule();
    println!("\n## {}, {threads} thread(s)", case.name());
    println!("\n{keys} key(s), limit {} per {:?}\n", rule.limit, rule.window);
    println!(
        "| {:<16} | {:>7} | {:>7} | {:>4} | {:>7} | {:>8} | {:>8} | {:>6} | {:>9} |",
        "peer", "CPU ns", "best", "±%", "wall ns", "x CPU", "x wall", "denied", "bytes/key"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    for row in rows {
        println!(
            "| {:<16} | {:>7.1} | {:>7.1} | {:>4.0} | {:>7.1} | {:>8} | {:>8} | {:>5.0}% | {:>9} |",
            row.contender.name(),
            row.cpu_ns,
            row.best_ns,
            row.spread * 100.0,
            row.wall_ns,
            against_governor(rows, row, |row| row.cpu_ns),
            against_governor(rows, row, |row| row.wall_ns),
            row.denied * 100.0,
            row.bytes_per_key.map_or_else(String::new, |bytes| format!("{bytes:.1}")),
        );
    }
    note_disturbance(rows);
}

/// Notes when other programs used the cores: two threads that share one core never contend for a
/// lock.
fn note_disturbance(rows: &[Row]) {
    let least = rows.iter().map(|row| row.wall_ns / row.cpu_ns).fold(f64::INFINITY, f64::min);
    if least > MOST_WAITING {
        println!(
            "\ndisturbed: even the luckiest peer got a processor only {:.0} % of the time",
            100.0 / least
        );
    }
}

pub(crate) fn memory_heading() {
    println!("\n## memory\n");
    println!("| {:<16} | {:<34} | {:>9} | {:>16} |", "peer", "held", "bytes/key", "worst in growth");
    println!("|---|---|--:|--:|");
}

pub(crate) fn memory(contender: Contender, held: &str, bytes: f64, worst: Option<f64>) {
    let worst = worst.map_or_else(String::new, |worst| format!("{worst:.1}"));
    println!("| {:<16} | {held:<34} | {bytes:>9.1} | {worst:>16} |", contender.name());
}

/// CPU time of a decision by number of keys; `rows` hold a cost for each of `sizes`.
pub(crate) fn growth(sizes: &[u32], rows: &[(Contender, Vec<f64>)]) {
    println!("\n## growth, 1 thread, CPU ns\n");
    let heads: String = sizes.iter().map(|size| format!(" {size:>8} |")).collect();
    println!("| {:<16} |{heads} {:>6} | {:>13} |", "peer / keys", "grows", "beyond floor");
    println!("|---|{}--:|--:|", "--:|".repeat(sizes.len()));
    let growth = |costs: &[f64]| costs[costs.len() - 1] / costs[0];
    let floor = rows.iter().find(|(contender, _)| *contender == Contender::Floor);
    for (contender, costs) in rows {
        let cells: String = costs.iter().map(|cost| format!(" {cost:>8.1} |")).collect();
        let beyond =
            floor.map_or_else(String::new, |(_, floor)| format!("{:.2}", growth(costs) / growth(floor)));
        println!("| {:<16} |{cells} {:>6.2} | {beyond:>13} |", contender.name(), growth(costs));
    }
}

/// The clock's figures.
pub(crate) fn clock(figures: &ClockFigures) {
    println!("\n### clock\n\n| clock | CPU ns, in a row | ns, 25 us apart |\n|---|--:|--:|");
    for (name, at) in [("SystemClock", 0), ("CLOCK_MONOTONIC", 1)] {
        println!("| {name:<15} | {:16.1} | {:15.1} |", figures.in_a_row_ns[at], figures.apart_ns[at]);
    }
    println!(
        "\nover {:?}: ahead by {:.2} us at most, {:+.3} ppm faster",
        figures.compared, figures.most_ahead_us, figures.drift_ppm
    );
}

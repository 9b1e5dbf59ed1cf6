//! What decisions cost a server with the native module, against the scripts on a server without it:
//! checks of one key and under several policies, reservations and settlements.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use slidegate::store::ServiceStore;
use slidegate::{Algorithm, Quota};

use crate::Failed;
use crate::drive::{Until, Users, drive};
use crate::figures::{float, median, ratio};
use crate::holds::{self, CALLS, Row};
use crate::options::Options;
use crate::peers::{Habits, Peer, WINDOW, gate, gate_of};
use crate::server::{Meter, Server};

/// Calls in flight.
const TASKS: u64 = 64;
/// Decisions of a cell in a round.
const DECISIONS: u64 = 100_000;
/// Checks while a store asks whether its node has the module.
const MOST_QUESTIONS: usize = 1000;
/// A limit that no run reaches, and one that is reached at once.
const LIMITS: [(u64, &str); 2] = [(1_000_000_000, "allowed"), (1, "denied")];
const KEYS: [u64; 2] = [1, 100_000];
/// Policies of a request, all of one algorithm.
const POLICIES: [usize; 2] = [2, 4];
/// Holds that are open on each key.
const OPEN: [usize; 2] = [0, 100];

/// One kind of check, by the script and by the module.
struct Cell {
    name: String,
    keys: u64,
    is_denied: bool,
    peers: [Arc<Peer>; 2],
    /// CPU microseconds of a decision in each round.
    rounds: Vec<[f64; 2]>,
}

/// Without the append-only file and with it.
const FILES: [(&str, &str); 2] = [("no", ""), ("yes", ", AOF")];

/// A server without the module and one with it.
async fn servers(file: &str) -> Result<[Server; 2], Failed> {
    let library = build()?;
    let library = library.to_string_lossy();
    let args = ["--appendonly", file, "--appendfsync", "everysec"];
    Ok([
        Server::start(&args).await?,
        Server::start(&[&args[..], &["--loadmodule", &library]].concat()).await?,
    ])
}

fn print_head() {
    println!("\n## native module\n");
    println!("| check | script, CPU us | module, CPU us | module / script |");
    println!("|---|--:|--:|--:|");
}

/// Calls under several policies, and reservations.
pub(crate) async fn run_calls(options: &Options) -> Result<(), Failed> {
    print_head();
    for (file, title) in FILES {
        let servers = servers(file).await?;
        let mut meters = [servers[0].meter().await?, servers[1].meter().await?];
        for policies in POLICIES {
            for (limit, verdict) in LIMITS {
                let quotas = vec![Quota::new(limit, WINDOW)?; policies];
                let peers = [0, 1].map(|at| gate_of(&servers[at], &quotas, Habits::NONE));
                let [script, module] = peers;
                let peers = [Arc::new(script?), Arc::new(module?)];
                let name = format!("sliding-log, {policies} policies, {verdict}, 1 user{title}");
                let mut cell = Cell { name, keys: 1, is_denied: limit == 1, peers, rounds: Vec::new() };
                cell.measure(&mut meters, options.rounds).await?;
                cell.report();
            }
        }
        for open in OPEN {
            hold(open, title, &servers, &mut meters, options.rounds).await?;
        }
    }
    Ok(())
}

/// Checks of one key.
pub(crate) async fn run(options: &Options) -> Result<(), Failed> {
    print_head();
    for (file, title) in FILES {
        let servers = servers(file).await?;
        let mut meters = [servers[0].meter().await?, servers[1].meter().await?];
        for algorithm in Algorithm::ALL {
            for (limit, verdict) in LIMITS {
                for keys in KEYS {
                    let quota = Quota::new(limit, WINDOW)?.with_algorithm(algorithm);
                    let peers = [0, 1].map(|at| gate(&servers[at], quota, Habits::NONE));
                    let [script, module] = peers;
                    let peers = [Arc::new(script?), Arc::new(module?)];
                    let name = format!("{}, {verdict}, {keys} keys{title}", algorithm.name());
                    let is_denied = limit == 1;
                    let mut cell = Cell { name, keys, is_denied, peers, rounds: Vec::new() };
                    cell.measure(&mut meters, options.rounds).await?;
                    cell.report();
                }
            }
        }
    }
    Ok(())
}

/// Calls on keys with so many holds open, by the scripts and by the module.
async fn hold(
    open: usize,
    title: &str,
    servers: &[Server; 2],
    meters: &mut [Meter; 2],
    rounds: usize,
) -> Result<(), Failed> {
    let mut rows = Vec::new();
    for (server, meter) in servers.iter().zip(&mut *meters) {
        meter.forget_keys().await?;
        let gate = holds::gate(server)?;
        let row = Row::new(open, &gate, meter).await?;
        rows.push((gate, row));
    }
    let has_module = |at: usize| rows[at].0.store().primary().nodes().iter().all(|node| node.has_module);
    if [has_module(0), has_module(1)] != [false, true] {
        return Err("the store does not use the module where it is loaded, and only there".into());
    }
    for _ in 0..rounds {
        for ((gate, row), meter) in rows.iter_mut().zip(&mut *meters) {
            let round = row.round(gate, meter).await?;
            row.rounds.push(round);
        }
    }
    for (at, call) in CALLS.into_iter().enumerate() {
        let of = |row: usize| rows[row].1.rounds.iter().map(move |round| round[at].cpu_us);
        let (script, module) = (median(of(0)), median(of(1)));
        let name = format!("{call}, {open} holds open{title}");
        println!("| {name} | {script:.2} | {module:.2} | {:.2} |", ratio(of(1), of(0)));
    }
    Ok(())
}

/// Builds the module. Returns where it is.
fn build() -> Result<PathBuf, Failed> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&root).args(["build", "--profile", "dist", "--quiet", "--package", "slidegate-module"]);
    if !cargo.status()?.success() {
        return Err("the module cannot be built".into());
    }
    Ok(root.join("target/dist/libslidegate_module.so").canonicalize()?)
}

impl Cell {
    async fn measure(&mut self, meters: &mut [Meter; 2], rounds: usize) -> Result<(), Failed> {
        for (peer, meter) in self.peers.iter().zip(&mut *meters) {
            meter.forget_keys().await?;
            // All keys exist, and are full if they are to deny.
            drive(peer, TASKS, Until::Decisions(2 * self.keys.max(TASKS)), Users::InTurn(self.keys)).await?;
        }
        for _ in 0..MOST_QUESTIONS {
            if self.peers[1].has_module() {
                break;
            }
            drive(&self.peers[1], TASKS, Until::Decisions(TASKS), Users::InTurn(self.keys)).await?;
        }
        if [self.peers[0].has_module(), self.peers[1].has_module()] != [false, true] {
            return Err("the store does not use the module where it is loaded, and only there".into());
        }
        for _ in 0..rounds {
            let mut round = [0.0; 2];
            for ((peer, meter), cost) in self.peers.iter().zip(&mut *meters).zip(&mut round) {
                let before = meter.read().await?;
                let progress =
                    drive(peer, TASKS, Until::Decisions(DECISIONS), Users::InTurn(self.keys)).await?;
                let work = meter.read().await? - before;
                let denied = progress.decisions - progress.allowed;
                if work.calls != DECISIONS || denied != if self.is_denied { DECISIONS } else { 0 } {
                    return Err(format!("{}: {} calls, {denied} denied", self.name, work.calls).into());
                }
                *cost = work.cpu_us / float(DECISIONS);
            }
            self.rounds.push(round);
        }
        Ok(())
    }

    fn report(&self) {
        let of = |at: usize| self.rounds.iter().map(move |round| round[at]);
        let (script, module) = (median(of(0)), median(of(1)));
        println!("| {} | {script:.2} | {module:.2} | {:.2} |", self.name, ratio(of(1), of(0)));
    }
}

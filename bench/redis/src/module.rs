//! What a check of one key costs a server with the native module, against the script on a server
//! without it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use slidegate::{Algorithm, Quota};

use crate::Failed;
use crate::drive::{Until, Users, drive};
use crate::figures::{float, median, ratio};
use crate::options::Options;
use crate::peers::{Habits, Peer, WINDOW, gate};
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

/// One kind of check, by the script and by the module.
struct Cell {
    name: String,
    keys: u64,
    is_denied: bool,
    peers: [Arc<Peer>; 2],
    /// CPU microseconds of a decision in each round.
    rounds: Vec<[f64; 2]>,
}

pub(crate) async fn run(options: &Options) -> Result<(), Failed> {
    let library = build()?;
    let library = library.to_string_lossy();
    println!("\n## native module\n");
    println!("| check | script, CPU us | module, CPU us | module / script |");
    println!("|---|--:|--:|--:|");
    for (file, title) in [("no", ""), ("yes", ", AOF")] {
        let args = ["--appendonly", file, "--appendfsync", "everysec"];
        let servers = [
            Server::start(&args).await?,
            Server::start(&[&args[..], &["--loadmodule", &library]].concat()).await?,
        ];
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

/// Builds the module. Returns where it is.
fn build() -> Result<PathBuf, Failed> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&root).args(["build", "--release", "--quiet", "--package", "slidegate-module"]);
    if !cargo.status()?.success() {
        return Err("the module cannot be built".into());
    }
    Ok(root.join("target/release/libslidegate_module.so").canonicalize()?)
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

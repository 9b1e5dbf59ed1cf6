//! Starts Redis and the processes, stops them meanwhile if there are to be faults, and reports.

use std::env;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::Duration;

use slidegate_testkit::{ports, redis::RedisServer};

use crate::judge::{ideal, windows};
use crate::limiters::Kind;
use crate::record::{LENGTH, Outcome, Record, now};
use crate::{Failed, Options, instance};

/// Before the first request, for limiters that look for each other.
const ACQUAINTED: Duration = Duration::from_secs(2);
/// At the start of the run, in which limiters that learn the demand may admit less.
const LEARNING: Duration = Duration::from_secs(2);
/// Redis rounds times down to microseconds.
const ROUNDED_NS: u64 = 1000;
/// Faults: a process is killed every tenth step; Redis is stopped every sixteenth, for one of these times.
const STEP: Duration = Duration::from_millis(100);
const PAUSES_MS: [u64; 4] = [5, 20, 40, 60];

/// What processes wrote, and whose first records have arrived.
struct Instances {
    place: String,
    children: Vec<(Child, ChildStdin)>,
    readers: Vec<JoinHandle<Vec<u8>>>,
    ready: (Sender<()>, Receiver<()>),
}

impl Instances {
    /// Starts one process, which waits for its line.
    fn start(&mut self, number: usize) -> Result<(Child, ChildStdin), Failed> {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1)).env(instance::VARIABLE, format!("{number} {}", self.place));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (mut output, input) =
            (child.stdout.take().ok_or("no output")?, child.stdin.take().ok_or("no input")?);
        let ready = self.ready.0.clone();
        self.readers.push(spawn(move || {
            let mut read = vec![0; LENGTH];
            if output.read_exact(&mut read).is_ok() {
                let _ = ready.send(());
                let _ = output.read_to_end(&mut read);
            }
            read
        }));
        Ok((child, input))
    }

    /// Kills one as a crash does, and starts another in its place.
    fn restart(&mut self, number: usize, until: u64) -> Result<(), Failed> {
        self.children[number].0.kill()?;
        self.children[number].0.wait()?;
        self.children[number] = self.start(number)?;
        Ok(writeln!(self.children[number].1, "{until}")?)
    }
}

impl Drop for Instances {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the processes, and prints a row of what they admitted and what that took.
pub(crate) fn run(options: &Options) -> Result<(), Failed> {
    let server = RedisServer::start();
    let ports: Vec<_> = (0..options.processes).map(|_| ports::free().to_string()).collect();
    let place = format!("{} {}", server.url(), ports.join(" "));
    let mut instances = Instances { place, children: Vec::new(), readers: Vec::new(), ready: channel() };
    for number in 0..options.processes {
        let started = instances.start(number)?;
        instances.children.push(started);
    }
    for _ in 0..options.processes {
        let late = |_| "a process was not ready within 10 s; its error is above";
        instances.ready.1.recv_timeout(Duration::from_secs(10)).map_err(late)?;
    }
    sleep(ACQUAINTED);
    let (before, begun) = (work(&server), now());
    let until = begun + u64::try_from(options.time.as_nanos())?;
    for (_, input) in &mut instances.children {
        writeln!(input, "{until}")?;
    }
    let mut step = 0;
    while now() < until {
        sleep(STEP);
        step += 1;
        if options.has_faults && step % 10 == 5 {
            instances.restart(step / 10 % options.processes, until)?;
        }
        if options.has_faults && step % 16 == 8 {
            server.pause();
            sleep(Duration::from_millis(PAUSES_MS[step / 16 % PAUSES_MS.len()]));
            server.resume();
        }
    }
    for (child, _) in &mut instances.children {
        child.wait()?;
    }
    let after = work(&server);
    let (mut records, mut cpu_ns) = (Vec::new(), 0);
    for reader in std::mem::take(&mut instances.readers) {
        let read = reader.join().map_err(|_| "a reader panicked")?;
        let all: Vec<_> = read.as_chunks::<LENGTH>().0.iter().map(Record::read).collect();
        cpu_ns += all.iter().rfind(|one| one.cost == 0).map_or(0, |last| last.received);
        records.extend(all.into_iter().filter(|one| one.cost > 0));
    }
    records.sort_unstable_by_key(|one| one.sent);
    report(options, &records, begun, [after[0] - before[0], after[1] - before[1], cpu_ns as f64 / 1e9])
}

/// Calls of scripts and CPU seconds of Redis so far.
fn work(server: &RedisServer) -> [f64; 2] {
    let calls = ["evalsha", "eval"].map(|name| server.commandstats(name).calls as f64);
    let info = server.admin(&["INFO", "cpu"]);
    let seconds =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    let cpu = ["used_cpu_sys:", "used_cpu_user:"].map(|name| seconds(name).unwrap_or(f64::NAN));
    [calls.iter().sum(), cpu.iter().sum()]
}

fn report(options: &Options, by_sent: &[Record], begun: u64, work: [f64; 3]) -> Result<(), Failed> {
    let window_ns = u64::try_from(options.window.as_nanos())?;
    let seen = windows(by_sent, options.limit, window_ns - ROUNDED_NS);
    let over = seen.most.saturating_sub(options.limit);
    let learnt = begun + u64::try_from(LEARNING.as_nanos())?;
    let allowed = by_sent.iter().filter(|one| one.outcome == Outcome::Allowed && one.sent >= learnt);
    let allowed: u64 = allowed.map(|one| one.cost).sum();
    let share = allowed as f64 / ideal(by_sent, options.limit, window_ns, learnt) as f64;
    let failed = by_sent.iter().filter(|one| one.outcome == Outcome::Failed).count();
    let mut took: Vec<_> = by_sent.iter().map(|one| one.received - one.sent).collect();
    took.sort_unstable();
    let percentile = |part: usize| took.get(took.len() * part / 100).map_or(f64::NAN, |ns| *ns as f64 / 1e3);
    let (decisions, seconds) = (by_sent.len() as f64, options.time.as_secs_f64());
    println!(
        "| limiter | processes | offered/s | most in a window | over | over % | windows over % | share | calls each \
         | Redis CPU us | process CPU us | p50 us | p99 us | failed |\n|---|{}",
        "--:|".repeat(13)
    );
    println!(
        "| {} | {} | {:.0} | {} | {over} | {:.1} | {:.1} | {share:.3} | {:.4} | {:.2} | {:.2} | {:.1} | {:.1} | {failed} |",
        options.limiter.name(),
        options.processes,
        by_sent.iter().map(|one| one.cost).sum::<u64>() as f64 / seconds,
        seen.most,
        over as f64 * 100.0 / options.limit as f64,
        seen.over_ns as f64 / 1e7 / (options.time + options.window).as_secs_f64(),
        work[0] / decisions,
        work[1] * 1e6 / decisions,
        work[2] * 1e6 / decisions,
        percentile(50),
        percentile(99),
    );
    match (options.limiter, over) {
        (Kind::Slidegate { .. }, 1..) => Err("more than the limit was admitted within one window".into()),
        (Kind::Aligned, 0) if !options.is_steady => {
            Err("the control does not exceed the limit: this measurement finds nothing".into())
        }
        _ => Ok(()),
    }
}

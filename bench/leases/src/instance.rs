//! One of the processes that share the limit.

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cpu_time::ProcessTime;
use tokio::sync::Semaphore;

use crate::limiters::Limiter;
use crate::record::{Outcome, Record, now};
use crate::{Failed, Options};

/// The environment variable that makes a process one of these: its number, the URL of Redis, and a port for each.
pub(crate) const VARIABLE: &str = "SLIDEGATE_LEASES_BENCH";

/// Requests under way at once.
const CALLERS: usize = 64;
/// Between two steps, in which requests are sent and records written.
const STEP: Duration = Duration::from_millis(1);
/// What is not sent by then, because all callers wait, is not sent.
const MOST_BACKLOG_SECONDS: f64 = 0.1;
/// For replies to the last requests.
const LAST_REPLIES: Duration = Duration::from_millis(300);
/// A cycle of bursts, in windows: half of it at a quarter of the rate, the other half at seven quarters.
const CYCLE: f64 = 1.3;

type Written = Arc<Mutex<Vec<u8>>>;

/// Sends requests until the time that standard input names, and writes their records to standard output: those of a
/// step after it, so that a killed process loses at most those of one step.
pub(crate) fn run(options: &Options, place: &str) -> Result<(), Failed> {
    let words: Vec<_> = place.split(' ').map(str::to_owned).collect();
    let (instance, url, ports) = (words[0].parse()?, &words[1], &words[2..]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let limiter = Arc::new(runtime.block_on(Limiter::new(options, url, ports, instance))?);
    let (written, due, number) =
        (Written::default(), Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    write(&written, Duration::ZERO)?;
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    let until: u64 = line.trim_end().parse()?;
    for _ in 0..CALLERS {
        let calls = call(options.costs(), limiter.clone(), written.clone(), due.clone(), number.clone());
        runtime.spawn(calls);
    }
    let (rate, cpu) = (options.rate(instance), ProcessTime::now());
    let (mut last, mut requests) = (now(), 0.0);
    while last < until {
        std::thread::sleep(STEP);
        let time = now();
        let cycle = (time as f64 / 1e9 / options.window.as_secs_f64() / CYCLE).fract();
        let burst = match cycle {
            _ if options.is_steady => 1.0,
            0.0..0.5 => 0.25,
            _ => 1.75,
        };
        requests += rate * burst * (time - last) as f64 / 1e9;
        last = time;
        if due.available_permits() as f64 > rate * MOST_BACKLOG_SECONDS {
            requests = 0.0;
        }
        due.add_permits(requests as usize);
        requests = requests.fract();
        write(&written, cpu.elapsed())?;
    }
    due.forget_permits(usize::MAX);
    std::thread::sleep(LAST_REPLIES);
    write(&written, cpu.elapsed())?;
    // Like a crash: nobody waits for the limiter's tasks.
    std::process::exit(0)
}

/// One caller. It goes on when its record is in memory.
async fn call(
    costs: &'static [u64],
    limiter: Arc<Limiter>,
    written: Written,
    due: Arc<Semaphore>,
    number: Arc<AtomicUsize>,
) {
    while let Ok(permit) = due.acquire().await {
        permit.forget();
        let cost = costs[number.fetch_add(1, Ordering::Relaxed) % costs.len()];
        let sent = now();
        let outcome = limiter.check(cost).await;
        let record = Record { sent, received: now(), cost, outcome };
        written.lock().unwrap_or_else(PoisonError::into_inner).extend(record.bytes());
    }
}

/// Writes the records so far, and the CPU time.
fn write(written: &Written, cpu: Duration) -> Result<(), Failed> {
    let mut records = std::mem::take(&mut *written.lock().unwrap_or_else(PoisonError::into_inner));
    let received = u64::try_from(cpu.as_nanos())?;
    records.extend(Record { sent: 0, received, cost: 0, outcome: Outcome::Denied }.bytes());
    stdout().write_all(&records)?;
    Ok(stdout().flush()?)
}

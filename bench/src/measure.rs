//! The cost of a decision: elapsed time, and the CPU time of the deciding threads.
//!
//! Elapsed time is what a caller waits, and is disturbed by every other program on the machine. CPU
//! time is not, but excludes the time that a thread sleeps for a lock.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;

use crate::keys::KeyText;
use crate::peers::Peer;

/// The cost of one decision in one round.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cost {
    /// Elapsed nanoseconds, as one thread sees it.
    pub(crate) wall_ns: f64,
    /// Nanoseconds of CPU time.
    pub(crate) cpu_ns: f64,
    /// Share of the decisions that were denied.
    pub(crate) denied: f64,
}

/// The work of one thread.
struct Lap {
    wall: Duration,
    cpu: Duration,
    decisions: usize,
    allowed: u64,
}

/// Decisions between two checks of whether another thread is done.
const STRETCH: usize = 1000;

/// Lets each handle decide its keys on its own thread, concurrently, until the first is done.
///
/// The others stop then: without contention their decisions would cost less.
pub(crate) fn race(handles: &mut [Box<dyn Peer>], keys: &[&[u32]]) -> Cost {
    let start = Barrier::new(handles.len());
    let done = AtomicBool::new(false);
    let laps: Vec<Lap> = std::thread::scope(|scope| {
        let threads: Vec<_> = handles
            .iter_mut()
            .zip(keys)
            .map(|(peer, keys)| {
                let (start, done) = (&start, &done);
                scope.spawn(move || lap(peer.as_mut(), keys, start, done))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no contender panics")).collect()
    });
    let decisions: usize = laps.iter().map(|lap| lap.decisions).sum();
    #[allow(clippy::cast_precision_loss)]
    let per_decision = |sum: f64| sum / decisions as f64;
    #[allow(clippy::cast_precision_loss)]
    let allowed = per_decision(laps.iter().map(|lap| lap.allowed as f64).sum());
    Cost {
        wall_ns: per_decision(laps.iter().map(|lap| lap.wall.as_secs_f64() * 1e9).sum()),
        cpu_ns: per_decision(laps.iter().map(|lap| lap.cpu.as_secs_f64() * 1e9).sum()),
        denied: 1.0 - allowed,
    }
}

#[allow(clippy::disallowed_methods)] // the clock is what is read here
fn lap(peer: &mut dyn Peer, keys: &[u32], start: &Barrier, done: &AtomicBool) -> Lap {
    let mut text = KeyText::new();
    start.wait();
    let (wall, cpu) = (Instant::now(), ThreadTime::now());
    let (mut decisions, mut allowed) = (0, 0);
    for some in keys.chunks(STRETCH) {
        allowed += peer.decide_all(&mut text, some);
        decisions += some.len();
        if done.load(Ordering::Relaxed) {
            break;
        }
    }
    done.store(true, Ordering::Relaxed);
    Lap { wall: wall.elapsed(), cpu: cpu.elapsed(), decisions, allowed }
}

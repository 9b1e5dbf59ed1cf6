//! The clock that decisions read: the cost of a reading, and its distance from the system's clock.

// The reference is the system's own clock.
#![allow(clippy::disallowed_methods)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use cpu_time::ThreadTime;
use slidegate::clock::{Clock, SystemClock};

use crate::report;

/// How long the two clocks are compared.
const COMPARED: Duration = Duration::from_secs(10);
/// Readings at the start and the end of the comparison; their medians give the drift.
const EDGE: Duration = Duration::from_millis(100);
/// Readings in a row.
const READINGS: u32 = 2_000_000;
/// Readings this far apart all read the system's clock, because its last reading is too old.
const APART: Duration = Duration::from_micros(25);
const READINGS_APART: u32 = 10_000;
/// Rounds; the costs are those of the best one.
const ROUNDS: u32 = 7;

/// The results.
#[derive(Debug)]
pub(crate) struct ClockFigures {
    /// Nanoseconds of CPU time of a reading, many in a row: of slidegate's clock and of
    /// `std::time::Instant`.
    pub(crate) in_a_row_ns: [f64; 2],
    /// Nanoseconds with pauses, by the clock.
    pub(crate) apart_ns: [f64; 2],
    /// The maximum by which the clock was certainly ahead of `CLOCK_MONOTONIC`, in microseconds
    /// since the start.
    pub(crate) most_ahead_us: f64,
    /// How much faster it ran, in ppm.
    pub(crate) drift_ppm: f64,
    pub(crate) compared: Duration,
}

pub(crate) fn run() {
    let clock = SystemClock::new();
    // The counter is used once its rate is known.
    let start = Instant::now();
    while start.elapsed() < EDGE {
        black_box(clock.now());
    }
    let own = || {
        black_box(clock.now());
    };
    let system = || {
        black_box(Instant::now());
    };
    let (most_ahead_us, drift_ppm) = compare(&clock);
    report::clock(&ClockFigures {
        in_a_row_ns: [in_a_row(own), in_a_row(system)],
        apart_ns: [apart(own), apart(system)],
        most_ahead_us,
        drift_ppm,
        compared: COMPARED,
    });
}

fn best(round: impl Fn() -> f64) -> f64 {
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn in_a_row(read: impl Fn()) -> f64 {
    best(|| {
        let start = ThreadTime::now();
        for _ in 0..READINGS {
            read();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(READINGS)
    })
}

/// The median of single readings, less what measuring one takes.
fn apart(read: impl Fn()) -> f64 {
    let median = |read: &dyn Fn()| {
        let mut took: Vec<_> = (0..READINGS_APART)
            .map(|_| {
                let pause = Instant::now();
                while pause.elapsed() < APART {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                read();
                start.elapsed()
            })
            .collect();
        took.sort_unstable();
        took[took.len() / 2].as_secs_f64() * 1e9
    };
    median(&read) - median(&|| ())
}

/// The maximum by which the clock was ahead, and how much faster it ran.
fn compare(clock: &SystemClock) -> (f64, f64) {
    let (start, started_at) = (Instant::now(), clock.now());
    let (mut first, mut last) = (Vec::new(), Vec::new());
    let mut most_ahead_us = f64::NEG_INFINITY;
    loop {
        let before = start.elapsed();
        let own = clock.now() - started_at;
        let after = start.elapsed();
        // Certainly ahead: later than a reading of the system's clock made afterwards.
        let lead_us = |system: Duration| (own.as_secs_f64() - system.as_secs_f64()) * 1e6;
        most_ahead_us = most_ahead_us.max(lead_us(after));
        if before < EDGE {
            first.push(lead_us(before));
        } else if before > COMPARED - EDGE {
            last.push(lead_us(before));
        }
        if before > COMPARED {
            break;
        }
    }
    let median = |leads: &mut Vec<f64>| {
        leads.sort_unstable_by(f64::total_cmp);
        leads[leads.len() / 2]
    };
    let drift_us = median(&mut last) - median(&mut first);
    (most_ahead_us, drift_us / COMPARED.as_secs_f64())
}

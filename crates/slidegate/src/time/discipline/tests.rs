//! The discipline under steps, slews, jumps and drift of the clocks that it compares.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::time::Machine;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// 2001-09-09T01:46:40Z.
const DATE_US: u64 = 1_000_000_000 * SECOND_US;
/// The largest error after the counter jumps: one period.
const JUMP_NS: i64 = 20_000;

/// A simulated machine whose clocks the test sets. Every reading advances the true time, and
/// some readings are interrupted.
#[derive(Debug, Clone)]
struct Simulated(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    true_ns: u64,
    counter: Line,
    system: Line,
    wall_us: i64,
    random: u64,
    /// One reading in this many is interrupted.
    interrupted: u64,
}

/// A clock that has run at one rate since some true time.
#[derive(Debug, Clone, Copy)]
struct Line {
    since_ns: u64,
    value: u64,
    /// Units per million nanoseconds.
    per_ms: u64,
}

impl Line {
    fn at(&self, true_ns: u64) -> u64 {
        let passed = u128::from(true_ns - self.since_ns) * u128::from(self.per_ms);
        self.value + u64::try_from(passed / u128::from(MS)).unwrap()
    }

    fn change(&mut self, true_ns: u64, per_ms: u64) {
        *self = Self { since_ns: true_ns, value: self.at(true_ns), per_ms };
    }
}

impl State {
    fn draw(&mut self) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn pass(&mut self) -> u64 {
        let interrupted = self.draw().is_multiple_of(self.interrupted);
        self.true_ns += 10 + self.draw() % 30 + if interrupted { self.draw() % (5 * MS) } else { 0 };
        self.true_ns
    }
}

impl Sources for Simulated {
    fn ticks(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        let now = state.pass();
        state.counter.at(now)
    }

    fn elapsed_ns(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        let now = state.pass();
        state.system.at(now)
    }

    fn wall_us(&self) -> u64 {
        let mut state = self.0.lock().unwrap();
        let now = state.pass();
        (state.system.at(now) / 1000).checked_add_signed(state.wall_us).unwrap()
    }
}

/// A clock on a simulated machine, with the errors measured so far.
struct Trial {
    clock: Discipline<Simulated>,
    last_us: u64,
    /// Largest errors in nanoseconds: ahead of the system time at the return, behind the system
    /// time at the call.
    ahead_ns: i64,
    behind_ns: i64,
}

impl Trial {
    fn new(seed: u64, counter_per_ms: u64) -> Self {
        let line = |value, per_ms| Line { since_ns: 0, value, per_ms };
        let state = State {
            true_ns: 0,
            counter: line(1 << 40, counter_per_ms),
            system: line(77 * SECOND, MS),
            wall_us: 0,
            random: seed,
            interrupted: 5000,
        };
        let wall_us = DATE_US.cast_signed() - (state.system.value / 1000).cast_signed();
        let machine = Simulated(Arc::new(Mutex::new(State { wall_us, ..state })));
        Self { clock: Discipline::new(machine), last_us: 0, ahead_ns: i64::MIN, behind_ns: i64::MIN }
    }

    fn set<T>(&self, set: impl FnOnce(&mut State) -> T) -> T {
        set(&mut self.clock.sources.0.lock().unwrap())
    }

    fn system_ns(&self) -> i64 {
        (self.set(|state| state.system.at(state.true_ns)) - self.clock.started_ns).cast_signed()
    }

    /// Reads the clock once.
    fn read(&mut self) {
        let called = self.system_ns();
        let now_us = self.clock.now().0;
        assert!(now_us >= self.last_us, "back from {} to {now_us}", self.last_us);
        self.last_us = now_us;
        let now_ns = ((now_us - self.clock.started_at.0) * 1000).cast_signed();
        self.ahead_ns = self.ahead_ns.max(now_ns - self.system_ns());
        self.behind_ns = self.behind_ns.max(called - now_ns);
    }

    /// Reads the clock for this much true time, with gaps of up to `gap_ns` between reads.
    fn run(&mut self, span_ns: u64, gap_ns: u64) {
        let end = self.set(|state| state.true_ns) + span_ns;
        while self.set(|state| state.true_ns) < end {
            self.read();
            self.set(|state| state.true_ns += state.draw() % (gap_ns + 1));
        }
    }

    /// Whether the counter is in use.
    fn is_anchored(&self) -> bool {
        self.clock.rate.lock().unwrap().known.is_some()
    }
}

/// An external checker that counts admissions per second sees one too many if our second is
/// short.
#[test]
fn any_steady_counter_is_held_to_the_systems_clock() {
    // 24 MHz, 1 GHz, 3 GHz, and slightly off: the nominal rate must not matter.
    for (seed, per_ms) in
        [24_000, 999_950, 1_000_000, 3_000_000, 3_000_600, 4_999_013].into_iter().enumerate()
    {
        let mut trial = Trial::new(seed as u64, per_ms);
        trial.run(100 * MS, 200);
        assert!(trial.is_anchored(), "{per_ms}");
        trial.run(100 * MS, 100_000);
        // One microsecond of this is truncated nanoseconds.
        assert!(trial.ahead_ns <= 0, "{per_ms}: {} ns ahead", trial.ahead_ns);
        assert!(trial.behind_ns <= 2500, "{per_ms}: {} ns behind", trial.behind_ns);
    }
}

/// NTP corrects the system clock by running it faster or slower, which the counter does not
/// follow.
#[test]
fn slews_of_the_systems_clock_are_followed_within_two_microseconds() {
    for ppm in [-83_333i64, -20_000, -5000, -500, -200, 200, 500, 83_333] {
        let mut trial = Trial::new(1, 3_000_000);
        trial.run(100 * MS, 200);
        trial.set(|state| {
            let now = state.true_ns;
            state.system.change(now, MS.checked_add_signed(ppm).unwrap());
        });
        trial.run(200 * MS, 200);
        assert!(trial.is_anchored(), "{ppm}");
        trial.set(|state| {
            let now = state.true_ns;
            state.system.change(now, MS);
        });
        trial.run(200 * MS, 200);
        assert!(trial.ahead_ns <= 2000, "{ppm}: {} ns ahead", trial.ahead_ns);
        assert!(trial.behind_ns <= 5000, "{ppm}: {} ns behind", trial.behind_ns);
    }
}

/// After a laptop was closed or a machine migrated, yesterday's charges must not count today.
#[test]
fn time_spent_suspended_counts_even_if_the_counter_stood_still() {
    for counter_stood in [true, false] {
        let mut trial = Trial::new(2, 3_000_000);
        trial.run(100 * MS, 200);
        let before = trial.clock.now();
        trial.set(|state| {
            state.true_ns += 86_400 * SECOND;
            if counter_stood {
                state.counter.since_ns += 86_400 * SECOND;
            }
        });
        // Wait until the anchor expires.
        trial.set(|state| state.true_ns += 30_000);
        let slept = trial.clock.now() - before;
        assert!(slept >= Duration::from_secs(86_400), "{slept:?}");
        trial.run(200 * MS, 200);
        assert!(trial.is_anchored());
        assert!(trial.ahead_ns <= 0, "{} ns ahead", trial.ahead_ns);
    }
}

/// A migrated virtual machine continues with another counter, and some hypervisors restart it.
#[test]
fn a_counter_that_jumps_or_changes_its_rate_is_measured_anew() {
    let changes: [fn(&mut State); 4] = [
        |state| state.counter.value = 5,
        |state| state.counter.value -= 10 * SECOND,
        |state| state.counter.value += 1 << 50,
        |state| {
            let now = state.true_ns;
            state.counter.change(now, 1_500_000);
        },
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let mut trial = Trial::new(3, 3_000_000);
        trial.run(100 * MS, 200);
        trial.set(|state| {
            let now = state.true_ns;
            state.counter.change(now, 3_000_000);
            if nth != 2 {
                state.counter.value = state.counter.value.max(11 * SECOND);
            }
            change(state);
        });
        trial.run(200 * MS, 200);
        assert!(trial.is_anchored(), "change {nth}");
        assert!(trial.ahead_ns <= JUMP_NS, "change {nth}: {} ns ahead", trial.ahead_ns);
        trial.ahead_ns = i64::MIN;
        trial.run(200 * MS, 200);
        assert!(trial.ahead_ns <= 0, "change {nth}: {} ns ahead", trial.ahead_ns);
    }
}

/// A counter that suddenly runs twice as fast is noticed at the next system clock reading.
#[test]
fn a_counter_that_doubles_its_rate_misleads_for_one_period_only() {
    let mut trial = Trial::new(4, 3_000_000);
    trial.run(100 * MS, 200);
    trial.set(|state| {
        let now = state.true_ns;
        state.counter.change(now, 6_000_000);
    });
    trial.run(MS, 200);
    assert!(trial.ahead_ns <= JUMP_NS, "{} ns ahead", trial.ahead_ns);
    trial.ahead_ns = i64::MIN;
    trial.run(200 * MS, 200);
    assert!(trial.is_anchored());
    assert!(trial.ahead_ns <= 0, "{} ns ahead", trial.ahead_ns);
}

/// Counters may differ between cores: the kernel excludes such counters, but a hypervisor may
/// not.
#[test]
fn counters_that_differ_from_core_to_core_are_not_used() {
    let mut trial = Trial::new(5, 3_000_000);
    let end = SECOND / 2;
    let mut is_other = false;
    while trial.set(|state| state.true_ns) < end {
        trial.run(50_000, 200);
        is_other = !is_other;
        let apart = 3 * MS;
        trial.set(|state| {
            state.counter.value =
                if is_other { state.counter.value + apart } else { state.counter.value - apart };
        });
    }
    assert!(!trial.is_anchored());
    assert!(trial.ahead_ns <= JUMP_NS, "{} ns ahead", trial.ahead_ns);
}

/// `X-RateLimit-Reset` and events contain a date. A date that was wrong at the start must be
/// corrected.
#[test]
fn the_date_follows_the_wall_clock_both_ways_and_the_time_of_decisions_does_not() {
    for step_us in
        [86_400 * SECOND_US.cast_signed(), -3600 * SECOND_US.cast_signed(), 30_000_000, -1500, 1500]
    {
        for is_busy in [true, false] {
            let mut trial = Trial::new(6, 3_000_000);
            let gap = if is_busy { 200 } else { 40 * MS };
            trial.run(200 * MS, gap);
            let before = trial.clock.now();
            trial.set(|state| state.wall_us += step_us);
            // A decision about every 20 µs, or the first one after an idle time.
            trial.run(10 * MS, gap);
            let after = trial.clock.now();
            assert!(after - before < Duration::from_millis(60), "{step_us}");
            let date = trial.clock.wall_time(after).0.cast_signed();
            let expected = after.0.cast_signed() + step_us;
            assert!((date - expected).abs() <= 4, "{step_us}: off by {}", date - expected);
        }
    }
}

/// A service that is called once a minute must not report the time of a minute ago, nor drift.
#[test]
fn after_idle_gaps_the_first_reading_is_as_good_as_any() {
    let mut trial = Trial::new(7, 3_000_600);
    for gap in [50_000, 20 * MS, SECOND, 600 * SECOND] {
        for _ in 0..50 {
            trial.set(|state| state.true_ns += gap);
            trial.read();
            trial.read();
        }
    }
    assert!(trial.ahead_ns <= 0, "{} ns ahead", trial.ahead_ns);
    assert!(trial.behind_ns <= 2500, "{} ns behind", trial.behind_ns);
}

/// This machine's clocks, with a counter that is off by some ppm.
#[derive(Debug)]
struct Skewed(Machine, u64);

impl Sources for Skewed {
    fn ticks(&self) -> u64 {
        let ns = u128::from(self.0.elapsed_ns()) * u128::from(self.1);
        u64::try_from(ns / u128::from(MS)).unwrap()
    }

    fn elapsed_ns(&self) -> u64 {
        self.0.elapsed_ns()
    }

    fn wall_us(&self) -> u64 {
        self.0.wall_us()
    }
}

/// Two threads that use one key in turn must not see its time run backwards.
#[test]
fn time_never_runs_back_between_threads_nor_ahead_of_the_systems_clock() {
    let run = |clock: &(dyn Fn() -> (u64, u64, u64) + Sync), reads: usize| {
        let latest = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..reads {
                        let seen = latest.load(std::sync::atomic::Ordering::SeqCst);
                        let (before_us, now_us, after_us) = clock();
                        // The processor may read its counter some nanoseconds before the load
                        // above completes.
                        assert!(now_us + 1 >= seen, "back from {seen} to {now_us}");
                        assert!(now_us <= after_us + 2, "{} us ahead", now_us - after_us);
                        assert!(now_us + 3 >= before_us, "{} us behind", before_us - now_us);
                        latest.fetch_max(now_us, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    };
    for per_ms in [MS, MS - 200, MS + 200, 3 * MS] {
        let clock = Discipline::new(Skewed(Machine::new(), per_ms));
        run(&|| read(&clock), 100_000);
        let anchors = clock.made.load(Relaxed);
        assert!(anchors > 0, "the counter was never used");
    }
    let clock = Discipline::new(Machine::new());
    run(&|| read(&clock), 300_000);
    assert!(clock.made.load(Relaxed) > 0, "the counter was never used");
}

/// The system clock, this clock and the system clock again, in microseconds since the start of
/// this clock.
fn read<S: Sources>(clock: &Discipline<S>) -> (u64, u64, u64) {
    let system_us = || (clock.sources.elapsed_ns() - clock.started_ns) / 1000;
    let before_us = system_us();
    let now_us = clock.now().0 - clock.started_at.0;
    (before_us, now_us, system_us())
}

/// Users compare with `CLOCK_MONOTONIC`, which the standard library reads.
#[test]
#[allow(clippy::disallowed_methods)] // compares with the system's clock itself
fn the_clock_of_this_machine_keeps_the_rate_of_the_standard_librarys() {
    let clock = Discipline::new(Machine::new());
    let start = Instant::now();
    let micros = || i64::try_from(start.elapsed().as_nanos() / 1000).unwrap();
    // The largest and the smallest lead. They differ by the errors of both clocks and by the
    // time between readings.
    let (mut most_ahead, mut start_lead) = (i64::MIN, i64::MAX);
    while start.elapsed() < Duration::from_millis(400) {
        let before = micros();
        let now = (clock.now().0 - clock.started_at.0).cast_signed();
        let after = micros();
        if start_lead == i64::MAX || before < 1000 {
            start_lead = start_lead.min(now - before);
        }
        most_ahead = most_ahead.max(now - after);
    }
    // Two of these are truncated nanoseconds, two come from the unanchored start.
    assert!(most_ahead - start_lead <= 4, "{most_ahead} us after {start_lead} us");
}

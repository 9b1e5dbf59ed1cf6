//! Clock discipline: the accuracy of the system clock at the cost of the processor's cycle counter.
//!
//! Reading the counter takes a third of the time of reading the system clock, but the counter runs
//! at its own rate. So the counter only extends a system clock reading for one [`PERIOD`], at a
//! rate that is deliberately too slow. Extended times are never ahead of the system clock, and rate
//! errors do not accumulate.
//!
//! An [`Anchor`] is a system clock reading with the rate that extends it. A thread that finds the
//! anchor expired makes the next one. If another thread is already doing that, it reads the system
//! clock itself. No thread waits.

use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use std::sync::{Mutex, TryLockError};

use super::{SECOND_US, Timestamp};

/// The clocks that a [`Discipline`] combines. Only `time.rs` reads the real ones.
pub(super) trait Sources {
    /// The cycle counter: any rate, any origin.
    fn ticks(&self) -> u64;
    /// Nanoseconds of the system's monotonic clock, the reference for the rate.
    fn elapsed_ns(&self) -> u64;
    /// The date: microseconds of the system's wall clock since the Unix epoch.
    fn wall_us(&self) -> u64;
}

/// Times are in units of 2^-10 µs, so that a shift converts them to microseconds. A `u64` of them
/// covers 571 years.
const FINE_BITS: u32 = 10;
const MICROSECOND: u64 = 1 << FINE_BITS;
/// Rates are in units of time per tick, times 2^40.
const RATE_BITS: u32 = 40;

/// How long an anchor is valid. System clocks are slowed down by at most 8.3 % (chrony's
/// `maxslewrate`), which is 1.7 µs in 20 µs. One system clock reading per 20 µs takes 0.4 % of a
/// processor.
const PERIOD: u64 = 20 * MICROSECOND;
/// The rate is lowered by 1/`SLOWER_BY`, which is 1000 ppm. That exceeds the largest NTP slew (500
/// ppm) plus the largest measurement error, so the time is never ahead unless the clock is slewed
/// faster.
const SLOWER_BY: u64 = 1000;
/// How far the time may be ahead of the system clock before the rate is measured again. Together
/// with [`PERIOD`] this keeps the 2 µs bound.
const MOST_AHEAD: u64 = MICROSECOND / 4;
/// A system clock reading that took longer than this was interrupted and is not used as an anchor.
const LONGEST_READING: u64 = MICROSECOND / 2;
/// Attempts to read the system clock without an interruption.
const READINGS: u32 = 3;
/// A reading that is not an anchor is set back by this much. It is more than an anchor can be
/// behind, so the time does not run backwards when a later reading uses the anchor.
const UNANCHORED_BEHIND: u64 = MICROSECOND;

/// The shortest time over which a rate is measured. A reading error of 500 ns is 50 ppm of it.
const SHORTEST_MEASUREMENT: u64 = 10_000 * MICROSECOND;
/// The longest time over which a rate is measured. The machine may have been suspended in between,
/// which some counters do not include.
const LONGEST_MEASUREMENT: u64 = SECOND_US * MICROSECOND;
/// A rate is used once two consecutive measurements agree within 1/`AGREES_WITHIN`, which is 500
/// ppm.
const AGREES_WITHIN: u64 = 2000;

/// How often the date is compared with the wall clock.
const WALL_PERIOD: u64 = 1000 * MICROSECOND;
/// Smaller changes of the wall clock are noise from reading two clocks one after the other.
const WALL_NOISE_US: u64 = 2;

/// Anchors that are kept. A reader that was interrupted for so long that its cell may have been
/// overwritten detects it.
const ANCHORS: usize = 4;

/// A clock made of a counter and a system clock.
#[derive(Debug)]
pub(super) struct Discipline<S> {
    /// Number of anchors made. The last one is in the cell with this index, modulo [`ANCHORS`].
    made: AtomicU64,
    anchors: [AnchorCell; ANCHORS],
    /// How far the wall clock is ahead of this clock, in microseconds.
    wall_ahead_us: AtomicI64,
    /// The monotonic clock at `started_at`, in nanoseconds.
    started_ns: u64,
    started_at: Timestamp,
    rate: Mutex<Rate>,
    sources: S,
}

/// A counter value with the time at which it was read, and the rate from then on.
#[derive(Debug, Clone, Copy, Default)]
struct Anchor {
    ticks: u64,
    /// Time since the start of the clock.
    time: u64,
    rate: u64,
    /// Number of ticks for which the anchor is valid; 0 in the initial anchor.
    span: u64,
}

impl Anchor {
    /// The time `age` ticks later, with `age` at most `span`.
    #[inline]
    fn time_at(&self, age: u64) -> u64 {
        // Cannot overflow: `age * rate` is at most `PERIOD` times 2^40.
        self.time + ((age * self.rate) >> RATE_BITS)
    }

    /// The latest time that any thread can have been given when the counter read `ticks`.
    fn latest_at(&self, ticks: u64) -> u64 {
        // `ticks` may be from just before the anchor. If it is from long before, the counter was
        // reset or belongs to another core.
        let is_earlier = self.ticks.wrapping_sub(ticks) <= self.span;
        self.time_at(if is_earlier { 0 } else { ticks.wrapping_sub(self.ticks).min(self.span) })
    }
}

/// Fits in one cache line.
#[derive(Debug, Default)]
#[repr(align(32))]
struct AnchorCell {
    ticks: AtomicU64,
    time: AtomicU64,
    rate: AtomicU64,
    span: AtomicU64,
}

/// The measured rate of the counter, guarded by the lock of the thread that makes an anchor.
#[derive(Debug, Default)]
struct Rate {
    /// `None`: the rate is unknown and every call reads the system clock.
    known: Option<u64>,
    /// The last measurement.
    measured: Option<u64>,
    /// Ticks and time at the start of the current measurement.
    since: Option<(u64, u64)>,
    /// Time of the next comparison with the wall clock.
    wall_due: u64,
}

/// One system clock reading between two counter readings.
#[derive(Debug, Clone, Copy)]
struct Reading {
    before: u64,
    time: u64,
    after: u64,
}

impl<S: Sources> Discipline<S> {
    /// Starts at the current date.
    pub(super) fn new(sources: S) -> Self {
        Self {
            made: AtomicU64::new(0),
            anchors: Default::default(),
            wall_ahead_us: AtomicI64::new(0),
            started_ns: sources.elapsed_ns(),
            started_at: Timestamp(sources.wall_us()),
            rate: Mutex::default(),
            sources,
        }
    }

    /// The current instant: never earlier than an instant returned before, and never ahead of the
    /// system clock by more than 2 µs. If the counter itself jumps, it may be ahead by up to one
    /// [`PERIOD`] until that has passed.
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        let time = self.extrapolated().unwrap_or_else(|| self.read());
        Timestamp(self.started_at.0 + (time >> FINE_BITS))
    }

    /// The date of `at`, by the wall clock as it is set now.
    #[inline]
    pub(super) fn wall_time(&self, at: Timestamp) -> Timestamp {
        Timestamp(at.0.saturating_add_signed(self.wall_ahead_us.load(Relaxed)))
    }

    /// The time by the counter, if the last anchor is still valid.
    #[inline]
    fn extrapolated(&self) -> Option<u64> {
        let anchor = self.anchor()?;
        let age = self.sources.ticks().wrapping_sub(anchor.ticks);
        (age < anchor.span).then(|| anchor.time_at(age))
    }

    /// The last anchor, or `None` if it may have been overwritten while it was read.
    #[inline]
    fn anchor(&self) -> Option<Anchor> {
        let made = self.made.load(Acquire);
        let cell = self.cell(made);
        let anchor = Anchor {
            ticks: cell.ticks.load(Relaxed),
            time: cell.time.load(Relaxed),
            rate: cell.rate.load(Relaxed),
            span: cell.span.load(Relaxed),
        };
        // Pairs with the fence in `publish`: a reader that sees part of a later anchor in this cell
        // also sees a later count.
        fence(Acquire);
        (self.made.load(Relaxed) - made < ANCHORS as u64 - 1).then_some(anchor)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the remainder is what counts
    fn cell(&self, made: u64) -> &AnchorCell {
        &self.anchors[made as usize % ANCHORS]
    }

    /// The caller must hold the lock of the rate.
    fn publish(&self, anchor: Anchor) {
        let next = self.made.load(Relaxed) + 1;
        fence(Release);
        let cell = self.cell(next);
        cell.ticks.store(anchor.ticks, Relaxed);
        cell.time.store(anchor.time, Relaxed);
        cell.rate.store(anchor.rate, Relaxed);
        cell.span.store(anchor.span, Relaxed);
        self.made.store(next, Release);
    }

    /// The time by the system clock. Makes it the next anchor if possible.
    #[cold]
    #[inline(never)]
    fn read(&self) -> u64 {
        let mut rate = match self.rate.try_lock() {
            Ok(rate) => rate,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // The order matters: counter values read after this anchor cannot be mistaken for a
                // counter that was reset.
                let last = self.last_anchor();
                return self.reading().unanchored_time(last);
            }
        };
        // Another thread may just have made an anchor.
        if let Some(time) = self.extrapolated() {
            return time;
        }
        let last = self.last_anchor();
        let reading = self.short_reading(&rate);
        if reading.time >= rate.wall_due {
            self.update_wall_offset();
            rate.wall_due = reading.time + WALL_PERIOD;
        }
        if last.latest_at(reading.before) > reading.time + MOST_AHEAD {
            // The counter is faster than measured, or differs between cores.
            *rate = Rate { wall_due: rate.wall_due, ..Rate::default() };
        }
        if rate.known.is_none_or(|known| reading.is_short(known)) {
            rate.measure(reading);
        }
        let Some(known) = rate.known.filter(|known| reading.is_short(*known)) else {
            return reading.unanchored_time(last);
        };
        let time = reading.time.max(last.latest_at(reading.after));
        let span = u64::try_from((u128::from(PERIOD) << RATE_BITS) / u128::from(known)).unwrap_or(0);
        self.publish(Anchor { ticks: reading.after, time, rate: known - known / SLOWER_BY, span });
        time
    }

    fn last_anchor(&self) -> Anchor {
        loop {
            if let Some(anchor) = self.anchor() {
                return anchor;
            }
        }
    }

    fn reading(&self) -> Reading {
        let before = self.sources.ticks();
        let time = self.elapsed();
        Reading { before, time, after: self.sources.ticks() }
    }

    /// A reading that was not interrupted, if one of a few attempts is and the rate is known;
    /// otherwise the last attempt.
    fn short_reading(&self, rate: &Rate) -> Reading {
        let mut reading = self.reading();
        for _ in 1..READINGS {
            if rate.known.is_none_or(|known| reading.is_short(known)) {
                break;
            }
            reading = self.reading();
        }
        reading
    }

    /// System time since the start.
    fn elapsed(&self) -> u64 {
        let ns = self.sources.elapsed_ns().saturating_sub(self.started_ns);
        // In two steps, because `ns * 1024` would overflow.
        ns / 1000 * MICROSECOND + ns % 1000 * MICROSECOND / 1000
    }

    /// Applies a correction of the wall clock.
    fn update_wall_offset(&self) {
        let mut best: Option<(u64, u64, u64)> = None;
        for _ in 0..READINGS {
            let before = self.elapsed();
            let wall_us = self.sources.wall_us();
            let took = self.elapsed() - before;
            if best.is_none_or(|(_, _, least)| took < least) {
                best = Some((before, wall_us, took));
            }
            if took <= LONGEST_READING {
                break;
            }
        }
        let Some((time, wall_us, took)) = best else { return };
        let own_us = self.started_at.0 + (time >> FINE_BITS);
        let ahead_us = wall_us.cast_signed().wrapping_sub(own_us.cast_signed());
        let noise_us = WALL_NOISE_US + (took >> FINE_BITS);
        if ahead_us.abs_diff(self.wall_ahead_us.load(Relaxed)) > noise_us {
            self.wall_ahead_us.store(ahead_us, Relaxed);
        }
    }
}

impl Reading {
    /// Whether the reading was not interrupted, judged by a counter of this rate.
    fn is_short(&self, rate: u64) -> bool {
        let took = u128::from(self.after.wrapping_sub(self.before)) * u128::from(rate);
        took >> RATE_BITS <= u128::from(LONGEST_READING)
    }

    /// The time of a reading that is not used as an anchor.
    fn unanchored_time(&self, last: Anchor) -> u64 {
        self.time.saturating_sub(UNANCHORED_BEHIND).max(last.latest_at(self.before))
    }
}

impl Rate {
    /// Adds a reading to the measurement. The rate is known as long as consecutive measurements
    /// agree.
    fn measure(&mut self, reading: Reading) {
        let now = (reading.after, reading.time);
        let Some((ticks, time)) = self.since else {
            self.since = Some(now);
            return;
        };
        let time = reading.time.saturating_sub(time);
        if reading.after <= ticks {
            *self = Self { since: Some(now), wall_due: self.wall_due, ..Self::default() };
        } else if time > LONGEST_MEASUREMENT {
            self.since = Some(now);
        } else if time >= SHORTEST_MEASUREMENT {
            let rate = (u128::from(time) << RATE_BITS) / u128::from(reading.after - ticks);
            let rate = u64::try_from(rate).ok();
            let agree = |one: u64, other: u64| one.abs_diff(other) <= one / AGREES_WITHIN;
            self.known = rate
                .zip(self.measured)
                .filter(|(one, other)| agree(*one, *other))
                .map(|(one, other)| one.min(other));
            self.measured = rate;
            self.since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
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
}

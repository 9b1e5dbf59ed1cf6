//! Clock discipline: the time of the system's clock at the price of the processor's cycle counter.
//!
//! A counter takes a third as long to read as the system's clock, but it runs at a rate of its own. So it only bridges
//! the [`PERIOD`] after a reading of the system's clock, at a rate that is too slow on purpose: the time in between is
//! never ahead of the system's clock, and an error of the rate cannot add up. A reading and the rate that bridges from it
//! are an [`Anchor`]. Whoever finds it expired makes the next one; whoever meets another thread at that reads the system's
//! clock for itself. Nobody waits.

use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};
use std::sync::{Mutex, TryLockError};

use super::{SECOND_US, Timestamp};

/// What a clock is made of. Only `time.rs` reads the real ones.
pub(super) trait Sources {
    /// The cycle counter: any rate, any origin.
    fn ticks(&self) -> u64;
    /// Nanoseconds of the system's monotonic clock, whose rate counts.
    fn elapsed_ns(&self) -> u64;
    /// The date: microseconds of the system's wall clock since the Unix epoch.
    fn wall_us(&self) -> u64;
}

/// Times are kept in units of 2^-10 us, so that a shift makes microseconds of them. A `u64` of them is 571 years.
const FINE_BITS: u32 = 10;
const MICROSECOND: u64 = 1 << FINE_BITS;
/// A rate is in units of time per tick, times 2^40.
const RATE_BITS: u32 = 40;

/// How long an anchor is valid. The fastest that a system clock is slowed down by is 8.3 % (chrony's `maxslewrate`), so
/// 20 us hold the time to 1.7 us; one reading of the system's clock in 20 us takes 0.4 % of a processor.
const PERIOD: u64 = 20 * MICROSECOND;
/// The rate is lowered by this part of itself, 1000 ppm. That is more than NTP slews by (500 ppm) and a measurement is
/// off by together, so that without larger slews the time is never ahead.
const SLOWER_BY: u64 = 1000;
/// The time may be ahead by this much before the rate is measured anew. With [`PERIOD`] it keeps the bound of 2 us.
const MOST_AHEAD: u64 = MICROSECOND / 4;
/// A reading of the system's clock that took longer was interrupted, and is no anchor.
const LONGEST_READING: u64 = MICROSECOND / 2;
/// Tries to read the system's clock without an interruption.
const READINGS: u32 = 3;
/// What a reading that is no anchor is put back by. It is more than an anchor can be behind, so that the time does not go
/// back when the next reading finds one.
const UNANCHORED_BEHIND: u64 = MICROSECOND;

/// A rate is measured over at least this long, during which 500 ns are 50 ppm...
const SHORTEST_MEASUREMENT: u64 = 10_000 * MICROSECOND;
/// ...and at most this long: the machine may have been suspended in between, which some counters do not see.
const LONGEST_MEASUREMENT: u64 = SECOND_US * MICROSECOND;
/// A rate is used when two measurements in a row agree to this part of it, 500 ppm.
const AGREES_WITHIN: u64 = 2000;

/// How often the wall clock is compared.
const WALL_PERIOD: u64 = 1000 * MICROSECOND;
/// A smaller change of the wall clock is the noise of reading two clocks one after the other.
const WALL_NOISE_US: u64 = 2;

/// Anchors that are kept. A thread that is interrupted while it reads one notices if so many were made meanwhile.
const ANCHORS: usize = 4;

/// The time of some sources.
#[derive(Debug)]
pub(super) struct Discipline<S> {
    /// How many anchors were made; the last one is at this index, modulo [`ANCHORS`].
    made: AtomicU64,
    anchors: [AnchorCell; ANCHORS],
    /// How far the wall clock is ahead of this one, in microseconds.
    wall_ahead_us: AtomicI64,
    /// What the monotonic clock showed at `started_at`, in nanoseconds.
    started_ns: u64,
    started_at: Timestamp,
    rate: Mutex<Rate>,
    sources: S,
}

/// A pair of times, and how to go on from it.
#[derive(Debug, Clone, Copy, Default)]
struct Anchor {
    ticks: u64,
    /// The time then, since the start.
    time: u64,
    rate: u64,
    /// Ticks that it is valid for. None before the first.
    span: u64,
}

impl Anchor {
    /// The time `age` ticks later, of at most `span`.
    #[inline]
    fn time_at(&self, age: u64) -> u64 {
        // At most `PERIOD`, times 2^40: it fits.
        self.time + ((age * self.rate) >> RATE_BITS)
    }

    /// The latest time that anybody can have been given when the counter showed `ticks`.
    fn latest_at(&self, ticks: u64) -> u64 {
        // A reading from just before the anchor was made. One from long before is of a counter that was reset, or of
        // another core's.
        let is_earlier = self.ticks.wrapping_sub(ticks) <= self.span;
        self.time_at(if is_earlier { 0 } else { ticks.wrapping_sub(self.ticks).min(self.span) })
    }
}

/// Within one cache line.
#[derive(Debug, Default)]
#[repr(align(32))]
struct AnchorCell {
    ticks: AtomicU64,
    time: AtomicU64,
    rate: AtomicU64,
    span: AtomicU64,
}

/// What is known of the counter's rate, held by the thread that makes an anchor.
#[derive(Debug, Default)]
struct Rate {
    /// `None`: every reading is one of the system's clock.
    known: Option<u64>,
    /// The last measurement.
    measured: Option<u64>,
    /// Where the present measurement began: ticks and time.
    since: Option<(u64, u64)>,
    /// When the wall clock is compared next.
    wall_due: u64,
}

/// One reading of the system's clock, between two of the counter.
#[derive(Debug, Clone, Copy)]
struct Reading {
    before: u64,
    time: u64,
    after: u64,
}

impl<S: Sources> Discipline<S> {
    /// Starts at the date.
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

    /// The present instant: never earlier than one that was given before, and never ahead of the system's clock by more
    /// than 2 us; than a [`PERIOD`] where the counter itself jumps, until it has passed.
    #[inline]
    pub(super) fn now(&self) -> Timestamp {
        let time = self.bridged().unwrap_or_else(|| self.read());
        Timestamp(self.started_at.0 + (time >> FINE_BITS))
    }

    /// The date of an instant, by the wall clock as it is set now.
    #[inline]
    pub(super) fn wall_time(&self, at: Timestamp) -> Timestamp {
        Timestamp(at.0.saturating_add_signed(self.wall_ahead_us.load(Relaxed)))
    }

    /// The time by the counter, if the last anchor is valid.
    #[inline]
    fn bridged(&self) -> Option<u64> {
        let anchor = self.anchor()?;
        let age = self.sources.ticks().wrapping_sub(anchor.ticks);
        (age < anchor.span).then(|| anchor.time_at(age))
    }

    /// The last anchor, unless so many were made while it was read that it may be in pieces.
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
        // Pairs with the fence in `publish`: who reads a part of a later anchor in this cell reads a later count, too.
        fence(Acquire);
        (self.made.load(Relaxed) - made < ANCHORS as u64 - 1).then_some(anchor)
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the remainder is what counts
    fn cell(&self, made: u64) -> &AnchorCell {
        &self.anchors[made as usize % ANCHORS]
    }

    /// Only for who holds the rate.
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

    /// The time by the system's clock; makes an anchor of it if it can.
    #[cold]
    #[inline(never)]
    fn read(&self) -> u64 {
        let mut rate = match self.rate.try_lock() {
            Ok(rate) => rate,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // In this order: what is read later cannot be taken for a counter that was reset.
                let last = self.last_anchor();
                return self.reading().unanchored(last);
            }
        };
        // Another thread may just have been here.
        if let Some(time) = self.bridged() {
            return time;
        }
        let last = self.last_anchor();
        let reading = self.short_reading(&rate);
        if reading.time >= rate.wall_due {
            self.follow_wall();
            rate.wall_due = reading.time + WALL_PERIOD;
        }
        if last.latest_at(reading.before) > reading.time + MOST_AHEAD {
            // The counter is faster than was measured, or not one counter.
            *rate = Rate { wall_due: rate.wall_due, ..Rate::default() };
        }
        if rate.known.is_none_or(|known| reading.is_short(known)) {
            rate.measure(reading);
        }
        let Some(known) = rate.known.filter(|known| reading.is_short(*known)) else {
            return reading.unanchored(last);
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

    /// A reading that was not interrupted, if a few tries find one and the rate says what that is.
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

    /// The system's time since the start.
    fn elapsed(&self) -> u64 {
        let ns = self.sources.elapsed_ns().saturating_sub(self.started_ns);
        // In two steps, since 128 nanoseconds in 125 units would overflow after four years.
        ns / 1000 * MICROSECOND + ns % 1000 * MICROSECOND / 1000
    }

    /// Takes in what was done to the wall clock.
    fn follow_wall(&self) {
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
    /// Whether it was not interrupted, by a counter of this rate.
    fn is_short(&self, rate: u64) -> bool {
        let took = u128::from(self.after.wrapping_sub(self.before)) * u128::from(rate);
        took >> RATE_BITS <= u128::from(LONGEST_READING)
    }

    /// The time, where this is no anchor.
    fn unanchored(&self, last: Anchor) -> u64 {
        self.time.saturating_sub(UNANCHORED_BEHIND).max(last.latest_at(self.before))
    }
}

impl Rate {
    /// Measures on. A rate is known as long as measurements agree.
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
    /// What a counter that jumps may mislead by: one period.
    const JUMP_NS: i64 = 20_000;

    /// A machine whose clocks the test sets. True time passes with every reading; now and then a thread is interrupted.
    #[derive(Debug, Clone)]
    struct Simulated(Arc<Mutex<State>>);

    #[derive(Debug)]
    struct State {
        true_ns: u64,
        counter: Line,
        system: Line,
        wall_us: i64,
        random: u64,
        /// One reading of this many is interrupted.
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

    /// A clock on a simulated machine, and what it may say.
    struct Trial {
        clock: Discipline<Simulated>,
        last_us: u64,
        /// Furthest from the system's clock, in nanoseconds: ahead of its time at the return, behind its time at the call.
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

        /// Reads it for this much true time, with gaps of up to `gap_ns` in between.
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

    /// A checker outside that counts admissions in each second finds one too many if a second of ours is short.
    #[test]
    fn any_steady_counter_is_held_to_the_systems_clock() {
        // 24 MHz, 1 GHz, 3 GHz, and a little off: what it was sold as does not matter.
        for (seed, per_ms) in
            [24_000, 999_950, 1_000_000, 3_000_000, 3_000_600, 4_999_013].into_iter().enumerate()
        {
            let mut trial = Trial::new(seed as u64, per_ms);
            trial.run(100 * MS, 200);
            assert!(trial.is_anchored(), "{per_ms}");
            trial.run(100 * MS, 100_000);
            // A microsecond of these is from cutting off nanoseconds.
            assert!(trial.ahead_ns <= 0, "{per_ms}: {} ns ahead", trial.ahead_ns);
            assert!(trial.behind_ns <= 2500, "{per_ms}: {} ns behind", trial.behind_ns);
        }
    }

    /// NTP corrects the system's clock by running it faster or slower; the counter knows nothing of that.
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

    /// A laptop that was closed, or a machine that was moved: charges of yesterday must not count today.
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
            // Until the anchor expires.
            trial.set(|state| state.true_ns += 30_000);
            let slept = trial.clock.now() - before;
            assert!(slept >= Duration::from_secs(86_400), "{slept:?}");
            trial.run(200 * MS, 200);
            assert!(trial.is_anchored());
            assert!(trial.ahead_ns <= 0, "{} ns ahead", trial.ahead_ns);
        }
    }

    /// A virtual machine that was moved goes on with another counter, and some restart it.
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

    /// A counter that is suddenly twice as fast cannot be told from time before the next reading, which is soon.
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

    /// Cores whose counters differ: what the kernel rules out, and a hypervisor may get wrong.
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

    /// `X-RateLimit-Reset` and events carry a date; a wrong one at the start must not last.
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
                // A decision each 20 us or so, or after a while the first one.
                trial.run(10 * MS, gap);
                let after = trial.clock.now();
                assert!(after - before < Duration::from_millis(60), "{step_us}");
                let date = trial.clock.wall_time(after).0.cast_signed();
                let expected = after.0.cast_signed() + step_us;
                assert!((date - expected).abs() <= 4, "{step_us}: off by {}", date - expected);
            }
        }
    }

    /// A service that is asked once in a minute must not tell the time of a minute ago, nor drift.
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

    /// Two threads that pass a key to each other must not see its time run back.
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
                            // The processor may read its counter some nanoseconds before the load above is done.
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

    /// The system's clock, this one, and the system's again, in microseconds since the start of this one.
    fn read<S: Sources>(clock: &Discipline<S>) -> (u64, u64, u64) {
        let system_us = || (clock.sources.elapsed_ns() - clock.started_ns) / 1000;
        let before_us = system_us();
        let now_us = clock.now().0 - clock.started_at.0;
        (before_us, now_us, system_us())
    }

    /// What users compare with is `CLOCK_MONOTONIC`, which the standard library reads.
    #[test]
    #[allow(clippy::disallowed_methods)] // compares with the system's clock itself
    fn the_clock_of_this_machine_keeps_the_rate_of_the_standard_librarys() {
        let clock = Discipline::new(Machine::new());
        let start = Instant::now();
        let micros = || i64::try_from(start.elapsed().as_nanos() / 1000).unwrap();
        // The largest lead and the smallest, which differ by what either is off, and by what happens between readings.
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
        // Two of these are from cutting off nanoseconds, and two from beginning unanchored.
        assert!(most_ahead - start_lead <= 4, "{most_ahead} us after {start_lead} us");
    }
}

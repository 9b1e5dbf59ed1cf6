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
mod tests;

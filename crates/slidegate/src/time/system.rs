//! The machine's clock: elapsed time, and beside it the date, which corrections of the wall clock
//! change.

use std::sync::atomic::{
    AtomicI64, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

/// The clocks of a machine. Only `time.rs` reads the real ones.
pub(super) trait Sources {
    /// Nanoseconds of the monotonic clock.
    fn elapsed_ns(&self) -> u64;
    /// Microseconds of the wall clock since the Unix epoch.
    fn wall_us(&self) -> u64;
}

/// How often the date is compared with the wall clock, in microseconds.
const WALL_PERIOD_US: u64 = 1000;
/// Smaller changes of the wall clock are noise from reading two clocks one after the other.
const WALL_NOISE_US: u64 = 2;
/// Attempts to read both clocks without an interruption, which is a longer reading than this.
const READINGS: u32 = 3;
const LONGEST_READING_US: u64 = 1;

/// A monotonic clock that began at the date of the wall clock.
#[derive(Debug)]
pub(super) struct DatedClock<S> {
    /// How far the wall clock is ahead of this clock, in microseconds.
    wall_ahead_us: AtomicI64,
    /// When to compare them next, in microseconds since the start.
    wall_due_us: AtomicU64,
    /// The monotonic clock at `started_us`, in nanoseconds.
    started_ns: u64,
    /// The date of the start, in microseconds since the epoch.
    started_us: u64,
    sources: S,
}

impl<S: Sources> DatedClock<S> {
    /// Starts at the current date.
    pub(super) fn new(sources: S) -> Self {
        Self {
            wall_ahead_us: AtomicI64::new(0),
            wall_due_us: AtomicU64::new(WALL_PERIOD_US),
            started_ns: sources.elapsed_ns(),
            started_us: sources.wall_us(),
            sources,
        }
    }

    /// The current instant, in microseconds since the epoch.
    #[inline]
    pub(super) fn now_us(&self) -> u64 {
        let elapsed_us = self.elapsed_us();
        let due_us = self.wall_due_us.load(Relaxed);
        if elapsed_us >= due_us {
            self.follow_wall(due_us, elapsed_us);
        }
        self.started_us + elapsed_us
    }

    /// How far the date by the wall clock, as it is set now, is ahead of an instant.
    #[inline]
    pub(super) fn wall_ahead_us(&self) -> i64 {
        self.wall_ahead_us.load(Relaxed)
    }

    #[inline]
    fn elapsed_us(&self) -> u64 {
        self.sources.elapsed_ns().saturating_sub(self.started_ns) / 1000
    }

    /// Applies a correction of the wall clock, in the first of the threads that find it due.
    #[cold]
    fn follow_wall(&self, due_us: u64, elapsed_us: u64) {
        let next_us = elapsed_us + WALL_PERIOD_US;
        if self.wall_due_us.compare_exchange(due_us, next_us, SeqCst, Relaxed).is_err() {
            return;
        }
        let reading = || {
            let before_us = self.elapsed_us();
            let wall_us = self.sources.wall_us();
            (self.elapsed_us() - before_us, before_us, wall_us)
        };
        let mut best = reading();
        for _ in 1..READINGS {
            if best.0 > LONGEST_READING_US {
                best = best.min(reading());
            }
        }
        let (took_us, elapsed_us, wall_us) = best;
        let own_us = self.started_us + elapsed_us;
        let ahead_us = wall_us.cast_signed().wrapping_sub(own_us.cast_signed());
        if ahead_us.abs_diff(self.wall_ahead_us.load(Relaxed)) > WALL_NOISE_US + took_us {
            self.wall_ahead_us.store(ahead_us, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const MS_US: u64 = 1000;

    /// A machine whose clocks the test sets. Every reading takes some time, and some are interrupted.
    #[derive(Debug)]
    struct Simulated(Mutex<State>);

    #[derive(Debug)]
    struct State {
        elapsed_ns: u64,
        wall_ahead_us: i64,
        readings: u64,
    }

    impl State {
        fn pass(&mut self) -> u64 {
            self.readings += 1;
            self.elapsed_ns += if self.readings.is_multiple_of(5) { 3_000_000 } else { 25 };
            self.elapsed_ns
        }
    }

    impl Sources for Simulated {
        fn elapsed_ns(&self) -> u64 {
            self.0.lock().unwrap().pass()
        }

        fn wall_us(&self) -> u64 {
            let mut state = self.0.lock().unwrap();
            (state.pass() / 1000).checked_add_signed(state.wall_ahead_us).unwrap()
        }
    }

    /// `X-RateLimit-Reset` and events contain a date. A date that was wrong at the start must be
    /// corrected.
    #[test]
    fn the_date_follows_the_wall_clock_both_ways_and_the_time_of_decisions_does_not() {
        let day_us = 86_400_000_000;
        for step_us in [day_us, -day_us / 24, 30_000_000, -1500, 1500] {
            let state =
                State { elapsed_ns: 7_000_000_000, wall_ahead_us: 1_000_000_000_000_000, readings: 0 };
            let clock = DatedClock::new(Simulated(Mutex::new(state)));
            let change = |change: &dyn Fn(&mut State)| change(&mut clock.sources.0.lock().unwrap());
            let before_us = clock.now_us();
            change(&|state| state.wall_ahead_us += step_us);
            // An idle time, after which the first decision already has the right date.
            change(&|state| state.elapsed_ns += 2_000_000);
            let after_us = clock.now_us();
            assert!(after_us - before_us < 40 * MS_US, "{step_us}");
            // An interrupted reading may be as wrong as its interruption is long.
            let off_us = clock.wall_ahead_us() - step_us;
            assert!(off_us.unsigned_abs() <= 3 * MS_US + 4, "{step_us}: off by {off_us}");
        }
    }

    /// After a laptop was closed or a machine migrated, yesterday's charges must not count today.
    #[test]
    fn time_spent_suspended_counts() {
        let state = State { elapsed_ns: 0, wall_ahead_us: 1, readings: 0 };
        let clock = DatedClock::new(Simulated(Mutex::new(state)));
        let before_us = clock.now_us();
        clock.sources.0.lock().unwrap().elapsed_ns += 3_600_000_000_000;
        assert!(clock.now_us() - before_us >= 3_600_000_000);
    }
}

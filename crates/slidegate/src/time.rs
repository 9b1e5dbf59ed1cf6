//! Time: instants in whole microseconds, and the clocks that return them.
//!
//! This is the only file that reads a clock and the only one that rounds time to seconds or
//! milliseconds. Waits round up.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use system::{DatedClock, Sources};

mod system;

/// Microseconds in a second.
pub const SECOND_US: u64 = 1_000_000;

/// An instant: whole microseconds since the Unix epoch.
///
/// Covers the years 1970 to about 586,000. Arithmetic saturates at both ends.
///
/// ```
/// use slidegate::clock::Timestamp;
/// use std::time::Duration;
///
/// let noon = Timestamp::from_secs(43_200);
/// let later = noon + Duration::from_millis(1500);
/// assert_eq!(later.as_micros(), 43_201_500_000);
/// assert_eq!(later - noon, Duration::from_millis(1500));
/// assert_eq!(noon - later, Duration::ZERO);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch, 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// The instant `micros` microseconds after the Unix epoch.
    #[must_use]
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The instant `secs` seconds after the Unix epoch.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(SECOND_US))
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Whole seconds since the Unix epoch, rounded up: never earlier than the instant itself.
    ///
    /// ```
    /// # use slidegate::clock::Timestamp;
    /// assert_eq!(Timestamp::from_micros(1_000_001).as_secs_ceil(), 2);
    /// assert_eq!(Timestamp::from_micros(1_000_000).as_secs_ceil(), 1);
    /// ```
    #[must_use]
    #[inline]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(SECOND_US)
    }

    /// The time in RFC 3339 format, in whole seconds, rounded up: `2001-09-09T01:46:40Z`. Times after
    /// the year 9999 are written as its end.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        let secs = i64::try_from(self.as_secs_ceil()).unwrap_or(i64::MAX);
        let last = jiff::Timestamp::MAX.as_second();
        jiff::Timestamp::from_second(secs.min(last)).map_or_else(|_| String::new(), |time| time.to_string())
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// A duration as it is, for errors: `5h`, `90m`, `1.5s`, `999µs`, `0s`.
pub(crate) fn exact(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if duration.subsec_nanos() > 0 {
        return format!("{duration:?}");
    }
    let units = [("d", 86_400), ("h", 3600), ("m", 60)];
    match units.into_iter().find(|(_, length)| seconds > 0 && seconds.is_multiple_of(*length)) {
        Some((unit, length)) => format!("{}{unit}", seconds / length),
        None => format!("{seconds}s"),
    }
}

/// A duration in whole microseconds, rounded up, at most `u64::MAX`.
#[inline]
pub fn micros(span: Duration) -> u64 {
    // `as_nanos` would need a 128-bit division, which is slow, and every decision calls this.
    span.as_secs().saturating_mul(SECOND_US).saturating_add(u64::from(span.subsec_nanos().div_ceil(1000)))
}

/// A duration in whole seconds, rounded up: the value of the `Retry-After` header.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(slidegate::internal::secs_ceil(Duration::from_millis(1001)), 2);
/// assert_eq!(slidegate::internal::secs_ceil(Duration::ZERO), 0);
/// ```
#[must_use]
#[inline]
pub fn secs_ceil(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// A duration in whole milliseconds, rounded up, at most `u64::MAX`: the value of `retry_after_ms`
/// in JSON and of the `retry-after-ms` header.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(slidegate::internal::millis_ceil(Duration::from_micros(1)), 1);
/// assert_eq!(slidegate::internal::millis_ceil(Duration::ZERO), 0);
/// ```
#[must_use]
#[inline]
pub fn millis_ceil(span: Duration) -> u64 {
    // `as_nanos` would need a 128-bit division, which is slow.
    span.as_secs().saturating_mul(1000).saturating_add(u64::from(span.subsec_nanos().div_ceil(1_000_000)))
}

/// A wait for people, in its two largest units and rounded up: `4 d 2 h`, `3 m 20 s`, `12 s`.
///
/// ```
/// use slidegate::clock::format_wait;
/// use std::time::Duration;
///
/// assert_eq!(format_wait(Duration::from_millis(199_100)), "3 m 20 s");
/// assert_eq!(format_wait(Duration::from_millis(3_599_500)), "1 h");
/// assert_eq!(format_wait(Duration::from_millis(999)), "less than 1 s");
/// ```
#[must_use]
pub fn format_wait(wait: Duration) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];
    if wait < Duration::from_secs(1) {
        return "less than 1 s".to_owned();
    }
    let mut rest = secs_ceil(wait);
    if let Some(units) = UNITS.windows(2).find(|units| rest >= units[0].1) {
        // May fill up the largest unit, or the one above it.
        rest = rest.div_ceil(units[1].1).saturating_mul(units[1].1);
    }
    let parts = UNITS.into_iter().filter_map(|(unit, length)| {
        let count = rest / length;
        rest %= length;
        (count > 0).then(|| format!("{count} {unit}"))
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// A random duration from `least` to `most`, both at most some minutes: keeps callers and instances from acting in
/// step.
pub fn jitter(least: Duration, most: Duration) -> Duration {
    let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(fastrand::u64(us(least)..=us(most).max(us(least))))
}

/// tokio's monotonic clock, for the deadlines of network calls and of `Limiter::acquire`. Tests can
/// pause and advance it.
pub fn instant() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// The monotonic clock, for how long a response took.
#[must_use]
#[allow(clippy::disallowed_methods)]
#[inline]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// The source of time for a limiter.
///
/// Decisions stay correct if a clock steps back. A small step (up to one second, or one window if
/// that is shorter) is ignored until the clock has caught up. A larger step moves the stored
/// history back too, so that no charge counts for more than one window after the step.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current instant. Called once per decision.
    fn now(&self) -> Timestamp;

    /// The date of `at`, an instant that [`now`](Self::now) returned, by the wall clock as it is
    /// set now. The default returns `at` itself; override it if this clock separates elapsed time
    /// from the date.
    ///
    /// Decisions report this time, and `fixed-window` aligns to it. Called once per decision; it
    /// should not read a clock.
    fn wall_time(&self, at: Timestamp) -> Timestamp {
        at
    }
}

/// The machine's monotonic clock, starting at the date on which the process first used it.
///
/// It never runs backwards. Elapsed time is what `CLOCK_BOOTTIME` measures on Linux, which includes
/// time spent suspended, and what [`std::time::Instant`] measures elsewhere. A correction of the wall clock changes
/// [`wall_time`](Clock::wall_time) within a millisecond of use. It does not change
/// [`now`](Clock::now), so it neither frees nor locks a key. All values of this type share one
/// time.
///
/// ```
/// use slidegate::clock::{Clock, SystemClock};
///
/// let clock = SystemClock::new();
/// let earlier = clock.now();
/// assert!(clock.now() >= earlier);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(&'static DatedClock<Machine>);

impl SystemClock {
    /// The machine's clock.
    #[must_use]
    pub fn new() -> Self {
        static MACHINE: OnceLock<DatedClock<Machine>> = OnceLock::new();
        Self(MACHINE.get_or_init(|| DatedClock::new(Machine::new())))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp(self.0.now_us())
    }

    #[inline]
    fn wall_time(&self, at: Timestamp) -> Timestamp {
        Timestamp(at.0.saturating_add_signed(self.0.wall_ahead_us()))
    }
}

/// The real clocks of this machine.
#[derive(Debug)]
struct Machine(Monotonic);

impl Machine {
    fn new() -> Self {
        Self(Monotonic::new())
    }
}

impl Sources for Machine {
    #[inline]
    fn elapsed_ns(&self) -> u64 {
        self.0.elapsed_ns()
    }

    #[allow(clippy::disallowed_methods)] // the one place that reads clocks
    fn wall_us(&self) -> u64 {
        micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
    }
}

/// The system's monotonic clock.
#[derive(Debug, Clone, Copy)]
enum Monotonic {
    /// `CLOCK_BOOTTIME`, which includes time spent suspended.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    SinceBoot,
    /// The standard library's clock, counted from this instant.
    Since(Instant),
}

impl Monotonic {
    /// Uses the clock that includes time spent suspended, if reading it needs no system call.
    #[allow(clippy::disallowed_methods)] // the one place that reads clocks
    fn new() -> Self {
        let standard = Self::Since(Instant::now());
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            // A read without a system call takes a tenth of this. Old kernels and some sandboxes
            // need a system call; a sandbox is not suspended.
            const FAST: Duration = Duration::from_nanos(500);
            let took = |_| {
                let start = Instant::now();
                Self::SinceBoot.elapsed_ns();
                start.elapsed()
            };
            if (0..16).map(took).min() <= Some(FAST) {
                return Self::SinceBoot;
            }
        }
        standard
    }

    #[inline]
    fn elapsed_ns(self) -> u64 {
        match self {
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Self::SinceBoot => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let [secs, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
                secs.saturating_mul(1_000_000_000).saturating_add(nanos)
            }
            Self::Since(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// A clock that only moves when it is told to, for tests and for replaying logs.
///
/// Clones share one time.
///
/// ```
/// use slidegate::{Limiter, MemoryStore, Quota, clock::ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let store = MemoryStore::builder().clock(clock.clone()).build();
/// let limiter = Limiter::with_store(Quota::per_second(1), store);
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_denied());
/// clock.advance(Duration::from_secs(1));
/// assert!(limiter.check("alice").is_allowed());
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock set to 2001-09-09T01:46:40Z, 1,000,000,000 seconds after the epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::at(Timestamp::from_secs(1_000_000_000))
    }

    /// A clock set to `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.0)))
    }

    /// Moves time forward by `span`, rounded up to whole microseconds.
    pub fn advance(&self, span: Duration) {
        self.0.fetch_add(micros(span), Ordering::SeqCst);
    }

    /// Sets the time. It may go backwards, to test clock steps.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// The clock of a store: the system clock, called without dynamic dispatch, or any other.
#[derive(Debug, Clone)]
pub(crate) enum TimeSource {
    System(SystemClock),
    Other(Arc<dyn Clock>),
}

impl TimeSource {
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(clock) => clock.now(),
        }
    }

    /// An instant as elapsed time and as a date.
    #[inline]
    pub(crate) fn moment(&self, at: Timestamp) -> Moment {
        let wall = match self {
            Self::System(clock) => clock.wall_time(at),
            Self::Other(clock) => clock.wall_time(at),
        };
        Moment { at, wall }
    }
}

/// A point in the run of a machine, from its start to its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Boot {
    /// Identifies the run; zeros if it is unknown.
    pub id: [u8; 16],
    /// Microseconds since the machine was started, including time spent suspended.
    pub elapsed_us: u64,
}

impl TimeSource {
    /// The point in the run of this machine, which a corrected wall clock does not change. `None`
    /// if it is unknown, or the clock is not the machine's.
    pub(crate) fn boot(&self) -> Option<Boot> {
        match self {
            Self::System(_) => boot(),
            Self::Other(_) => None,
        }
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot() -> Option<Boot> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).ok()?.to_le_bytes();
    Some(Boot { id, elapsed_us: Monotonic::SinceBoot.elapsed_ns() / 1000 })
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn boot() -> Option<Boot> {
    None
}

/// The time for a file's date.
#[allow(clippy::disallowed_methods)] // the one place that reads clocks
pub(crate) fn file_time() -> SystemTime {
    SystemTime::now()
}

/// One instant, as elapsed time and as a date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// By [`Clock::now`]: the time by which usage is counted.
    pub at: Timestamp,
    /// By [`Clock::wall_time`]: the time that decisions report and that fixed windows align to.
    pub wall: Timestamp,
}

impl Moment {
    /// The date of another instant of the same clock.
    pub(crate) fn wall_time_of(&self, other: Timestamp) -> Timestamp {
        Timestamp(other.0.saturating_add_signed(self.wall.0.wrapping_sub(self.at.0).cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wait rounded down makes the client retry too early and be denied again.
    #[test]
    fn waits_round_up_to_whole_units() {
        assert_eq!(secs_ceil(Duration::from_micros(1)), 1);
        assert_eq!(secs_ceil(Duration::from_secs(2)), 2);
        assert_eq!(millis_ceil(Duration::from_micros(1001)), 2);
        assert_eq!(micros(Duration::from_nanos(1)), 1);
        assert_eq!(micros(Duration::MAX), u64::MAX);
    }

    /// The default clock must report the right date, or epoch headers and aligned windows are
    /// wrong.
    #[test]
    #[allow(clippy::disallowed_methods)] // compares with the wall clock itself
    fn the_system_clock_tells_the_wall_time_and_does_not_run_back() {
        let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let before = wall();
        let clock = SystemClock::new();
        let first = clock.now();
        let second = clock.now();
        assert!(first <= second);
        let date = clock.wall_time(second).as_secs_ceil();
        assert!(date >= before && date <= wall() + 1, "{date} of {before}");
    }

    /// Two threads that use one key in turn must not see its time run backwards.
    #[test]
    fn time_never_runs_back_between_threads() {
        let (clock, latest) = (SystemClock::new(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200_000 {
                        let seen = latest.load(Ordering::SeqCst);
                        let now_us = clock.now().0;
                        // Processors may differ by some nanoseconds.
                        assert!(now_us + 1 >= seen, "back from {seen} to {now_us}");
                        latest.fetch_max(now_us, Ordering::SeqCst);
                    }
                });
            }
        });
    }

    /// Users compare with `CLOCK_MONOTONIC`, which the standard library reads.
    #[test]
    #[allow(clippy::disallowed_methods)] // compares with the system's clock itself
    fn the_clock_of_this_machine_keeps_the_rate_of_the_standard_librarys() {
        let clock = SystemClock::new();
        let (start, began) = (Instant::now(), clock.now());
        while start.elapsed() < Duration::from_millis(200) {}
        let (least, own, most) = (start.elapsed(), clock.now() - began, start.elapsed());
        // Each end may be truncated by a microsecond, and the two starts are not the same instant.
        let off = Duration::from_millis(1);
        assert!(own + off >= least && own <= most + off, "{own:?} instead of {least:?} to {most:?}");
    }

    /// A date that is a day off would lock out a customer for a day.
    #[test]
    fn times_are_written_as_rfc_3339() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_000_000_000, "2001-09-09T01:46:40Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Timestamp::from_secs(secs).to_rfc3339(), text);
        }
        assert_eq!(Timestamp::from_micros(1).to_rfc3339(), "1970-01-01T00:00:01Z");
    }
}

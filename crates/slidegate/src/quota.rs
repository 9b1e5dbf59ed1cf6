//! Quotas: how much cost a key may use in a window, and by which algorithm that is counted.
//!
//! A quota is checked and prepared once, when it is built (its divisions become multiplications), so a decision can
//! neither fail nor divide.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;
use crate::time::{SECOND_US, micros};

mod divisor;
mod text;

pub use text::{format_window, parse_window};

pub(crate) use divisor::Divisor;

/// How the cost in a window is counted.
///
/// [`docs/algorithms.md`](https://docs.rs/slidegate) compares them with measured figures; each variant says what it
/// gets wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// The exact sliding window: a log of charges, packed to 4 to 14 bytes each and bounded by [`Quota::slots`].
    ///
    /// Exact to the microsecond while `limit <= slots`. Above that a charge may count up to `window / slots` too
    /// long, so it can deny too early and never admits too much.
    #[default]
    SlidingLog,
    /// Two counters, the older one weighted by how much of it the sliding window still overlaps.
    ///
    /// 24 bytes a key at any limit, and not exact: it takes the older window's charges as spread evenly. At 100 per
    /// minute an adversary gets 199 through in 60 seconds. The weighted part rounds up, so it is never more lenient
    /// than the real-valued formula.
    SlidingWindow,
    /// One counter for each window, windows aligned to the Unix epoch.
    ///
    /// 16 bytes a key. Lets up to twice the limit through around the border of two windows.
    FixedWindow,
    /// A bucket of [`Quota::burst`] that drains by `limit` per window: the generic cell rate algorithm (ITU-T I.371),
    /// with the bucket's content as exact integers.
    ///
    /// 24 bytes a key. Admits `burst` at once and `limit` per window after that: up to `burst + limit - 1` in one
    /// window.
    TokenBucket,
}

impl Algorithm {
    /// Every algorithm, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::SlidingLog, Self::SlidingWindow, Self::FixedWindow, Self::TokenBucket];

    /// The name in configuration files, answers and metrics.
    ///
    /// ```
    /// # use slidegate::Algorithm;
    /// assert_eq!(Algorithm::SlidingLog.name(), "sliding-log");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlidingLog => "sliding-log",
            Self::SlidingWindow => "sliding-window",
            Self::FixedWindow => "fixed-window",
            Self::TokenBucket => "token-bucket",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads an algorithm's [name](Algorithm::name), in any case.
impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|algorithm| text.eq_ignore_ascii_case(algorithm.name())).ok_or_else(|| {
            Error::quota(format!(
                "algorithm `{text}` is unknown; use `sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`"
            ))
        })
    }
}

/// `limit` cost per `window`, counted by one [`Algorithm`].
///
/// ```
/// use slidegate::{Algorithm, Quota};
/// use std::time::Duration;
///
/// let quota = Quota::per_minute(100);
/// assert_eq!(quota.limit(), 100);
/// assert_eq!(quota.window(), Duration::from_secs(60));
/// assert_eq!(quota.algorithm(), Algorithm::SlidingLog);
///
/// let steady = Quota::per_second(10).with_algorithm(Algorithm::TokenBucket).with_burst(50);
/// assert_eq!(steady.burst(), 50);
/// ```
///
/// The text form is `limit/window` or `limit per window`; see [`FromStr`](#impl-FromStr-for-Quota).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    limit: u64,
    window_us: u64,
    burst: Option<u64>,
    algorithm: Algorithm,
    slots: u16,
    /// Derived from the fields above: what a decision needs of them.
    prepared: Prepared,
}

/// What a decision reads often, computed when the quota is built.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Prepared {
    /// Divides by the window in microseconds.
    by_window: Divisor,
    /// Divides by the limit, or by one where the limit is zero: an emptied quota still forgets what it had counted.
    by_limit: Divisor,
    /// Divides by `step_us`.
    by_step: Divisor,
    /// The most cost a fresh key admits: the limit, or the token bucket's burst.
    capacity: u64,
    /// Microseconds in which charges of one log entry are merged; 1 is exact.
    step_us: u64,
    /// Bits of `step_us - 1`: 0 for the exact one.
    step_bits: u8,
    /// 2^64 / capacity: turns used cost into the share of it that a store ranks keys by.
    share: u64,
}

impl Quota {
    /// The shortest window: 1 ms. Below it a loopback round trip is longer than the window.
    pub const MIN_WINDOW: Duration = Duration::from_millis(1);
    /// The longest window: 366 days, a leap year.
    pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);
    /// The largest count of a shared store: its scripts count with doubles, which are exact below 2^53.
    pub(crate) const MAX_COUNT: u64 = (1 << 53) - 1;
    /// Entries a key's log holds unless [`with_slots`](Self::with_slots) says otherwise.
    pub const DEFAULT_SLOTS: u16 = 1024;

    /// `limit` per `window`, under the exact sliding window.
    ///
    /// # Errors
    /// When the window is not within 1 ms to 366 days. It is rounded up to whole microseconds.
    pub fn new(limit: u64, window: Duration) -> Result<Self, Error> {
        if window < Self::MIN_WINDOW || window > Self::MAX_WINDOW {
            let window = if window.is_zero() { "0s".to_owned() } else { format!("{window:?}") };
            return Err(Error::quota(format!("window is {window}; give 1ms to 366d, for example `1m`")));
        }
        Ok(Self::build(limit, micros(window), None, Algorithm::SlidingLog, Self::DEFAULT_SLOTS))
    }

    /// `limit` per second.
    #[must_use]
    pub fn per_second(limit: u64) -> Self {
        Self::per_seconds(limit, 1)
    }

    /// `limit` per 60 seconds.
    #[must_use]
    pub fn per_minute(limit: u64) -> Self {
        Self::per_seconds(limit, 60)
    }

    /// `limit` per 60 minutes.
    #[must_use]
    pub fn per_hour(limit: u64) -> Self {
        Self::per_seconds(limit, 3600)
    }

    /// `limit` per 24 hours.
    #[must_use]
    pub fn per_day(limit: u64) -> Self {
        Self::per_seconds(limit, 86_400)
    }

    /// `limit` per 7 days.
    #[must_use]
    pub fn per_week(limit: u64) -> Self {
        Self::per_seconds(limit, 7 * 86_400)
    }

    fn per_seconds(limit: u64, secs: u64) -> Self {
        Self::build(limit, secs * SECOND_US, None, Algorithm::SlidingLog, Self::DEFAULT_SLOTS)
    }

    /// The same quota counted by another algorithm.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        Self::build(self.limit, self.window_us, self.burst, algorithm, self.slots)
    }

    /// The same quota with `burst` as what the token bucket admits at once. Other algorithms do not read it.
    ///
    /// Without it a bucket holds `limit`. A limit of zero admits nothing whatever the burst.
    #[must_use]
    pub fn with_burst(self, burst: u64) -> Self {
        Self::build(self.limit, self.window_us, Some(burst), self.algorithm, self.slots)
    }

    /// The same quota with at most `slots` entries in a key's log. Other algorithms do not read it.
    ///
    /// One more than `slots` is held while a step is being filled. Zero counts as one.
    #[must_use]
    pub fn with_slots(self, slots: u16) -> Self {
        Self::build(self.limit, self.window_us, self.burst, self.algorithm, slots.clamp(1, u16::MAX - 1))
    }

    fn build(limit: u64, window_us: u64, burst: Option<u64>, algorithm: Algorithm, slots: u16) -> Self {
        let capacity = match algorithm {
            _ if limit == 0 => 0,
            Algorithm::TokenBucket => burst.unwrap_or(limit),
            _ => limit,
        };
        let step_us = if limit <= u64::from(slots) { 1 } else { window_us.div_ceil(u64::from(slots)) };
        let prepared = Prepared {
            by_window: Divisor::new(window_us),
            by_limit: Divisor::new(limit.max(1)),
            by_step: Divisor::new(step_us),
            capacity,
            step_us,
            #[allow(clippy::cast_possible_truncation)] // at most 64
            step_bits: (64 - (step_us - 1).leading_zeros()) as u8,
            share: u64::MAX / capacity.max(1),
        };
        Self { limit, window_us, burst, algorithm, slots, prepared }
    }

    /// The same quota with the share of the limit, and of the burst, that one of so many instances has: rounded up, so that
    /// no share is nothing.
    #[cfg(feature = "redis")]
    pub(crate) fn share(&self, instances: u64) -> Self {
        let share = |whole: u64| whole.div_ceil(instances);
        Self::build(share(self.limit), self.window_us, self.burst.map(share), self.algorithm, self.slots)
    }

    /// Most cost per window.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length, in whole microseconds.
    #[must_use]
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window_us)
    }

    /// How cost is counted.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// What a token bucket admits at once: what was given, or else the limit.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst.unwrap_or(self.limit)
    }

    /// Entries a key's log holds at most.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// Most cost that a fresh key admits at once: the limit, or the burst of a token bucket.
    ///
    /// A greater cost is always denied, with no time at which it would fit.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.prepared.capacity
    }

    /// Most cost that counts for one key, penalties included; what a penalty has above it is not charged.
    ///
    /// For a token bucket it is one window's `limit` above the [capacity](Self::capacity), so a key that is penalized is
    /// full again after the time it takes to refill and one window, whatever the penalty. All other algorithms forget a
    /// penalty within two windows; they count to 2^53 - 1, the most that every store counts exactly, or to the limit where
    /// that is larger.
    #[must_use]
    pub fn max_used(&self) -> u64 {
        let largest = self.capacity().max(Self::MAX_COUNT);
        match self.algorithm {
            Algorithm::TokenBucket => self.capacity().saturating_add(self.limit.max(1)).min(largest),
            Algorithm::SlidingLog | Algorithm::SlidingWindow | Algorithm::FixedWindow => largest,
        }
    }

    #[inline]
    pub(crate) fn window_us(&self) -> u64 {
        self.window_us
    }

    #[inline]
    pub(crate) fn by_window(&self) -> &Divisor {
        &self.prepared.by_window
    }

    #[inline]
    pub(crate) fn by_limit(&self) -> &Divisor {
        &self.prepared.by_limit
    }

    #[inline]
    pub(crate) fn by_step(&self) -> &Divisor {
        &self.prepared.by_step
    }

    #[inline]
    pub(crate) fn step_us(&self) -> u64 {
        self.prepared.step_us
    }

    /// Most runs of a log: the steps of a window that are over, and above the exact limit the one that is being filled.
    #[inline]
    pub(crate) fn most_runs(&self) -> u16 {
        self.slots() + u16::from(self.step_us() > 1)
    }

    #[inline]
    pub(crate) fn step_bits(&self) -> u8 {
        self.prepared.step_bits
    }

    /// How full a key is, from 0 (fresh) to 127 (at its capacity or past it).
    #[inline]
    pub(crate) fn share_of(&self, used: u64) -> u8 {
        if used >= self.prepared.capacity {
            return 127;
        }
        #[allow(clippy::cast_possible_truncation)] // the upper 7 bits of a fraction of 2^64
        let share = ((used * self.prepared.share) >> 57) as u8;
        share
    }
}

impl Hash for Quota {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { limit, window_us, burst, algorithm, slots, prepared: _ } = self;
        (limit, window_us, burst, algorithm, slots).hash(state);
    }
}

impl fmt::Debug for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Quota({self} {}", self.algorithm)?;
        if let Some(burst) = self.burst {
            write!(f, " burst {burst}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user of the token bucket expects the limit as the burst, and zero to mean zero whatever the burst.
    #[test]
    fn capacity_is_the_limit_or_the_burst_and_zero_stays_zero() {
        let bucket = Quota::per_second(10).with_algorithm(Algorithm::TokenBucket);
        assert_eq!(bucket.capacity(), 10);
        assert_eq!(bucket.with_burst(50).capacity(), 50);
        assert_eq!(bucket.with_burst(0).capacity(), 0);
        let none = Quota::per_second(0).with_algorithm(Algorithm::TokenBucket).with_burst(50);
        assert_eq!(none.capacity(), 0);
        assert_eq!(Quota::per_second(10).with_burst(50).capacity(), 10);
    }

    /// A window outside the range would overflow a stamp or stall a key; it must be refused when it is written.
    #[test]
    fn windows_outside_the_range_are_refused_by_name() {
        let text = |window| Quota::new(1, window).unwrap_err().to_string();
        assert_eq!(text(Duration::ZERO), "window is 0s; give 1ms to 366d, for example `1m`");
        assert_eq!(text(Duration::from_micros(999)), "window is 999µs; give 1ms to 366d, for example `1m`");
        assert!(Quota::new(1, Quota::MAX_WINDOW + Duration::from_nanos(1)).is_err());
        assert!(Quota::new(u64::MAX, Quota::MAX_WINDOW).is_ok());
        assert!(Quota::new(0, Quota::MIN_WINDOW).is_ok());
    }

    /// Eviction drops the emptiest key first; a share that wraps would drop the fullest.
    #[test]
    fn the_share_of_a_key_grows_with_its_use_and_stops_at_127() {
        for capacity in [1, 2, 100, 1 << 40, u64::MAX] {
            let quota = Quota::per_second(capacity);
            assert_eq!(quota.share_of(0), 0);
            assert!(quota.share_of(capacity / 2) <= quota.share_of(capacity));
            assert_eq!(quota.share_of(capacity), 127, "{capacity}");
            assert_eq!(quota.share_of(u64::MAX), 127);
        }
    }
}

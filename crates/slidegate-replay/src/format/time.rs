//! Parses the times of logs: `17/May/2015:10:05:03 +0000`, RFC 3339, Unix time, and similar.
//!
//! Neighbouring lines mostly have the same second, so the last one is cached. A time without a zone is in the
//! reader's zone.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};

const SECOND_US: u64 = 1_000_000;

/// Parses times.
#[derive(Clone, Debug)]
pub(crate) struct TimeReader {
    zone: TimeZone,
    /// The last second: its text with its zone, its time, and how it was given.
    last: (Vec<u8>, u64, Clock),
    /// How the last time was given.
    pub(crate) clock: Clock,
}

/// How a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// With an offset, or as Unix time.
    Absolute,
    /// In the reader's zone.
    Local,
    /// In the reader's zone, at a time that the clock repeated after it was set back. Read as the first
    /// occurrence.
    Repeated {
        /// From the first to the second occurrence.
        shift_us: u64,
    },
    /// In the reader's zone, at a time that the clock skipped when it was set forward. Read as if it had not
    /// been set.
    Skipped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    /// Seconds east of UTC.
    Offset(i32),
    /// The reader's zone.
    Unsaid,
}

/// The unit of a number in a column of durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

impl TimeReader {
    /// Times without a zone are in this one.
    pub(crate) fn new(zone: TimeZone) -> Self {
        Self { zone, last: (Vec::new(), 0, Clock::Absolute), clock: Clock::Absolute }
    }

    /// Parses any form that servers write. `None` for anything else, for invalid dates, and for dates before
    /// 1970.
    pub(crate) fn read(&mut self, text: &[u8]) -> Option<u64> {
        let text = text.strip_prefix(b"[").and_then(|text| text.strip_suffix(b"]")).unwrap_or(text);
        let length = if text.get(2) == Some(&b'/') {
            "17/May/2015:10:05:03".len()
        } else if matches!(text.get(4), Some(b'-' | b'/')) {
            "2015-05-17T10:05:03".len()
        } else {
            self.clock = Clock::Absolute;
            return unix(text);
        };
        let (second, rest) = text.split_at_checked(length)?;
        let (fraction_us, zone) = fraction(rest)?;
        if self.last.0.strip_prefix(second) != Some(zone) {
            (self.last.1, self.last.2) = self.micros(second, zone)?;
            self.last.0.clear();
            self.last.0.extend_from_slice(second);
            self.last.0.extend_from_slice(zone);
        }
        self.clock = self.last.2;
        Some(self.last.1 + fraction_us)
    }

    fn micros(&self, second: &[u8], zone: &[u8]) -> Option<(u64, Clock)> {
        let time = slashed(second).or_else(|| iso(second))?;
        let zone = self::zone(zone.strip_prefix(b" ").unwrap_or(zone))?;
        let (seconds, clock) = match zone {
            Zone::Offset(east) => {
                let utc = TimeZone::UTC.to_timestamp(time).ok()?.as_second();
                (utc - i64::from(east), Clock::Absolute)
            }
            Zone::Unsaid => {
                let moment = self.zone.to_ambiguous_timestamp(time);
                let clock = match moment.offset() {
                    AmbiguousOffset::Unambiguous { .. } => Clock::Local,
                    AmbiguousOffset::Gap { .. } => Clock::Skipped,
                    AmbiguousOffset::Fold { before, after } => {
                        let shift = before.seconds().abs_diff(after.seconds());
                        Clock::Repeated { shift_us: u64::from(shift) * SECOND_US }
                    }
                };
                (moment.compatible().ok()?.as_second(), clock)
            }
        };
        Some((u64::try_from(seconds).ok()? * SECOND_US, clock))
    }
}

/// Parses Unix time in seconds, possibly with a fraction; or in milliseconds, microseconds or nanoseconds if
/// it would otherwise be later than the year 5000.
fn unix(text: &[u8]) -> Option<u64> {
    let (whole, rest) = digits(text)?;
    let (fraction_us, []) = fraction(rest)? else { return None };
    Some(match whole {
        0..100_000_000_000 => whole * SECOND_US + fraction_us,
        100_000_000_000..100_000_000_000_000 => whole * 1_000 + fraction_us / 1_000,
        100_000_000_000_000..100_000_000_000_000_000 => whole,
        _ => whole / 1_000,
    })
}

/// Parses a duration: a number in this unit, or with its own, such as `4ms` or `1m2.5s`. Returns
/// microseconds, rounded down. `None` for `-` and for negative durations, which stand for an absent value.
pub(crate) fn duration_us(text: &[u8], unit: Unit) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    loop {
        let (whole, after) = digits(rest)?;
        let (fraction_us, after) = fraction(after)?;
        let letters = after.iter().take_while(|byte| !byte.is_ascii_digit()).count();
        let (name, after) = after.split_at(letters);
        let nanos = match name {
            b"" if after.is_empty() && total == 0 => unit.nanos(),
            b"ns" => 1,
            b"us" | b"\xc2\xb5s" | b"\xce\xbcs" => 1_000,
            b"ms" => 1_000_000,
            b"s" => 1_000_000_000,
            b"m" => 60_000_000_000,
            b"h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole_us = u128::from(whole) * u128::from(nanos) / 1_000;
        let fraction_us = u128::from(fraction_us) * u128::from(nanos) / 1_000_000_000;
        total = total.checked_add(u64::try_from(whole_us + fraction_us).ok()?)?;
        if after.is_empty() {
            return Some(total);
        }
        rest = after;
    }
}

impl Unit {
    pub(crate) fn nanos(self) -> u64 {
        match self {
            Self::Seconds => 1_000_000_000,
            Self::Milliseconds => 1_000_000,
            Self::Microseconds => 1_000,
            Self::Nanoseconds => 1,
        }
    }
}

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Parses `17/May/2015:10:05:03`.
fn slashed(text: &[u8]) -> Option<DateTime> {
    let [d1, d2, b'/', m1, m2, m3, b'/', y1, y2, y3, y4, b':', clock @ ..] = text else { return None };
    let month = MONTHS.iter().position(|month| **month == [*m1, *m2, *m3])? + 1;
    civil([*y1, *y2, *y3, *y4], i8::try_from(month).ok()?, two(*d1, *d2)?, clock)
}

/// Parses `2015-05-17T10:05:03`, also with a space or slashes.
fn iso(text: &[u8]) -> Option<DateTime> {
    let [y1, y2, y3, y4, b'-' | b'/', m1, m2, b'-' | b'/', d1, d2, b'T' | b't' | b' ' | b'_', clock @ ..] =
        text
    else {
        return None;
    };
    civil([*y1, *y2, *y3, *y4], two(*m1, *m2)?, two(*d1, *d2)?, clock)
}

fn civil(year: [u8; 4], month: i8, day: i8, clock: &[u8]) -> Option<DateTime> {
    let &[h1, h2, b':', m1, m2, b':', s1, s2] = clock else { return None };
    let is_number = year.iter().all(u8::is_ascii_digit);
    let year = is_number.then(|| year.iter().fold(0, |year, digit| year * 10 + i16::from(digit - b'0')))?;
    // A leap second counts as the second before it, as in POSIX.
    let second = if (s1, s2) == (b'6', b'0') { 59 } else { two(s1, s2)? };
    DateTime::new(year, month, day, two(h1, h2)?, two(m1, m2)?, second, 0).ok()
}

fn two(tens: u8, ones: u8) -> Option<i8> {
    let is_number = tens.is_ascii_digit() && ones.is_ascii_digit();
    is_number.then(|| i8::try_from((tens - b'0') * 10 + (ones - b'0')).unwrap_or(0))
}

/// Parses a fraction of a second, `.123` or `,123`, as microseconds; zero without one.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some(rest) = text.strip_prefix(b".").or_else(|| text.strip_prefix(b",")) else {
        return Some((0, text));
    };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if length == 0 {
        return None;
    }
    let digit = |at: usize| if at < length { u64::from(rest[at] - b'0') } else { 0 };
    Some(((0..6).fold(0, |micros, at| micros * 10 + digit(at)), &rest[length..]))
}

fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&text[..length]).ok()?.parse().ok()?;
    Some((number, &text[length..]))
}

/// Parses `Z`, `UTC`, `+0000`, `+00:00`, `+00`, or nothing.
fn zone(text: &[u8]) -> Option<Zone> {
    let (sign, h1, h2, minutes) = match text {
        [] => return Some(Zone::Unsaid),
        [b'Z' | b'z'] | b"UTC" | b"GMT" => return Some(Zone::Offset(0)),
        [sign @ (b'+' | b'-'), h1, h2, minutes @ ..] => (*sign, *h1, *h2, minutes),
        _ => return None,
    };
    let minute = match minutes.strip_prefix(b":").unwrap_or(minutes) {
        [] => 0,
        [m1, m2] => two(*m1, *m2)?,
        _ => return None,
    };
    let hour = two(h1, h2)?;
    if hour > 25 || minute > 59 {
        return None;
    }
    let east = (i32::from(hour) * 60 + i32::from(minute)) * 60;
    Some(Zone::Offset(if sign == b'-' { -east } else { east }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TIME_US: u64 = 1_795_256_132_000_000;

    fn any(text: &str) -> Option<u64> {
        TimeReader::new(TimeZone::UTC).read(text.as_bytes())
    }

    /// Every server writes the same moment in its own way.
    #[test]
    fn every_form_of_a_time_is_the_same_moment() {
        for (text, micros) in [
            ("21/Nov/2026:10:15:32 +0000", 0),
            ("21/Nov/2026:11:15:32 +0100", 0),
            ("21/Nov/2026:10:15:32.123", 123_000),
            ("[21/Nov/2026:10:15:32 +0000]", 0),
            ("2026-11-21T10:15:32Z", 0),
            ("2026-11-21T10:15:32+00:00", 0),
            ("2026-11-21T05:15:32-05:00", 0),
            ("2026-11-21T05:15:32-05", 0),
            ("2026-11-21 10:15:32", 0),
            ("2026-11-21 10:15:32,5 +0000", 500_000),
            ("2026/11/21 10:15:32.123", 123_000),
            ("2026-11-21T10:15:32.123456789Z", 123_456),
            ("2026-11-21 10:15:32 UTC", 0),
            ("1795256132", 0),
            ("1795256132.1274593", 127_459),
            ("1795256132127", 127_000),
            ("1795256132127.459", 127_459),
            ("1795256132127459", 127_459),
            ("1795256132127459312", 127_459),
        ] {
            assert_eq!(any(text), Some(TIME_US + micros), "{text}");
        }
    }

    /// An invalid date must not become another day.
    #[test]
    fn impossible_times_are_refused() {
        for text in [
            "",
            "-",
            "-1",
            "2026-02-30T10:15:32Z",
            "2026-11-21T24:15:32Z",
            "2026-11-21T10:15:32+99:00",
            "2026-11-21T10:15:32X",
            "2026-11-21T10:15:32.Z",
            "2026-11-21T10:15:61Z",
            "2026-11-21",
            "1969-12-31T23:59:59Z",
            "29/Feb/2025:10:15:32 +0000",
            "21/Nov/2026:10:15:32 +0000x",
            "17951234x",
            "99999999999999999999",
        ] {
            assert_eq!(any(text), None, "{text}");
        }
    }

    /// HAProxy writes local time without saying so.
    #[test]
    fn a_time_without_a_zone_is_in_the_zone_given() {
        let mut reader = TimeReader::new(TimeZone::fixed(jiff::tz::offset(2)));
        assert_eq!(reader.read(b"21/Nov/2026:12:15:32.001"), Some(TIME_US + 1_000));
        assert_eq!(reader.read(b"2026-11-21T12:15:32Z"), Some(TIME_US + 2 * 3600 * SECOND_US));
        assert_eq!(reader.read(b"2026-11-21T12:15:32"), Some(TIME_US));
    }

    /// A cached second must be the second of this text.
    #[test]
    fn neighbouring_times_do_not_share_a_cached_second() {
        let mut reader = TimeReader::new(TimeZone::UTC);
        for (text, second) in [
            ("2026-11-21T10:15:32.5Z", 0),
            ("2026-11-21T10:15:33.5Z", 1),
            ("2026-11-21T10:15:33.5+00:01", -59),
            ("2026-11-21T10:15:32.5Z", 0),
        ] {
            let expected = TIME_US.checked_add_signed(second * 1_000_000).unwrap() + 500_000;
            assert_eq!(reader.read(text.as_bytes()), Some(expected), "{text}");
        }
    }

    /// Start times are end times minus durations, in every unit that servers write.
    #[test]
    fn durations_are_read_in_their_unit() {
        for (text, unit, micros) in [
            ("0.004", Unit::Seconds, Some(4_000)),
            ("0.004193s", Unit::Seconds, Some(4_193)),
            ("4", Unit::Milliseconds, Some(4_000)),
            ("4ms", Unit::Seconds, Some(4_000)),
            ("4.193ms", Unit::Seconds, Some(4_193)),
            ("1m2.5s", Unit::Seconds, Some(62_500_000)),
            ("4193999", Unit::Nanoseconds, Some(4_193)),
            ("12", Unit::Microseconds, Some(12)),
            ("-", Unit::Seconds, None),
            ("-1", Unit::Seconds, None),
            ("1x", Unit::Seconds, None),
            ("18446744073709551615h", Unit::Seconds, None),
            ("", Unit::Seconds, None),
        ] {
            assert_eq!(duration_us(text.as_bytes(), unit), micros, "{text}");
        }
    }
}

//! The text form of quotas and windows: `100/1m`, `5 per 30s`, `10/second`, `1 per 3 hours`,
//! `5/1m30s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Quota;
use crate::error::Error;
use crate::time::micros;

/// Unit names, with the one that is written first, and their lengths in microseconds. Longest
/// first.
///
/// Months, quarters and years have no length: in a quota they are calendar windows.
const UNITS: [(&[&str], u64); 6] = [
    (&["w", "week", "weeks"], 604_800_000_000),
    (&["d", "day", "days"], 86_400_000_000),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000_000),
    (&["m", "min", "mins", "minute", "minutes"], 60_000_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000),
    (&["ms", "msec", "millisecond", "milliseconds"], 1000),
];

/// Calendar windows whose name is no length of time.
const CALENDARS: [&str; 3] = ["month", "quarter", "year"];

/// Parses `limit/window` or `limit per window`.
///
/// The limit is a whole number, optionally with `_` between digits. The window is a unit, a number
/// and a unit, or a sequence of these: `second`, `30s`, `2 days`, `1m30s`. Units are ms, s, m, h,
/// d, w and their words, in any case. `month`, `quarter` and `year` are [calendar](Self::calendar)
/// windows in UTC. Spaces around the parts are ignored. The algorithm is the default.
///
/// ```
/// use slidegate::Quota;
///
/// assert_eq!("100/1m".parse(), Ok(Quota::per_minute(100)));
/// assert_eq!("5 per 30s".parse::<Quota>().unwrap().window().as_secs(), 30);
/// assert_eq!("1_000/SECOND".parse(), Ok(Quota::per_second(1000)));
/// assert_eq!("7/month".parse(), Ok(Quota::calendar(7, slidegate::Calendar::month())));
/// assert_eq!(
///     "100/fortnight".parse::<Quota>().unwrap_err().to_string(),
///     "invalid window `fortnight`: unknown unit `fortnight`; use ms, s, m, h, d or w, for example `30s`"
/// );
/// ```
///
/// # Errors
/// If a part is missing or not a number, a unit is unknown, or the window is not 1 ms to 366 days.
impl FromStr for Quota {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (limit, window) = text.split_once('/').or_else(|| split_at_per(text)).ok_or_else(|| {
            Error::quota(format!(
                "invalid quota `{}`: no window; write `limit/window`, for example `100/1m`",
                shown(text)
            ))
        })?;
        let limit = limit.trim();
        let digits: String = limit.chars().filter(|c| *c != '_').collect();
        let limit = digits.parse().ok().filter(|_| !limit.starts_with(['_', '+'])).ok_or_else(|| {
            Error::quota(format!(
                "invalid limit `{}`: must be a whole number from 0 to {}, for example `100/1m`",
                shown(limit),
                u64::MAX
            ))
        })?;
        match CALENDARS.into_iter().find(|name| name.eq_ignore_ascii_case(window.trim())) {
            Some(name) => Ok(Self::calendar(limit, name.parse()?)),
            None => Self::new(limit, Self::parse_window(window)?),
        }
    }
}

impl Quota {
    /// Parses the window of a quota: [`MIN_WINDOW`](Self::MIN_WINDOW) to
    /// [`MAX_WINDOW`](Self::MAX_WINDOW).
    ///
    /// ```
    /// # use slidegate::Quota;
    /// assert_eq!(Quota::parse_window("90s").unwrap().as_secs(), 90);
    /// assert_eq!(
    ///     Quota::parse_window("367d").unwrap_err().to_string(),
    ///     "invalid window `367d`: must be 1ms to 366d, for example `1m`"
    /// );
    /// ```
    ///
    /// # Errors
    /// Same as [`parse_window`], or if the window is out of range. The error contains the given
    /// text, at most 40 characters of it.
    pub fn parse_window(text: &str) -> Result<Duration, Error> {
        let text = text.trim();
        let window = parse_window(text)?;
        if (Self::MIN_WINDOW..=Self::MAX_WINDOW).contains(&window) {
            return Ok(window);
        }
        Err(out_of_range(text))
    }
}

impl Quota {
    /// The window for people: `1m`, or its calendar, such as `month in Europe/Berlin`.
    #[must_use]
    pub fn window_text(&self) -> String {
        self.calendar_window().map_or_else(|| format_window(self.window()), |calendar| calendar.to_string())
    }
}

/// Writes `limit/window` with the window in its largest whole unit. The algorithm is not included.
///
/// ```
/// # use slidegate::Quota;
/// assert_eq!(Quota::per_minute(100).to_string(), "100/1m");
/// assert_eq!("5/90s".parse::<Quota>().unwrap().to_string(), "5/90s");
/// ```
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.limit(), self.window_text())
    }
}

fn split_at_per(text: &str) -> Option<(&str, &str)> {
    let at = text.to_ascii_lowercase().find(" per ")?;
    Some((&text[..at], &text[at + " per ".len()..]))
}

/// Parses a duration in the syntax of a quota's window: `60s`, `1 minute`, `minute`, `1m30s`. Does
/// not check the range.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(slidegate::clock::parse_window("1m30s"), Ok(Duration::from_secs(90)));
/// ```
///
/// # Errors
/// If the text is empty, has a number without a unit or an unknown unit, or exceeds `u64::MAX`
/// microseconds.
pub fn parse_window(text: &str) -> Result<Duration, Error> {
    const UNITS_FIX: &str = "use ms, s, m, h, d or w, for example `30s`";
    let text = text.trim();
    let no_unit = || {
        Error::quota(format!("invalid window `{}`: must be a number and a unit; {UNITS_FIX}", shown(text)))
    };
    let mut rest = text;
    let mut total: u64 = 0;
    if text.is_empty() {
        return Err(no_unit());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let tail = tail.trim_start();
        let letters = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if unit.is_empty() {
            return Err(no_unit());
        }
        let number = if number.is_empty() { "1" } else { number };
        let length = unit_us(unit).ok_or_else(|| {
            let (text, unit) = (shown(text), shown(unit));
            Error::quota(format!("invalid window `{text}`: unknown unit `{unit}`; {UNITS_FIX}"))
        })?;
        total = number
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(length))
            .and_then(|span| span.checked_add(total))
            .ok_or_else(|| out_of_range(text))?;
        rest = tail.trim_start();
    }
    Ok(Duration::from_micros(total))
}

fn out_of_range(text: &str) -> Error {
    Error::quota(format!("invalid window `{}`: must be 1ms to 366d, for example `1m`", shown(text)))
}

/// A text as errors show it: the start of a long one, and no control characters. It may come from
/// anyone.
fn shown(text: &str) -> String {
    const MAX_SHOWN: usize = 40;
    text.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect()
}

fn unit_us(name: &str) -> Option<u64> {
    UNITS.iter().find(|(names, _)| names.iter().any(|n| n.eq_ignore_ascii_case(name))).map(|(_, us)| *us)
}

/// Writes a duration in the syntax of a quota's window, in its largest whole unit: `1m`, `90s`,
/// `1500ms`.
///
/// Durations that are not whole milliseconds are rounded up: the text is meant for people.
#[must_use]
pub fn format_window(window: Duration) -> String {
    let us = micros(window);
    let (names, length) =
        UNITS.into_iter().find(|(_, length)| us >= *length && us.is_multiple_of(*length)).unwrap_or(UNITS[5]);
    let mut digits = itoa::Buffer::new();
    [digits.format(us.div_ceil(length)), names[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn error(text: &str) -> String {
        text.parse::<Quota>().unwrap_err().to_string()
    }

    /// People bring the syntax of their previous limiter.
    #[test]
    fn the_usual_spellings_are_read() {
        for (text, limit, secs) in [
            ("1/SECOND", 1, 1),
            ("1 per 3 hour", 1, 10_800),
            ("1/2 day", 1, 172_800),
            (" 5 PER 30s ", 5, 30),
            ("10/minute", 10, 60),
            ("1_000_000/1w", 1_000_000, 604_800),
            ("5/1m30s", 5, 90),
            ("5/1h 30 min", 5, 5400),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!((quota.limit(), quota.window()), (limit, Duration::from_secs(secs)), "{text}");
        }
        for (text, calendar) in [("7/month", "month"), ("7 per YEAR", "year"), ("7/ quarter ", "quarter")] {
            assert_eq!(text.parse(), Ok(Quota::calendar(7, calendar.parse().unwrap())), "{text}");
        }
        assert_eq!("7/100ms".parse::<Quota>().unwrap().window(), Duration::from_millis(100));
    }

    /// Guessing what was meant would apply the wrong limit.
    #[test]
    fn what_cannot_be_read_is_an_error_with_a_way_out() {
        assert_eq!(
            error("meow"),
            "invalid quota `meow`: no window; write `limit/window`, for example `100/1m`"
        );
        assert_eq!(
            error("100"),
            "invalid quota `100`: no window; write `limit/window`, for example `100/1m`"
        );
        assert_eq!(
            error("ten/1m"),
            "invalid limit `ten`: must be a whole number from 0 to 18446744073709551615, for example `100/1m`"
        );
        assert_eq!(
            error("-1/1m"),
            "invalid limit `-1`: must be a whole number from 0 to 18446744073709551615, for example `100/1m`"
        );
        assert_eq!(
            error("1 per millenium"),
            "invalid window `millenium`: unknown unit `millenium`; use ms, s, m, h, d or w, for example `30s`"
        );
        assert_eq!(
            error("5/30"),
            "invalid window `30`: must be a number and a unit; use ms, s, m, h, d or w, for example `30s`"
        );
        assert_eq!(
            error("5/"),
            "invalid window ``: must be a number and a unit; use ms, s, m, h, d or w, for example `30s`"
        );
        assert_eq!(
            error("5/99999999999999w"),
            "invalid window `99999999999999w`: must be 1ms to 366d, for example `1m`"
        );
        let out_of_range =
            |window| format!("invalid window `{window}`: must be 1ms to 366d, for example `1m`");
        assert_eq!(error("5/367d"), out_of_range("367d"));
        assert_eq!(error("5 per 400 days "), out_of_range("400 days"));
        assert_eq!(error("5/0s"), out_of_range("0s"));
        assert!(error("5/2 months").contains("unknown unit `months`"));
    }

    /// A text from outside must not fill a log or a reply, nor end it early.
    #[test]
    fn errors_show_the_start_of_long_texts_and_no_control_characters() {
        let long = "9".repeat(100_000);
        let quota = |text: &str| text.parse::<Quota>().unwrap_err().to_string();
        for error in [quota(&long), quota(&format!("1/{long}")), quota(&format!("1/{long}x"))] {
            assert!(error.len() < 200, "{} bytes", error.len());
        }
        assert_eq!(
            quota("5/1\0\n"),
            "invalid window `1\\0`: must be a number and a unit; use ms, s, m, h, d or w, for example `30s`"
        );
    }

    proptest! {
        /// `validate` prints a quota and people copy it into a file.
        #[test]
        fn what_is_written_is_read_back(limit: u64, ms in 1u64..=366 * 86_400_000) {
            let quota = Quota::new(limit, Duration::from_millis(ms)).unwrap();
            prop_assert_eq!(quota.to_string().parse::<Quota>().unwrap(), quota);
        }

        /// The text comes from files and command lines.
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<Quota>();
        }
    }
}

//! Calendar windows as text, such as `month in Europe/Berlin from day 15`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Calendar, Spec, UTC, Unit, weekday};
use crate::error::Error;
use crate::time::Timestamp;

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.spec.fmt(f)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.unit.name())?;
        if self.zone != UTC {
            write!(f, " in {}", self.zone)?;
        }
        if self.anchor != 1 {
            write!(f, " from day {}", self.anchor)?;
        }
        if self.week_starts != 1 {
            write!(f, " from {}", weekday(self.week_starts))?;
        }
        Ok(())
    }
}

/// Parses what it is written as.
///
/// # Errors
/// If the text is anything else.
impl FromStr for Calendar {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = || {
            let text: String = text.chars().take(40).flat_map(char::escape_debug).collect();
            Error::quota(format!(
                "invalid calendar window `{text}`: must be `hour`, `day`, `week`, `month`, `quarter` or `year`"
            ))
        };
        let (rest, from) = text.split_once(" from ").map_or((text, None), |(rest, from)| (rest, Some(from)));
        let (unit, zone) = rest.split_once(" in ").map_or((rest, None), |(unit, zone)| (unit, Some(zone)));
        let unit = Unit::ALL.into_iter().find(|known| known.name() == unit).ok_or_else(invalid)?;
        let mut calendar = Self::of(unit);
        if let Some(zone) = zone {
            calendar = calendar.with_time_zone(zone)?;
        }
        match from.map(|from| (from, from.strip_prefix("day "))) {
            None => Ok(calendar),
            Some((_, Some(day))) => calendar.with_anchor(day.parse().map_err(|_| invalid())?),
            Some((day, None)) => calendar.with_week_start(day),
        }
    }
}

/// In snapshots: as its text.
impl Serialize for Calendar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Calendar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl Calendar {
    /// A time as RFC 3339, with the offset of the time zone then: `2026-12-01T00:00:00+01:00`.
    #[must_use]
    pub fn time_text(self, at: Timestamp) -> String {
        let at = i64::try_from(at.as_micros()).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
        let at = at.unwrap_or_default();
        at.display_with_offset(self.0.zone.to_offset(at)).to_string()
    }

    /// A border for people: `1 December, 00:00 Europe/Berlin`; with the year if it is not that of `now`.
    ///
    /// ```
    /// use slidegate::{Calendar, clock::Timestamp};
    ///
    /// let border = Timestamp::from_secs(1_798_761_600);
    /// let week_before = Timestamp::from_secs(1_798_156_800);
    /// assert_eq!(Calendar::year().border_text(border, week_before), "1 January 2027, 00:00 UTC");
    /// assert_eq!(Calendar::year().border_text(border, border), "1 January, 00:00 UTC");
    /// ```
    #[must_use]
    pub fn border_text(self, border: Timestamp, now: Timestamp) -> String {
        let [border, now] = [border, now].map(|time| self.0.local(time.as_micros()));
        let year = if border.year() == now.year() { "" } else { " %Y" };
        let seconds = if border.second() == 0 { "" } else { ":%S" };
        let text = border.strftime(&format!("%-d %B{year}, %H:%M{seconds}")).to_string();
        format!("{text} {}", self.time_zone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bill must say which midnight it means, where clocks change.
    #[test]
    fn times_have_the_offset_of_their_zone_then() {
        let berlin = Calendar::month().with_time_zone("Europe/Berlin").unwrap();
        for (calendar, secs, expected) in [
            (berlin, 1_782_856_800, "2026-07-01T00:00:00+02:00"),
            (berlin, 1_796_079_600, "2026-12-01T00:00:00+01:00"),
            (Calendar::day(), 1_796_083_200, "2026-12-01T00:00:00+00:00"),
        ] {
            assert_eq!(calendar.time_text(Timestamp::from_secs(secs)), expected);
        }
    }

    /// Instances, snapshots and tickets of different releases name calendars by this text.
    #[test]
    fn a_calendar_is_read_as_it_is_written() {
        let tokyo = Calendar::month().with_time_zone("asia/tokyo").unwrap().with_anchor(15).unwrap();
        assert_eq!(tokyo.to_string(), "month in Asia/Tokyo from day 15");
        for text in [
            "hour",
            "day in Europe/Berlin",
            "week from sunday",
            "quarter",
            "year from day 31",
            "month in Asia/Tokyo from day 15",
        ] {
            let calendar: Calendar = text.parse().unwrap();
            assert_eq!(calendar.to_string(), text);
            assert_eq!(calendar, text.parse().unwrap());
        }
        assert_eq!(tokyo, "month in Asia/Tokyo from day 15".parse().unwrap());
        assert_ne!(tokyo.code(), Calendar::month().code());
        for (text, why) in [
            ("fortnight", "invalid calendar window `fortnight`: must be"),
            ("month in Mars/Phobos", "invalid time zone `Mars/Phobos`: must be a name of the IANA"),
            ("month from day 32", "invalid anchor `32`: must be a day of the month, 1 to 31"),
            ("day from day 2", "invalid anchor `2`: the window is a day, and only month"),
            ("day from monday", "invalid day `monday`: the window is a day and no week"),
            ("week from someday", "invalid day `someday`: must be a day of the week in English"),
        ] {
            let error = text.parse::<Calendar>().unwrap_err().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}

//! Calendar windows as text, such as `month in Europe/Berlin from day 15`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Calendar, Spec, UTC, Unit, weekday};
use crate::error::Error;

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

//! A `rate_limit`, its options, and the meaning of its unit.

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};
use slidegate::{Algorithm, Calendar, Error, Excess, Quota};

/// The unit of a limit, with its number in the protocol buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// 1 second.
    Second = 1,
    /// 60 seconds.
    Minute = 2,
    /// 60 minutes.
    Hour = 3,
    /// 24 hours.
    Day = 4,
    /// 30 days, or a month of the calendar.
    Month = 5,
    /// 365 days, or a year of the calendar.
    Year = 6,
    /// 7 days.
    Week = 7,
}

impl Unit {
    /// Shortest first.
    const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The number in the protocol buffers.
    pub(crate) const fn number(self) -> i32 {
        self as i32
    }

    /// `None` for 0, which is UNKNOWN, and for undefined numbers.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.number() == number)
    }

    /// Ignores the case, as config files do.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

    /// The unit of a quota's window, if any.
    pub(crate) fn of(quota: &Quota) -> Option<Self> {
        match quota.calendar_window() {
            Some(calendar) => Self::from_name(calendar.unit()),
            None => Self::ALL.into_iter().find(|unit| unit.window() == quota.window()),
        }
    }

    /// The name in upper case: `SECOND`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The window's length, unless it follows a calendar.
    pub(crate) const fn window(self) -> Duration {
        const DAY_SECS: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => DAY_SECS,
            Self::Week => 7 * DAY_SECS,
            Self::Month => 30 * DAY_SECS,
            Self::Year => 365 * DAY_SECS,
        })
    }
}

/// A number of requests per unit of time. 0 denies everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
}

/// Calendar windows in one time zone: hour, day, week, month and year. Parsed from the zone's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CalendarWindows([Calendar; 5]);

impl CalendarWindows {
    /// A unit's calendar window. `None` for seconds and minutes, which begin at the same time in
    /// every zone.
    pub(super) fn of(self, unit: Unit) -> Option<Calendar> {
        let [hour, day, week, month, year] = self.0;
        match unit {
            Unit::Second | Unit::Minute => None,
            Unit::Hour => Some(hour),
            Unit::Day => Some(day),
            Unit::Week => Some(week),
            Unit::Month => Some(month),
            Unit::Year => Some(year),
        }
    }
}

impl FromStr for CalendarWindows {
    type Err = Error;

    fn from_str(zone: &str) -> Result<Self, Error> {
        Ok(Self([
            Calendar::hour().with_time_zone(zone)?,
            Calendar::day().with_time_zone(zone)?,
            Calendar::week().with_time_zone(zone)?,
            Calendar::month().with_time_zone(zone)?,
            Calendar::year().with_time_zone(zone)?,
        ]))
    }
}

/// A limit's options besides its rate. A limit carried by a request has the defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    /// The name that `replaces` refers to; may be empty.
    pub(crate) name: String,
    /// Names of limits that do not apply to requests matched by this one.
    pub(crate) replaces: Vec<String>,
    /// Reports, but never denies.
    pub(crate) shadow_mode: bool,
    /// Denies only if all other limits of this mode in the request deny too.
    pub(crate) quota_mode: bool,
    /// For the dynamic metadata of responses. Without the key `slidegate`.
    pub(crate) metadata: Map<String, Value>,
    /// Treatment of costs above what remains, if set here.
    pub(super) excess: Option<Excess>,
    /// Whether its statistics name contains all values of the request.
    pub(super) detailed_metric: bool,
    /// Its own algorithm, if set.
    pub(super) algorithm: Option<Algorithm>,
}

impl Rule {
    /// Takes `metadata`, whose key `slidegate` has slidegate's own settings.
    pub(super) fn take_metadata(&mut self, mut metadata: Map<String, Value>) -> Result<(), String> {
        let own = metadata.remove("slidegate");
        self.metadata = metadata;
        let invalid = |key: &str, value: &Value, expected: &str| {
            let shown =
                value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string());
            Err(format!("invalid metadata.{key} `{shown}`: must be {expected}"))
        };
        let entries = match own {
            None => return Ok(()),
            Some(Value::Object(entries)) => entries,
            Some(other) => {
                let expected = "keys and values, for example `slidegate: {algorithm: fixed-window}`";
                return invalid("slidegate", &other, expected);
            }
        };
        for (key, value) in entries {
            let text = value.as_str();
            let (is_valid, expected) = match key.as_str() {
                "algorithm" => {
                    self.algorithm = text.and_then(|name| name.parse().ok());
                    (self.algorithm.is_some(), Algorithm::NAMES)
                }
                "excess" => {
                    self.excess = text.and_then(Excess::from_name);
                    let names = "`refuse`, `charge` (admit a cost while anything remains) or `count` (count denied hits too)";
                    (self.excess.is_some(), names)
                }
                _ => {
                    let key = key.escape_debug();
                    return Err(format!(
                        "unknown key `{key}` in metadata.slidegate: must be `algorithm` or `excess`"
                    ));
                }
            };
            if !is_valid {
                return invalid(&format!("slidegate.{key}"), &value, expected);
            }
        }
        Ok(())
    }
}

//! Rules: what stands in a `rate_limit` and beside it, made into a quota of ours.

use std::time::Duration;

use serde_json::{Map, Value};
use slidegate::{Algorithm, Excess, Quota};

/// The unit of a limit, with the number that protocol buffers give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    /// 30 days.
    Month = 5,
    /// 365 days.
    Year = 6,
    Week = 7,
}

impl Unit {
    /// Shortest first.
    const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    pub(crate) const fn number(self) -> i32 {
        self as i32
    }

    /// `None` for 0, which is unknown, and for numbers that are no unit.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.number() == number)
    }

    /// In any case, as files have it.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }

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

/// So many requests per unit. 0 lets nothing pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Unit,
}

impl Rate {
    pub(super) fn quota(self, algorithm: Algorithm) -> Quota {
        let quota = Quota::new(self.requests_per_unit.into(), self.unit.window());
        quota.expect("every unit is a window").with_algorithm(algorithm)
    }
}

/// What a file says about a limit besides its rate. Of a limit that came with a request: the defaults.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule {
    /// What `replaces` of others calls it by; empty if it has no name.
    pub(crate) name: String,
    /// Names of limits that do not count in requests that this one is found for.
    pub(crate) replaces: Vec<String>,
    /// Decides and reports, never denies.
    pub(crate) shadow_mode: bool,
    /// Denies only together with all other limits of this mode in the request.
    pub(crate) quota_mode: bool,
    /// For the answer's dynamic metadata. Without `slidegate`, which is for us.
    pub(crate) metadata: Map<String, Value>,
    /// What it asks for to become of a cost that is more than what remains.
    pub(super) excess: Option<Excess>,
    /// Whether the whole path of the request is its name in statistics.
    pub(super) detailed_metric: bool,
    /// The algorithm that it asks for.
    pub(super) algorithm: Option<Algorithm>,
}

impl Rule {
    /// Takes `metadata`, of which `slidegate` is read.
    pub(super) fn take_metadata(&mut self, mut metadata: Map<String, Value>) -> Result<(), String> {
        let ours = metadata.remove("slidegate");
        self.metadata = metadata;
        let entries = match ours {
            None => return Ok(()),
            Some(Value::Object(entries)) => entries,
            Some(other) => {
                return Err(format!(
                    "metadata.slidegate is {other}; write keys and values, for example `slidegate: {{algorithm: \
                     fixed-window}}`"
                ));
            }
        };
        for (key, value) in entries {
            match (key.as_str(), value.as_str()) {
                ("algorithm", Some(name)) => {
                    self.algorithm =
                        Some(name.parse().map_err(|error| format!("metadata.slidegate: {error}"))?);
                }
                ("excess", Some(name)) if Excess::from_name(name).is_some() => {
                    self.excess = Excess::from_name(name);
                }
                ("algorithm", None) => {
                    return Err(format!(
                        "metadata.slidegate: algorithm is {value}; use `sliding-log`, `sliding-window`, \
                         `fixed-window` or `token-bucket`"
                    ));
                }
                ("excess", _) => {
                    return Err(format!(
                        "metadata.slidegate: excess is {value}; write `excess: refuse`, `excess: charge` to admit a cost \
                         while anything remains, or `excess: count` to count refused hits"
                    ));
                }
                _ => {
                    return Err(format!(
                        "metadata.slidegate: unknown key `{}`; known are `algorithm` and `excess`",
                        key.escape_debug()
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Unit;

    /// A number that is taken for another unit limits by the day what was meant by the second.
    #[test]
    fn units_have_the_numbers_of_the_protocol_and_their_lengths() {
        let told = [
            (1, "SECOND", 1),
            (2, "MINUTE", 60),
            (3, "HOUR", 3600),
            (4, "DAY", 86_400),
            (5, "MONTH", 2_592_000),
            (6, "YEAR", 31_536_000),
            (7, "WEEK", 604_800),
        ];
        for (number, name, secs) in told {
            let unit = Unit::from_number(number).unwrap();
            assert_eq!((unit.number(), unit.name(), unit.window().as_secs()), (number, name, secs));
            assert_eq!(Unit::from_name(&name.to_lowercase()), Some(unit));
        }
        assert_eq!(
            (Unit::from_number(0), Unit::from_number(8), Unit::from_name("UNKNOWN")),
            (None, None, None)
        );
    }
}

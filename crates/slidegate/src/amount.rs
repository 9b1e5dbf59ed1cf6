//! Amounts of cost, exact to a millionth of a unit.
//!
//! Policies that [weigh](crate::Counts::Weighted) costs count millionths. Stores know integers only: units become
//! millionths where a policy enters a set, and millionths become units where a decision leaves the gate.

use std::fmt;
use std::ops::Add;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::Error;

/// Millionths in a unit.
pub const MILLION: u64 = 1_000_000;

/// An amount of cost: units with up to six decimals, without rounding.
///
/// ```
/// use slidegate::Amount;
///
/// let cents: Amount = "0.05".parse()?;
/// assert_eq!(cents.to_string(), "0.05");
/// assert_eq!((cents.floor(), cents.ceil()), (0, 1));
/// assert_eq!(Amount::from(3), "3.0".parse()?);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Amount {
    millionths: u128,
}

impl Amount {
    /// An amount of this many millionths of a unit.
    #[must_use]
    pub fn from_millionths(millionths: u64) -> Self {
        Self { millionths: millionths.into() }
    }

    /// In millionths of a unit.
    #[must_use]
    pub fn millionths(self) -> u128 {
        self.millionths
    }

    /// Whole units, rounded down.
    #[must_use]
    pub fn floor(self) -> u64 {
        saturated(self.millionths / u128::from(MILLION))
    }

    /// Whole units, rounded up.
    #[must_use]
    pub fn ceil(self) -> u64 {
        saturated(self.millionths.div_ceil(u128::from(MILLION)))
    }

    /// The amount as a store counts it: millionths, or whole units, rounded up.
    pub(crate) fn count(self, in_millionths: bool) -> u64 {
        if in_millionths { saturated(self.millionths) } else { self.ceil() }
    }

    /// The amount of a store's count.
    #[inline]
    pub(crate) fn counted(count: u64, in_millionths: bool) -> Self {
        if in_millionths { Self::from_millionths(count) } else { Self::from(count) }
    }
}

impl Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { millionths: self.millionths.saturating_add(other.millionths) }
    }
}

/// A number: a whole one if it is whole. With decimals it is the double that is next to it, whose shortest form has
/// the same decimals up to [`Counts::MAX_WEIGHTED_LIMIT`](crate::Counts::MAX_WEIGHTED_LIMIT).
impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match u64::try_from(self.millionths / u128::from(MILLION)) {
            Ok(units) if Self::from(units) == *self => serializer.serialize_u64(units),
            #[allow(clippy::cast_precision_loss)] // as documented
            _ => serializer.serialize_f64(self.millionths as f64 / MILLION as f64),
        }
    }
}

/// A number as [serialized](Serialize): rounded to millionths.
impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Number {
            Whole(u64),
            Decimal(f64),
        }
        match Number::deserialize(deserializer)? {
            Number::Whole(units) => Ok(units.into()),
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            // as documented, and within the range
            Number::Decimal(units) if (0.0..u64::MAX as f64).contains(&units) => {
                Ok(Self { millionths: (units * MILLION as f64).round() as u128 })
            }
            Number::Decimal(units) => {
                Err(de::Error::custom(format_args!("invalid amount `{units}`: must be at least 0")))
            }
        }
    }
}

/// The number, or the largest one.
fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl From<u64> for Amount {
    #[inline]
    fn from(units: u64) -> Self {
        Self { millionths: u128::from(units) * u128::from(MILLION) }
    }
}

/// Reads a decimal number with at most six decimals, optionally with `_` between digits.
///
/// ```
/// # use slidegate::Amount;
/// assert_eq!(
///     "0.0000001".parse::<Amount>().unwrap_err().to_string(),
///     "invalid amount `0.0000001`: must be a number with at most 6 decimals, for example `0.25`"
/// );
/// ```
///
/// # Errors
/// If it is something else, or has more units than a `u64`.
impl FromStr for Amount {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (units, decimals) = text.split_once('.').unwrap_or((text, "0"));
            let is_number = |part: &str| part.starts_with(|c: char| c.is_ascii_digit());
            let units = units.replace('_', "");
            if !is_number(text) || !is_number(decimals) || decimals.len() > 6 {
                return None;
            }
            let decimals: u64 = format!("{decimals:0<6}").parse().ok()?;
            let whole = Self::from(units.parse::<u64>().ok()?);
            Some(Self { millionths: whole.millionths + u128::from(decimals) })
        };
        read().ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            Error::policy(format!(
                "invalid amount `{}`: must be a number with at most 6 decimals, for example `0.25`",
                shown.escape_debug()
            ))
        })
    }
}

/// Writes the decimals that are there: `3`, `0.25`.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (units, rest) = (self.millionths / u128::from(MILLION), self.millionths % u128::from(MILLION));
        match rest {
            0 => write!(f, "{units}"),
            _ => write!(f, "{units}.{}", format!("{rest:06}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_read_as_it_is_written() {
        for text in ["0", "1", "0.2", "0.000001", "12.34", "18446744073709551615.999999"] {
            assert_eq!(text.parse::<Amount>().unwrap().to_string(), text);
        }
        assert_eq!("1_000.50".parse::<Amount>().unwrap().millionths(), 1_000_500_000);
    }

    /// Who reads a decision as JSON must find the decimals that were counted.
    #[test]
    fn the_number_in_json_has_the_same_decimals() {
        let largest = crate::Counts::MAX_WEIGHTED_LIMIT * MILLION;
        let steps = (0..200_000).map(|step| step * (largest / 200_000 + 7) % largest);
        for millionths in steps.chain([1, 10, 999_999, largest - 1]) {
            let amount = Amount::from_millionths(millionths);
            let json = serde_json::to_string(&amount).unwrap();
            let shown = json.parse::<f64>().unwrap();
            assert_eq!(format!("{shown:.6}").trim_end_matches('0').trim_end_matches('.'), amount.to_string());
        }
    }

    /// Money that is read wrongly is worse than none.
    #[test]
    fn what_is_no_amount_is_refused() {
        for text in
            ["", ".", ".5", "1.", "-1", "+1", "1e3", "1,5", "1.2.3", "0.0000001", "1 ", "_1", "1.+5", "ten"]
        {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        assert!("18446744073709551616".parse::<Amount>().is_err());
    }
}

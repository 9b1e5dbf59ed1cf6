//! Shares of a whole, as written by users: `0.1%`, `0.001`.

use std::fmt;
use std::str::FromStr;

/// A share from 0 to 1, in whole millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    millionths: u32,
}

const WHOLE: u32 = 1_000_000;

impl Share {
    /// One in a thousand.
    pub const ONE_IN_A_THOUSAND: Self = Self { millionths: WHOLE / 1000 };

    /// Whether `part` of `whole` exceeds this share.
    #[must_use]
    pub fn is_exceeded_by(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(WHOLE) > u128::from(self.millionths) * u128::from(whole)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "must be a share from 0% to 100% with at most four decimal places, for example `0.1%`".to_owned()
        };
        let (number, scale) = match text.strip_suffix('%') {
            Some(number) => (number.trim_end(), 4),
            None => (text, 6),
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || !digits(whole)
            || !digits(decimals)
            || decimals.len() > scale
            || whole.len() > 3
        {
            return Err(wrong());
        }
        let millionths: u32 = format!("{whole}{decimals:0<scale$}").parse().map_err(|_| wrong())?;
        if millionths > WHOLE { Err(wrong()) } else { Ok(Self { millionths }) }
    }
}

/// In percent, in the shortest form: `0.1%`.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.millionths / 10_000, self.millionths % 10_000);
        if rest == 0 {
            return write!(f, "{whole}%");
        }
        let decimals = format!("{rest:04}");
        write!(f, "{whole}.{}%", decimals.trim_end_matches('0'))
    }
}

/// A part of a whole in percent, with one decimal place: `3.1%`; `< 0.1%` for the smallest.
pub(crate) fn percent(part: impl Into<u128>, whole: impl Into<u128>) -> String {
    let (part, whole) = (part.into(), whole.into());
    if whole == 0 || part == 0 {
        return "0%".to_owned();
    }
    // Per mille, rounded.
    let tenths = (part * 1000 + whole / 2) / whole;
    if tenths == 0 {
        return "< 0.1%".to_owned();
    }
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// [`percent`] with as many decimal places as distinguish it from the share compared with.
pub(crate) fn percent_beside(part: u64, whole: u64, share: Share) -> String {
    let text = percent(part, whole);
    let exact = u128::from(part) * u128::from(WHOLE);
    let stated = u128::from(share.millionths) * u128::from(whole);
    if exact == stated || text != format!("{}.{}%", share.millionths / 10_000, share.millionths / 1000 % 10) {
        return text;
    }
    // The nearest possible share, or one step away if that is the same.
    let nearest = (exact + u128::from(whole) / 2) / u128::from(whole.max(1));
    let nearest = Share { millionths: u32::try_from(nearest).unwrap_or(WHOLE) };
    match (nearest == share, exact > stated) {
        (false, _) => nearest.to_string(),
        (true, true) => format!("just over {share}"),
        (true, false) => format!("just under {share}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A threshold that is read ten times too large lets everything pass.
    #[test]
    fn shares_are_read_in_percent_and_as_fractions() {
        for (text, millionths, shown) in [
            ("0.1%", 1000, "0.1%"),
            ("0.001", 1000, "0.1%"),
            ("1%", 10_000, "1%"),
            ("0%", 0, "0%"),
            ("0", 0, "0%"),
            ("1", 1_000_000, "100%"),
            ("100%", 1_000_000, "100%"),
            ("12.3456%", 123_456, "12.3456%"),
            ("0.000001", 1, "0.0001%"),
        ] {
            let share: Share = text.parse().unwrap();
            assert_eq!((share.millionths, share.to_string().as_str()), (millionths, shown), "{text}");
        }
        for text in ["", "%", "-1%", "101%", "1.1", "0.00001%", ".5", "1e-3", "0,1%", "all"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }

    /// "0.1% is more than 0.1%" explains nothing.
    #[test]
    fn a_share_is_told_apart_from_the_one_that_it_is_compared_with() {
        let share: Share = "0.1%".parse().unwrap();
        for (part, whole, text) in [
            (3, 2982, "0.1006%"),
            (1, 1000, "0.1%"),
            (1, 1001, "0.0999%"),
            (100_001, 100_000_000, "just over 0.1%"),
            (99_999, 100_000_000, "just under 0.1%"),
            (2, 1000, "0.2%"),
            (0, 0, "0%"),
        ] {
            assert_eq!(percent_beside(part, whole, share), text, "{part} of {whole}");
        }
    }

    /// Exactly the threshold does not exceed it.
    #[test]
    fn a_share_is_exceeded_by_more_only() {
        let share: Share = "0.1%".parse().unwrap();
        assert!(!share.is_exceeded_by(1, 1000) && share.is_exceeded_by(1, 999));
        assert!(!share.is_exceeded_by(0, 0) && share.is_exceeded_by(u64::MAX, u64::MAX));
    }
}

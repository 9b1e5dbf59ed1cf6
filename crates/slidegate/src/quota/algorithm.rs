//! The algorithms, by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// How the cost in a window is counted.
///
/// [`docs/algorithms.md`](https://docs.rs/slidegate) compares the algorithms with measured figures.
/// Each variant states its error. Snapshots store its place among the variants, so new ones are added at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// The exact sliding window: a log of charges with 4 to 14 bytes each, at most [`Quota::slots`](super::Quota::slots)
    /// of them.
    ///
    /// Exact to the microsecond while `limit <= slots`. Above that, a charge may count up to
    /// `window / slots` too long, so this algorithm may deny too early but never admits too much.
    #[default]
    SlidingLog,
    /// Two counters. The older one is weighted by its overlap with the sliding window.
    ///
    /// 56 to 63 bytes per key at any limit. Not exact, because it assumes that the charges of the older
    /// window were spread evenly: at 100 per minute, an adversary gets 199 through in 60 seconds.
    /// The weighted part rounds up, so it never admits more than the real-valued formula does.
    SlidingWindow,
    /// One counter per window. Windows are aligned to the Unix epoch.
    ///
    /// 47 to 53 bytes per key. Admits up to twice the limit around a window boundary.
    FixedWindow,
    /// A bucket of size [`Quota::burst`](super::Quota::burst) that drains by `limit` per window: the generic cell rate
    /// algorithm (ITU-T I.371), with the level kept in exact integers.
    ///
    /// 56 to 63 bytes per key. Admits `burst` at once and `limit` per window after that: up to
    /// `burst + limit - 1` in one window.
    TokenBucket,
    /// No rate: how much may be held at once, see [`Quota::in_flight`](super::Quota::in_flight).
    ///
    /// Nothing is used. Requests [reserve](crate::Gate::reserve) permits and give them back, and one
    /// that is not given back ends with its lease.
    InFlight,
}

/// What of a quota an algorithm reads besides limit and window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setting {
    /// Nothing.
    Nothing,
    /// The slots of a log.
    Slots,
    /// The burst of a bucket, which then is its capacity; the limit is what drains in a window.
    Burst,
    /// A calendar, which then has the borders of its windows.
    Calendar,
    /// The window is the lease of a permit.
    Lease,
}

impl Algorithm {
    /// The name in configuration files, responses and metrics.
    ///
    /// ```
    /// # use slidegate::Algorithm;
    /// assert_eq!(Algorithm::SlidingLog.name(), "sliding-log");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// What it reads of a quota besides limit and window.
    #[doc(hidden)]
    #[must_use]
    pub const fn setting(self) -> Setting {
        self.facts().1
    }

    const fn facts(self) -> (&'static str, Setting) {
        match self {
            Self::SlidingLog => ("sliding-log", Setting::Slots),
            Self::SlidingWindow => ("sliding-window", Setting::Nothing),
            Self::FixedWindow => ("fixed-window", Setting::Calendar),
            Self::TokenBucket => ("token-bucket", Setting::Burst),
            Self::InFlight => ("in-flight", Setting::Lease),
        }
    }

    /// The names of [`ALL`](Self::ALL), as errors list them.
    #[doc(hidden)]
    pub const NAMES: &'static str = "`sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`";
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Parses an algorithm's [name](Algorithm::name), in any case.
impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL
            .into_iter()
            .find(|algorithm| text.eq_ignore_ascii_case(algorithm.name()))
            .ok_or_else(|| Error::quota(format!("invalid algorithm `{text}`: must be {}", Self::NAMES)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who mistypes an algorithm must learn of every one.
    #[test]
    fn errors_list_all_names() {
        let [first @ .., last] = Algorithm::ALL.map(|one| format!("`{one}`"));
        assert_eq!(Algorithm::NAMES, format!("{} or {last}", first.join(", ")));
    }
}

//! Styles: the forms that fields have had over the years, and their names in configuration files.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// A version of "RateLimit header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers).
///
/// Parses from its [name](Self::name), in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Draft {
    /// No `RateLimit` fields.
    Off,
    /// `RateLimit-Policy: 5;w=60`, `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, of the strictest
    /// policy.
    ///
    /// The window is in seconds and at least 1. The reset is in seconds, rounded up: `Retry-After` where that is sent,
    /// as this draft wants, else how long until the key is as good as new.
    Draft6,
    /// `RateLimit-Policy: 5;w=60` and `RateLimit: limit=5, remaining=4, reset=60`, with the meaning of
    /// [`Draft6`](Self::Draft6).
    Draft7,
    /// `RateLimit-Policy: "per-user";q=5;w=60` and `RateLimit: "per-user";r=4;t=60`, both Lists (RFC 9651) with an item
    /// for each policy that applies, in their order.
    ///
    /// `q` is the quota's limit, `w` its window in seconds, rounded up and left out under one second. `r` is the cost
    /// left, of a token bucket that of the burst. `t` is the seconds until more is free, left out while nothing is used
    /// and where `Retry-After` ends sooner. Until then no more than `r` can be used, so `t` is also what draft 11 means
    /// by it.
    #[default]
    Draft10,
}

impl Draft {
    pub(super) const ALL: [Self; 4] = [Self::Draft10, Self::Draft7, Self::Draft6, Self::Off];

    /// The name in configuration files: `draft-10`, `draft-7`, `draft-6` or `off`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Draft6 => "draft-6",
            Self::Draft7 => "draft-7",
            Self::Draft10 => "draft-10",
        }
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Draft {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|draft| text.eq_ignore_ascii_case(draft.name())).ok_or_else(|| {
            Error::header(format!(
                "ratelimit header draft `{}` is unknown; use `draft-10`, `draft-7`, `draft-6` or `off`",
                text.escape_debug()
            ))
        })
    }
}

/// The form of the older, unwritten standard: `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the strictest policy.
///
/// Parses from its [name](Self::name), in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum XRateLimit {
    /// No `X-RateLimit` fields.
    Off,
    /// The reset is when the key is as good as new, in seconds since the Unix epoch, rounded up: as GitHub says it.
    #[default]
    EpochSeconds,
    /// The reset is how long until then, in seconds, rounded up.
    DeltaSeconds,
}

impl XRateLimit {
    pub(super) const ALL: [Self; 3] = [Self::EpochSeconds, Self::DeltaSeconds, Self::Off];

    /// The name in configuration files: `epoch`, `delta` or `off`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::EpochSeconds => "epoch",
            Self::DeltaSeconds => "delta",
        }
    }
}

impl fmt::Display for XRateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for XRateLimit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|style| text.eq_ignore_ascii_case(style.name())).ok_or_else(|| {
            Error::header(format!(
                "x-ratelimit reset `{}` is unknown; use `epoch`, `delta` or `off`",
                text.escape_debug()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A style is chosen in a configuration file; a misspelt one must say what there is.
    #[test]
    fn styles_parse_from_their_names_and_errors_name_the_way_out() {
        for draft in Draft::ALL {
            assert_eq!(draft.to_string().to_uppercase().parse(), Ok(draft));
        }
        for style in XRateLimit::ALL {
            assert_eq!(style.to_string().parse(), Ok(style));
        }
        assert_eq!(
            "draft-9\n".parse::<Draft>().unwrap_err().to_string(),
            "ratelimit header draft `draft-9\\n` is unknown; use `draft-10`, `draft-7`, `draft-6` or `off`"
        );
        assert_eq!(
            "unix".parse::<XRateLimit>().unwrap_err().to_string(),
            "x-ratelimit reset `unix` is unknown; use `epoch`, `delta` or `off`"
        );
    }
}

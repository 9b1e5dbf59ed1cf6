//! Header styles: the forms that rate limit fields have had, and their names in configuration
//! files.

use std::fmt;
use std::str::FromStr;

use slidegate::Error;

/// A version of "RateLimit header fields for HTTP" (draft-ietf-httpapi-ratelimit-headers).
///
/// Parses from its [name](Self::name), in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Draft {
    /// No `RateLimit` fields.
    Off,
    /// `RateLimit-Policy: 5;w=60`, `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`
    /// of the strictest policy.
    ///
    /// The window is in seconds and at least 1. The reset is in seconds, rounded up: equal to
    /// `Retry-After` if that is sent, as this draft requires, and otherwise the time until the key
    /// is unused.
    Draft6,
    /// `RateLimit-Policy: 5;w=60` and `RateLimit: limit=5, remaining=4, reset=60`, with the same
    /// meaning as [`Draft6`](Self::Draft6).
    Draft7,
    /// `RateLimit-Policy: "per-user";q=5;w=60` and `RateLimit: "per-user";r=4;t=60`. Both are Lists
    /// (RFC 9651) with one item per policy that applies, in plan order.
    ///
    /// `q` is the quota's limit. `w` is its window in seconds, rounded up; it is omitted for
    /// windows under one second. `r` is the remaining cost, for a token bucket that of the burst.
    /// `t` is the number of seconds until more cost is available; it is omitted if nothing is used
    /// or if `Retry-After` ends sooner. No more than `r` can be used until then, so `t` also has
    /// the meaning that draft 11 gives it.
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
                "invalid ratelimit header draft `{}`: must be `draft-10`, `draft-7`, `draft-6` or `off`",
                text.escape_debug()
            ))
        })
    }
}

/// The form of the older de facto standard: `X-RateLimit-Limit`, `-Remaining` and `-Reset` of the
/// strictest policy; or of the APIs of language models, with fields for each unit of cost.
///
/// Parses from its [name](Self::name), in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum XRateLimit {
    /// No `X-RateLimit` fields.
    Off,
    /// The reset is the time at which the key is unused, in seconds since the Unix epoch, rounded
    /// up, as on GitHub.
    #[default]
    EpochSeconds,
    /// The reset is the number of seconds until the key is unused, rounded up.
    DeltaSeconds,
    /// `x-ratelimit-limit-requests`, `-remaining-requests`, `-reset-requests` and the same of
    /// `tokens`, as of `OpenAI`'s API, whose client libraries read them.
    ///
    /// Each unit shows the strictest of the policies that count it, see
    /// [`Policy::with_unit`](slidegate::Policy::with_unit); policies of prompts' or answers' tokens are among
    /// those of `tokens`. A unit that no policy counts has no fields. The reset is the time until
    /// the key is unused as Go writes durations, in milliseconds, rounded up: `12ms`, `1s`,
    /// `6m0s`.
    OpenAi,
    /// `anthropic-ratelimit-requests-limit`, `-remaining`, `-reset`, and the same of `tokens`,
    /// `input-tokens` and `output-tokens`, as of Anthropic's API, whose client libraries read them.
    ///
    /// Units as in [`OpenAi`](Self::OpenAi); `tokens` is the strictest of all policies of tokens.
    /// The reset is the time at which the key is unused, in RFC 3339, in whole seconds, rounded up.
    /// What remains is exact, not rounded to thousands.
    Anthropic,
}

impl XRateLimit {
    pub(super) const ALL: [Self; 5] =
        [Self::EpochSeconds, Self::DeltaSeconds, Self::OpenAi, Self::Anthropic, Self::Off];

    /// The name in configuration files: `epoch`, `delta`, `openai`, `anthropic` or `off`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::EpochSeconds => "epoch",
            Self::DeltaSeconds => "delta",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
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
                "invalid x-ratelimit reset `{}`: must be `epoch`, `delta`, `openai`, `anthropic` or `off`",
                text.escape_debug()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A style is chosen in a configuration file; the error for a misspelt one must list the
    /// styles.
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
            "invalid ratelimit header draft `draft-9\\n`: must be `draft-10`, `draft-7`, `draft-6` or `off`"
        );
        assert_eq!(
            "unix".parse::<XRateLimit>().unwrap_err().to_string(),
            "invalid x-ratelimit reset `unix`: must be `epoch`, `delta`, `openai`, `anthropic` or `off`"
        );
    }
}

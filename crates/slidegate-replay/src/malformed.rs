//! Reasons why a line is not a request.

use std::fmt;
use std::sync::Arc;

/// Maximum bytes of a line, without its line end. Servers reject far shorter request heads (nginx:
/// 32 KiB in total).
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;

/// Why a line cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// The line does not begin with a client.
    Client,
    /// The second column is missing.
    Ident,
    /// The third column is missing.
    User,
    /// No time in brackets, an invalid date, or a date before 1970.
    Time,
    /// The request is not in quotes.
    Request,
    /// The status is neither three digits nor `-`.
    Status,
    /// The length is neither a `u64` nor `-`.
    Bytes,
    /// The line is longer than 65,536 bytes.
    TooLong,
    /// The line is not one JSON object.
    Json,
    /// A field is missing or unreadable: its name, and what is expected.
    Field(&'static str, &'static str),
    /// The format's literal after one of its variables is missing.
    Literal {
        /// The text, such as `] "`.
        expected: Arc<str>,
        /// The variable before it; empty at the start of the line.
        after: Arc<str>,
    },
    /// The line has fewer columns than the format.
    Columns {
        /// Columns in the line.
        found: usize,
        /// Columns required by the format.
        expected: usize,
    },
    /// A quoted column has no closing quote.
    Quote,
    /// The line is not wrapped like the lines before it: `journald`, `syslog`.
    Wrapper(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("no client at the start of the line"),
            Self::Ident => f.write_str("no identity (or `-`) after the client"),
            Self::User => f.write_str("no user (or `-`) after the identity"),
            Self::Time => f.write_str("no time like `[17/May/2015:10:05:03 +0000]` before the request"),
            Self::Request => f.write_str("no request in double quotes after the time"),
            Self::Status => f.write_str("expected a three-digit status or `-` after the request"),
            Self::Bytes => f.write_str("no length in bytes (or `-`) after the status"),
            Self::TooLong => write!(f, "longer than {MAX_LINE_BYTES} bytes"),
            Self::Json => f.write_str("not one JSON object"),
            Self::Field(name, expected) => write!(f, "invalid or missing {name}: expected {expected}"),
            Self::Literal { expected, after } if after.is_empty() => {
                write!(f, "no `{expected}` at the start of the line")
            }
            Self::Literal { expected, after } => write!(f, "no `{expected}` after `{after}`"),
            Self::Columns { found, expected } => write!(f, "{found} columns: expected {expected}"),
            Self::Quote => f.write_str("a quoted column without its closing quote"),
            Self::Wrapper(name) => write!(f, "not wrapped by {name} as the lines before"),
        }
    }
}

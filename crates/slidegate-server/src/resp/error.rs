//! Errors of commands, and the parsing of integer arguments.

use super::reply::Escaped;

/// Why a command was rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandError {
    /// The error code, if it is not `ERR`.
    pub(super) code: Option<&'static str>,
    /// One line: what is invalid and what is expected.
    pub(super) detail: String,
    /// Whether the connection closes after the error.
    pub(super) closes: bool,
}

impl CommandError {
    pub(super) fn new(detail: impl Into<String>) -> Self {
        Self { code: None, detail: detail.into(), closes: false }
    }

    pub(super) fn coded(code: &'static str, detail: impl Into<String>) -> Self {
        Self { code: Some(code), detail: detail.into(), closes: false }
    }

    /// The same error, closing the connection.
    pub(super) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }
}

/// Parses an integer argument.
pub(super) fn parse_integer(name: &str, bytes: &[u8], min: u64, max: u64) -> Result<u64, CommandError> {
    let digits =
        std::str::from_utf8(bytes).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|digits| digits.parse().ok()).filter(|number| (min..=max).contains(number)).ok_or_else(
        || {
            CommandError::new(format!(
                "invalid {name} `{}`: must be a whole number from {min} to {max}",
                Escaped(bytes)
            ))
        },
    )
}

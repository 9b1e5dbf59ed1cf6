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
    decimal(bytes).filter(|number| (min..=max).contains(number)).ok_or_else(|| {
        CommandError::new(format!(
            "invalid {name} `{}`: must be a whole number from {min} to {max}",
            Escaped(bytes)
        ))
    })
}

/// Parses decimal digits. By hand: text takes five times as long to check and parse, and `THROTTLE`
/// has three numbers.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 { None } else { number.checked_mul(10)?.checked_add(digit.into()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_digits_only_and_fits() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX - 1, u64::MAX] {
            assert_eq!(decimal(number.to_string().as_bytes()), Some(number));
        }
        assert_eq!(decimal(b"007"), Some(7));
        for other in ["", " 1", "1 ", "+1", "-1", "1.0", "1e3", "0x1", "1:", "1/", "\u{663}"] {
            assert_eq!(decimal(other.as_bytes()), None, "{other}");
        }
        assert_eq!(decimal(b"18446744073709551616"), None, "2^64");
        assert_eq!(decimal(b"99999999999999999999"), None);
        assert_eq!(decimal(b"\xff"), None);
    }
}

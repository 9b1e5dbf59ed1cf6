//! Values on the command line: parsers, and one-line errors for invalid values.
//!
//! A parser's error says what is expected; [`invalid_value`] puts the argument and the value before
//! it.

use std::net::SocketAddr;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use slidegate::{Excess, parse_window};

use crate::config::{MAX_DRAIN_DELAY, one_line};
use crate::limits::MAX_COST;
use slidegate_envoy::{Rate, Unit};

/// Maximum keys of `top`, as in the service.
const MAX_KEYS: u16 = 1000;

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "must be an IP address and a port, for example `127.0.0.1:7979`, or `[::]:7979` for all addresses"
            .to_owned()
    })
}

pub(super) fn drain_delay(text: &str) -> Result<String, String> {
    let is_valid = parse_window(text).is_ok_and(|delay| delay <= MAX_DRAIN_DELAY);
    let text = is_valid.then(|| text.to_owned());
    text.ok_or_else(|| "must be 0s to 1h with a unit (ms, s, m or h), for example `5s`".to_owned())
}

pub(super) fn excess(text: &str) -> Result<Excess, String> {
    Excess::from_name(text).ok_or_else(|| "must be `refuse`, `charge` or `count`".to_owned())
}

pub(super) fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be written as name=value, for example user=alice".to_owned()),
    }
}

/// `NAME=SOURCE` of `--field`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, source)) if !name.is_empty() && !source.is_empty() => {
            Ok((name.to_owned(), source.to_owned()))
        }
        _ => Err("must be written as NAME=SOURCE, for example ip=request.client".to_owned()),
    }
}

pub(super) fn rate(text: &str) -> Result<Rate, String> {
    let parts = text.split_once('/').and_then(|(count, unit)| {
        Some(Rate { requests_per_unit: count.parse().ok()?, unit: Unit::from_name(unit)? })
    });
    parts.ok_or_else(|| {
        "must be written as count/unit, for example 10/MINUTE; units are second, minute, hour, day, week, month, year".to_owned()
    })
}

pub(super) fn milliseconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        _ => Err("must be a whole number of milliseconds, at least 1".to_owned()),
    }
}

/// A cost or burst.
pub(super) fn cost(text: &str) -> Result<u64, String> {
    let cost = text.parse().ok().filter(|cost| *cost <= MAX_COST);
    cost.ok_or_else(|| format!("must be a whole number from 0 to {MAX_COST}"))
}

/// A whole number from 0.
pub(crate) fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "must be a whole number, for example `10`".to_owned())
}

pub(super) fn keys(text: &str) -> Result<u16, String> {
    let keys = text.parse().ok().filter(|keys| (1..=MAX_KEYS).contains(keys));
    keys.ok_or_else(|| format!("must be a whole number from 1 to {MAX_KEYS}"))
}

/// One line about an invalid value; `None` for any other error.
pub(super) fn invalid_value(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    };
    let argument = text(ContextKind::InvalidArg)?;
    // `--resp <ADDRESS:PORT>`, or `<NAME=VALUE>...` for a positional argument.
    let argument = argument.split(' ').next().unwrap_or(argument);
    let value = text(ContextKind::InvalidValue)?;
    let expected = match error.kind() {
        ErrorKind::ValueValidation => std::error::Error::source(error)?.to_string(),
        ErrorKind::InvalidValue => match error.get(ContextKind::ValidValue)? {
            ContextValue::Strings(values) => format!("must be one of {}", values.join(", ")),
            _ => return None,
        },
        _ => return None,
    };
    // Parsers of the library name the value themselves.
    if expected.starts_with("invalid ") {
        return Some(one_line(&format!("{argument}: {expected}")));
    }
    Some(one_line(&format!("invalid {argument} `{value}`: {expected}")))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    /// Command lines are mistyped, often in unit files that run unattended.
    #[test]
    fn each_invalid_value_error_names_argument_value_and_expectation() {
        let address = "must be an IP address and a port, for example `127.0.0.1:7979`, or `[::]:7979` for all addresses";
        let cost = "must be a whole number from 0 to 9007199254740991";
        for (line, expected) in [
            ("serve --resp nonsense", format!("invalid --resp `nonsense`: {address}")),
            ("serve --listen 7979", format!("invalid --listen `7979`: {address}")),
            ("serve --grpc localhost:1", format!("invalid --grpc `localhost:1`: {address}")),
            (
                "serve --envoy-algorithm magic",
                "--envoy-algorithm: invalid algorithm `magic`: must be `sliding-log`, `sliding-window`, \
                 `fixed-window` or `token-bucket`"
                    .into(),
            ),
            (
                "serve --envoy-excess free",
                "invalid --envoy-excess `free`: must be `refuse`, `charge` or `count`".into(),
            ),
            ("serve --log-format xml", "invalid --log-format `xml`: must be one of text, json".into()),
            ("check user=a --cost x", format!("invalid --cost `x`: {cost}")),
            (
                "serve --drain-delay 10",
                "invalid --drain-delay `10`: must be 0s to 1h with a unit (ms, s, m or h), for example `5s`"
                    .into(),
            ),
            (
                "check user",
                "invalid <NAME=VALUE>... `user`: must be written as name=value, for example user=alice"
                    .into(),
            ),
            (
                "check a=b --timeout 0",
                "invalid --timeout `0`: must be a whole number of milliseconds, at least 1".into(),
            ),
            ("top --limit 5000", "invalid --limit `5000`: must be a whole number from 1 to 1000".into()),
            ("key refund p k --cost -1", format!("invalid --cost `-1`: {cost}")),
            ("policy set p 1/1s --burst many", format!("invalid --burst `many`: {cost}")),
            ("policy set p --mode off", "invalid --mode `off`: must be one of enforce, shadow".into()),
            ("policy undo last", "invalid [ID] `last`: must be a whole number, for example `10`".into()),
            (
                "replay log --policy 1/1s --slack 1h",
                "invalid --slack `1h`: must be a whole number, for example `10`".into(),
            ),
            ("token new --scope all", "invalid --scope `all`: must be one of read, decide, write".into()),
        ] {
            let error = Cli::try_parse_from(["slidegate"].into_iter().chain(line.split(' '))).unwrap_err();
            assert_eq!(invalid_value(&error).as_deref(), Some(expected.as_str()), "{line}: {error}");
        }
        // Other errors keep clap's text with the usage.
        for line in ["serve --rsep x", "check", "serve --listen", "nonsense", "--help"] {
            let error = Cli::try_parse_from(["slidegate"].into_iter().chain(line.split(' '))).unwrap_err();
            assert_eq!(invalid_value(&error), None, "{line}");
        }
    }
}

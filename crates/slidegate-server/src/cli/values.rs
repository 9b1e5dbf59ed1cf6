//! Values on the command line: parsers, and one-line errors for invalid values.
//!
//! A parser's error says what is expected; [`invalid_value`] puts the argument and the value before
//! it.

use std::net::SocketAddr;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use slidegate::{Excess, Quota, parse_window};

use crate::config::{ByteSize, MAX_DRAIN_DELAY, Text as _, one_line};
use crate::envoy::{Rate, Unit};
use crate::limits::MAX_COST;

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

/// A whole number, with `k`, `M` or `G` for thousands, millions and thousand millions.
pub(super) fn amount(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 1000),
        Some((end, 'm' | 'M')) => (&text[..end], 1_000_000),
        Some((end, 'g' | 'G')) => (&text[..end], 1_000_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.replace('_', "").parse().ok();
    let number = number.and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| "must be a whole number, for example `1000`, `50k` or `2M`".to_owned())
}

/// A rate such as `5000/s` or `10k/m`, per second.
pub(super) fn rate_per_second(text: &str) -> Result<f64, String> {
    let expected =
        || "must be a number per unit, for example `5000/s` or `10k/m`; units are s, m, h and d".to_owned();
    let (count, unit) = text.split_once('/').ok_or_else(expected)?;
    let seconds = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(expected()),
    };
    #[allow(clippy::cast_precision_loss)] // a rate
    amount(count).map(|count| count as f64 / seconds).map_err(|_| expected())
}

/// The window of a quota.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    let window = parse_window(text).ok();
    let window = window.filter(|window| Quota::new(1, *window).is_ok());
    window.ok_or_else(|| "must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `1m`".to_owned())
}

/// A number of bytes such as `8GiB`.
pub(super) fn byte_size(text: &str) -> Result<u64, String> {
    let bytes = ByteSize::parse(text).map(|size| size.0 as u64);
    bytes.map_err(|_| {
        "must be 1MiB to 1024TiB, as a number with a unit (KiB, MiB, GiB, TiB, kB, MB, GB or TB), for example `8GiB`"
            .to_owned()
    })
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
            (
                "forecast --keys many",
                "invalid --keys `many`: must be a whole number, for example `1000`, `50k` or `2M`".into(),
            ),
            (
                "forecast --rate 5000",
                "invalid --rate `5000`: must be a number per unit, for example `5000/s` or `10k/m`; units are s, m, h \
                 and d"
                    .into(),
            ),
            (
                "forecast --shard-memory 8",
                "invalid --shard-memory `8`: must be 1MiB to 1024TiB, as a number with a unit (KiB, MiB, GiB, TiB, kB, \
                 MB, GB or TB), for example `8GiB`"
                    .into(),
            ),
            (
                "init --from-log a --deny-at-most 2",
                "invalid --deny-at-most `2`: must be a share from 0% to 100% with at most four decimal places, for example \
                 `0.1%`".into(),
            ),
            (
                "simulate --bursts 50",
                "invalid --bursts `50`: must be a number and a duration, for example `50/30s`".into(),
            ),
            (
                "simulate --start now",
                "invalid --start `now`: must be a time in RFC 3339 since 1970, for example `2026-01-05T00:00:00Z`"
                    .into(),
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

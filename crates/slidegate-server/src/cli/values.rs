//! Values on the command line: parsers, and one-line errors for invalid values.
//!
//! A parser's error says what is expected; [`invalid_value`] adds the argument and the value.

use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use lined_config::one_line;
use serde_json::{Map, Number, Value};
use slidegate::{Amount, Excess, Quota, clock::parse_window};

use crate::envoy::{Rate, Unit};
use crate::limits::MAX_COST;

/// Maximum keys of `top`, as in the service.
const MAX_KEYS: u16 = 1000;

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

/// A cost with at most six decimals, as JSON. The server knows whether it may have them.
pub(super) fn amount(text: &str) -> Result<Number, String> {
    let read = text.parse::<Amount>().ok().filter(|amount| *amount <= MAX_COST.into());
    let json = read.and_then(|amount| serde_json::to_string(&amount).ok()?.parse().ok());
    json.ok_or_else(|| {
        format!("must be a number from 0 to {MAX_COST} with at most 6 decimals, for example `0.25`")
    })
}

/// Parses a cost, or costs by name, as JSON. The server knows the valid names.
pub(super) fn costs(text: &str) -> Result<Value, String> {
    if !text.contains('=') {
        return cost(text).map(Value::from);
    }
    let mut costs = Map::new();
    for part in text.split(',') {
        let (name, number) = part
            .split_once('=')
            .ok_or("must be a number, or numbers by name, for example input=900,output=4096")?;
        if costs.insert(name.to_owned(), cost(number)?.into()).is_some() {
            return Err(format!("`{name}` is given twice; give it once"));
        }
    }
    Ok(costs.into())
}

/// Parses a number of keys, with `k`, `M` or `G` for thousand, million or billion. The maximum exceeds any
/// store, and the bytes still fit a number.
pub(super) fn key_count(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((end, 'k' | 'K')) => (&text[..end], 1000),
        Some((end, 'm' | 'M')) => (&text[..end], 1_000_000),
        Some((end, 'g' | 'G')) => (&text[..end], 1_000_000_000),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.replace('_', "").parse().ok();
    let number =
        number.and_then(|number| number.checked_mul(factor)).filter(|keys| *keys <= 1_000_000_000_000);
    number.ok_or_else(|| "must be a whole number up to 1000G, for example `1000`, `50k` or `2M`".to_owned())
}

/// The window of a quota.
pub(super) fn window(text: &str) -> Result<Duration, String> {
    let window = parse_window(text).ok();
    let window = window.filter(|window| Quota::new(1, *window).is_ok());
    window.ok_or_else(|| "must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `1m`".to_owned())
}

/// A whole number from 0.
pub(crate) fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| "must be a whole number, for example `10`".to_owned())
}

pub(super) fn keys(text: &str) -> Result<u16, String> {
    let keys = text.parse().ok().filter(|keys| (1..=MAX_KEYS).contains(keys));
    keys.ok_or_else(|| format!("must be a whole number from 1 to {MAX_KEYS}"))
}

/// Hides unexpected arguments that are more than one word: a URL without its option may contain a password.
pub(super) fn without_secrets(mut error: clap::Error) -> clap::Error {
    let is_word = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "-_./".contains(c));
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        let is_unexpected = matches!(error.kind(), ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand);
        if let Some(ContextValue::String(text)) = error.get(kind)
            && is_unexpected
            && !is_word(text)
        {
            error.insert(kind, ContextValue::String("***".to_owned()));
            // Contains the text as well.
            error.remove(ContextKind::Suggested);
        }
    }
    if let Some(ContextValue::String(text)) = error.get(ContextKind::InvalidValue)
        && text.contains('@')
        && text.contains("://")
    {
        error.insert(ContextKind::InvalidValue, ContextValue::String("***".to_owned()));
    }
    error
}

/// Formats an invalid value in one line; `None` for any other error.
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
    // Library parsers name the value themselves.
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
    use crate::config::tests::compare_golden;

    fn parse(line: &str) -> clap::Error {
        Cli::try_parse_from(["slidegate"].into_iter().chain(line.split(' '))).unwrap_err()
    }

    /// Command lines are mistyped, often in unit files that run unattended.
    #[test]
    fn invalid_values_are_reported_as_in_the_golden_file() {
        compare_golden("arguments", |_, line| invalid_value(&parse(line.trim_end())).unwrap());
    }

    /// If the option of a URL is forgotten, the URL appears in the log of the failed unit.
    #[test]
    fn unexpected_arguments_are_shown_only_if_they_are_words() {
        for line in [
            "serve redis://:hidden@h",
            "serve h:6380,password=hidden",
            "serve --redis redis-cli -a=hidden",
            "doctor --rediss=redis://:hidden@h",
            "redis://:hidden@h",
            "serve --listen redis://:hidden@h",
            "validate a redis://:hidden@h",
        ] {
            let error = without_secrets(parse(line));
            let shown = format!("{error} {:?} {}", invalid_value(&error), error.render());
            assert!(!shown.contains("hidden"), "{line}: {shown}");
        }
        let shown = without_secrets(parse("serve --lisetn x")).to_string();
        assert!(shown.contains("--lisetn") && shown.contains("--listen"), "{shown}");
    }

    #[test]
    fn other_errors_keep_the_text_of_clap_with_the_usage() {
        for line in ["serve --rsep x", "check", "serve --listen", "nonsense", "--help"] {
            assert_eq!(invalid_value(&parse(line)), None, "{line}");
        }
    }
}

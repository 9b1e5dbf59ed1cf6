//! Values written as text: their forms and how they are checked.

use std::borrow::Cow;
use std::ops::Deref;
use std::time::Duration;

use lined_config::{Form, only_if};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use slidegate::{
    Amount, Calendar, Quota,
    clock::{format_window, parse_window},
};

/// Longest name of an attribute, in bytes.
pub const MAX_ATTRIBUTE_NAME: usize = 128;

/// A value written as one text.
pub trait Text: Sized {
    /// What a valid text is.
    const FORM: Form;
    /// The `type` of a JSON Schema: `number` for texts that are numbers.
    const KIND: &str = "string";

    /// Reads the text.
    ///
    /// # Errors
    /// Why the text is invalid; empty if the form says enough.
    fn parse(text: &str) -> Result<Self, String>;
}

/// A value read from its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Parsed<T>(pub T);

impl<T> Deref for Parsed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Text> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        T::parse(&text).map(Self).map_err(|why| D::Error::custom(T::FORM.explain(why)))
    }
}

impl<T: Text> JsonSchema for Parsed<T> {
    fn schema_name() -> Cow<'static, str> {
        T::FORM.name.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": T::KIND, "format": T::FORM.name })
    }
}

/// The form of texts that parse as a `T`.
pub const fn form_of<T: Text>(name: &'static str, expected: &'static str) -> Form {
    Form::new(name, expected, |text, _| T::parse(text).map(|_| text.to_owned()))
}

impl Text for Amount {
    const FORM: Form = form_of::<Self>("amount", "a number with at most 6 decimals, for example `0.25`");
    const KIND: &str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| String::new())
    }
}

/// A duration of `MIN` to `MAX` milliseconds, such as `500ms`, `60s` or `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<const MIN: u64, const MAX: u64>(pub Duration);

/// Units, each with an optional number before it.
const SPAN_PATTERN: &str = r"^\s*((\d+\s*)?[A-Za-z]+\s*)+$";

/// The form of a [`Span`]; its schema has the bounds.
pub const SPAN: Form = Form::new(
    "span",
    "{formatMinimum} to {formatMaximum} with a unit (ms, s, m, h, d or w), for example `{key}: {default}`",
    |text, schema| {
        let bound = |keyword: &str| schema[keyword].as_str().and_then(|text| parse_window(text).ok());
        let range = bound("formatMinimum").zip(bound("formatMaximum"));
        let is_valid = |span: &Duration| range.is_some_and(|(min, max)| (min..=max).contains(span));
        parse_window(text).ok().filter(is_valid).map(format_window).ok_or_else(String::new)
    },
)
.pattern(SPAN_PATTERN);

/// The window of a quota: a length of 1 ms to 366 days, or a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Any time of this length.
    Length(Duration),
    /// The hours, days or months of a time zone.
    Calendar(Calendar),
}

impl Window {
    /// The words for calendar windows.
    const CALENDARS: [&str; 6] = ["hour", "day", "week", "month", "quarter", "year"];
    /// The form of a window. Equal lengths keep equal texts.
    pub const FORM: Form = Form::new(
        "window",
        "1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`, or hour, day, week, month, quarter, year",
        |text, _| match Self::parse(text).map_err(|_| String::new())? {
            Self::Length(length) => Ok(format_window(length)),
            Self::Calendar(_) => Ok(text.to_owned()),
        },
    )
    .pattern(SPAN_PATTERN);

    fn parse(text: &str) -> Result<Self, slidegate::Error> {
        if Self::CALENDARS.contains(&text) {
            return text.parse().map(Self::Calendar);
        }
        Quota::parse_window(text).map(Self::Length)
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&Cow::<str>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl JsonSchema for Window {
    fn schema_name() -> Cow<'static, str> {
        "window".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": Self::FORM.name })
    }
}

/// The name of a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeZone(pub &'static str);

impl Text for TimeZone {
    const FORM: Form =
        form_of::<Self>("time-zone", "a name of the IANA time zone database, for example `Europe/Berlin`");

    fn parse(text: &str) -> Result<Self, String> {
        Calendar::day().with_time_zone(text).map(|day| Self(day.time_zone())).map_err(|_| String::new())
    }
}

/// What happens to a request of a proxy that a policy denies: how long it waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnExcess(pub Option<Duration>);

impl Text for OnExcess {
    const FORM: Form =
        form_of::<Self>("on-excess", "`deny`, or `wait` and 1ms to 60s, for example `wait 2s`");

    fn parse(text: &str) -> Result<Self, String> {
        if text == "deny" {
            return Ok(Self(None));
        }
        let span = text.strip_prefix("wait ").and_then(|span| parse_window(span.trim()).ok());
        let wait = span.filter(|wait| *wait <= Duration::from_secs(60)).ok_or_else(String::new)?;
        Ok(Self(Some(wait)))
    }
}

/// The lease of a permit: 1 s to 1 h.
pub type Lease = Span<1000, 3_600_000>;

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Span<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let span = parse_window(&text).map_err(D::Error::custom)?;
        let range = [MIN, MAX].map(Duration::from_millis);
        if span < range[0] || span > range[1] {
            let [min, max] = range.map(format_window);
            return Err(D::Error::custom(format_args!("invalid window `{text}`: must be {min} to {max}")));
        }
        Ok(Self(span))
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Span<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        "span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let [min, max] = [MIN, MAX].map(|ms| format_window(Duration::from_millis(ms)));
        let min = if MIN == 0 { "0s" } else { &min };
        json_schema!({
            "type": "string", "format": SPAN.name, "formatMinimum": min, "formatMaximum": max, "x-example": "60s"
        })
    }
}

/// The name of a policy, a token or a proxy.
pub const NAME: Form =
    Form::new("name", "1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`", |text, _| {
        only_if(is_name(text), text)
    })
    .pattern("^[A-Za-z0-9_.-]{1,64}$");

/// The name of an attribute. Texts that were probably meant as a list are rejected.
pub const ATTRIBUTE: Form = Form::new(
    "attribute",
    "the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; write several as a list, for \
     example `[user, path]`",
    |text, _| {
        let is_odd =
            |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '`' | '[' | ']' | '{' | '}');
        only_if((1..=MAX_ATTRIBUTE_NAME).contains(&text.len()) && !text.contains(is_odd), text)
    },
)
.pattern("^[^\\s,`\\[\\]{}]{1,128}$");

/// Whether this can be the name of a policy, a token or a proxy.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=slidegate::Policy::MAX_NAME).contains(&text.len()) && text.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// A policy name made from a text.
pub(crate) fn safe_name(text: &str) -> String {
    let safe = text.chars().map(|c| if is_name_char(c) { c } else { '-' });
    safe.take(slidegate::Policy::MAX_NAME).collect()
}

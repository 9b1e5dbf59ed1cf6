//! Values that are written as text: their forms, and what is valid.

use std::borrow::Cow;
use std::ops::Deref;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer};
use slidegate::{
    Amount, Calendar,
    clock::{format_window, parse_window},
};

/// Longest name of an attribute, in bytes.
pub const MAX_ATTRIBUTE_NAME: usize = 128;

/// A form of text: the `format` of a JSON Schema, and what the schema itself cannot say about it.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// The schema's `format`.
    pub name: &'static str,
    /// What a valid text is. Errors put it after "must be".
    pub expected: &'static str,
    /// A regular expression that all valid texts match.
    pub pattern: &'static str,
    /// Whether errors must not repeat the text.
    pub is_secret: bool,
    /// The text to keep, or why it is invalid; empty if `expected` suffices.
    pub check: fn(&str) -> Result<String, String>,
}

impl Form {
    /// The form of texts that are read as `T`.
    pub const fn of<T: Text>(name: &'static str, expected: &'static str) -> Self {
        Self::new(name, expected, |text| T::parse(text).map(|_| text.to_owned()))
    }

    /// A form without a pattern. `check` returns the text to keep, or why it is invalid.
    pub const fn new(
        name: &'static str,
        expected: &'static str,
        check: fn(&str) -> Result<String, String>,
    ) -> Self {
        Self { name, expected, pattern: "", is_secret: false, check }
    }

    /// With a regular expression that all valid texts match.
    #[must_use]
    pub const fn pattern(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    /// The reason of a check in full.
    #[must_use]
    pub fn explain(&self, why: String) -> String {
        if why.is_empty() { format!("must be {}", self.expected) } else { why }
    }

    /// Of texts that errors must not repeat.
    #[must_use]
    pub const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }
}

/// The text if it is valid.
///
/// # Errors
/// Empty, as the form suffices.
pub fn only_if(is_valid: bool, text: &str) -> Result<String, String> {
    if is_valid { Ok(text.to_owned()) } else { Err(String::new()) }
}

/// A value that is written as one text.
pub trait Text: Sized {
    /// What a valid text is.
    const FORM: Form;
    /// The `type` of a JSON Schema: of texts that are numbers, `number`.
    const KIND: &str = "string";

    /// Reads the text.
    ///
    /// # Errors
    /// Why the text is invalid; empty if the form suffices.
    fn parse(text: &str) -> Result<Self, String>;
}

/// A value that is read from its text.
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

impl Text for Amount {
    const FORM: Form = Form::of::<Self>("amount", "a number with at most 6 decimals, for example `0.25`");
    const KIND: &str = "number";

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| String::new())
    }
}

/// A length of time from `MIN` to `MAX` milliseconds: `500ms`, `60s`, `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<const MIN: u64, const MAX: u64>(pub Duration);

/// The window of a quota: a length of 1 ms to 366 days, or a calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// Any time of this length.
    Length(Duration),
    /// The hours, days or months of a time zone.
    Calendar(Calendar),
}

/// The words for calendar windows.
pub(crate) const CALENDARS: [&str; 6] = ["hour", "day", "week", "month", "quarter", "year"];
/// The shortest and the longest window, in milliseconds.
type WindowLength = Span<1, 31_622_400_000>;

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        if CALENDARS.contains(&&*text) {
            return text.parse().map(Self::Calendar).map_err(D::Error::custom);
        }
        let Span(length) = WindowLength::deserialize(text.into_deserializer())?;
        Ok(Self::Length(length))
    }
}

impl JsonSchema for Window {
    fn schema_name() -> Cow<'static, str> {
        "window".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = WindowLength::json_schema(generator);
        schema.insert("x-words".to_owned(), CALENDARS.as_slice().into());
        schema
    }
}

/// The name of a time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeZone(pub &'static str);

impl Text for TimeZone {
    const FORM: Form =
        Form::of::<Self>("time-zone", "a name of the IANA time zone database, for example `Europe/Berlin`");

    fn parse(text: &str) -> Result<Self, String> {
        Calendar::day().with_time_zone(text).map(|day| Self(day.time_zone())).map_err(|_| String::new())
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
        // Units, each with a number before it if wanted.
        let pattern = r"^\s*((\d+\s*)?[A-Za-z]+\s*)+$";
        json_schema!({ "type": "string", "pattern": pattern, "formatMinimum": min, "formatMaximum": max })
    }
}

/// A text that may be written without quotes even where it looks like a number or a flag.
#[derive(Debug, serde::Deserialize)]
pub struct Scalar(pub String);

impl JsonSchema for Scalar {
    fn schema_name() -> Cow<'static, str> {
        "scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"] })
    }
}

/// A list, whose only value may be written without one.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(transparent)]
pub struct List<T>(pub Vec<T>);

impl<T: JsonSchema> JsonSchema for List<T> {
    fn schema_name() -> Cow<'static, str> {
        "list".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let (one, many) = (T::json_schema(generator), Vec::<T>::json_schema(generator));
        json_schema!({ "anyOf": [one, many] })
    }
}

/// The name of a policy, a token or a proxy.
pub const NAME: Form =
    Form::new("name", "1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`", |text| {
        only_if(is_name(text), text)
    })
    .pattern("^[A-Za-z0-9_.-]{1,64}$");

/// The name of an attribute: any that a request may use, except what was probably meant as a list.
pub const ATTRIBUTE: Form = Form::new(
    "attribute",
    "the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; write several as a list, for \
     example `[user, path]`",
    |text| only_if(is_attribute_name(text), text),
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

/// A text made into the name of a policy.
#[must_use]
pub fn safe_name(text: &str) -> String {
    let safe = text.chars().map(|c| if is_name_char(c) { c } else { '-' });
    safe.take(slidegate::Policy::MAX_NAME).collect()
}

/// Whether this can be the name of an attribute in a file.
#[must_use]
pub fn is_attribute_name(text: &str) -> bool {
    let is_odd =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '`' | '[' | ']' | '{' | '}');
    (1..=MAX_ATTRIBUTE_NAME).contains(&text.len()) && !text.contains(is_odd)
}

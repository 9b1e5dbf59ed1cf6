//! Values of settings that are written as text: how each is read, and what is valid.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use slidegate::headers::{Draft, XRateLimit};
use slidegate::{Algorithm, Quota, RedisOptions, format_window, parse_window};

use super::admin::{Digest, Host};
use super::auth::{AttributeSource, TrustedProxy};
use super::foreign;
use super::resp::{Password, PasswordFile};
use super::store::FileBytes;
use super::traces::{Endpoint, Field, FieldValue};

/// A value that is written as one text.
pub(crate) trait Text: Sized {
    /// The `format` of the JSON Schema. A value of listed choices needs none.
    const FORMAT: &'static str = "";
    /// What a valid text is. Errors put it after "must be".
    const EXPECTED: &'static str;
    /// All valid texts, where they can be listed.
    const CHOICES: &'static [&'static str] = &[];
    /// A regular expression that all valid texts match.
    const PATTERN: &'static str = "";
    /// Whether errors must not repeat the text.
    const IS_SECRET: bool = false;

    /// # Errors
    /// Why the text is invalid; empty where [`EXPECTED`](Self::EXPECTED) says it all.
    fn parse(text: &str) -> Result<Self, String>;

    /// The same for errors that stand alone.
    fn parse_or_expected(text: &str) -> Result<Self, String> {
        let expected = |why: String| if why.is_empty() { format!("must be {}", Self::EXPECTED) } else { why };
        Self::parse(text).map_err(expected)
    }
}

/// A format of the JSON Schema.
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) expected: &'static str,
    pub(super) check: fn(&str) -> Result<(), String>,
}

const fn format<T: Text>() -> Format {
    Format { name: T::FORMAT, expected: T::EXPECTED, check: |text| T::parse(text).map(drop) }
}

/// Every format that files are checked by.
pub(super) const FORMATS: [Format; 18] = [
    format::<SocketAddr>(),
    format::<Quota>(),
    format::<Name>(),
    format::<AttributeName>(),
    format::<Algorithm>(),
    format::<slidegate::Excess>(),
    format::<slidegate::OnStoreError>(),
    format::<RedisOptions>(),
    format::<FileBytes>(),
    format::<Password>(),
    format::<PasswordFile>(),
    format::<Host>(),
    format::<Digest>(),
    format::<TrustedProxy>(),
    format::<AttributeSource>(),
    format::<Endpoint>(),
    format::<Field>(),
    format::<FieldValue>(),
];

/// A value that is read from its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Parsed<T>(pub(crate) T);

impl<T> Deref for Parsed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Text> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        T::parse_or_expected(&text).map(Self).map_err(D::Error::custom)
    }
}

impl<T: Text> JsonSchema for Parsed<T> {
    fn schema_name() -> Cow<'static, str> {
        T::FORMAT.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = json_schema!({ "type": "string" });
        let mut insert = |keyword: &str, value: serde_json::Value| schema.insert(keyword.to_owned(), value);
        if !T::FORMAT.is_empty() {
            insert("format", T::FORMAT.into());
        }
        if !T::PATTERN.is_empty() {
            insert("pattern", T::PATTERN.into());
        }
        if !T::CHOICES.is_empty() {
            insert("enum", T::CHOICES.into());
        }
        if T::IS_SECRET {
            insert("writeOnly", true.into());
        }
        schema
    }
}

/// A length of time from `MIN` to `MAX` milliseconds: `500ms`, `60s`, `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span<const MIN: u64, const MAX: u64>(pub(crate) Duration);

/// The window of a quota: 1 ms to 366 days.
pub(crate) type Window = Span<1, 31_622_400_000>;

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Span<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let span = parse_window(&text).map_err(D::Error::custom)?;
        let range = [MIN, MAX].map(Duration::from_millis);
        if span < range[0] || span > range[1] {
            let [min, max] = range.map(format_window);
            return Err(D::Error::custom(format_args!(
                "window `{text}` is out of range; give {min} to {max}"
            )));
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
#[derive(Debug, Clone, serde::Deserialize)]
pub(crate) struct Scalar(pub(crate) String);

impl JsonSchema for Scalar {
    fn schema_name() -> Cow<'static, str> {
        "scalar".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean"] })
    }
}

/// Several values, or one without a list around it.
#[derive(Debug, Clone, serde::Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum List<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> List<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

impl<T> Default for List<T> {
    fn default() -> Self {
        Self::Many(Vec::new())
    }
}

impl<T> IntoIterator for List<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
        .into_iter()
    }
}

/// Makes text types that only keep a text that is valid.
macro_rules! checked_text {
    ($($(#[$meta:meta])* $name:ident, $format:literal, $expected:expr, $pattern:literal, $is_valid:expr;)+) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) struct $name(pub(crate) String);

        impl Text for $name {
            const FORMAT: &'static str = $format;
            const EXPECTED: &'static str = $expected;
            const PATTERN: &'static str = $pattern;

            fn parse(text: &str) -> Result<Self, String> {
                let is_valid: fn(&str) -> bool = $is_valid;
                if is_valid(text) { Ok(Self(text.to_owned())) } else { Err(String::new()) }
            }
        }
    )+};
}
pub(super) use checked_text;

checked_text! {
    /// The name of a policy, a token or a proxy.
    Name, "name", "1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`",
        "^[A-Za-z0-9_.-]{1,64}$", is_name;
    /// The name of an attribute: any that a request may use, except what was probably meant as a list.
    AttributeName, "attribute", "the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; \
        write several as a list, for example `[user, path]`", "^[^\\s,`\\[\\]{}]{1,128}$", is_attribute_name;
}

/// Whether this can be the name of a policy, a token or a proxy.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=slidegate::Policy::MAX_NAME).contains(&text.len()) && text.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// A text made into the name of a policy.
pub(super) fn safe_name(text: &str) -> String {
    let safe = text.chars().map(|c| if is_name_char(c) { c } else { '-' });
    safe.take(slidegate::Policy::MAX_NAME).collect()
}

fn is_attribute_name(text: &str) -> bool {
    let is_odd =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '`' | '[' | ']' | '{' | '}');
    (1..=crate::limits::MAX_NAME).contains(&text.len()) && !text.contains(is_odd)
}

impl Text for Algorithm {
    const FORMAT: &'static str = "algorithm";
    const EXPECTED: &'static str = "`sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`";
    const CHOICES: &'static [&'static str] =
        &["sliding-log", "sliding-window", "fixed-window", "token-bucket"];

    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| match foreign::algorithm(text) {
            Some(ours) => format!("must be {}; did you mean `{ours}`?", Self::EXPECTED),
            None => String::new(),
        })
    }
}

/// Text forms that other types define.
macro_rules! parsed_by_from_str {
    ($($type:ty, $format:literal, $expected:expr, $choices:expr;)+) => {$(
        impl Text for $type {
            const FORMAT: &'static str = $format;
            const EXPECTED: &'static str = $expected;
            const CHOICES: &'static [&'static str] = $choices;

            fn parse(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| String::new())
            }
        }
    )+};
}

parsed_by_from_str! {
    SocketAddr, "address", "an IP address and a port, for example `127.0.0.1:7979` or `[::]:7979`", &[];
    Draft, "", "a draft", &["draft-10", "draft-7", "draft-6", "off"];
    XRateLimit, "", "a style", &["epoch", "delta", "off"];
}

//! Values that are written as text: their forms, and what is valid.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use slidegate::{RedisOptions, format_window, parse_window};

/// A form of text: the `format` of a JSON Schema, and what the schema itself cannot say about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// The schema's `format`.
    pub(super) name: &'static str,
    /// What a valid text is. Errors put it after "must be".
    pub(super) expected: &'static str,
    /// A regular expression that all valid texts match.
    pub(super) pattern: &'static str,
    /// Whether errors must not repeat the text.
    pub(super) is_secret: bool,
    /// The text to keep, or why it is invalid; empty if `expected` suffices.
    pub(super) check: fn(&str) -> Result<String, String>,
}

impl Form {
    /// The form of texts that are read as `T`.
    pub(super) const fn of<T: Text>(name: &'static str, expected: &'static str) -> Self {
        Self::new(name, expected, |text| T::parse(text).map(|_| text.to_owned()))
    }

    pub(super) const fn new(
        name: &'static str,
        expected: &'static str,
        check: fn(&str) -> Result<String, String>,
    ) -> Self {
        Self { name, expected, pattern: "", is_secret: false, check }
    }

    pub(super) const fn pattern(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    /// The reason of a check in full.
    pub(crate) fn explain(&self, why: String) -> String {
        if why.is_empty() { format!("must be {}", self.expected) } else { why }
    }

    pub(super) const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }
}

/// The text if it is valid.
pub(super) fn only_if(is_valid: bool, text: &str) -> Result<String, String> {
    if is_valid { Ok(text.to_owned()) } else { Err(String::new()) }
}

/// A value that is written as one text.
pub(crate) trait Text: Sized {
    const FORM: Form;

    /// # Errors
    /// Why the text is invalid; empty if the form suffices.
    fn parse(text: &str) -> Result<Self, String>;
}

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
        T::parse(&text).map(Self).map_err(|why| D::Error::custom(T::FORM.explain(why)))
    }
}

/// Reads a value of the library from its text.
pub(super) fn from_str<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// Reads a value from its text.
pub(super) fn parsed<'de, T: Text, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Parsed::deserialize(deserializer).map(|parsed: Parsed<T>| parsed.0)
}

impl<T: Text> JsonSchema for Parsed<T> {
    fn schema_name() -> Cow<'static, str> {
        T::FORM.name.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": T::FORM.name })
    }
}

/// A length of time from `MIN` to `MAX` milliseconds: `500ms`, `60s`, `1h30m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span<const MIN: u64, const MAX: u64>(pub(crate) Duration);

/// The window of a quota: 1 ms to 366 days.
pub(crate) type Window = Span<1, 31_622_400_000>;

/// The lease of a permit: 1 s to 1 h.
pub(crate) type Lease = Span<1000, 3_600_000>;

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

/// A number of bytes, at least one MiB: `1GiB`, `500MB`, or as a plain number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

/// The units of a [`ByteSize`], with their bytes. The short binary ones are those of Kubernetes.
const BYTE_UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("ki", 1 << 10),
    ("kib", 1 << 10),
    ("mi", 1 << 20),
    ("mib", 1 << 20),
    ("gi", 1 << 30),
    ("gib", 1 << 30),
    ("ti", 1 << 40),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
];

impl Text for ByteSize {
    const FORM: Form = Form::of::<Self>(
        "byte-size",
        "1MiB to 1024TiB, as a number with a unit (KiB, MiB, GiB, TiB, kB, MB, GB or TB), for example `1GiB`",
    )
    .pattern(r"^\s*\d+\s*([kKmMgGtT]?[bB]|[kKmMgGtT]i[bB]?)?\s*$");

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = unit.trim().to_ascii_lowercase();
        let unit = BYTE_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, bytes)| *bytes);
        let number: Option<u64> = number.replace('_', "").parse().ok();
        let bytes = number.zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
        let bytes = bytes.filter(|bytes| (1 << 20..=1 << 50).contains(bytes));
        bytes.and_then(|bytes| usize::try_from(bytes).ok()).map(Self).ok_or_else(String::new)
    }
}

/// Reads a number of bytes.
pub(super) fn bytes<'de, N: TryFrom<usize>, D: Deserializer<'de>>(deserializer: D) -> Result<N, D::Error> {
    let ByteSize(bytes) = parsed(deserializer)?;
    N::try_from(bytes).map_err(|_| D::Error::custom("too many bytes"))
}

/// Reads a number of bytes of a key that may be missing.
pub(super) fn some_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    bytes(deserializer).map(Some)
}

/// Bytes in the largest unit in which they are at least 1, with three digits: `1.5 GiB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    if unit == 0 {
        return format!("{bytes} bytes");
    }
    #[allow(clippy::cast_precision_loss)] // three digits are shown
    let size = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    let digits = if size < 10.0 { 2 } else { usize::from(size < 100.0) };
    format!("{size:.digits$} {}", UNITS[unit])
}

/// A text that may be written without quotes even where it looks like a number or a flag.
#[derive(Debug, serde::Deserialize)]
pub(super) struct Scalar(pub(super) String);

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
pub(super) struct List<T>(pub(super) Vec<T>);

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
pub(super) const NAME: Form =
    Form::new("name", "1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`", |text| {
        only_if(is_name(text), text)
    })
    .pattern("^[A-Za-z0-9_.-]{1,64}$");

/// The name of an attribute: any that a request may use, except what was probably meant as a list.
pub(super) const ATTRIBUTE: Form = Form::new(
    "attribute",
    "the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; write several as a list, for \
     example `[user, path]`",
    |text| only_if(is_attribute_name(text), text),
)
.pattern("^[^\\s,`\\[\\]{}]{1,128}$");

/// The path of a file that is yet to be written.
pub(super) const NEW_FILE: Form = Form::new(
    "new-file",
    "the path of a file, not of a directory, for example `path: /var/lib/slidegate/usage`",
    |path| {
        let names_file = !path.ends_with('/') && Path::new(path).file_name().is_some();
        only_if(names_file && !path.contains('\0'), path)
    },
);

/// An address with its port.
pub(super) const ADDRESS: Form =
    Form::new("address", "an IP address and a port, for example `127.0.0.1:7979` or `[::]:7979`", |text| {
        text.parse().map(|address: SocketAddr| address.to_string()).map_err(|_| String::new())
    });

/// An address on the command line.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| ADDRESS.explain(String::new()))
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

pub(super) fn is_attribute_name(text: &str) -> bool {
    let is_odd =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '`' | '[' | ']' | '{' | '}');
    (1..=crate::limits::MAX_NAME).contains(&text.len()) && !text.contains(is_odd)
}

impl Text for RedisOptions {
    const FORM: Form = Form::of::<Self>("redis-url", "a URL, for example `redis: redis://127.0.0.1:6379`")
        .pattern(r"^(rediss?(\+cluster|\+sentinel)?://|redis\+unix://|unix://)")
        .secret();

    fn parse(url: &str) -> Result<Self, String> {
        Self::new(url).map_err(|error| error.to_string())
    }
}

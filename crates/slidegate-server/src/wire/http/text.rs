//! Strings in bodies.

use std::borrow::Cow;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, de};

/// What a string must be.
const TEXT: &str = "a text; write numbers as \"42\"";

/// A string, borrowed from the body unless it has escapes.
#[derive(Debug, JsonSchema)]
#[schemars(inline, description = "")]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

/// A time with its unit, such as `30s`.
#[derive(Debug, JsonSchema)]
#[schemars(inline)]
pub(super) struct Ttl<'a>(pub(super) Cow<'a, str>);

impl Ttl<'_> {
    /// What it must be.
    pub(super) const EXPECTED: &'static str = "1ms to 1h with a unit, for example `30s`";
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Borrowing { expected: TEXT }).map(Self)
    }
}

/// The bytes of a string, of any content: a program may pass on what is not UTF-8, or half of a surrogate
/// pair.
#[derive(Debug)]
pub(super) struct Bytes<'a>(pub(super) Cow<'a, [u8]>);

impl<'de: 'a, 'a> Deserialize<'de> for Bytes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Cow<'de, [u8]>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(TEXT)
            }

            fn visit_borrowed_bytes<E: de::Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(bytes))
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Cow::Owned(bytes.to_owned()))
            }
        }

        deserializer.deserialize_bytes(Any).map(Self)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Ttl<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Borrowing { expected: Self::EXPECTED }).map(Self)
    }
}

struct Borrowing {
    expected: &'static str,
}

impl<'de> Visitor<'de> for Borrowing {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

//! Strings in bodies.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, Visitor};
use serde::{Deserialize, de};

/// A string, borrowed from the body unless it has escapes.
#[derive(Debug)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

/// A time with its unit, such as `30s`.
#[derive(Debug)]
pub(super) struct Ttl<'a>(pub(super) Cow<'a, str>);

impl Ttl<'_> {
    /// What it must be.
    pub(super) const EXPECTED: &'static str = "1ms to 1h with a unit, for example `30s`";
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Borrowing { expected: "a text; write numbers as \"42\"" }).map(Self)
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

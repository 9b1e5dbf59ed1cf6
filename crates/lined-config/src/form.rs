//! Values written as text: their forms and how they are checked.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value as Json;

/// A kind of text, such as an address: the `format` of a JSON Schema, with a check in code.
#[derive(Debug, Clone, Copy)]
pub struct Form {
    /// The schema's `format`.
    pub name: &'static str,
    /// What is expected; errors put it after "must be". `{key}`, `{formatMinimum}` and
    /// `{formatMaximum}` are filled in from the schema, `{default}` from its default or `x-example`.
    pub expected: &'static str,
    /// A regular expression that every valid text matches. May be empty.
    pub pattern: &'static str,
    /// Whether errors must not show the text.
    pub is_secret: bool,
    /// Returns the text to keep, or why it is invalid; empty if `expected` says enough. The second
    /// argument is the schema, which may have bounds.
    pub check: fn(&str, &Json) -> Result<String, String>,
}

impl Form {
    /// A form without a pattern. `check` returns the text to keep, or why it is invalid.
    pub const fn new(
        name: &'static str,
        expected: &'static str,
        check: fn(&str, &Json) -> Result<String, String>,
    ) -> Self {
        Self { name, expected, pattern: "", is_secret: false, check }
    }

    /// Sets a regular expression that every valid text matches.
    #[must_use]
    pub const fn pattern(self, pattern: &'static str) -> Self {
        Self { pattern, ..self }
    }

    /// Marks texts that errors must not show.
    #[must_use]
    pub const fn secret(self) -> Self {
        Self { is_secret: true, ..self }
    }

    /// Checks a text without a schema, such as an argument or a variable.
    ///
    /// # Errors
    /// Why it is invalid; empty if `expected` says enough.
    pub fn check(&self, text: &str) -> Result<String, String> {
        (self.check)(text, &Json::Null)
    }

    /// Completes the error of a check.
    #[must_use]
    pub fn explain(&self, why: String) -> String {
        if why.is_empty() { format!("must be {}", self.expected) } else { why }
    }
}

/// Returns the text if it is valid.
///
/// # Errors
/// Empty: the form says enough.
pub fn only_if(is_valid: bool, text: &str) -> Result<String, String> {
    if is_valid { Ok(text.to_owned()) } else { Err(String::new()) }
}

/// A text that needs no quotes, even if it looks like a number or a boolean.
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

/// A list. A single value may be written without brackets.
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

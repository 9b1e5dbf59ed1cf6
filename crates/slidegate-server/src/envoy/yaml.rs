//! A file as the reference's reader sees it: values of a kind, keys of any kind, each with its line.
//!
//! That reader is of YAML 1.1: `yes` and `on` are flags, and a key may be a number, which is then refused by name. So it
//! is not the reader of our own configuration, where both are text. Nesting, aliases and sizes are bounded before
//! anything is built of them.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, MessageFormatter, NonFiniteFloatPolicy, Options, Spanned, UserMessageFormatter};

/// Deepest nesting of lists and maps: two for each level of descriptors, so some 30 levels. Envoy itself sends fewer.
const MAX_DEPTH: usize = 64;
/// Most values of one file, those that aliases repeat included.
const MAX_VALUES: usize = 500_000;
/// Most aliases of one file.
const MAX_ALIASES: usize = 4096;
/// Most bytes of text of one file, repeated or not. The file itself is smaller.
const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Longest single text, in bytes. Errors and keys repeat it.
const MAX_TEXT_BYTES: usize = 1024;

/// A value and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    /// From 1. Of a value that an alias repeats: the alias's line.
    pub(super) line: u64,
    pub(super) value: Value,
    /// The bytes of the file that it was written with.
    written: Option<(usize, usize)>,
}

#[derive(Debug)]
pub(super) enum Value {
    Nothing,
    /// And how it was written.
    Flag(bool, String),
    /// A whole number, and how it was written.
    Whole(i128, String),
    /// A number that is not whole, as written.
    Float(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

/// Why a text is not YAML, with the line from 1.
pub(super) struct SyntaxError {
    pub(super) line: u64,
    pub(super) message: String,
}

/// Reads one document. An empty text is [`Value::Nothing`].
pub(super) fn read(text: &str) -> Result<Node, SyntaxError> {
    let mut root: Node = serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |place| place.line().max(1));
        let message = match error {
            Error::Message { msg, .. } => msg.clone(),
            error => UserMessageFormatter.format_message(error).into_owned(),
        };
        SyntaxError { line, message }
    })?;
    root.take_as_written(text);
    Ok(root)
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_VALUES,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_merge_keys: MAX_ALIASES,
            max_documents: 1,
            max_total_scalar_bytes: MAX_TOTAL_BYTES,
            max_recorded_anchor_events: MAX_VALUES,
            max_recorded_anchor_bytes: MAX_TOTAL_BYTES,
            // Many limits on one anchor are what anchors are for; the total is bounded above.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_VALUES },
        strict_booleans: false,
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

impl Node {
    /// Puts numbers and flags beside how they were written: `value: 007` is the text `007`.
    fn take_as_written(&mut self, text: &str) {
        match &mut self.value {
            Value::Flag(_, written) | Value::Whole(_, written) | Value::Float(written) => {
                let slice = self.written.and_then(|(at, bytes)| text.get(at..at + bytes));
                slice.unwrap_or_default().clone_into(written);
            }
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.take_as_written(text)),
            Value::Map(entries) => {
                for (key, value) in entries {
                    key.take_as_written(text);
                    value.take_as_written(text);
                }
            }
            Value::Nothing | Value::Text(_) => {}
        }
    }

    /// The text of a value that is not a list, a map or nothing, as written but for quotes.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Flag(_, text) | Value::Whole(_, text) | Value::Float(text) | Value::Text(text) => {
                Some(text)
            }
            Value::Nothing | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The value of this key, if the node is a map that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Value::Map(entries) = &self.value else { return None };
        let is_it = |known: &Self| matches!(&known.value, Value::Text(text) if text == key);
        entries.iter().find(|(known, _)| is_it(known)).map(|(_, value)| value)
    }
}

/// The value as the reference prints it within an error.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Nothing => f.write_str("<nil>"),
            Value::Flag(flag, _) => write!(f, "{flag}"),
            Value::Whole(number, _) => write!(f, "{number}"),
            Value::Float(text) | Value::Text(text) => f.write_str(text),
            Value::List(nodes) => {
                f.write_str("[")?;
                for (at, node) in nodes.iter().enumerate() {
                    write!(f, "{}{node}", if at > 0 { " " } else { "" })?;
                }
                f.write_str("]")
            }
            Value::Map(_) => f.write_str("map"),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let written = crate::config::written(&spanned);
        Ok(Self { line: spanned.referenced.line(), value: spanned.value, written })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag, String::new()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Whole(number.into(), String::new()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Whole(number.into(), String::new()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Float(String::new()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        if text.len() > MAX_TEXT_BYTES {
            let message = format!("a text of {} bytes is too long; {MAX_TEXT_BYTES} is the most", text.len());
            return Err(E::custom(message));
        }
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Value::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Value::Map(entries))
    }
}

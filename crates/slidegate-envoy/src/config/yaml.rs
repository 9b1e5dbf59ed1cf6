//! A config file as a tree of YAML 1.1 values with their lines.
//!
//! envoyproxy/ratelimit reads YAML 1.1: `yes` and `on` are booleans, and keys may have any type,
//! which its errors name. slidegate's own config file is YAML 1.2, where both are strings, so it
//! has its own options. Nesting, aliases and sizes are bounded while parsing.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, MessageFormatter, NonFiniteFloatPolicy, Options, Spanned, UserMessageFormatter};

/// Deepest nesting of lists and maps: two for each level of descriptors, so about 30 levels. Envoy
/// sends fewer.
const MAX_DEPTH: usize = 64;
/// Most values of one file, including those repeated by aliases.
const MAX_VALUES: usize = 500_000;
/// Most aliases of one file.
const MAX_ALIASES: usize = 4096;
/// Most bytes of text of one file, including repetitions. The file itself is smaller.
const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Longest single text, in bytes. Errors and keys repeat it.
const MAX_TEXT_BYTES: usize = 1024;

/// A value and its line.
#[derive(Debug)]
pub(super) struct YamlNode {
    /// From 1. For a value repeated by an alias: the alias's line.
    pub(super) line: u64,
    pub(super) value: YamlValue,
    /// Offset and length of its source text, in bytes.
    source: Option<(usize, usize)>,
}

/// A value by type. Booleans and numbers keep their source text: `value: 007` is the string `007`.
#[derive(Debug)]
pub(super) enum YamlValue {
    Null,
    Bool(bool, String),
    Integer(i128, String),
    Float(String),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(YamlNode, YamlNode)>),
}

/// A syntax error, with its line from 1.
pub(super) struct SyntaxError {
    pub(super) line: u64,
    pub(super) message: String,
}

/// Parses one document. An empty text is [`YamlValue::Null`].
pub(super) fn read(text: &str) -> Result<YamlNode, SyntaxError> {
    let mut root: YamlNode = serde_saphyr::from_str_with_options(text, options()).map_err(|error| {
        let error = error.without_snippet();
        let line = error.location().map_or(1, |place| place.line().max(1));
        let message = match error {
            Error::Message { msg, .. } => msg.clone(),
            error => UserMessageFormatter.format_message(error).into_owned(),
        };
        SyntaxError { line, message }
    })?;
    root.keep_source(text);
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
            // Many limits may share one anchor; the total is bounded above.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_VALUES },
        strict_booleans: false,
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

impl YamlNode {
    /// Stores the source text of numbers and booleans.
    fn keep_source(&mut self, text: &str) {
        match &mut self.value {
            YamlValue::Bool(_, written) | YamlValue::Integer(_, written) | YamlValue::Float(written) => {
                let slice = self.source.and_then(|(at, bytes)| text.get(at..at + bytes));
                slice.unwrap_or_default().clone_into(written);
            }
            YamlValue::List(nodes) => nodes.iter_mut().for_each(|node| node.keep_source(text)),
            YamlValue::Map(entries) => {
                for (key, value) in entries {
                    key.keep_source(text);
                    value.keep_source(text);
                }
            }
            YamlValue::Null | YamlValue::Text(_) => {}
        }
    }

    /// The source text of a scalar, without quotes. `None` for null, lists and maps.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Bool(_, text)
            | YamlValue::Integer(_, text)
            | YamlValue::Float(text)
            | YamlValue::Text(text) => Some(text),
            YamlValue::Null | YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    /// The value of this key, if the node is a map with this key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let YamlValue::Map(entries) = &self.value else { return None };
        let is_it = |known: &Self| matches!(&known.value, YamlValue::Text(text) if text == key);
        entries.iter().find(|(known, _)| is_it(known)).map(|(_, value)| value)
    }
}

/// The value as errors of envoyproxy/ratelimit print it.
impl fmt::Display for YamlNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            YamlValue::Null => f.write_str("<nil>"),
            YamlValue::Bool(flag, _) => write!(f, "{flag}"),
            YamlValue::Integer(number, _) => write!(f, "{number}"),
            YamlValue::Float(text) | YamlValue::Text(text) => f.write_str(text),
            YamlValue::List(nodes) => {
                f.write_str("[")?;
                for (at, node) in nodes.iter().enumerate() {
                    write!(f, "{}{node}", if at > 0 { " " } else { "" })?;
                }
                f.write_str("]")
            }
            YamlValue::Map(_) => f.write_str("map"),
        }
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<YamlValue>::deserialize(deserializer)?;
        let span = spanned.defined.span();
        let source = span.byte_offset().zip(span.byte_len());
        let source =
            source.and_then(|(at, bytes)| Some((usize::try_from(at).ok()?, usize::try_from(bytes).ok()?)));
        Ok(Self { line: spanned.referenced.line(), value: spanned.value, source })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyYaml)
    }
}

struct AnyYaml;

impl<'de> Visitor<'de> for AnyYaml {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(flag, String::new()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(number.into(), String::new()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Integer(number.into(), String::new()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(String::new()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<YamlValue, E> {
        if text.len() > MAX_TEXT_BYTES {
            let message =
                format!("a text of {} bytes is too long; at most {MAX_TEXT_BYTES} are allowed", text.len());
            return Err(E::custom(message));
        }
        Ok(YamlValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<YamlValue, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(YamlValue::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<YamlValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(YamlValue::Map(entries))
    }
}

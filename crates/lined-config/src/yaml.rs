//! YAML as a tree of values with their lines.
//!
//! In YAML 1.2 `yes` and `on` are strings. In YAML 1.1 both are booleans, and keys may have any type.
//! Nesting, aliases and sizes are bounded while parsing.

use std::cell::{Cell, OnceCell};
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{
    Error, Location, MessageFormatter, NonFiniteFloatPolicy, Options, Spanned, UserMessageFormatter,
};

use crate::text::Excerpt;

/// Maximum bytes of text in one document, including repetitions by aliases.
const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Longest single text, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// A position in a text. Both are 0 for a value without lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The line, from 1.
    pub line: u64,
    /// The column in characters, from 1.
    pub column: u64,
}

/// A value, its position and its source text.
#[derive(Debug)]
pub struct Node {
    /// Where it begins. A value repeated by an alias has the alias's position.
    pub position: Position,
    /// The value.
    pub value: Value,
    /// The source text of a boolean or a number.
    source: String,
    /// Offset and length of the source text, in bytes.
    span: Option<(usize, usize)>,
    /// Set by validation: the value is invalid, which was reported.
    pub is_rejected: Cell<bool>,
    /// Set by validation: the known key that its unknown key probably stands for.
    pub(crate) meant: OnceCell<String>,
}

/// A value by type.
#[derive(Debug)]
pub enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// A boolean.
    Bool(bool),
    /// A whole number of at most 64 bits.
    Integer(i128),
    /// Any other number; see its source text.
    Float,
    /// A string.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values. No key occurs twice.
    Map(Vec<(Node, Node)>),
}

/// Why a text cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Where reading ended.
    pub position: Position,
    /// What is wrong and how to fix it, in one line.
    pub message: String,
}

/// A version of YAML, with bounds.
#[derive(Debug)]
pub struct YamlFormat {
    /// Whether it is YAML 1.1, with keys of any type. Otherwise it is YAML 1.2.
    pub is_yaml_1_1: bool,
    /// Deepest nesting of lists and maps.
    pub max_depth: usize,
    /// Maximum number of values, including those repeated by aliases.
    pub max_values: usize,
    /// Maximum number of aliases.
    pub max_aliases: usize,
}

impl YamlFormat {
    /// Parses one document. An empty text is [`Value::Null`].
    ///
    /// # Errors
    /// The text is not YAML, or exceeds a bound.
    pub fn read(&self, text: &str) -> Result<Node, SyntaxError> {
        let root = serde_saphyr::from_str_with_options(text, self.options());
        let mut root: Node = root.map_err(|error| self.syntax_error(&error))?;
        root.complete(text, self)?;
        Ok(root)
    }

    fn options(&self) -> Options {
        let Self { is_yaml_1_1, max_depth, max_values, max_aliases } = *self;
        serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_depth: max_depth,
                flow_nesting_limit: max_depth,
                max_nodes: max_values,
                max_aliases: max_aliases,
                max_anchors: max_aliases,
                max_merge_keys: max_aliases,
                max_documents: 1,
                max_total_scalar_bytes: MAX_TOTAL_BYTES,
                max_recorded_anchor_events: max_values,
                max_recorded_anchor_bytes: MAX_TOTAL_BYTES,
                // Many values may share one anchor; the total is bounded above.
                enforce_alias_anchor_ratio: false,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: max_values },
            strict_booleans: !is_yaml_1_1,
            legacy_octal_numbers: is_yaml_1_1,
            reject_unsupported_tags: !is_yaml_1_1,
            non_finite_float_policy: NonFiniteFloatPolicy::AsString,
            with_snippet: false,
        }
    }

    fn syntax_error(&self, error: &Error) -> SyntaxError {
        let error = match error {
            Error::AliasError { error, .. } => error,
            other => other,
        };
        let place = error.location().unwrap_or(Location::UNKNOWN);
        let position = Position { line: place.line().max(1), column: place.column().max(1) };
        SyntaxError { position, message: self.explain(error) }
    }

    /// The cause and how to fix it.
    fn explain(&self, error: &Error) -> String {
        let Self { max_depth, max_values, max_aliases, .. } = self;
        let too_deep = || format!("lists and maps nest deeper than {max_depth}; nest fewer");
        match error {
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("duplicate key `{}`; keep one", Excerpt(key))
            }
            Error::UnknownAnchor { .. } => {
                "unknown alias: no anchor has its name; put a text that begins with `*` in quotes".into()
            }
            Error::UnsupportedTag { tag, .. } => {
                format!("unsupported tag `{}`; remove it", Excerpt(tag))
            }
            Error::MultipleDocuments { .. }
            | Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
                "a second document begins here; keep one per file, without `---`".into()
            }
            Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => too_deep(),
            Error::Budget { .. }
            | Error::AliasReplayLimitExceeded { .. }
            | Error::AliasExpansionLimitExceeded { .. }
            | Error::AliasReplayStackDepthExceeded { .. } => format!(
                "the file is too large: at most {max_values} values, {max_aliases} aliases and {MAX_TOTAL_BYTES} \
                 bytes of text are allowed, including repetitions by aliases; write less or repeat less"
            ),
            _ => match UserMessageFormatter.format_message(error) {
                said if said.contains("recursion limit") => too_deep(),
                said => format!("this is not YAML: {said}; {}", remedy(&said)),
            },
        }
    }
}

/// The most common fix for a syntax error.
fn remedy(said: &str) -> &'static str {
    const REMEDIES: [(&str, &str); 8] = [
        ("tab", "indent with spaces"),
        ("unexpected character", "put the text in quotes"),
        ("mapping values", "put a value with `: ` in it in quotes, or indent this line like its neighbours"),
        ("expected key", "indent this line like its neighbours"),
        ("expected '-'", "indent this line like its neighbours"),
        ("simple key", "write a colon and a space behind the key"),
        ("unclosed", "close it"),
        ("bracket", "open and close brackets in pairs"),
    ];
    let known = REMEDIES.iter().find(|(part, _)| said.contains(part));
    known.map_or("check the indentation, quotes and brackets", |(_, remedy)| remedy)
}

impl Node {
    /// Stores the source text of numbers and booleans, and checks lengths and keys.
    fn complete(&mut self, text: &str, format: &YamlFormat) -> Result<(), SyntaxError> {
        match &mut self.value {
            Value::Null => {}
            Value::Text(written) if written.len() > MAX_TEXT_BYTES => {
                let bytes = written.len();
                let long =
                    format!("a text of {bytes} bytes is too long; at most {MAX_TEXT_BYTES} are allowed");
                return Err(self.error(long));
            }
            Value::Text(_) => {}
            Value::Bool(_) | Value::Integer(_) | Value::Float => {
                let slice = self.span.and_then(|(at, bytes)| text.get(at..at + bytes));
                slice.unwrap_or_default().clone_into(&mut self.source);
            }
            Value::List(nodes) => {
                for node in nodes {
                    node.complete(text, format)?;
                }
            }
            Value::Map(entries) => {
                for (key, value) in entries {
                    key.complete(text, format)?;
                    if key.scalar().is_none() && !format.is_yaml_1_1 {
                        return Err(
                            key.error("this key is not a text; write for example `limit: 100`".into())
                        );
                    }
                    value.complete(text, format)?;
                }
            }
        }
        Ok(())
    }

    fn error(&self, message: String) -> SyntaxError {
        SyntaxError { position: self.position, message }
    }

    /// The source text of a scalar, without quotes. `None` for null, lists and maps.
    pub fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Bool(_) | Value::Integer(_) | Value::Float => Some(&self.source),
            Value::Text(text) => Some(text),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The value of a whole number in decimal digits, which `_` may separate.
    ///
    /// A leading zero is rejected: it means octal to some YAML readers and decimal to others.
    #[must_use]
    pub fn whole(&self) -> Option<u64> {
        if !matches!(self.value, Value::Integer(_) | Value::Float) {
            return None;
        }
        let digits = self.scalar()?.replace('_', "");
        let is_plain =
            digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        digits.parse().ok().filter(|_| is_plain)
    }

    /// The entries of a map; empty for any other value.
    pub fn entries(&self) -> &[(Self, Self)] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The elements of a list; empty for any other value.
    pub fn elements(&self) -> &[Self] {
        if let Value::List(nodes) = &self.value { nodes } else { &[] }
    }

    /// The value of this key, if the node is a map with this key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        self.entries().iter().find(|(known, _)| known.scalar() == Some(key)).map(|(_, value)| value)
    }
}

/// A value without lines.
impl From<&Json> for Node {
    fn from(json: &Json) -> Self {
        let value = match json {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Bool(*flag),
            Json::Number(number) => number.as_i128().map_or(Value::Float, Value::Integer),
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(list) => Value::List(list.iter().map(Self::from).collect()),
            Json::Object(map) => {
                let entry =
                    |(key, value): (&String, &Json)| (Self::from(&Json::from(key.as_str())), value.into());
                Value::Map(map.iter().map(entry).collect())
            }
        };
        let source = match json {
            Json::Object(_) | Json::Array(_) => String::new(),
            // Without an exponent.
            Json::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
            _ => json.to_string(),
        };
        let position = Position { line: 0, column: 0 };
        Self { position, value, source, span: None, is_rejected: Cell::default(), meant: OnceCell::new() }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined } = Spanned::<Value>::deserialize(deserializer)?;
        let span = defined.span().byte_offset().zip(defined.span().byte_len());
        let span =
            span.and_then(|(at, bytes)| Some((usize::try_from(at).ok()?, usize::try_from(bytes).ok()?)));
        let position = Position { line: referenced.line(), column: referenced.column() };
        let (is_rejected, meant) = (Cell::default(), OnceCell::new());
        Ok(Self { position, value, source: String::new(), span, is_rejected, meant })
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
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Integer(number.into()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Float)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
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

//! The YAML reader: a document as a tree of values, each with its line.
//!
//! The tree keeps numbers and flags as they were written, because errors repeat them. Nesting,
//! aliases and sizes are bounded while the document is parsed. `check.rs` checks the tree.

use std::cell::Cell;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{
    Error, Location, MessageFormatter, NonFiniteFloatPolicy, Options, Spanned, UserMessageFormatter,
};

/// Deepest nesting of lists and maps. A policy's overrides reach 6; other limiters' files, which are recognised to be
/// explained, reach some 15.
const MAX_DEPTH: usize = 24;
/// Most values, those that aliases repeat included: 100,000 overrides and 1024 policies around them.
const MAX_VALUES: usize = 250_000;
/// Most aliases. Each policy may take its defaults from one.
const MAX_ALIASES: usize = 2048;
/// Most bytes of text, repeated or not. The file itself is smaller.
const MAX_TOTAL_BYTES: usize = 8 << 20;
/// Longest single text, in bytes. Errors repeat it, and none that a policy needs comes near.
const MAX_TEXT_BYTES: usize = 1024;

/// A value and its position in the file.
#[derive(Debug)]
pub(super) struct Node {
    /// From 1. For a value that an alias repeats, the alias's line. 0 for JSON.
    pub(super) line: u64,
    pub(super) value: Value,
    /// Offset and length of its text in the file, in bytes. For an alias, those of the anchored text.
    written: Option<(usize, usize)>,
    /// Whether the value is invalid, which was reported.
    is_rejected: Cell<bool>,
}

/// One YAML value.
#[derive(Debug)]
pub(super) enum Value {
    /// Nothing after the colon, `~` or `null`.
    Nothing,
    /// `true` or `false` without quotes, and how it was written.
    Flag(bool, String),
    /// A number without quotes, as written: `100`, `1_000`, `-5`, `1e3`, `0x1F`.
    Number(String),
    /// Any other scalar. `yes`, `no`, `on` and `off` are text.
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key of a map with its value. No map has a key twice.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// The key's line, from 1.
    pub(super) line: u64,
    pub(super) value: Node,
}

/// Why a text is not YAML that can be read here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SyntaxError {
    /// From 1.
    pub(super) line: u64,
    /// In characters, from 1.
    pub(super) column: u64,
    /// What is wrong and the way out, in one line.
    pub(super) message: String,
}

/// Reads one document. An empty text is [`Value::Nothing`].
pub(super) fn read(text: &str) -> Result<Node, SyntaxError> {
    let mut root: Node =
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| SyntaxError::from(&error))?;
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
            // Many policies on one anchor are what anchors are for; the total is bounded above.
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_VALUES },
        strict_booleans: true,
        reject_unsupported_tags: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    }
}

impl Node {
    /// Replaces numbers and flags by their text in the file: `1_000` and `0x10` differ from their printed values.
    fn take_as_written(&mut self, text: &str) {
        match &mut self.value {
            Value::Number(written) | Value::Flag(_, written) => {
                let slice = self.written.and_then(|(at, bytes)| text.get(at..at + bytes));
                slice.unwrap_or_default().clone_into(written);
            }
            Value::List(nodes) => nodes.iter_mut().for_each(|node| node.take_as_written(text)),
            Value::Map(entries) => entries.iter_mut().for_each(|entry| entry.value.take_as_written(text)),
            Value::Nothing | Value::Text(_) => {}
        }
    }

    /// The text of a scalar, as written but without quotes.
    pub(super) fn scalar(&self) -> Option<&str> {
        match &self.value {
            Value::Flag(_, text) | Value::Number(text) | Value::Text(text) => Some(text),
            Value::Nothing | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// The value of a number that is written plainly: digits, with `_` between them if wanted.
    ///
    /// A leading zero is refused: it means octal to some YAML readers and decimal to others.
    pub(super) fn whole(&self) -> Option<u64> {
        let Value::Number(written) = &self.value else { return None };
        let digits: String = written.chars().filter(|c| *c != '_').collect();
        let is_plain =
            digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
        digits.parse().ok().filter(|_| is_plain)
    }

    /// The entries of a map, none for any other value.
    pub(super) fn entries(&self) -> &[Entry] {
        if let Value::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The value of this key, if the node is a map that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        self.entries().iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The values of a list or a map, in order. None of any other value.
    pub(super) fn children(&self) -> impl Iterator<Item = &Node> {
        let list = if let Value::List(nodes) = &self.value { nodes.as_slice() } else { &[] };
        list.iter().chain(self.entries().iter().map(|entry| &entry.value))
    }

    /// Like [`children`](Self::children), without those that are rejected.
    pub(super) fn valid_children(&self) -> impl Iterator<Item = &Node> {
        self.children().filter(|node| !node.is_rejected())
    }

    /// Whether a part of the value is invalid, which was reported.
    pub(super) fn has_rejected_child(&self) -> bool {
        self.children().any(Self::is_rejected)
    }

    /// Whether the value is invalid, which was reported.
    pub(super) fn is_rejected(&self) -> bool {
        self.is_rejected.get()
    }

    pub(super) fn reject(&self) {
        self.is_rejected.set(true);
    }
}

/// The value as an error shows it: text is shortened, and secrets must be left out by the caller.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Value::Nothing => f.write_str("(empty)"),
            Value::Flag(_, text) | Value::Number(text) | Value::Text(text) => write!(f, "`{}`", Shown(text)),
            Value::List(_) => f.write_str("(a list)"),
            Value::Map(_) => f.write_str("(a map)"),
        }
    }
}

impl From<&Json> for Node {
    fn from(json: &Json) -> Self {
        let entry = |(key, value): (&String, &Json)| Entry { key: key.clone(), line: 0, value: value.into() };
        let value = match json {
            Json::Null => Value::Nothing,
            Json::Bool(flag) => Value::Flag(*flag, flag.to_string()),
            Json::Number(number) => Value::Number(number.to_string()),
            Json::String(text) => Value::Text(text.clone()),
            Json::Array(list) => Value::List(list.iter().map(Self::from).collect()),
            Json::Object(map) => Value::Map(map.iter().map(entry).collect()),
        };
        Self { line: 0, value, written: None, is_rejected: Cell::default() }
    }
}

/// A text from the file within an error, cut to a readable length.
pub(super) struct Shown<'t>(pub(super) &'t str);

impl Shown<'_> {
    /// Most characters that are shown.
    const MAX_CHARS: usize = 60;
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(Self::MAX_CHARS) {
            Some((end, _)) => write!(f, "{}...", &self.0[..end]),
            None => f.write_str(self.0),
        }
    }
}

/// A text as it can be pasted into a list or map in brackets.
pub(super) fn quoted(text: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let is_text =
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') && text.chars().all(harmless);
    let is_word =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str());
    // JSON's quoted text is YAML's.
    if is_text && !is_word { text.to_owned() } else { Json::from(text).to_string() }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let written = written(&spanned);
        let line = spanned.referenced.line();
        Ok(Self { line, value: spanned.value, written, is_rejected: Cell::default() })
    }
}

/// Where a value is written: its first byte, and how many there are.
fn written<T>(spanned: &Spanned<T>) -> Option<(usize, usize)> {
    let span = spanned.defined.span();
    let (at, bytes) = span.byte_offset().zip(span.byte_len())?;
    Some((usize::try_from(at).ok()?, usize::try_from(bytes).ok()?))
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

    // What a number is, is read from how it was written.

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Number(String::new()))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Number(String::new()))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Number(String::new()))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Value, E> {
        short_enough(text)?;
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
        while let Some((key, value)) = map.next_entry::<Spanned<String>, Node>()? {
            short_enough(&key.value)?;
            entries.push(Entry { key: key.value, line: key.referenced.line(), value });
        }
        Ok(Value::Map(entries))
    }
}

fn short_enough<E: de::Error>(text: &str) -> Result<(), E> {
    if text.len() <= MAX_TEXT_BYTES {
        return Ok(());
    }
    Err(E::custom(format_args!("a text of {} bytes is too long; {MAX_TEXT_BYTES} is the most", text.len())))
}

impl From<&Error> for SyntaxError {
    fn from(error: &Error) -> Self {
        let error = match error {
            Error::AliasError { error, .. } => error,
            other => other,
        };
        let place = error.location().unwrap_or(Location::UNKNOWN);
        Self { line: place.line().max(1), column: place.column().max(1), message: in_words(error) }
    }
}

/// The cause and the way out.
fn in_words(error: &Error) -> String {
    match error {
        Error::Message { msg, .. } => msg.clone(),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("key `{}` stands twice; keep one", Shown(key))
        }
        Error::UnknownAnchor { .. } => {
            "`*` begins an alias, and no anchor has its name; put a text that begins with `*` in quotes"
                .into()
        }
        Error::UnsupportedTag { tag, .. } => {
            format!("the tag `{}` means nothing here; leave it out", Shown(tag))
        }
        Error::NullIntoString { .. } | Error::Unexpected { .. } => {
            "this key is not a text; write for example `limit: 100`".into()
        }
        Error::MultipleDocuments { .. } | Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "a second document begins here; keep one to a file, without `---`".into()
        }
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => too_deep(),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => format!(
            "the file holds too much: {MAX_VALUES} values, {MAX_ALIASES} aliases and {MAX_TOTAL_BYTES} bytes of text are \
             the most, repetitions by aliases included; write less or repeat less"
        ),
        _ => in_other_words(&UserMessageFormatter.format_message(error)),
    }
}

fn too_deep() -> String {
    format!("lists and maps nest deeper than {MAX_DEPTH}; a policy needs 6")
}

/// What the parser says about text that is not YAML, and what most often helps.
fn in_other_words(said: &str) -> String {
    const WAYS_OUT: [(&str, &str); 8] = [
        ("tab", "indent with spaces"),
        ("unexpected character", "put the text in quotes"),
        ("mapping values", "put a value with `: ` in it in quotes, or indent this line like its neighbours"),
        ("expected key", "indent this line like its neighbours"),
        ("expected '-'", "indent this line like its neighbours"),
        ("simple key", "write a colon and a space behind the key"),
        ("unclosed", "close it"),
        ("bracket", "open and close brackets in pairs"),
    ];
    if said.contains("recursion limit") {
        return too_deep();
    }
    let way_out = WAYS_OUT.iter().find(|(part, _)| said.contains(part));
    let way_out = way_out.map_or("check the indentation, quotes and brackets", |(_, way_out)| way_out);
    format!("this is not YAML: {said}; {way_out}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::error;

    fn values(text: &str) -> Vec<(u64, String)> {
        let root = read(text).unwrap_or_else(|error| panic!("{error:?}"));
        root.entries().iter().map(|entry| (entry.value.line, entry.value.to_string())).collect()
    }

    /// A limit that is printed as another number than was written sends its writer looking in the wrong place.
    #[test]
    fn numbers_and_flags_stay_as_they_were_written() {
        let text = "a: 1_000\nb: 007\nc: 0x1F\nd: 1e3\ne: -5\nf: 18446744073709551616\ng: True\nh: 1.10\n";
        let written = ["1_000", "007", "0x1F", "1e3", "-5", "18446744073709551616", "True", "1.10"];
        for ((line, value), (at, written)) in values(text).iter().zip(written.iter().enumerate()) {
            assert_eq!((*line, value.as_str()), (at as u64 + 1, format!("`{written}`").as_str()));
        }
        let text = "a: \"5\"\nb: yes\nc: off\nd: NO\ne: .inf\nf: 12:30\ng: !!str 5\nh:\n";
        let shown = ["`5`", "`yes`", "`off`", "`NO`", "`.inf`", "`12:30`", "`5`", "(empty)"];
        assert_eq!(values(text).iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), shown);
    }

    /// Policies that share an anchor are corrected where they stand.
    #[test]
    fn what_an_alias_repeats_has_its_line_and_its_text() {
        assert_eq!(values("a: &x 1_0\n\nb: *x\n"), [(1, "`1_0`".to_owned()), (3, "`1_0`".to_owned())]);
        let root = read("a: &x {limit: 5}\nb:\n  <<: *x\n  name: n\n").unwrap();
        let limit = root.get("b").and_then(|b| b.get("limit")).unwrap();
        assert_eq!((limit.line, limit.to_string()), (3, "`5`".to_owned()));
    }

    /// Most files that do not load were edited in a hurry.
    #[test]
    fn what_is_not_yaml_is_placed_and_explained() {
        for (text, expected) in [
            ("a: 1\na: 2\n", "2:1: key `a` stands twice; keep one"),
            ("a: {b: 1, b: 2}\n", "1:11: key `b` stands twice; keep one"),
            (
                "a: *.php\n",
                "1:4: `*` begins an alias, and no anchor has its name; put a text that begins with `*` in quotes",
            ),
            ("a: !secret b\n", "1:12: the tag `!secret` means nothing here; leave it out"),
            ("? [a]\n: b\n", "1:3: this key is not a text; write for example `limit: 100`"),
            ("~: b\n", "1:1: this key is not a text; write for example `limit: 100`"),
            ("a: 1\n---\nb: 2\n", "2:1: a second document begins here; keep one to a file, without `---`"),
            (
                "a:\n\t- b\n",
                "2:2: this is not YAML: tabs disallowed within this context (block indentation); indent with spaces",
            ),
            ("a: @b\n", "1:4: this is not YAML: unexpected character: `@'; put the text in quotes"),
            (
                "a: b: c\n",
                "1:5: this is not YAML: mapping values are not allowed in this context; put a value with `: ` in it in \
                 quotes, or indent this line like its neighbours",
            ),
            (
                "a:\n  b: 1\n c: 2\n",
                "3:2: this is not YAML: while parsing a block mapping, did not find expected key; indent this line like \
                 its neighbours",
            ),
            (
                "- b: 1\n  limit 5\n  c: 1\n",
                "2:3: this is not YAML: simple key expected ':'; write a colon and a space behind the key",
            ),
            ("a: [b\n", "1:4: this is not YAML: unclosed bracket '['; close it"),
            ("a: [b]]\n", "1:7: this is not YAML: misplaced bracket; open and close brackets in pairs"),
            (
                "a: \"\\q\"\n",
                "1:4: this is not YAML: while parsing a quoted scalar, found unknown escape character; check the \
                 indentation, quotes and brackets",
            ),
        ] {
            assert_eq!(error(text), format!("slidegate.yaml:{expected}"));
        }
    }

    /// A configuration may come from whoever may edit it, and must not take the service down.
    #[test]
    fn bombs_are_refused_before_they_go_off() {
        let deep = "lists and maps nest deeper than 24; a policy needs 6";
        let much = "the file holds too much: 250000 values, 2048 aliases and 8388608 bytes of text are the most, \
                    repetitions by aliases included; write less or repeat less";
        let nested: String = (0..2000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
        let laughs = (1..12).fold("a0: &a0 [x]\n".to_owned(), |text, n| {
            text + &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(", "))
        });
        let merges = (1..22).fold("a0: &a0 {x0: 1}\n".to_owned(), |text, n| {
            text + &format!("a{n}: &a{n} {{<<: [*a{0}, *a{0}], x{n}: 1}}\n", n - 1)
        });
        let long = format!("a: &a [{}]\nb: [{}]\n", "x, ".repeat(2000), "*a, ".repeat(2000));
        let copies =
            format!("a: &a [{}]\nb: [{}]\n", format!("{:x<1000}, ", "").repeat(1000), "*a, ".repeat(200));
        for (bomb, expected) in [
            ("[".repeat(4 << 20), deep),
            ("{a: ".repeat(1 << 20), deep),
            ("- ".repeat(2 << 20), deep),
            (nested, deep),
            (laughs, much),
            (merges, much),
            (long, much),
            (copies, much),
            ("- a\n".repeat(MAX_VALUES), much),
        ] {
            let error = error(&bomb);
            assert!(
                error.starts_with("slidegate.yaml:") && error.ends_with(&format!(": {expected}")),
                "{error}"
            );
        }
        for bomb in ["\0", "\"", "!", ":", "&a ", "? ", "#\n", "---\n", "a\n", "\n", " ", "|", "'", "%"] {
            assert!(
                crate::config::Config::parse(&bomb.repeat((1 << 20) / bomb.len()), "").is_err(),
                "{bomb:?}"
            );
        }
    }

    /// Errors repeat what was written, and a line has an end.
    #[test]
    fn a_long_text_is_refused_and_a_longish_one_is_cut() {
        let long = "x".repeat(1025);
        let way_out = "a text of 1025 bytes is too long; 1024 is the most";
        assert_eq!(error(&format!("a:\n  b: [{long}]\n")), format!("slidegate.yaml:2:7: {way_out}"));
        assert_eq!(error(&format!("a:\n  ? {long}\n  : 1\n")).split_once(": ").unwrap().1, way_out);
        let cut = format!("unknown key `{}...`: must be", "x".repeat(60));
        assert!(
            error(&format!("policies: [{{name: p, quota: 1/1s}}]\n? {}\n: 1\n", "x".repeat(1000)))
                .contains(&cut)
        );
    }
}

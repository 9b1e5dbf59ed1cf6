//! Validates a file against the schema of the structs, and reports every mistake in it.
//!
//! The validation returns the JSON that the structs are deserialized from. Invalid values are left
//! out, so that the rest is validated as well, and missing keys have their defaults.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};
use slidegate::clock::{format_window, parse_window};

use crate::errors::Findings;
use crate::schema::{default_of, form};
use crate::section::{Section, any_of, element, join, one_of, suggest};
use crate::values::Form;
use crate::yaml::{Excerpt, Node, Position, Value};

/// Reads a section, as a struct and as JSON in which equal values look the same. The schema is one
/// of [`schema_of`](crate::schema::schema_of) with the same `forms`. `change` may edit the JSON.
/// Invalid parts are left out; `None` if the whole section is invalid.
pub fn read<T: DeserializeOwned>(
    section: &Section<'_>,
    schema: &Json,
    forms: &[Form],
    change: impl FnOnce(&mut Json),
) -> Option<(T, Json)> {
    let Section { node, place, position, findings } = section;
    let mut json = Checker { findings, forms }.check((*node)?, schema, place, "")?;
    change(&mut json);
    let value = T::deserialize(&json).map_err(|error| findings.add(*position, error)).ok()?;
    Some((value, json))
}

struct Checker<'f> {
    findings: &'f Findings,
    /// The forms of texts that the schema names.
    forms: &'f [Form],
}

impl Checker<'_> {
    /// The JSON of a value, whose key in `place` is `name`. `None` if it is invalid, which is
    /// reported.
    fn check(&self, node: &Node, schema: &Json, place: &str, name: &str) -> Option<Json> {
        if node.is_rejected.get() {
            return None;
        }
        let mut reason = String::new();
        let checked = match &node.value {
            _ if schema["anyOf"].is_array() => {
                let kinds = schema["anyOf"].as_array()?;
                let Some(kind) = kinds.iter().find(|kind| accepts(kind, node)) else {
                    return self.reject(node, schema, place, name, "");
                };
                let value = self.check(node, kind, place, name)?;
                let is_listed = kinds.iter().any(|list| list["type"] == "array" && list["items"] == *kind);
                return Some(if is_listed { Json::Array(vec![value]) } else { value });
            }
            Value::Map(entries) if schema["maxProperties"] == 1 && entries.len() != 1 => None,
            Value::Map(_) | Value::Null if schema["properties"].is_object() => {
                return self.check_map(node, schema, &join(place, name));
            }
            Value::Map(entries) if schema["type"] == "object" => {
                self.check_count(node, entries.len(), &schema["maxProperties"], place, name);
                return self.check_map(node, schema, &join(place, name));
            }
            Value::List(nodes) if schema["minItems"] == 1 && nodes.is_empty() => None,
            Value::List(nodes) if schema["type"] == "array" => {
                self.check_count(node, nodes.len(), &schema["maxItems"], place, name);
                let mut items = Vec::with_capacity(nodes.len());
                for (at, node) in nodes.iter().enumerate() {
                    let (place, name) = match node.entries() {
                        [] => (place, name),
                        _ => (&*join(place, &element(name, node, at)), ""),
                    };
                    match self.check(node, &schema["items"], place, name) {
                        Some(item) if schema["uniqueItems"] == true && items.contains(&item) => {
                            let text = Excerpt(node.scalar().unwrap_or_default());
                            let message = format_args!("invalid {name}: contains `{text}` twice; keep one");
                            self.add(node.position, place, message);
                        }
                        item => items.extend(item),
                    }
                }
                Some(Json::Array(items))
            }
            Value::Bool(flag) if schema["type"] == "boolean" => Some(Json::from(*flag)),
            Value::Integer(_) | Value::Float
                if schema["type"] == "number" && form(schema, self.forms).is_none() =>
            {
                let number = node.scalar().and_then(|text| text.parse::<f64>().ok());
                number.filter(|number| (0.0..=1.0).contains(number)).map(Json::from)
            }
            _ => {
                let text = node.scalar();
                text.and_then(|text| self.check_scalar(node, text, schema).map_err(|why| reason = why).ok())
            }
        };
        checked.or_else(|| self.reject(node, schema, place, name, &reason))
    }

    fn check_map(&self, node: &Node, schema: &Json, place: &str) -> Option<Json> {
        let known = schema["properties"].as_object();
        let mut map = Map::new();
        let mut found = Vec::new();
        for (key_node, value) in node.entries() {
            let key = key_node.scalar().unwrap_or_default();
            found.push(key);
            let of_key = known.and_then(|known| known.get(key)).unwrap_or(&schema["additionalProperties"]);
            if !of_key.is_object() {
                value.is_rejected.set(true);
                let known: Vec<_> = known.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                let (meant, suggestion) = suggest(key, &known);
                found.extend(meant);
                self.add(
                    key_node.position,
                    place,
                    format_args!("unknown key `{}`: {suggestion}", Excerpt(key)),
                );
            } else if let Err(reason) = self.check_text(key, &schema["propertyNames"]) {
                value.is_rejected.set(true);
                let expected = || format!("must be {}", expected(&schema["propertyNames"], self.forms, key));
                let reason = if reason.is_empty() { expected() } else { reason };
                self.add(key_node.position, place, format_args!("invalid key `{}`: {reason}", Excerpt(key)));
            } else if let Some(value) = self.check(value, of_key, place, key) {
                map.insert(key.to_owned(), value);
            }
        }
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
        let mut is_complete = true;
        for key in required {
            if map.contains_key(key) {
                continue;
            }
            let of_key = &schema["properties"][key];
            if let Some(default) = default_of(of_key) {
                map.insert(key.to_owned(), default);
                continue;
            }
            is_complete = false;
            if !found.contains(&key) {
                let expected = expected(of_key, self.forms, key);
                self.add(node.position, place, format_args!("missing {key}: must be {expected}"));
            }
        }
        node.is_rejected.set(!is_complete);
        is_complete.then(|| map.into())
    }

    fn check_count(&self, node: &Node, count: usize, most: &Json, place: &str, name: &str) {
        if let Some(most) = most.as_u64().filter(|most| count as u64 > *most) {
            let message = format_args!("invalid {name}: must be at most {most}, not {count}; remove some");
            self.add(node.position, place, message);
        }
    }

    /// Reports an invalid value. `reason` may be empty: then the schema defines what is expected.
    fn reject(&self, node: &Node, schema: &Json, place: &str, name: &str, reason: &str) -> Option<Json> {
        node.is_rejected.set(true);
        let is_secret = schema["writeOnly"] == true;
        let shown = match &node.value {
            _ if is_secret => String::new(),
            Value::Null => " (empty)".to_owned(),
            Value::List(items) if items.is_empty() => " (an empty list)".to_owned(),
            Value::List(_) => " (a list)".to_owned(),
            Value::Map(_) => " (a map)".to_owned(),
            _ => format!(" `{}`", Excerpt(node.scalar().unwrap_or_default())),
        };
        let expected = || format!("must be {}", expected(schema, self.forms, name));
        let reason = if reason.is_empty() { expected() } else { reason.to_owned() };
        let name = if name.is_empty() { "file" } else { name };
        // Errors of the library begin with the invalid value.
        let reason = match reason.split_once(&format!("{shown}: ")) {
            Some((start, rest)) if !is_secret && start.starts_with("invalid ") => rest,
            _ => &reason,
        };
        self.add(node.position, place, format_args!("invalid {name}{shown}: {reason}"));
        None
    }

    fn add(&self, position: Position, place: &str, message: impl Display) {
        self.findings.add(position, join(place, &message.to_string()));
    }

    /// # Errors
    /// Why the value is invalid. Empty: the schema defines what is expected.
    fn check_scalar(&self, node: &Node, text: &str, schema: &Json) -> Result<Json, String> {
        if let Some(choices) = choices(schema) {
            let chosen = choices.iter().find(|choice| choice.eq_ignore_ascii_case(text));
            let chosen = chosen.map(|choice| Json::from(*choice));
            return chosen.ok_or_else(|| self.check_text(text, schema).err().unwrap_or_default());
        }
        match schema["type"].as_str() {
            Some("integer") => {
                let number = node.whole().filter(|number| bounds(schema).contains(number));
                number.map(Json::from).ok_or_else(String::new)
            }
            Some("string") if text.is_empty() => Err(String::new()),
            Some("string") if words(schema).any(|word| word == text) => Ok(text.into()),
            Some("string") if schema.get("formatMinimum").is_some() => {
                let span = parse_window(text)
                    .ok()
                    .filter(|span| span_range(schema).is_some_and(|range| range.contains(span)));
                span.map(|span| format_window(span).into()).ok_or_else(String::new)
            }
            // The text of a number has all of its decimals.
            Some("string" | "number") if schema["type"] == "string" || form(schema, self.forms).is_some() => {
                self.check_text(text, schema).map(Json::from)
            }
            // A text that may look like a number or a flag.
            _ if schema["type"].is_array() => Ok(Json::from(text)),
            _ => Err(String::new()),
        }
    }

    /// Checks a text by the format of a schema. Returns the text to keep.
    fn check_text(&self, text: &str, schema: &Json) -> Result<String, String> {
        let max = schema["maxLength"].as_u64();
        if let Some(max) = max.filter(|max| text.len() as u64 > *max) {
            return Err(format!("must have at most {max} bytes"));
        }
        form(schema, self.forms).map_or(Ok(text.to_owned()), |form| (form.check)(text))
    }
}

/// What a schema of [`schema_of`](crate::schema::schema_of) with these `forms` allows, for errors and
/// documentation. `name` is the key, for an example.
#[must_use]
pub fn expected(schema: &Json, forms: &[Form], name: &str) -> String {
    if let Some(expected) = schema["x-expected"].as_str() {
        return expected.to_owned();
    }
    if let Some(form) = form(schema, forms) {
        return form.expected.to_owned();
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let described = choices.iter().map(|choice| {
            let about = choice["description"].as_str().map(|about| format!(" ({})", uncapitalized(about)));
            format!("`{}`{}", choice["const"].as_str().unwrap_or_default(), about.unwrap_or_default())
        });
        return one_of(&described.collect::<Vec<_>>());
    }
    if let Some(choices) = choices(schema) {
        return any_of(&choices);
    }
    if let Some(kinds) = schema["anyOf"].as_array() {
        let is_list = |kind: &&Json| kind["type"] == "array";
        let (lists, others): (Vec<_>, Vec<_>) = kinds.iter().partition(is_list);
        let mut kinds: Vec<_> = others.into_iter().map(|kind| expected(kind, forms, name)).collect();
        for list in lists {
            let item = expected(&list["items"], forms, name);
            let is_item = kinds.contains(&item);
            kinds.push(if is_item { "a list of them".to_owned() } else { format!("a list of {item}") });
        }
        return kinds.join(", or ");
    }
    let example = schema["default"].as_str();
    match schema["type"].as_str() {
        Some("integer") => {
            let bounds = bounds(schema);
            format!("a whole number from {} to {}, without quotes", bounds.start(), bounds.end())
        }
        Some("number") => "a number from 0 to 1".to_owned(),
        Some("boolean") => "`true` or `false`".to_owned(),
        Some("array") => format!("a list of {}", expected(&schema["items"], forms, name)),
        Some("object") if schema["maxProperties"] == 1 => {
            let tests = schema["properties"].as_object().into_iter().flatten().map(|(key, _)| key.as_str());
            format!("exactly one of {}", any_of(&tests.collect::<Vec<_>>()))
        }
        Some("object") => match schema["x-example"].as_str() {
            Some(example) => format!("keys and values, for example `{example}`"),
            None => "keys and values".to_owned(),
        },
        _ => match (&schema["formatMinimum"], &schema["formatMaximum"]) {
            (Json::String(min), Json::String(max)) => {
                let words: Vec<_> = words(schema).collect();
                let or = if words.is_empty() { String::new() } else { format!(", or {}", words.join(", ")) };
                format!(
                    "{min} to {max} with a unit (ms, s, m, h, d or w), for example `{name}: {}`{or}",
                    example.unwrap_or("60s")
                )
            }
            _ => "a text".to_owned(),
        },
    }
}

/// Whether a value is of the kind that a schema describes, valid or not.
fn accepts(schema: &Json, node: &Node) -> bool {
    if let Some(kinds) = schema["anyOf"].as_array() {
        return kinds.iter().any(|kind| accepts(kind, node));
    }
    let kind = schema["type"].as_str().unwrap_or("string");
    match &node.value {
        Value::Null => false,
        Value::Bool(_) => matches!(kind, "boolean" | "string"),
        Value::Integer(_) | Value::Float => matches!(kind, "integer" | "number" | "string"),
        Value::Text(_) => kind == "string",
        Value::List(_) => kind == "array",
        Value::Map(_) => kind == "object",
    }
}

/// What may stand for a duration.
fn words(schema: &Json) -> impl Iterator<Item = &str> {
    schema["x-words"].as_array().into_iter().flatten().filter_map(Json::as_str)
}

/// The bounds of a duration.
fn span_range(schema: &Json) -> Option<RangeInclusive<Duration>> {
    let bound = |keyword: &str| parse_window(schema[keyword].as_str()?).ok();
    Some(bound("formatMinimum")?..=bound("formatMaximum")?)
}

fn bounds(schema: &Json) -> RangeInclusive<u64> {
    schema["minimum"].as_u64().unwrap_or(0)..=schema["maximum"].as_u64().unwrap_or(u64::MAX)
}

/// The only texts that a schema allows, if it lists them.
fn choices(schema: &Json) -> Option<Vec<&str>> {
    if let Some(choices) = schema["enum"].as_array() {
        return Some(choices.iter().filter_map(Json::as_str).collect());
    }
    Some(schema["oneOf"].as_array()?.iter().filter_map(|choice| choice["const"].as_str()).collect())
}

/// A sentence for use within another one.
fn uncapitalized(sentence: &str) -> String {
    let mut chars = sentence.trim_end_matches('.').chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

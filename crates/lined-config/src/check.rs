//! Validates values against the schema and reports every mistake.
//!
//! The result is the JSON that the structs are deserialized from. Invalid values are left out so that
//! the rest is validated too, and missing keys get their defaults.

use std::fmt::Display;

use serde_json::{Map, Value as Json};

use crate::errors::Findings;
use crate::schema::{Schema, bounds, choices, default_of};
use crate::text::Excerpt;
use crate::words::{element, join};
use crate::yaml::{Node, Position, Value};

/// Checks values against parts of a schema.
pub(crate) struct Checker<'f> {
    pub(crate) findings: &'f Findings,
    pub(crate) schema: &'f Schema,
}

impl Checker<'_> {
    /// Returns the JSON of a value, whose key in `place` is `name`. Reports an invalid value and
    /// returns `None`.
    pub(crate) fn check(&self, node: &Node, part: &Json, place: &str, name: &str) -> Option<Json> {
        if node.is_rejected.get() {
            return None;
        }
        let mut reason = String::new();
        let checked = match &node.value {
            _ if part["anyOf"].is_array() => {
                let kinds = part["anyOf"].as_array()?;
                let Some(kind) = kinds.iter().find(|kind| accepts(kind, node)) else {
                    return self.reject(node, part, place, name, "");
                };
                let value = self.check(node, kind, place, name)?;
                let is_listed = kinds.iter().any(|list| list["type"] == "array" && list["items"] == *kind);
                return Some(if is_listed { Json::Array(vec![value]) } else { value });
            }
            Value::Map(entries) if part["maxProperties"] == 1 && entries.len() != 1 => None,
            Value::Map(entries) if part["minProperties"] == 1 && entries.is_empty() => None,
            Value::Map(_) | Value::Null if part["properties"].is_object() => {
                return self.check_map(node, part, &join(place, name));
            }
            Value::Map(entries) if part["type"] == "object" => {
                self.check_count(node, entries.len(), &part["maxProperties"], place, name);
                return self.check_map(node, part, &join(place, name));
            }
            Value::List(nodes) if part["minItems"] == 1 && nodes.is_empty() => None,
            Value::List(nodes) if part["type"] == "array" => {
                self.check_count(node, nodes.len(), &part["maxItems"], place, name);
                let mut items = Vec::with_capacity(nodes.len());
                for (at, node) in nodes.iter().enumerate() {
                    let (place, name) = match node.entries() {
                        [] => (place, name),
                        _ => (&*join(place, &element(name, node, at)), ""),
                    };
                    match self.check(node, &part["items"], place, name) {
                        Some(item) if part["uniqueItems"] == true && items.contains(&item) => {
                            let text = Excerpt(node.scalar().unwrap_or_default());
                            let message = format_args!("invalid {name}: contains `{text}` twice; keep one");
                            self.add(node.position, place, message);
                        }
                        item => items.extend(item),
                    }
                }
                Some(Json::Array(items))
            }
            Value::Bool(flag) if part["type"] == "boolean" => Some(Json::from(*flag)),
            Value::Integer(_) | Value::Float
                if part["type"] == "number" && self.schema.form(part).is_none() =>
            {
                let number = node.scalar().and_then(|text| text.parse::<f64>().ok());
                let is_above = |number: &f64| part["minimum"].as_f64().is_none_or(|least| *number >= least);
                let is_below = |number: &f64| part["maximum"].as_f64().is_none_or(|most| *number <= most);
                number.filter(|number| is_above(number) && is_below(number)).map(Json::from)
            }
            _ => {
                let text = node.scalar();
                text.and_then(|text| self.check_scalar(node, text, part).map_err(|why| reason = why).ok())
            }
        };
        checked.or_else(|| self.reject(node, part, place, name, &reason))
    }

    fn check_map(&self, node: &Node, part: &Json, place: &str) -> Option<Json> {
        let known = part["properties"].as_object();
        let mut map = Map::new();
        let mut found = Vec::new();
        for (key_node, value) in node.entries() {
            let key = key_node.scalar().unwrap_or_default();
            found.push(key);
            let of_key = known.and_then(|known| known.get(key)).unwrap_or(&part["additionalProperties"]);
            if !of_key.is_object() {
                value.is_rejected.set(true);
                let known: Vec<_> = known.into_iter().flat_map(Map::keys).map(String::as_str).collect();
                let (meant, suggestion) = self.schema.suggest(key, &known);
                if let Some(meant) = meant {
                    found.push(meant);
                    value.meant.set(meant.to_owned()).ok();
                }
                self.add(
                    key_node.position,
                    place,
                    format_args!("unknown key `{}`: {suggestion}", Excerpt(key)),
                );
            } else if let Err(reason) = self.check_text(key, &part["propertyNames"]) {
                value.is_rejected.set(true);
                let expected = || format!("must be {}", self.schema.expected(&part["propertyNames"], key));
                let reason = if reason.is_empty() { expected() } else { reason };
                self.add(key_node.position, place, format_args!("invalid key `{}`: {reason}", Excerpt(key)));
            } else if let Some(value) = self.check(value, of_key, place, key) {
                map.insert(key.to_owned(), value);
            }
        }
        let required = part["required"].as_array().into_iter().flatten().filter_map(Json::as_str);
        let mut is_complete = true;
        for key in required {
            if map.contains_key(key) {
                continue;
            }
            let of_key = &part["properties"][key];
            if let Some(default) = default_of(of_key) {
                map.insert(key.to_owned(), default);
                continue;
            }
            is_complete = false;
            if !found.contains(&key) {
                let expected = self.schema.expected(of_key, key);
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

    /// Reports an invalid value. If `reason` is empty, the error states what the schema expects.
    fn reject(&self, node: &Node, part: &Json, place: &str, name: &str, reason: &str) -> Option<Json> {
        node.is_rejected.set(true);
        let is_secret = part["writeOnly"] == true;
        let shown = match &node.value {
            _ if is_secret => String::new(),
            Value::Null => " (empty)".to_owned(),
            Value::List(items) if items.is_empty() => " (an empty list)".to_owned(),
            Value::Map(entries) if entries.is_empty() => " (an empty map)".to_owned(),
            Value::List(_) => " (a list)".to_owned(),
            Value::Map(_) => " (a map)".to_owned(),
            _ => format!(" `{}`", Excerpt(node.scalar().unwrap_or_default())),
        };
        let expected = || format!("must be {}", self.schema.expected(part, name));
        let reason = if reason.is_empty() { expected() } else { reason.to_owned() };
        let name = if name.is_empty() { "file" } else { name };
        // Some reasons begin with the invalid value already.
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
    /// Why the value is invalid; empty if the schema states what is expected.
    fn check_scalar(&self, node: &Node, text: &str, part: &Json) -> Result<Json, String> {
        if let Some(choices) = choices(part) {
            let chosen = choices.iter().find(|choice| choice.eq_ignore_ascii_case(text));
            let chosen = chosen.map(|choice| Json::from(*choice));
            return chosen.ok_or_else(|| self.check_text(text, part).err().unwrap_or_default());
        }
        match part["type"].as_str() {
            Some("integer") => {
                let number = node.whole().filter(|number| bounds(part).contains(number));
                number.map(Json::from).ok_or_else(String::new)
            }
            Some("string") if text.is_empty() => Err(String::new()),
            // A number with a form is kept as text, with all its decimals.
            Some("string" | "number") if part["type"] == "string" || self.schema.form(part).is_some() => {
                self.check_text(text, part).map(Json::from)
            }
            // Text that may look like a number or a boolean.
            _ if part["type"].is_array() => Ok(Json::from(text)),
            _ => Err(String::new()),
        }
    }

    /// Checks a text against the schema's format. Returns the text to keep.
    fn check_text(&self, text: &str, part: &Json) -> Result<String, String> {
        let max = part["maxLength"].as_u64();
        if let Some(max) = max.filter(|max| text.len() as u64 > *max) {
            return Err(format!("must have at most {max} bytes"));
        }
        self.schema.form(part).map_or(Ok(text.to_owned()), |form| (form.check)(text, part))
    }
}

/// Whether a value has the type that a schema describes, valid or not.
fn accepts(part: &Json, node: &Node) -> bool {
    if let Some(kinds) = part["anyOf"].as_array() {
        return kinds.iter().any(|kind| accepts(kind, node));
    }
    let kind = part["type"].as_str().unwrap_or("string");
    match &node.value {
        Value::Null => false,
        Value::Bool(_) => matches!(kind, "boolean" | "string"),
        Value::Integer(_) | Value::Float => matches!(kind, "integer" | "number" | "string"),
        Value::Text(_) => kind == "string",
        Value::List(_) => kind == "array",
        Value::Map(_) => kind == "object",
    }
}

#[cfg(test)]
mod tests {
    use crate::{Document, Form, List, Schema, only_if};

    #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
    #[schemars(extend("additionalProperties" = false))]
    #[allow(dead_code)] // read by `Debug`
    struct Config {
        #[schemars(extend("format" = "digits"))]
        pin: String,
        #[serde(default)]
        #[schemars(extend("uniqueItems" = true, "maxItems" = 2))]
        names: List<String>,
        #[schemars(range(min = 1, max = 5), extend("default" = 3))]
        level: u8,
        #[serde(default)]
        #[schemars(range(min = 0, max = 1))]
        ratio: Option<f64>,
        #[serde(default)]
        rules: Vec<Rule>,
    }

    #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)] // read by `Debug`
    struct Rule {
        name: String,
        kind: Kind,
    }

    #[derive(Debug, serde::Deserialize, schemars::JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        /// Let it pass.
        Allow,
        /// Stop it.
        Deny,
    }

    const DIGITS: Form = Form::new("digits", "four digits", |text, _| {
        only_if(text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()), text)
    })
    .secret();

    /// A mistake that is not reported, or reported as another one, costs its writer an evening.
    #[test]
    fn every_mistake_is_reported_once_with_its_line() {
        let read = |text: &str| {
            let schema = Schema::of::<Config>("", &[DIGITS]);
            Document::parse(text, "f").unwrap().read(
                &schema,
                |_| {},
                |config: Config, _, _| format!("{config:?}"),
            )
        };
        let config = read("pin: '0042'\nnames: a\nratio: 0.5\nrules: [{name: a, kind: DENY}]").unwrap();
        assert_eq!(
            config,
            "Config { pin: \"0042\", names: List([\"a\"]), level: 3, ratio: Some(0.5), rules: [Rule { name: \"a\", kind: Deny }] }"
        );
        let wrong = "pin: hidden\nnames: [a, b, a]\nlevel: 9\nratio: 2\nrules:\n  - name: a\n    kind: maybe\n  - kind: allow\n";
        assert_eq!(
            read(wrong).unwrap_err().lines(),
            [
                "f:1: invalid pin: must be four digits",
                "f:2: invalid names: must be at most 2, not 3; remove some",
                "f:2: invalid names: contains `a` twice; keep one",
                "f:3: invalid level `9`: must be a whole number from 1 to 5, without quotes",
                "f:4: invalid ratio `2`: must be a number from 0 to 1",
                "f:7: rule `a`: invalid kind `maybe`: must be `allow` (let it pass) or `deny` (stop it)",
                "f:8: rule 2: missing name: must be a text",
            ]
        );
        assert_eq!(read("").unwrap_err().to_string(), "f:1: missing pin: must be four digits");
    }
}

//! The JSON Schema of a config, generated from the structs that read it.
//!
//! Editors use it for completion; this crate validates with it.

use std::ops::RangeInclusive;

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema as JsonSchemaValue};
use serde_json::{Map, Value};

use crate::form::Form;
use crate::words::{any_of, nearest, one_of, plain, uncapitalized};

/// A JSON Schema and the forms of its texts.
#[derive(Debug)]
pub struct Schema {
    /// The JSON Schema. Keys with a default are required in it, because validation adds defaults.
    pub json: Value,
    forms: Vec<Form>,
    synonyms: &'static str,
}

impl Schema {
    /// The schema of a `T`. `forms` are those that its texts name as `format`.
    #[must_use]
    pub fn of<T: JsonSchema>(title: &str, forms: &[Form]) -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<T>();
        RecursiveTransform(without_null).transform(&mut schema);
        RecursiveTransform(|schema: &mut JsonSchemaValue| complete(schema, forms)).transform(&mut schema);
        schema.insert("title".to_owned(), title.into());
        Self { json: schema.to_value(), forms: forms.to_vec(), synonyms: "" }
    }

    /// Sets other words for keys, which errors correct. Each line has an example of a key and its
    /// synonyms in lower case: `window: 60s | interval period`.
    #[must_use]
    pub fn with_synonyms(self, synonyms: &'static str) -> Self {
        Self { synonyms, ..self }
    }

    /// The schema for editors, in which keys with a default are optional.
    ///
    /// # Panics
    /// [`json`](Self::json) was changed and is no longer a schema.
    #[must_use]
    pub fn published(&self) -> Value {
        let mut schema: JsonSchemaValue = self.json.clone().try_into().expect("an object is a schema");
        RecursiveTransform(require_what_has_no_default).transform(&mut schema);
        schema.to_value()
    }

    /// The form that a part of the schema names.
    pub(crate) fn form(&self, part: &Value) -> Option<&Form> {
        form(part, &self.forms)
    }

    /// The known key that an unknown one probably stands for, and how to fix it.
    pub(crate) fn suggest<'k>(&self, unknown: &str, known: &[&'k str]) -> (Option<&'k str>, String) {
        let theirs = plain(unknown);
        let synonym = self.synonyms.lines().find_map(|line| {
            let (example, words) = line.split_once(" | ")?;
            let ours = known.iter().find(|ours| example.split(':').next() == Some(ours))?;
            words.split(' ').any(|word| word == theirs).then_some((*ours, example))
        });
        if let Some((meant, example)) = synonym {
            return (Some(meant), format!("use `{meant}`, for example `{example}`"));
        }
        match nearest(unknown, known) {
            Some(meant) => (Some(meant), format!("did you mean `{meant}`?")),
            None => (None, format!("must be {}", any_of(known))),
        }
    }

    /// What a part of the schema expects, for errors and documentation. `name` is its key, for
    /// examples.
    #[must_use]
    pub fn expected(&self, part: &Value, name: &str) -> String {
        if let Some(expected) = part["x-expected"].as_str() {
            return expected.to_owned();
        }
        let text = |keyword: &str| part[keyword].as_str().unwrap_or_default();
        if let Some(form) = self.form(part) {
            let example = part["default"].as_str().unwrap_or(text("x-example"));
            let filled = form.expected.replace("{key}", name).replace("{default}", example);
            let bounds = ["formatMinimum", "formatMaximum"];
            return bounds
                .iter()
                .fold(filled, |filled, bound| filled.replace(&format!("{{{bound}}}"), text(bound)));
        }
        if let Some(choices) = part["oneOf"].as_array() {
            let described = choices.iter().map(|choice| {
                let about =
                    choice["description"].as_str().map(|about| format!(" ({})", uncapitalized(about)));
                format!("`{}`{}", choice["const"].as_str().unwrap_or_default(), about.unwrap_or_default())
            });
            return one_of(&described.collect::<Vec<_>>());
        }
        if let Some(choices) = choices(part) {
            return any_of(&choices);
        }
        if let Some(kinds) = part["anyOf"].as_array() {
            return self.expected_kinds(kinds, name);
        }
        match text("type") {
            "integer" => {
                let bounds = bounds(part);
                format!("a whole number from {} to {}, without quotes", bounds.start(), bounds.end())
            }
            "number" if part["minimum"].is_number() && part["maximum"].is_number() => {
                format!("a number from {} to {}", part["minimum"], part["maximum"])
            }
            "number" => "a number".to_owned(),
            "boolean" => "`true` or `false`".to_owned(),
            "array" => format!("a list of {}", self.expected(&part["items"], name)),
            "object" if part["maxProperties"] == 1 => {
                let keys = part["properties"].as_object().into_iter().flatten();
                format!("exactly one of {}", any_of(&keys.map(|(key, _)| key.as_str()).collect::<Vec<_>>()))
            }
            "object" => match part["x-example"].as_str() {
                Some(example) => format!("keys and values, for example `{example}`"),
                None => "keys and values".to_owned(),
            },
            _ => "a text".to_owned(),
        }
    }

    fn expected_kinds(&self, kinds: &[Value], name: &str) -> String {
        let (lists, others): (Vec<_>, Vec<_>) = kinds.iter().partition(|kind| kind["type"] == "array");
        let mut kinds: Vec<_> = others.into_iter().map(|kind| self.expected(kind, name)).collect();
        for list in lists {
            let item = self.expected(&list["items"], name);
            let is_item = kinds.contains(&item);
            kinds.push(if is_item { "a list of them".to_owned() } else { format!("a list of {item}") });
        }
        kinds.join(", or ")
    }
}

fn form<'f>(part: &Value, forms: &'f [Form]) -> Option<&'f Form> {
    forms.iter().find(|form| part["format"] == form.name)
}

/// The value of a missing key: its default, or a section whose keys all have defaults.
pub(crate) fn default_of(schema: &Value) -> Option<Value> {
    schema.get("default").cloned().or_else(|| {
        let defaults = defaults_in(schema);
        let is_complete = defaults.len() == schema["required"].as_array().map_or(0, Vec::len);
        (schema["properties"].is_object() && is_complete).then(|| defaults.into())
    })
}

/// The defaults of a section's keys.
#[must_use]
pub fn defaults_in(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let with_default = |key: &str| Some((key.to_owned(), default_of(&schema["properties"][key])?));
    required.filter_map(with_default).collect()
}

/// Removes null, which schemars allows for optional keys.
pub fn without_null(schema: &mut JsonSchemaValue) {
    let is_null = |value: &Value| value.is_null() || value == "null" || value["type"] == "null";
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
    for keyword in ["type", "enum", "anyOf"] {
        let Some(Value::Array(choices)) = schema.get_mut(keyword) else { continue };
        choices.retain(|choice| !is_null(choice));
        let ([only], "type" | "anyOf") = (choices.as_slice(), keyword) else { continue };
        let only = only.clone();
        schema.remove(keyword);
        match only {
            // The description of the key replaces that of its type.
            Value::Object(only) => {
                for (keyword, value) in only {
                    schema.ensure_object().entry(keyword).or_insert(value);
                }
            }
            only => drop(schema.insert(keyword.to_owned(), only)),
        }
    }
}

/// Moves keywords of a key to the alternatives they apply to, and adds those of its form.
fn complete(schema: &mut JsonSchemaValue, forms: &[Form]) {
    if let Some(Value::String(description)) = schema.get_mut("description") {
        *description = description.replace('\n', " ");
    }
    if schema.get("anyOf").is_some() {
        for keyword in ["format", "minItems", "maxItems", "uniqueItems"] {
            let Some(value) = schema.remove(keyword) else { continue };
            for kind in schema.get_mut("anyOf").and_then(Value::as_array_mut).into_iter().flatten() {
                match (kind["type"] == "array", keyword) {
                    (true, "format") => kind["items"]["format"] = value.clone(),
                    (is_list, keyword) if is_list != (keyword == "format") => kind[keyword] = value.clone(),
                    _ => {}
                }
            }
        }
    }
    let Some(form) = form(schema.as_value(), forms) else { return };
    if !form.pattern.is_empty() {
        schema.insert("pattern".to_owned(), form.pattern.into());
    }
    if form.is_secret {
        schema.insert("writeOnly".to_owned(), true.into());
    }
}

/// Requires only keys without a default.
fn require_what_has_no_default(schema: &mut JsonSchemaValue) {
    let properties = schema.get("properties").cloned().unwrap_or_default();
    let Some(Value::Array(required)) = schema.get_mut("required") else { return };
    required.retain(|key| key.as_str().is_some_and(|key| default_of(&properties[key]).is_none()));
    if required.is_empty() {
        schema.remove("required");
    }
}

pub(crate) fn bounds(schema: &Value) -> RangeInclusive<u64> {
    schema["minimum"].as_u64().unwrap_or(0)..=schema["maximum"].as_u64().unwrap_or(u64::MAX)
}

/// The texts that a schema lists, if it lists any.
pub(crate) fn choices(schema: &Value) -> Option<Vec<&str>> {
    if let Some(choices) = schema["enum"].as_array() {
        return Some(choices.iter().filter_map(Value::as_str).collect());
    }
    Some(schema["oneOf"].as_array()?.iter().filter_map(|choice| choice["const"].as_str()).collect())
}

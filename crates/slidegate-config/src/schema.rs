//! The JSON Schema of a file, generated from the structs that read it.
//!
//! Editors validate and complete with it, and [`check`](crate::check) validates files with it.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

use crate::values::Form;

/// The schema that values of `T` are validated against, whose texts have these forms.
#[must_use]
pub fn schema_of<T: JsonSchema>(title: &str, forms: &[Form]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(without_null).transform(&mut schema);
    RecursiveTransform(|schema: &mut Schema| complete(schema, forms)).transform(&mut schema);
    schema.insert("title".to_owned(), title.into());
    schema.to_value()
}

/// A schema for editors: keys with a default are not required.
///
/// # Panics
/// The value is not a schema of [`schema_of`].
#[must_use]
pub fn published(schema: &Value) -> Value {
    let mut schema: Schema = schema.clone().try_into().expect("an object is a schema");
    RecursiveTransform(require_what_has_no_default).transform(&mut schema);
    schema.to_value()
}

/// The form of the texts that a schema describes, if they have one.
pub(crate) fn form<'f>(schema: &Value, forms: &'f [Form]) -> Option<&'f Form> {
    forms.iter().find(|form| schema["format"] == form.name)
}

/// The value of a missing key: its default, or a section of defaults.
pub(crate) fn default_of(schema: &Value) -> Option<Value> {
    schema.get("default").cloned().or_else(|| {
        let defaults = defaults_in(schema);
        let is_complete = defaults.len() == schema["required"].as_array().map_or(0, Vec::len);
        (schema["properties"].is_object() && is_complete).then(|| defaults.into())
    })
}

/// The defaults of the keys of a section.
#[must_use]
pub fn defaults_in(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let with_default = |key: &str| Some((key.to_owned(), default_of(&schema["properties"][key])?));
    required.filter_map(with_default).collect()
}

/// Removes null from optional keys, which schemars allows there.
pub fn without_null(schema: &mut Schema) {
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
            // The description of the key is more than that of its type.
            Value::Object(only) => {
                for (keyword, value) in only {
                    schema.ensure_object().entry(keyword).or_insert(value);
                }
            }
            only => drop(schema.insert(keyword.to_owned(), only)),
        }
    }
}

/// Moves keywords of a key to the schemas of its text and its list, and adds those of its form.
fn complete(schema: &mut Schema, forms: &[Form]) {
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

/// Validation adds defaults, so only other keys are required.
fn require_what_has_no_default(schema: &mut Schema) {
    let properties = schema.get("properties").cloned().unwrap_or_default();
    let Some(Value::Array(required)) = schema.get_mut("required") else { return };
    required.retain(|key| key.as_str().is_some_and(|key| default_of(&properties[key]).is_none()));
    if required.is_empty() {
        schema.remove("required");
    }
}

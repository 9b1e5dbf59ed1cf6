//! The JSON Schema of a configuration file, generated from the structs that read it.
//!
//! Editors validate and complete with it, and the service validates files with it.

use std::sync::OnceLock;

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use serde_json::{Map, Value};
use slidegate::{Algorithm, Counts, Quota, RedisOptions, Secret};

use super::admin::HOST;
use super::auth::{AttributeSource, TRUSTED_PROXY};
use super::listener::SocketMode;
use super::resp::{PASSWORD_FILE, Password};
use super::sections::File;
use super::store::READABLE_FILE;
use super::traces::{ENDPOINT, FIELD};
use super::values::{ADDRESS, ATTRIBUTE, ByteSize, Form, NAME, NEW_FILE, Text};

/// Every form of text.
static FORMS: [Form; 20] = [
    ADDRESS,
    SocketMode::FORM,
    NAME,
    ATTRIBUTE,
    HOST,
    TRUSTED_PROXY,
    FIELD,
    ENDPOINT,
    READABLE_FILE,
    PASSWORD_FILE,
    Password::FORM,
    <Secret<[u8; 32]>>::FORM,
    <Secret<String>>::FORM,
    AttributeSource::FORM,
    Quota::FORM,
    Algorithm::FORM,
    Counts::FORM,
    RedisOptions::FORM,
    ByteSize::FORM,
    NEW_FILE,
];

/// The schema as `slidegate schema` prints it.
pub(crate) fn published() -> Value {
    let mut schema: Schema = schema().clone().try_into().expect("an object is a schema");
    RecursiveTransform(require_what_has_no_default).transform(&mut schema);
    // A file may lack policies only if limits come from elsewhere.
    schema.insert("required".to_owned(), ["policies"].as_slice().into());
    schema.to_value()
}

/// The schema that files are validated against.
pub(super) fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let mut schema = settings.into_generator().into_root_schema_for::<File>();
        RecursiveTransform(without_null).transform(&mut schema);
        RecursiveTransform(complete).transform(&mut schema);
        schema.insert("title".to_owned(), "Configuration of slidegate".into());
        schema.to_value()
    })
}

/// The schema of one policy.
pub(super) fn policy_schema() -> &'static Value {
    &schema()["properties"]["policies"]["items"]
}

/// The form of the texts that a schema describes, if they have one.
pub(super) fn form(schema: &Value) -> Option<&'static Form> {
    FORMS.iter().find(|form| schema["format"] == form.name)
}

/// The value of a missing key: its default, or a section of defaults.
pub(super) fn default_of(schema: &Value) -> Option<Value> {
    schema.get("default").cloned().or_else(|| {
        let defaults = defaults_in(schema);
        let is_complete = defaults.len() == schema["required"].as_array().map_or(0, Vec::len);
        (schema["properties"].is_object() && is_complete).then(|| defaults.into())
    })
}

/// The defaults of the keys of a section.
pub(super) fn defaults_in(schema: &Value) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let with_default = |key: &str| Some((key.to_owned(), default_of(&schema["properties"][key])?));
    required.filter_map(with_default).collect()
}

/// Removes null from optional keys, which schemars allows there.
fn without_null(schema: &mut Schema) {
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
            Value::Object(only) => schema.ensure_object().extend(only),
            only => drop(schema.insert(keyword.to_owned(), only)),
        }
    }
}

/// Moves keywords of a key to the schemas of its text and its list, and adds those of its form.
fn complete(schema: &mut Schema) {
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
    let Some(form) = form(schema.as_value()) else { return };
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{published, schema};

    const CHECKED_IN: &str = include_str!("../../../../docs/slidegate.schema.json");
    const EXAMPLE: &str = include_str!("../../../../docs/slidegate.example.yaml");

    /// Editors read the file that is checked in: it must be what this release accepts.
    #[test]
    fn the_schema_that_is_checked_in_is_current() {
        let current = format!("{:#}\n", published());
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(
                concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/slidegate.schema.json"),
                &current,
            )
            .unwrap();
        }
        assert!(CHECKED_IN == current, "run `slidegate schema > docs/slidegate.schema.json`");
    }

    fn is_valid(file: &str) -> bool {
        let file: Value = serde_saphyr::from_str(file).unwrap();
        let validator = jsonschema::validator_for(&published()).unwrap();
        validator.is_valid(&file)
    }

    /// Anyone who starts from the example must not see it underlined, and must see mistakes
    /// underlined.
    #[test]
    fn editors_accept_the_example_and_underline_mistakes() {
        assert!(EXAMPLE.starts_with("# yaml-language-server: $schema=slidegate.schema.json\n"));
        assert!(is_valid(EXAMPLE));
        let uncommented: Vec<_> =
            EXAMPLE.lines().skip_while(|line| !line.starts_with("# What proxies send")).skip(1).collect();
        let uncommented: Vec<_> =
            uncommented.iter().map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
        assert!(is_valid(&format!("policies: [{{name: p, quota: 1/1s}}]\n{}", uncommented.join("\n"))));
        for policy in [
            "{name: p, windw: 1s}",
            "{quota: 1/1s}",
            "{name: p, quota: five}",
            "{name: p, limit: -1, window: 1s}",
            "{name: p, limit: 1, window: 60}",
            "{name: p, quota: 1/1s, algorithm: magic}",
            "{name: p, quota: 1/1s, ipv6_prefix: 16}",
            "{name: p, quota: 1/1s, when: {path: {regex: x}}}",
        ] {
            assert!(!is_valid(&format!("policies: [{policy}]")), "{policy}");
        }
        assert!(!is_valid("server: {}"));
    }

    /// A key that no document mentions is one that nobody sets.
    #[test]
    fn every_key_is_in_the_reference_and_in_the_example() {
        const REFERENCE: &str = include_str!("../../../../docs/config.md");
        let schema = schema();
        let rows: Vec<_> = REFERENCE.lines().filter(|line| line.starts_with("| `")).collect();
        for (section, known) in schema["properties"].as_object().unwrap() {
            let known = known["items"]["properties"].as_object().or(known["properties"].as_object()).unwrap();
            for key in known.keys() {
                let is_documented = rows.iter().any(|row| {
                    row.split(" | ").next().is_some_and(|first| first.contains(&format!("`{key}")))
                });
                assert!(is_documented, "{section}: {key} is not in the reference");
                assert!(EXAMPLE.contains(&format!("{key}:")), "{section}: {key} is not in the example");
            }
        }
    }
}

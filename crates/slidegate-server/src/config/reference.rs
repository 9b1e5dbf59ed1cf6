//! The tables of keys in docs/config.md, generated from the schema and its doc comments.
//!
//! A table stands between `<!-- keys of store.memory -->` and `<!-- end -->`. Rows keep the order of the
//! page; new keys are added at the end. A row that an earlier table has is left out.

use std::collections::BTreeSet;

use serde_json::Value;

use super::schema::schema;

const START: &str = "<!-- keys of ";
const END: &str = "<!-- end -->";

/// The page with current tables.
fn with_tables(page: &str) -> String {
    let mut parts = page.split(START);
    let mut current = parts.next().unwrap_or_default().to_owned();
    let mut rows = BTreeSet::new();
    for part in parts {
        let (path, rest) = part.split_once(" -->\n").expect("a marker has its own line");
        let (old, rest) = rest.split_once(END).expect("a table has an end");
        current += &format!("{START}{path} -->\n{}{END}{rest}", table(path, old, &mut rows));
    }
    current
}

fn table(path: &str, old: &str, rows: &mut BTreeSet<String>) -> String {
    let root = schema().published();
    let section = path.split('.').fold(&root, |section, key| {
        with_keys(&section["properties"][key]).unwrap_or_else(|| panic!("`{path}` has no keys"))
    });
    let mut keys: Vec<_> = section["properties"].as_object().into_iter().flatten().collect();
    keys.sort_by_key(|(key, _)| old.find(&format!("\n| `{key}` |")).unwrap_or(usize::MAX));
    let mut table = "| key | | value | default |\n|---|---|---|---|\n".to_owned();
    for (key, schema) in keys {
        let about = schema["description"].as_str().unwrap_or_default();
        let (about, default) = match about.split_once(" Default: ") {
            Some((about, default)) => (about, default.trim_end_matches('.').to_owned()),
            None if section["required"].as_array().is_some_and(|all| all.contains(&key.as_str().into())) => {
                (about, "required".to_owned())
            }
            None => (about, default_of(schema)),
        };
        let row = format!("| `{key}` | {about} | {} | {default} |\n", value_of(key, schema));
        if rows.insert(row.clone()) {
            table += &row;
        }
    }
    table
}

/// The schema that lists keys: this one, or that of its elements.
fn with_keys(schema: &Value) -> Option<&Value> {
    if schema["properties"].is_object() {
        return Some(schema);
    }
    let elements = [&schema["items"], &schema["additionalProperties"]];
    let kinds = elements.into_iter().chain(schema["anyOf"].as_array().into_iter().flatten());
    kinds.filter(|kind| kind.is_object()).find_map(with_keys)
}

/// What errors say is expected, without phrases that are the same for all keys. Empty: any text.
fn value_of(key: &str, schema: &Value) -> String {
    let example = format!(", for example `{key}: {}`", schema["default"].as_str().unwrap_or("60s"));
    let same = [
        "a whole number from ",
        ", without quotes",
        " with a unit (ms, s, m, h, d or w)",
        &example,
        "; write several as a list, for example `[user, path]`",
    ];
    let value = same
        .iter()
        .fold(super::schema::schema().expected(schema, key), |value, same| value.replace(same, ""));
    if value == "a text" { String::new() } else { value }
}

fn default_of(schema: &Value) -> String {
    match &schema["default"] {
        Value::String(text) => format!("`{text}`"),
        Value::Array(list) if !list.is_empty() => format!("`{}`", schema["default"]).replace('"', ""),
        Value::Bool(_) | Value::Number(_) => format!("`{}`", schema["default"]),
        _ => String::new(),
    }
}

/// Keys are described once, in the structs. `UPDATE_GOLDEN=1` rewrites the tables.
#[test]
fn the_reference_is_as_in_the_golden_file() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let page = std::fs::read_to_string(path).unwrap();
    super::tests::compare(path, &page, &with_tables(&page));
    for section in schema().json["properties"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("{START}{section} -->")), "{section} has no table");
    }
}

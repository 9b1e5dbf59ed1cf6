//! One config file: a domain and its descriptors, with the error messages of envoyproxy/ratelimit.
//!
//! envoyproxy/ratelimit validates a file in two passes. The first checks keys against one list for
//! all levels, so `descriptors` within a `rate_limit` is accepted and ignored; here that is a
//! warning. The second checks value types. It stops at the first error and names no line. Here all
//! errors are reported, each with its line.

use std::fmt::{self, Write as _};

use lined_config::{Node, Value, YamlFormat};
use serde_json::{Map, Value as Json};

use super::rule::{Rate, Rule, Unit};

/// YAML 1.1. Each level of descriptors nests two deep, so about 30 levels fit; Envoy sends fewer.
const FORMAT: YamlFormat =
    YamlFormat { is_yaml_1_1: true, max_depth: 64, max_values: 500_000, max_aliases: 4096 };

/// Meaningful keys of a descriptor.
const DESCRIPTOR_KEYS: [&str; 10] = [
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
/// Meaningful keys of a `rate_limit`.
const RATE_LIMIT_KEYS: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The contents of one file, with its errors and warnings.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) domain: String,
    pub(super) domain_line: u64,
    pub(super) descriptors: Vec<Descriptor>,
    /// Errors, each with its line.
    pub(super) errors: Vec<(u64, String)>,
    /// Accepted settings that are probably mistakes, each with its line.
    pub(super) warnings: Vec<(u64, String)>,
}

/// A descriptor of a file. Its limit is validated once its path is known, because errors name the
/// path.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) line: u64,
    /// May be empty, which is rejected later.
    pub(super) key: String,
    /// Empty if it has no value.
    pub(super) value: String,
    pub(super) limit: Option<RateLimitEntry>,
    /// The options besides the rate.
    pub(super) rule: Rule,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) descriptors: Vec<Self>,
}

/// A `rate_limit` before validation.
#[derive(Debug, Default)]
pub(super) struct RateLimitEntry {
    pub(super) line: u64,
    requests_per_unit: u32,
    unit: String,
    unlimited: bool,
}

impl RateLimitEntry {
    /// The rate; `None` is unlimited.
    pub(super) fn rate(&self) -> Result<Option<Rate>, String> {
        match (self.unlimited, Unit::from_name(&self.unit)) {
            (false, Some(unit)) => Ok(Some(Rate { requests_per_unit: self.requests_per_unit, unit })),
            (true, None) => Ok(None),
            (true, Some(_)) => Err("should not specify rate limit unit when unlimited".into()),
            (false, None) => Err(format!("invalid rate limit unit '{}'", self.unit)),
        }
    }
}

/// Parses a file.
pub(super) fn parse(text: &str) -> ConfigFile {
    let mut file = ConfigFile::default();
    let root = match FORMAT.read(text) {
        Ok(root) => root,
        Err(error) => {
            let message =
                format!("error loading config file: yaml: line {}: {}", error.position.line, error.message);
            file.errors.push((error.position.line, message));
            return file;
        }
    };
    file.check_keys(root.entries());
    if file.errors.is_empty() {
        file.domain_line = root.get("domain").map_or(1, |node| node.position.line);
        file.take_root(&root);
    }
    file
}

impl ConfigFile {
    /// Checks for unknown keys, keys that are not strings, list elements that are not maps, and
    /// floats.
    fn check_keys(&mut self, entries: &[(Node, Node)]) {
        for (key, value) in entries {
            let Value::Text(name) = &key.value else {
                self.error(
                    key.position.line,
                    format!("config error, key is not of type string: {}", Printed(key)),
                );
                continue;
            };
            // Every key is accepted at every level, and anything below `metadata`.
            let name = name.as_str();
            if name != "domain" && !DESCRIPTOR_KEYS.contains(&name) && !RATE_LIMIT_KEYS.contains(&name) {
                self.error(key.position.line, format!("config error, unknown key '{name}'"));
                continue;
            }
            if name == "metadata" {
                continue;
            }
            match &value.value {
                Value::Map(entries) => self.check_keys(entries),
                Value::List(nodes) => {
                    for node in nodes {
                        if let Value::Map(entries) = &node.value {
                            self.check_keys(entries);
                        } else {
                            let message = "config error, yaml file contains list of type other than map";
                            self.error(node.position.line, format!("{message}: {}", Printed(node)));
                        }
                    }
                }
                Value::Float => {
                    let text = value.scalar().unwrap_or_default();
                    let fix = match name {
                        "requests_per_unit" => "write a whole number".to_owned(),
                        _ => format!("write `{name}: \"{text}\"`, in quotes"),
                    };
                    let why = format!("`{name}: {text}` is a number with decimals or an exponent; {fix}");
                    self.error(value.position.line, format!("error checking config: {why}"));
                }
                Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Text(_) => {}
            }
        }
    }

    fn take_root(&mut self, root: &Node) {
        if !matches!(root.value, Value::Map(_) | Value::Null) {
            self.wrong_type(root, "config.YamlRoot");
            return;
        }
        self.warn_about_ignored_keys(root, &["domain", "descriptors"], "at the top level");
        self.domain = self.text(root, "domain");
        self.descriptors = self.descriptors(root);
    }

    fn descriptors(&mut self, parent: &Node) -> Vec<Descriptor> {
        self.list(parent, "descriptors", "[]config.YamlDescriptor")
            .iter()
            .map(|node| self.descriptor(node))
            .collect()
    }

    fn descriptor(&mut self, node: &Node) -> Descriptor {
        self.warn_about_ignored_keys(node, &DESCRIPTOR_KEYS, "in a descriptor");
        let mut rule = Rule {
            shadow_mode: self.flag(node, "shadow_mode"),
            quota_mode: self.flag(node, "quota_mode"),
            detailed_metric: self.flag(node, "detailed_metric"),
            ..Rule::default()
        };
        if let Some(metadata) = node.get("metadata")
            && let Err(message) = self.metadata(metadata).and_then(|map| rule.take_metadata(map))
        {
            self.error(metadata.position.line, message);
        }
        if let Some(empty) = node.get("value").filter(|value| matches!(value.value, Value::Null)) {
            let warning = "`value` is empty, so the descriptor is for every value of its key; leave it out, or write a text \
                           such as `null` in quotes";
            self.warnings.push((empty.position.line, warning.into()));
        }
        let limit = node.get("rate_limit").and_then(|node| self.limit(node, &mut rule));
        Descriptor {
            line: node.position.line,
            key: self.text(node, "key"),
            value: self.text(node, "value"),
            limit,
            rule,
            value_to_metric: self.flag(node, "value_to_metric"),
            share_threshold: self.flag(node, "share_threshold"),
            descriptors: self.descriptors(node),
        }
    }

    fn limit(&mut self, node: &Node, rule: &mut Rule) -> Option<RateLimitEntry> {
        match node.value {
            Value::Map(_) => {}
            Value::Null => return None,
            _ => {
                self.wrong_type(node, "config.YamlRateLimit");
                return None;
            }
        }
        self.warn_about_ignored_keys(node, &RATE_LIMIT_KEYS, "in a rate_limit");
        rule.name = self.text(node, "name");
        let replaces = self.list(node, "replaces", "[]config.yamlReplaces");
        rule.replaces = replaces.iter().map(|node| self.text(node, "name")).collect();
        let limit = RateLimitEntry {
            line: node.position.line,
            requests_per_unit: self.count(node, "requests_per_unit"),
            unit: self.text(node, "unit"),
            unlimited: self.flag(node, "unlimited"),
        };
        if !limit.unlimited && node.get("requests_per_unit").is_none() {
            self.warnings.push((
                node.position.line,
                "rate_limit has no requests_per_unit, so every request is denied; add it".into(),
            ));
        }
        Some(limit)
    }

    /// Warns about accepted keys without meaning at this level.
    fn warn_about_ignored_keys(&mut self, node: &Node, known: &[&str], place: &str) {
        for (key, _) in node.entries() {
            if let Value::Text(name) = &key.value
                && !known.contains(&name.as_str())
            {
                let home = match name.as_str() {
                    name if RATE_LIMIT_KEYS.contains(&name) => "; move it into a rate_limit",
                    name if DESCRIPTOR_KEYS.contains(&name) => "; move it into a descriptor",
                    _ => "",
                };
                self.warnings.push((key.position.line, format!("`{name}` is ignored {place}{home}")));
            }
        }
    }

    fn metadata(&self, node: &Node) -> Result<Map<String, Json>, String> {
        match json(node).map_err(|message| format!("error parsing metadata: {message}"))? {
            Json::Object(map) => Ok(map),
            Json::Null => Ok(Map::new()),
            _ => Err(unmarshal(node, "map[string]interface {}")),
        }
    }

    fn text(&mut self, parent: &Node, key: &str) -> String {
        self.read(parent, key, "string", |node| node.scalar().map(str::to_owned))
    }

    fn flag(&mut self, parent: &Node, key: &str) -> bool {
        self.read(parent, key, "bool", |node| match node.value {
            Value::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    fn count(&mut self, parent: &Node, key: &str) -> u32 {
        self.read(parent, key, "uint32", |node| match node.value {
            Value::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        })
    }

    fn list<'n>(&mut self, parent: &'n Node, key: &str, type_name: &str) -> &'n [Node] {
        self.read(parent, key, type_name, |node| match &node.value {
            Value::List(nodes) => Some(nodes.as_slice()),
            _ => None,
        })
    }

    /// The value of a key, or the default if it is missing, null or of the wrong type. A wrong type
    /// is reported.
    fn read<'n, T: Default>(
        &mut self,
        parent: &'n Node,
        key: &str,
        type_name: &str,
        read: impl Fn(&'n Node) -> Option<T>,
    ) -> T {
        let node = parent.get(key).filter(|node| !matches!(node.value, Value::Null));
        node.map_or_else(T::default, |node| {
            read(node).unwrap_or_else(|| {
                self.wrong_type(node, type_name);
                T::default()
            })
        })
    }

    fn wrong_type(&mut self, node: &Node, type_name: &str) {
        self.error(node.position.line, unmarshal(node, type_name));
    }

    fn error(&mut self, line: u64, message: String) {
        self.errors.push((line, message));
    }
}

/// The error for a value of the wrong type.
fn unmarshal(node: &Node, type_name: &str) -> String {
    let mut message = format!(
        "error loading config file: yaml: unmarshal errors: line {}: cannot unmarshal ",
        node.position.line
    );
    message += match node.value {
        Value::Null => "!!null",
        Value::Bool(_) => "!!bool",
        Value::Integer(_) => "!!int",
        Value::Float => "!!float",
        Value::Text(_) => "!!str",
        Value::List(_) => "!!seq",
        Value::Map(_) => "!!map",
    };
    if let Some(text) = node.scalar() {
        // Shortened as in envoyproxy/ratelimit's YAML reader.
        let shown: String = if text.chars().count() > 10 {
            text.chars().take(7).chain("...".chars()).collect()
        } else {
            text.into()
        };
        let _ = write!(message, " `{shown}`");
    }
    message + " into " + type_name
}

/// Converts to JSON for a protocol-buffer Struct, whose keys are strings and whose numbers are
/// doubles.
fn json(node: &Node) -> Result<Json, String> {
    Ok(match &node.value {
        Value::Null => Json::Null,
        Value::Bool(flag) => (*flag).into(),
        #[allow(clippy::cast_precision_loss)] // a Struct has doubles only
        Value::Integer(number) => match i64::try_from(*number) {
            Ok(number) => number.into(),
            Err(_) => (*number as f64).into(),
        },
        Value::Float => {
            let text = node.scalar().unwrap_or_default();
            text.replace('_', "").parse::<f64>().map_or_else(|_| text.into(), Into::into)
        }
        Value::Text(text) => text.as_str().into(),
        Value::List(nodes) => nodes.iter().map(json).collect::<Result<Vec<_>, _>>()?.into(),
        Value::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                // `no`, `y` and `5` are strings here: a Struct has no other keys.
                let name =
                    key.scalar().ok_or_else(|| format!("key is not of type string: {}", Printed(key)))?;
                map.insert(name.to_owned(), json(value)?);
            }
            map.into()
        }
    })
}

/// A value as printed in errors of envoyproxy/ratelimit.
struct Printed<'n>(&'n Node);

impl fmt::Display for Printed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.value {
            Value::Null => f.write_str("<nil>"),
            Value::Bool(flag) => write!(f, "{flag}"),
            Value::Integer(number) => write!(f, "{number}"),
            Value::Float | Value::Text(_) => f.write_str(self.0.scalar().unwrap_or_default()),
            Value::List(nodes) => {
                f.write_str("[")?;
                for (at, node) in nodes.iter().enumerate() {
                    write!(f, "{}{}", if at > 0 { " " } else { "" }, Printed(node))?;
                }
                f.write_str("]")
            }
            Value::Map(_) => f.write_str("map"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// YAML reads versions and codes as numbers, but requests contain them as written.
    #[test]
    fn a_value_is_the_text_that_was_written_or_an_error_that_says_how_to_write_it() {
        for (written, read) in [
            ("yes", Some("yes")),
            ("off", Some("off")),
            ("True", Some("True")),
            ("0x10", Some("0x10")),
            ("010", Some("010")),
            ("1_000", Some("1_000")),
            ("-5", Some("-5")),
            ("2024-01-31", Some("2024-01-31")),
            ("12:30", Some("12:30")),
            ("1.2.3", Some("1.2.3")),
            ("\"1.10\"", Some("1.10")),
            ("'1e3'", Some("1e3")),
            ("\"null\"", Some("null")),
            ("1.10", None),
            ("1e3", None),
            (".5", None),
            ("-0.0", None),
        ] {
            for key in ["key", "value"] {
                let other = if key == "key" { "value: x" } else { "key: x" };
                let file = parse(&format!("domain: d\ndescriptors:\n  - {other}\n    {key}: {written}\n"));
                let values =
                    file.descriptors.first().map(|one| if key == "key" { &one.key } else { &one.value });
                let fix = format!(
                    "error checking config: `{key}: {written}` is a number with decimals or an exponent; write `{key}: \"{written}\"`, in quotes"
                );
                match read {
                    Some(read) => assert_eq!(
                        (values.map(String::as_str), &*file.errors),
                        (Some(read), &[][..]),
                        "{key}: {written}"
                    ),
                    None => assert_eq!(file.errors, [(4, fix)]),
                }
            }
        }
        for empty in ["null", "~", "", "Null"] {
            let file = parse(&format!("domain: d\ndescriptors:\n  - key: x\n    value: {empty}\n"));
            let told: Vec<_> = file.warnings.iter().map(|(line, warning)| (*line, &warning[..18])).collect();
            assert_eq!(told, [(4, "`value` is empty, ")], "{empty:?}");
            assert_eq!((file.descriptors[0].value.as_str(), &*file.errors), ("", &[][..]));
        }
    }
}

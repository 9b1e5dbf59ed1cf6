//! One config file: a domain and its descriptors, with the error messages of envoyproxy/ratelimit.
//!
//! envoyproxy/ratelimit validates a file in two passes. The first checks the keys against one list
//! for all levels, so `descriptors` within a `rate_limit` is accepted and ignored; here that is a
//! warning. The second checks the types of values. It stops at the first error and names no line.
//! Here all errors are reported, each with its line.

use std::fmt::Write as _;

use serde_json::Map;

use super::rule::{Rate, Rule, Unit};
use super::yaml::{self, YamlNode, YamlValue};

/// Keys that are accepted at every level. Anything is allowed below `metadata`.
const KEYS: [&str; 16] = [
    "domain",
    "key",
    "value",
    "descriptors",
    "rate_limit",
    "unit",
    "requests_per_unit",
    "unlimited",
    "shadow_mode",
    "quota_mode",
    "name",
    "replaces",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];
/// Keys that have a meaning in a descriptor.
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
/// Keys that have a meaning in a `rate_limit`.
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

/// A descriptor of a file. Its limit is validated when the path to it is known, because the errors
/// name the path.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) line: u64,
    /// May be empty, which is rejected later.
    pub(super) key: String,
    /// Empty if it has no value.
    pub(super) value: String,
    pub(super) limit: Option<RateLimitEntry>,
    /// The options beside the rate.
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
    let root = match yaml::read(text) {
        Ok(root) => root,
        Err(error) => {
            let message = format!("error loading config file: yaml: line {}: {}", error.line, error.message);
            file.errors.push((error.line, message));
            return file;
        }
    };
    if let YamlValue::Map(entries) = &root.value {
        file.check_keys(entries);
    }
    if file.errors.is_empty() {
        file.domain_line = root.get("domain").map_or(1, |node| node.line);
        file.take_root(&root);
    }
    file
}

impl ConfigFile {
    /// Checks for unknown keys, keys that are not strings, list elements that are not maps, and
    /// floats.
    fn check_keys(&mut self, entries: &[(YamlNode, YamlNode)]) {
        for (key, value) in entries {
            let YamlValue::Text(name) = &key.value else {
                self.error(key.line, format!("config error, key is not of type string: {key}"));
                continue;
            };
            if !KEYS.contains(&name.as_str()) {
                self.error(key.line, format!("config error, unknown key '{name}'"));
                continue;
            }
            if name == "metadata" {
                continue;
            }
            match &value.value {
                YamlValue::Map(entries) => self.check_keys(entries),
                YamlValue::List(nodes) => {
                    for node in nodes {
                        if let YamlValue::Map(entries) = &node.value {
                            self.check_keys(entries);
                        } else {
                            let message = format!(
                                "config error, yaml file contains list of type other than map: {node}"
                            );
                            self.error(node.line, message);
                        }
                    }
                }
                YamlValue::Float(_) => self.error(value.line, "error checking config".into()),
                YamlValue::Null | YamlValue::Bool(..) | YamlValue::Integer(..) | YamlValue::Text(_) => {}
            }
        }
    }

    fn take_root(&mut self, root: &YamlNode) {
        if !matches!(root.value, YamlValue::Map(_) | YamlValue::Null) {
            self.wrong_type(root, "config.YamlRoot");
            return;
        }
        self.warn_about_ignored_keys(root, &["domain", "descriptors"], "at the top level");
        self.domain = self.text(root, "domain");
        self.descriptors = self.descriptors(root);
    }

    fn descriptors(&mut self, parent: &YamlNode) -> Vec<Descriptor> {
        self.list(parent, "descriptors", "[]config.YamlDescriptor")
            .iter()
            .map(|node| self.descriptor(node))
            .collect()
    }

    fn descriptor(&mut self, node: &YamlNode) -> Descriptor {
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
            self.error(metadata.line, message);
        }
        let limit = node.get("rate_limit").and_then(|node| self.limit(node, &mut rule));
        Descriptor {
            line: node.line,
            key: self.text(node, "key"),
            value: self.text(node, "value"),
            limit,
            rule,
            value_to_metric: self.flag(node, "value_to_metric"),
            share_threshold: self.flag(node, "share_threshold"),
            descriptors: self.descriptors(node),
        }
    }

    fn limit(&mut self, node: &YamlNode, rule: &mut Rule) -> Option<RateLimitEntry> {
        match node.value {
            YamlValue::Map(_) => {}
            YamlValue::Null => return None,
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
            line: node.line,
            requests_per_unit: self.count(node, "requests_per_unit"),
            unit: self.text(node, "unit"),
            unlimited: self.flag(node, "unlimited"),
        };
        if !limit.unlimited && node.get("requests_per_unit").is_none() {
            self.warnings.push((
                node.line,
                "rate_limit has no requests_per_unit, so every request is denied; add it".into(),
            ));
        }
        Some(limit)
    }

    /// Warns about keys that are accepted but have no meaning at this level.
    fn warn_about_ignored_keys(&mut self, node: &YamlNode, known: &[&str], place: &str) {
        let YamlValue::Map(entries) = &node.value else { return };
        for (key, _) in entries {
            if let YamlValue::Text(name) = &key.value
                && !known.contains(&name.as_str())
            {
                let home = match name.as_str() {
                    name if RATE_LIMIT_KEYS.contains(&name) => "; move it into a rate_limit",
                    name if DESCRIPTOR_KEYS.contains(&name) => "; move it into a descriptor",
                    _ => "",
                };
                self.warnings.push((key.line, format!("`{name}` is ignored {place}{home}")));
            }
        }
    }

    fn metadata(&self, node: &YamlNode) -> Result<Map<String, serde_json::Value>, String> {
        match json(node).map_err(|message| format!("error parsing metadata: {message}"))? {
            serde_json::Value::Object(map) => Ok(map),
            serde_json::Value::Null => Ok(Map::new()),
            _ => Err(unmarshal(node, "map[string]interface {}")),
        }
    }

    fn text(&mut self, parent: &YamlNode, key: &str) -> String {
        let Some(node) = parent.get(key) else { return String::new() };
        if matches!(node.value, YamlValue::List(_) | YamlValue::Map(_)) {
            self.wrong_type(node, "string");
        }
        node.scalar().unwrap_or_default().to_owned()
    }

    fn flag(&mut self, parent: &YamlNode, key: &str) -> bool {
        match parent.get(key).map(|node| (node, &node.value)) {
            None | Some((_, YamlValue::Null)) => false,
            Some((_, YamlValue::Bool(flag, _))) => *flag,
            Some((node, _)) => {
                self.wrong_type(node, "bool");
                false
            }
        }
    }

    fn count(&mut self, parent: &YamlNode, key: &str) -> u32 {
        let Some(node) = parent.get(key) else { return 0 };
        match &node.value {
            YamlValue::Null => 0,
            YamlValue::Integer(number, _) if u32::try_from(*number).is_ok() => {
                u32::try_from(*number).unwrap_or_default()
            }
            _ => {
                self.wrong_type(node, "uint32");
                0
            }
        }
    }

    fn list<'n>(&mut self, parent: &'n YamlNode, key: &str, type_name: &str) -> &'n [YamlNode] {
        match parent.get(key).map(|node| (node, &node.value)) {
            None | Some((_, YamlValue::Null)) => &[],
            Some((_, YamlValue::List(nodes))) => nodes,
            Some((node, _)) => {
                self.wrong_type(node, type_name);
                &[]
            }
        }
    }

    fn wrong_type(&mut self, node: &YamlNode, type_name: &str) {
        self.error(node.line, unmarshal(node, type_name));
    }

    fn error(&mut self, line: u64, message: String) {
        self.errors.push((line, message));
    }
}

/// The error for a value of the wrong type.
fn unmarshal(node: &YamlNode, type_name: &str) -> String {
    let mut message =
        format!("error loading config file: yaml: unmarshal errors: line {}: cannot unmarshal ", node.line);
    message += match node.value {
        YamlValue::Null => "!!null",
        YamlValue::Bool(..) => "!!bool",
        YamlValue::Integer(..) => "!!int",
        YamlValue::Float(_) => "!!float",
        YamlValue::Text(_) => "!!str",
        YamlValue::List(_) => "!!seq",
        YamlValue::Map(_) => "!!map",
    };
    if let Some(text) = node.scalar() {
        // envoyproxy/ratelimit's YAML reader shortens it this way.
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
fn json(node: &YamlNode) -> Result<serde_json::Value, String> {
    use serde_json::Value as Json;
    Ok(match &node.value {
        YamlValue::Null => Json::Null,
        YamlValue::Bool(flag, _) => (*flag).into(),
        #[allow(clippy::cast_precision_loss)] // a Struct has doubles only
        YamlValue::Integer(number, _) => match i64::try_from(*number) {
            Ok(number) => number.into(),
            Err(_) => (*number as f64).into(),
        },
        YamlValue::Float(text) => {
            let plain: String = text.chars().filter(|c| *c != '_').collect();
            plain.parse::<f64>().map_or_else(|_| text.as_str().into(), Into::into)
        }
        YamlValue::Text(text) => text.as_str().into(),
        YamlValue::List(nodes) => nodes.iter().map(json).collect::<Result<Vec<_>, _>>()?.into(),
        YamlValue::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                // `no`, `y` and `5` are strings here, since a Struct has no other keys.
                let name = key.scalar().ok_or_else(|| format!("key is not of type string: {key}"))?;
                map.insert(name.to_owned(), json(value)?);
            }
            map.into()
        }
    })
}

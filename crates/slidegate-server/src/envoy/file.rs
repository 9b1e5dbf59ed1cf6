//! One file: a domain and its descriptors, refused in the reference's words.
//!
//! The reference looks through a file twice. First at its keys, which are the same ones at every place: `descriptors`
//! within a `rate_limit` passes, and then means nothing. We say so, see [`Read::warnings`]. Then at what the values are.
//! It stops at the first mistake and names no line; here all are told, each with its line behind the same words.

use std::fmt::Write as _;

use serde_json::Map;

use super::rule::{Rate, Rule, Unit};
use super::yaml::{self, Node, Value};

/// Keys that may stand anywhere. What is below `metadata` is free.
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
/// Keys that mean something in a descriptor.
const OF_DESCRIPTOR: [&str; 10] = [
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
/// Keys that mean something in a `rate_limit`.
const OF_LIMIT: [&str; 5] = ["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// A file that was read, with what may still be wrong in it.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) domain: String,
    pub(super) domain_line: u64,
    pub(super) descriptors: Vec<Descriptor>,
    /// What is wrong, each with its line.
    pub(super) mistakes: Vec<(u64, String)>,
    /// What is allowed and most likely not what was meant, each with its line.
    pub(super) warnings: Vec<(u64, String)>,
}

/// A descriptor of a file. What its limit is, is read when the path to it is known, for the errors name it.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) line: u64,
    /// May be empty, which is refused later.
    pub(super) key: String,
    /// Empty if it has none.
    pub(super) value: String,
    pub(super) limit: Option<Limit>,
    /// What stands beside the limit.
    pub(super) rule: Rule,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) descriptors: Vec<Self>,
}

/// A `rate_limit` as it stands.
#[derive(Debug, Default)]
pub(super) struct Limit {
    pub(super) line: u64,
    requests_per_unit: u32,
    unit: String,
    unlimited: bool,
}

impl Limit {
    /// The limit, `None` being unlimited.
    pub(super) fn rate(&self) -> Result<Option<Rate>, String> {
        match (self.unlimited, Unit::from_name(&self.unit)) {
            (false, Some(unit)) => Ok(Some(Rate { requests_per_unit: self.requests_per_unit, unit })),
            (true, None) => Ok(None),
            (true, Some(_)) => Err("should not specify rate limit unit when unlimited".into()),
            (false, None) => Err(format!("invalid rate limit unit '{}'", self.unit)),
        }
    }
}

/// Reads a file's text.
pub(super) fn read(text: &str) -> Read {
    let mut read = Read::default();
    let root = match yaml::read(text) {
        Ok(root) => root,
        Err(error) => {
            let message = format!("error loading config file: yaml: line {}: {}", error.line, error.message);
            read.mistakes.push((error.line, message));
            return read;
        }
    };
    if let Value::Map(entries) = &root.value {
        read.check_keys(entries);
    }
    if read.mistakes.is_empty() {
        read.domain_line = root.get("domain").map_or(1, |node| node.line);
        read.take_root(&root);
    }
    read
}

impl Read {
    /// Keys that are no text or unknown, lists of something else than maps, numbers that are not whole.
    fn check_keys(&mut self, entries: &[(Node, Node)]) {
        for (key, value) in entries {
            let Value::Text(name) = &key.value else {
                self.mistake(key.line, format!("config error, key is not of type string: {key}"));
                continue;
            };
            if !KEYS.contains(&name.as_str()) {
                self.mistake(key.line, format!("config error, unknown key '{name}'"));
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
                            let message = format!(
                                "config error, yaml file contains list of type other than map: {node}"
                            );
                            self.mistake(node.line, message);
                        }
                    }
                }
                Value::Float(_) => self.mistake(value.line, "error checking config".into()),
                Value::Nothing | Value::Flag(..) | Value::Whole(..) | Value::Text(_) => {}
            }
        }
    }

    fn take_root(&mut self, root: &Node) {
        if !matches!(root.value, Value::Map(_) | Value::Nothing) {
            self.wrong_kind(root, "config.YamlRoot");
            return;
        }
        self.warn_of_idle_keys(root, &["domain", "descriptors"], "beside `domain`");
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
        self.warn_of_idle_keys(node, &OF_DESCRIPTOR, "in a descriptor");
        let mut rule = Rule {
            shadow_mode: self.flag(node, "shadow_mode"),
            quota_mode: self.flag(node, "quota_mode"),
            detailed_metric: self.flag(node, "detailed_metric"),
            ..Rule::default()
        };
        if let Some(metadata) = node.get("metadata")
            && let Err(message) = self.metadata(metadata).and_then(|map| rule.take_metadata(map))
        {
            self.mistake(metadata.line, message);
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

    fn limit(&mut self, node: &Node, rule: &mut Rule) -> Option<Limit> {
        match node.value {
            Value::Map(_) => {}
            Value::Nothing => return None,
            _ => {
                self.wrong_kind(node, "config.YamlRateLimit");
                return None;
            }
        }
        self.warn_of_idle_keys(node, &OF_LIMIT, "in a rate_limit");
        rule.name = self.text(node, "name");
        let replaces = self.list(node, "replaces", "[]config.yamlReplaces");
        rule.replaces = replaces.iter().map(|node| self.text(node, "name")).collect();
        let limit = Limit {
            line: node.line,
            requests_per_unit: self.count(node, "requests_per_unit"),
            unit: self.text(node, "unit"),
            unlimited: self.flag(node, "unlimited"),
        };
        if !limit.unlimited && node.get("requests_per_unit").is_none() {
            self.warnings.push((node.line, "rate_limit has no requests_per_unit, so nothing passes".into()));
        }
        Some(limit)
    }

    /// Tells of keys that pass and mean nothing where they stand.
    fn warn_of_idle_keys(&mut self, node: &Node, known: &[&str], place: &str) {
        let Value::Map(entries) = &node.value else { return };
        for (key, _) in entries {
            if let Value::Text(name) = &key.value
                && !known.contains(&name.as_str())
            {
                let home = match name.as_str() {
                    name if OF_LIMIT.contains(&name) => "; it belongs in a rate_limit",
                    name if OF_DESCRIPTOR.contains(&name) => "; it belongs in a descriptor",
                    _ => "",
                };
                self.warnings.push((key.line, format!("`{name}` means nothing {place}{home}")));
            }
        }
    }

    fn metadata(&self, node: &Node) -> Result<Map<String, serde_json::Value>, String> {
        match json(node).map_err(|message| format!("error parsing metadata: {message}"))? {
            serde_json::Value::Object(map) => Ok(map),
            serde_json::Value::Null => Ok(Map::new()),
            _ => Err(unmarshal(node, "map[string]interface {}")),
        }
    }

    fn text(&mut self, parent: &Node, key: &str) -> String {
        let Some(node) = parent.get(key) else { return String::new() };
        if matches!(node.value, Value::List(_) | Value::Map(_)) {
            self.wrong_kind(node, "string");
        }
        node.scalar().unwrap_or_default().to_owned()
    }

    fn flag(&mut self, parent: &Node, key: &str) -> bool {
        match parent.get(key).map(|node| (node, &node.value)) {
            None | Some((_, Value::Nothing)) => false,
            Some((_, Value::Flag(flag, _))) => *flag,
            Some((node, _)) => {
                self.wrong_kind(node, "bool");
                false
            }
        }
    }

    fn count(&mut self, parent: &Node, key: &str) -> u32 {
        let Some(node) = parent.get(key) else { return 0 };
        match &node.value {
            Value::Nothing => 0,
            Value::Whole(number, _) if u32::try_from(*number).is_ok() => {
                u32::try_from(*number).unwrap_or_default()
            }
            _ => {
                self.wrong_kind(node, "uint32");
                0
            }
        }
    }

    fn list<'n>(&mut self, parent: &'n Node, key: &str, kind: &str) -> &'n [Node] {
        match parent.get(key).map(|node| (node, &node.value)) {
            None | Some((_, Value::Nothing)) => &[],
            Some((_, Value::List(nodes))) => nodes,
            Some((node, _)) => {
                self.wrong_kind(node, kind);
                &[]
            }
        }
    }

    fn wrong_kind(&mut self, node: &Node, kind: &str) {
        self.mistake(node.line, unmarshal(node, kind));
    }

    fn mistake(&mut self, line: u64, message: String) {
        self.mistakes.push((line, message));
    }
}

/// The value is not of the kind that its key takes.
fn unmarshal(node: &Node, kind: &str) -> String {
    let mut told =
        format!("error loading config file: yaml: unmarshal errors: line {}: cannot unmarshal ", node.line);
    told += match node.value {
        Value::Nothing => "!!null",
        Value::Flag(..) => "!!bool",
        Value::Whole(..) => "!!int",
        Value::Float(_) => "!!float",
        Value::Text(_) => "!!str",
        Value::List(_) => "!!seq",
        Value::Map(_) => "!!map",
    };
    if let Some(text) = node.scalar() {
        // As the reference's reader shortens it.
        let shown: String = if text.chars().count() > 10 {
            text.chars().take(7).chain("...".chars()).collect()
        } else {
            text.into()
        };
        let _ = write!(told, " `{shown}`");
    }
    told + " into " + kind
}

/// Free values for a protocol-buffer Struct, whose keys are text and whose numbers are doubles.
fn json(node: &Node) -> Result<serde_json::Value, String> {
    use serde_json::Value as Json;
    Ok(match &node.value {
        Value::Nothing => Json::Null,
        Value::Flag(flag, _) => (*flag).into(),
        #[allow(clippy::cast_precision_loss)] // a Struct has doubles only
        Value::Whole(number, _) => match i64::try_from(*number) {
            Ok(number) => number.into(),
            Err(_) => (*number as f64).into(),
        },
        Value::Float(text) => {
            let plain: String = text.chars().filter(|c| *c != '_').collect();
            plain.parse::<f64>().map_or_else(|_| text.as_str().into(), Into::into)
        }
        Value::Text(text) => text.as_str().into(),
        Value::List(nodes) => nodes.iter().map(json).collect::<Result<Vec<_>, _>>()?.into(),
        Value::Map(entries) => {
            let mut map = Map::new();
            for (key, value) in entries {
                // `no`, `y` and `5` are texts here, as a Struct has no other keys.
                let name = key.scalar().ok_or_else(|| format!("key is not of type string: {key}"))?;
                map.insert(name.to_owned(), json(value)?);
            }
            map.into()
        }
    })
}

//! A map of the config, for checks across its keys.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::check::Checker;
use crate::errors::Findings;
use crate::schema::Schema;
use crate::words::join;
use crate::yaml::{Node, Position};

/// A map of the config, with its name for errors. A missing section has no keys.
#[derive(Debug, Clone)]
pub struct Section<'n> {
    pub(crate) node: Option<&'n Node>,
    /// The name for errors, such as "policy `per-user`"; empty for the whole config.
    pub place: String,
    pub(crate) position: Position,
    pub(crate) findings: &'n Findings,
}

impl<'n> Section<'n> {
    /// The section of a map. Mistakes are added to `findings`, with `place` before them.
    #[must_use]
    pub fn new(node: &'n Node, place: String, findings: &'n Findings) -> Self {
        Self { node: Some(node), place, position: node.position, findings }
    }

    /// Reads the section as a struct, and as JSON in which equal values are equal. `change` may edit
    /// the JSON. Reports mistakes and leaves out invalid values; returns `None` if a required key is
    /// missing or invalid.
    pub fn read<T: DeserializeOwned>(
        &self,
        schema: &Schema,
        change: impl FnOnce(&mut Json),
    ) -> Option<(T, Json)> {
        let Self { node, place, position, findings } = self;
        let mut json = Checker { findings, schema }.check((*node)?, &schema.json, place, "")?;
        change(&mut json);
        let value = T::deserialize(&json).map_err(|error| findings.add(*position, error)).ok()?;
        Some((value, json))
    }

    /// A section that is an element of a list.
    #[must_use]
    pub fn element(&self, node: &'n Node, place: String) -> Self {
        Self::new(node, place, self.findings)
    }

    /// The section under a key. An invalid section has no keys.
    #[must_use]
    pub fn child(&self, key: &str) -> Self {
        let node = self.get(key).filter(|node| !node.is_rejected.get());
        let position = node.map_or(self.position, |node| node.position);
        Self { node, position, place: join(&self.place, key), findings: self.findings }
    }

    /// The value of a key, valid or not.
    pub fn get(&self, key: &str) -> Option<&'n Node> {
        self.node?.get(key)
    }

    /// The elements of the list under a key.
    pub fn elements(&self, key: &str) -> &'n [Node] {
        self.get(key).map_or(&[], Node::elements)
    }

    /// The keys and values.
    pub fn entries(&self) -> &'n [(Node, Node)] {
        self.node.map_or(&[], Node::entries)
    }

    /// Whether the section has this key, even if it is invalid or misspelt.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some() || self.has_rejected(&[key])
    }

    /// Whether one of these keys has an invalid value, or is misspelt.
    pub fn has_rejected(&self, keys: &[&str]) -> bool {
        let mut rejected = self.entries().iter().filter(|(_, value)| value.is_rejected.get());
        rejected.any(|(key, value)| {
            let names = key.scalar().into_iter().chain(value.meant.get().map(String::as_str));
            names.into_iter().any(|name| keys.contains(&name))
        })
    }

    /// Whether no mistake has been reported so far.
    pub fn is_valid_so_far(&self) -> bool {
        self.findings.is_empty()
    }

    /// Reports a mistake at the line of this key's value, or else the section's.
    pub fn report(&self, key: &str, message: impl Display) {
        let position = self.get(key).map_or(self.position, |node| node.position);
        let message = message.to_string();
        // Some errors name their place already.
        let has_place = message.starts_with(&self.place);
        self.findings.add(position, if has_place { message } else { join(&self.place, &message) });
    }

    /// Reports that a key's value is invalid.
    pub fn invalid(&self, key: &str, why: impl Display) {
        self.report(key, format_args!("invalid {key}: {why}"));
    }

    /// Reports `key` if it needs `other`, which is missing.
    pub fn check_pair(&self, key: &str, other: &str, why: &str) {
        if self.has(key) && !self.has(other) {
            self.invalid(key, format_args!("needs {other}; {why}"));
        }
    }
}

//! A map of the file, for checks across its keys: what it has, and what is wrong in it.

use std::fmt::Display;

use crate::errors::Findings;
use crate::foreign;
use crate::yaml::{Excerpt, Node, Position};

/// A map of the file, with its name in errors. A missing section has no keys.
#[derive(Debug, Clone)]
pub struct Section<'n> {
    pub(crate) node: Option<&'n Node>,
    /// Like "policy `per-user`"; empty for the whole file.
    pub(crate) place: String,
    pub(crate) position: Position,
    pub(crate) findings: &'n Findings,
}

impl<'n> Section<'n> {
    /// The section of a map. Mistakes in it go to `findings`, with `place` before them.
    #[must_use]
    pub fn new(node: &'n Node, place: String, findings: &'n Findings) -> Self {
        Self { node: Some(node), place, position: node.position, findings }
    }

    /// A section in a list.
    #[must_use]
    pub fn element(&self, node: &'n Node, place: String) -> Self {
        Self::new(node, place, self.findings)
    }

    /// The section under a key. It has no keys if it is invalid.
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

    /// Whether the file has this key, with a valid value or not, or misspelt.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some() || self.has_rejected(&[key])
    }

    /// Whether one of these keys has an invalid value, or is misspelt.
    pub fn has_rejected(&self, keys: &[&str]) -> bool {
        let rejected = self.entries().iter().filter(|(_, value)| value.is_rejected.get());
        let mut names = rejected.filter_map(|(key, _)| key.scalar());
        names.any(|name| keys.contains(&name) || suggest(name, keys).0.is_some())
    }

    /// Whether no mistake has been reported so far.
    pub fn is_valid_so_far(&self) -> bool {
        self.findings.is_empty()
    }

    /// Reports a mistake, at the line of this key's value or else the section's.
    pub fn report(&self, key: &str, message: impl Display) {
        let position = self.get(key).map_or(self.position, |node| node.position);
        let message = message.to_string();
        // Errors of the library contain the name of the policy.
        let has_place = message.starts_with(&self.place);
        self.findings.add(position, if has_place { message } else { join(&self.place, &message) });
    }

    /// Reports that a key's value is invalid.
    pub fn invalid(&self, key: &str, why: impl Display) {
        self.report(key, format_args!("invalid {key}: {why}"));
    }

    /// Reports a key that needs another one, if that is missing.
    pub fn check_pair(&self, key: &str, other: &str, why: &str) {
        if self.has(key) && !self.has(other) {
            self.invalid(key, format_args!("needs {other}; {why}"));
        }
    }
}

pub(crate) fn join(place: &str, rest: &str) -> String {
    if place.is_empty() || rest.is_empty() { format!("{place}{rest}") } else { format!("{place}: {rest}") }
}

/// A map in a list, by its name or its number: "policy `per-user`", "override 2".
pub(crate) fn element(list: &str, node: &Node, position: usize) -> String {
    let one = match list.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => list.strip_suffix('s').unwrap_or(list).to_owned(),
    };
    match node.get("name").and_then(Node::scalar).filter(|name| !name.is_empty()) {
        Some(name) => format!("{one} `{}`", Excerpt(name)),
        None => format!("{one} {}", position + 1),
    }
}

/// The key that was probably meant by an unknown one, and the fix for the error.
pub(crate) fn suggest<'k>(unknown: &str, known: &[&'k str]) -> (Option<&'k str>, String) {
    if let Some((meant, example)) = foreign::key(unknown, known) {
        return (Some(meant), format!("use `{meant}`, for example `{example}`"));
    }
    match nearest(unknown, known) {
        Some(meant) => (Some(meant), format!("did you mean `{meant}`?")),
        None => (None, format!("must be {}", any_of(known))),
    }
}

/// The known key that was most likely meant: a letter or two away, more in long keys. Known keys are
/// in lower case.
#[must_use]
pub fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key = key.to_lowercase().replace('-', "_");
    let distance = |known: &str| strsim::damerau_levenshtein(&key, known);
    let nearest = known.iter().copied().min_by_key(|known| distance(known));
    nearest.filter(|known| distance(known) <= 1 + known.len() / 5)
}

/// "`a`, `b` or `c`"
pub(crate) fn any_of(names: &[&str]) -> String {
    one_of(&names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>())
}

/// "a, b or c"
pub(crate) fn one_of(names: &[String]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::nearest;

    /// A suggestion that is far off is worse than the list.
    #[test]
    fn a_key_is_taken_for_a_known_one_only_if_it_is_near() {
        let known = ["name", "when", "scope", "limit", "window", "algorithm", "overrides", "ipv6_prefix"];
        for (key, meant) in [
            ("windw", Some("window")),
            ("Window", Some("window")),
            ("scpoe", Some("scope")),
            ("overide", Some("overrides")),
            ("ipv6-prefix", Some("ipv6_prefix")),
            ("algoritm", Some("algorithm")),
            ("limits", Some("limit")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(key, &known), meant, "{key}");
        }
    }
}

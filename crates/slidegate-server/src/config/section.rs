//! A map of the file, read key by key: what is missing, unknown or of another kind is found and said.

use std::fmt::Display;

use super::file::{Entry, Node, Shown, Value};
use super::{Findings, foreign};

/// A map of the file and how errors call it.
#[derive(Debug)]
pub(super) struct Section<'f> {
    /// Like "policy `per-user`"; empty for the whole file.
    place: String,
    line: u64,
    entries: &'f [Entry],
    /// Keys that an unknown one was taken for: it would say nothing new that they are missing.
    misspelt: Vec<&'static str>,
}

impl<'f> Section<'f> {
    /// The map that `node` is, empty where nothing is written. Anything else is found to be wrong.
    pub(super) fn of(node: &'f Node, place: String, example: &str, findings: &mut Findings) -> Option<Self> {
        let entries = match &node.value {
            Value::Map(entries) => entries.as_slice(),
            Value::Nothing => &[],
            _ => {
                let place = if place.is_empty() { "the file" } else { &place };
                let message =
                    format_args!("{place} is {node}; write keys and values, for example `{example}`");
                findings.add(node.line, message);
                return None;
            }
        };
        Some(Self { place, line: node.line, entries, misspelt: Vec::new() })
    }

    /// Finds every key that is not `known`.
    pub(super) fn expect_only(&mut self, known: &[&'static str], findings: &mut Findings) {
        for entry in self.entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
            let way_out = if let Some((ours, way_out)) = foreign::key(&entry.key, known) {
                self.misspelt.push(ours);
                way_out
            } else if let Some(nearest) = nearest(&entry.key, known) {
                self.misspelt.push(nearest);
                format!("did you mean `{nearest}`?")
            } else {
                format!("known are {}", list(known))
            };
            self.find(entry.line, format_args!("unknown key `{}`; {way_out}", Shown(&entry.key)), findings);
        }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&'f Node> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The value of a key as `read` understands it. `None` when there is none, or a wrong one, which is then found.
    pub(super) fn read<T>(
        &self,
        key: &str,
        findings: &mut Findings,
        read: impl FnOnce(&'f Node) -> Result<T, String>,
    ) -> Option<T> {
        let node = self.get(key)?;
        read(node).map_err(|message| self.find(node.line, message, findings)).ok()
    }

    /// Finds it if a key is missing.
    pub(super) fn expect(&self, key: &str, way_out: &str, findings: &mut Findings) {
        if self.get(key).is_none() && !self.is_misspelt(key) {
            self.find(self.line, format_args!("{key} is missing; {way_out}"), findings);
        }
    }

    /// Finds something in this section.
    pub(super) fn find(&self, line: u64, message: impl Display, findings: &mut Findings) {
        let colon = if self.place.is_empty() { "" } else { ": " };
        findings.add(line, format_args!("{}{colon}{message}", self.place));
    }

    /// Whether an unknown key was taken for this one.
    pub(super) fn is_misspelt(&self, key: &str) -> bool {
        self.misspelt.contains(&key)
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The line of a key's value, or the section's where it has none.
    pub(super) fn line_of(&self, key: &str) -> u64 {
        self.get(key).map_or(self.line, |node| node.line)
    }
}

/// A text, quoted or not. A number counts as its digits.
pub(super) fn text<'f>(key: &str, node: &'f Node, way_out: &str) -> Result<&'f str, String> {
    node.scalar().filter(|text| !text.is_empty()).ok_or_else(|| wrong(key, node, way_out))
}

/// A whole number without quotes: digits, with `_` between them if wanted.
///
/// No leading zero, which is octal to some readers of YAML and decimal to others.
pub(super) fn whole(key: &str, node: &Node, way_out: &str) -> Result<u64, String> {
    let written = match &node.value {
        Value::Number(written) => written,
        Value::Text(text) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
            return Err(format!("{key} is the text `{}`; write the number without quotes", Shown(text)));
        }
        _ => return Err(wrong(key, node, way_out)),
    };
    let digits: String = written.chars().filter(|c| *c != '_').collect();
    let is_plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| is_plain).ok_or_else(|| wrong(key, node, way_out))
}

/// `true` or `false`.
pub(super) fn flag(key: &str, node: &Node) -> Result<bool, String> {
    if let Value::Flag(flag, _) = node.value {
        Ok(flag)
    } else {
        Err(wrong(key, node, "write `true` or `false`"))
    }
}

/// The value of `key` is not what it must be.
pub(super) fn wrong(key: &str, node: &Node, way_out: &str) -> String {
    format!("{key} is {node}; {way_out}")
}

/// The known key that was most likely meant: a letter or two away, more in long keys.
fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    let key = key.to_lowercase().replace('-', "_");
    let distance = |known: &str| strsim::damerau_levenshtein(&key, known);
    known
        .iter()
        .copied()
        .min_by_key(|known| distance(known))
        .filter(|known| distance(known) <= 1 + known.len() / 5)
}

/// "`a`, `b`"
pub(super) fn list<N: AsRef<str>>(names: &[N]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::nearest;
    use crate::config::tests::{error, policy_error};

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

    /// A key that was only misspelt is not missing as well.
    #[test]
    fn a_misspelt_key_is_one_mistake() {
        assert_eq!(policy_error("limit: 5, windw: 1s"), "unknown key `windw`; did you mean `window`?");
        assert_eq!(
            error("polices: []\n"),
            "slidegate.yaml:1: unknown key `polices`; did you mean `policies`?"
        );
    }
}

//! `overrides:` keys of a policy with a quota of their own.
//!
//! What an override does not say, it has from its policy: the algorithm always, the window and the burst if left out.

use std::net::IpAddr;

use slidegate::Quota;

use super::Findings;
use super::file::{Entry, Node, Shown, Value};
use super::policy::{self, Scope, Terms};
use super::section::{Section, list, whole, wrong};

/// The values of one key, one for each attribute of the scope.
type Key = Vec<Part>;

/// The value of one attribute.
#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Address(IpAddr),
}

impl Part {
    /// As the library takes it.
    pub(super) fn borrowed(&self) -> slidegate::Value<'_> {
        match self {
            Self::Text(text) => text.into(),
            Self::Address(ip) => (*ip).into(),
        }
    }
}

/// Reads every override of a policy.
pub(super) fn overrides(
    parent: &Section<'_>,
    terms: &Terms,
    scope: &Scope<'_>,
    findings: &mut Findings,
) -> Vec<(Key, Quota)> {
    let Some(node) = parent.get("overrides") else { return Vec::new() };
    let reader = Reader { terms, scope };
    let attributes = &scope.attributes;
    let read = match &node.value {
        _ if attributes.is_empty() => Err(
            "overrides stand without a scope, so there is one key only; write for example `scope: [user]`"
                .into(),
        ),
        Value::Map(_) if attributes.len() > 1 => Err(format!(
            "overrides is a map and the scope has {} attributes; write a list, for example `[{{key: [{}], limit: 1000}}]`",
            attributes.len(),
            attributes.join("-value, ") + "-value"
        )),
        Value::Map(entries) => {
            Ok(entries.iter().filter_map(|entry| reader.short(entry, parent, findings)).collect())
        }
        Value::List(nodes) => {
            let numbered = nodes.iter().enumerate();
            Ok(numbered.filter_map(|(at, node)| reader.long(node, at + 1, parent, findings)).collect())
        }
        _ => Err(format!("overrides is {node}; write for example `overrides: {{alice: 1000, bob: 50/1s}}`")),
    };
    read.unwrap_or_else(|message| {
        parent.find(node.line, message, findings);
        Vec::new()
    })
}

/// What every override of a policy is read by.
struct Reader<'f> {
    terms: &'f Terms,
    scope: &'f Scope<'f>,
}

impl Reader<'_> {
    /// `alice: 1000` or `alice: 1000/1m`. `None` if something is wrong, which is then found.
    fn short(&self, entry: &Entry, parent: &Section<'_>, findings: &mut Findings) -> Option<(Key, Quota)> {
        let attribute = self.scope.attributes.first()?;
        let read = self
            .part(&entry.key, attribute)
            .and_then(|part| Ok((vec![part], self.short_quota(&entry.value)?)));
        match read {
            Ok((key, quota)) => Some((key, self.terms.apply(quota?, None))),
            Err(message) => {
                let message = format_args!("override `{}`: {message}", Shown(&entry.key));
                parent.find(entry.value.line, message, findings);
                None
            }
        }
    }

    /// `None` if the window is the policy's and that is wrong.
    fn short_quota(&self, node: &Node) -> Result<Option<Quota>, String> {
        const SHORT: &str = "give a limit or a quota, for example `1000` or `1000/1m`";
        match &node.value {
            Value::Number(_) => {
                let limit = whole("limit", node, SHORT)?;
                Ok(self.terms.window().and_then(|window| Quota::new(limit, window).ok()))
            }
            Value::Text(_) => policy::quota_text(node).map(Some),
            _ => Err(wrong("quota", node, SHORT)),
        }
    }

    /// `{key: alice, limit: 1000}`. `None` if something is wrong, which is then found.
    fn long(
        &self,
        node: &Node,
        at: usize,
        parent: &Section<'_>,
        findings: &mut Findings,
    ) -> Option<(Key, Quota)> {
        let place = format!("{}: override {at}", parent.place());
        let mut section = Section::of(node, place, "key: alice", findings)?;
        section.expect_only(&["key", "limit", "window", "quota", "burst"], findings);
        let key = self.key(&section, findings);
        let burst = section.read("burst", findings, |node| policy::burst(node, self.terms.algorithm()));
        let (quota, _) = policy::quota(&section, Some(self.terms), findings);
        key.zip(quota.map(|quota| self.terms.apply(quota, burst)))
    }

    fn key(&self, section: &Section<'_>, findings: &mut Findings) -> Option<Key> {
        let example = format!("write one value for each of the scope: {}", list(&self.scope.attributes));
        section.expect("key", &example, findings);
        section.read("key", findings, |node| {
            let nodes = node.one_or_many();
            if nodes.len() != self.scope.attributes.len() {
                return Err(format!(
                    "key has {} values and the scope {} attributes; {example}",
                    nodes.len(),
                    self.scope.attributes.len()
                ));
            }
            let value = |(node, attribute): (&Node, &String)| {
                let text = node.scalar().ok_or_else(|| format!("key is {node}; {example}"))?;
                self.part(text, attribute)
            };
            nodes.iter().zip(&self.scope.attributes).map(value).collect()
        })
    }

    fn part(&self, text: &str, attribute: &str) -> Result<Part, String> {
        if self.scope.is_address(attribute) {
            let address = text.parse().map(Part::Address);
            return address.map_err(|_| {
                format!(
                    "`{}` is not an address, which {attribute} is; write for example `192.0.2.1`",
                    Shown(text)
                )
            });
        }
        if text.contains('*') {
            return Err(format!(
                "`{}` would be one key with a `*` in it; name each key, or write a policy with `when: {{{attribute}: \
                 {{glob: ...}}}}`",
                Shown(text)
            ));
        }
        Ok(Part::Text(text.to_owned()))
    }
}

//! Descriptor matching: walks the levels of a domain, one level per entry of a descriptor.
//!
//! Nodes and entries are compared by key and value joined by an underscore. So a node with `key:
//! a_b` and no value also matches the entry `key: a, value: b`. There is no backtracking after a
//! match.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::{self, StatKey, node_name};
use super::rule::{Rate, Rule};
use crate::statistics::{LimitCounters, Statistics};

/// The descriptors below one node, or at the top of a domain.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// In the order of the files.
    pub(super) nodes: Vec<DescriptorNode>,
    by_name: HashMap<String, usize>,
    /// Nodes with a `*` in their name.
    wildcards: Vec<usize>,
}

/// A descriptor of the configuration.
#[derive(Debug)]
pub(super) struct DescriptorNode {
    pub(super) key: String,
    /// Empty if any value matches.
    pub(super) value: String,
    /// `key` or `key_value`.
    pub(super) name: String,
    /// All values of a wildcard share one counter.
    pub(super) share_threshold: bool,
    pub(super) value_to_metric: bool,
    pub(super) limit: Option<Limit>,
    pub(super) below: Level,
    /// File and line.
    pub(super) location: String,
}

/// The limit of a node.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// `None` is unlimited.
    pub(super) rate: Option<Rate>,
    pub(super) rule: Rule,
    /// Its policy; empty if unlimited.
    pub(super) policy: String,
    /// The name of its statistics without values from requests.
    pub(super) stat_key: StatKey,
    pub(super) counters: Arc<LimitCounters>,
}

/// How a node matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MatchKind {
    /// By key and value.
    Exact,
    /// By a wildcard.
    Wildcard,
    /// By key, for any value.
    AnyValue,
}

/// The match of one entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'e> {
    /// The level that was searched.
    pub(super) level: &'e Level,
    pub(super) found: Option<(&'e DescriptorNode, MatchKind)>,
}

/// The matches of a descriptor's entries, up to the first that matched nothing or the lowest level.
#[derive(Debug)]
pub(super) struct Walk<'e> {
    pub(super) steps: Vec<Step<'e>>,
    /// Entries of the descriptor.
    entries: usize,
}

impl Level {
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Names with a `*`, in the order in which they are tried.
    pub(super) fn wildcards(&self) -> impl Iterator<Item = &str> {
        self.wildcards.iter().map(|at| self.nodes[*at].name.as_str())
    }

    /// Adds a node. Its name must be new at this level.
    pub(super) fn push(&mut self, node: DescriptorNode) {
        let at = self.nodes.len();
        if node.name.contains('*') {
            self.wildcards.push(at);
        }
        let known = self.by_name.insert(node.name.clone(), at);
        assert!(known.is_none(), "names of one level differ");
        self.nodes.push(node);
    }

    /// The node for one entry.
    pub(super) fn find(&self, key: &str, value: &str) -> Option<(&DescriptorNode, MatchKind)> {
        // With an underscore even if the value is empty, as in envoyproxy/ratelimit.
        let asked = format!("{key}_{value}");
        let named = |name: &str, how| self.by_name.get(name).map(|at| (&self.nodes[*at], how));
        let by_pattern = || {
            let mut nodes = self.wildcards.iter().map(|at| &self.nodes[*at]);
            nodes.find(|node| matches(&node.name, &asked)).map(|node| (node, MatchKind::Wildcard))
        };
        named(&asked, MatchKind::Exact).or_else(by_pattern).or_else(|| named(key, MatchKind::AnyValue))
    }

    /// Attaches the counters of all limits at this level and below.
    pub(super) fn attach_counters(&mut self, statistics: &Statistics) {
        for node in &mut self.nodes {
            if let Some(limit) = &mut node.limit {
                limit.counters = statistics.named(&limit.stat_key);
            }
            node.below.attach_counters(statistics);
        }
    }

    /// The path to the first node with a rate, in the order of the files.
    pub(super) fn first_limit(&self) -> Option<Vec<&DescriptorNode>> {
        self.nodes.iter().find_map(|node| {
            let below = || Some([&[node], &*node.below.first_limit()?].concat());
            let has_rate = node.limit.as_ref().is_some_and(|limit| limit.rate.is_some());
            if has_rate { Some(vec![node]) } else { below() }
        })
    }

    /// Matches a descriptor's entries from this level on.
    pub(super) fn walk(&self, entries: &[(&str, &str)]) -> Walk<'_> {
        let mut level = self;
        let mut steps = Vec::with_capacity(entries.len().min(8));
        for (key, value) in entries {
            let found = level.find(key, value);
            steps.push(Step { level, found });
            match found {
                Some((node, _)) if !node.below.nodes.is_empty() => level = &node.below,
                _ => break,
            }
        }
        Walk { steps, entries: entries.len() }
    }
}

impl<'e> Walk<'e> {
    /// The node that the last entry matched.
    pub(super) fn end(&self) -> Option<&'e DescriptorNode> {
        let last = self.steps.last().filter(|_| self.steps.len() == self.entries)?;
        last.found.map(|(node, _)| node)
    }
}

impl Walk<'_> {
    /// The name of the statistics of one request's limit, where that depends on the request's
    /// values.
    pub(super) fn stat_key(&self, domain: &str, entries: &[(&str, &str)], detailed: bool) -> StatKey {
        let found = self.steps.iter().filter_map(|step| step.found).zip(entries);
        let names: Vec<_> = found
            .map(|((node, _), (key, value))| match node {
                DescriptorNode { share_threshold: true, name, .. } => name.clone(),
                _ if detailed || node.value_to_metric => node_name(key, value),
                DescriptorNode { name, .. } => name.clone(),
            })
            .collect();
        names::stat_key(domain, names.iter().map(String::as_str))
    }
}

/// Whether `text` matches `pattern`, in which each `*` matches any number of characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Taking the first match of each part leaves most for the next.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(tail)
}

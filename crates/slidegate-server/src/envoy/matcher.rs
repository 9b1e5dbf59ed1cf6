//! The matcher: goes down a domain's levels, one for each entry of a descriptor.
//!
//! A node is known by its key and value joined by an underscore, and so is what a request asks for: `key: a_b` without
//! a value answers to the entries of `key: a, value: b` as well. Once a branch is taken there is no way back.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::StatKey;
use super::rule::{Rate, Rule};
use super::statistics::{Counters, Statistics};

/// The descriptors below one node, or those of a whole domain.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// In the order of the files.
    pub(super) nodes: Vec<Node>,
    by_name: HashMap<String, usize>,
    /// Nodes with a `*` in their name.
    wildcards: Vec<usize>,
}

/// A descriptor of the configuration.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) key: String,
    /// Empty if any value will do.
    pub(super) value: String,
    /// `key` or `key_value`.
    pub(super) name: String,
    /// Counts all values of a wildcard together.
    pub(super) shares: bool,
    pub(super) value_to_metric: bool,
    pub(super) limit: Option<Limit>,
    pub(super) below: Level,
    /// Where it stands: a file and a line.
    pub(super) place: String,
}

/// The limit of a node.
#[derive(Debug, Default)]
pub(super) struct Limit {
    /// `None` is unlimited.
    pub(super) rate: Option<Rate>,
    pub(super) rule: Rule,
    /// The policy that counts it; empty if unlimited.
    pub(super) policy: String,
    /// What its statistics are called without values of requests.
    pub(super) stat_key: StatKey,
    pub(super) counters: Arc<Counters>,
}

/// How a node was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// By its key and value.
    Exact,
    /// By a pattern.
    Wildcard,
    /// By its key alone.
    AnyValue,
}

/// What was found for one entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'e> {
    /// Where it was looked for.
    pub(super) level: &'e Level,
    pub(super) found: Option<(&'e Node, How)>,
}

/// Goes down as far as entries and levels reach. No step follows one that found nothing.
#[derive(Debug)]
pub(super) struct Walk<'e> {
    pub(super) steps: Vec<Step<'e>>,
    /// Entries that were asked for.
    asked: usize,
}

impl Level {
    /// `key` or `key_value`.
    pub(super) fn name_of(key: &str, value: &str) -> String {
        if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Names with a `*`, in the order in which they are tried.
    pub(super) fn wildcards(&self) -> impl Iterator<Item = &str> {
        self.wildcards.iter().map(|at| self.nodes[*at].name.as_str())
    }

    /// Adds a node whose name is new here.
    pub(super) fn push(&mut self, node: Node) {
        let at = self.nodes.len();
        if node.name.contains('*') {
            self.wildcards.push(at);
        }
        let known = self.by_name.insert(node.name.clone(), at);
        assert!(known.is_none(), "names of one level differ");
        self.nodes.push(node);
    }

    /// The node for one entry.
    pub(super) fn find(&self, key: &str, value: &str) -> Option<(&Node, How)> {
        // With an underscore even where the value is empty.
        let asked = format!("{key}_{value}");
        let named = |name: &str, how| self.by_name.get(name).map(|at| (&self.nodes[*at], how));
        let by_pattern = || {
            let mut nodes = self.wildcards.iter().map(|at| &self.nodes[*at]);
            nodes.find(|node| matches(&node.name, &asked)).map(|node| (node, How::Wildcard))
        };
        named(&asked, How::Exact).or_else(by_pattern).or_else(|| named(key, How::AnyValue))
    }

    /// Finds the counters of all limits from here on.
    pub(super) fn count_in(&mut self, statistics: &Statistics) {
        for node in &mut self.nodes {
            if let Some(limit) = &mut node.limit {
                limit.counters = statistics.named(&limit.stat_key);
            }
            node.below.count_in(statistics);
        }
    }

    /// The way to the first node with a limit to count by, in the order of the files.
    pub(super) fn first_limit(&self) -> Option<Vec<&Node>> {
        self.nodes.iter().find_map(|node| {
            let below = || Some([&[node], &*node.below.first_limit()?].concat());
            let has_rate = node.limit.as_ref().is_some_and(|limit| limit.rate.is_some());
            if has_rate { Some(vec![node]) } else { below() }
        })
    }

    /// Goes down from here.
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
        Walk { steps, asked: entries.len() }
    }
}

impl<'e> Walk<'e> {
    /// The node that the last entry led to.
    pub(super) fn end(&self) -> Option<&'e Node> {
        let last = self.steps.last().filter(|_| self.steps.len() == self.asked)?;
        last.found.map(|(node, _)| node)
    }
}

/// Whether `text` is `pattern`, in which each `*` stands for any characters or none.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    // Each part where it first fits leaves most for the next.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(tail)
}

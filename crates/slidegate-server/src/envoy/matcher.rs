//! Descriptor matching: walks the levels of a domain, one level per entry of a descriptor.
//!
//! Nodes and entries are compared by key and value joined with an underscore. So a node with `key:
//! a_b` and no value also matches the entry `key: a, value: b`. There is no backtracking after a
//! match.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::{self, StatKey, node_name};
use super::rule::{Rate, Rule};
use super::statistics::{LimitCounters, Statistics};

/// The descriptors below one node, or at the top of a domain.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    /// In the order of the files.
    pub(super) nodes: Vec<DescriptorNode>,
    by_name: HashMap<String, usize>,
    /// Indexes of nodes with a `*` in their name.
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
    pub(super) below: DescriptorLevel,
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
    /// The name of its statistics, without request values.
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
pub(super) struct MatchStep<'e> {
    /// The level that was searched.
    pub(super) level: &'e DescriptorLevel,
    pub(super) found: Option<(&'e DescriptorNode, MatchKind)>,
}

/// The matches of a descriptor's entries, up to the first entry without a match or the lowest
/// level.
#[derive(Debug)]
pub(super) struct Walk<'e> {
    pub(super) steps: Vec<MatchStep<'e>>,
    /// Number of entries of the descriptor.
    entries: usize,
}

impl DescriptorLevel {
    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Names with a `*`, in matching order.
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
            steps.push(MatchStep { level, found });
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
    /// The name of a request's limit in statistics, where it depends on request values.
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

#[cfg(test)]
mod tests {
    //! A naive model of descriptor matching, independent of the matcher and compared with it on
    //! random configs. It scans lists from the start and tries every way to match a wildcard.

    use std::fmt::Write as _;

    use proptest::prelude::*;

    use crate::envoy::{EnvoyConfig, Lookup, ReadOptions};

    /// A descriptor of a random config.
    #[derive(Debug, Clone)]
    struct Plain {
        key: String,
        value: String,
        has_limit: bool,
        flags: PlainFlags,
        below: Vec<Self>,
    }

    #[derive(Debug, Clone, Copy)]
    struct PlainFlags {
        shares: bool,
        value_to_metric: bool,
        detailed: bool,
    }

    impl Plain {
        fn name(&self) -> String {
            if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
        }

        /// The limit of a descriptor is its index in the file, so that tests can identify it.
        fn write(&self, indent: usize, numbers: &mut u32, out: &mut String) {
            let pad = " ".repeat(indent);
            let PlainFlags { shares, value_to_metric, detailed } = self.flags;
            let _ = writeln!(out, "{pad}- key: '{}'\n{pad}  value: '{}'", self.key, self.value);
            let _ = writeln!(
                out,
                "{pad}  value_to_metric: {value_to_metric}\n{pad}  detailed_metric: {detailed}"
            );
            let _ = writeln!(out, "{pad}  share_threshold: {}", shares && self.name().contains('*'));
            *numbers += 1;
            if self.has_limit {
                let _ = writeln!(out, "{pad}  rate_limit: {{unit: hour, requests_per_unit: {numbers}}}");
            }
            if !self.below.is_empty() {
                let _ = writeln!(out, "{pad}  descriptors:");
                self.below.iter().for_each(|below| below.write(indent + 2, numbers, out));
            }
        }

        fn count(&self) -> u32 {
            1 + self.below.iter().map(Self::count).sum::<u32>()
        }
    }

    /// Whether a wildcard pattern matches the text, by trying every way.
    fn fits(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', rest @ ..] => (0..=text.len()).any(|skipped| fits(rest, &text[skipped..])),
            [first, rest @ ..] => text.first() == Some(first) && fits(rest, &text[1..]),
        }
    }

    fn has_duplicates(level: &[Plain]) -> bool {
        let mut names: Vec<_> = level.iter().map(Plain::name).collect();
        names.sort();
        names.windows(2).any(|two| two[0] == two[1]) || level.iter().any(|plain| has_duplicates(&plain.below))
    }

    /// The expected match: the limit's index, the name of its statistics, and its counter's
    /// identity.
    type Met = (u32, String, Vec<(String, String)>);

    fn meet(top: &[Plain], entries: &[(&str, &str)]) -> Option<Met> {
        let (mut level, mut before) = (top, 0);
        let mut path: Vec<(&Plain, &str, &str)> = Vec::new();
        for (at, (key, value)) in entries.iter().enumerate() {
            let both = format!("{key}_{value}");
            let exact = level.iter().position(|plain| plain.name() == both);
            let wildcard = || {
                let fits = |plain: &Plain| {
                    plain.name().contains('*') && fits(plain.name().as_bytes(), both.as_bytes())
                };
                level.iter().position(fits)
            };
            let bare = || level.iter().position(|plain| plain.name() == *key);
            let found = exact.or_else(wildcard).or_else(bare)?;
            let plain = &level[found];
            let number = before + level[..found].iter().map(Plain::count).sum::<u32>() + 1;
            path.push((plain, key, value));
            if at + 1 == entries.len() {
                let detailed = plain.flags.detailed;
                let shared = |plain: &Plain| plain.flags.shares && plain.name().contains('*');
                let mut stat_key = "d".to_owned();
                for (plain, key, value) in &path {
                    stat_key.push('.');
                    if !shared(plain) && (detailed || plain.flags.value_to_metric) {
                        stat_key += key;
                        if !value.is_empty() {
                            stat_key.push('_');
                            stat_key += value;
                        }
                    } else {
                        stat_key += &plain.name();
                    }
                }
                let counted = path.iter().map(|(plain, key, value)| {
                    if shared(plain) {
                        (plain.name(), "shared".to_owned())
                    } else {
                        ((*key).to_owned(), format!("={value}"))
                    }
                });
                return plain.has_limit.then(|| (number, stat_key, counted.collect()));
            }
            if plain.below.is_empty() {
                return None;
            }
            (level, before) = (&plain.below, number);
        }
        None
    }

    /// Compares matcher and model on one config, for all of these descriptors.
    fn compare(top: &[Plain], all: &[Vec<(&str, &str)>]) {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        let mut numbers = 0;
        top.iter().for_each(|plain| plain.write(2, &mut numbers, &mut text));
        let files = [("edge.yaml".to_owned(), text.clone())];
        let envoy = match EnvoyConfig::parse(&files, ReadOptions::default()) {
            Ok(envoy) => envoy,
            Err(error) => {
                assert!(has_duplicates(top), "{error}\n{text}");
                return;
            }
        };
        assert!(!has_duplicates(top), "{text}");
        let mut counters = Vec::new();
        for entries in all {
            let met = match envoy.lookup("d", entries, None) {
                Lookup::Limited(hit) => Some(hit),
                _ => None,
            };
            let expected = meet(top, entries);
            let matched =
                met.as_ref().map(|hit| (hit.rate.requests_per_unit, hit.stat_key.text().to_owned()));
            let plain = expected.as_ref().map(|(number, stat_key, _)| (*number, stat_key.clone()));
            assert_eq!(matched, plain, "{entries:?} in\n{text}");
            if let Some((hit, (number, _, counted))) = met.zip(expected) {
                counters.push(((hit.policy.to_owned(), hit.key), (number, counted)));
            }
        }
        for (counter, plain) in &counters {
            for (other, other_plain) in &counters {
                assert_eq!(counter == other, plain == other_plain, "{counter:?} and {other:?} in\n{text}");
            }
        }
    }

    fn plains() -> impl Strategy<Value = Vec<Plain>> {
        let keys = prop::sample::select(vec!["a", "b", "a_x", "a*", "ab"]);
        let values = prop::sample::select(vec!["", "", "x", "y", "x*", "*", "*y", "x*y", "x*z*y", "x_y"]);
        let plain = (keys, values, any::<[bool; 4]>()).prop_map(|(key, value, [has_limit, a, b, c])| Plain {
            key: key.into(),
            value: value.into(),
            has_limit,
            flags: PlainFlags { shares: a, value_to_metric: b, detailed: c },
            below: Vec::new(),
        });
        let level = prop::collection::vec(plain.clone(), 1..5);
        level.prop_recursive(3, 40, 4, move |below| {
            let node = (plain.clone(), prop::option::of(below));
            let node = node.prop_map(|(plain, below)| Plain { below: below.unwrap_or_default(), ..plain });
            prop::collection::vec(node, 1..5)
        })
    }

    fn descriptors() -> impl Strategy<Value = Vec<Vec<(&'static str, &'static str)>>> {
        let keys = prop::sample::select(vec!["a", "a", "b", "a_x", "ab", "c"]);
        let values = prop::sample::select(vec!["", "x", "y", "xy", "xzy", "x_y", "q", "x*"]);
        prop::collection::vec(prop::collection::vec((keys, values), 0..4), 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Users of envoyproxy/ratelimit depend on every corner of its matching rules.
        #[test]
        fn random_descriptors_match_as_in_the_naive_model(top in plains(), all in descriptors()) {
            compare(&top, &all);
        }
    }
}

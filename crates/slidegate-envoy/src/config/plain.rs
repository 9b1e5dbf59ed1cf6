//! A naive model of descriptor matching, independent of the matcher, compared with it on random
//! configs.
//!
//! It scans lists from the start and tries every way to match a wildcard.

use std::fmt::Write as _;

use super::{EnvoyConfig, Lookup, ReadOptions};

/// A descriptor of a random config.
#[derive(Debug, Clone)]
pub(crate) struct Plain {
    pub(crate) key: String,
    pub(crate) value: String,
    pub(crate) has_limit: bool,
    pub(crate) flags: Flags,
    pub(crate) below: Vec<Self>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Flags {
    pub(crate) shares: bool,
    pub(crate) value_to_metric: bool,
    pub(crate) detailed: bool,
}

impl Plain {
    fn name(&self) -> String {
        if self.value.is_empty() { self.key.clone() } else { format!("{}_{}", self.key, self.value) }
    }

    /// The limit of a descriptor is its index in the file, so that tests can identify it.
    fn write(&self, indent: usize, numbers: &mut u32, out: &mut String) {
        let pad = " ".repeat(indent);
        let Flags { shares, value_to_metric, detailed } = self.flags;
        let _ = writeln!(out, "{pad}- key: '{}'\n{pad}  value: '{}'", self.key, self.value);
        let _ =
            writeln!(out, "{pad}  value_to_metric: {value_to_metric}\n{pad}  detailed_metric: {detailed}");
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

/// Whether a pattern with wildcards matches the text: every way is tried.
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

/// The expected match: the limit's index, the name of its statistics, and what identifies its
/// counter.
type Met = (u32, String, Vec<(String, String)>);

fn meet(top: &[Plain], entries: &[(&str, &str)]) -> Option<Met> {
    let (mut level, mut before) = (top, 0);
    let mut path: Vec<(&Plain, &str, &str)> = Vec::new();
    for (at, (key, value)) in entries.iter().enumerate() {
        let both = format!("{key}_{value}");
        let exact = level.iter().position(|plain| plain.name() == both);
        let wildcard = || {
            let fits =
                |plain: &Plain| plain.name().contains('*') && fits(plain.name().as_bytes(), both.as_bytes());
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

/// Compares the matcher with the model on one config, for all of these descriptors.
pub(crate) fn compare(top: &[Plain], all: &[Vec<(&str, &str)>]) {
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
        let matched = met.as_ref().map(|hit| (hit.rate.requests_per_unit, hit.stat_key.text().to_owned()));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plains() -> impl Strategy<Value = Vec<Plain>> {
        let keys = prop::sample::select(vec!["a", "b", "a_x", "a*", "ab"]);
        let values = prop::sample::select(vec!["", "", "x", "y", "x*", "*", "*y", "x*y", "x*z*y", "x_y"]);
        let plain = (keys, values, any::<[bool; 4]>()).prop_map(|(key, value, [has_limit, a, b, c])| Plain {
            key: key.into(),
            value: value.into(),
            has_limit,
            flags: Flags { shares: a, value_to_metric: b, detailed: c },
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
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        /// Users of envoyproxy/ratelimit depend on every corner of its matching rules.
        #[test]
        fn random_descriptors_match_as_in_the_naive_model(top in plains(), all in descriptors()) {
            compare(&top, &all);
        }
    }
}

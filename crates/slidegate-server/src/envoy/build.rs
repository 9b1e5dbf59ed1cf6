//! Puts files together: domains, their levels, and a policy for each limit.
//!
//! All mistakes of all files are told at once, where the reference stops at the first.

use std::collections::BTreeMap;
use std::fmt;

use slidegate::{Algorithm, Excess, Policy, PolicySet, Quota};

use super::file::{self, Descriptor};
use super::matcher::{Level, Limit, Node};
use super::rule::Rule;
use super::{Envoy, SCOPE, names};
use crate::config::one_line;

/// Most descriptors of all files: two for each limit, on the way to it or as its exceptions.
const MAX_DESCRIPTORS: usize = 32_768;
/// Most mistakes that are told at once, and most warnings. Who has more of them has one, many times.
const MAX_MISTAKES: usize = 20;

/// How files are read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Reading {
    /// Whether several files may have one domain.
    pub(crate) merge_domains: bool,
    /// How limits are counted that ask for no algorithm of their own.
    pub(crate) algorithm: Algorithm,
    /// What becomes of a cost that is more than what remains, under limits that do not say it themselves.
    pub(crate) excess: Excess,
    /// Stands before every counter's key.
    pub(crate) key_prefix: String,
}

/// Why files are not taken: one line for each mistake, in the reference's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal(Vec<String>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl Refusal {
    pub(crate) fn one(line: impl Into<String>) -> Self {
        Self(vec![line.into()])
    }

    pub(super) fn all(lines: Vec<String>) -> Self {
        Self(lines)
    }

    pub(crate) fn lines(&self) -> &[String] {
        &self.0
    }
}

impl Envoy {
    /// Reads files: name and text of each.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(crate) fn read(files: &[(String, String)], reading: Reading) -> Result<Self, Refusal> {
        let mut builder = Builder {
            envoy: Self { reading, domains: BTreeMap::new(), policies: Vec::new(), warnings: Vec::new() },
            mistakes: Vec::new(),
            descriptors: 0,
        };
        let read: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), file::read(text))).collect();
        for (name, read) in &read {
            builder.mistakes.extend(read.mistakes.iter().map(|(line, told)| place(name, *line, told)));
            let warnings = read.warnings.iter().map(|(line, told)| place(name, *line, told));
            builder.envoy.warnings.extend(warnings);
        }
        let warnings = &mut builder.envoy.warnings;
        if let Some(more) = warnings.len().checked_sub(MAX_MISTAKES).filter(|more| *more > 0) {
            warnings.truncate(MAX_MISTAKES);
            warnings.push(format!("{more} more warnings; see to these first"));
        }
        // As the reference does: what files say together is looked at when each of them can be read.
        if builder.mistakes.is_empty() {
            for (name, read) in read {
                builder.add(name, read);
            }
        }
        builder.finish()
    }
}

/// A line about a file: the reference's words, and behind them the line, which it does not know.
fn place(file: &str, line: u64, told: &str) -> String {
    // What the YAML reader says has it already.
    let is_said = told.contains(&format!("line {line}: "));
    one_line(&if is_said { format!("{file}: {told}") } else { format!("{file}: {told} (line {line})") })
}

/// Puts files together.
struct Builder {
    envoy: Envoy,
    mistakes: Vec<String>,
    descriptors: usize,
}

/// Where descriptors are added.
struct Place<'p> {
    file: &'p str,
    domain: &'p str,
    /// What errors call the parent: `test-domain.key1_value1.`
    parent: &'p str,
    /// Keys and values from the domain on.
    path: &'p [(&'p str, &'p str)],
}

impl Builder {
    fn add(&mut self, file: &str, read: file::Read) {
        let file::Read { domain, domain_line, descriptors, .. } = read;
        if domain.is_empty() {
            self.mistakes.push(place(file, domain_line, "config file cannot have empty domain"));
            return;
        }
        if self.envoy.domains.contains_key(&domain) && !self.envoy.reading.merge_domains {
            let told = format!("duplicate domain '{domain}' in config file");
            self.mistakes.push(place(file, domain_line, &told));
            return;
        }
        let mut entry = self.envoy.domains.remove(&domain).unwrap_or_default();
        if entry.own_limits.policy.is_empty() {
            entry.own_limits.policy = names::own_limits_policy(&domain);
            entry.own_limits.stat_key = names::stat_key(&domain, ["own-limits"]);
            // Never decided by: each request brings its own.
            let quota = Quota::per_second(0).with_algorithm(self.envoy.reading.algorithm);
            self.policy(&entry.own_limits.policy, quota, &Rule::default());
        }
        let parent = format!("{domain}.");
        let place = Place { file, domain: &domain, parent: &parent, path: &[] };
        self.level(&place, &mut entry.top, descriptors);
        self.envoy.domains.insert(domain, entry);
    }

    fn level(&mut self, place: &Place<'_>, level: &mut Level, descriptors: Vec<Descriptor>) {
        for descriptor in descriptors {
            self.descriptors += 1;
            if self.mistakes.len() > MAX_MISTAKES || self.descriptors > MAX_DESCRIPTORS {
                return;
            }
            let Descriptor { line, key, value, limit, rule, value_to_metric, share_threshold, descriptors } =
                descriptor;
            if key.is_empty() {
                self.mistake(place, line, "descriptor has empty key");
                continue;
            }
            let name = Level::name_of(&key, &value);
            let full = format!("{}{name}", place.parent);
            if level.has(&name) {
                self.mistake(place, line, &format!("duplicate descriptor composite key '{full}'"));
                continue;
            }
            if share_threshold && !name.contains('*') {
                let told = format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{name}'"
                );
                self.mistake(place, line, &told);
            }
            let path = [place.path, &[(key.as_str(), value.as_str())]].concat();
            let limit = limit.and_then(|limit| self.limit(place, &path, &limit, rule));
            let mut below = Level::default();
            let parent = format!("{full}.");
            self.level(&Place { parent: &parent, path: &path, ..*place }, &mut below, descriptors);
            let place = format!("{}:{line}", place.file);
            level.push(Node {
                shares: share_threshold,
                name,
                value_to_metric,
                limit,
                below,
                place,
                key,
                value,
            });
        }
    }

    fn limit(
        &mut self,
        place: &Place<'_>,
        path: &[(&str, &str)],
        limit: &file::Limit,
        rule: Rule,
    ) -> Option<Limit> {
        if rule.replaces.iter().any(String::is_empty) {
            self.mistake(place, limit.line, "should not have an empty replaces entry");
        } else if rule.replaces.contains(&rule.name) {
            self.mistake(place, limit.line, "replaces should not contain name of same descriptor");
        }
        let rate = limit.rate().map_err(|told| self.mistake(place, limit.line, &told)).ok()?;
        let mut policy = String::new();
        if let Some(rate) = rate {
            policy = names::policy(place.domain, path);
            let algorithm = rule.algorithm.unwrap_or(self.envoy.reading.algorithm);
            self.policy(&policy, rate.quota(algorithm), &rule);
        }
        let parts: Vec<_> = path.iter().map(|(key, value)| Level::name_of(key, value)).collect();
        let stat_key = names::stat_key(place.domain, parts.iter().map(String::as_str));
        Some(Limit { rate, rule, policy, stat_key, ..Limit::default() })
    }

    fn policy(&mut self, name: &str, quota: Quota, rule: &Rule) {
        let policy = Policy::new(name, quota).expect("its name is made of what names may be made of");
        let excess = rule.excess.unwrap_or(self.envoy.reading.excess);
        let policy = policy.only_when_named().scope([SCOPE]).excess(excess);
        self.envoy.policies.push(if rule.shadow_mode { policy.shadow() } else { policy });
    }

    fn mistake(&mut self, place: &Place<'_>, line: u64, told: &str) {
        self.mistakes.push(self::place(place.file, line, told));
    }

    fn finish(mut self) -> Result<Envoy, Refusal> {
        if self.descriptors > MAX_DESCRIPTORS {
            let told = format!("the files have more than {MAX_DESCRIPTORS} descriptors, which is the most");
            self.mistakes.push(told);
        }
        let policies = self.envoy.policies.len();
        if policies > PolicySet::MAX_POLICIES {
            self.mistakes.push(format!(
                "the files have {policies} limits and domains together; {} is the most",
                PolicySet::MAX_POLICIES
            ));
        }
        if self.mistakes.is_empty() {
            return Ok(self.envoy);
        }
        if let Some(more) = self.mistakes.len().checked_sub(MAX_MISTAKES).filter(|more| *more > 0) {
            self.mistakes.truncate(MAX_MISTAKES);
            self.mistakes.push(format!("{more} more errors; correct these first"));
        }
        Err(Refusal::all(self.mistakes))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Lookup, RuleHit};
    use super::*;

    fn read(text: &str) -> Envoy {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        Envoy::read(&files, Reading::default()).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn refusal(text: &str) -> String {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        Envoy::read(&files, Reading::default()).unwrap_err().to_string()
    }

    fn hit<'e>(envoy: &'e Envoy, domain: &str, entries: &[(&str, &str)]) -> RuleHit<'e> {
        match envoy.lookup(domain, entries, None) {
            Lookup::Limited(hit) => hit,
            other => panic!("{other:?}"),
        }
    }

    const EVERYTHING: &str = include_str!("../../tests/fixtures/envoy/everything.yaml");

    /// What the gate is told must be what the file says: name, quota, mode, and no condition that other requests meet.
    #[test]
    fn every_limit_is_a_policy() {
        let envoy = read(EVERYTHING);
        let policies = PolicySet::new(envoy.policies().to_vec()).unwrap();
        let told: Vec<_> = policies
            .iter()
            .map(|policy| {
                (policy.name(), policy.quota().to_string(), policy.is_enforced(), policy.on_excess())
            })
            .collect();
        let hashed = hit(&envoy, "edge", &[("path", "/files/1")]).policy;
        let day =
            |days: u64, limit: u64| Quota::new(limit, std::time::Duration::from_secs(days * 86_400)).unwrap();
        let bucket = day(7, 1000).with_algorithm(Algorithm::TokenBucket);
        assert_eq!(
            told,
            [
                ("edge..own-limits", Quota::per_second(0).to_string(), true, slidegate::Excess::Refuse),
                ("edge.remote_address", bucket.to_string(), true, slidegate::Excess::Charge),
                ("edge.plan_gold", day(30, 50_000).to_string(), true, slidegate::Excess::Refuse),
                ("edge.banned", day(365, 0).to_string(), true, slidegate::Excess::Refuse),
                (hashed, Quota::per_hour(6).to_string(), false, slidegate::Excess::Refuse),
            ]
        );
        let gate = slidegate::Gate::new(policies);
        let named = slidegate::Request::new().with(SCOPE, "edge~banned=x");
        assert!(gate.check(&named).is_allowed(), "a request that names no rule is under none");
        assert!(gate.check(&named.under("edge.banned")).is_denied());
    }

    /// What is ours in a file of theirs has to be as strict as what is theirs.
    #[test]
    fn what_is_ours_in_metadata_is_checked() {
        let with = |metadata: &str| {
            format!(
                "domain: d\ndescriptors:\n  - key: k\n    metadata: {metadata}\n    \
                 rate_limit: {{unit: day, requests_per_unit: 1}}\n"
            )
        };
        for (metadata, expected) in [
            (
                "{slidegate: 5}",
                "metadata.slidegate is 5; write keys and values, for example `slidegate: {algorithm: fixed-window}`",
            ),
            (
                "{slidegate: {algorithm: gcra}}",
                "metadata.slidegate: algorithm `gcra` is unknown; use `sliding-log`, `sliding-window`, `fixed-window` or \
                 `token-bucket`",
            ),
            (
                "{slidegate: {algorithm: 5}}",
                "metadata.slidegate: algorithm is 5; use `sliding-log`, `sliding-window`, `fixed-window` or \
                 `token-bucket`",
            ),
            (
                "{slidegate: {excess: free}}",
                "metadata.slidegate: excess is \"free\"; write `excess: refuse`, `excess: charge` to admit a cost \
                 while anything remains, or `excess: count` to count refused hits",
            ),
            (
                "{slidegate: {burst: 5}}",
                "metadata.slidegate: unknown key `burst`; known are `algorithm` and `excess`",
            ),
            ("{a: {~: b}}", "error parsing metadata: key is not of type string: <nil>"),
            (
                "[{a: b}]",
                "error loading config file: yaml: unmarshal errors: line 4: cannot unmarshal !!seq into \
                 map[string]interface {}",
            ),
        ] {
            let line = if expected.contains("line 4") { "" } else { " (line 4)" };
            assert_eq!(refusal(&with(metadata)), format!("edge.yaml: {expected}{line}"));
        }
        let envoy = read(&with(
            "{slidegate: {algorithm: fixed-window, excess: refuse}, n: 5, f: 0.5, big: 99999999999999999999}",
        ));
        assert_eq!(envoy.policies()[1].quota().algorithm(), Algorithm::FixedWindow);
        let metadata = &hit(&envoy, "d", &[("k", "")]).rule.metadata;
        assert_eq!(
            serde_json::Value::from(metadata.clone()),
            serde_json::json!({"n": 5, "f": 0.5, "big": 1e20})
        );
    }

    /// What means nothing where it stands is what somebody relies on.
    #[test]
    fn what_passes_and_means_nothing_is_warned_of() {
        let envoy = read(
            "domain: d\nname: x\ndescriptors:\n  - key: k\n    unit: day\n    \
             rate_limit: {unit: day, shadow_mode: true}\n",
        );
        assert_eq!(
            envoy.warnings(),
            [
                "edge.yaml: `name` means nothing beside `domain`; it belongs in a rate_limit (line 2)",
                "edge.yaml: `unit` means nothing in a descriptor; it belongs in a rate_limit (line 5)",
                "edge.yaml: `shadow_mode` means nothing in a rate_limit; it belongs in a descriptor (line 6)",
                "edge.yaml: rate_limit has no requests_per_unit, so nothing passes (line 6)",
            ]
        );
        assert_eq!(read(EVERYTHING).warnings(), [""; 0]);
        let many: String = (0..30).map(|n| format!("{{key: k{n}, rate_limit: {{unit: day}}}}, ")).collect();
        let envoy = read(&format!("domain: d\ndescriptors: [{many}]"));
        assert_eq!(envoy.warnings().len(), MAX_MISTAKES + 1);
        assert_eq!(envoy.warnings()[MAX_MISTAKES], "10 more warnings; see to these first");
    }

    /// A file from elsewhere must not be able to take all memory, and none of ours comes near.
    #[test]
    fn files_have_bounds() {
        let many = |count: usize, limit: &str| {
            let list: String = (0..count).map(|n| format!("- {{key: k{n}{limit}}}\n")).collect();
            format!("domain: d\ndescriptors:\n{list}")
        };
        assert_eq!(
            refusal(&many(MAX_DESCRIPTORS + 1, "")),
            "the files have more than 32768 descriptors, which is the most"
        );
        assert_eq!(
            refusal(&many(PolicySet::MAX_POLICIES, ", rate_limit: {unit: day, requests_per_unit: 1}")),
            "the files have 16385 limits and domains together; 16384 is the most"
        );
        let deep = "{key: k, descriptors: [".repeat(40) + &"]}".repeat(40);
        let told = refusal(&format!("domain: d\ndescriptors: [{deep}]"));
        assert!(told.starts_with("edge.yaml: error loading config file: yaml: line 2: "), "{told}");
        let told = refusal(&format!("domain: {}\n", "d".repeat(1025)));
        assert_eq!(
            told,
            "edge.yaml: error loading config file: yaml: line 1: a text of 1025 bytes is too long; 1024 is the most"
        );
        let errors = refusal(&format!("domain: d\ndescriptors: [{}]", "{key: ''}, ".repeat(30)));
        assert_eq!(errors.lines().count(), MAX_MISTAKES + 1, "{errors}");
        assert!(errors.ends_with(" more errors; correct these first"), "{errors}");
    }
}

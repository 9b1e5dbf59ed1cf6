//! Compiles config files: domains, their levels, and a policy for each limit.
//!
//! Reports all errors of all files at once; envoyproxy/ratelimit stops at the first.

use std::collections::BTreeMap;

use lined_config::one_line;
use slidegate::{Policy, PolicySet, Quota};

use super::file::{self, ConfigFile, Descriptor, RateLimitEntry};
use super::folder::is_config;
use super::matcher::{DescriptorLevel, DescriptorNode, Limit};
use super::names::{self, node_name};
use super::rule::Rule;
use super::{ConfigError, EnvoyConfig, ReadOptions, SCOPE};

/// Maximum descriptors of all files: two per limit, on its path or as exceptions.
const MAX_DESCRIPTORS: usize = 32_768;
/// Maximum errors and maximum warnings per report. More errors than this usually repeat one
/// mistake.
const MAX_REPORTED: usize = 20;

impl EnvoyConfig {
    /// Compiles files, each given as its name and text.
    ///
    /// # Errors
    /// Every error of all files, one per line.
    pub(crate) fn parse(files: &[(String, String)], options: ReadOptions) -> Result<Self, ConfigError> {
        let mut builder = Builder {
            config: Self { options, domains: BTreeMap::new(), policies: Vec::new(), warnings: Vec::new() },
            errors: Vec::new(),
            descriptors: 0,
        };
        let (files, left_out): (Vec<_>, Vec<_>) =
            files.iter().partition(|(name, text)| is_config(name, text));
        builder.config.warnings.extend(left_out.iter().map(|(name, _)| {
            format!("{name}: left out, as its name does not end in .yaml or .yml and it has no `domain`")
        }));
        let parsed: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), file::parse(text))).collect();
        for (name, file) in &parsed {
            builder.errors.extend(file.errors.iter().map(|(line, message)| located(name, *line, message)));
            let warnings = file.warnings.iter().map(|(line, message)| located(name, *line, message));
            builder.config.warnings.extend(warnings);
        }
        let warnings = &mut builder.config.warnings;
        if let Some(more) = warnings.len().checked_sub(MAX_REPORTED).filter(|more| *more > 0) {
            warnings.truncate(MAX_REPORTED);
            warnings.push(format!("{more} more warnings; correct these first"));
        }
        // As in envoyproxy/ratelimit: files are combined only if each of them is valid.
        if builder.errors.is_empty() {
            for (name, file) in parsed {
                builder.add(name, file);
            }
        }
        builder.finish()
    }
}

/// A message about a file: the text of envoyproxy/ratelimit, then the line, which it does not
/// report.
fn located(file: &str, line: u64, message: &str) -> String {
    // Messages of the YAML parser contain the line already.
    let has_line = message.contains(&format!("line {line}: "));
    one_line(&if has_line {
        format!("{file}: {message}")
    } else {
        format!("{file}: {message} (line {line})")
    })
}

/// Combines files.
struct Builder {
    config: EnvoyConfig,
    errors: Vec<String>,
    descriptors: usize,
}

/// The level that descriptors are added to.
struct Parent<'p> {
    file: &'p str,
    domain: &'p str,
    /// The prefix of names in errors: `test-domain.key1_value1.`
    prefix: &'p str,
    /// Keys and values, from the domain down.
    path: &'p [(&'p str, &'p str)],
}

impl Builder {
    fn add(&mut self, file: &str, parsed: ConfigFile) {
        let ConfigFile { domain, domain_line, descriptors, .. } = parsed;
        if domain.is_empty() {
            self.errors.push(located(file, domain_line, "config file cannot have empty domain"));
            return;
        }
        if self.config.domains.contains_key(&domain) && !self.config.options.merge_domains {
            let message = format!("duplicate domain '{domain}' in config file");
            self.errors.push(located(file, domain_line, &message));
            return;
        }
        let mut entry = self.config.domains.remove(&domain).unwrap_or_default();
        if entry.request_limits.policy.is_empty() {
            entry.request_limits.policy = names::request_limits_policy(&domain);
            entry.request_limits.stat_key = names::stat_key(&domain, ["own-limits"]);
            // Not used for decisions: each request carries its own quota.
            let quota = Quota::per_second(0).with_algorithm(self.config.options.algorithm);
            self.policy(&entry.request_limits.policy, quota, &Rule::default());
        }
        let prefix = format!("{domain}.");
        let parent = Parent { file, domain: &domain, prefix: &prefix, path: &[] };
        self.level(&parent, &mut entry.top, descriptors);
        self.config.domains.insert(domain, entry);
    }

    fn level(&mut self, parent: &Parent<'_>, level: &mut DescriptorLevel, descriptors: Vec<Descriptor>) {
        for descriptor in descriptors {
            self.descriptors += 1;
            if self.errors.len() > MAX_REPORTED || self.descriptors > MAX_DESCRIPTORS {
                return;
            }
            let Descriptor { line, key, value, limit, rule, value_to_metric, share_threshold, descriptors } =
                descriptor;
            if key.is_empty() {
                self.error(parent, line, "descriptor has empty key");
                continue;
            }
            let name = node_name(&key, &value);
            let full = format!("{}{name}", parent.prefix);
            if level.has(&name) {
                self.error(parent, line, &format!("duplicate descriptor composite key '{full}'"));
                continue;
            }
            if share_threshold && !name.contains('*') {
                let message = format!(
                    "share_threshold can only be used with wildcard values (containing '*'), but found key '{name}'"
                );
                self.error(parent, line, &message);
            }
            let path = [parent.path, &[(key.as_str(), value.as_str())]].concat();
            let limit = limit.and_then(|limit| self.limit(parent, &path, &limit, rule));
            let mut below = DescriptorLevel::default();
            let prefix = format!("{full}.");
            self.level(&Parent { prefix: &prefix, path: &path, ..*parent }, &mut below, descriptors);
            let location = format!("{}:{line}", parent.file);
            level.push(DescriptorNode {
                share_threshold,
                name,
                value_to_metric,
                limit,
                below,
                location,
                key,
                value,
            });
        }
    }

    fn limit(
        &mut self,
        parent: &Parent<'_>,
        path: &[(&str, &str)],
        limit: &RateLimitEntry,
        rule: Rule,
    ) -> Option<Limit> {
        if rule.replaces.iter().any(String::is_empty) {
            self.error(parent, limit.line, "should not have an empty replaces entry");
        } else if rule.replaces.contains(&rule.name) {
            self.error(parent, limit.line, "replaces should not contain name of same descriptor");
        }
        let rate = limit.rate().map_err(|message| self.error(parent, limit.line, &message)).ok()?;
        let mut policy = String::new();
        if let Some(rate) = rate {
            policy = names::policy(parent.domain, path);
            self.policy(&policy, self.config.options.quota(rate, rule.algorithm), &rule);
        }
        let parts: Vec<_> = path.iter().map(|(key, value)| node_name(key, value)).collect();
        let stat_key = names::stat_key(parent.domain, parts.iter().map(String::as_str));
        Some(Limit { rate, rule, policy, stat_key, ..Limit::default() })
    }

    fn policy(&mut self, name: &str, quota: Quota, rule: &Rule) {
        let policy = Policy::new(name, quota).expect("names::policy returns valid names");
        let excess = rule.excess.unwrap_or(self.config.options.excess);
        let policy = policy.with_only_when_named().with_scope([SCOPE]).with_excess(excess);
        self.config.policies.push(if rule.shadow_mode { policy.with_enforced(false) } else { policy });
    }

    fn error(&mut self, parent: &Parent<'_>, line: u64, message: &str) {
        self.errors.push(located(parent.file, line, message));
    }

    fn finish(mut self) -> Result<EnvoyConfig, ConfigError> {
        if self.descriptors > MAX_DESCRIPTORS {
            self.errors.push(format!("the files have more than {MAX_DESCRIPTORS} descriptors; remove some"));
        }
        let policies = self.config.policies.len();
        if policies > PolicySet::MAX_POLICIES {
            self.errors.push(format!(
                "the files have {policies} limits and domains together; at most {} are allowed",
                PolicySet::MAX_POLICIES
            ));
        }
        if self.errors.is_empty() {
            return Ok(self.config);
        }
        if let Some(more) = self.errors.len().checked_sub(MAX_REPORTED).filter(|more| *more > 0) {
            self.errors.truncate(MAX_REPORTED);
            self.errors.push(format!("{more} more errors; correct these first"));
        }
        Err(ConfigError::new(self.errors))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LimitMatch, Lookup};
    use slidegate::Algorithm;

    use super::*;

    fn read(text: &str) -> EnvoyConfig {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        EnvoyConfig::parse(&files, ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn error_of(text: &str) -> String {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        EnvoyConfig::parse(&files, ReadOptions::default()).unwrap_err().to_string()
    }

    fn hit<'e>(envoy: &'e EnvoyConfig, domain: &str, entries: &[(&str, &str)]) -> LimitMatch<'e> {
        match envoy.lookup(domain, entries, None) {
            Lookup::Limited(hit) => hit,
            other => panic!("{other:?}"),
        }
    }

    const EVERYTHING: &str = include_str!("../../tests/fixtures/envoy/everything.yaml");

    /// Each policy must have the limit's name, quota and mode, and apply only to requests that name
    /// it.
    #[test]
    fn every_limit_is_a_policy() {
        let envoy = read(EVERYTHING);
        let policies = PolicySet::new(envoy.policies().to_vec()).unwrap();
        let compiled: Vec<_> = policies
            .iter()
            .map(|policy| {
                (
                    policy.name(),
                    policy.quota().to_string(),
                    policy.options().enforced,
                    policy.options().excess,
                )
            })
            .collect();
        let hashed = hit(&envoy, "edge", &[("path", "/files/1")]).policy;
        let day =
            |days: u64, limit: u64| Quota::new(limit, std::time::Duration::from_secs(days * 86_400)).unwrap();
        let bucket = day(7, 1000).with_algorithm(Algorithm::TokenBucket);
        assert_eq!(
            compiled,
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

    /// A typo in our own settings must be reported like a typo in any other key.
    #[test]
    fn slidegate_settings_in_metadata_are_validated() {
        let with = |metadata: &str| {
            format!(
                "domain: d\ndescriptors:\n  - key: k\n    metadata: {metadata}\n    \
                 rate_limit: {{unit: day, requests_per_unit: 1}}\n"
            )
        };
        for (metadata, expected) in [
            (
                "{slidegate: 5}",
                "invalid metadata.slidegate `5`: must be keys and values, for example `slidegate: {algorithm: fixed-window}`",
            ),
            (
                "{slidegate: {algorithm: gcra}}",
                "invalid metadata.slidegate.algorithm `gcra`: must be `sliding-log`, `sliding-window`, `fixed-window` or \
                 `token-bucket`",
            ),
            (
                "{slidegate: {algorithm: 5}}",
                "invalid metadata.slidegate.algorithm `5`: must be `sliding-log`, `sliding-window`, `fixed-window` or \
                 `token-bucket`",
            ),
            (
                "{slidegate: {excess: free}}",
                "invalid metadata.slidegate.excess `free`: must be `refuse`, `charge` (admit a cost while anything \
                 remains) or `count` (count denied hits too)",
            ),
            (
                "{slidegate: {burst: 5}}",
                "unknown key `burst` in metadata.slidegate: must be `algorithm` or `excess`",
            ),
            ("{a: {~: b}}", "error parsing metadata: key is not of type string: <nil>"),
            (
                "[{a: b}]",
                "error loading config file: yaml: unmarshal errors: line 4: cannot unmarshal !!seq into \
                 map[string]interface {}",
            ),
        ] {
            let line = if expected.contains("line 4") { "" } else { " (line 4)" };
            assert_eq!(error_of(&with(metadata)), format!("edge.yaml: {expected}{line}"));
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

    /// Someone may rely on the ignored setting.
    #[test]
    fn ignored_keys_are_warned_about() {
        let envoy = read(
            "domain: d\nname: x\ndescriptors:\n  - key: k\n    unit: day\n    \
             rate_limit: {unit: day, shadow_mode: true}\n",
        );
        assert_eq!(
            envoy.warnings(),
            [
                "edge.yaml: `name` is ignored at the top level; move it into a rate_limit (line 2)",
                "edge.yaml: `unit` is ignored in a descriptor; move it into a rate_limit (line 5)",
                "edge.yaml: `shadow_mode` is ignored in a rate_limit; move it into a descriptor (line 6)",
                "edge.yaml: rate_limit has no requests_per_unit, so every request is denied; add it (line 6)",
            ]
        );
        assert_eq!(read(EVERYTHING).warnings(), [""; 0]);
        let many: String = (0..30).map(|n| format!("{{key: k{n}, rate_limit: {{unit: day}}}}, ")).collect();
        let envoy = read(&format!("domain: d\ndescriptors: [{many}]"));
        assert_eq!(envoy.warnings().len(), MAX_REPORTED + 1);
        assert_eq!(envoy.warnings()[MAX_REPORTED], "10 more warnings; correct these first");
    }

    /// A file must not be able to exhaust the memory.
    #[test]
    fn files_have_bounds() {
        let many = |count: usize, limit: &str| {
            let list: String = (0..count).map(|n| format!("- {{key: k{n}{limit}}}\n")).collect();
            format!("domain: d\ndescriptors:\n{list}")
        };
        assert_eq!(
            error_of(&many(MAX_DESCRIPTORS + 1, "")),
            "the files have more than 32768 descriptors; remove some"
        );
        assert_eq!(
            error_of(&many(PolicySet::MAX_POLICIES, ", rate_limit: {unit: day, requests_per_unit: 1}")),
            "the files have 16385 limits and domains together; at most 16384 are allowed"
        );
        let deep = "{key: k, descriptors: [".repeat(40) + &"]}".repeat(40);
        let error = error_of(&format!("domain: d\ndescriptors: [{deep}]"));
        assert!(error.starts_with("edge.yaml: error loading config file: yaml: line 2: "), "{error}");
        let error = error_of(&format!("domain: {}\n", "d".repeat(1025)));
        assert_eq!(
            error,
            "edge.yaml: error loading config file: yaml: line 1: a text of 1025 bytes is too long; at most 1024 are allowed"
        );
        let errors = error_of(&format!("domain: d\ndescriptors: [{}]", "{key: ''}, ".repeat(30)));
        assert_eq!(errors.lines().count(), MAX_REPORTED + 1, "{errors}");
        assert!(errors.ends_with(" more errors; correct these first"), "{errors}");
    }
}

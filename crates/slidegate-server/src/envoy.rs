//! envoyproxy/ratelimit configuration: YAML files compiled to policies, and the lookup of a descriptor's
//! limit.
//!
//! Every limit becomes a policy, so its decisions take the same path as all others: windows slide, and a
//! denied request is not charged. These policies apply only to requests that name them with
//! [`slidegate::Request::under`].
//!
//! A handler calls [`LiveConfig::current`] once per call and holds the result until the call is decided.
//! Policies dropped by a reload stay active until no call holds their config.

mod build;
mod explain;
mod file;
mod folder;
mod matcher;
mod names;
pub(crate) mod rule;
mod settings;
mod statistics;
mod watch;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};

use serde_json::json;
use slidegate::{Algorithm, Excess, Policy, Quota};

use matcher::{DescriptorLevel, DescriptorNode, Limit};
use names::StatKey;

pub(crate) use explain::Explanation;
pub(crate) use folder::Folder;
pub(crate) use names::{BYTES_AS_TEXT, denied_key, hash};
pub(crate) use rule::{CalendarWindows, Rate, Rule, Unit};
pub(crate) use settings::{HeaderNames, Settings};
pub(crate) use statistics::{HitCounter, LimitCounters, RecordedHits, Statistics};
pub(crate) use watch::{ConfigWatcher, LiveConfig};

/// The scope attribute of limits' policies: the key of a [`LimitMatch`].
pub(crate) const SCOPE: &str = "descriptor";

/// The compiled config files of a folder. Immutable; a reload creates a new one.
#[derive(Debug)]
pub(crate) struct EnvoyConfig {
    options: ReadOptions,
    domains: BTreeMap<String, Domain>,
    policies: Vec<Policy>,
    /// Accepted settings that are probably mistakes, one per line.
    warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct Domain {
    top: DescriptorLevel,
    /// The policy for limits that requests carry.
    request_limits: Limit,
}

/// Options for reading config files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ReadOptions {
    /// Whether several files may have one domain.
    pub(crate) merge_domains: bool,
    /// The algorithm of limits that do not set one.
    pub(crate) algorithm: Algorithm,
    /// Calendar windows for units of an hour and longer, if not fixed lengths.
    pub(crate) calendar: Option<CalendarWindows>,
    /// Treatment of a cost above what remains, for limits that do not set it.
    pub(crate) excess: Excess,
    /// The prefix of every counter key.
    pub(crate) key_prefix: String,
}

impl ReadOptions {
    /// The quota of a limit, which may name its own algorithm. Only fixed windows follow a calendar.
    fn quota(&self, rate: Rate, own: Option<Algorithm>) -> Quota {
        let limit = rate.requests_per_unit.into();
        let calendar = self.calendar.and_then(|windows| windows.of(rate.unit));
        match calendar.filter(|_| own.is_none_or(|own| own == Algorithm::FixedWindow)) {
            Some(calendar) => Quota::calendar(limit, calendar),
            None => {
                let quota = Quota::new(limit, rate.unit.window()).expect("every unit is a window");
                quota.with_algorithm(own.unwrap_or(self.algorithm))
            }
        }
    }
}

/// Why config files or settings are invalid: one line per error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfigError(Vec<String>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(crate) fn one(line: impl Into<String>) -> Self {
        Self(vec![line.into()])
    }

    pub(crate) fn new(lines: Vec<String>) -> Self {
        Self(lines)
    }

    /// One line per error.
    pub(crate) fn lines(&self) -> &[String] {
        &self.0
    }
}

/// The limit of one descriptor.
#[derive(Debug)]
// A call has few of them; boxing would cost an allocation each.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Lookup<'e> {
    /// No limit: nothing is counted.
    NoMatch {
        /// Whether any file has the domain.
        domain_found: bool,
    },
    /// An unlimited entry: everything is allowed and nothing is counted.
    Unlimited {
        /// The options besides the rate.
        rule: &'e Rule,
        /// The name of its statistics.
        stat_key: Cow<'e, StatKey>,
    },
    Limited(LimitMatch<'e>),
}

/// A descriptor's limit and its counter.
#[derive(Debug)]
pub(crate) struct LimitMatch<'e> {
    /// The options besides the rate. Defaults for a limit carried by the request.
    pub(crate) rule: &'e Rule,
    /// Its policy. One per limit and domain, so its name may be a metric label.
    pub(crate) policy: &'e str,
    /// The counter key: the value of [`SCOPE`]. Only with `share_threshold` do descriptors share one.
    pub(crate) key: String,
    pub(crate) rate: Rate,
    /// Only for a limit carried by the request: replaces the policy's quota.
    pub(crate) quota: Option<Quota>,
    /// Treatment of a cost above what remains.
    pub(crate) excess: Excess,
    /// The name of its statistics. Owned if it contains request values, which are unbounded.
    stat_key: Cow<'e, StatKey>,
    /// The counters of the name without request values.
    pub(crate) counters: &'e LimitCounters,
}

impl LimitMatch<'_> {
    pub(crate) fn record(&self, statistics: &Statistics, hits: &RecordedHits) {
        let valued = match &self.stat_key {
            Cow::Owned(key) => Some(key),
            Cow::Borrowed(_) => None,
        };
        statistics.record(self.counters, valued, hits);
    }
}

impl EnvoyConfig {
    /// Reads and compiles the files of a folder.
    ///
    /// # Errors
    /// The folder cannot be read, or every error of its files, one per line.
    pub(crate) fn load(folder: &Folder, options: ReadOptions) -> Result<Self, ConfigError> {
        let texts = folder.fingerprint().and_then(|files| files.read(folder));
        Self::parse(&texts.map_err(ConfigError::one)?, options)
    }

    /// Attaches the counters of all limits.
    fn attach_counters(&mut self, statistics: &Statistics) {
        for domain in self.domains.values_mut() {
            domain.top.attach_counters(statistics);
            domain.request_limits.counters = statistics.named(&domain.request_limits.stat_key);
        }
    }

    /// The limit for a descriptor's entries and the limit that it carries.
    pub(crate) fn lookup<'e>(
        &'e self,
        domain: &str,
        entries: &[(&str, &str)],
        carried: Option<Rate>,
    ) -> Lookup<'e> {
        let Some((domain_name, domain)) = self.domains.get_key_value(domain) else {
            return Lookup::NoMatch { domain_found: false };
        };
        let mut key = names::start_key(&self.options.key_prefix, domain_name);
        if let Some(rate) = carried {
            entries.iter().for_each(|(name, value)| names::push_entry(&mut key, name, value));
            // Counts of different units must not mix.
            let _ = write!(key, "~{}", rate.unit.name());
            names::shorten(&mut key);
            let parts: Vec<_> = entries.iter().map(|(name, value)| names::node_name(name, value)).collect();
            return Lookup::Limited(LimitMatch {
                rule: &domain.request_limits.rule,
                policy: &domain.request_limits.policy,
                key,
                rate,
                quota: Some(self.options.quota(rate, None)),
                excess: self.options.excess,
                stat_key: Cow::Owned(names::stat_key(domain_name, parts.iter().map(String::as_str))),
                counters: &domain.request_limits.counters,
            });
        }
        let walk = domain.top.walk(entries);
        let Some(Limit { rate, rule, policy, stat_key, counters }) =
            walk.end().and_then(|node| node.limit.as_ref())
        else {
            return Lookup::NoMatch { domain_found: true };
        };
        let path = || walk.steps.iter().filter_map(|step| step.found.map(|(node, _)| node));
        let stat_key = if rule.detailed_metric || path().any(|node| node.value_to_metric) {
            Cow::Owned(walk.stat_key(domain_name, entries, rule.detailed_metric))
        } else {
            Cow::Borrowed(stat_key)
        };
        let Some(rate) = *rate else { return Lookup::Unlimited { rule, stat_key } };
        for (node, (name, value)) in path().zip(entries) {
            let shared = (node.key.as_str(), node.value.as_str());
            let (name, value) = if node.share_threshold { shared } else { (*name, *value) };
            names::push_entry(&mut key, name, value);
        }
        names::shorten(&mut key);
        let excess = rule.excess.unwrap_or(self.options.excess);
        Lookup::Limited(LimitMatch { rule, policy, key, rate, quota: None, excess, stat_key, counters })
    }

    /// One policy per limit, and one per domain for limits carried by requests.
    pub(crate) fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// The size: `12 limits in 3 domains`. Unlimited entries do not count.
    pub(crate) fn summary(&self) -> String {
        let domains = self.domains.len();
        // Each domain has one policy besides those of its limits.
        let limits = self.policies.len() - domains;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        format!("{limits} limit{} in {domains} domain{}", plural(limits), plural(domains))
    }

    /// The body of a `/json` request that matches the first limit, to try out the service.
    pub(crate) fn example(&self) -> Option<String> {
        self.domains.iter().find_map(|(domain, levels)| {
            let entries = levels.top.first_limit()?;
            let entry = |node: &&DescriptorNode| {
                let value = if node.value.is_empty() { "me" } else { &node.value };
                json!({ "key": node.key, "value": value })
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            let (domain, entries) = (json!(domain), json!(entries));
            Some(format!(r#"{{"domain":{domain},"descriptors":[{{"entries":{entries}}}]}}"#))
        })
    }

    /// Whether any file has this domain.
    pub(crate) fn has_domain(&self, name: &str) -> bool {
        self.domains.contains_key(name)
    }

    /// Whether there is any domain.
    pub(crate) fn has_domains(&self) -> bool {
        !self.domains.is_empty()
    }

    /// Accepted settings that are probably mistakes, one per line.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text of `/rlconfig`: one line per limit, by domain and in the order of the files.
    pub(crate) fn dump(&self) -> String {
        let mut out = String::new();
        self.domains.values().for_each(|domain| dump(&domain.top, &mut out));
        out
    }
}

fn dump(level: &DescriptorLevel, out: &mut String) {
    for node in &level.nodes {
        if let Some(Limit { rate, rule, stat_key, .. }) = &node.limit {
            let (unit, count) =
                rate.map_or(("UNKNOWN", 0), |rate| (rate.unit.name(), rate.requests_per_unit));
            let _ = writeln!(
                out,
                "{}: unit={unit} requests_per_unit={count}, shadow_mode: {}, quota_mode: {}",
                stat_key.text(),
                rule.shadow_mode,
                rule.quota_mode
            );
        }
        dump(&node.below, out);
    }
}

/// Which lookups of a request do not apply, because another one's limit `replaces` theirs.
pub(crate) fn replaced(lookups: &[Lookup<'_>]) -> Vec<bool> {
    let rules = || {
        lookups.iter().map(|lookup| match lookup {
            Lookup::NoMatch { .. } => None,
            Lookup::Unlimited { rule, .. } | Lookup::Limited(LimitMatch { rule, .. }) => Some(*rule),
        })
    };
    let names: HashSet<&str> =
        rules().flatten().flat_map(|rule| rule.replaces.iter().map(String::as_str)).collect();
    rules().map(|rule| rule.is_some_and(|rule| names.contains(rule.name.as_str()))).collect()
}

#[cfg(test)]
mod tests {
    use slidegate::Calendar;

    use super::*;

    fn read(text: &str) -> EnvoyConfig {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        EnvoyConfig::parse(&files, ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn hit<'e>(
        envoy: &'e EnvoyConfig,
        domain: &str,
        entries: &[(&str, &str)],
        carried: Option<Rate>,
    ) -> LimitMatch<'e> {
        match envoy.lookup(domain, entries, carried) {
            Lookup::Limited(hit) => hit,
            other => panic!("{other:?}"),
        }
    }

    const LEVELS: &str = include_str!("../tests/fixtures/envoy/levels.yaml");
    const EVERYTHING: &str = include_str!("../tests/fixtures/envoy/everything.yaml");

    /// Responses contain these options; envoyproxy/ratelimit loses the metadata.
    #[test]
    fn a_match_has_the_options_beside_the_rate() {
        let envoy = read(EVERYTHING);
        let address = hit(&envoy, "edge", &[("remote_address", "10.0.0.1")], None);
        assert_eq!((address.rule.name.as_str(), address.rule.quota_mode), ("per-address", true));
        assert_eq!(
            serde_json::Value::from(address.rule.metadata.clone()),
            serde_json::json!({"owner": "traffic"})
        );
        assert_eq!(address.rate, Rate { requests_per_unit: 1000, unit: Unit::Week });
        assert_eq!(address.stat_key.text(), "edge.remote_address_10_0_0_1");
        assert_eq!(address.key, "edge~remote_address=10.0.0.1");
        let files = hit(&envoy, "edge", &[("path", "/files/1")], None);
        assert!(files.rule.shadow_mode);
        assert_eq!((files.key.as_str(), files.stat_key.text()), ("edge~path=/files*", "edge.path_/files*"));
    }

    /// Otherwise both limits would apply.
    #[test]
    fn a_limit_removes_those_that_it_replaces() {
        let envoy = read(EVERYTHING);
        let lookup = |entry: (&str, &str)| envoy.lookup("edge", &[entry], None);
        let address = || lookup(("remote_address", "10.0.0.1"));
        assert_eq!(replaced(&[address(), lookup(("banned", "x")), lookup(("x", "y"))]), [false; 3]);
        assert_eq!(replaced(&[address(), lookup(("plan", "gold"))]), [true, false]);
        assert_eq!(replaced(&[lookup(("plan", "internal")), address(), address()]), [false, true, true]);
    }

    /// A limit that a request carries has its own counter, one per unit.
    #[test]
    fn a_limit_in_the_request_takes_precedence_over_the_files() {
        let envoy = read(LEVELS);
        let entries = [("key1", "value1"), ("subkey1", "something")];
        let own = Rate { requests_per_unit: 10, unit: Unit::Day };
        let found = hit(&envoy, "test-domain", &entries, Some(own));
        assert_eq!((found.rate, found.stat_key.text()), (own, "test-domain.key1_value1.subkey1_something"));
        assert_eq!(found.quota, Some(Quota::per_day(10)));
        assert_eq!((found.policy, found.rule.shadow_mode), ("test-domain..own-limits", false));
        assert_eq!(found.key, "test-domain~key1=value1~subkey1=something~DAY");
        let berlin =
            ReadOptions { calendar: Some("Europe/Berlin".parse().unwrap()), ..ReadOptions::default() };
        let envoy = EnvoyConfig::parse(&[("edge.yaml".to_owned(), LEVELS.to_owned())], berlin).unwrap();
        let day = Calendar::day().with_time_zone("Europe/Berlin").unwrap();
        let found = hit(&envoy, "test-domain", &entries, Some(own));
        assert_eq!(found.quota, Some(Quota::calendar(10, day)));
        assert!(matches!(
            envoy.lookup("foo_domain", &entries, Some(own)),
            Lookup::NoMatch { domain_found: false }
        ));
        assert!(matches!(envoy.lookup("test-domain", &[], None), Lookup::NoMatch { domain_found: true }));
    }
}

//! Configuration of envoyproxy/ratelimit: its files as they are, and what they say about a descriptor.
//!
//! Every limit becomes a policy of ours, so that decisions go the one road that all others go: windows slide and a
//! refused request is not charged. These policies concern no request that does not name them, which the gRPC door does by
//! [`slidegate::Request::under`], and the body of `POST /v1/reset` by `policy`.
//!
//! A door asks [`Live::current`] once for each request and keeps what it gets until it has its decisions: policies that a
//! reload drops are taken out of force when nobody holds the configuration that they came from.

mod build;
mod file;
mod folder;
mod matcher;
mod names;
#[cfg(test)]
mod plain;
mod rule;
mod settings;
mod statistics;
mod trace;
mod watch;
mod yaml;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use serde_json::json;
use slidegate::{Excess, Policy, Quota};

use matcher::{Level, Limit, Node};
use names::StatKey;
use statistics::Counters;

pub(crate) use build::{Reading, Refusal};
pub(crate) use folder::Folder;
pub(crate) use names::refused_key;
pub(crate) use rule::{Rate, Rule, Unit};
pub(crate) use settings::{HeaderNames, Settings};
pub(crate) use statistics::{Count, Hits, Statistics};
pub(crate) use trace::tell;
pub(crate) use watch::{Live, Watcher};

/// The attribute that every policy made of a limit counts by: the key of a [`RuleHit`].
pub(crate) const SCOPE: &str = "descriptor";

/// Everything that a folder's files say. Immutable; a reload makes another one.
#[derive(Debug)]
pub(crate) struct Envoy {
    reading: Reading,
    domains: BTreeMap<String, Domain>,
    policies: Vec<Policy>,
    /// What is allowed and most likely not meant, in lines.
    warnings: Vec<String>,
}

#[derive(Debug, Default)]
struct Domain {
    top: Level,
    /// Of limits that requests bring along.
    own_limits: Limit,
}

/// What the files say about one descriptor.
#[derive(Debug)]
// A call has a few of them, and a box would cost each an allocation.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Lookup<'e> {
    /// No limit: nothing is counted.
    NoMatch {
        domain_found: bool,
    },
    /// A limit that lets everything pass; nothing is counted.
    Unlimited {
        rule: &'e Rule,
        stat_key: Cow<'e, StatKey>,
    },
    Limited(RuleHit<'e>),
}

/// A limit to decide by.
#[derive(Debug)]
pub(crate) struct RuleHit<'e> {
    /// What the file says besides the rate. Of a limit that came with the request: the defaults.
    pub(crate) rule: &'e Rule,
    /// The policy that counts it. There are as many as limits and domains, so it is good for a metric's label.
    pub(crate) policy: &'e str,
    /// What it is counted under: the value of [`SCOPE`]. No two descriptors share one, unless `share_threshold` says so.
    pub(crate) key: String,
    pub(crate) rate: Rate,
    /// Only of a limit that came with the request: what to decide by instead of the policy's quota.
    pub(crate) quota: Option<Quota>,
    /// What becomes of a cost that is more than what remains.
    pub(crate) excess: Excess,
    /// What the reference calls its statistics. Owned where values of the request are in it: there is no bound to those.
    stat_key: Cow<'e, StatKey>,
    /// Of the name without such values.
    counters: &'e Counters,
}

impl RuleHit<'_> {
    /// Counts hits on this limit.
    pub(crate) fn note(&self, statistics: &Statistics, hits: &Hits) {
        let valued = match &self.stat_key {
            Cow::Owned(key) => Some(key),
            Cow::Borrowed(_) => None,
        };
        statistics.note(self.counters, valued, hits);
    }

    /// Takes note that descriptors of 0 hits ask for this limit, and so are told of refused hits.
    pub(crate) fn note_look(&self) {
        self.counters.note_look();
    }

    /// Whether a descriptor of 0 hits has ever asked for this limit here.
    pub(crate) fn is_looked_at(&self) -> bool {
        self.counters.is_looked_at()
    }

    /// What its refused hits are counted under, for those who look: another value of [`SCOPE`].
    pub(crate) fn refused_key(&self) -> String {
        refused_key(&self.key)
    }
}

impl Envoy {
    /// Reads the folder once.
    ///
    /// # Errors
    /// Why the files cannot be taken.
    pub(crate) fn load(settings: &Settings) -> Result<Self, Refusal> {
        let texts = settings.folder.look().and_then(|seen| seen.read(&settings.folder));
        Self::read(&texts.map_err(Refusal::one)?, settings.reading.clone())
    }

    /// Finds the counters of all limits: from here on their hits are counted there.
    fn count_in(&mut self, statistics: &Statistics) {
        for domain in self.domains.values_mut() {
            domain.top.count_in(statistics);
            domain.own_limits.counters = statistics.named(&domain.own_limits.stat_key);
        }
    }

    /// What applies to a descriptor: its entries, and the limit that it brings along.
    pub(crate) fn lookup<'e>(
        &'e self,
        domain: &str,
        entries: &[(&str, &str)],
        own: Option<Rate>,
    ) -> Lookup<'e> {
        let Some((domain_name, domain)) = self.domains.get_key_value(domain) else {
            return Lookup::NoMatch { domain_found: false };
        };
        let mut key = names::start_key(&self.reading.key_prefix, domain_name);
        if let Some(rate) = own {
            entries.iter().for_each(|(name, value)| names::push_entry(&mut key, name, value));
            // What counts by the day is no use by the second.
            let _ = write!(key, "~{}", rate.unit.name());
            let parts: Vec<_> = entries.iter().map(|(name, value)| Level::name_of(name, value)).collect();
            return Lookup::Limited(RuleHit {
                rule: &domain.own_limits.rule,
                policy: &domain.own_limits.policy,
                key,
                rate,
                quota: Some(rate.quota(self.reading.algorithm)),
                excess: self.reading.excess,
                stat_key: Cow::Owned(names::stat_key(domain_name, parts.iter().map(String::as_str))),
                counters: &domain.own_limits.counters,
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
            Cow::Owned(names::stat_key_of(domain_name, &walk, entries, rule.detailed_metric))
        } else {
            Cow::Borrowed(stat_key)
        };
        let Some(rate) = *rate else { return Lookup::Unlimited { rule, stat_key } };
        for (node, (name, value)) in path().zip(entries) {
            let shared = (node.key.as_str(), node.value.as_str());
            let (name, value) = if node.shares { shared } else { (*name, *value) };
            names::push_entry(&mut key, name, value);
        }
        let excess = rule.excess.unwrap_or(self.reading.excess);
        Lookup::Limited(RuleHit { rule, policy, key, rate, quota: None, excess, stat_key, counters })
    }

    /// A policy for each limit, and one for each domain's requests that bring a limit along.
    pub(crate) fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// How much there is: `12 limits in 3 domains`. Unlimited ones are none.
    pub(crate) fn summary(&self) -> String {
        let domains = self.domains.len();
        // Each domain has a policy beside those of its limits.
        let limits = self.policies.len() - domains;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        format!("{limits} limit{} in {domains} domain{}", plural(limits), plural(domains))
    }

    /// A call that meets the first limit, as the body of `/json`, to try the service with.
    pub(crate) fn example(&self) -> Option<String> {
        self.domains.iter().find_map(|(domain, levels)| {
            let entries = levels.top.first_limit()?;
            let entry = |node: &&Node| {
                let value = if node.value.is_empty() { "me" } else { &node.value };
                json!({ "key": node.key, "value": value })
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            let (domain, entries) = (json!(domain), json!(entries));
            Some(format!(r#"{{"domain":{domain},"descriptors":[{{"entries":{entries}}}]}}"#))
        })
    }

    /// Whether there is this domain.
    pub(crate) fn has_domain(&self, name: &str) -> bool {
        self.domains.contains_key(name)
    }

    /// Whether there is any domain.
    pub(crate) fn has_domains(&self) -> bool {
        !self.domains.is_empty()
    }

    /// What is allowed and most likely not meant: a line for each.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The text of `/rlconfig`: a line for each limit, by domain and in the files' order.
    pub(crate) fn dump(&self) -> String {
        let mut out = String::new();
        self.domains.values().for_each(|domain| dump(&domain.top, &mut out));
        out
    }

    fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }
}

fn dump(level: &Level, out: &mut String) {
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

/// Which of a request's lookups are not counted, since the limit of another one `replaces` theirs.
pub(crate) fn dropped(lookups: &[Lookup<'_>]) -> Vec<bool> {
    let rules = || {
        lookups.iter().map(|lookup| match lookup {
            Lookup::NoMatch { .. } => None,
            Lookup::Unlimited { rule, .. } | Lookup::Limited(RuleHit { rule, .. }) => Some(*rule),
        })
    };
    let replaced: HashSet<&str> =
        rules().flatten().flat_map(|rule| rule.replaces.iter().map(String::as_str)).collect();
    rules().map(|rule| rule.is_some_and(|rule| replaced.contains(rule.name.as_str()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Envoy {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        Envoy::read(&files, Reading::default()).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn hit<'e>(envoy: &'e Envoy, domain: &str, entries: &[(&str, &str)], own: Option<Rate>) -> RuleHit<'e> {
        match envoy.lookup(domain, entries, own) {
            Lookup::Limited(hit) => hit,
            other => panic!("{other:?}"),
        }
    }

    const LEVELS: &str = include_str!("../tests/fixtures/envoy/levels.yaml");
    const EVERYTHING: &str = include_str!("../tests/fixtures/envoy/everything.yaml");

    /// The door answers with these; none may get lost on the way, which metadata does in the reference.
    #[test]
    fn a_hit_carries_what_stands_beside_the_rate() {
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

    /// A limit that replaces another one would otherwise be one more instead.
    #[test]
    fn what_replaces_others_drops_them_from_the_request() {
        let envoy = read(EVERYTHING);
        let lookup = |entry: (&str, &str)| envoy.lookup("edge", &[entry], None);
        let address = || lookup(("remote_address", "10.0.0.1"));
        assert_eq!(dropped(&[address(), lookup(("banned", "x")), lookup(("x", "y"))]), [false; 3]);
        assert_eq!(dropped(&[address(), lookup(("plan", "gold"))]), [true, false]);
        assert_eq!(dropped(&[lookup(("plan", "internal")), address(), address()]), [false, true, true]);
    }

    /// A caller's own limit counts apart from the files' limits and apart from its limits by other units.
    #[test]
    fn a_limit_that_comes_with_the_request_takes_the_place_of_the_files() {
        let envoy = read(LEVELS);
        let entries = [("key1", "value1"), ("subkey1", "something")];
        let own = Rate { requests_per_unit: 10, unit: Unit::Day };
        let told = hit(&envoy, "test-domain", &entries, Some(own));
        assert_eq!((told.rate, told.stat_key.text()), (own, "test-domain.key1_value1.subkey1_something"));
        assert_eq!(told.quota, Some(Quota::per_day(10)));
        assert_eq!((told.policy, told.rule.shadow_mode), ("test-domain..own-limits", false));
        assert_eq!(told.key, "test-domain~key1=value1~subkey1=something~DAY");
        assert!(matches!(
            envoy.lookup("foo_domain", &entries, Some(own)),
            Lookup::NoMatch { domain_found: false }
        ));
        assert!(matches!(envoy.lookup("test-domain", &[], None), Lookup::NoMatch { domain_found: true }));
    }

    /// Whoever reads `/rlconfig` compares it with what the reference showed.
    #[test]
    fn the_dump_has_a_line_for_each_limit() {
        let dump = read(LEVELS).dump();
        let lines: Vec<_> = dump.lines().collect();
        assert_eq!(
            lines[0],
            "test-domain.key1_value1.subkey1: unit=SECOND requests_per_unit=5, shadow_mode: false, quota_mode: false"
        );
        assert_eq!(
            lines[8],
            "test-domain.key6: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false"
        );
        assert_eq!(lines.len(), 10, "{dump}");
        assert!(dump.ends_with("requests_per_unit=70, shadow_mode: false, quota_mode: false\n"));
    }
}

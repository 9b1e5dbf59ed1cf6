//! Configuration of envoyproxy/ratelimit: its files as they are, and what they say about a descriptor.
//!
//! Every limit becomes a policy of ours, so that decisions go the one road that all others go: windows slide and a
//! refused request is not charged. These policies concern no request that does not name them, which the gRPC door does by
//! [`slidegate::Request::under`]: their one condition asks for an attribute [`RULE`] that holds the policy's own name. So
//! `POST /v1/reset` with that and [`SCOPE`] forgets one counter.
//!
//! A door asks [`Live::current`] once for each request and keeps what it gets until it has its decisions: policies that a
//! reload drops are taken out of force when nobody holds the configuration that they came from.

mod file;
mod folder;
mod matcher;
mod names;
#[cfg(test)]
mod plain;
mod rule;
mod settings;
mod trace;
mod watch;
mod yaml;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};

use slidegate::{Algorithm, Match, Policy, PolicySet, Quota};

use crate::config::one_line;

use file::Descriptor;
use matcher::{Level, Limit, Node};

pub(crate) use folder::Folder;
pub(crate) use rule::{Rate, Rule, Unit};
pub(crate) use settings::{HeaderNames, Settings};
pub(crate) use trace::tell;
pub(crate) use watch::{Live, Watcher};

/// The attribute that every policy made of a limit counts by: the key of a [`RuleHit`].
pub(crate) const SCOPE: &str = "descriptor";
/// The attribute by which a request that is no descriptor can name such a policy.
pub(crate) const RULE: &str = "rule";

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
    /// Stands before every counter's key.
    pub(crate) key_prefix: String,
}

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
pub(crate) enum Lookup<'e> {
    /// No limit: nothing is counted.
    NoMatch {
        domain_found: bool,
    },
    /// A limit that lets everything pass; nothing is counted.
    Unlimited {
        rule: &'e Rule,
        stat_key: Cow<'e, str>,
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
    /// What the reference calls its statistics. Owned where values of the request are in it: there is no bound to those.
    pub(crate) stat_key: Cow<'e, str>,
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

    /// Reads the folder once.
    ///
    /// # Errors
    /// Why the files cannot be taken.
    pub(crate) fn load(settings: &Settings) -> Result<Self, Refusal> {
        let texts = settings.folder.look().and_then(|seen| seen.read(&settings.folder));
        Self::read(&texts.map_err(Refusal::one)?, settings.reading.clone())
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
                stat_key: Cow::Owned(names::stat_key(domain_name, parts.iter().map(String::as_str))),
            });
        }
        let walk = domain.top.walk(entries);
        let Some(Limit { rate, rule, policy, stat_key }) = walk.end().and_then(|node| node.limit.as_ref())
        else {
            return Lookup::NoMatch { domain_found: true };
        };
        let path = || walk.steps.iter().filter_map(|step| step.found.map(|(node, _)| node));
        let stat_key = if rule.detailed_metric || path().any(|node| node.value_to_metric) {
            Cow::Owned(names::stat_key_of(domain_name, &walk, entries, rule.detailed_metric))
        } else {
            Cow::Borrowed(stat_key.as_str())
        };
        let Some(rate) = *rate else { return Lookup::Unlimited { rule, stat_key } };
        for (node, (name, value)) in path().zip(entries) {
            let shared = (node.key.as_str(), node.value.as_str());
            let (name, value) = if node.shares { shared } else { (*name, *value) };
            names::push_entry(&mut key, name, value);
        }
        Lookup::Limited(RuleHit { rule, policy, key, rate, quota: None, stat_key })
    }

    /// A policy for each limit, and one for each domain's requests that bring a limit along.
    pub(crate) fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// How much there is: `12 limits in 3 domains`.
    pub(crate) fn summary(&self) -> String {
        let domains = self.domains.len();
        // Each domain has a policy beside those of its limits.
        format!("{} limits in {domains} domains", self.policies.len() - domains)
    }

    /// The policy of the first limit, to try the service with.
    pub(crate) fn first_policy(&self) -> Option<&str> {
        let own_limits = self.domains.values().map(|domain| domain.own_limits.policy.as_str());
        let own_limits: HashSet<_> = own_limits.collect();
        self.policies.iter().map(Policy::name).find(|name| !own_limits.contains(name))
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
                "{stat_key}: unit={unit} requests_per_unit={count}, shadow_mode: {}, quota_mode: {}",
                rule.shadow_mode, rule.quota_mode
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
        Some(Limit { rate, rule, policy, stat_key })
    }

    fn policy(&mut self, name: &str, quota: Quota, rule: &Rule) {
        let policy = Policy::new(name, quota).expect("its name is made of what names may be made of");
        let policy = policy.when(RULE, Match::equals(name)).scope([SCOPE]).excess(rule.excess);
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
        Err(Refusal(self.mistakes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Envoy {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        Envoy::read(&files, Reading::default()).unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    fn refusal(text: &str) -> String {
        let files = [("edge.yaml".to_owned(), text.to_owned())];
        Envoy::read(&files, Reading::default()).unwrap_err().to_string()
    }

    fn hit<'e>(envoy: &'e Envoy, domain: &str, entries: &[(&str, &str)], own: Option<Rate>) -> RuleHit<'e> {
        match envoy.lookup(domain, entries, own) {
            Lookup::Limited(hit) => hit,
            other => panic!("{other:?}"),
        }
    }

    const LEVELS: &str = include_str!("../tests/fixtures/envoy/levels.yaml");
    const EVERYTHING: &str = include_str!("../tests/fixtures/envoy/everything.yaml");

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
        let hashed = hit(&envoy, "edge", &[("path", "/files/1")], None).policy;
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
        assert!(gate.check(&named.clone().with(RULE, "edge.banned")).is_denied());
        assert!(gate.check(&named.under("edge.banned")).is_denied());
    }

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
        assert_eq!(address.stat_key, "edge.remote_address_10_0_0_1");
        assert_eq!(address.key, "edge~remote_address=10.0.0.1");
        let files = hit(&envoy, "edge", &[("path", "/files/1")], None);
        assert!(files.rule.shadow_mode);
        assert_eq!((files.key.as_str(), files.stat_key.as_ref()), ("edge~path=/files*", "edge.path_/files*"));
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
        assert_eq!((told.rate, told.stat_key.as_ref()), (own, "test-domain.key1_value1.subkey1_something"));
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
                "metadata.slidegate: excess is \"free\"; write `excess: refuse`, or `excess: charge` to admit a cost \
                 while anything remains",
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
        let metadata = &hit(&envoy, "d", &[("k", "")], None).rule.metadata;
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

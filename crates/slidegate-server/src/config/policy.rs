//! `policies:` one policy of the file, of the admin API, or of a file of `slidegate policy set`.

use std::collections::BTreeMap;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use slidegate::client_addr::Ipv6Prefix;
use slidegate::{Excess, OnStoreError, Policy, PolicySet, Quota};

use super::check::Section;
use super::condition::{self, Condition};
use super::overrides::{self, Overrides};
use super::quota::QuotaSpec;
use super::values::{AttributeName, List, Name, Parsed, Text, Window};
use super::{Findings, KeysShown};
use crate::policy_names::{CANDIDATE, candidate_of};

/// A policy: which requests it limits, what it counts by, and the quota.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "name: per-user"))]
pub(super) struct PolicySpec {
    /// The policy's name. Usage is kept by name when the file changes.
    pub(super) name: Parsed<Name>,
    /// Conditions on attributes, all of which must hold. Every request, unless given.
    #[serde(default)]
    #[schemars(extend("propertyNames" = {"format": "attribute"}))]
    when: BTreeMap<String, Condition>,
    /// The attributes that form a key. A request that lacks one of them is not under the policy.
    /// Without a scope, all requests share one key.
    #[serde(default)]
    scope: List<Parsed<AttributeName>>,
    /// Most cost per window. 0 denies every request that costs anything.
    limit: Option<u64>,
    /// The window's length, 1 ms to 366 days.
    window: Option<Window>,
    /// Limit and window in one, instead of both.
    quota: Option<Parsed<Quota>>,
    /// How cost is counted: `sliding-log` is exact.
    #[schemars(extend("default" = "sliding-log"))]
    algorithm: Option<Parsed<slidegate::Algorithm>>,
    /// What a token bucket admits at once. The limit, unless given.
    #[schemars(range(min = 1))]
    burst: Option<u64>,
    /// Most entries in the log of a key. With a larger limit, a charge may count up to `window / slots` too long.
    #[schemars(range(min = 1, max = 65534), extend("default" = 1024))]
    slots: Option<u16>,
    /// Whether the policy denies requests or only reports what it would deny.
    #[schemars(extend("default" = "enforce"))]
    mode: Option<Mode>,
    /// What happens to a cost that exceeds what remains: `refuse` denies it and charges nothing, `charge` admits it
    /// while anything remains and charges all of it, `count` denies it and still charges it.
    #[schemars(extend("default" = "refuse"))]
    excess: Option<Parsed<Excess>>,
    /// What to do while the shared store does not answer: count in this process's memory, allow, or deny.
    #[schemars(extend("default" = "local"))]
    on_store_error: Option<Parsed<OnStoreError>>,
    /// Keys with a quota of their own: a map if the scope has one attribute, otherwise a list.
    overrides: Option<Overrides>,
    /// How many bits of an IPv6 address in the scope are counted by.
    #[schemars(range(min = 32, max = 128), extend("default" = 56))]
    ipv6_prefix: Option<u8>,
    /// A quota to try beside this one, on the same requests and denying none.
    candidate: Option<Candidate>,
    /// How keys are shown in the log, events, top keys and pages.
    #[schemars(extend("default" = "plain"))]
    pub(super) keys_shown: Option<KeysShown>,
}

/// A quota in one text, or what differs from the policy's.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Candidate {
    Scalar(Parsed<Quota>),
    Map(QuotaSpec),
}

/// Whether a policy's denials deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// Deny requests over the limit.
    Enforce,
    /// Report what would be denied, and deny nothing.
    Shadow,
}

impl Mode {
    pub(crate) fn of(policy: &Policy) -> Self {
        if policy.is_enforced() { Self::Enforce } else { Self::Shadow }
    }
}

/// What a policy counts by, and which attributes are addresses.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub(super) attributes: Vec<String>,
    pub(super) addresses: &'a [String],
}

impl Scope<'_> {
    pub(super) fn is_address(&self, attribute: &str) -> bool {
        self.addresses.iter().any(|address| address == attribute)
    }
}

impl PolicySpec {
    fn quota(&self) -> QuotaSpec {
        let Self { quota, limit, window, algorithm, burst, slots, .. } = *self;
        QuotaSpec { quota, limit, window, algorithm, burst, slots }
    }

    /// The policy and its candidate. Where something is invalid, it is reported and a default stands for it, so that
    /// the rest is checked as well.
    pub(super) fn build(
        self,
        section: &Section<'_>,
        addresses: &[String],
        findings: &mut Findings,
    ) -> (Policy, Option<Quota>) {
        let spec = self.quota();
        let quota = build_quota(&spec, section, findings);
        let name = &self.name.0.0;
        let scope = Scope { attributes: attributes("scope", &self.scope, section, findings), addresses };
        let policy = Policy::new(name, quota.unwrap_or(Quota::per_minute(1)));
        let mut policy = policy.expect("the name was checked").scope(scope.attributes.clone());
        for (attribute, condition) in condition::matches(&self.when, &scope, section, findings) {
            policy = policy.when(attribute, condition);
        }
        if self.mode == Some(Mode::Shadow) {
            policy = policy.shadow();
        }
        policy = policy
            .excess(self.excess.map(|excess| excess.0).unwrap_or_default())
            .on_store_error(self.on_store_error.map(|fallback| fallback.0).unwrap_or_default());
        if let Some(bits) = self.ipv6_prefix {
            if scope.attributes.iter().any(|attribute| scope.is_address(attribute)) {
                policy = policy.ipv6_prefix(Ipv6Prefix::new(bits).expect("the range was checked"));
            } else if !section.has_rejected(&["scope"]) {
                let message = "invalid ipv6_prefix: the scope has no address; leave it out, or write for example \
                               `scope: [ip]`";
                section.report("ipv6_prefix", message, findings);
            }
        }
        // An override of an invalid policy is checked, but has no quota.
        let base = quota.map(|_| spec);
        if let Some(overrides) = &self.overrides {
            for (key, quota) in overrides::overrides(overrides, base.as_ref(), &scope, section, findings) {
                policy = policy.with_override(key.iter().map(overrides::Part::borrowed), quota);
            }
        }
        if let Err(error) = PolicySet::new([policy.clone()]) {
            findings.add(section.line_of("overrides"), error);
        }
        let candidate = self.candidate.as_ref().and_then(|candidate| {
            let (spec, section) = match candidate {
                Candidate::Scalar(quota) => (QuotaSpec::text(quota.0), section.clone()),
                Candidate::Map(spec) => (*spec, section.child("candidate")?),
            };
            build_quota(&spec.over(base.as_ref()?), &section, findings)
        });
        candidate_name(name, self.candidate.is_some(), section, findings);
        (policy, candidate)
    }
}

/// The quota that a section says; its mistakes are reported, unless they follow from others.
pub(super) fn build_quota(spec: &QuotaSpec, section: &Section<'_>, findings: &mut Findings) -> Option<Quota> {
    let follows = section.has_rejected(&QuotaSpec::KEYS);
    spec.quota()
        .map_err(|mistakes| {
            for (key, message) in mistakes.into_iter().filter(|_| !follows) {
                section.report(key, message, findings);
            }
        })
        .ok()
        .filter(|_| !follows)
}

/// Names of attributes, each once.
pub(super) fn attributes(
    key: &str,
    names: &List<Parsed<AttributeName>>,
    section: &Section<'_>,
    findings: &mut Findings,
) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for Parsed(AttributeName(name)) in names.as_slice() {
        if unique.contains(name) {
            let message = format_args!("invalid {key}: contains `{name}` twice; keep one");
            section.report(key, message, findings);
        } else {
            unique.push(name.clone());
        }
    }
    unique
}

/// Reports a name that collides with that of a candidate, which is the policy's with an ending.
fn candidate_name(name: &str, has_candidate: bool, section: &Section<'_>, findings: &mut Findings) {
    const MAX_NAME: usize = Policy::MAX_NAME - CANDIDATE.len();
    if candidate_of(name).is_some() {
        let message = format_args!(
            "invalid name `{name}`: must not end in `{CANDIDATE}`, which is for candidates; choose another"
        );
        section.report("name", message, findings);
    }
    if has_candidate && name.len() > MAX_NAME {
        let message = format_args!(
            "invalid name `{name}`: must have at most {MAX_NAME} characters with a candidate, not {}",
            name.len()
        );
        section.report("name", message, findings);
    }
}

impl Text for Excess {
    const FORMAT: &'static str = "excess";
    const EXPECTED: &'static str = "`refuse`, `charge` (admit a cost while anything remains) or `count` (deny it and \
                                    still count it)";
    const CHOICES: &'static [&'static str] = &["refuse", "charge", "count"];

    fn parse(text: &str) -> Result<Self, String> {
        Self::from_name(text).ok_or_else(String::new)
    }
}

impl Text for OnStoreError {
    const FORMAT: &'static str = "on-store-error";
    const EXPECTED: &'static str = "`local` (count in memory meanwhile), `allow` or `deny`";
    const CHOICES: &'static [&'static str] = &["local", "allow", "deny"];

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "local" => Ok(Self::Local),
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            _ => Err(String::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{Algorithm, Excess};

    use crate::config::tests::{error, errors, policy, policy_error};

    /// The two forms must never come to mean two things.
    #[test]
    fn a_quota_is_a_limit_and_a_window() {
        for keys in [
            "quota: 100/1m",
            "limit: 100, window: 60s",
            "limit: 1_0_0, window: 1 minute",
            "quota: 100 per MINUTE",
        ] {
            assert_eq!(policy(keys).quota().to_string(), "100/1m", "{keys}");
        }
        let bucket = policy("quota: 10/s, algorithm: token-bucket, burst: 50");
        assert_eq!((bucket.quota().algorithm(), bucket.quota().burst()), (Algorithm::TokenBucket, 50));
        assert_eq!(policy("quota: 10/s, slots: 65_534").quota().slots(), 65_534);
        assert_eq!(policy("quota: 10/s").on_excess(), Excess::Refuse);
        assert_eq!(policy("quota: 10/s, excess: charge").on_excess(), Excess::Charge);
        assert_eq!(policy("quota: 10/s, excess: count").on_excess(), Excess::Count);
        assert_eq!(policy("quota: 10/s, scope: user").scope_attributes(), ["user"]);
        assert!(
            !policy("quota: 10/s, mode: shadow").is_enforced()
                && policy("quota: 10/s, mode: enforce").is_enforced()
        );
    }

    /// Whoever mistypes a key of a policy reads the line, the value and the way out.
    #[test]
    fn each_wrong_key_names_its_value_and_the_way_out() {
        for (keys, expected) in [
            (
                "limit: -5, window: 1s",
                "invalid limit `-5`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: 1.5, window: 1s",
                "invalid limit `1.5`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: 1e3, window: 1s",
                "invalid limit `1e3`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: 010, window: 1s",
                "invalid limit `010`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: 18446744073709551616, window: 1s",
                "invalid limit `18446744073709551616`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: many, window: 1s",
                "invalid limit `many`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: '100', window: 1s",
                "invalid limit `100`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: , window: 1s",
                "invalid limit (empty): must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: [1], window: 1s",
                "invalid limit (a list): must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "limit: true, window: 1s",
                "invalid limit `true`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            ("limit: 5", "missing window: write it, for example `window: 60s`"),
            ("window: 5s", "missing limit: write it, for example `limit: 100`"),
            (
                "limit: 5, window: 60",
                "invalid window `60`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`",
            ),
            (
                "limit: 5, window: '60'",
                "invalid window `60`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`",
            ),
            (
                "limit: 5, window: -1s",
                "invalid window `-1s`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`",
            ),
            (
                "limit: 5, window: 0.5",
                "invalid window `0.5`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`",
            ),
            (
                "limit: 5, window: 2 fortnights",
                "invalid window `2 fortnights`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`",
            ),
            (
                "limit: 5, window: 0s",
                "invalid window `0s`: must be 1ms to 366d with a unit (ms, s, m, h, d or w), for example `window: 60s`",
            ),
            (
                "quota: 5/0s",
                "invalid quota `5/0s`: invalid window `0s`: must be 1ms to 366d, for example `1m`",
            ),
            ("quota: 5", "invalid quota `5`: no window; write `limit/window`, for example `100/1m`"),
            ("quota: five", "invalid quota `five`: no window; write `limit/window`, for example `100/1m`"),
            (
                "quota: 5/1s, window: 1s",
                "invalid quota: conflicts with limit or window; keep `quota`, or keep `limit` and `window`",
            ),
            (
                "quota: 5/1s, algorithm: magic",
                "invalid algorithm `magic`: must be `sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`",
            ),
            (
                "quota: 5/1s, algorithm: sliding-window-counter",
                "invalid algorithm `sliding-window-counter`: must be `sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`; did you mean `sliding-window`?",
            ),
            (
                "quota: 5/1s, burst: 5",
                "invalid burst `5`: the algorithm is sliding-log and only token-bucket has burst; leave it out or write `algorithm: token-bucket`",
            ),
            (
                "quota: 5/1s, algorithm: token-bucket, burst: 0",
                "invalid burst `0`: must be a whole number from 1 to 18446744073709551615, without quotes",
            ),
            (
                "quota: 5/1s, algorithm: fixed-window, slots: 5",
                "invalid slots `5`: the algorithm is fixed-window and only sliding-log has slots; leave it out or write `algorithm: sliding-log`",
            ),
            (
                "quota: 5/1s, slots: 65535",
                "invalid slots `65535`: must be a whole number from 1 to 65534, without quotes",
            ),
            (
                "quota: 5/1s, slots: 0",
                "invalid slots `0`: must be a whole number from 1 to 65534, without quotes",
            ),
            (
                "quota: 5/1s, mode: true",
                "invalid mode `true`: must be `enforce` (deny requests over the limit) or `shadow` (report what would be denied, and deny nothing)",
            ),
            (
                "quota: 5/1s, scope: 'user, path'",
                "invalid scope `user, path`: must be the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; write several as a list, for example `[user, path]`",
            ),
            ("quota: 5/1s, scope: [a, b, a]", "invalid scope: contains `a` twice; keep one"),
            (
                "quota: 5/1s, scope: ",
                "invalid scope (empty): must be the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; write several as a list, for example `[user, path]`, or a list of them",
            ),
            (
                "quota: 5/1s, scope: [ip], ipv6_prefix: 129",
                "invalid ipv6_prefix `129`: must be a whole number from 32 to 128, without quotes",
            ),
            (
                "quota: 5/1s, scope: [ip], ipv6_prefix: 300",
                "invalid ipv6_prefix `300`: must be a whole number from 32 to 128, without quotes",
            ),
            (
                "quota: 5/1s, scope: [user], ipv6_prefix: 64",
                "invalid ipv6_prefix: the scope has no address; leave it out, or write for example `scope: [ip]`",
            ),
            (
                "quota: 5/1s, excess: allow",
                "invalid excess `allow`: must be `refuse`, `charge` (admit a cost while anything remains) or `count` (deny it and still count it)",
            ),
            (
                "quota: 5/1s, colour: red",
                "unknown key `colour`: must be `algorithm`, `burst`, `candidate`, `excess`, `ipv6_prefix`, `keys_shown`, `limit`, `mode`, `name`, `on_store_error`, `overrides`, `quota`, `scope`, `slots`, `when` or `window`",
            ),
        ] {
            assert_eq!(policy_error(keys), expected);
        }
    }

    /// A policy without a name is still read to its end.
    #[test]
    fn a_policy_that_cannot_be_named_is_called_by_its_place() {
        assert_eq!(
            errors("policies:\n  - {name: a, quota: 1/1s}\n  - quota: 1/1s\n    mode: dry\n"),
            [
                "slidegate.yaml:3: policy 2: missing name: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`",
                "slidegate.yaml:4: policy 2: invalid mode `dry`: must be `enforce` (deny requests over the limit) or `shadow` (report what would be denied, and deny nothing)",
            ]
        );
        assert_eq!(
            error("policies:\n  - quota: 1/1s\n    name: per user\n"),
            "slidegate.yaml:3: policy `per user`: invalid name `per user`: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, for example `per-user`"
        );
        assert_eq!(
            error("policies:\n  - per-user\n"),
            "slidegate.yaml:2: invalid policies `per-user`: must be keys and values, for example `name: per-user`"
        );
    }

    /// What is tried must be what was written, or the numbers that it shows are about something else.
    #[test]
    fn a_candidate_takes_from_its_policy_what_it_does_not_say() {
        let candidate = |keys: &str| {
            let text = format!("policies:\n  - {{name: p, {keys}}}\n");
            let config = crate::config::Config::parse(&text, "slidegate.yaml").unwrap();
            let quota = config.candidates["p"];
            (quota.to_string(), quota.algorithm().name(), quota.burst())
        };
        let bucket = "quota: 5/1m, algorithm: token-bucket, burst: 9";
        assert_eq!(candidate(&format!("{bucket}, candidate: 7/1h")), ("7/1h".into(), "token-bucket", 9));
        assert_eq!(
            candidate(&format!("{bucket}, candidate: {{limit: 7}}")),
            ("7/1m".into(), "token-bucket", 9)
        );
        let other = format!("{bucket}, candidate: {{quota: 7/1h, algorithm: sliding-log}}");
        assert_eq!(candidate(&other), ("7/1h".into(), "sliding-log", 7));
        assert_eq!(
            policy_error("quota: 5/1m, candidate: 7"),
            "invalid candidate `7`: invalid quota `7`: no window; write `limit/window`, for example `100/1m`"
        );
        assert_eq!(
            policy_error("quota: 5/1m, candidate: {limit: 7, when: x}"),
            "candidate: unknown key `when`: must be `algorithm`, `burst`, `limit`, `quota`, `slots` or `window`"
        );
        assert_eq!(
            error("policies: [{name: p.candidate, quota: 1/1s}]\n"),
            "slidegate.yaml:1: policy `p.candidate`: invalid name `p.candidate`: must not end in `.candidate`, which is for candidates; choose another"
        );
    }
}

//! One policy of the file: its name, quota, scope, conditions and overrides.

use std::time::Duration;

use slidegate::client_addr::Ipv6Prefix;
use slidegate::{Algorithm, Excess, OnStoreError, Policy, PolicySet, Quota};

use super::file::{Node, Shown, Value};
use super::section::{Section, text, whole, wrong};
use super::{Findings, condition, observe, overrides, resolve};
use crate::policy_names::{CANDIDATE, candidate_of};

/// Every key of a policy.
const KEYS: [&str; 16] = [
    "name",
    "when",
    "scope",
    "limit",
    "window",
    "quota",
    "algorithm",
    "burst",
    "slots",
    "mode",
    "excess",
    "on_store_error",
    "overrides",
    "ipv6_prefix",
    "candidate",
    "keys_shown",
];
const LIMIT: &str = "give a whole number from 0 to 18446744073709551615, for example `limit: 100`";
const WINDOW: &str = "give a number and a unit, for example `window: 60s`";
const QUOTA: &str = "give a limit and a window, for example `quota: 100/1m`";
const BURST: &str = "give a whole number from 1, for example `burst: 20`";
const MAX_SLOTS: u64 = 65_534;

/// How a policy counts, its overrides included.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// `None` if it is wrong, which was found.
    algorithm: Option<Algorithm>,
    burst: Option<u64>,
    slots: Option<u16>,
    /// The window of the policy, for overrides that give a limit only.
    window: Option<Duration>,
}

/// What a policy counts by, and which attributes are addresses.
#[derive(Debug)]
pub(super) struct Scope<'f> {
    pub(super) attributes: Vec<String>,
    addresses: &'f [String],
}

impl Scope<'_> {
    pub(super) fn is_address(&self, attribute: &str) -> bool {
        self.addresses.iter().any(|address| address == attribute)
    }
}

/// Reads the policy that stands `at`-th in the file, from 1. `None` if it has no name that can be compared.
///
/// What it returns is meant only if nothing was found: a wrong name or quota is replaced to find what else is wrong.
pub(super) fn policy(
    node: &Node,
    at: usize,
    addresses: &[String],
    findings: &mut Findings,
) -> Option<(Policy, Option<Quota>)> {
    let name = node.get("name").and_then(Node::scalar).filter(|name| !name.is_empty());
    let place = name.map_or_else(|| format!("policy {at}"), |name| format!("policy `{}`", Shown(name)));
    let mut section = Section::of(node, place, "name: per-user", findings)?;
    section.expect_only(&KEYS, findings);
    let (quota, terms) = quota_and_terms(&section, findings);
    let named = name_of(&section, findings).and_then(|name| match Policy::new(name, quota) {
        Ok(policy) => Some(policy),
        Err(error) => {
            findings.add(section.line_of("name"), error);
            None
        }
    });
    let is_named = named.is_some();
    let mut policy = named
        .unwrap_or_else(|| Policy::new("unnamed", quota).expect("a name of letters is one"))
        .scope(scope(&section, findings));

    let scope = Scope { attributes: policy.scope_attributes().to_vec(), addresses };
    for (attribute, condition) in condition::conditions(&section, &scope, findings) {
        policy = policy.when(attribute, condition);
    }
    if section.read("mode", findings, is_shadow) == Some(true) {
        policy = policy.shadow();
    }
    if let Some(excess) = section.read("excess", findings, excess) {
        policy = policy.excess(excess);
    }
    if let Some(fallback) = section.read("on_store_error", findings, on_store_error) {
        policy = policy.on_store_error(fallback);
    }
    if let Some(prefix) = ipv6_prefix(&section, &scope, findings) {
        policy = policy.ipv6_prefix(prefix);
    }
    // It concerns what is told of the policy; `observe.rs` takes it from there.
    let _ = section.read("keys_shown", findings, observe::keys_shown);
    for (key, quota) in overrides::overrides(&section, &terms, &scope, findings) {
        policy = policy.with_override(key.iter().map(overrides::Part::borrowed), quota);
    }
    if let Err(error) = PolicySet::new([policy.clone()]) {
        findings.add(section.line_of("overrides"), error);
    }
    let candidate = candidate(&section, &terms, policy.name(), findings);
    is_named.then_some((policy, candidate))
}

/// A quota that is tried beside the policy's own.
fn candidate(section: &Section<'_>, terms: &Terms, name: &str, findings: &mut Findings) -> Option<Quota> {
    const MAX_NAME: usize = Policy::MAX_NAME - CANDIDATE.len();
    if candidate_of(name).is_some() {
        let message =
            format_args!("the name ends in `{CANDIDATE}`, which candidates of policies have; choose another");
        section.find(section.line_of("name"), message, findings);
    }
    let node = section.get("candidate")?;
    if name.len() > MAX_NAME {
        let message =
            format_args!("the name has {} characters; {MAX_NAME} is the most beside a candidate", name.len());
        section.find(section.line_of("name"), message, findings);
    }
    if let Value::Text(_) = node.value {
        let quota = section.read("candidate", findings, quota_text)?;
        return Some(terms.apply(quota, None));
    }
    let place = format!("{}: candidate", section.place());
    let mut own = Section::of(node, place, "quota: 200/1m", findings)?;
    own.expect_only(&["limit", "window", "quota", "algorithm", "burst", "slots"], findings);
    let says_how = ["algorithm", "burst", "slots"].iter().any(|key| own.get(key).is_some());
    let own_terms =
        if says_how { Terms { window: terms.window, ..self::terms(&own, findings) } } else { *terms };
    let (quota, _) = quota(&own, Some(terms), findings);
    Some(own_terms.apply(quota?, None))
}

fn name_of<'f>(section: &Section<'f>, findings: &mut Findings) -> Option<&'f str> {
    const NAME: &str = "write for example `name: per-user`";
    section.expect("name", NAME, findings);
    section.read("name", findings, |node| text("name", node, NAME))
}

fn scope(section: &Section<'_>, findings: &mut Findings) -> Vec<String> {
    let node = section.get("scope");
    node.map(|node| resolve::names("scope", node, section, findings)).unwrap_or_default()
}

fn quota_and_terms(section: &Section<'_>, findings: &mut Findings) -> (Quota, Terms) {
    let terms = terms(section, findings);
    let (quota, window) = quota(section, None, findings);
    let terms = Terms { window, ..terms };
    (terms.apply(quota.unwrap_or(Quota::per_minute(1)), None), terms)
}

/// Reads `quota`, or `limit` and `window`. The second is the window, if it alone is right.
///
/// An override is under `terms` and may leave the window out.
pub(super) fn quota(
    section: &Section<'_>,
    terms: Option<&Terms>,
    findings: &mut Findings,
) -> (Option<Quota>, Option<Duration>) {
    if let Some(node) = section.get("quota") {
        if section.get("limit").or(section.get("window")).is_some() {
            let message = "quota stands beside limit or window; keep `quota`, or keep `limit` and `window`";
            section.find(node.line, message, findings);
        }
        let quota = section.read("quota", findings, quota_text);
        return (quota, quota.map(|quota| quota.window()));
    }
    if section.is_misspelt("quota") {
        return (None, None);
    }
    section.expect("limit", "write for example `limit: 100`", findings);
    let limit = section.read("limit", findings, |node| whole("limit", node, LIMIT));
    let window = match (section.get("window"), terms) {
        (None, Some(terms)) => terms.window,
        _ => {
            section.expect("window", "write for example `window: 60s`", findings);
            section.read("window", findings, window)
        }
    };
    (limit.zip(window).and_then(|(limit, window)| Quota::new(limit, window).ok()), window)
}

/// Reads a quota's text form.
pub(super) fn quota_text(node: &Node) -> Result<Quota, String> {
    let Value::Text(quota) = &node.value else { return Err(wrong("quota", node, QUOTA)) };
    quota.parse().map_err(|error: slidegate::Error| error.to_string())
}

/// Reads a window. A number without a unit is refused: seconds to some, milliseconds to others.
fn window(node: &Node) -> Result<Duration, String> {
    match &node.value {
        Value::Text(text) => Quota::parse_window(text).map_err(|error| error.to_string()),
        Value::Number(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("window is {number} without a unit; write `window: {number}s` if those are seconds"))
        }
        _ => Err(wrong("window", node, WINDOW)),
    }
}

fn terms(section: &Section<'_>, findings: &mut Findings) -> Terms {
    let algorithm = match section.get("algorithm") {
        Some(_) => section.read("algorithm", findings, |node| {
            resolve::algorithm(text("algorithm", node, "write for example `algorithm: sliding-log`")?)
        }),
        None => Some(Algorithm::default()),
    };
    let burst = section.read("burst", findings, |node| burst(node, algorithm));
    let slots = section.read("slots", findings, |node| {
        only_for("slots", Algorithm::SlidingLog, algorithm)?;
        let way_out = "give 1 to 65534, for example `slots: 1024`";
        let slots = whole("slots", node, way_out)?;
        let slots = u16::try_from(slots).ok().filter(|_| (1..=MAX_SLOTS).contains(&slots));
        slots.ok_or_else(|| wrong("slots", node, way_out))
    });
    Terms { algorithm, burst, slots, window: None }
}

/// Reads a burst. Zero would deny everything, which `limit: 0` says better, and is how others write one.
pub(super) fn burst(node: &Node, algorithm: Option<Algorithm>) -> Result<u64, String> {
    only_for("burst", Algorithm::TokenBucket, algorithm)?;
    match whole("burst", node, BURST)? {
        0 => Err(wrong("burst", node, BURST)),
        burst => Ok(burst),
    }
}

/// Refuses a key that the policy's algorithm does not read. An algorithm that is wrong itself refuses nothing.
fn only_for(key: &str, reads_it: Algorithm, algorithm: Option<Algorithm>) -> Result<(), String> {
    match algorithm {
        Some(other) if other != reads_it => Err(format!(
            "{key} is read by {reads_it} only and the algorithm is {other}; leave it out or write `algorithm: {reads_it}`"
        )),
        _ => Ok(()),
    }
}

impl Terms {
    /// The quota under these terms, with a burst of its own if it has one.
    pub(super) fn apply(&self, quota: Quota, burst: Option<u64>) -> Quota {
        let quota = quota.with_algorithm(self.algorithm.unwrap_or_default());
        let quota = if let Some(burst) = burst.or(self.burst) { quota.with_burst(burst) } else { quota };
        if let Some(slots) = self.slots { quota.with_slots(slots) } else { quota }
    }

    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// The policy's window. `None` if it is wrong, which was found.
    pub(super) fn window(&self) -> Option<Duration> {
        self.window
    }
}

fn is_shadow(node: &Node) -> Result<bool, String> {
    match node.scalar() {
        Some("shadow") => Ok(true),
        Some("enforce") => Ok(false),
        _ => Err(wrong("mode", node, "write `mode: enforce` to deny, or `mode: shadow` to report only")),
    }
}

fn excess(node: &Node) -> Result<Excess, String> {
    match node.scalar() {
        Some("refuse") => Ok(Excess::Refuse),
        Some("charge") => Ok(Excess::Charge),
        Some("count") => Ok(Excess::Count),
        _ => {
            const WAY: &str = "write `excess: refuse`, `excess: charge` to admit a cost while anything remains, or `excess: count` \
                 to deny it and still count it";
            Err(wrong("excess", node, WAY))
        }
    }
}

fn on_store_error(node: &Node) -> Result<OnStoreError, String> {
    match node.scalar() {
        Some("local") => Ok(OnStoreError::Local),
        Some("allow") => Ok(OnStoreError::Allow),
        Some("deny") => Ok(OnStoreError::Deny),
        _ => Err(wrong(
            "on_store_error",
            node,
            "write `local` to count in memory meanwhile, `allow` or `deny`",
        )),
    }
}

fn ipv6_prefix(section: &Section<'_>, scope: &Scope<'_>, findings: &mut Findings) -> Option<Ipv6Prefix> {
    section.read("ipv6_prefix", findings, |node| {
        const BITS: &str = "give 32 to 128, for example `ipv6_prefix: 56`";
        if !scope.attributes.iter().any(|attribute| scope.is_address(attribute)) {
            return Err(
                "ipv6_prefix stands without an address in the scope; leave it out or write for example \
                        `scope: [ip]`"
                    .to_owned(),
            );
        }
        let bits = u8::try_from(whole("ipv6_prefix", node, BITS)?).ok();
        bits.and_then(|bits| Ipv6Prefix::new(bits).ok()).ok_or_else(|| wrong("ipv6_prefix", node, BITS))
    })
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
        let limit = "give a whole number from 0 to 18446744073709551615, for example `limit: 100`";
        let window = "give a number and a unit, for example `window: 60s`";
        let units = "use ms, s, m, h, d or w, for example `30s`";
        let burst = "give a whole number from 1, for example `burst: 20`";
        for (keys, expected) in [
            ("limit: -5, window: 1s", format!("limit is -5; {limit}")),
            ("limit: 1.5, window: 1s", format!("limit is 1.5; {limit}")),
            ("limit: 1e3, window: 1s", format!("limit is 1e3; {limit}")),
            ("limit: 010, window: 1s", format!("limit is 010; {limit}")),
            ("limit: 18446744073709551616, window: 1s", format!("limit is 18446744073709551616; {limit}")),
            ("limit: many, window: 1s", format!("limit is `many`; {limit}")),
            ("limit: '100', window: 1s", "limit is the text `100`; write the number without quotes".into()),
            ("limit: , window: 1s", format!("limit is empty; {limit}")),
            ("limit: [1], window: 1s", format!("limit is a list; {limit}")),
            ("limit: true, window: 1s", format!("limit is true; {limit}")),
            ("limit: 5", "window is missing; write for example `window: 60s`".into()),
            ("window: 5s", "limit is missing; write for example `limit: 100`".into()),
            ("limit: 5, window: 60", "window is 60 without a unit; write `window: 60s` if those are seconds".into()),
            ("limit: 5, window: '60'", format!("invalid window `60`: must be a number and a unit; {units}")),
            ("limit: 5, window: -1s", format!("invalid window `-1s`: must be a number and a unit; {units}")),
            ("limit: 5, window: 0.5", format!("window is 0.5; {window}")),
            ("limit: 5, window: 2 fortnights", format!("invalid window `2 fortnights`: unknown unit `fortnights`; {units}")),
            ("limit: 5, window: 0s", "invalid window `0s`: must be 1ms to 366d, for example `1m`".into()),
            ("quota: 5/0s", "invalid window `0s`: must be 1ms to 366d, for example `1m`".into()),
            ("quota: 5", "quota is 5; give a limit and a window, for example `quota: 100/1m`".into()),
            ("quota: five", "invalid quota `five`: no window; write `limit/window`, for example `100/1m`".into()),
            (
                "quota: 5/1s, window: 1s",
                "quota stands beside limit or window; keep `quota`, or keep `limit` and `window`".into(),
            ),
            (
                "quota: 5/1s, algorithm: magic",
                "invalid algorithm `magic`: must be `sliding-log`, `sliding-window`, `fixed-window` or `token-bucket`".into(),
            ),
            (
                "quota: 5/1s, algorithm: sliding-window-counter",
                "algorithm is `sliding-window-counter`; here it is `sliding-window`".into(),
            ),
            (
                "quota: 5/1s, burst: 5",
                "burst is read by token-bucket only and the algorithm is sliding-log; leave it out or write `algorithm: \
                 token-bucket`"
                    .into(),
            ),
            ("quota: 5/1s, algorithm: token-bucket, burst: 0", format!("burst is 0; {burst}")),
            (
                "quota: 5/1s, algorithm: fixed-window, slots: 5",
                "slots is read by sliding-log only and the algorithm is fixed-window; leave it out or write `algorithm: \
                 sliding-log`"
                    .into(),
            ),
            ("quota: 5/1s, slots: 65535", "slots is 65535; give 1 to 65534, for example `slots: 1024`".into()),
            ("quota: 5/1s, slots: 0", "slots is 0; give 1 to 65534, for example `slots: 1024`".into()),
            (
                "quota: 5/1s, mode: true",
                "mode is true; write `mode: enforce` to deny, or `mode: shadow` to report only".into(),
            ),
            (
                "quota: 5/1s, scope: 'user, path'",
                "scope: `user, path` is not the name of an attribute: 1 to 128 bytes without spaces, commas and \
                 brackets; write several as a list, for example `[user, path]`"
                    .into(),
            ),
            ("quota: 5/1s, scope: [a, b, a]", "scope has `a` twice; keep one".into()),
            ("quota: 5/1s, scope: ", "scope is empty; give the names of attributes, for example `[user, path]`".into()),
            (
                "quota: 5/1s, scope: [ip], ipv6_prefix: 129",
                "ipv6_prefix is 129; give 32 to 128, for example `ipv6_prefix: 56`".into(),
            ),
            (
                "quota: 5/1s, scope: [ip], ipv6_prefix: 300",
                "ipv6_prefix is 300; give 32 to 128, for example `ipv6_prefix: 56`".into(),
            ),
            (
                "quota: 5/1s, scope: [user], ipv6_prefix: 64",
                "ipv6_prefix stands without an address in the scope; leave it out or write for example `scope: [ip]`".into(),
            ),
            (
                "quota: 5/1s, excess: allow",
                "excess is `allow`; write `excess: refuse`, `excess: charge` to admit a cost while anything remains, or \
                 `excess: count` to deny it and still count it".into(),
            ),
            (
                "quota: 5/1s, colour: red",
                "unknown key `colour`; known are `name`, `when`, `scope`, `limit`, `window`, `quota`, `algorithm`, \
                 `burst`, `slots`, `mode`, `excess`, `on_store_error`, `overrides`, `ipv6_prefix`, `candidate`, \
                 `keys_shown`"
                    .into(),
            ),
        ] {
            assert_eq!(policy_error(keys), expected, "{keys}");
        }
    }

    /// A policy without a name is still read to its end.
    #[test]
    fn a_policy_that_cannot_be_named_is_called_by_its_place() {
        assert_eq!(
            errors("policies:\n  - {name: a, quota: 1/1s}\n  - quota: 1/1s\n    mode: dry\n"),
            [
                "slidegate.yaml:3: policy 2: name is missing; write for example `name: per-user`",
                "slidegate.yaml:4: policy 2: mode is `dry`; write `mode: enforce` to deny, or `mode: shadow` to report \
                 only",
            ]
        );
        assert_eq!(
            error("policies:\n  - quota: 1/1s\n    name: per user\n"),
            "slidegate.yaml:3: invalid policy name `per user`: must be 1 to 64 of the characters A-Z a-z 0-9 _ . -, for \
             example `per-user`"
        );
        assert_eq!(
            error("policies:\n  - per-user\n"),
            "slidegate.yaml:2: policy 1 is `per-user`; write keys and values, for example `name: per-user`"
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
            "candidate is 7; write keys and values, for example `quota: 200/1m`"
        );
        assert_eq!(
            policy_error("quota: 5/1m, candidate: {limit: 7, when: x}"),
            "candidate: unknown key `when`; known are `limit`, `window`, `quota`, `algorithm`, `burst`, `slots`"
        );
        assert_eq!(
            error("policies: [{name: p.candidate, quota: 1/1s}]\n"),
            "slidegate.yaml:1: policy `p.candidate`: the name ends in `.candidate`, which candidates of policies have; \
             choose another"
        );
    }
}

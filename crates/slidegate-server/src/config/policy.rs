//! One policy of the file: its name, quota, scope, conditions and overrides.

use std::time::Duration;

use slidegate::client_addr::Ipv6Prefix;
use slidegate::{Algorithm, Policy, PolicySet, Quota, parse_window};

use super::file::{Node, Shown, Value};
use super::section::{Section, text, whole, wrong};
use super::{Findings, condition, overrides, resolve};

/// Every key of a policy.
const KEYS: [&str; 12] = [
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
    "overrides",
    "ipv6_prefix",
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
) -> Option<Policy> {
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
    if let Some(prefix) = ipv6_prefix(&section, &scope, findings) {
        policy = policy.ipv6_prefix(prefix);
    }
    for (key, quota) in overrides::overrides(&section, &terms, &scope, findings) {
        policy = policy.with_override(key.iter().map(overrides::Part::borrowed), quota);
    }
    if let Err(error) = PolicySet::new([policy.clone()]) {
        findings.add(section.line_of("overrides"), error);
    }
    is_named.then_some(policy)
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
        Value::Text(text) => {
            // The library knows which windows there are.
            let window = parse_window(text).map_err(|error| error.to_string())?;
            Quota::new(1, window).map(|quota| quota.window()).map_err(|error| error.to_string())
        }
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

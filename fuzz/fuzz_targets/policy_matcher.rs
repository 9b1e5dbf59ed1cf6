//! Which policies a request is charged under, by the set's plan and by a naive reading of each rule.

#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use slidegate::fuzzing::planned;
use slidegate::{Match, Policy, PolicySet, Quota, Request, Value};

const NAMES: [&str; 4] = ["user", "path", "ip", "plan"];

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    policies: Vec<Rule<'a>>,
    attributes: Vec<(u8, Attribute<'a>)>,
    under: Option<u8>,
}

#[derive(Debug, Arbitrary)]
struct Rule<'a> {
    when: Vec<(u8, Condition<'a>)>,
    /// A bit for each attribute.
    scope: u8,
    only_when_named: bool,
}

#[derive(Debug, Arbitrary)]
enum Condition<'a> {
    Equals(&'a str),
    OneOf(&'a str, &'a str),
    Prefix(&'a str),
    Glob(&'a str),
    Network([u8; 4], u8),
    WideNetwork([u8; 16], u8),
    Present,
    Absent,
}

#[derive(Debug, Clone, Copy, Arbitrary)]
enum Attribute<'a> {
    Bytes(&'a [u8]),
    V4([u8; 4]),
    V6([u8; 16]),
}

impl Attribute<'_> {
    fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Bytes(_) => None,
            Self::V4(octets) => Some(Ipv4Addr::from(*octets).into()),
            Self::V6(octets) => Some(Ipv6Addr::from(*octets).into()),
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let rules: Vec<_> = input.policies.iter().take(6).collect();
    let policies: Option<Vec<_>> = rules.iter().enumerate().map(|(at, rule)| policy(at, rule)).collect();
    let Some(policies) = policies else { return };
    let policies = PolicySet::new(policies).unwrap();
    // The naive glob takes exponential time.
    let mut attributes = input.attributes;
    attributes.truncate(10);
    attributes.retain(|(_, value)| !matches!(value, Attribute::Bytes(bytes) if bytes.len() > 24));
    let name = |at: &u8| NAMES[usize::from(*at) % NAMES.len()];
    let mut request = attributes.iter().fold(Request::new(), |request, (at, value)| match value {
        Attribute::Bytes(bytes) => request.with(name(at), *bytes),
        _ => request.with(name(at), Value::Address(value.address().unwrap())),
    });
    let under = input.under.map(|at| format!("p{}", at % 8));
    if let Some(under) = &under {
        request = request.under(under);
    }

    let value = |wanted: &str| attributes.iter().find(|(at, _)| name(at) == wanted).map(|(_, value)| value);
    let applies = |at: usize, rule: &Rule<'_>| {
        let holds = || rule.when.iter().take(3).all(|(at, condition)| holds(condition, value(name(at))));
        let named = under.as_ref().map(|under| *under == format!("p{at}"));
        let has_scope = scope(rule).all(|attribute| value(attribute).is_some());
        named.unwrap_or_else(|| !rule.only_when_named && holds()) && has_scope
    };
    let expected = rules.iter().enumerate().filter(|(at, rule)| applies(*at, rule));
    let expected: Vec<_> = expected.map(|(at, _)| format!("p{at}")).collect();
    assert_eq!(planned(&policies, &request), expected);
});

fn scope<'r>(rule: &'r Rule<'_>) -> impl Iterator<Item = &'static str> + 'r {
    NAMES.into_iter().enumerate().filter(|(bit, _)| rule.scope & (1 << bit) != 0).map(|(_, name)| name)
}

/// `None` if a condition is invalid.
fn policy(at: usize, rule: &Rule<'_>) -> Option<Policy> {
    let mut policy = Policy::new(format!("p{at}"), Quota::per_minute(5)).unwrap().with_scope(scope(rule));
    if rule.only_when_named {
        policy = policy.with_only_when_named();
    }
    for (at, condition) in rule.when.iter().take(3) {
        let condition = match condition {
            Condition::Equals(text) => Match::equals(*text),
            Condition::OneOf(one, other) => Match::one_of([*one, *other]),
            Condition::Prefix(text) => Match::prefix(*text),
            Condition::Glob(pattern) => {
                let pattern = (pattern.len() <= 12).then_some(*pattern)?;
                Match::glob(pattern).ok()?
            }
            Condition::Network(octets, length) => network(IpAddr::from(*octets), length % 33)?,
            Condition::WideNetwork(octets, length) => network(IpAddr::from(*octets), length % 129)?,
            Condition::Present => Match::present(),
            Condition::Absent => Match::absent(),
        };
        policy = policy.with_condition(NAMES[usize::from(*at) % NAMES.len()], condition);
    }
    Some(policy)
}

fn network(address: IpAddr, length: u8) -> Option<Match> {
    Match::networks([format!("{address}/{length}")]).ok()
}

fn holds(condition: &Condition<'_>, value: Option<&Attribute<'_>>) -> bool {
    let Some(value) = value else { return matches!(condition, Condition::Absent) };
    let (bytes, address) = match value {
        Attribute::Bytes(bytes) => (Some(*bytes), None),
        _ => (None, value.address().map(|address| address.to_canonical())),
    };
    let is = |text: &str| match address {
        Some(address) => text.parse::<IpAddr>().is_ok_and(|other| other.to_canonical() == address),
        None => bytes == Some(text.as_bytes()),
    };
    match condition {
        Condition::Present => true,
        Condition::Absent => false,
        Condition::Equals(text) => is(text),
        Condition::OneOf(one, other) => is(one) || is(other),
        Condition::Prefix(prefix) => bytes.is_some_and(|bytes| bytes.starts_with(prefix.as_bytes())),
        Condition::Glob(pattern) => bytes.is_some_and(|bytes| glob(pattern.as_bytes(), bytes)),
        Condition::Network(octets, length) => is_in_v4(*octets, length % 33, address),
        Condition::WideNetwork(octets, length) => {
            let length = length % 129;
            match (Ipv6Addr::from(*octets).to_ipv4_mapped(), length.checked_sub(96)) {
                // An IPv4 network in the notation of IPv6.
                (Some(mapped), Some(length)) => is_in_v4(mapped.octets(), length, address),
                _ => {
                    let bits = |octets| u128::from_be_bytes(octets).checked_shr(128 - u32::from(length));
                    matches!(address, Some(IpAddr::V6(address)) if bits(address.octets()) == bits(*octets))
                }
            }
        }
    }
}

fn is_in_v4(network: [u8; 4], length: u8, address: Option<IpAddr>) -> bool {
    let bits = |octets| u32::from_be_bytes(octets).checked_shr(32 - u32::from(length));
    matches!(address, Some(IpAddr::V4(address)) if bits(address.octets()) == bits(network))
}

/// By the definition of the signs, every way.
fn glob(pattern: &[u8], value: &[u8]) -> bool {
    match (pattern, value) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=value.len()).any(|at| glob(rest, &value[at..])),
        ([b'?', rest @ ..], [_, tail @ ..]) => glob(rest, tail),
        ([b'\\', want, rest @ ..], [byte, tail @ ..]) => want == byte && glob(rest, tail),
        ([b'\\'], _) => false,
        ([want, rest @ ..], [byte, tail @ ..]) => want == byte && glob(rest, tail),
        _ => false,
    }
}

//! `overrides:` keys of a policy with a quota of their own.
//!
//! An override inherits what it leaves out from its policy: always the algorithm, and the window
//! and the burst unless it has its own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::yaml::Shown;
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Quota;

use super::check::{Section, element};
use super::quota::QuotaSpec;
use super::values::{List, Parsed, Scalar, Window};

/// The values of one key, one for each attribute of the scope.
type Key = Vec<Part>;

/// The value of one attribute.
#[derive(Debug)]
pub(super) enum Part {
    Text(String),
    Address(IpAddr),
}

impl Part {
    /// As the library takes it.
    pub(super) fn borrowed(&self) -> slidegate::Value<'_> {
        match self {
            Self::Text(text) => text.into(),
            Self::Address(ip) => (*ip).into(),
        }
    }
}

/// A map from keys to limits, or a list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Overrides {
    Map(BTreeMap<String, ShortOverride>),
    List(Vec<Override>),
}

/// A limit in the policy's window, or a quota.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ShortOverride {
    Number(u64),
    Scalar(Parsed<Quota>),
}

/// A key and its quota.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "key: alice, limit: 1000"))]
pub(super) struct Override {
    /// One value for each attribute of the scope, in its order.
    key: List<Scalar>,
    /// Most cost per window.
    limit: Option<u64>,
    /// The window's length. The policy's, unless given.
    window: Option<Window>,
    /// Limit and window in one.
    quota: Option<Parsed<Quota>>,
    /// What a token bucket admits at once. The policy's, unless given.
    #[schemars(range(min = 1))]
    burst: Option<u64>,
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

/// The overrides of a policy; those that are invalid are reported. Without `base`, the quotas are
/// not checked.
pub(super) fn overrides(
    overrides: &Overrides,
    base: Option<&QuotaSpec>,
    scope: &Scope<'_>,
    policy: &Section<'_>,
) -> Vec<(Key, Quota)> {
    let section = policy.child("overrides");
    match (overrides, scope.attributes.as_slice()) {
        (_, []) => {
            if !policy.has_rejected(&["scope"]) {
                let why =
                    "the policy has no scope, so it has one key only; write for example `scope: [user]`";
                policy.invalid("overrides", why);
            }
            Vec::new()
        }
        (Overrides::Map(pairs), [attribute]) => pairs
            .iter()
            .filter_map(|(text, short)| {
                let part = part(text, attribute, scope);
                let part = part.map_err(|message| section.report(text, message)).ok()?;
                let spec = match short {
                    ShortOverride::Number(limit) => QuotaSpec { limit: Some(*limit), ..QuotaSpec::default() },
                    ShortOverride::Scalar(quota) => QuotaSpec::text(quota.0),
                };
                Some((vec![part], spec.over(base?).build(&section)?))
            })
            .collect(),
        (Overrides::Map(_), attributes) => {
            let message = format!(
                "invalid overrides (a map): the scope has {} attributes; write a list, for example `[{{key: [{}], \
                 limit: 1000}}]`",
                attributes.len(),
                attributes.join("-value, ") + "-value"
            );
            policy.report("overrides", message);
            Vec::new()
        }
        (Overrides::List(list), _) => {
            let nodes = policy.elements("overrides").iter().enumerate();
            let nodes = nodes.filter(|(_, node)| !node.is_rejected.get());
            let read = |(one, (position, node)): (&Override, _)| {
                let place = format!("{}: {}", policy.place, element("overrides", node, position));
                one.build(base, scope, &policy.element(node, place))
            };
            list.iter().zip(nodes).filter_map(read).collect()
        }
    }
}

impl Override {
    fn build(
        &self,
        base: Option<&QuotaSpec>,
        scope: &Scope<'_>,
        section: &Section<'_>,
    ) -> Option<(Key, Quota)> {
        let Self { key: List(values), limit, window, quota, burst } = self;
        let attributes = &scope.attributes;
        let key: Result<Key, String> = if values.len() == attributes.len() {
            let parts = values.iter().zip(attributes);
            parts.map(|(Scalar(text), attribute)| part(text, attribute, scope)).collect()
        } else {
            let (given, expected) = (values.len(), attributes.len());
            Err(format!(
                "invalid key: has {given} values and the scope {expected} attributes; write one for each"
            ))
        };
        let is_read = !section.elements("key").iter().any(|part| part.is_rejected.get());
        let key = key.map_err(|message| is_read.then(|| section.report("key", message))).ok();
        if limit.is_none() && quota.is_none() && !section.has_rejected(&["limit", "quota"]) {
            section.report("limit", "missing limit: write it, for example `limit: 1000`");
            return None;
        }
        let (quota, limit, window, burst) = (*quota, *limit, *window, *burst);
        let own = QuotaSpec { quota, limit, window, burst, ..QuotaSpec::default() };
        key.zip(own.over(base?).build(section))
    }
}

/// A key's value of one attribute.
///
/// # Errors
/// Why the value is not valid in a key.
fn part(text: &str, attribute: &str, scope: &Scope<'_>) -> Result<Part, String> {
    if scope.is_address(attribute) {
        let address = text.parse().map(Part::Address);
        return address.map_err(|_| {
            format!("invalid key `{}`: {attribute} is an address; write for example `192.0.2.1`", Shown(text))
        });
    }
    if text.contains('*') {
        return Err(format!(
            "invalid key `{}`: `*` stands for itself; name each key, or write a policy with `when: {{{attribute}: \
             {{glob: ...}}}}`",
            Shown(text)
        ));
    }
    Ok(Part::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use slidegate::{Gate, PolicySet, Request};

    use crate::config::tests::{error, policy, policy_error};

    /// The quota and the capacity that a request meets under a policy.
    fn met(keys: &str, request: &Request<'_>) -> (String, u64) {
        let gate = Gate::new(PolicySet::new([policy(keys)]).unwrap());
        let decisions = gate.peek(request);
        let quota = *decisions.iter().next().unwrap().quota();
        (quota.to_string(), quota.capacity())
    }

    /// Somebody pays for the limit of an override.
    #[test]
    fn a_key_meets_its_own_quota_and_all_others_the_policys() {
        let keys = "scope: user, quota: 10/1m, overrides: {alice: 1000, bob: 5/1s, 42: 7}";
        for (user, quota) in [("alice", "1000/1m"), ("bob", "5/1s"), ("42", "7/1m"), ("carol", "10/1m")] {
            assert_eq!(met(keys, &Request::new().with("user", user)).0, quota);
        }
        let keys = "scope: [user, path], limit: 10, window: 1m, \
                    overrides: [{key: [alice, /login], limit: 3}, {key: [bob, 7], quota: 4/1h}]";
        for (user, path, quota) in
            [("alice", "/login", "3/1m"), ("alice", "/", "10/1m"), ("bob", "7", "4/1h")]
        {
            assert_eq!(met(keys, &Request::new().with("user", user).with("path", path)).0, quota);
        }
        let keys = "scope: ip, quota: 10/1m, overrides: {192.0.2.1: 50, '2001:db8::1': 60}";
        for (ip, quota) in
            [("::ffff:192.0.2.1", "50/1m"), ("2001:db8:0:ff::9", "60/1m"), ("192.0.2.2", "10/1m")]
        {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(met(keys, &Request::new().with("ip", ip)).0, quota);
        }
    }

    /// An override that forgot the policy's burst would let its key through at another rate than
    /// anyone wrote.
    #[test]
    fn what_an_override_does_not_say_is_the_policys() {
        let alice = Request::new().with("user", "alice");
        let bucket = "scope: user, quota: 10/1m, algorithm: token-bucket";
        assert_eq!(met(&format!("{bucket}, overrides: {{alice: 20}}"), &alice).1, 20);
        assert_eq!(met(&format!("{bucket}, burst: 50, overrides: {{alice: 20}}"), &alice).1, 50);
        let own = "overrides: [{key: alice, limit: 20, burst: 30}]";
        assert_eq!(met(&format!("{bucket}, burst: 50, {own}"), &alice), ("20/1m".to_owned(), 30));
    }

    /// An override that binds nobody looks like one that works.
    #[test]
    fn an_override_that_binds_nobody_is_an_error() {
        for (keys, expected) in [
            (
                "overrides: {alice: 5}",
                "invalid overrides: the policy has no scope, so it has one key only; write for example `scope: [user]`",
            ),
            (
                "scope: [a, b], overrides: {x: 5}",
                "invalid overrides (a map): the scope has 2 attributes; write a list, for example `[{key: [a-value, b-value], limit: 1000}]`",
            ),
            (
                "scope: a, overrides: 5",
                "invalid overrides `5`: must be keys and values, or a list of keys and values, for example `key: alice, limit: 1000`",
            ),
            (
                "scope: a, overrides: {x: -5}",
                "overrides: invalid x `-5`: must be a whole number from 0 to 18446744073709551615, without quotes",
            ),
            (
                "scope: a, overrides: {x: {limit: 5}}",
                "overrides: invalid x (a map): must be a whole number from 0 to 18446744073709551615, without quotes, or a limit and a window, for example `100/1m`",
            ),
            (
                "scope: a, overrides: {x: 5/0s}",
                "overrides: invalid x `5/0s`: invalid window `0s`: must be 1ms to 366d, for example `1m`",
            ),
            (
                "scope: a, overrides: {'vip-*': 5}",
                "overrides: invalid key `vip-*`: `*` stands for itself; name each key, or write a policy with `when: {a: {glob: ...}}`",
            ),
            (
                "scope: ip, overrides: {10.0.0.0/8: 5}",
                "overrides: invalid key `10.0.0.0/8`: ip is an address; write for example `192.0.2.1`",
            ),
            (
                "scope: [a, b], overrides: [{key: x, limit: 5}]",
                "override 1: invalid key: has 1 values and the scope 2 attributes; write one for each",
            ),
            (
                "scope: [a, b], overrides: [{limit: 5}]",
                "override 1: missing key: must be a text, or a list of them",
            ),
            (
                "scope: [a, b], overrides: [{key: [x, []], limit: 5}]",
                "override 1: invalid key (an empty list): must be a text",
            ),
            (
                "scope: a, overrides: [{key: x}]",
                "override 1: missing limit: write it, for example `limit: 1000`",
            ),
            (
                "scope: a, overrides: [{key: x, limit: 5, burst: 4}]",
                "override 1: invalid burst `4`: the algorithm is sliding-log and only token-bucket has burst; leave it out or write `algorithm: token-bucket`",
            ),
            (
                "scope: a, overrides: [{key: x, limit: 5}, x]",
                "invalid overrides `x`: must be keys and values, for example `key: alice, limit: 1000`",
            ),
            (
                "scope: a, overrides: [{key: x, limt: 5}]",
                "override 1: unknown key `limt`: did you mean `limit`?",
            ),
            (
                "scope: ip, overrides: {192.0.2.1: 5, '::ffff:192.0.2.1': 6}",
                "duplicate override `192.0.2.1`: must be given once; remove one",
            ),
        ] {
            assert_eq!(policy_error(&format!("quota: 1/1s, {keys}")), expected);
        }
        assert_eq!(
            error(
                "policies:\n  - name: p\n    scope: a\n    quota: 1/1s\n    overrides:\n      x: 1\n      y: no\n"
            ),
            "slidegate.yaml:7: policy `p`: overrides: invalid y `no`: no window; write `limit/window`, for example `100/1m`"
        );
    }
}

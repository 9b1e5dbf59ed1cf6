//! The key `overrides`: keys of a policy with a quota of their own.
//!
//! An override inherits the algorithm of its policy, and the window and the burst unless it has its
//! own.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lined_config::{Excerpt, Form, List, Scalar, Section, element};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::network::Network;
use slidegate::{OverridePart, Quota};

use crate::quota::QuotaSpec;
use crate::values::{Parsed, Text, Window, form_of};

/// One part for each attribute of the scope.
type Key = Vec<OverridePart>;

/// The word for a key that the policy does not limit.
pub const UNLIMITED: &str = "unlimited";

/// The word [`UNLIMITED`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unlimited;

impl Text for Unlimited {
    const FORM: Form = form_of::<Self>("unlimited", "`unlimited`").pattern("^unlimited$");

    fn parse(text: &str) -> Result<Self, String> {
        (text == UNLIMITED).then_some(Self).ok_or_else(String::new)
    }
}

/// A map from keys to limits, or a list.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Overrides {
    Map(BTreeMap<String, ShortOverride>),
    List(Vec<Override>),
}

/// A limit in the policy's window, a quota, or `unlimited`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ShortOverride {
    Number(u64),
    Scalar(Parsed<OwnQuota>),
}

/// A quota; `None` is unlimited.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnQuota(Option<Quota>);

impl Text for OwnQuota {
    const FORM: Form =
        form_of::<Self>("own-quota", "a limit and a window, for example `100/1m`, or `unlimited`");

    fn parse(text: &str) -> Result<Self, String> {
        if text == UNLIMITED { Ok(Self(None)) } else { Quota::parse(text).map(|quota| Self(Some(quota))) }
    }
}

/// A limit, or `unlimited`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged)]
enum OwnLimit {
    Number(u64),
    Unlimited(Parsed<Unlimited>),
}

/// A key and its quota.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "key: alice, limit: 1000"))]
pub(crate) struct Override {
    /// One value per attribute of the scope, in the same order.
    key: List<Scalar>,
    /// As in a policy, or no limit.
    limit: Option<OwnLimit>,
    /// As in a policy. Default: the policy's.
    window: Option<Window>,
    /// As in a policy.
    quota: Option<Parsed<Quota>>,
    /// As in a policy. Default: the policy's; without one, the override's limit.
    #[schemars(range(min = 1))]
    burst: Option<u64>,
}

/// The attributes that form a policy's keys, and all attributes that are addresses.
#[derive(Debug)]
pub(crate) struct Scope<'a> {
    pub(crate) attributes: &'a [String],
    pub(crate) addresses: &'a [String],
}

impl Scope<'_> {
    pub(crate) fn is_address(&self, attribute: &str) -> bool {
        self.addresses.iter().any(|address| address == attribute)
    }

    /// The key of these values.
    ///
    /// # Errors
    /// The values do not match the scope.
    fn key<'v>(
        &self,
        values: impl IntoIterator<Item = &'v str, IntoIter: ExactSizeIterator>,
    ) -> Result<Key, String> {
        let (values, attributes) = (values.into_iter(), self.attributes);
        if values.len() != attributes.len() {
            let (given, expected) = (values.len(), attributes.len());
            return Err(format!(
                "invalid key: has {given} values and the scope {expected} attributes; write one for each"
            ));
        }
        values.zip(attributes).map(|(text, attribute)| part(text, attribute, self)).collect()
    }
}

/// The overrides of a policy. Reports invalid ones and leaves them out. Without `base`, quotas are
/// not checked.
pub(crate) fn overrides(
    overrides: &Overrides,
    base: Option<&QuotaSpec>,
    scope: &Scope<'_>,
    policy: &Section<'_>,
) -> Vec<(Key, Option<Quota>)> {
    let attributes = scope.attributes;
    match overrides {
        _ if attributes.is_empty() => {
            if !policy.has_rejected(&["scope"]) {
                let why =
                    "the policy has no scope, so it has one key only; write for example `scope: [user]`";
                policy.invalid("overrides", why);
            }
            Vec::new()
        }
        Overrides::Map(_) if attributes.len() > 1 => {
            let message = format!(
                "invalid overrides (a map): the scope has {} attributes; write a list, for example `[{{key: [{}], \
                 limit: 1000}}]`",
                attributes.len(),
                attributes.join("-value, ") + "-value"
            );
            policy.report("overrides", message);
            Vec::new()
        }
        Overrides::Map(pairs) => {
            let section = policy.child("overrides");
            let read = |(text, short): (&String, &ShortOverride)| {
                let spec = match short {
                    ShortOverride::Number(limit) => {
                        Some(QuotaSpec { limit: Some(*limit), ..QuotaSpec::default() })
                    }
                    ShortOverride::Scalar(Parsed(OwnQuota(quota))) => quota.map(QuotaSpec::text),
                };
                let key = scope.key([text.as_str()]).map_err(|message| section.report(text, message)).ok()?;
                let Some(spec) = spec else { return Some((key, None)) };
                Some((key, Some(spec.over(base?).build(&section)?)))
            };
            pairs.iter().filter_map(read).collect()
        }
        Overrides::List(list) => {
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
    ) -> Option<(Key, Option<Quota>)> {
        let Self { key: List(values), limit, window, quota, burst } = self;
        let is_read = !section.elements("key").iter().any(|part| part.is_rejected.get());
        let key = scope.key(values.iter().map(|Scalar(text)| text.as_str()));
        let key = key.map_err(|message| is_read.then(|| section.report("key", message))).ok();
        if limit.is_none() && quota.is_none() && !section.has_rejected(&["limit", "quota"]) {
            section.report("limit", "missing limit: write it, for example `limit: 1000`");
            return None;
        }
        let limit = match limit {
            Some(OwnLimit::Unlimited(_)) => {
                for other in ["quota", "window", "burst"].into_iter().filter(|other| section.has(other)) {
                    section.invalid(other, "the key is unlimited; leave it out");
                }
                return Some((key?, None));
            }
            Some(OwnLimit::Number(limit)) => Some(*limit),
            None => None,
        };
        let (quota, window, burst) = (*quota, *window, *burst);
        let own = QuotaSpec { quota, limit, window, burst, ..QuotaSpec::default() };
        Some((key?, Some(own.over(base?).build(section)?)))
    }
}

/// The part of a key for one attribute.
///
/// # Errors
/// Why the value is not valid in a key.
fn part(text: &str, attribute: &str, scope: &Scope<'_>) -> Result<OverridePart, String> {
    if scope.is_address(attribute) {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(address.into());
        }
        return text.parse::<Network>().map(OverridePart::from).map_err(|_| {
            format!(
                "invalid key `{}`: {attribute} is an address; write for example `192.0.2.1`, or a network such as \
                 `10.0.0.0/8`",
                Excerpt(text)
            )
        });
    }
    if text.contains('*') {
        return Err(format!(
            "invalid key `{}`: `*` stands for itself; name each key, or write a policy with `when: {{{attribute}: \
             {{glob: ...}}}}`",
            Excerpt(text)
        ));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use slidegate::{Gate, PolicySet, Request};

    use crate::policies::tests::policy;

    /// The quota that applies to a request, and its capacity.
    fn met(keys: &str, request: &Request<'_>) -> (String, u64) {
        let gate = Gate::new(PolicySet::new([policy(keys)]).unwrap());
        let decisions = gate.peek(request);
        let quota = *decisions.iter().next().unwrap().quota();
        (quota.to_string(), quota.capacity())
    }

    /// Customers pay for the limits of overrides.
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

    /// A partner's network gets more, a monitoring robot has no limit.
    #[test]
    fn keys_may_be_networks_and_unlimited() {
        let limit = |keys: &str, ip: &str| {
            let gate = Gate::new(PolicySet::new([policy(keys)]).unwrap());
            let request = Request::new().with("ip", ip.parse::<IpAddr>().unwrap()).with("user", "alice");
            gate.peek(&request).iter().next().map(|one| one.quota().to_string())
        };
        let map = "scope: ip, quota: 10/1m, overrides: {10.0.0.0/8: 50, 10.1.0.0/16: unlimited, 10.1.2.3: 7/1s, '2001:db8::/32': 60}";
        let list = "scope: [ip, user], quota: 10/1m, overrides: [{key: [10.0.0.0/8, alice], limit: 50}, \
                    {key: [10.1.0.0/16, alice], limit: unlimited}, {key: [10.1.2.3, alice], quota: 7/1s}, \
                    {key: ['2001:db8::/32', alice], limit: 60}]";
        for keys in [map, list] {
            for (ip, quota) in [
                ("10.9.9.9", Some("50/1m")),
                ("10.1.9.9", None),
                ("10.1.2.3", Some("7/1s")),
                ("2001:db8::1", Some("60/1m")),
                ("192.0.2.1", Some("10/1m")),
            ] {
                assert_eq!(limit(keys, ip).as_deref(), quota, "{ip}");
            }
        }
    }

    /// An override without the policy's burst would admit its key at a rate that nobody wrote.
    #[test]
    fn missing_keys_of_an_override_are_those_of_the_policy() {
        let alice = Request::new().with("user", "alice");
        let bucket = "scope: user, quota: 10/1m, algorithm: token-bucket";
        assert_eq!(met(&format!("{bucket}, overrides: {{alice: 20}}"), &alice).1, 20);
        assert_eq!(met(&format!("{bucket}, burst: 50, overrides: {{alice: 20}}"), &alice).1, 50);
        let own = "overrides: [{key: alice, limit: 20, burst: 30}]";
        assert_eq!(met(&format!("{bucket}, burst: 50, {own}"), &alice), ("20/1m".to_owned(), 30));
    }
}

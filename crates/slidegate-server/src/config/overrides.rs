//! `overrides:` keys of a policy with a quota of their own.
//!
//! What an override does not say, it has from its policy: the algorithm always, the window and the burst if left out.

use std::net::IpAddr;

use slidegate::Quota;

use super::Findings;
use super::file::{Entry, Node, Shown, Value};
use super::policy::{self, Scope, Terms};
use super::section::{Section, list, whole, wrong};

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

/// Reads every override of a policy.
pub(super) fn overrides(
    parent: &Section<'_>,
    terms: &Terms,
    scope: &Scope<'_>,
    findings: &mut Findings,
) -> Vec<(Key, Quota)> {
    let Some(node) = parent.get("overrides") else { return Vec::new() };
    let reader = Reader { terms, scope };
    let attributes = &scope.attributes;
    let read = match &node.value {
        _ if attributes.is_empty() => Err(
            "overrides stand without a scope, so there is one key only; write for example `scope: [user]`"
                .into(),
        ),
        Value::Map(_) if attributes.len() > 1 => Err(format!(
            "overrides is a map and the scope has {} attributes; write a list, for example `[{{key: [{}], limit: 1000}}]`",
            attributes.len(),
            attributes.join("-value, ") + "-value"
        )),
        Value::Map(entries) => {
            Ok(entries.iter().filter_map(|entry| reader.short(entry, parent, findings)).collect())
        }
        Value::List(nodes) => {
            let numbered = nodes.iter().enumerate();
            Ok(numbered.filter_map(|(at, node)| reader.long(node, at + 1, parent, findings)).collect())
        }
        _ => Err(format!("overrides is {node}; write for example `overrides: {{alice: 1000, bob: 50/1s}}`")),
    };
    read.unwrap_or_else(|message| {
        parent.find(node.line, message, findings);
        Vec::new()
    })
}

/// What every override of a policy is read by.
struct Reader<'f> {
    terms: &'f Terms,
    scope: &'f Scope<'f>,
}

impl Reader<'_> {
    /// `alice: 1000` or `alice: 1000/1m`. `None` if something is wrong, which is then found.
    fn short(&self, entry: &Entry, parent: &Section<'_>, findings: &mut Findings) -> Option<(Key, Quota)> {
        let attribute = self.scope.attributes.first()?;
        let read = self
            .part(&entry.key, attribute)
            .and_then(|part| Ok((vec![part], self.short_quota(&entry.value)?)));
        match read {
            Ok((key, quota)) => Some((key, self.terms.apply(quota?, None))),
            Err(message) => {
                let message = format_args!("override `{}`: {message}", Shown(&entry.key));
                parent.find(entry.value.line, message, findings);
                None
            }
        }
    }

    /// `None` if the window is the policy's and that is wrong.
    fn short_quota(&self, node: &Node) -> Result<Option<Quota>, String> {
        const SHORT: &str = "give a limit or a quota, for example `1000` or `1000/1m`";
        match &node.value {
            Value::Number(_) => {
                let limit = whole("limit", node, SHORT)?;
                Ok(self.terms.window().and_then(|window| Quota::new(limit, window).ok()))
            }
            Value::Text(_) => policy::quota_text(node).map(Some),
            _ => Err(wrong("quota", node, SHORT)),
        }
    }

    /// `{key: alice, limit: 1000}`. `None` if something is wrong, which is then found.
    fn long(
        &self,
        node: &Node,
        at: usize,
        parent: &Section<'_>,
        findings: &mut Findings,
    ) -> Option<(Key, Quota)> {
        let place = format!("{}: override {at}", parent.place());
        let mut section = Section::of(node, place, "key: alice", findings)?;
        section.expect_only(&["key", "limit", "window", "quota", "burst"], findings);
        let key = self.key(&section, findings);
        let burst = section.read("burst", findings, |node| policy::burst(node, self.terms.algorithm()));
        let (quota, _) = policy::quota(&section, Some(self.terms), findings);
        key.zip(quota.map(|quota| self.terms.apply(quota, burst)))
    }

    fn key(&self, section: &Section<'_>, findings: &mut Findings) -> Option<Key> {
        let example = format!("write one value for each of the scope: {}", list(&self.scope.attributes));
        section.expect("key", &example, findings);
        section.read("key", findings, |node| {
            let nodes = node.one_or_many();
            if nodes.len() != self.scope.attributes.len() {
                return Err(format!(
                    "key has {} values and the scope {} attributes; {example}",
                    nodes.len(),
                    self.scope.attributes.len()
                ));
            }
            let value = |(node, attribute): (&Node, &String)| {
                let text = node.scalar().ok_or_else(|| format!("key is {node}; {example}"))?;
                self.part(text, attribute)
            };
            nodes.iter().zip(&self.scope.attributes).map(value).collect()
        })
    }

    fn part(&self, text: &str, attribute: &str) -> Result<Part, String> {
        if self.scope.is_address(attribute) {
            let address = text.parse().map(Part::Address);
            return address.map_err(|_| {
                format!(
                    "`{}` is not an address, which {attribute} is; write for example `192.0.2.1`",
                    Shown(text)
                )
            });
        }
        if text.contains('*') {
            return Err(format!(
                "`{}` would be one key with a `*` in it; name each key, or write a policy with `when: {{{attribute}: \
                 {{glob: ...}}}}`",
                Shown(text)
            ));
        }
        Ok(Part::Text(text.to_owned()))
    }
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

    /// An override that forgot the policy's burst would let its key through at another rate than anyone wrote.
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
        let short = "give a limit or a quota, for example `1000` or `1000/1m`";
        let values = "write one value for each of the scope: `a`, `b`";
        for (keys, expected) in [
            (
                "overrides: {alice: 5}",
                "overrides stand without a scope, so there is one key only; write for example `scope: [user]`".to_owned(),
            ),
            (
                "scope: [a, b], overrides: {x: 5}",
                "overrides is a map and the scope has 2 attributes; write a list, for example `[{key: [a-value, \
                 b-value], limit: 1000}]`"
                    .into(),
            ),
            (
                "scope: a, overrides: 5",
                "overrides is 5; write for example `overrides: {alice: 1000, bob: 50/1s}`".into(),
            ),
            ("scope: a, overrides: {x: -5}", format!("override `x`: limit is -5; {short}")),
            ("scope: a, overrides: {x: {limit: 5}}", format!("override `x`: quota is a map; {short}")),
            (
                "scope: a, overrides: {x: 5/0s}",
                "override `x`: invalid window `0s`: must be 1ms to 366d, for example `1m`".into(),
            ),
            (
                "scope: a, overrides: {'vip-*': 5}",
                "override `vip-*`: `vip-*` would be one key with a `*` in it; name each key, or write a policy with `when: \
                 {a: {glob: ...}}`"
                    .into(),
            ),
            (
                "scope: ip, overrides: {10.0.0.0/8: 5}",
                "override `10.0.0.0/8`: `10.0.0.0/8` is not an address, which ip is; write for example `192.0.2.1`".into(),
            ),
            ("scope: [a, b], overrides: [{key: x, limit: 5}]", format!("override 1: key has 1 values and the scope 2 attributes; {values}")),
            ("scope: [a, b], overrides: [{limit: 5}]", format!("override 1: key is missing; {values}")),
            ("scope: [a, b], overrides: [{key: [x, []], limit: 5}]", format!("override 1: key is a list; {values}")),
            ("scope: a, overrides: [{key: x}]", "override 1: limit is missing; write for example `limit: 100`".into()),
            (
                "scope: a, overrides: [{key: x, limit: 5, burst: 4}]",
                "override 1: burst is read by token-bucket only and the algorithm is sliding-log; leave it out or write \
                 `algorithm: token-bucket`"
                    .into(),
            ),
            (
                "scope: a, overrides: [{key: x, limit: 5}, x]",
                "override 2 is `x`; write keys and values, for example `key: alice`".into(),
            ),
            (
                "scope: a, overrides: [{key: x, limt: 5}]",
                "override 1: unknown key `limt`; did you mean `limit`?".into(),
            ),
            (
                "scope: ip, overrides: {192.0.2.1: 5, '::ffff:192.0.2.1': 6}",
                "override `192.0.2.1` stands twice; keep one".into(),
            ),
        ] {
            assert_eq!(policy_error(&format!("quota: 1/1s, {keys}")), expected, "{keys}");
        }
        assert_eq!(
            error(
                "policies:\n  - name: p\n    scope: a\n    quota: 1/1s\n    overrides:\n      x: 1\n      y: no\n"
            ),
            "slidegate.yaml:7: policy `p`: override `y`: invalid quota `no`: no window; write `limit/window`, for example \
             `100/1m`"
        );
    }
}

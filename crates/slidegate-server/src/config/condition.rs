//! `when:` which requests a policy concerns.
//!
//! A plain text is equality and nothing else: `*` and `?` in it are an error that asks which was meant, and a condition
//! that can never hold is one too.

use std::net::IpAddr;

use slidegate::Match;

use super::file::{Node, Shown, Value};
use super::policy::Scope;
use super::section::{Section, flag, list, text, wrong};
use super::{Findings, foreign, resolve};

/// The kinds of conditions, as they are written.
const KINDS: [&str; 6] = ["equals", "one_of", "prefix", "glob", "in", "present"];

/// Reads every condition of a policy.
pub(super) fn conditions(
    policy: &Section<'_>,
    scope: &Scope<'_>,
    findings: &mut Findings,
) -> Vec<(String, Match)> {
    let Some(when) = policy.get("when") else { return Vec::new() };
    let Some(entries) = when.entries() else {
        policy.find(when.line, wrong("when", when, "write for example `when: {path: /login}`"), findings);
        return Vec::new();
    };
    let mut conditions = Vec::with_capacity(entries.len());
    for entry in entries {
        let attribute = Attribute { name: &entry.key, is_address: scope.is_address(&entry.key) };
        let read = resolve::attribute_name(&entry.key).and_then(|_| condition(&entry.value, &attribute));
        match read {
            Ok(condition) if condition == Match::absent() && scope.attributes.contains(&entry.key) => {
                let message = format!(
                    "`{0}` must be absent and is in the scope, so no request is under this policy; take it out of one",
                    entry.key
                );
                policy.find(entry.value.line, message, findings);
            }
            Ok(condition) => conditions.push((entry.key.clone(), condition)),
            Err(message) => policy.find(entry.value.line, format_args!("when: {message}"), findings),
        }
    }
    conditions
}

/// What a condition is on.
struct Attribute<'f> {
    name: &'f str,
    is_address: bool,
}

fn condition(node: &Node, attribute: &Attribute<'_>) -> Result<Match, String> {
    match &node.value {
        Value::Map(entries) => match entries.as_slice() {
            [one] => of_kind(&one.key, &one.value, attribute),
            _ => Err(format!(
                "`{}` has {} conditions; give one of {}",
                attribute.name,
                entries.len(),
                list(&KINDS)
            )),
        },
        Value::List(nodes) => one_of(nodes, attribute, plain),
        _ => plain(node, attribute).map(Match::equals),
    }
}

fn of_kind(kind: &str, node: &Node, attribute: &Attribute<'_>) -> Result<Match, String> {
    let name = attribute.name;
    let way_out = format!("write for example `{name}: {{{kind}: /api/}}`");
    match kind {
        "equals" => exact(node, attribute).map(Match::equals),
        "one_of" => one_of(node.one_or_many(), attribute, exact),
        "present" => match flag("present", node) {
            Ok(present) => Ok(if present { Match::present() } else { Match::absent() }),
            Err(message) => Err(format!("`{name}`: {message}")),
        },
        "prefix" | "glob" if attribute.is_address => Err(format!(
            "`{name}` is an address, which has no {kind}; write a network, for example `{name}: {{in: [10.0.0.0/8]}}`"
        )),
        "prefix" => text(name, node, &way_out).map(Match::prefix),
        "glob" => {
            let pattern = text(name, node, &way_out)?;
            Match::glob(pattern).map_err(|error| format!("`{name}`: {error}"))
        }
        "in" if !attribute.is_address => Err(format!(
            "`{name}` is not an address and so in no network; name it in `attributes: {{addresses: [{name}]}}`, or \
             write `{{one_of: [...]}}`"
        )),
        "in" => {
            let example = format!("write for example `{name}: {{in: [10.0.0.0/8]}}`");
            let nodes = not_empty(node.one_or_many(), attribute)?;
            let networks: Vec<_> =
                nodes.iter().map(|node| text(name, node, &example)).collect::<Result<_, _>>()?;
            Match::networks(networks).map_err(|error| format!("`{name}`: {error}"))
        }
        _ => Err(format!("`{name}` has the unknown condition `{}`; use {}", Shown(kind), list(&KINDS))),
    }
}

fn one_of<'f>(
    nodes: &'f [Node],
    attribute: &Attribute<'_>,
    read: fn(&'f Node, &Attribute<'_>) -> Result<&'f str, String>,
) -> Result<Match, String> {
    let nodes = not_empty(nodes, attribute)?;
    nodes.iter().map(|node| read(node, attribute)).collect::<Result<Vec<_>, _>>().map(Match::one_of)
}

fn not_empty<'f>(nodes: &'f [Node], attribute: &Attribute<'_>) -> Result<&'f [Node], String> {
    if nodes.is_empty() {
        return Err(format!(
            "`{0}` has an empty list, which nothing is in; write for example `{0}: [a, b]`",
            attribute.name
        ));
    }
    Ok(nodes)
}

/// A text that stands where it may have been meant as a pattern.
fn plain<'f>(node: &'f Node, attribute: &Attribute<'_>) -> Result<&'f str, String> {
    let value = exact(node, attribute)?;
    if value.contains(['*', '?']) {
        return Err(format!(
            "`{0}` is {node}, and `*` and `?` stand for themselves here; write `{0}: {{equals: {1}}}` if that is meant, \
             else `{0}: {{glob: {1}}}`",
            attribute.name,
            foreign::yaml(value)
        ));
    }
    Ok(value)
}

/// A text as it is, and an address if the attribute is one.
fn exact<'f>(node: &'f Node, attribute: &Attribute<'_>) -> Result<&'f str, String> {
    let name = attribute.name;
    let Some(value) = node.scalar() else {
        return Err(format!("`{name}` is {node}; write a text, for example `{name}: login`"));
    };
    if attribute.is_address && value.parse::<IpAddr>().is_err() {
        return Err(format!(
            "`{name}` is {node}, which is not an address; write one such as `192.0.2.1`, or `{{in: [10.0.0.0/8]}}`"
        ));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{error, policy, policy_error};

    fn words(when: &str) -> String {
        let policy = policy(&format!("quota: 1/1s, when: {{{when}}}"));
        let words =
            policy.conditions().iter().map(|(attribute, condition)| format!("{attribute} {condition}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// A condition that means something else limits the wrong people.
    #[test]
    fn each_form_means_what_it_says() {
        for (when, expected) in [
            ("path: /login", "path is `/login`"),
            ("method: [GET, HEAD], path: /x", "method is `GET` or `HEAD`, path is `/x`"),
            ("path: {prefix: /api/}", "path begins with `/api/`"),
            ("path: {glob: '/v*/x'}", "path looks like `/v*/x`"),
            ("path: {equals: '/a*'}", "path is `/a*`"),
            ("path: {one_of: ['/a*', /b]}", "path is `/a*` or `/b`"),
            ("ip: 192.0.2.1", "ip is `192.0.2.1`"),
            ("ip: {in: [10.0.0.0/8, '2001:db8::/32']}", "ip is in 10.0.0.0/8 or 2001:db8::/32"),
            ("ip: {in: 10.0.0.0/8}", "ip is in 10.0.0.0/8"),
            ("user: {present: true}", "user is present"),
            ("user: {present: false}", "user is absent"),
            (
                "country: NO, status: 200, version: 1.10, cached: true",
                "country is `NO`, status is `200`, version is `1.10`, cached is `true`",
            ),
            ("", ""),
        ] {
            assert_eq!(words(when), expected);
        }
    }

    /// What cannot hold, or may mean two things, is found before it is silently never true.
    #[test]
    fn what_is_not_clear_is_asked_back() {
        let kinds = "`equals`, `one_of`, `prefix`, `glob`, `in`, `present`";
        let not_address = "which is not an address; write one such as `192.0.2.1`, or `{in: [10.0.0.0/8]}`";
        for (when, expected) in [
            (
                "path: /api/*",
                "`path` is `/api/*`, and `*` and `?` stand for themselves here; write `path: {equals: \"/api/*\"}` if that \
                 is meant, else `path: {glob: \"/api/*\"}`"
                    .to_owned(),
            ),
            (
                "path: [/a, '/b?']",
                "`path` is `/b?`, and `*` and `?` stand for themselves here; write `path: {equals: \"/b?\"}` if that is \
                 meant, else `path: {glob: \"/b?\"}`"
                    .to_owned(),
            ),
            ("path: {prefix: /a, glob: /b}", format!("`path` has 2 conditions; give one of {kinds}")),
            ("path: {}", format!("`path` has 0 conditions; give one of {kinds}")),
            ("path: {regex: /a}", format!("`path` has the unknown condition `regex`; use {kinds}")),
            ("path: []", "`path` has an empty list, which nothing is in; write for example `path: [a, b]`".into()),
            ("path: ", "`path` is empty; write a text, for example `path: login`".into()),
            ("path: {prefix: }", "path is empty; write for example `path: {prefix: /api/}`".into()),
            ("path: {present: yes}", "`path`: present is `yes`; write `true` or `false`".into()),
            (
                "path: {glob: 'a\\'}",
                "`path`: invalid pattern `a\\`: ends in an unpaired backslash; write `\\\\` for a backslash".into(),
            ),
            ("ip: localhost", format!("`ip` is `localhost`, {not_address}")),
            ("ip: 10.0.0.0/8", format!("`ip` is `10.0.0.0/8`, {not_address}")),
            (
                "ip: {prefix: '10.'}",
                "`ip` is an address, which has no prefix; write a network, for example `ip: {in: [10.0.0.0/8]}`".into(),
            ),
            (
                "ip: {in: [10.0.0/8]}",
                "`ip`: invalid network `10.0.0/8`: must be a network or an address, for example `10.0.0.0/8` or `2001:db8::/32`".into(),
            ),
            (
                "host: {in: [10.0.0.0/8]}",
                "`host` is not an address and so in no network; name it in `attributes: {addresses: [host]}`, or write \
                 `{one_of: [...]}`"
                    .into(),
            ),
        ] {
            assert_eq!(policy_error(&format!("quota: 1/1s, when: {{{when}}}")), format!("when: {expected}"), "{when}");
        }
        assert_eq!(
            policy_error("quota: 1/1s, when: /login"),
            "when is `/login`; write for example `when: {path: /login}`"
        );
        assert_eq!(
            policy_error("quota: 1/1s, scope: user, when: {user: {present: false}}"),
            "`user` must be absent and is in the scope, so no request is under this policy; take it out of one"
        );
    }

    /// The line is that of the value, however the policy is laid out.
    #[test]
    fn a_wrong_condition_is_found_in_its_line() {
        let text = "policies:\n  - name: p\n    quota: 1/1s\n    when:\n      path: /a\n      ip:\n        - 10.0.0.1\n        - x\n";
        assert_eq!(
            error(text),
            "slidegate.yaml:7: policy `p`: when: `ip` is `x`, which is not an address; write one such as `192.0.2.1`, or \
             `{in: [10.0.0.0/8]}`"
        );
    }
}

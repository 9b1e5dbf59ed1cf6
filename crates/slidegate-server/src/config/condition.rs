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

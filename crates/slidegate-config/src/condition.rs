//! The key `when`: which requests a policy limits.
//!
//! A plain text means equality. A text with `*` or `?` is ambiguous and rejected, as is a condition
//! that never holds.

use std::collections::BTreeMap;
use std::net::IpAddr;

use lined_config::{Excerpt, List, Node, Scalar, Section, quoted};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{Match, request_path::normalized_host};

use crate::overrides::Scope;

/// A value, several values, or a test.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Condition {
    Plain(List<Scalar>),
    Test(Box<Test>),
}

/// A test of an attribute's value: exactly one of these.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(extend(
    "additionalProperties" = false,
    "minProperties" = 1,
    "maxProperties" = 1,
    "x-example" = "prefix: /api/"
))]
pub(crate) struct Test {
    #[serde(flatten)]
    plain: PlainTest,
    /// The opposite of a value, of several, or of another test: also holds without the attribute.
    not: Option<Opposite>,
}

/// What must not be: a value, several values, or a test.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Opposite {
    Plain(List<Scalar>),
    Test(PlainTest),
}

/// A test of an attribute's value: exactly one of these.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1, "x-example" = "prefix: /api/"))]
struct PlainTest {
    /// Exactly this value, without patterns.
    equals: Option<Scalar>,
    /// Any of these values, without patterns.
    one_of: Option<List<Scalar>>,
    /// Values with this prefix.
    prefix: Option<String>,
    /// Values that match this pattern, at most 256 bytes, such as `/v*/users`: `*` matches any bytes or none,
    /// including `/`; `?` matches one byte; a backslash escapes the next character.
    glob: Option<String>,
    /// Addresses in any of these networks, such as `10.0.0.0/8`.
    r#in: Option<List<String>>,
    /// `true`: any value, including the empty one. `false`: requests without the attribute.
    present: Option<bool>,
}

/// The conditions of a policy. Reports invalid ones and leaves them out.
pub(crate) fn matches(
    when: &BTreeMap<String, Condition>,
    scope: &Scope<'_>,
    policy: &Section<'_>,
) -> Vec<(String, Match)> {
    let section = policy.child("when");
    let mut conditions = Vec::with_capacity(when.len());
    // In the order of the file.
    for (key, value) in section.entries() {
        let name = key.scalar().unwrap_or_default();
        if parts(value).any(|part| part.is_rejected.get() || parts(part).any(|part| part.is_rejected.get())) {
            continue;
        }
        let Some(condition) = when.get(name) else { continue };
        let (plain, opposite) = match condition {
            Condition::Plain(values) => (Ok(values), false),
            Condition::Test(test) => match &test.not {
                Some(Opposite::Plain(values)) => (Ok(values), true),
                Some(Opposite::Test(test)) => (Err(test), true),
                None => (Err(&test.plain), false),
            },
        };
        let built = build(name, scope.is_address(name), plain);
        match built.map(|condition| if opposite { Match::not(condition) } else { condition }) {
            Ok(condition)
                if condition == Match::absent() && scope.attributes.iter().any(|one| one == name) =>
            {
                let why = "must be absent and is in the scope, so the policy limits no request; remove it from `when` \
                           or from `scope`";
                section.invalid(name, why);
            }
            Ok(condition) => conditions.push((name.to_owned(), condition)),
            Err(message) => section.report(name, format_args!("invalid {name}{message}")),
        }
    }
    conditions
}

/// The attribute that the HTTP protocols normalize.
const HOST: &str = "host";

/// A condition that matches any of these values. A host matches as written, for programs that send
/// it so, and normalized.
fn one_of_values(name: &str, mut values: Vec<String>) -> Match {
    if name == HOST {
        let spelled = |value: &String| {
            let host = String::from_utf8_lossy(&normalized_host(value.as_bytes())).into_owned();
            (host != *value).then_some(host)
        };
        let normalized: Vec<_> = values.iter().filter_map(spelled).collect();
        values.extend(normalized);
    }
    Match::one_of(values)
}

/// The elements of a list, or the values of a map.
fn parts(node: &Node) -> impl Iterator<Item = &Node> {
    node.elements().iter().chain(node.entries().iter().map(|(_, value)| value))
}

/// The condition for values (`Ok`) or a test (`Err`).
///
/// # Errors
/// The rest of the error, after the name of the attribute.
fn build(
    name: &str,
    is_address: bool,
    condition: Result<&List<Scalar>, &PlainTest>,
) -> Result<Match, String> {
    let text = |Scalar(text): &Scalar| match text.parse::<IpAddr>() {
        Err(_) if is_address => Err(format!(
            " `{}`: must be an IP address such as `192.0.2.1`, or `{{in: [10.0.0.0/8]}}`",
            Excerpt(text)
        )),
        _ => Ok(text.clone()),
    };
    let plain = |value: &Scalar| match text(value)? {
        text if text.contains(['*', '?']) => Err(format!(
            " `{}`: `*` and `?` stand for themselves here; write `{name}: {{glob: {1}}}` for a pattern, or `{name}: \
             {{equals: {1}}}` for this very text",
            Excerpt(&text),
            quoted(&text)
        )),
        text => Ok(text),
    };
    let several = |values: &[Scalar], read: &dyn Fn(&Scalar) -> Result<String, String>| match values {
        [] => Err(format!(": an empty list matches nothing; write for example `{name}: [a, b]`")),
        values => {
            values.iter().map(read).collect::<Result<Vec<_>, _>>().map(|values| one_of_values(name, values))
        }
    };
    let network = "write a network, for example";
    let PlainTest { equals, one_of, prefix, glob, r#in, present } = match condition {
        Ok(values) => return several(&values.0, &plain),
        Err(test) => test,
    };
    if let Some(value) = equals {
        text(value).map(|value| one_of_values(name, vec![value]))
    } else if let Some(values) = one_of {
        several(&values.0, &text)
    } else if let Some(present) = present {
        Ok(if *present { Match::present() } else { Match::absent() })
    } else if is_address && (prefix.is_some() || glob.is_some()) {
        Err(format!(": an address has no prefix or pattern; {network} `{name}: {{in: [10.0.0.0/8]}}`"))
    } else if let Some(prefix) = prefix {
        Ok(Match::prefix(if name == HOST { prefix.to_ascii_lowercase() } else { prefix.clone() }))
    } else if let Some(pattern) = glob {
        let pattern = if name == HOST { pattern.to_ascii_lowercase() } else { pattern.clone() };
        Match::glob(pattern).map_err(|error| format!(": {error}"))
    } else if !is_address {
        Err(format!(
            ": not an address, so it is in no network; name it in `attributes: {{addresses: [{name}]}}`, or write \
             `{{one_of: [...]}}`"
        ))
    } else {
        match r#in.as_ref().map(|list| list.0.as_slice()).unwrap_or_default() {
            [] => Err(format!(": an empty list matches nothing; {network} `{name}: {{in: [10.0.0.0/8]}}`")),
            networks => Match::networks(networks).map_err(|error| format!(": {error}")),
        }
    }
}

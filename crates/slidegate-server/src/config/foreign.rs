//! Files of other limiters, recognized to suggest a policy but never accepted.
//!
//! A guess could enforce the wrong limit: the same word is a count in one limiter and a rate in
//! another, and the same number is seconds in one and milliseconds in another.

use lined_config::{Excerpt, Node, Position, Value, plain, quoted};
use slidegate::{Quota, format_window};
use slidegate_config::foreign::algorithm;
use slidegate_config::policies::MINIMAL;
use slidegate_config::values::{is_attribute_name, safe_name};

use crate::envoy::rule::Unit;

/// Recognizes a file of another limiter. Returns the position and the fix.
pub(super) fn recognise(root: &Node) -> Option<(Position, String)> {
    rate_limiter(root).or_else(|| envoy(root))
}

/// `rate-limiter: {use-algo, window-size, max-requests}`
fn rate_limiter(root: &Node) -> Option<(Position, String)> {
    let (key, limiter) = entry(root, "rate_limiter")?;
    let parts = ["use_algo", "window_size", "max_requests"].map(|name| entry(limiter, name));
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let [theirs, window, limit] = parts.map(|part| part.map(|(_, value)| value));
    let what = format!("`{}` belongs to another limiter", Excerpt(key.scalar()?));
    let Some((limit, (window, unit))) = limit.and_then(Node::whole).zip(window.and_then(window_of)) else {
        return Some((key.position, format!("{what}; write for example `{MINIMAL}`")));
    };
    let algorithm = theirs.and_then(Node::scalar).and_then(algorithm).unwrap_or_default();
    let check = match unit {
        Some(unit) => format!("its window has no unit and is read as {unit}: check that, and"),
        None => "check".to_owned(),
    };
    let policy = format!(
        "{{name: per-user, scope: [user], limit: {limit}, window: {window}, algorithm: {algorithm}}}"
    );
    Some((key.position, format!("{what}; write `policies: [{policy}]`; {check} what it counts by")))
}

/// A window of another limiter, and the assumed unit if it has none.
fn window_of(node: &Node) -> Option<(String, Option<&'static str>)> {
    let is_valid = |text: &str| Quota::parse_window(text).is_ok();
    if let Value::Text(text) = &node.value {
        return is_valid(text).then(|| (quoted(text), None));
    }
    let number = node.whole()?;
    // Most limiters use seconds. A number that would be years is milliseconds.
    let spans = [("s", "seconds"), ("ms", "milliseconds")];
    let mut spans = spans.into_iter().map(|(unit, word)| (format!("{number}{unit}"), Some(word)));
    spans.find(|(text, _)| is_valid(text))
}

/// `domain:` and `descriptors:` of envoyproxy/ratelimit.
fn envoy(root: &Node) -> Option<(Position, String)> {
    let (domain, _) = entry(root, "domain")?;
    let (_, descriptors) = entry(root, "descriptors")?;
    let what = "this is a file of envoyproxy/ratelimit; give its folder as `--envoy-config`";
    let Some(policy) = first_limit(descriptors, &mut Vec::new()) else {
        return Some((domain.position, format!("{what}; write for example `{MINIMAL}`")));
    };
    Some((domain.position, format!("{what}; as a policy, a limit of it would be `policies: [{policy}]`")))
}

/// The first limit below these descriptors as a policy. `path` are the descriptors above.
fn first_limit<'f>(descriptors: &'f Node, path: &mut Vec<(&'f str, Option<&'f str>)>) -> Option<String> {
    descriptors.elements().iter().find_map(|descriptor| {
        let key = descriptor.get("key")?.scalar()?;
        path.push((key, descriptor.get("value").and_then(Node::scalar)));
        let shadow = descriptor.get("shadow_mode").and_then(Node::scalar) == Some("true");
        let here = descriptor.get("rate_limit").and_then(|limit| as_policy(limit, path, shadow));
        let found = here.or_else(|| first_limit(descriptor.get("descriptors")?, path));
        path.pop();
        found
    })
}

/// A descriptor with a value is a condition, one without is part of the scope, one with a pattern
/// is both. `None` if the names of descriptors cannot be those of attributes.
fn as_policy(limit: &Node, path: &[(&str, Option<&str>)], shadow: bool) -> Option<String> {
    let per_unit = limit.get("requests_per_unit")?.whole()?;
    let window = format_window(Unit::from_name(limit.get("unit")?.scalar()?)?.window());
    if !path.iter().all(|(key, _)| is_attribute_name(key)) {
        return None;
    }
    let is_pattern = |value: &str| value.contains('*');
    let name = path.iter().map(|(key, _)| *key).collect::<Vec<_>>().join("-");
    let conditions: Vec<_> = path.iter().filter_map(|(key, value)| Some((quoted(key), (*value)?))).collect();
    let conditions = conditions.iter().map(|(key, value)| match value {
        value if is_pattern(value) => {
            format!("{key}: {{glob: {}}}", quoted(&value.replace('\\', "\\\\").replace('?', "\\?")))
        }
        value if value.contains('?') => format!("{key}: {{equals: {}}}", quoted(value)),
        value => format!("{key}: {}", quoted(value)),
    });
    let conditions = conditions.collect::<Vec<_>>().join(", ");
    let counted = path.iter().filter(|(_, value)| value.is_none_or(is_pattern));
    let scope = counted.map(|(key, _)| quoted(key)).collect::<Vec<_>>().join(", ");
    let mut parts = vec![format!("name: {}", safe_name(&name))];
    parts.extend((!conditions.is_empty()).then(|| format!("when: {{{conditions}}}")));
    parts.extend((!scope.is_empty()).then(|| format!("scope: [{scope}]")));
    parts.push(format!("limit: {per_unit}, window: {window}, algorithm: fixed-window"));
    parts.extend(shadow.then(|| "mode: shadow".to_owned()));
    Some(format!("{{{}}}", parts.join(", ")))
}

fn entry<'f>(node: &'f Node, name: &str) -> Option<(&'f Node, &'f Node)> {
    let is_meant = |key: &Node| key.scalar().is_some_and(|key| plain(key) == name);
    node.entries().iter().find(|(key, _)| is_meant(key)).map(|(key, value)| (key, value))
}

//! Keys and files of other limiters: recognised to suggest the right ones, but never accepted.
//!
//! A guess could enforce the wrong limit: the same word is a count in one limiter and a rate in
//! another, and the same number is seconds in one and milliseconds in another.

use super::yaml::{Excerpt, Node, Value};
use crate::envoy::rule::Unit;
use serde_json::Value as Json;
use slidegate::{Algorithm, Quota, format_window};

use super::values::{is_attribute_name, safe_name};

/// The smallest valid file.
pub(super) const MINIMAL: &str = "policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]";

/// Our keys, each with an example and its names in other limiters.
const KEYS: &str = "
limit: 100 | max_requests requests_per_unit max count requests points tokens threshold max_hits
window: 60s | window_size window_ms window_seconds period per interval duration time_window
burst: 20 | capacity max_burst burst_size bucket_size
mode: shadow | dry_run shadow shadow_mode report_only
scope: [user] | key keys by descriptor descriptors group_by partition_by dimensions variables
quota: 100/1m | rate rate_limit
algorithm: sliding-log | algo use_algo strategy type
when: {path: /login} | match matches if condition conditions filter
name: per-user | id identifier
key: alice | identifier value id
overrides: {alice: 1000} | exceptions override
policies: [{name: per-user, scope: [user], limit: 100, window: 60s}] | limits rules rate_limits ratelimits policy
server: {listen: 127.0.0.1:7979} | listen port bind shutdown_grace drain_delay
listen: 127.0.0.1:7979 | host port bind address
redis: redis://127.0.0.1:6379 | url uri host address redis_url
drain_delay: 5s | drain_time drain_timeout drain_period lame_duck shutdown_delay pre_stop
batch: true | coalesce
cache_denials: true | remember_denials
deadline: 50ms | timeout timeout_ms command_timeout
on_store_error: local | fail_open fail_closed failure_mode failure_mode_deny on_error on_backend_error fallback
store: {memory: {max_keys: 1000000}} | max_keys memory redis redis_url
max_keys: 1000000 | max_entries size
max_bytes: 1GiB | max_memory max_size maxmemory memory_limit
snapshot: {path: /var/lib/slidegate/usage.snapshot} | persistence persist dump save
path: /var/lib/slidegate/usage.snapshot | file dir directory
interval: 1m | every period
addresses: [ip] | ip ips address
";

/// Our key for a key of another limiter, and an example.
pub(super) fn key<'k>(theirs: &str, known: &[&'k str]) -> Option<(&'k str, &'static str)> {
    let theirs = plain(theirs);
    let meant = |line: &'static str| {
        let (example, words) = line.split_once(" | ")?;
        let ours = known.iter().find(|ours| example.split(':').next() == Some(ours))?;
        let is_meant = words.split(' ').any(|word| word == theirs);
        is_meant.then_some((*ours, example))
    };
    KEYS.lines().find_map(meant)
}

/// Our algorithm for a name of another limiter.
pub(super) fn algorithm(theirs: &str) -> Option<Algorithm> {
    let theirs = plain(theirs).replace('_', "-");
    let ours = match theirs.as_str() {
        "sliding-window-log" | "sliding-window-logging" | "moving-window" | "rolling-window" | "exact" => {
            Algorithm::SlidingLog
        }
        "sliding-window-counter" | "sliding-counter" | "approximated-sliding-window" => {
            Algorithm::SlidingWindow
        }
        "fixed" | "fixed-window-counter" => Algorithm::FixedWindow,
        "gcra" | "leaky-bucket" | "leaky" | "bucket" => Algorithm::TokenBucket,
        // Ours with underscores or spaces.
        ours => return ours.parse().ok(),
    };
    Some(ours)
}

/// Recognises a file of another limiter. Returns the line and how to fix it.
pub(super) fn recognise(root: &Node) -> Option<(u64, String)> {
    rate_limiter(root).or_else(|| envoy(root))
}

/// `rate-limiter: {use-algo, window-size, max-requests}`
fn rate_limiter(root: &Node) -> Option<(u64, String)> {
    let (key, limiter) = entry(root, "rate_limiter")?;
    let parts = ["use_algo", "window_size", "max_requests"].map(|name| entry(limiter, name));
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let [algorithm, window, limit] = parts.map(|part| part.map(|(_, value)| value));
    let what = format!("`{}` belongs to another limiter", Excerpt(key.scalar()?));
    let Some((limit, (window, unit))) = limit.and_then(whole).zip(window.and_then(window_of)) else {
        return Some((key.line, format!("{what}; write for example `{MINIMAL}`")));
    };
    let algorithm = algorithm.and_then(Node::scalar).and_then(self::algorithm).unwrap_or_default();
    let check = match unit {
        Some(unit) => format!("its window has no unit and is read as {unit}: check that, and"),
        None => "check".to_owned(),
    };
    let policy = format!(
        "{{name: per-user, scope: [user], limit: {limit}, window: {window}, algorithm: {algorithm}}}"
    );
    Some((key.line, format!("{what}; write `policies: [{policy}]`; {check} what it counts by")))
}

/// A window of another limiter, and the assumed unit if it has none.
fn window_of(node: &Node) -> Option<(String, Option<&'static str>)> {
    let is_valid = |text: &str| Quota::parse_window(text).is_ok();
    if let Value::Text(text) = &node.value {
        return is_valid(text).then(|| (quoted(text), None));
    }
    let number = whole(node)?;
    // Most limiters use seconds. A number that would be years is milliseconds.
    let spans = [("s", "seconds"), ("ms", "milliseconds")];
    let mut spans = spans.into_iter().map(|(unit, word)| (format!("{number}{unit}"), Some(word)));
    spans.find(|(text, _)| is_valid(text))
}

/// `domain:` and `descriptors:` of envoyproxy/ratelimit.
fn envoy(root: &Node) -> Option<(u64, String)> {
    let (domain, _) = entry(root, "domain")?;
    let (_, descriptors) = entry(root, "descriptors")?;
    let what = "this is a file of envoyproxy/ratelimit; give its folder as `--envoy-config`";
    let Some(policy) = first_limit(descriptors, &mut Vec::new()) else {
        return Some((domain.line, format!("{what}; write for example `{MINIMAL}`")));
    };
    Some((domain.line, format!("{what}; as a policy, a limit of it would be `policies: [{policy}]`")))
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
    let per_unit = whole(limit.get("requests_per_unit")?)?;
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

/// The value of a number in plain digits, which may be separated by `_`.
///
/// A leading zero is rejected: it means octal to some YAML readers and decimal to others.
pub(super) fn whole(node: &Node) -> Option<u64> {
    if !matches!(node.value, Value::Integer(_) | Value::Float) {
        return None;
    }
    let digits = node.scalar()?.replace('_', "");
    let is_plain =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| is_plain)
}

/// A text quoted for YAML.
pub(super) fn quoted(text: &str) -> String {
    // JSON's quoted text is YAML's.
    Json::from(text).to_string()
}

/// A word in lower case with underscores.
fn plain(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

//! Words of other limiters: recognised to say what they are called here, never read as if they were ours.
//!
//! A guess would start a limiter that limits something else: the same word is a count to one and a rate to another,
//! the same number seconds to one and milliseconds to another.

use slidegate::{Algorithm, Quota, parse_window};

use super::file::{Entry, Node, Shown, Value};
use super::resolve::MINIMAL;
use super::section::whole;

/// What others call a key, what it is here, and how that is written.
const KEYS: [(&[&str], &str, &str); 17] = [
    (
        &[
            "max_requests",
            "requests_per_unit",
            "max",
            "count",
            "requests",
            "points",
            "tokens",
            "threshold",
            "max_hits",
        ],
        "limit",
        "limit: 100",
    ),
    (
        &[
            "window_size",
            "window_ms",
            "window_seconds",
            "period",
            "per",
            "interval",
            "duration",
            "unit",
            "time_window",
        ],
        "window",
        "window: 60s",
    ),
    (&["capacity", "max_burst", "burst_size", "bucket_size"], "burst", "burst: 20"),
    (&["dry_run", "shadow", "shadow_mode", "report_only"], "mode", "mode: shadow"),
    (
        &[
            "key",
            "keys",
            "by",
            "descriptor",
            "descriptors",
            "group_by",
            "partition_by",
            "dimensions",
            "variables",
        ],
        "scope",
        "scope: [user]",
    ),
    (&["rate", "rate_limit"], "quota", "quota: 100/1m"),
    (&["algo", "use_algo", "strategy", "type"], "algorithm", "algorithm: sliding-log"),
    (&["match", "matches", "if", "condition", "conditions", "filter"], "when", "when: {path: /login}"),
    (&["id", "identifier"], "name", "name: per-user"),
    (&["identifier", "value", "id"], "key", "key: alice"),
    (&["exceptions", "override"], "overrides", "overrides: {alice: 1000}"),
    (&["limits", "rules", "rate_limits", "ratelimits", "policy"], "policies", MINIMAL),
    (&["listen", "port", "bind", "shutdown_grace"], "server", "server: {listen: 127.0.0.1:7979}"),
    (&["host", "port", "bind", "address"], "listen", "listen: 127.0.0.1:7979"),
    (&["max_keys", "memory"], "store", "store: {memory: {max_keys: 1000000}}"),
    (&["max_size", "max_entries", "size"], "max_keys", "max_keys: 1000000"),
    (&["ip", "ips", "address"], "addresses", "addresses: [ip]"),
];

/// The key of ours that an unknown one is the word for, and the way out.
pub(super) fn key(theirs: &str, known: &[&'static str]) -> Option<(&'static str, String)> {
    let theirs = plain(theirs);
    let meant = KEYS.iter().find(|(words, ours, _)| known.contains(ours) && words.contains(&theirs.as_str()));
    meant.map(|(_, ours, example)| (*ours, format!("here it is `{ours}`, for example `{example}`")))
}

/// Our algorithm of another name.
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

/// A whole file of another limiter: the line it shows in, and what to write instead.
pub(super) fn recognise(root: &Node) -> Option<(u64, String)> {
    rlaas(root).or_else(|| envoy(root))
}

/// `rate-limiter: {use-algo, window-size, max-requests}`
fn rlaas(root: &Node) -> Option<(u64, String)> {
    let limiter = entry(root, &["rate_limiter"])?;
    let parts =
        [&["use_algo"][..], &["window_size"], &["max_requests"]].map(|names| entry(&limiter.value, names));
    if parts.iter().all(Option::is_none) {
        return None;
    }
    let [algorithm, window, limit] = parts.map(|part| part.map(|entry| &entry.value));
    let what = format!("`{}` is in the words of another limiter", Shown(&limiter.key));
    let limit = limit.and_then(|node| whole("limit", node, "").ok());
    let Some((limit, window)) = limit.zip(window.and_then(Span::of)) else {
        return Some((limiter.line, format!("{what}; write for example `{MINIMAL}`")));
    };
    let algorithm = algorithm.and_then(Node::scalar).and_then(self::algorithm).unwrap_or_default();
    let policy = format!(
        "policies: [{{name: per-user, scope: [user], limit: {limit}, window: {}, algorithm: {algorithm}}}]",
        window.text
    );
    let unit = window
        .assumed
        .map(|unit| format!(" its window names no unit and is taken for {unit}: check that, and"));
    let check = unit.unwrap_or_else(|| " check".into());
    Some((limiter.line, format!("{what}; write `{policy}`;{check} what it counts by")))
}

/// A window in the words of another limiter.
struct Span {
    text: String,
    /// The unit that was not written.
    assumed: Option<&'static str>,
}

impl Span {
    fn of(node: &Node) -> Option<Self> {
        let valid = |text: &str| parse_window(text).is_ok_and(|window| Quota::new(1, window).is_ok());
        if let Value::Text(text) = &node.value {
            return valid(text).then(|| Self { text: yaml(text), assumed: None });
        }
        let number = whole("window", node, "").ok()?;
        // Most say seconds. What would be years is milliseconds.
        let units = [("s", "seconds"), ("ms", "milliseconds")];
        let spans = units.map(|(unit, word)| Self { text: format!("{number}{unit}"), assumed: Some(word) });
        spans.into_iter().find(|span| valid(&span.text))
    }
}

/// `domain:` and `descriptors:` of envoyproxy/ratelimit.
fn envoy(root: &Node) -> Option<(u64, String)> {
    let domain = entry(root, &["domain"])?;
    let descriptors = entry(root, &["descriptors"])?;
    let what = "this is a file of envoyproxy/ratelimit, which is not read here";
    let Some(policy) = first_limit(&descriptors.value, &mut Vec::new()) else {
        return Some((domain.line, format!("{what}; write for example `{MINIMAL}`")));
    };
    Some((domain.line, format!("{what}; its first limit would be `policies: [{policy}]`")))
}

/// The first limit below these descriptors as a policy. `path` are the descriptors above.
fn first_limit<'f>(descriptors: &'f Node, path: &mut Vec<(&'f str, Option<&'f str>)>) -> Option<String> {
    let Value::List(descriptors) = &descriptors.value else { return None };
    descriptors.iter().find_map(|descriptor| {
        let key = descriptor.get("key")?.scalar()?;
        path.push((key, descriptor.get("value").and_then(Node::scalar)));
        let shadow =
            descriptor.get("shadow_mode").is_some_and(|node| matches!(node.value, Value::Flag(true, _)));
        let here = descriptor.get("rate_limit").and_then(|limit| as_policy(limit, path, shadow));
        let found = here.or_else(|| first_limit(descriptor.get("descriptors")?, path));
        path.pop();
        found
    })
}

/// A descriptor with a value is a condition, one without is counted by, one with a pattern is both.
fn as_policy(limit: &Node, path: &[(&str, Option<&str>)], shadow: bool) -> Option<String> {
    let per_unit = whole("limit", limit.get("requests_per_unit")?, "").ok()?;
    let window = match plain(limit.get("unit")?.scalar()?).as_str() {
        "second" => "1s",
        "minute" => "1m",
        "hour" => "1h",
        "day" => "1d",
        "week" => "1w",
        "month" => "30d",
        "year" => "365d",
        _ => return None,
    };
    let is_pattern = |value: &str| value.contains('*');
    let name = path.iter().map(|(key, _)| *key).collect::<Vec<_>>().join("-");
    let conditions: Vec<_> = path.iter().filter_map(|(key, value)| Some((yaml(key), (*value)?))).collect();
    let conditions = conditions.iter().map(|(key, value)| match value {
        value if is_pattern(value) => {
            format!("{key}: {{glob: {}}}", yaml(&value.replace('\\', "\\\\").replace('?', "\\?")))
        }
        value if value.contains('?') => format!("{key}: {{equals: {}}}", yaml(value)),
        value => format!("{key}: {}", yaml(value)),
    });
    let conditions = conditions.collect::<Vec<_>>().join(", ");
    let counted = path.iter().filter(|(_, value)| value.is_none_or(is_pattern));
    let scope = counted.map(|(key, _)| yaml(key)).collect::<Vec<_>>().join(", ");
    let mut parts = vec![format!("name: {}", super::flag::safe_name(&name))];
    parts.extend((!conditions.is_empty()).then(|| format!("when: {{{conditions}}}")));
    parts.extend((!scope.is_empty()).then(|| format!("scope: [{scope}]")));
    parts.push(format!("limit: {per_unit}, window: {window}, algorithm: fixed-window"));
    parts.extend(shadow.then(|| "mode: shadow".to_owned()));
    Some(format!("{{{}}}", parts.join(", ")))
}

fn entry<'f>(node: &'f Node, names: &[&str]) -> Option<&'f Entry> {
    node.entries()?.iter().find(|entry| names.contains(&plain(&entry.key).as_str()))
}

/// A word without what its spellings differ by.
fn plain(word: &str) -> String {
    word.to_lowercase().replace(['-', ' '], "_")
}

/// A text as it can be pasted into a list or map in brackets.
pub(super) fn yaml(text: &str) -> String {
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let is_text =
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/') && text.chars().all(harmless);
    let is_word =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str());
    // JSON's quoted text is YAML's.
    if is_text && !is_word { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

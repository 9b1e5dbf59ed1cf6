//! Words of other limiters: recognised to say what they are called here, never read as if they were ours.
//!
//! A guess would start a limiter that limits something else: the same word is a count to one and a rate to another,
//! the same number seconds to one and milliseconds to another.

use slidegate::{Algorithm, Quota};

use super::file::{Entry, Node, Shown, Value};
use super::resolve::MINIMAL;
use super::section::whole;

/// What others call a key, what it is here, and how that is written.
const KEYS: [(&[&str], &str, &str); 20] = [
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
    (&["url", "uri", "host", "address", "redis_url"], "redis", "redis: redis://127.0.0.1:6379"),
    (&["timeout", "timeout_ms", "command_timeout"], "deadline", "deadline: 50ms"),
    (
        &[
            "fail_open",
            "fail_closed",
            "failure_mode",
            "failure_mode_deny",
            "on_error",
            "on_backend_error",
            "fallback",
        ],
        "on_store_error",
        "on_store_error: local",
    ),
    (&["max_keys", "memory", "redis", "redis_url"], "store", "store: {memory: {max_keys: 1000000}}"),
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
    rate_limiter(root).or_else(|| envoy(root))
}

/// `rate-limiter: {use-algo, window-size, max-requests}`
fn rate_limiter(root: &Node) -> Option<(u64, String)> {
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
        let valid = |text: &str| Quota::parse_window(text).is_ok();
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
    let what = "this is a file of envoyproxy/ratelimit, whose folder `--envoy-config` reads";
    let Some(policy) = first_limit(&descriptors.value, &mut Vec::new()) else {
        return Some((domain.line, format!("{what}; write for example `{MINIMAL}`")));
    };
    Some((domain.line, format!("{what}; as a policy, its first limit would be `policies: [{policy}]`")))
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

#[cfg(test)]
mod tests {
    use crate::config::tests::{error, errors};
    use crate::config::{Config, Counted, describe};

    /// What the policy to paste in an error says.
    fn pasted(error: &str) -> String {
        let policy = error.split('`').find(|part| part.starts_with("policies: [")).unwrap();
        let config = Config::parse(policy, "pasted").unwrap_or_else(|errors| panic!("{errors}"));
        config.policies.iter().map(|policy| describe(policy, Counted::Here)).collect()
    }

    /// Who comes from another limiter brings its file first.
    #[test]
    fn a_file_in_the_words_of_another_limiter_comes_back_as_a_policy() {
        let file = |algorithm: &str, window: &str| {
            format!(
                "server:\n  port: 1\nrate-limiter:\n  use-algo: {algorithm}\n  window-size: {window}\n  max-requests: 100\n"
            )
        };
        let said = error(&file("sliding-window-log", "60"));
        assert_eq!(
            said,
            "slidegate.yaml:3: `rate-limiter` is in the words of another limiter; write `policies: [{name: per-user, scope: \
             [user], limit: 100, window: 60s, algorithm: sliding-log}]`; its window names no unit and is taken for seconds: \
             check that, and what it counts by"
        );
        assert!(
            pasted(&said).starts_with(
                "per-user: requests are limited to 100 per 1m for each user (exact sliding log)"
            )
        );
        for (theirs, ours) in [
            ("sliding-window-log", "exact sliding log"),
            ("sliding-window-counter", "sliding window of two counters"),
            ("sliding-window", "sliding window of two counters"),
            ("fixed-window", "fixed window"),
            ("token-bucket", "token bucket"),
            ("leaky-bucket", "token bucket"),
            ("Token_Bucket", "token bucket"),
        ] {
            assert!(pasted(&error(&file(theirs, "60"))).contains(ours), "{theirs}");
        }
        let said = error(&file("fixed-window", "86400000"));
        assert!(said.contains("window: 86400000ms") && said.contains("taken for milliseconds"), "{said}");
        let said = error(&file("fixed-window", "1h"));
        assert!(
            pasted(&said).contains("100 per 1h") && said.ends_with("; check what it counts by"),
            "{said}"
        );
        assert_eq!(
            error("rate-limiter: {max-requests: lots}\n"),
            "slidegate.yaml:1: `rate-limiter` is in the words of another limiter; write for example `policies: [{name: \
             per-user, scope: [user], limit: 100, window: 60s}]`"
        );
    }

    /// The most common file of all is another service's.
    #[test]
    fn a_file_of_envoyproxy_ratelimit_comes_back_as_its_first_limit() {
        let text = "
domain: mongo_cps
descriptors:
  - key: database
    value: default
    descriptors:
      - key: source cluster
        value: 'eu?'
        descriptors:
          - key: remote_address
            shadow_mode: true
            rate_limit: {unit: MINUTE, requests_per_unit: 500}
  - key: other
    rate_limit: {unit: second, requests_per_unit: 1}
";
        let said = error(text);
        assert_eq!(
            said,
            "slidegate.yaml:2: this is a file of envoyproxy/ratelimit, whose folder `--envoy-config` reads; as a \
             policy, its first limit would be `policies: [{name: database-source-cluster-remote_address, when: {database: default, source_cluster: {equals: \
             \"eu?\"}}, scope: [remote_address], limit: 500, window: 1m, algorithm: fixed-window, mode: shadow}]`"
                .replace("source_cluster:", "\"source cluster\":")
        );
        let text = "domain: a\ndescriptors:\n  - {key: path, value: /x*, rate_limit: {unit: day, requests_per_unit: 5}}\n";
        assert_eq!(
            pasted(&error(text)),
            "path: requests whose path looks like `/x*` are limited to 5 per 1d for each path (fixed window: up to twice the \
             limit around its border). Denies. A key takes about 63 bytes at most."
        );
        assert_eq!(
            error("domain: a\ndescriptors: []\n"),
            "slidegate.yaml:1: this is a file of envoyproxy/ratelimit, whose folder `--envoy-config` reads; write for example \
             `policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]`"
        );
    }

    /// Fingers remember the last limiter's words longer than heads do.
    #[test]
    fn keys_of_others_are_told_by_their_name_here() {
        for (theirs, ours) in [
            ("max_requests", "limit"),
            ("max-requests", "limit"),
            ("requests_per_unit", "limit"),
            ("window_size", "window"),
            ("period", "window"),
            ("per", "window"),
            ("interval", "window"),
            ("unit", "window"),
            ("rate", "quota"),
            ("capacity", "burst"),
            ("max_burst", "burst"),
            ("dry_run", "mode"),
            ("shadow_mode", "mode"),
            ("shadow", "mode"),
            ("key", "scope"),
            ("keys", "scope"),
            ("by", "scope"),
            ("descriptor", "scope"),
        ] {
            let text =
                format!("policies:\n  - {{name: p, quota: 1/1s, algorithm: token-bucket, {theirs}: x}}\n");
            let expected = format!(
                "slidegate.yaml:2: policy `p`: unknown key `{theirs}`; here it is `{ours}`, for example `{ours}: "
            );
            assert!(error(&text).starts_with(&expected), "{theirs}");
        }
        assert_eq!(
            errors("policies:\n  - name: p\n    requests_per_unit: 5\n    unit: minute\n    dry_run: true\n"),
            [
                "slidegate.yaml:3: policy `p`: unknown key `requests_per_unit`; here it is `limit`, for example `limit: 100`",
                "slidegate.yaml:4: policy `p`: unknown key `unit`; here it is `window`, for example `window: 60s`",
                "slidegate.yaml:5: policy `p`: unknown key `dry_run`; here it is `mode`, for example `mode: shadow`",
            ]
        );
    }
}

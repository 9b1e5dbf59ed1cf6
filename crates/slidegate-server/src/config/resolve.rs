//! The tree of a file made into checked values. The only door to the library's types.
//!
//! Reading goes on behind a mistake, so that all of them are found: what is returned is meant only if there were none.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use slidegate::headers::HeaderOptions;
use slidegate::{Algorithm, MemoryStore, Policy, PolicySet, Quota, parse_window};

use super::file::{Node, Shown, Value};
use super::section::{Section, flag, text, whole, wrong};
use super::{
    AccessRules, Auth, Config, DEFAULT_LISTEN, DEFAULT_SHUTDOWN_GRACE, Findings, Outside, admin, auth,
    foreign, grpc, observe, policy, resp, shared,
};
use crate::policy_names::is_inline;

/// What to write where there is no policy.
pub(super) const MINIMAL: &str = "policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]";
/// Longest that a stopping service waits. Who starts it has long killed it by then.
const MAX_SHUTDOWN_GRACE: Duration = Duration::from_secs(3600);
/// Most keys of the memory store: they would take some 60 GB.
const MAX_MAX_KEYS: u64 = 1_000_000_000;
/// Longest name of an attribute, in bytes: as long as a request's may be.
const MAX_ATTRIBUTE: usize = crate::limits::MAX_NAME;

/// Reads a whole file.
pub(super) fn config(root: &Node, outside: &Outside, findings: &mut Findings) -> Config {
    let Some(mut top) = Section::of(root, String::new(), MINIMAL, findings) else { return Config::default() };
    let known =
        ["policies", "server", "grpc", "store", "resp", "attributes", "headers", "auth", "admin", "observe"];
    top.expect_only(&known, findings);
    let defaults = Config::default();
    let (listen, shutdown_grace) = server(&top, findings);
    let grpc = section(&top, "grpc", &grpc::KEYS, grpc::EXAMPLE, findings)
        .map(|section| grpc::grpc(&section, outside, findings))
        .unwrap_or_default();
    let known = ["memory"].into_iter().chain(shared::KEYS).collect::<Vec<_>>();
    let example = "redis: redis://127.0.0.1:6379";
    let store = section(&top, "store", &known, example, findings);
    let max_keys = memory(store.as_ref(), findings);
    let shared = match &store {
        Some(store) => shared::store(store, outside, findings),
        None => outside.store(),
    };
    let resp = match section(&top, "resp", &resp::KEYS, "listen: 127.0.0.1:6380", findings) {
        Some(section) => resp::resp(&section, outside, findings),
        None => outside.resp(),
    };
    let mut address_attributes = attributes(&top, findings).unwrap_or(defaults.address_attributes);
    let auth = section(&top, "auth", &auth::KEYS, auth::EXAMPLE, findings)
        .map(|section| auth::auth(&section, findings));
    for name in auth.iter().flat_map(Auth::address_attributes) {
        if !address_attributes.iter().any(|known| known == name) {
            address_attributes.push(name.to_owned());
        }
    }
    let (policies, candidates) = policies(&top, &address_attributes, outside, findings)
        .unwrap_or((defaults.policies, defaults.candidates));
    let has_open_port = resp.as_ref().is_some_and(|resp| resp.password.is_none());
    let admin = match section(&top, "admin", &admin::KEYS, "tokens: [...]", findings) {
        Some(section) => admin::rules(&section, &outside.tokens, has_open_port, findings),
        None => AccessRules { tokens: outside.tokens.clone(), ..AccessRules::default() },
    };
    let headers = headers(&top, findings);
    let told = section(&top, "observe", &observe::KEYS, "top: true", findings);
    let observe = observe::observe(told.as_ref(), &top, store.as_ref(), outside, findings);
    if let Some(shared) = &shared
        && findings.0.is_empty()
    {
        shared::try_out(shared, &policies, &top, store.as_ref(), findings);
    }
    let auth = auth.unwrap_or_default();
    Config {
        policies,
        candidates,
        listen,
        grpc,
        shutdown_grace,
        max_keys,
        shared,
        resp,
        address_attributes,
        headers,
        auth,
        admin,
        observe,
    }
}

/// The section under `key`, empty if it is not there.
fn section<'f>(
    parent: &Section<'f>,
    key: &str,
    known: &[&'static str],
    example: &str,
    findings: &mut Findings,
) -> Option<Section<'f>> {
    let mut section = Section::of(parent.get(key)?, key.to_owned(), example, findings)?;
    section.expect_only(known, findings);
    Some(section)
}

fn server(top: &Section<'_>, findings: &mut Findings) -> (SocketAddr, Duration) {
    const LISTEN: &str = "give an address and a port, for example `127.0.0.1:7979` or `[::]:7979`";
    const GRACE: &str = "give 0s to 1h, for example `10s`";
    let example = "listen: 127.0.0.1:7979";
    let Some(server) = section(top, "server", &["listen", "shutdown_grace"], example, findings) else {
        return (DEFAULT_LISTEN, DEFAULT_SHUTDOWN_GRACE);
    };
    let listen = server.read("listen", findings, |node| {
        text("listen", node, LISTEN)?.parse().map_err(|_| wrong("listen", node, LISTEN))
    });
    let grace = server.read("shutdown_grace", findings, |node| {
        let span = parse_window(text("shutdown_grace", node, GRACE)?).ok();
        span.filter(|span| *span <= MAX_SHUTDOWN_GRACE).ok_or_else(|| wrong("shutdown_grace", node, GRACE))
    });
    (listen.unwrap_or(DEFAULT_LISTEN), grace.unwrap_or(DEFAULT_SHUTDOWN_GRACE))
}

fn memory(store: Option<&Section<'_>>, findings: &mut Findings) -> usize {
    let default = MemoryStore::DEFAULT_MAX_KEYS;
    let memory =
        store.and_then(|store| section(store, "memory", &["max_keys"], "max_keys: 1000000", findings));
    let max_keys = memory.and_then(|memory| {
        memory.read("max_keys", findings, |node| {
            let way_out = "give 1 to 1000000000, for example `max_keys: 1000000`";
            let keys = whole("max_keys", node, way_out)?;
            let keys = usize::try_from(keys).ok().filter(|_| (1..=MAX_MAX_KEYS).contains(&keys));
            keys.ok_or_else(|| wrong("max_keys", node, way_out))
        })
    });
    max_keys.unwrap_or(default)
}

fn headers(top: &Section<'_>, findings: &mut Findings) -> HeaderOptions {
    let default = HeaderOptions::default();
    let keys = ["draft", "x_ratelimit", "retry_after", "retry_after_ms"];
    let Some(section) = section(top, "headers", &keys, "draft: draft-10", findings) else { return default };
    let draft = section.read("draft", findings, |node| {
        let name =
            node.scalar().ok_or_else(|| wrong("draft", node, "write for example `draft: draft-10`"))?;
        name.parse().map_err(|error: slidegate::Error| error.to_string())
    });
    let x_ratelimit = section.read("x_ratelimit", findings, |node| {
        let name = node
            .scalar()
            .ok_or_else(|| wrong("x_ratelimit", node, "write for example `x_ratelimit: epoch`"))?;
        name.parse().map_err(|error: slidegate::Error| error.to_string())
    });
    let retry_after = section.read("retry_after", findings, |node| flag("retry_after", node));
    let retry_after_ms = section.read("retry_after_ms", findings, |node| flag("retry_after_ms", node));
    HeaderOptions {
        draft: draft.unwrap_or(default.draft),
        x_ratelimit: x_ratelimit.unwrap_or(default.x_ratelimit),
        retry_after: retry_after.unwrap_or(default.retry_after),
        retry_after_ms: retry_after_ms.unwrap_or(default.retry_after_ms),
    }
}

fn attributes(top: &Section<'_>, findings: &mut Findings) -> Option<Vec<String>> {
    let section = section(top, "attributes", &["addresses"], "addresses: [ip]", findings)?;
    let addresses = section.get("addresses")?;
    Some(names("addresses", addresses, &section, findings))
}

/// A list of attributes, or one of them.
pub(super) fn names(key: &str, node: &Node, section: &Section<'_>, findings: &mut Findings) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for name in node.one_or_many() {
        match attribute(key, name) {
            Ok(name) if names.contains(&name) => {
                section.find(node.line, format_args!("{key} has `{name}` twice; keep one"), findings);
            }
            Ok(name) => names.push(name),
            Err(message) => section.find(name.line, message, findings),
        }
    }
    names
}

fn attribute(key: &str, node: &Node) -> Result<String, String> {
    let name = text(key, node, "give the names of attributes, for example `[user, path]`")?;
    attribute_name(name).map_err(|message| format!("{key}: {message}"))
}

/// The name of an attribute. Whatever a request may call one, but for what was surely meant otherwise.
pub(super) fn attribute_name(name: &str) -> Result<String, String> {
    let is_odd =
        |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '`' | '[' | ']' | '{' | '}');
    if name.is_empty() || name.len() > MAX_ATTRIBUTE || name.contains(is_odd) {
        return Err(format!(
            "`{}` is not the name of an attribute: 1 to {MAX_ATTRIBUTE} bytes without spaces, commas and brackets; write \
             several as a list, for example `[user, path]`",
            Shown(name)
        ));
    }
    Ok(name.to_owned())
}

/// An algorithm by its name here. The names of others are told apart and refused all the same.
pub(super) fn algorithm(name: &str) -> Result<Algorithm, String> {
    name.parse().map_err(|error: slidegate::Error| match foreign::algorithm(name) {
        Some(ours) => format!("algorithm is `{}`; here it is `{ours}`", Shown(name)),
        None => error.to_string(),
    })
}

/// What to do about a name that none may have.
pub(super) const TAKEN: &str =
    "keys of the RESP command of this name are kept under it; give the policy another";

fn policies(
    top: &Section<'_>,
    addresses: &[String],
    outside: &Outside,
    findings: &mut Findings,
) -> Option<(PolicySet, BTreeMap<String, Quota>)> {
    if outside.has_other_limits && top.get("policies").is_none_or(|node| matches!(node.value, Value::Nothing))
    {
        return Some((PolicySet::default(), BTreeMap::new()));
    }
    top.expect("policies", &format!("write for example `{MINIMAL}`"), findings);
    let node = top.get("policies")?;
    let nodes = match &node.value {
        Value::List(nodes) if !nodes.is_empty() => nodes,
        Value::List(_) | Value::Nothing => {
            findings.add(node.line, format_args!("policies is empty; write for example `{MINIMAL}`"));
            return None;
        }
        _ => {
            findings
                .add(node.line, format_args!("policies is {node}; write a list, for example `{MINIMAL}`"));
            return None;
        }
    };
    let mut named: Vec<(u64, Policy)> = Vec::with_capacity(nodes.len());
    let mut candidates = BTreeMap::new();
    for (at, node) in nodes.iter().enumerate() {
        let policy = policy::policy(node, at + 1, addresses, findings);
        let Some((policy, candidate)) = policy else { continue };
        candidates.extend(candidate.map(|candidate| (policy.name().to_owned(), candidate)));
        named.push((node.line, policy));
    }
    twice(&named, findings);
    let set = PolicySet::new(named.into_iter().map(|(_, policy)| policy));
    // What is wrong with one policy was found with its line; what is left is wrong with all of them.
    match set {
        Ok(set) => Some((set, candidates)),
        Err(error) => {
            if findings.0.is_empty() {
                findings.add(node.line, error);
            }
            None
        }
    }
}

/// Finds names that two policies have, or that none may have.
fn twice(named: &[(u64, Policy)], findings: &mut Findings) {
    let mut lines = std::collections::HashMap::new();
    for (line, policy) in named {
        let name = policy.name();
        if is_inline(name) {
            findings.add(*line, format_args!("policy `{name}`: {TAKEN}"));
        }
        if let Some(first) = lines.insert(name, line) {
            let message =
                format_args!("policy `{name}`: the name stands in line {first} too; give each its own");
            findings.add(*line, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::headers::{Draft, XRateLimit};

    use crate::config::Config;
    use crate::config::tests::error;

    const POLICY: &str = "\npolicies: [{name: p, quota: 1/1s}]\n";

    /// A setting that does not arrive is found out in the middle of an incident.
    #[test]
    fn every_setting_arrives() {
        let text = "
server: {listen: '[::1]:80', shutdown_grace: 1m30s}
store: {memory: {max_keys: 200_000}}
attributes: {addresses: [ip, proxy]}
headers: {draft: draft-7, x_ratelimit: delta, retry_after: false, retry_after_ms: true}";
        let config = Config::parse(&format!("{text}{POLICY}"), "slidegate.yaml").unwrap();
        assert_eq!((config.listen.to_string().as_str(), config.shutdown_grace.as_secs()), ("[::1]:80", 90));
        assert_eq!(config.max_keys, 200_000);
        assert!(config.is_address("proxy"));
        assert_eq!(
            (config.headers.draft, config.headers.x_ratelimit),
            (Draft::Draft7, XRateLimit::DeltaSeconds)
        );
        assert!(!config.headers.retry_after && config.headers.retry_after_ms);
        let text = "headers: {draft: off, x_ratelimit: OFF}\nserver:\nstore: {memory: }\n";
        let config = Config::parse(&format!("{text}{POLICY}"), "slidegate.yaml").unwrap();
        assert_eq!((config.headers.draft, config.headers.x_ratelimit), (Draft::Off, XRateLimit::Off));
    }

    /// The service must not come up somewhere else, or smaller, than was meant.
    #[test]
    fn each_wrong_setting_names_its_value_and_the_way_out() {
        let listen = "give an address and a port, for example `127.0.0.1:7979` or `[::]:7979`";
        let grace = "give 0s to 1h, for example `10s`";
        let keys = "give 1 to 1000000000, for example `max_keys: 1000000`";
        for (text, expected) in [
            ("server: {listen: ':7979'}", format!("server: listen is `:7979`; {listen}")),
            ("server: {listen: 7979}", format!("server: listen is 7979; {listen}")),
            ("server: {shutdown_grace: 10}", format!("server: shutdown_grace is 10; {grace}")),
            ("server: {shutdown_grace: 61m}", format!("server: shutdown_grace is `61m`; {grace}")),
            (
                "server: {port: 80}",
                "server: unknown key `port`; here it is `listen`, for example `listen: 127.0.0.1:7979`".into(),
            ),
            ("server: x", "server is `x`; write keys and values, for example `listen: 127.0.0.1:7979`".into()),
            (
                "listen: 127.0.0.1:80",
                "unknown key `listen`; here it is `server`, for example `server: {listen: 127.0.0.1:7979}`".into(),
            ),
            ("store: {memory: {max_keys: 0}}", format!("memory: max_keys is 0; {keys}")),
            ("store: {memory: {max_keys: 1000000001}}", format!("memory: max_keys is 1000000001; {keys}")),
            (
                "attributes: {addresses: [a b]}",
                "attributes: addresses: `a b` is not the name of an attribute: 1 to 128 bytes without spaces, commas and \
                 brackets; write several as a list, for example `[user, path]`"
                    .into(),
            ),
            (
                "headers: {draft: draft-8}",
                "headers: invalid ratelimit header draft `draft-8`: must be `draft-10`, `draft-7`, `draft-6` or `off`".into(),
            ),
            (
                "headers: {x_ratelimit: true}",
                "headers: invalid x-ratelimit reset `true`: must be `epoch`, `delta` or `off`".into(),
            ),
            ("headers: {draft: []}", "headers: draft is a list; write for example `draft: draft-10`".into()),
            ("headers: {retry_after_ms: yes}", "headers: retry_after_ms is `yes`; write `true` or `false`".into()),
        ] {
            assert_eq!(error(&format!("{text}{POLICY}")), format!("slidegate.yaml:1: {expected}"), "{text}");
        }
    }
}

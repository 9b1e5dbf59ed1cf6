//! The whole file: its sections, and how they become one checked configuration.
//!
//! Reading goes on after a mistake, so that all of them are found: the result is only valid if nothing was reported.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use ring::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value as Json;
use slidegate::headers::{Draft, HeaderOptions, XRateLimit};
use slidegate::{MemoryStore, PolicySet, Quota};

use super::admin::AdminSection;
use super::auth::AuthSection;
use super::check::{Section, suggest};
use super::environment::Outside;
use super::grpc::GrpcSection;
use super::policy::{PolicySpec, attributes};
use super::resp::RespSection;
use super::schema::schema;
use super::store::{StoreSection, try_out};
use super::values::{AttributeName, List, Parsed, Span};
use super::yaml::{Node, Value};
use super::{
    Auth, Config, DEFAULT_LISTEN, DEFAULT_SHUTDOWN_GRACE, FileContent, Findings, KeysShown, Observe,
};
use crate::policy_names::is_inline;

/// What to write where there is no policy.
pub(super) const MINIMAL: &str = "policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]";
/// Why no policy may have the name of a RESP command.
pub(super) const TAKEN: &str = "is the name of a RESP command, whose keys are kept under it; choose another";

/// Everything that can be configured. docs/config.md is the reference.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("x-example" = "policies: [{name: per-user, scope: [user], limit: 100, window: 60s}]"))]
pub(super) struct File {
    /// What is limited. A request is under every policy whose conditions hold and whose scope it has.
    #[schemars(length(min = 1, max = 16384))]
    policies: Option<Vec<PolicySpec>>,
    /// The HTTP interface.
    server: ServerSection,
    /// Envoy's rate-limit service. Without `listen` and `socket` it is not served.
    grpc: Option<GrpcSection>,
    /// Where usage is kept.
    store: Option<StoreSection>,
    /// The port for clients of Redis. Not served without this section.
    resp: Option<RespSection>,
    /// Attributes that are not plain text.
    attributes: AttributesSection,
    /// The header fields of answers.
    headers: HeadersSection,
    /// Proxies that ask before they pass a request on.
    auth: Option<AuthSection>,
    /// Who may read, change and use the running service.
    admin: Option<AdminSection>,
    /// Metrics, events, top keys, logs and traces.
    observe: Observe,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "listen: 127.0.0.1:7979"))]
struct ServerSection {
    /// Address and port of the HTTP interface.
    #[schemars(extend("default" = "127.0.0.1:7979"))]
    listen: Option<Parsed<SocketAddr>>,
    /// How long open requests may take after the service was told to stop.
    #[schemars(extend("default" = "10s"))]
    shutdown_grace: Option<Span<0, 3_600_000>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "addresses: [ip]"))]
struct AttributesSection {
    /// Attributes whose text is an IP address. They are compared and counted as addresses, whatever their spelling.
    #[schemars(extend("default" = ["ip"]))]
    addresses: Option<List<Parsed<AttributeName>>>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "draft: draft-10"))]
struct HeadersSection {
    /// The version of the `RateLimit` and `RateLimit-Policy` fields.
    #[schemars(extend("default" = "draft-10"))]
    draft: Option<Parsed<Draft>>,
    /// Whether `X-RateLimit-Reset` is a Unix time, seconds from now, or left out with the other two fields.
    #[schemars(extend("default" = "epoch"))]
    x_ratelimit: Option<Parsed<XRateLimit>>,
    /// `Retry-After` on denials, in whole seconds, rounded up, at least 1.
    #[schemars(extend("default" = true))]
    retry_after: Option<bool>,
    /// `retry-after-ms` beside it, in whole milliseconds.
    #[schemars(extend("default" = false))]
    retry_after_ms: Option<bool>,
}

/// Reads a whole file.
pub(super) fn config(root: &Node, outside: &Outside, findings: &mut Findings) -> Config {
    let has_policies = check_policies(root, outside, findings);
    let top = Section { node: root, place: String::new() };
    let Some((file, json)) = top.read::<File>(schema(), findings) else { return Config::default() };
    let under = |key| top.child(key).unwrap_or_else(|| Section { place: key.to_owned(), ..top.clone() });
    let default = Config::default();

    let auth = file.auth.map_or_else(Auth::default, |auth| auth.build(&under("auth"), findings));
    let mut address_attributes = match &file.attributes.addresses {
        Some(names) => attributes("addresses", names, &under("attributes"), findings),
        None => default.address_attributes,
    };
    for name in auth.address_attributes() {
        if !address_attributes.iter().any(|known| known == name) {
            address_attributes.push(name.to_owned());
        }
    }
    let policies = file.policies.unwrap_or_default();
    let mut observe = file.observe.build(top.child("observe").as_ref(), outside, findings);
    observe.keys_shown = keys_shown(&policies);
    let (policies, candidates) = if has_policies {
        build_policies(policies, &top, &address_attributes, findings)
    } else {
        (PolicySet::default(), BTreeMap::new())
    };

    let grpc = file.grpc.map(|grpc| grpc.build(&under("grpc"), outside, findings)).unwrap_or_default();
    let resp = match file.resp {
        Some(resp) => resp.build(&under("resp"), outside, findings),
        None => outside.resp(),
    };
    let has_open_port = resp.as_ref().is_some_and(|resp| resp.password.is_none());
    let admin = file.admin.unwrap_or_default().build(&under("admin"), outside, has_open_port, findings);
    let store = file.store.as_ref();
    let max_keys = store.and_then(StoreSection::max_keys).unwrap_or(MemoryStore::DEFAULT_MAX_KEYS);
    observe.key_secret = outside.key_secret.clone().or_else(|| store?.key_secret());
    let shared = match file.store {
        Some(store) => store.build(&under("store"), outside, findings),
        None => outside.store(),
    };
    if let Some(shared) = shared.as_ref().filter(|_| findings.is_empty()) {
        try_out(shared, &policies, &top, findings);
    }
    let HeadersSection { draft, x_ratelimit, retry_after, retry_after_ms } = file.headers;
    Config {
        policies,
        candidates,
        listen: file.server.listen.map_or(DEFAULT_LISTEN, |listen| listen.0),
        grpc,
        shutdown_grace: file.server.shutdown_grace.map_or(DEFAULT_SHUTDOWN_GRACE, |grace| grace.0),
        max_keys,
        shared,
        resp,
        address_attributes,
        headers: HeaderOptions {
            draft: draft.map_or(default.headers.draft, |draft| draft.0),
            x_ratelimit: x_ratelimit.map_or(default.headers.x_ratelimit, |style| style.0),
            retry_after: retry_after.unwrap_or(default.headers.retry_after),
            retry_after_ms: retry_after_ms.unwrap_or(default.headers.retry_after_ms),
        },
        auth,
        admin,
        observe,
        file: FileContent(with_file_digests(json)),
    }
}

/// The JSON with digests in place of the paths of files that are read once, so that new content counts as a change.
fn with_file_digests(mut json: Json) -> Json {
    for section in ["store", "resp"] {
        let keys = json.get_mut(section).and_then(Json::as_object_mut).into_iter().flatten();
        for (_, path) in keys.filter(|(key, _)| key.ends_with("_file")) {
            let content = path.as_str().and_then(|path| std::fs::read(path).ok()).unwrap_or_default();
            *path = format!("{:?}", digest(&SHA256, &content)).into();
        }
    }
    json
}

/// Whether the file has a list of policies. Without one, that is reported unless limits come from elsewhere.
fn check_policies(root: &Node, outside: &Outside, findings: &mut Findings) -> bool {
    let message = match root.get("policies") {
        Some(Node { value: Value::List(nodes), .. }) if !nodes.is_empty() => return true,
        None | Some(Node { value: Value::Nothing, .. }) if outside.has_other_limits => String::new(),
        Some(node) => format!("invalid policies {node}: must be a list of policies"),
        // A key that was misspelt is reported as such, and a file that is no map as well.
        None if !matches!(root.value, Value::Map(_) | Value::Nothing) => String::new(),
        None if root.entries().iter().any(|entry| suggest(&entry.key, &["policies"]).0.is_some()) => {
            String::new()
        }
        None => "missing policies: must be a list of policies".to_owned(),
    };
    let policies = root.get("policies");
    if !message.is_empty() {
        let line = policies.map_or(root.line, |node| node.line);
        findings.add(line, format_args!("{message}, for example `{MINIMAL}`"));
    }
    policies.into_iter().for_each(Node::reject);
    false
}

/// How policies show their keys, by their names.
fn keys_shown(policies: &[PolicySpec]) -> HashMap<String, KeysShown> {
    policies.iter().filter_map(|policy| Some((policy.name.0.0.clone(), policy.keys_shown?))).collect()
}

fn build_policies(
    specs: Vec<PolicySpec>,
    top: &Section<'_>,
    addresses: &[String],
    findings: &mut Findings,
) -> (PolicySet, BTreeMap<String, Quota>) {
    let list = top.node.get("policies").expect("the policies were found");
    let mut policies = Vec::with_capacity(specs.len());
    let mut candidates = BTreeMap::new();
    let mut lines = HashMap::new();
    for (spec, node) in specs.into_iter().zip(list.valid_children()) {
        let name = spec.name.0.0.clone();
        let section = Section { node, place: format!("policy `{name}`") };
        let (policy, candidate) = spec.build(&section, addresses, findings);
        candidates.extend(candidate.map(|candidate| (name.clone(), candidate)));
        if is_inline(&name) {
            section.report("", format_args!("invalid name `{name}`: {TAKEN}"), findings);
        }
        if let Some(first) = lines.insert(name.clone(), node.line) {
            let message = format_args!("invalid name `{name}`: also used in line {first}; choose another");
            section.report("", message, findings);
        }
        policies.push(policy);
    }
    // What is wrong with one policy was reported with its line; what is left is wrong with all of them together.
    let set = PolicySet::new(policies).unwrap_or_else(|error| {
        if findings.is_empty() {
            findings.add(list.line, error);
        }
        PolicySet::default()
    });
    (set, candidates)
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
        for (text, expected) in [
            (
                "server: {listen: ':7979'}",
                "slidegate.yaml:1: server: invalid listen `:7979`: must be an IP address and a port, for example `127.0.0.1:7979` or `[::]:7979`",
            ),
            (
                "server: {listen: 7979}",
                "slidegate.yaml:1: server: invalid listen `7979`: must be an IP address and a port, for example `127.0.0.1:7979` or `[::]:7979`",
            ),
            (
                "server: {shutdown_grace: 10}",
                "slidegate.yaml:1: server: invalid shutdown_grace `10`: must be 0s to 1h with a unit (ms, s, m, h, d or w), for example `shutdown_grace: 10s`",
            ),
            (
                "server: {shutdown_grace: 61m}",
                "slidegate.yaml:1: server: invalid shutdown_grace `61m`: must be 0s to 1h with a unit (ms, s, m, h, d or w), for example `shutdown_grace: 10s`",
            ),
            (
                "server: {port: 80}",
                "slidegate.yaml:1: server: unknown key `port`: use `listen`, for example `listen: 127.0.0.1:7979`",
            ),
            (
                "server: x",
                "slidegate.yaml:1: invalid server `x`: must be keys and values, for example `listen: 127.0.0.1:7979`",
            ),
            (
                "listen: 127.0.0.1:80",
                "slidegate.yaml:1: unknown key `listen`: use `server`, for example `server: {listen: 127.0.0.1:7979}`",
            ),
            (
                "store: {memory: {max_keys: 0}}",
                "slidegate.yaml:1: store: memory: invalid max_keys `0`: must be a whole number from 1 to 1000000000, without quotes",
            ),
            (
                "store: {memory: {max_keys: 1000000001}}",
                "slidegate.yaml:1: store: memory: invalid max_keys `1000000001`: must be a whole number from 1 to 1000000000, without quotes",
            ),
            (
                "attributes: {addresses: [a b]}",
                "slidegate.yaml:1: attributes: invalid addresses `a b`: must be the name of an attribute, 1 to 128 bytes without spaces, commas and brackets; write several as a list, for example `[user, path]`",
            ),
            (
                "headers: {draft: draft-8}",
                "slidegate.yaml:1: headers: invalid draft `draft-8`: must be `draft-10`, `draft-7`, `draft-6` or `off`",
            ),
            (
                "headers: {x_ratelimit: true}",
                "slidegate.yaml:1: headers: invalid x_ratelimit `true`: must be `epoch`, `delta` or `off`",
            ),
            (
                "headers: {draft: []}",
                "slidegate.yaml:1: headers: invalid draft (a list): must be `draft-10`, `draft-7`, `draft-6` or `off`",
            ),
            (
                "headers: {retry_after_ms: yes}",
                "slidegate.yaml:1: headers: invalid retry_after_ms `yes`: must be `true` or `false`",
            ),
        ] {
            assert_eq!(error(&format!("{text}{POLICY}")), expected);
        }
    }
}

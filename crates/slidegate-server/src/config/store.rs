//! The section `store`: usage in memory, or in a store that instances share.
//!
//! Errors show no part of a URL, because it may hold a password.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use lined_config::{Form, Node, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::internal::check_policy;
use slidegate::{MemoryStore, Policy, PolicySet, Secret};
use slidegate_config::values::{Parsed, Span, Text};
use slidegate_redis::ClientCertificate;

use super::environment::URL_VARIABLE;
use super::memory::Memory;
use super::values::RedisUrl;
use crate::stores::{AnyStore, StoreOptions};

/// Largest file of certificates. All authorities that browsers trust take a fifth of it.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// Where usage is kept. With `redis`, limits live there and all instances share them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "redis: redis://127.0.0.1:6379"))]
pub(super) struct StoreSection {
    /// The memory store, which is the fallback with `redis`.
    memory: Memory,
    /// [URL](#redis-urls) of a shared store. `serve --redis` and `SLIDEGATE_REDIS` take precedence, in this order.
    /// Without any of them, the other keys except `memory` are rejected. Default: limits are not shared.
    redis: Option<Parsed<RedisUrl>>,
    /// Maximum time per decision; after it, `on_store_error` applies.
    #[schemars(extend("default" = "50ms"))]
    deadline: Span<1, 60_000>,
    /// Maximum time to connect. A Sentinel or node that is asked who holds the keys has as long to answer, at most
    /// one second. Default: `250ms`, or `deadline` if that is longer.
    connect_timeout: Option<Span<1, 60_000>>,
    /// Connections per node.
    #[schemars(range(min = 1, max = 16), extend("default" = 1))]
    connections: u8,
    /// Fixed number of instances: while the store is unavailable, each enforces its share of a `local` limit, rounded
    /// up. `SLIDEGATE_INSTANCES` takes precedence. Default: instances [count
    /// themselves](failures.md#number-of-instances).
    #[schemars(range(min = 1, max = 10000))]
    instances: Option<u64>,
    /// Whether instances publish and show [the fleet's sum](observability.md#fleet).
    #[schemars(extend("default" = true))]
    fleet: bool,
    /// Condition for starting; `shared` needs the [self-test](failures.md#self-test).
    #[schemars(extend("default" = "nothing"))]
    require: Requirement,
    /// Ids in key names.
    #[schemars(extend("default" = "plain"))]
    keys: KeyForm,
    /// The secret with which ids are hashed: the same on all instances, unknown to clients. `SLIDEGATE_KEY_SECRET`
    /// takes precedence.
    #[schemars(extend("writeOnly" = true))]
    key_secret: Option<String>,
    /// The attribute whose value puts all keys of a request in one slot of a cluster.
    #[schemars(extend("format" = "attribute"))]
    hash_tag: Option<String>,
    /// Whether checks of the same keys are [batched](redis.md#hot-keys).
    #[schemars(extend("default" = true))]
    batch: bool,
    /// Whether denials are [cached](redis.md#hot-keys).
    #[schemars(extend("default" = true))]
    cache_denials: bool,
    /// Whether this instance takes [leases](leases.md), of policies that have them.
    #[schemars(extend("default" = true))]
    leases: bool,
    /// The only CAs to trust, in PEM. Needs `rediss`; so do the next two. Default: the system's CAs.
    #[schemars(extend("format" = "readable-file"))]
    ca_file: Option<String>,
    /// The client certificate, in PEM.
    #[schemars(extend("format" = "readable-file"))]
    cert_file: Option<String>,
    /// The key of `cert_file`, in PEM.
    #[schemars(extend("format" = "key-file"))]
    key_file: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum KeyForm {
    /// Short plain ids are stored as they are.
    Plain,
    /// All are hashed.
    Hashed,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Requirement {
    /// Start without the store.
    Nothing,
    /// The self-test succeeds, or the service exits with code 2.
    Shared,
}

/// A store that instances share, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedStore {
    /// Shows as its URL without secrets.
    pub(crate) options: StoreOptions,
    /// Maximum time per decision.
    pub(crate) deadline: Duration,
    /// The number of instances, at least 1; `None` if they count themselves.
    pub(crate) instances: Option<u64>,
    /// Whether the service only starts if limits are shared.
    pub(crate) requires_sharing: bool,
    /// Whether instances publish their counters.
    pub(crate) fleet: bool,
}

impl StoreSection {
    pub(super) fn key_secret(&self) -> Option<Secret<String>> {
        self.key_secret.clone().map(Secret::new)
    }

    /// The memory store, and the shared store if there is a valid one. Reports mistakes.
    pub(super) fn build(self, section: &Section<'_>) -> (Memory, Option<SharedStore>) {
        if self.redis.is_some() && self.memory.snapshot.is_some() {
            let why = "needs the memory store, and with redis usage is kept there; leave one of them out";
            section.child("memory").invalid("snapshot", why);
        }
        (self.memory.clone(), self.build_shared(section))
    }

    fn build_shared(self, section: &Section<'_>) -> Option<SharedStore> {
        let certificate = certificate(self.cert_file, self.key_file, section);
        let Some(options) = self.redis else {
            let valid = section.entries().iter().filter(|(_, value)| !value.is_rejected.get());
            let mut keys = valid.filter_map(|(key, _)| key.scalar());
            if let Some(key) = keys.find(|key| *key != "memory" && !section.has("redis")) {
                let why = format!(
                    "needs redis; write for example `redis: redis://127.0.0.1:6379`, give `--redis` or {URL_VARIABLE}, \
                     or leave it out"
                );
                section.invalid(key, why);
            }
            return None;
        };
        let deadline = self.deadline.0;
        let mut options = options.0.0.with_deadline(deadline).with_connections(self.connections);
        if let Some(connect_timeout) = self.connect_timeout {
            options = options.with_connect_timeout(connect_timeout.0);
        }
        if self.keys == KeyForm::Hashed {
            options = options.hashed_keys();
        }
        if let Some(secret) = self.key_secret {
            options = options.with_key_secret(&secret);
        }
        if let Some(attribute) = self.hash_tag {
            options = options.with_hash_tag(attribute);
        }
        if !self.batch {
            options = options.without_batching();
        }
        if !self.cache_denials {
            options = options.without_denial_cache();
        }
        if !self.leases {
            options = options.without_leases();
        }
        if let Some(pem) = self.ca_file {
            options = options.with_ca_certificates(pem.into_bytes());
        }
        if let Some(certificate) = certificate {
            options = options.with_client_certificate(certificate);
        }
        let requires_sharing = self.require == Requirement::Shared;
        Some(SharedStore {
            options: StoreOptions::Redis(options),
            deadline,
            instances: self.instances,
            requires_sharing,
            fleet: self.fleet,
        })
    }
}

/// The path of a PEM file. The text to keep is its content.
pub(super) const READABLE_FILE: Form =
    Form::new("readable-file", "the path of a file", |path, _| read_file(path));

/// The path of a PEM file with a key, which may be given in place of the path by mistake.
pub(super) const KEY_FILE: Form = Form { name: "key-file", ..READABLE_FILE }.secret();

/// The content of a PEM file. PEM is ASCII, so other bytes are replaced.
fn read_file(path: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot be read: {error}; check the path and its permissions"))?;
    if bytes.len() as u64 > MAX_PEM_BYTES {
        return Err(format!("must have at most {MAX_PEM_BYTES} bytes; give a smaller file"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The secret in a file, if it is valid.
pub(super) fn secret_in<T: Text>(path: &str) -> Result<String, String> {
    let secret = read_line(path)?;
    if T::parse(&secret).is_ok() && !secret.contains(char::REPLACEMENT_CHARACTER) {
        return Ok(secret);
    }
    Err(format!("must be a file that holds {}", T::FORM.expected))
}

/// The content of a file without the final line break that editors add.
pub(super) fn read_line(path: &str) -> Result<String, String> {
    read_file(path).map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
}

/// A certificate and its key, if the section has both.
pub(super) fn certificate(
    cert_file: Option<String>,
    key_file: Option<String>,
    section: &Section<'_>,
) -> Option<ClientCertificate> {
    section.check_pair("cert_file", "key_file", "give both");
    section.check_pair("key_file", "cert_file", "give both");
    let (certificate_pem, key_pem) = (cert_file?.into_bytes(), key_file?.into_bytes());
    Some(ClientCertificate::new(certificate_pem, key_pem))
}

/// Why a policy without a shared store cannot report closed periods.
pub(crate) const CLOSED_WITHOUT_STORE: &str = "invalid notify `closed`: a memory store keeps no totals of ended windows; write for example \
     `store: {redis: 'redis://127.0.0.1:6379'}`, or leave `closed` out";

/// Reports policies that need a shared store.
pub(super) fn refuse_closed(policies: &PolicySet, top: &Section<'_>) {
    for policy in policies.iter().filter(|policy| policy.options().notify_closed) {
        section_of(policy, top).report("notify", CLOSED_WITHOUT_STORE);
    }
}

/// The section of a policy.
fn section_of<'s>(policy: &Policy, top: &Section<'s>) -> Section<'s> {
    let name = policy.name();
    let is_it = |node: &&Node| node.get("name").and_then(Node::scalar) == Some(name);
    let node = top.elements("policies").iter().find(is_it);
    node.map_or(top.clone(), |node| top.element(node, format!("policy `{name}`")))
}

/// Creates the store without a connection, to find invalid certificates and limits that its scripts
/// cannot count.
pub(super) fn try_out(shared: &SharedStore, policies: &PolicySet, top: &Section<'_>) {
    let store = match AnyStore::open(shared.options.clone(), MemoryStore::new()) {
        Ok(store) => store,
        Err(error) => {
            let store = top.child("store");
            let key = ["ca_file", "cert_file", "redis"].into_iter().find(|key| store.has(key));
            return store.report(key.unwrap_or_default(), error);
        }
    };
    for policy in policies.iter() {
        if let Err(error) = check_policy(policy, &store) {
            let section = section_of(policy, top);
            section.report(if section.has("limit") { "limit" } else { "quota" }, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate_redis::RedisOptions;

    use crate::config::tests::{outside, parse_with};
    use crate::config::{Config, Outside};
    use crate::stores::StoreOptions;

    fn shared(keys: &str, outside: &Outside) -> super::SharedStore {
        parse_with(&format!("store: {{{keys}}}"), outside).shared.expect("a store is named")
    }

    /// A setting that is ignored goes unnoticed until Redis fails.
    #[test]
    fn every_setting_of_the_store_arrives() {
        let keys = "redis: 'redis://me:hidden@10.0.0.5/2', deadline: 20ms, connect_timeout: 1s, connections: 2, \
                    instances: 3, require: shared, keys: hashed, key_secret: s, hash_tag: tenant, batch: false, \
                    cache_denials: false, leases: false, fleet: false";
        let store = shared(keys, &Outside::default());
        let options = RedisOptions::new("redis://me:hidden@10.0.0.5/2")
            .unwrap()
            .with_deadline(std::time::Duration::from_millis(20))
            .with_connect_timeout(std::time::Duration::from_secs(1))
            .with_connections(2)
            .hashed_keys()
            .with_key_secret("s")
            .with_hash_tag("tenant")
            .without_batching()
            .without_denial_cache()
            .without_leases();
        assert_eq!(store.options, StoreOptions::Redis(options));
        assert_eq!(
            (store.instances, store.requires_sharing, store.deadline.as_millis(), store.fleet),
            (Some(3), true, 20, false)
        );
        let plain = "redis: 'redis://h', require: nothing, keys: plain, batch: true, cache_denials: true, leases: true";
        let (plain, bare) =
            (shared(plain, &Outside::default()), shared("redis: redis://h", &Outside::default()));
        assert_eq!(plain, bare);
        assert_eq!(
            (bare.instances, bare.requires_sharing, bare.deadline, bare.fleet),
            (None, false, std::time::Duration::from_millis(50), true)
        );
    }

    /// Passwords stay out of the file, so the environment wins and the rest of the file still applies.
    #[test]
    fn arguments_and_variables_take_precedence_over_the_file() {
        let outside = outside(&[("/store/redis", "redis://outside"), ("/store/key_secret", "outside")]);
        let store = shared("redis: redis://inside, key_secret: inside, deadline: 7ms", &outside);
        assert_eq!(
            (store.options.to_string().as_str(), store.deadline.as_millis()),
            ("redis://outside:6379", 7)
        );
        let options = RedisOptions::new("redis://outside").unwrap().with_deadline(store.deadline);
        assert_eq!(store.options, StoreOptions::Redis(options.clone().with_key_secret("outside")));
        assert_ne!(store.options, StoreOptions::Redis(options.with_key_secret("inside")));
        assert_eq!(shared("deadline: 7ms", &outside).options.to_string(), "redis://outside:6379");
        let alone = |outside| Config::from_sources(None, &[], outside).unwrap().shared;
        assert_eq!(alone(&outside).map(|store| store.instances), Some(None));
        assert!(alone(&Outside::default()).is_none());
    }
}

//! The shared store: `store:` of the file, the environment, and `--redis`, made into options.
//!
//! The command line wins over the environment, and the environment over the file. What a URL or a secret says shows in
//! no error but for hosts and ports.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use slidegate::{ClientCertificate, PolicySet, RedisOptions, Secret, SharedGate, parse_window};

use super::admin::{self, Token};
use super::file::{Node, Shown};
use super::resp::{Password, Resp};
use super::section::{Section, flag, text, whole, wrong};
use super::traces::OutsideTraces;
use super::{ConfigErrors, Findings, resolve};

/// Every key of `store` that is about a shared one.
pub(super) const KEYS: [&str; 13] = [
    "redis",
    "deadline",
    "connect_timeout",
    "connections",
    "instances",
    "keys",
    "key_secret",
    "hash_tag",
    "coalesce",
    "remember_denials",
    "ca_file",
    "cert_file",
    "key_file",
];

/// Where the environment says the URL.
const URL_VARIABLE: &str = "SLIDEGATE_REDIS";
/// Where the environment says what ids are hashed with.
const SECRET_VARIABLE: &str = "SLIDEGATE_KEY_SECRET";

/// Where the environment says the password of the RESP port.
const PASSWORD_VARIABLE: &str = "SLIDEGATE_RESP_PASSWORD";

/// The longest a decision may take, unless told otherwise.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);
/// The longest deadline: past it a limiter is no longer one.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Most instances: each of them has at least 1 of any limit while the store is away.
const MAX_INSTANCES: u64 = 10_000;
/// Most connections to one node.
const MAX_CONNECTIONS: u64 = 16;
/// Largest file of certificates: all authorities that browsers trust are a fifth of it.
const MAX_PEM_BYTES: u64 = 1 << 20;

const REDIS: &str = "write for example `redis: redis://127.0.0.1:6379`";

/// Settings that are in a store's options, each with what makes it that of other options, or the same whatever it was.
const SETTINGS: [(&str, SameIn); 11] = [
    ("store: redis", RedisOptions::with_url_of),
    ("store: deadline", |options, _| options.deadline(Duration::ZERO)),
    ("store: connect_timeout", |options, _| options.connect_timeout(Duration::ZERO)),
    ("store: connections", |options, _| options.connections(0)),
    ("store: keys", |options, _| options.hashed_keys()),
    ("store: key_secret", |options, _| options.key_secret("")),
    ("store: hash_tag", |options, _| options.hash_tag("")),
    ("store: coalesce", |options, _| options.without_coalescing()),
    ("store: remember_denials", |options, _| options.without_remembering()),
    ("store: ca_file", |options, _| options.ca_certificates(Vec::new())),
    ("store: cert_file", |options, _| {
        let nothing = ClientCertificate { certificate_pem: Vec::new(), key_pem: Secret::new(Vec::new()) };
        options.client_certificate(nothing)
    }),
];
type SameIn = fn(RedisOptions, &RedisOptions) -> RedisOptions;

/// A store that instances share, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SharedStore {
    /// Shows as its URL without secrets.
    pub(crate) options: RedisOptions,
    /// The longest a decision may take.
    pub(crate) deadline: Duration,
    /// How many instances share the limits. At least one.
    pub(crate) instances: u64,
}

/// What the command line and the environment say about the store and the RESP port.
#[derive(Default, Clone)]
pub(crate) struct Outside {
    pub(super) redis: Option<RedisOptions>,
    pub(super) key_secret: Option<Secret<String>>,
    /// Who may look at the service and change it.
    pub(super) tokens: Vec<Token>,
    /// Where Envoy's rate-limit service is.
    pub(super) grpc: Option<SocketAddr>,
    /// Whether that is said elsewhere, such as in another program's environment.
    pub(super) has_other_grpc: bool,
    /// Where the RESP port is.
    pub(super) resp: Option<SocketAddr>,
    pub(super) resp_password: Option<Password>,
    pub(super) traces: OutsideTraces,
    /// Whether limits come from elsewhere besides, so that a file may have no policies.
    pub(super) has_other_limits: bool,
}

/// What the command line says about the store and about ports that a file may have as well.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    /// The URL of the store.
    pub(crate) redis: Option<&'a str>,
    /// Where Envoy's rate-limit service is.
    pub(crate) grpc: Option<SocketAddr>,
    /// Whether that is said elsewhere, such as in another program's environment.
    pub(crate) has_other_grpc: bool,
    /// Where the RESP port is.
    pub(crate) resp: Option<SocketAddr>,
}

impl SharedStore {
    fn at(options: RedisOptions) -> Self {
        Self { options, deadline: DEFAULT_DEADLINE, instances: 1 }
    }

    /// The settings in which two stores differ, by their names.
    pub(super) fn differences(old: Option<&Self>, new: Option<&Self>) -> Vec<&'static str> {
        let (Some(old), Some(new)) = (old, new) else {
            return if old.is_some() == new.is_some() { Vec::new() } else { vec!["store: redis"] };
        };
        let [old_options, new_options] = [old, new].map(|store| &store.options);
        let differs_in = |left: &str| {
            // With all the others made the same, what differs is the one that was left.
            let others = || SETTINGS.iter().filter(|(name, _)| *name != left);
            let of = |options: &RedisOptions| {
                others().fold(options.clone(), |options, (_, same)| same(options, old_options))
            };
            of(old_options) != of(new_options)
        };
        let settings = SETTINGS.iter().map(|(name, _)| *name).filter(|name| differs_in(name));
        settings.chain((old.instances != new.instances).then_some("store: instances")).collect()
    }
}

impl Outside {
    /// Reads the environment. What the command line says wins.
    pub(crate) fn read(arguments: Arguments<'_>) -> Result<Self, ConfigErrors> {
        let Arguments { redis, grpc, has_other_grpc, resp } = arguments;
        let variable = |name: &str| match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(ConfigErrors::one(name, None, "the variable is not UTF-8; write it in that encoding"))
            }
        };
        let redis = match redis {
            Some(url) => Some(("--redis", url.to_owned())),
            None => variable(URL_VARIABLE)?.map(|url| (URL_VARIABLE, url)),
        };
        let options = |(place, url): (&str, String)| {
            RedisOptions::new(&url).map_err(|error| ConfigErrors::one(place, None, &error.to_string()))
        };
        let tokens =
            variable(admin::TOKENS_VARIABLE)?.map(|value| admin::from_variable(&value)).transpose()?;
        let password = |text: String| {
            let most = Password::MAX;
            let too_long = || format!("the password is longer than {most} bytes; give a shorter one");
            Password::new(&text).ok_or_else(|| ConfigErrors::one(PASSWORD_VARIABLE, None, &too_long()))
        };
        Ok(Self {
            redis: redis.map(options).transpose()?,
            key_secret: variable(SECRET_VARIABLE)?.map(Secret::new),
            tokens: tokens.unwrap_or_default(),
            grpc,
            has_other_grpc,
            resp,
            resp_password: variable(PASSWORD_VARIABLE)?.map(password).transpose()?,
            traces: OutsideTraces::read(variable)?,
            has_other_limits: false,
        })
    }

    /// The RESP port that these name without a file's section.
    pub(super) fn resp(&self) -> Option<Resp> {
        self.resp.map(|listen| Resp::at(listen, self.resp_password.clone()))
    }

    /// The store that these name without a file.
    pub(super) fn store(&self) -> Option<SharedStore> {
        let options = self.redis.clone()?;
        Some(SharedStore::at(match &self.key_secret {
            Some(secret) => options.key_secret(secret.expose()),
            None => options,
        }))
    }
}

/// Reads the store that instances share. `None` if there is none, or a wrong one, which was found.
pub(super) fn store(
    section: &Section<'_>,
    outside: &Outside,
    findings: &mut Findings,
) -> Option<SharedStore> {
    let url = section.read("redis", findings, |node| {
        let url = node.scalar().filter(|url| !url.is_empty()).ok_or_else(|| wrong("redis", node, REDIS))?;
        RedisOptions::new(url).map_err(|error| error.to_string())
    });
    let settings = Settings::read(section, findings);
    let Some(options) = outside.redis.clone().or(url) else {
        if section.get("redis").is_none() && !section.is_misspelt("redis") {
            alone(section, findings);
        }
        return None;
    };
    Some(settings.over(options, outside))
}

/// Finds settings of a store that nothing names: whoever wrote them meant limits to be shared.
fn alone(section: &Section<'_>, findings: &mut Findings) {
    if let Some((key, node)) = KEYS.iter().find_map(|key| Some((key, section.get(key)?))) {
        let message = format_args!(
            "{key} stands without redis; {REDIS}, give `--redis` or {URL_VARIABLE}, or leave it out"
        );
        section.find(node.line, message, findings);
    }
}

/// What stands beside the URL. `None` where nothing is said, or something wrong.
struct Settings {
    deadline: Option<Duration>,
    connect_timeout: Option<Duration>,
    connections: Option<u8>,
    instances: Option<u64>,
    hashed: Option<bool>,
    key_secret: Option<Secret<String>>,
    hash_tag: Option<String>,
    coalesce: Option<bool>,
    remember_denials: Option<bool>,
    ca: Option<Vec<u8>>,
    certificate: Option<ClientCertificate>,
}

impl Settings {
    fn read(section: &Section<'_>, findings: &mut Findings) -> Self {
        Self {
            deadline: section.read("deadline", findings, |node| wait("deadline", node, "50ms")),
            connect_timeout: section
                .read("connect_timeout", findings, |node| wait("connect_timeout", node, "250ms")),
            connections: section.read("connections", findings, |node| {
                let connections = among("connections", node, MAX_CONNECTIONS, 2)?;
                u8::try_from(connections).map_err(|_| wrong("connections", node, "give less"))
            }),
            instances: section.read("instances", findings, |node| among("instances", node, MAX_INSTANCES, 3)),
            hashed: section.read("keys", findings, |node| match node.scalar() {
                Some("plain") => Ok(false),
                Some("hashed") => Ok(true),
                _ => Err(wrong("keys", node, "write `keys: plain`, or `keys: hashed` to hash every id")),
            }),
            key_secret: section.read("key_secret", findings, |node| {
                let way_out = "give a text that every instance has and no client knows";
                let secret = node.scalar().filter(|secret| !secret.is_empty());
                secret
                    .map(|secret| Secret::new(secret.to_owned()))
                    .ok_or_else(|| wrong("key_secret", node, way_out))
            }),
            hash_tag: section.read("hash_tag", findings, |node| {
                let name =
                    text("hash_tag", node, "give the name of an attribute, for example `hash_tag: tenant`")?;
                resolve::attribute_name(name).map_err(|message| format!("hash_tag: {message}"))
            }),
            coalesce: section.read("coalesce", findings, |node| flag("coalesce", node)),
            remember_denials: section
                .read("remember_denials", findings, |node| flag("remember_denials", node)),
            ca: section.read("ca_file", findings, |node| read_file("ca_file", node)),
            certificate: certificate(section, findings),
        }
    }

    fn over(self, mut options: RedisOptions, outside: &Outside) -> SharedStore {
        let deadline = self.deadline.unwrap_or(DEFAULT_DEADLINE);
        options = options.deadline(deadline);
        if let Some(timeout) = self.connect_timeout {
            options = options.connect_timeout(timeout);
        }
        if let Some(connections) = self.connections {
            options = options.connections(connections);
        }
        if self.hashed == Some(true) {
            options = options.hashed_keys();
        }
        if let Some(secret) = outside.key_secret.as_ref().or(self.key_secret.as_ref()) {
            options = options.key_secret(secret.expose());
        }
        if let Some(attribute) = self.hash_tag {
            options = options.hash_tag(attribute);
        }
        if self.coalesce == Some(false) {
            options = options.without_coalescing();
        }
        if self.remember_denials == Some(false) {
            options = options.without_remembering();
        }
        if let Some(pem) = self.ca {
            options = options.ca_certificates(pem);
        }
        if let Some(certificate) = self.certificate {
            options = options.client_certificate(certificate);
        }
        SharedStore { options, deadline, instances: self.instances.unwrap_or(1) }
    }
}

fn wait(key: &str, node: &Node, example: &str) -> Result<Duration, String> {
    let way_out = format!("give 1ms to 60s, for example `{key}: {example}`");
    let span = parse_window(text(key, node, &way_out)?).ok();
    let in_range = |span: &Duration| (Duration::from_millis(1)..=LONGEST_WAIT).contains(span);
    span.filter(in_range).ok_or_else(|| wrong(key, node, &way_out))
}

fn among(key: &str, node: &Node, most: u64, example: u64) -> Result<u64, String> {
    let way_out = format!("give 1 to {most}, for example `{key}: {example}`");
    Some(whole(key, node, &way_out)?)
        .filter(|number| (1..=most).contains(number))
        .ok_or_else(|| wrong(key, node, &way_out))
}

/// A certificate and its key, if the section has both.
pub(super) fn certificate(section: &Section<'_>, findings: &mut Findings) -> Option<ClientCertificate> {
    let certificate_pem = section.read("cert_file", findings, |node| read_file("cert_file", node));
    let key_pem = section.read("key_file", findings, |node| read_file("key_file", node));
    for (one, other) in [("cert_file", "key_file"), ("key_file", "cert_file")] {
        if let Some(node) = section.get(one)
            && section.get(other).is_none()
            && !section.is_misspelt(other)
        {
            let message = format_args!(
                "{one} stands without {other}; a certificate is shown with its key, so give both"
            );
            section.find(node.line, message, findings);
        }
    }
    Some(ClientCertificate { certificate_pem: certificate_pem?, key_pem: key_pem?.into() })
}

/// Reads a file of certificates, of a key or of a password.
pub(super) fn read_file(key: &str, node: &Node) -> Result<Vec<u8>, String> {
    let path = text(key, node, &format!("give a path, for example `{key}: /etc/slidegate/{key}`"))?;
    let mut pem = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_PEM_BYTES + 1).read_to_end(&mut pem)).map_err(
        |error| {
            format!("{key} `{}` cannot be read: {error}; check the path and who may read it", Shown(path))
        },
    )?;
    if pem.len() as u64 > MAX_PEM_BYTES {
        return Err(format!(
            "{key} `{}` is larger than {MAX_PEM_BYTES} bytes; give a smaller file",
            Shown(path)
        ));
    }
    Ok(pem)
}

/// Makes a gate of it, which connects to nothing, to find what only that finds: certificates that are none, limits that a
/// script cannot count.
pub(super) fn try_out(
    shared: &SharedStore,
    policies: &PolicySet,
    top: &Section<'_>,
    store: Option<&Section<'_>>,
    findings: &mut Findings,
) {
    let build = |policies: &PolicySet| SharedGate::new(policies.clone(), shared.options.clone());
    let Err(error) = build(policies) else { return };
    if error.is_policy() {
        for policy in policies.iter() {
            let alone = PolicySet::new([policy.clone()]).expect("a policy of a set is one");
            if let Err(error) = build(&alone) {
                findings.add(line_of(top, policy.name()), error);
            }
        }
    } else if let Some(store) = store {
        let keys = ["ca_file", "cert_file", "redis"];
        let line = keys.into_iter().find(|key| store.get(key).is_some()).map(|key| store.line_of(key));
        store.find(line.unwrap_or_else(|| store.line_of("")), error, findings);
    } else {
        findings.add(1, error);
    }
}

/// Where a policy stands.
fn line_of(top: &Section<'_>, name: &str) -> u64 {
    let policies = top.get("policies").map(Node::one_or_many).unwrap_or_default();
    let named = policies.iter().find(|node| node.get("name").and_then(Node::scalar) == Some(name));
    named.map_or_else(
        || top.line_of("policies"),
        |node| node.get("limit").or(node.get("quota")).map_or(node.line, |node| node.line),
    )
}

#[cfg(test)]
mod tests {
    use slidegate::{ClientCertificate, OnStoreError, RedisOptions, Secret};

    use super::Outside;
    use crate::config::Config;
    use crate::config::tests::{error, policy, policy_error};

    const POLICY: &str = "\npolicies: [{name: p, quota: 1/1s}]\n";

    fn shared(keys: &str, outside: &Outside) -> super::SharedStore {
        let text = format!("store: {{{keys}}}{POLICY}");
        let config = Config::parse_with(&text, "slidegate.yaml", outside);
        config.unwrap_or_else(|errors| panic!("{errors}")).shared.expect("a store is named")
    }

    /// What does not arrive is found out when Redis is in trouble.
    #[test]
    fn every_setting_of_the_store_arrives() {
        let keys = "redis: 'redis://me:hidden@10.0.0.5/2', deadline: 20ms, connect_timeout: 1s, connections: 2, \
                    instances: 3, keys: hashed, key_secret: s, hash_tag: tenant, coalesce: false, remember_denials: false";
        let store = shared(keys, &Outside::default());
        let options = RedisOptions::new("redis://me:hidden@10.0.0.5/2")
            .unwrap()
            .deadline(std::time::Duration::from_millis(20))
            .connect_timeout(std::time::Duration::from_secs(1))
            .connections(2)
            .hashed_keys()
            .key_secret("s")
            .hash_tag("tenant")
            .without_coalescing()
            .without_remembering();
        assert_eq!(store.options, options);
        assert_eq!((store.instances, store.deadline.as_millis()), (3, 20));
        let plain = "redis: 'redis://h', keys: plain, coalesce: true, remember_denials: true";
        let (plain, bare) =
            (shared(plain, &Outside::default()), shared("redis: redis://h", &Outside::default()));
        assert_eq!(plain, bare);
        assert_eq!((bare.instances, bare.deadline), (1, super::DEFAULT_DEADLINE));
    }

    /// What was changed and is not in force has to be said by its name, a password above all.
    #[test]
    fn each_changed_setting_is_named_and_no_other() {
        let before = "redis: 'rediss://me:old@h', deadline: 20ms, key_secret: old";
        let of = |keys: &str| shared(keys, &Outside::default());
        let differences = |keys: &str| super::SharedStore::differences(Some(&of(before)), Some(&of(keys)));
        assert_eq!(differences(before), [""; 0]);
        for (from, to, expected) in [
            ("me:old", "me:new", "store: redis"),
            ("@h", "@h/1", "store: redis"),
            ("20ms", "30ms", "store: deadline"),
            ("key_secret: old", "key_secret: new", "store: key_secret"),
            (", key_secret: old", "", "store: key_secret"),
            ("deadline", "connect_timeout: 1s, deadline", "store: connect_timeout"),
            ("deadline", "connections: 2, deadline", "store: connections"),
            ("deadline", "instances: 2, deadline", "store: instances"),
            ("deadline", "keys: hashed, deadline", "store: keys"),
            ("deadline", "hash_tag: user, deadline", "store: hash_tag"),
            ("deadline", "coalesce: false, deadline", "store: coalesce"),
            ("deadline", "remember_denials: false, deadline", "store: remember_denials"),
        ] {
            assert_eq!(differences(&before.replace(from, to)), [expected], "{to}");
        }
        let three = before.replace("old", "new").replace("20ms", "21ms");
        assert_eq!(differences(&three), ["store: redis", "store: deadline", "store: key_secret"]);
        let none = super::SharedStore::differences(Some(&of(before)), None);
        assert_eq!(none, ["store: redis"]);
        assert_eq!(super::SharedStore::differences(None, None), [""; 0]);
        // Of certificates it is the content that counts, as files are replaced under their names.
        let with = |key: &str| {
            let mut store = of(before);
            store.options =
                store.options.ca_certificates(b"ca".to_vec()).client_certificate(ClientCertificate {
                    certificate_pem: b"certificate".to_vec(),
                    key_pem: Secret::new(key.into()),
                });
            store
        };
        assert_eq!(
            super::SharedStore::differences(Some(&with("old")), Some(&with("new"))),
            ["store: cert_file"]
        );
        assert_eq!(
            super::SharedStore::differences(Some(&of(before)), Some(&with("new"))),
            ["store: ca_file", "store: cert_file"]
        );
    }

    /// A password belongs in no file: what is outside wins, and the rest of the file still counts.
    #[test]
    fn what_is_outside_the_file_wins_over_it() {
        let outside = Outside {
            redis: Some(RedisOptions::new("redis://outside").unwrap()),
            key_secret: Some(Secret::new("outside".into())),
            ..Outside::default()
        };
        let store = shared("redis: redis://inside, key_secret: inside, deadline: 7ms", &outside);
        assert_eq!(
            (store.options.to_string().as_str(), store.deadline.as_millis()),
            ("redis://outside:6379", 7)
        );
        let options = RedisOptions::new("redis://outside").unwrap().deadline(store.deadline);
        assert_eq!(store.options, options.clone().key_secret("outside"));
        assert_ne!(store.options, options.key_secret("inside"));
        assert_eq!(shared("deadline: 7ms", &outside).options.to_string(), "redis://outside:6379");
        assert_eq!(outside.store().map(|store| store.instances), Some(1));
        assert!(Outside::default().store().is_none());
    }

    /// Each is a service that would not share, or not in time, or with nobody.
    #[test]
    fn each_wrong_setting_of_the_store_names_its_value_and_the_way_out() {
        let url = "redis://h";
        for (keys, expected) in [
            ("redis: {}".to_owned(), "redis is a map; write for example `redis: redis://127.0.0.1:6379`".to_owned()),
            (
                "redis: 'redis://me:hidden@h:x'".into(),
                "redis url `redis://***@h:x`: port `x` is no number from 1 to 65535; give for example \
                 `redis://127.0.0.1:6379`"
                    .into(),
            ),
            (
                format!("redis: {url}, deadline: 0s"),
                "deadline is `0s`; give 1ms to 60s, for example `deadline: 50ms`".into(),
            ),
            (
                format!("redis: {url}, deadline: 50"),
                "deadline is 50; give 1ms to 60s, for example `deadline: 50ms`".into(),
            ),
            (
                format!("redis: {url}, connect_timeout: 61s"),
                "connect_timeout is `61s`; give 1ms to 60s, for example `connect_timeout: 250ms`".into(),
            ),
            (
                format!("redis: {url}, connections: 17"),
                "connections is 17; give 1 to 16, for example `connections: 2`".into(),
            ),
            (
                format!("redis: {url}, instances: 0"),
                "instances is 0; give 1 to 10000, for example `instances: 3`".into(),
            ),
            (
                format!("redis: {url}, keys: secret"),
                "keys is `secret`; write `keys: plain`, or `keys: hashed` to hash every id".into(),
            ),
            (
                format!("redis: {url}, key_secret: "),
                "key_secret is empty; give a text that every instance has and no client knows".into(),
            ),
            (
                format!("redis: {url}, hash_tag: [a]"),
                "hash_tag is a list; give the name of an attribute, for example `hash_tag: tenant`".into(),
            ),
            (format!("redis: {url}, coalesce: no"), "coalesce is `no`; write `true` or `false`".into()),
            (
                format!("redis: {url}, ca_file: no/such.pem"),
                "ca_file `no/such.pem` cannot be read: No such file or directory (os error 2); check the path and who \
                 may read it"
                    .into(),
            ),
            (
                format!("redis: {url}, cert_file: /dev/null"),
                "cert_file stands without key_file; a certificate is shown with its key, so give both".into(),
            ),
            (
                format!("redis: {url}, ca_file: /dev/null"),
                "redis has certificates but its url does not encrypt; give a url that begins with `rediss`".into(),
            ),
            (
                "deadline: 50ms".into(),
                "deadline stands without redis; write for example `redis: redis://127.0.0.1:6379`, give `--redis` or \
                 SLIDEGATE_REDIS, or leave it out"
                    .into(),
            ),
            (format!("redis: {url}, dedline: 50ms"), "unknown key `dedline`; did you mean `deadline`?".into()),
            ("url: x".into(), "unknown key `url`; here it is `redis`, for example `redis: redis://127.0.0.1:6379`".into()),
        ] {
            let told = error(&format!("store: {{{keys}}}{POLICY}"));
            assert_eq!(told, format!("slidegate.yaml:1: store: {expected}"), "{keys}");
        }
        assert_eq!(
            error(
                "store: {redis: redis://h}\npolicies:\n  - name: p\n    limit: 9007199254740993\n    window: 1s\n"
            ),
            "slidegate.yaml:4: policy `p`: limit 9007199254740993 is more than a shared store can count; give at most \
             9007199254740991"
        );
    }

    /// A key that no document mentions is one that nobody sets.
    #[test]
    fn every_key_of_the_store_is_documented() {
        let reference = include_str!("../../../../docs/config.md");
        let example = include_str!("../../../../docs/slidegate.example.yaml");
        for key in super::KEYS {
            let rows = reference.lines().filter(|line| line.starts_with("| `"));
            let mut keys = rows.filter_map(|line| line.split(" | ").next());
            assert!(keys.any(|first| first.contains(&format!("`{key}`"))), "{key} is not in the reference");
            assert!(example.contains(&format!("#   {key}: ")), "{key} is not in the example");
        }
    }

    /// What happens when Redis is away must be what was chosen, policy by policy.
    #[test]
    fn a_policy_says_what_it_does_while_the_store_is_away() {
        for (keys, fallback) in [
            ("quota: 1/1s", OnStoreError::Local),
            ("quota: 1/1s, on_store_error: local", OnStoreError::Local),
            ("quota: 1/1s, on_store_error: allow", OnStoreError::Allow),
            ("quota: 1/1s, on_store_error: deny", OnStoreError::Deny),
        ] {
            assert_eq!(policy(keys).fallback(), fallback, "{keys}");
        }
        let way_out = "write `local` to count in memory meanwhile, `allow` or `deny`";
        assert_eq!(
            policy_error("quota: 1/1s, on_store_error: open"),
            format!("on_store_error is `open`; {way_out}")
        );
        assert_eq!(
            policy_error("quota: 1/1s, fail_open: true"),
            "unknown key `fail_open`; here it is `on_store_error`, for example `on_store_error: local`"
        );
    }
}

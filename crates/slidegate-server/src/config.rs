//! The config: a YAML file, `--policy` texts or defaults, as validated values.
//!
//! An invalid file is rejected as a whole, and every mistake is reported. Nothing is guessed: a
//! limiter that enforces the wrong limits is worse than one that does not start. docs/config.md is
//! the reference.
//!
//! `lined-config` validates, `slidegate-config` reads policies. The sections of the service are here,
//! and settings from the command line and the environment.

mod load;
mod preset;
mod secret_files;
mod sections;

mod admin;
mod auth;
mod grpc;
mod grpc_settings;
mod listener;
mod memory;
mod observe;
mod resp;
mod store;
mod traces;
mod webhook;

#[cfg(test)]
mod reference;
mod schema;
mod values;

mod environment;
mod flag;
mod sources;
mod words;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use slidegate::{PolicySet, Quota};
use slidegate_config::escalate::Escalation;
use slidegate_http::headers::HeaderOptions;

use crate::listener::{ConnectionCaps, SocketFile, TlsFiles};

pub(crate) use admin::{AccessRules, OwnKey, Right, Rights, Token};
pub(crate) use auth::{Attribute, Auth, Denial, Mapping, Origin};
pub(crate) use environment::{Arguments, Outside, check_names};
pub(crate) use grpc_settings::GrpcSettings;
pub(crate) use load::{http_address, http_setting, starting_file};
pub(crate) use memory::{Memory, SnapshotSettings};
pub(crate) use observe::Observe;
pub(crate) use preset::Preset;
pub(crate) use resp::{Password, Resp};
pub(crate) use schema::published as published_schema;
pub(crate) use sources::{Fingerprint, Sources, differences};
pub(crate) use store::{CLOSED_WITHOUT_STORE, SharedStore};
pub(crate) use traces::Traces;
pub(crate) use values::{address, format_bytes};
pub(crate) use words::{Storage, counted_name, describe, describe_keys, longest_window, quota_text};

/// The longest drain delay.
const MAX_DRAIN_DELAY: Duration = Duration::from_secs(3600);

/// The whole config.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// At least one, unless there are other limits, such as Envoy's.
    pub(crate) policies: PolicySet,
    /// Candidates by the names of their policies.
    pub(crate) candidates: BTreeMap<String, Quota>,
    /// When keys are blocked, by the names of policies.
    pub(crate) escalations: HashMap<String, Escalation>,
    /// Where the HTTP interface listens.
    pub(crate) listen: SocketAddr,
    /// Certificates of the HTTP interface. `None`: no encryption.
    pub(crate) tls: Option<TlsFiles>,
    /// A Unix socket of the HTTP interface.
    pub(crate) socket: Option<SocketFile>,
    /// Where Envoy's rate-limit service listens.
    pub(crate) grpc: GrpcSettings,
    /// How long open requests may take during a graceful shutdown. At most an hour.
    pub(crate) shutdown_grace: Duration,
    /// How long the service reports that it is not ready, and still serves, before it closes its
    /// listeners. `None`: depends on the listeners.
    pub(crate) drain_delay: Option<Duration>,
    /// Maximum connections of all listeners together, and of one peer.
    pub(crate) connections: ConnectionCaps,
    /// How long an HTTP connection may be idle between two requests.
    pub(crate) idle_timeout: Duration,
    /// The memory store.
    pub(crate) memory: Memory,
    /// The store that instances share. `None`: limits live in this process's memory.
    pub(crate) shared: Option<SharedStore>,
    /// The listener for Redis clients.
    pub(crate) resp: Option<Resp>,
    /// Attributes that are IP addresses, in no order.
    pub(crate) address_attributes: Vec<String>,
    /// Warnings about names and values that probably never match.
    pub(crate) warnings: Vec<String>,
    /// The header fields of responses.
    pub(crate) headers: HeaderOptions,
    /// The attributes of authorization requests of proxies.
    pub(crate) auth: Auth,
    /// Who may read, change and use the running service.
    pub(crate) admin: AccessRules,
    /// Metrics, events and traces of decisions.
    pub(crate) observe: Observe,
    /// Warnings about files with secrets that everybody may read.
    pub(crate) exposed: Vec<String>,
    /// The content of the file.
    pub(crate) file: FileContent,
}

/// The content of a file, to name what a hot reload changes. `Debug` shows nothing, because it may
/// hold secrets.
#[derive(Clone)]
pub(crate) struct FileContent {
    /// The checked values, including those of the command line and the environment.
    json: serde_json::Value,
    /// SHA-256 of the file, or of the empty text.
    pub(crate) hash: String,
}

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Config {
    /// Where usage lives.
    pub(crate) fn storage(&self) -> Storage {
        match &self.shared {
            Some(shared) => Storage::Redis { instances: shared.instances },
            None => Storage::Memory,
        }
    }

    /// All warnings. Those about exposed secrets come first.
    pub(crate) fn all_warnings(&self) -> impl Iterator<Item = &String> {
        self.exposed.iter().chain(&self.warnings)
    }

    /// Logs the first warnings and the number of others.
    pub(crate) fn log_warnings(&self) {
        const MOST: usize = 20;
        for warning in self.all_warnings().take(MOST) {
            tracing::warn!("{warning}");
        }
        if let Some(more @ 1..) = self.all_warnings().count().checked_sub(MOST) {
            tracing::warn!("{more} more warnings; `slidegate validate` shows them");
        }
    }

    /// Whether this attribute is an IP address.
    pub(crate) fn is_address(&self, attribute: &str) -> bool {
        self.address_attributes.iter().any(|address| address == attribute)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use lined_config::Document;
    use slidegate::Policy;
    use slidegate_config::added::Added;
    use slidegate_config::text::policy_from_text;
    use slidegate_testkit::TempDir;

    use super::*;

    /// The config without a file.
    pub(crate) fn default() -> Config {
        Config::from_sources(None, &[], &Outside::default()).unwrap()
    }

    /// A file with these sections and a policy.
    pub(crate) fn parse(sections: &str) -> Config {
        parse_with(sections, &Outside::default())
    }

    pub(crate) fn parse_with(sections: &str, outside: &Outside) -> Config {
        let text = format!("{sections}\npolicies: [{{name: p, quota: 1/1s}}]\n");
        Config::parse_with(&text, "slidegate.yaml", outside).unwrap_or_else(|errors| panic!("{errors}"))
    }

    /// Settings of the environment.
    pub(crate) fn outside(settings: &[(&'static str, &str)]) -> Outside {
        let settings = settings.iter().map(|(path, text)| (*path, (*text).into())).collect();
        Outside { settings, ..Outside::default() }
    }

    /// The errors of an invalid file.
    fn errors(text: &str) -> Vec<String> {
        Config::parse(text, "slidegate.yaml").unwrap_err().lines().to_vec()
    }

    fn file_of(keys: &str) -> String {
        format!("policies:\n  - {{name: p, {keys}}}\n")
    }

    /// The policy `p` with these keys.
    pub(crate) fn policy(keys: &str) -> Policy {
        let config =
            Config::parse(&file_of(keys), "slidegate.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        config.policies.by_name("p").unwrap().clone()
    }

    fn described(config: &Config) -> Vec<String> {
        config.policies.iter().map(|policy| describe(policy, Storage::Memory)).collect()
    }

    const FIRST: &str = "
policies:
  - name: per-user
    scope: [user]
    limit: 100
    window: 60s
  - name: login-per-ip
    when: { path: /login }
    scope: [ip]
    limit: 5
    window: 1m
";

    const EXAMPLE: &str = include_str!("../../../docs/slidegate.example.yaml");

    /// It ships, and people start from it.
    #[test]
    fn the_example_loads_and_every_policy_is_described() {
        let config = Config::parse(EXAMPLE, "slidegate.example.yaml").unwrap();
        let described = described(&config);
        assert_eq!(described.len(), 12);
        for (words, policy) in described.iter().zip(config.policies.iter()) {
            assert!(words.starts_with(&format!("{}: requests", policy.name())), "{words}");
        }
    }

    /// The example states that commented lines show the defaults.
    #[test]
    fn what_the_example_comments_out_is_the_default() {
        let uncommented = |from: &str, to: &str| {
            let lines = EXAMPLE.lines().skip_while(|line| !line.starts_with(from)).skip(1);
            let lines = lines.take_while(|line| !line.starts_with(to));
            let lines: Vec<_> = lines.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
            Config::parse(&format!("{FIRST}{}", lines.join("\n")), "slidegate.example.yaml").unwrap()
        };
        let shared = uncommented("# Limits that many", "# Not defaults").shared.unwrap();
        let bare = Config::parse(&format!("{FIRST}store: {{redis: 'redis://127.0.0.1:6379'}}"), "").unwrap();
        assert_eq!(format!("{shared:?}"), format!("{:?}", bare.shared.unwrap()));
        let config = uncommented("# Everything else", "# Limits that many");
        assert!(config.shared.is_none());
        let default = default();
        assert_eq!(config.listen, default.listen);
        assert_eq!(config.shutdown_grace, default.shutdown_grace);
        assert_eq!((config.connections, config.idle_timeout), (default.connections, default.idle_timeout));
        let keys = |config: &Config| config.memory.builder().build().stats().max_keys;
        assert_eq!(keys(&config), keys(&default));
        assert_eq!(config.address_attributes, default.address_attributes);
        assert_eq!(config.headers, default.headers);
        assert_eq!(config.observe, default.observe);
    }

    /// Anyone who reads a reference copies from it.
    #[test]
    fn the_reference_shows_the_current_output() {
        const REFERENCE: &str = include_str!("../../../docs/config.md");
        let first = REFERENCE.split("```yaml").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
        for words in described(&Config::parse(first, "slidegate.yaml").unwrap()) {
            assert!(REFERENCE.contains(&format!("\n{words}\n")), "{words}");
        }
        for error in errors("policies:\n  - name: per-user\n    windw: 60s\n    limit: -5\n") {
            assert!(REFERENCE.contains(&format!("\n{error}\n")), "{error}");
        }
    }

    /// A service must start without a file, and not by admitting everything.
    #[test]
    fn without_a_file_each_user_has_100_a_minute() {
        let config = default();
        assert_eq!(
            described(&config),
            [
                "per-user: requests are limited to 100 per 1m for each user (exact sliding log). Denies. A key takes about \
              617 bytes at most."
            ]
        );
        assert!(config.is_address("ip") && !config.is_address("user"));
    }

    /// Compares the report of each input with a golden file. An input begins with `--- KIND`; lines of
    /// its report begin with `=> `; other lines are comments.
    pub(crate) fn compare_golden(name: &str, report: impl Fn(&str, &str) -> String) {
        let path = format!("{}/tests/golden/{name}.golden", env!("CARGO_MANIFEST_DIR"));
        let golden = std::fs::read_to_string(&path).unwrap();
        let mut current = String::with_capacity(golden.len());
        let mut lines = golden.lines().peekable();
        while let Some(line) = lines.next() {
            current += &format!("{line}\n");
            let Some(kind) = line.strip_prefix("--- ") else { continue };
            let mut input = String::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("=> ")) {
                input += &format!("{line}\n");
            }
            while lines.next_if(|line| line.starts_with("=> ")).is_some() {}
            current += &input;
            current.extend(report(kind, &input).lines().map(|line| format!("=> {line}\n")));
        }
        compare(&path, &golden, &current);
    }

    /// Compares a file with its expected content, or rewrites it.
    pub(super) fn compare(path: &str, golden: &str, current: &str) {
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            return std::fs::write(path, current).unwrap();
        }
        let differs = golden.lines().zip(current.lines()).find(|(golden, current)| golden != current);
        assert_eq!(differs, None, "{path}");
        assert_eq!(golden.lines().count(), current.lines().count(), "{path}");
    }

    /// Errors name the line, what was given, what is expected and the fix, for every mistake at once.
    /// A suggested policy must be valid.
    #[test]
    fn mistakes_are_reported_as_in_the_golden_file() {
        let file = |text: &str| Config::parse(text, "slidegate.yaml").unwrap_err().to_string();
        compare_golden("errors", |kind, input| {
            let line = input.trim_end_matches('\n');
            let report = match kind {
                "file" => file(input),
                "section" => file(&format!("{input}policies: [{{name: p, quota: 1/1s}}]\n")),
                "policy" => file(&file_of(line)),
                "flag" => {
                    let texts: Vec<_> = line.split('\n').map(str::to_owned).collect();
                    Config::from_sources(None, &texts, &Outside::default()).unwrap_err().to_string()
                }
                "variables" => {
                    let value = |name: &str| {
                        let mut pairs = input.lines().filter_map(|line| line.split_once('='));
                        Ok(pairs.find(|(known, _)| *known == name).map(|(_, value)| value.to_owned()))
                    };
                    let outside = Outside::read_by(&Arguments::default(), value);
                    let config = outside.and_then(|outside| Config::from_sources(None, &[], &outside));
                    config.unwrap_err().to_string()
                }
                "json" => Added::read("p", &serde_json::from_str(line).unwrap(), &[]).unwrap_err(),
                other => panic!("{other} is no kind of input"),
            };
            for policy in report.split('`').filter(|part| part.starts_with("policies: [")) {
                Config::parse(policy, "pasted").unwrap_or_else(|errors| panic!("{errors}"));
            }
            report
        });
    }

    /// Operators find wrong limits in the description, before anyone is denied.
    #[test]
    fn policies_are_described_as_in_the_golden_file() {
        compare_golden("policies", |kind, input| {
            let line = input.trim_end();
            let shared = |instances| describe(&policy(line), Storage::Redis { instances });
            match kind.split_once(' ') {
                None if kind == "memory" => describe(&policy(line), Storage::Memory),
                None if kind == "shared" => shared(None),
                None => describe(&policy_from_text(line).unwrap(), Storage::Memory),
                Some(("shared", instances)) => shared(instances.parse().ok()),
                Some(_) => {
                    let config = Config::parse(input, "slidegate.yaml").unwrap();
                    config.memory.worst_case(config.policies.iter(), [], false).to_string()
                }
            }
        });
    }

    /// The path is the first thing that is wrong.
    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let missing = Config::load(Path::new("no/such.yaml"), &Outside::default()).unwrap_err().to_string();
        assert_eq!(
            missing,
            "no/such.yaml: cannot be read: No such file or directory (os error 2); check the path and its permissions"
        );
        let folder = TempDir::new("config");
        let path = folder.path().join("slidegate.yaml");
        let load = |bytes: &[u8]| {
            folder.file("slidegate.yaml", bytes);
            Config::load(&path, &Outside::default())
        };
        assert!(load(FIRST.as_bytes()).is_ok());
        assert_eq!(
            load(b"a: 1\nb: \xff\n").unwrap_err().to_string(),
            format!("{}:2: this line is not UTF-8; save the file in that encoding", path.display())
        );
        assert_eq!(
            load(&vec![b'#'; Document::MAX_BYTES + 1]).unwrap_err().to_string(),
            format!(
                "{}: larger than 4194304 bytes, which is the most; leave out what is not needed",
                path.display()
            )
        );
    }

    /// A service that reloads must survive any file, such as a half-written one.
    #[test]
    fn no_bytes_panic() {
        let spice = "&a |*a|<<: |!x |- |: |{|}|[|]|\"|'|>|#|\n|\t|  |~|é|0|-1|1e999|true|---\n|policies:|key|\0|?|%|`|\u{2028}|*";
        let spice: Vec<&str> = spice.split('|').chain(["|"]).collect();
        let mut state = 7u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for round in 0..4000 {
            let mut text: Vec<char> = EXAMPLE.chars().collect();
            text.drain(random(text.len())..);
            for _ in 0..=random(5) {
                let at = random(text.len() + 1);
                text.splice(at..(at + random(4)).min(text.len()), spice[random(spice.len())].chars());
            }
            let noise: String = (0..random(40)).map(|_| spice[random(spice.len())]).collect();
            let text: String = if round % 2 == 0 { text.into_iter().collect() } else { noise };
            if let Err(errors) = Config::parse(&text, "f") {
                assert!(!errors.lines().is_empty());
                for line in errors.lines() {
                    assert!(
                        line.starts_with("f:") && !line.contains(char::is_control),
                        "{line:?} of {text:?}"
                    );
                }
            }
        }
    }
}

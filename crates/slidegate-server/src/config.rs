//! The configuration: a YAML file, `--policy` texts, or defaults, made into checked values.
//!
//! An invalid file is rejected as a whole. All mistakes are listed, each in one line with its line
//! number and how to fix it. Nothing is guessed: a limiter that limits something else than was meant is
//! worse than one that does not start. docs/config.md is the reference.

mod sections;

mod admin;
mod auth;
mod condition;
mod grpc;
mod observe;
mod overrides;
mod policy;
mod quota;
mod resp;
mod store;
mod traces;

mod check;
mod foreign;
mod schema;
mod values;
mod yaml;

mod added;
mod environment;
mod flag;
mod reload;
mod words;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use slidegate::headers::HeaderOptions;
use slidegate::{MemoryStore, Policy, PolicySet, Quota};

pub(crate) use added::Added;
pub(crate) use admin::{AccessRules, Right, Rights, Token};
pub(crate) use auth::{Attribute, Auth, Denial, Mapping, Origin};
pub(crate) use environment::{Arguments, Outside};
pub(crate) use grpc::Grpc;
pub(crate) use observe::{KeysShown, Observe};
pub(crate) use policy::Mode;
pub(crate) use quota::QuotaSpec;
pub(crate) use reload::{Fingerprint, Loaded, Sources, differences};
pub(crate) use resp::{Password, Resp};
pub(crate) use schema::published as published_schema;
pub(crate) use store::SharedStore;
pub(crate) use traces::Traces;
pub(crate) use values::{Parsed, Span, Window, is_name};
pub(crate) use words::{Counted, describe};

/// Largest file that is read: some 100,000 overrides.
const MAX_FILE_BYTES: usize = 4 << 20;
/// Most errors that are listed. More errors than this usually repeat one mistake.
const MAX_ERRORS: usize = 20;

/// Where the service listens unless told otherwise: reachable from this machine only.
pub(crate) const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7979);
/// How long requests in flight may take after the service was told to stop, unless told otherwise.
pub(crate) const DEFAULT_SHUTDOWN_GRACE: Duration = Duration::from_secs(10);

/// All that can be configured.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// At least one, unless other policies come beside them.
    pub(crate) policies: PolicySet,
    /// Quotas that are tried beside those of policies, by their names.
    pub(crate) candidates: BTreeMap<String, Quota>,
    /// Where the HTTP interface listens.
    pub(crate) listen: SocketAddr,
    /// Where Envoy's rate-limit service listens.
    pub(crate) grpc: Grpc,
    /// How long requests in flight may take after the service was told to stop. At most an hour.
    pub(crate) shutdown_grace: Duration,
    /// Most keys that the memory store holds. At least one.
    pub(crate) max_keys: usize,
    /// The store that instances share. Without one, limits live in this process's memory.
    pub(crate) shared: Option<SharedStore>,
    /// Where clients of Redis are served, if anywhere.
    pub(crate) resp: Option<Resp>,
    /// Attributes whose text is read as an IP address, in no order.
    pub(crate) address_attributes: Vec<String>,
    /// What answers carry in their header.
    pub(crate) headers: HeaderOptions,
    /// What proxies send that ask before they pass a request on.
    pub(crate) auth: Auth,
    /// Who may look at the service, change it, and ask it for decisions.
    pub(crate) admin: AccessRules,
    /// What is reported about decisions.
    pub(crate) observe: Observe,
    /// What the file says, to name what a hot reload changes.
    pub(crate) file: FileContent,
}

/// The JSON of a file. It may hold secrets, which `Debug` does not show.
#[derive(Clone, Default)]
pub(crate) struct FileContent(serde_json::Value);

impl fmt::Debug for FileContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Config {
    /// The same without the default policy: what there is beside other limits. A file needs no policies then.
    pub(crate) fn beside_others(
        file: Option<&Path>,
        texts: &[String],
        outside: &Outside,
    ) -> Result<Self, ConfigErrors> {
        let outside = Outside { has_other_limits: true, ..outside.clone() };
        let config = Self::from_sources(file, texts, &outside)?;
        let is_default = file.is_none() && texts.is_empty();
        Ok(if is_default { Self { policies: PolicySet::default(), ..config } } else { config })
    }

    /// Reads a file and `--policy` texts, whose policies follow the file's. The default where there is neither.
    pub(crate) fn from_sources(
        file: Option<&Path>,
        texts: &[String],
        outside: &Outside,
    ) -> Result<Self, ConfigErrors> {
        let config = file.map(|file| Self::load(file, outside)).transpose()?;
        let policies = match texts {
            [] => None,
            texts => Some(flag::add(config.as_ref().map(|config| &config.policies), texts)?),
        };
        let config = config.unwrap_or_else(|| Self {
            shared: outside.store(),
            admin: AccessRules { tokens: outside.tokens.clone(), ..AccessRules::default() },
            observe: Observe::without_file(outside),
            resp: outside.resp(),
            ..Self::default()
        });
        Ok(Self { policies: policies.unwrap_or(config.policies), ..config })
    }

    /// Reads a file.
    pub(crate) fn load(path: &Path, outside: &Outside) -> Result<Self, ConfigErrors> {
        let name = path.display().to_string();
        let failed = |line, message: String| ConfigErrors::one(&name, line, &message);
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes))
            .map_err(|error| {
                failed(None, format!("cannot be read: {error}; check the path and who may read it"))
            })?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = 1 + good.iter().filter(|byte| **byte == b'\n').count() as u64;
            failed(Some(line), "this line is not UTF-8; save the file in that encoding".into())
        })?;
        Self::parse_with(&text, &name, outside)
    }

    /// Reads a text with nothing outside of it; errors call it `name`.
    #[cfg(test)]
    pub(crate) fn parse(text: &str, name: &str) -> Result<Self, ConfigErrors> {
        Self::parse_with(text, name, &Outside::default())
    }

    /// Reads a text; errors call it `name`.
    fn parse_with(text: &str, name: &str, outside: &Outside) -> Result<Self, ConfigErrors> {
        if text.len() > MAX_FILE_BYTES {
            let message = format!(
                "larger than {MAX_FILE_BYTES} bytes, which is the most; leave out what is not needed"
            );
            return Err(ConfigErrors::one(name, None, &message));
        }
        let root = yaml::read(text).map_err(|error| {
            let place = format!("{name}:{}", error.line);
            ConfigErrors::one(&place, Some(error.column), &error.message)
        })?;
        if let Some((line, message)) = foreign::recognise(&root) {
            return Err(ConfigErrors::one(name, Some(line), &message));
        }
        let mut findings = Findings::default();
        let config = sections::config(&root, outside, &mut findings);
        findings.none_or_errors(name).map(|()| config)
    }

    /// Where usage lives.
    pub(crate) fn counted(&self) -> Counted {
        match &self.shared {
            Some(shared) => Counted::Shared { instances: shared.instances },
            None => Counted::Here,
        }
    }

    /// Whether the text of this attribute is read as an IP address.
    pub(crate) fn is_address(&self, attribute: &str) -> bool {
        self.address_attributes.iter().any(|address| address == attribute)
    }
}

/// What a service without a file does: 100 requests a minute for each user.
impl Default for Config {
    fn default() -> Self {
        let per_user = Policy::new("per-user", Quota::per_minute(100)).map(|policy| policy.scope(["user"]));
        Self {
            policies: per_user
                .and_then(|policy| PolicySet::new([policy]))
                .expect("the default policy is valid"),
            candidates: BTreeMap::new(),
            listen: DEFAULT_LISTEN,
            grpc: Grpc::default(),
            shutdown_grace: DEFAULT_SHUTDOWN_GRACE,
            max_keys: MemoryStore::DEFAULT_MAX_KEYS,
            shared: None,
            resp: None,
            address_attributes: vec!["ip".to_owned()],
            headers: HeaderOptions::default(),
            auth: Auth::default(),
            admin: AccessRules::default(),
            observe: Observe::default(),
            file: FileContent::default(),
        }
    }
}

/// Everything that is wrong with a configuration: one line each, in the file's order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConfigErrors(Vec<String>);

impl ConfigErrors {
    fn one(place: &str, number: Option<u64>, message: &str) -> Self {
        let number = number.map(|number| format!(":{number}")).unwrap_or_default();
        Self(vec![one_line(&format!("{place}{number}: {message}"))])
    }

    fn listed(lines: &[String]) -> Self {
        Self(lines.iter().map(|line| one_line(line)).collect())
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// What was found wrong so far, each with its line.
#[derive(Debug, Default)]
struct Findings(Vec<(u64, String)>);

impl Findings {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, line: u64, message: impl fmt::Display) {
        self.0.push((line, message.to_string()));
    }

    fn none_or_errors(mut self, name: &str) -> Result<(), ConfigErrors> {
        if self.0.is_empty() {
            return Ok(());
        }
        self.0.sort_by_key(|(line, _)| *line);
        let listed = self.0.iter().take(MAX_ERRORS);
        let mut lines: Vec<_> =
            listed.map(|(line, message)| one_line(&format!("{name}:{line}: {message}"))).collect();
        if let Some(more) = self.0.len().checked_sub(MAX_ERRORS).filter(|more| *more > 0) {
            lines.push(one_line(&format!("{name}: {more} more errors; correct these first")));
        }
        Err(ConfigErrors(lines))
    }
}

/// The same with control characters escaped: what a file holds must not break a line, or a terminal.
pub(crate) fn one_line(message: &str) -> String {
    let mut line = String::with_capacity(message.len());
    for c in message.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_debug());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Every line about a text that is not a configuration.
    pub(crate) fn errors(text: &str) -> Vec<String> {
        Config::parse(text, "slidegate.yaml").unwrap_err().0
    }

    /// The only line about a text.
    pub(crate) fn error(text: &str) -> String {
        let errors = errors(text);
        assert_eq!(errors.len(), 1, "{errors:#?}");
        errors[0].clone()
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

    /// The only line about the policy `p` with these keys, without the place that it must begin with.
    pub(crate) fn policy_error(keys: &str) -> String {
        let error = error(&file_of(keys));
        error.strip_prefix("slidegate.yaml:2: policy `p`: ").unwrap_or_else(|| panic!("{error}")).to_owned()
    }

    fn described(config: &Config) -> Vec<String> {
        config.policies.iter().map(|policy| describe(policy, Counted::Here)).collect()
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

    /// It is the first thing that anyone writes.
    #[test]
    fn the_first_configuration_loads() {
        let config = Config::parse(FIRST, "slidegate.yaml").unwrap();
        assert_eq!(
            described(&config),
            [
                "per-user: requests are limited to 100 per 1m for each user (exact sliding log). Denies. A key takes \
                 about 605 bytes at most.",
                "login-per-ip: requests whose path is `/login` are limited to 5 per 1m for each ip (exact sliding log). \
                 Denies. A key takes about 130 bytes at most."
            ]
        );
        assert_eq!(config.listen, DEFAULT_LISTEN);
        assert_eq!(config.max_keys, MemoryStore::DEFAULT_MAX_KEYS);
    }

    const EXAMPLE: &str = include_str!("../../../docs/slidegate.example.yaml");

    /// It ships, and people start from it.
    #[test]
    fn the_example_loads_and_every_policy_is_described() {
        let config = Config::parse(EXAMPLE, "slidegate.example.yaml").unwrap();
        let described = described(&config);
        assert_eq!(described.len(), 7);
        for (words, policy) in described.iter().zip(config.policies.iter()) {
            assert!(words.starts_with(&format!("{}: requests", policy.name())), "{words}");
        }
    }

    /// The example says that what is commented out is the default. It must not get old.
    #[test]
    fn what_the_example_comments_out_is_the_default() {
        let uncommented = |from: &str, to: &str| {
            let lines = EXAMPLE.lines().skip_while(|line| !line.starts_with(from)).skip(1);
            let lines = lines.take_while(|line| !line.starts_with(to));
            let lines: Vec<_> = lines.map(|line| line.strip_prefix("# ").unwrap_or(line)).collect();
            Config::parse(&format!("{FIRST}{}", lines.join("\n")), "slidegate.example.yaml").unwrap()
        };
        let shared = uncommented("# Limits that many", "# Nothing is the default").shared.unwrap();
        let bare = Config::parse(&format!("{FIRST}store: {{redis: 'redis://127.0.0.1:6379'}}"), "").unwrap();
        assert_eq!(format!("{shared:?}"), format!("{:?}", bare.shared.unwrap()));
        let config = uncommented("# Everything else", "# Limits that many");
        assert!(config.shared.is_none());
        let default = Config::default();
        assert_eq!(config.listen, default.listen);
        assert_eq!(config.shutdown_grace, default.shutdown_grace);
        assert_eq!(config.max_keys, default.max_keys);
        assert_eq!(config.address_attributes, default.address_attributes);
        assert_eq!(config.headers, default.headers);
        assert_eq!(config.observe, default.observe);
    }

    /// Whoever reads a reference copies from it.
    #[test]
    fn the_reference_shows_what_is_really_said() {
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
        let config = Config::from_sources(None, &[], &Outside::default()).unwrap();
        assert_eq!(
            described(&config),
            [
                "per-user: requests are limited to 100 per 1m for each user (exact sliding log). Denies. A key takes about \
              605 bytes at most."
            ]
        );
        assert!(config.is_address("ip") && !config.is_address("user"));
    }

    /// Who is told of one mistake at a time starts the service once for each.
    #[test]
    fn all_mistakes_are_listed_in_the_order_of_the_file() {
        let text = "
server: {listen: localhost}
policies:
  - name: per-user
    limt: 100
    window: 0s
    mode: dry
  - name: per-user
    quota: 5/1m
";
        assert_eq!(
            errors(text),
            [
                "slidegate.yaml:2: server: invalid listen `localhost`: must be an IP address and a port, for example \
                 `127.0.0.1:7979` or `[::]:7979`",
                "slidegate.yaml:5: policy `per-user`: unknown key `limt`: did you mean `limit`?",
                "slidegate.yaml:6: policy `per-user`: invalid window `0s`: must be 1ms to 366d with a unit (ms, s, m, \
                 h, d or w), for example `window: 60s`",
                "slidegate.yaml:7: policy `per-user`: invalid mode `dry`: must be `enforce` (deny requests over the \
                 limit) or `shadow` (report what would be denied, and deny nothing)",
                "slidegate.yaml:8: policy `per-user`: invalid name `per-user`: also used in line 4; choose another",
            ]
        );
        let many = format!("policies:\n{}", "  - {name: a b, quota: 1/1s}\n".repeat(25));
        let errors = errors(&many);
        assert_eq!(errors.len(), MAX_ERRORS + 1);
        assert_eq!(errors[MAX_ERRORS], "slidegate.yaml: 5 more errors; correct these first");
    }

    /// A file that says nothing would otherwise be a limiter that limits nothing.
    #[test]
    fn a_file_without_policies_is_refused_with_one_to_paste() {
        let example = "must be a list of policies, for example `policies: [{name: per-user, scope: [user], limit: 100, \
                       window: 60s}]`";
        for (text, is) in [
            ("", "1: missing policies"),
            ("# nothing yet\n", "2: missing policies"),
            ("server: {}\n", "1: missing policies"),
            ("policies:\n", "1: invalid policies (empty)"),
            ("policies: []\n", "1: invalid policies (a list)"),
            ("policies: {a: 1}", "1: invalid policies (a map)"),
        ] {
            assert_eq!(error(text), format!("slidegate.yaml:{is}: {example}"), "{text}");
        }
        let example = example.split('`').nth(1).unwrap();
        Config::parse(example, "").unwrap();
        let expected = format!("must be keys and values, for example `{example}`");
        assert_eq!(error("- a\n"), format!("slidegate.yaml:1: invalid file (a list): {expected}"));
        assert_eq!(error("a"), format!("slidegate.yaml:1: invalid file `a`: {expected}"));
        let many: String = (0..16_385).map(|n| format!("  - {{name: p{n}, quota: 1/1s}}\n")).collect();
        assert_eq!(
            error(&format!("\npolicies:\n{many}")),
            "slidegate.yaml:3: 16385 policies are too many; join some, 16384 is the most"
        );
    }

    /// The path is the first thing that is wrong.
    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let missing = Config::load(Path::new("no/such.yaml"), &Outside::default()).unwrap_err().to_string();
        assert_eq!(
            missing,
            "no/such.yaml: cannot be read: No such file or directory (os error 2); check the path and who may read it"
        );
        let path = std::env::temp_dir().join(format!("slidegate-config-{}.yaml", std::process::id()));
        let load = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let loaded = Config::load(&path, &Outside::default());
            std::fs::remove_file(&path).unwrap();
            loaded
        };
        assert!(load(FIRST.as_bytes()).is_ok());
        assert_eq!(
            load(b"a: 1\nb: \xff\n").unwrap_err().to_string(),
            format!("{}:2: this line is not UTF-8; save the file in that encoding", path.display())
        );
        assert_eq!(
            load(&vec![b'#'; MAX_FILE_BYTES + 1]).unwrap_err().to_string(),
            format!(
                "{}: larger than 4194304 bytes, which is the most; leave out what is not needed",
                path.display()
            )
        );
    }

    /// A terminal or a log must not be steered by what stands in a file.
    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            policy_error("limit: \"\\e[31m\\n\", window: 1s"),
            "invalid limit `\\u{1b}[31m\\n`: must be a whole number from 0 to 18446744073709551615, without quotes"
        );
    }

    /// A service that reloads must not die of a file that is half written, or not a configuration at all.
    #[test]
    fn no_bytes_panic() {
        let spice = [
            "&a ",
            "*a",
            "<<: ",
            "!x ",
            "- ",
            ": ",
            "{",
            "}",
            "[",
            "]",
            "\"",
            "'",
            "|",
            ">",
            "#",
            "\n",
            "\t",
            "  ",
            "~",
            "é",
            "0",
            "-1",
            "1e999",
            "true",
            "---\n",
            "policies:",
            "key",
            "\0",
            "?",
            "%",
            "`",
            "\u{2028}",
            "*",
        ];
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
                assert!(!errors.0.is_empty());
                for line in &errors.0 {
                    assert!(
                        line.starts_with("f:") && !line.contains(char::is_control),
                        "{line:?} of {text:?}"
                    );
                }
            }
        }
    }
}

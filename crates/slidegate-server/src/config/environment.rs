//! Settings from the command line and the environment, which take precedence over the file.

use std::net::SocketAddr;
use std::path::PathBuf;

use lined_config::{ConfigErrors, Excerpt, Form, nearest, one_line, only_if};
use serde_json::Value as Json;
use slidegate::clock::parse_window;
use slidegate_config::values::Text;

use super::resp::Password;
use super::store::read_line;
use super::traces::{ENDPOINT, endpoint};
use super::values::{ADDRESS, ByteSize, NEW_FILE, RedisUrl, address};
use super::{MAX_DRAIN_DELAY, Preset, admin};

/// The prefix of all variables of slidegate.
const PREFIX: &str = "SLIDEGATE_";
/// The variables with a secret, without the prefix. The secret may also be in a file that `NAME_FILE`
/// names.
const SECRETS: [&str; 4] = ["ADMIN_TOKENS", "KEY_SECRET", "REDIS", "RESP_PASSWORD"];
/// The other variables of the service and its commands, without the prefix.
const VARIABLES: &str = "CONFIG DRAIN_DELAY ENVOY_ALGORITHM ENVOY_CALENDAR ENVOY_EXCESS INSTANCES LISTEN MAX_BYTES \
                         SNAPSHOT TOKEN URL";
/// Names that users know from elsewhere.
const SYNONYMS: [(&str, &str); 6] = [
    ("REDIS_URL", "REDIS"),
    ("REDIS_PASSWORD", "REDIS"),
    ("PORT", "LISTEN"),
    ("ADDRESS", "LISTEN"),
    ("HOST", "LISTEN"),
    ("TOKENS", "ADMIN_TOKENS"),
];
/// Variables of slidegate's own builds, tests and scripts, which the binary inherits and ignores.
const OF_TESTS: &str = "FEATURES REVISION TARGET BIN CLOCK_ EXACTNESS_ FIELD_VECTORS IMAGE_BINARY MODULE_ OLD_BINARY \
                        RELEASE_ RESERVATION_ SCREENSHOTS SOAK_ TEST_ WHEEL";

/// The variable with the store's URL.
pub(super) const URL_VARIABLE: &str = "SLIDEGATE_REDIS";

/// The variable with the address of the HTTP listener.
pub(super) const LISTEN_VARIABLE: &str = "SLIDEGATE_LISTEN";
/// The variable with the number of instances.
const INSTANCES_VARIABLE: &str = "SLIDEGATE_INSTANCES";
/// The value for instances that count themselves.
const COUNTED_INSTANCES: &str = "auto";

const INSTANCES: Form = Form::new("instances", "a whole number from 1 to 10000, or `auto`", |text, _| {
    let is_valid = text.parse().is_ok_and(|count: u64| (1..=10_000).contains(&count));
    if text == COUNTED_INSTANCES { Ok("null".to_owned()) } else { only_if(is_valid, text) }
});

const DRAIN_DELAY: Form =
    Form::new("drain-delay", "0s to 1h with a unit (ms, s, m or h), for example `5s`", |text, _| {
        only_if(parse_window(text).is_ok_and(|delay| delay <= MAX_DRAIN_DELAY), text)
    });

const KEY_SECRET: Form = Form::new("key-secret", "a text", |text, _| Ok(text.to_owned())).secret();

const PROTOCOL: Form = Form::new(
    "otlp-protocol",
    "`http/protobuf`; give the collector's port for it, usually 4318",
    |text, _| only_if(text == "http/protobuf", text),
);

const RATIO: Form = Form::new("ratio", "a number from 0 to 1", |text, _| {
    let ratio = text.trim().parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
    ratio.map(|ratio| ratio.to_string()).ok_or_else(String::new)
});

/// Settings from the command line and the environment.
#[derive(Default, Clone)]
pub(crate) struct Outside {
    /// Valid values, each with the JSON pointer of its key.
    pub(super) settings: Vec<(&'static str, Json)>,
    /// Additional admin tokens, as in the file.
    pub(super) tokens: Vec<Json>,
    /// Whether envoyproxy/ratelimit's variables set the address of the gRPC listener.
    pub(super) has_other_grpc: bool,
    /// Whether there are other limits, such as Envoy's, so that a file needs no policies.
    pub(super) has_other_limits: bool,
    /// The variables that name files with secrets, and the paths.
    pub(super) secret_files: Vec<(String, PathBuf)>,
    /// The policies if there is no file.
    pub(crate) preset: Option<Preset>,
}

/// Arguments of `serve` that take precedence over the file.
#[derive(Debug, Default, Clone, clap::Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct Arguments {
    /// HTTP address; overrides the config file and the variable `SLIDEGATE_LISTEN`
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Address of Envoy's gRPC rate-limit service; overrides the config file [default: disabled]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) grpc: Option<SocketAddr>,
    /// Shared Redis store, such as `redis://127.0.0.1:6379`; overrides the config file
    ///
    /// Also `redis+cluster://A:6379,B:6379` and `redis+sentinel://A,B/MASTER`; `rediss` for TLS.
    /// Use the variable `SLIDEGATE_REDIS` to keep a password out of the process list.
    #[arg(long, value_name = "URL")]
    pub(crate) redis: Option<String>,
    /// Address for Redis clients, such as `127.0.0.1:6380`; overrides the config file [default:
    /// disabled]
    ///
    /// Speaks RESP2 and RESP3: `RL.CHECK`, and the commands of redis-cell and throttlecrab. The
    /// variable `SLIDEGATE_RESP_PASSWORD` sets the password.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub(crate) resp: Option<SocketAddr>,
    /// How long to serve after SIGTERM while `/readyz` reports that the service is not ready, such
    /// as `10s`; overrides the config file and the variable `SLIDEGATE_DRAIN_DELAY` [default: 5s,
    /// or 0s if every listener is on loopback or a Unix socket]
    #[arg(long, value_name = "DURATION")]
    pub(crate) drain_delay: Option<String>,
    /// Bound of the memory store's bytes, such as `1GiB`; overrides the config file
    ///
    /// A full store evicts idle keys and keeps the sum of what they owe: none of them starts again, but they and new
    /// keys may be denied too long. See docs/bounds.md.
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_bytes: Option<String>,
    /// File in which usage of the memory store outlives a restart; overrides the config file
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<String>,
    /// Whether envoyproxy/ratelimit's variables set the address of the gRPC listener.
    #[arg(skip)]
    pub(crate) has_other_grpc: bool,
}

impl Outside {
    /// Reads the environment. Arguments take precedence.
    pub(crate) fn read(arguments: &Arguments) -> Result<Self, ConfigErrors> {
        check_names()?;
        Self::read_by(arguments, variable)
    }

    /// Reads variables by `variable`.
    pub(super) fn read_by(
        arguments: &Arguments,
        variable: impl Fn(&str) -> Result<Option<String>, ConfigErrors>,
    ) -> Result<Self, ConfigErrors> {
        let text = |address: Option<SocketAddr>| address.map(|address| address.to_string());
        let mut settings = Vec::new();
        for (pointer, address) in
            [("/grpc/listen", text(arguments.grpc)), ("/resp/listen", text(arguments.resp))]
        {
            settings.extend(address.map(|address| (pointer, Json::from(address))));
        }
        let Arguments { redis, drain_delay, max_bytes, snapshot, .. } = arguments;
        let listen = &text(arguments.listen);
        for (pointer, flag, argument, name, form) in [
            ("/server/listen", "--listen", listen, LISTEN_VARIABLE, ADDRESS),
            ("/server/drain_delay", "--drain-delay", drain_delay, "SLIDEGATE_DRAIN_DELAY", DRAIN_DELAY),
            ("/store/redis", "--redis", redis, URL_VARIABLE, RedisUrl::FORM),
            ("/store/key_secret", "", &None, "SLIDEGATE_KEY_SECRET", KEY_SECRET),
            ("/store/memory/max_bytes", "--max-bytes", max_bytes, "SLIDEGATE_MAX_BYTES", ByteSize::FORM),
            ("/store/memory/snapshot/path", "--snapshot", snapshot, "SLIDEGATE_SNAPSHOT", NEW_FILE),
            ("/resp/password", "", &None, "SLIDEGATE_RESP_PASSWORD", Password::FORM),
        ] {
            let (source, text) = match argument {
                Some(text) => (flag, Some(text.clone())),
                None if form.is_secret => (name, secret(name, &variable)?),
                None => (name, variable(name)?),
            };
            if let Some(text) = text {
                settings.push((pointer, checked(source, form, &text)?.into()));
            }
        }
        if let Some(instances) = variable(INSTANCES_VARIABLE)? {
            let instances = checked(INSTANCES_VARIABLE, INSTANCES, &instances)?;
            settings.push(("/store/instances", instances.parse().unwrap_or_default()));
        }
        settings.extend(traces(&variable)?);
        let tokens = secret(admin::TOKENS_VARIABLE, &variable)?;
        let tokens = tokens.map(|value| admin::from_variable(&value)).transpose()?.unwrap_or_default();
        let mut secret_files = Vec::new();
        for name in SECRETS {
            let source = format!("{PREFIX}{name}_FILE");
            let path = variable(&source)?.map(PathBuf::from);
            secret_files.extend(path.map(|path| (source, path)));
        }
        let has_other_grpc = arguments.has_other_grpc;
        Ok(Self { settings, tokens, has_other_grpc, secret_files, ..Self::default() })
    }

    /// Rejects several instances without a shared store: each would admit the whole limit.
    pub(super) fn check_sharing(&self, is_shared: bool) -> Result<(), ConfigErrors> {
        let instances = self.settings.iter().find(|(pointer, _)| *pointer == "/store/instances");
        let several = match instances {
            Some((_, Json::Null)) => COUNTED_INSTANCES.to_owned(),
            Some((_, instances)) if *instances != 1 => instances.to_string(),
            _ => return Ok(()),
        };
        if is_shared {
            return Ok(());
        }
        Err(ConfigErrors::one(
            INSTANCES_VARIABLE,
            format_args!(
                "is {several}, but there is no shared store, so each instance would admit the whole limit; give \
                 {URL_VARIABLE} or `--redis`, or run one instance"
            ),
        ))
    }
}

/// Rejects unknown variables with our prefix: a limiter that ignores a misspelt setting enforces the
/// wrong limits.
///
/// # Errors
/// The first unknown variable, and the one that was probably meant.
pub(crate) fn check_names() -> Result<(), ConfigErrors> {
    let variables = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let variables =
        variables.map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()));
    check_names_of(variables)
}

fn check_names_of(variables: impl Iterator<Item = [String; 2]>) -> Result<(), ConfigErrors> {
    let mut unknown: Vec<_> = variables
        .filter(|[name, value]| !is_known(name) && !is_of_service_link(name, value))
        .map(|[name, _]| name)
        .collect();
    unknown.sort_unstable();
    let Some(first) = unknown.first() else { return Ok(()) };
    let what = match meant(&first[PREFIX.len()..]) {
        Some(meant) => format!("did you mean `{PREFIX}{meant}`?"),
        None => {
            let known: Vec<_> = names().map(|name| format!("{PREFIX}{name}")).collect();
            format!("must be one of {};", known.join(", "))
        }
    };
    let message = format!("unknown variable: {what} if it is not meant for slidegate, unset it or rename it");
    Err(ConfigErrors::one(one_line(first), message))
}

/// All variables, without the prefix.
fn names() -> impl Iterator<Item = &'static str> {
    SECRETS.into_iter().chain(VARIABLES.split(' '))
}

/// Whether a variable lacks our prefix or is one that we know.
fn is_known(name: &str) -> bool {
    let Some(name) = name.strip_prefix(PREFIX) else { return true };
    let is_of_tests =
        |known: &str| if known.ends_with('_') { name.starts_with(known) } else { name == known };
    let is_file = name.strip_suffix("_FILE").is_some_and(|name| SECRETS.contains(&name));
    is_file || names().any(|known| known == name) || OF_TESTS.split(' ').any(is_of_tests)
}

/// Whether Kubernetes sets this variable in all pods of a namespace, for a Service whose name begins
/// with `slidegate`: `SLIDEGATE_SERVICE_PORT_HTTP`, `SLIDEGATE_PORT_7979_TCP_ADDR`.
fn is_of_service_link(name: &str, value: &str) -> bool {
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_address = |(host, port): (&str, &str)| is_port(port) && !host.contains(['@', '/']);
    let is_url = |protocol: &str| {
        let address =
            value.strip_prefix(&protocol.to_ascii_lowercase()).and_then(|rest| rest.strip_prefix("://"));
        address.and_then(|address| address.rsplit_once(':')).is_some_and(is_address)
    };
    let parts: Vec<_> = name.split('_').collect();
    (1..parts.len()).any(|at| match parts[at..] {
        ["SERVICE", "HOST"] => true,
        ["SERVICE", "PORT", ..] => is_port(value),
        ["PORT"] => ["tcp", "udp", "sctp"].into_iter().any(is_url),
        ["PORT", number, protocol @ ("TCP" | "UDP" | "SCTP")] => is_port(number) && is_url(protocol),
        ["PORT", number, "TCP" | "UDP" | "SCTP", "PROTO" | "PORT" | "ADDR"] => is_port(number),
        _ => false,
    })
}

/// The variable that was probably meant, without the prefix: a synonym, one that is near, the longest
/// one that begins it, or one with it as a part.
fn meant(unknown: &str) -> Option<String> {
    let files = SECRETS.iter().map(|name| format!("{name}_file"));
    let all: Vec<_> = names().map(str::to_owned).chain(files).map(|name| name.to_lowercase()).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let synonym = SYNONYMS.iter().find(|(theirs, _)| *theirs == unknown).map(|(_, ours)| (*ours).to_owned());
    let near = || nearest(unknown, &all).map(str::to_uppercase);
    let begins = |name: &&str| unknown.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'));
    let longer = || names().filter(begins).max_by_key(|name| name.len()).map(str::to_owned);
    let part = || names().find(|name| name.split('_').any(|part| part == unknown)).map(str::to_owned);
    synonym.or_else(near).or_else(longer).or_else(part)
}

/// A variable of the environment. An empty one counts as unset.
pub(super) fn variable(name: &str) -> Result<Option<String>, ConfigErrors> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(ConfigErrors::one(name, "invalid encoding: the variable must be UTF-8"))
        }
    }
}

/// Checks the text of an argument or a variable.
pub(super) fn checked(source: &str, form: Form, text: &str) -> Result<String, ConfigErrors> {
    form.check(text).map_err(|why| match why.as_str() {
        "" if form.is_secret => {
            ConfigErrors::one(source, format_args!("invalid value: must be {}", form.expected))
        }
        "" => {
            let message = format_args!("invalid value `{}`: must be {}", Excerpt(text), form.expected);
            ConfigErrors::one(source, message)
        }
        why => ConfigErrors::one(source, why),
    })
}

/// The value of a secret variable, or the content of the file that `NAME_FILE` names, because other
/// processes may see the environment.
fn secret(
    name: &str,
    variable: impl Fn(&str) -> Result<Option<String>, ConfigErrors>,
) -> Result<Option<String>, ConfigErrors> {
    let source = format!("{name}_FILE");
    let (value, Some(path)) = (variable(name)?, variable(&source)?) else { return variable(name) };
    if value.is_some() {
        return Err(ConfigErrors::one(source, format_args!("conflicts with {name}; keep one")));
    }
    // The path is not shown: it may be the secret itself, by mistake.
    let invalid = |why: String| ConfigErrors::one(&source, format_args!("the file that it names {why}"));
    match read_line(&path).map_err(invalid)? {
        text if text.is_empty() => Err(invalid(format!("is empty; put the value of {name} in it"))),
        text => Ok(Some(text)),
    }
}

/// The standard variables of OpenTelemetry. `OTEL_EXPORTER_OTLP_HEADERS`,
/// `OTEL_EXPORTER_OTLP_COMPRESSION` and `OTEL_RESOURCE_ATTRIBUTES` are read by the OpenTelemetry SDK.
fn traces(
    variable: impl Fn(&str) -> Result<Option<String>, ConfigErrors>,
) -> Result<Vec<(&'static str, Json)>, ConfigErrors> {
    if variable("OTEL_SDK_DISABLED")?.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return Ok(vec![("/observe/traces", Json::Null)]);
    }
    let mut settings = Vec::new();
    for (name, is_whole) in
        [("OTEL_EXPORTER_OTLP_ENDPOINT", false), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", true)]
    {
        if let Some(url) = variable(name)? {
            let invalid =
                || ConfigErrors::one(name, format_args!("invalid URL: must be {}", ENDPOINT.expected));
            // The last one takes precedence.
            settings.push(("/observe/traces/endpoint", endpoint(&url, is_whole).ok_or_else(invalid)?.into()));
        }
    }
    let name = "OTEL_EXPORTER_OTLP_PROTOCOL";
    if let Some(protocol) = variable(name)?.filter(|_| !settings.is_empty()) {
        checked(name, PROTOCOL, &protocol)?;
    }
    let name = "OTEL_TRACES_SAMPLER_ARG";
    if let Some(ratio) = variable(name)? {
        let ratio = checked(name, RATIO, &ratio)?;
        settings.push(("/observe/traces/sample_ratio", ratio.parse().unwrap_or_default()));
    }
    settings.extend(variable("OTEL_SERVICE_NAME")?.map(|name| ("/observe/traces/service_name", name.into())));
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate_redis::RedisOptions;
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::config::Config;
    use crate::config::tests::parse_with;
    use crate::stores::StoreOptions;

    fn read(arguments: &Arguments, variables: &[(&str, &str)]) -> Result<Outside, String> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let variable = |name: &str| Ok(value(name).map(|(_, value)| (*value).to_owned()));
        Outside::read_by(arguments, variable).map_err(|errors| errors.to_string())
    }

    /// Containers set the environment; a person at a shell overrides it.
    #[test]
    fn arguments_precede_variables_and_those_the_file() {
        let file = "server: {listen: '127.0.0.1:1', drain_delay: 1s}";
        let of = |arguments: &Arguments, variables: &[(&str, &str)]| {
            let config = parse_with(file, &read(arguments, variables).unwrap());
            (config.listen.port(), config.drain_delay)
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let variables = [("SLIDEGATE_LISTEN", "0.0.0.0:2"), ("SLIDEGATE_DRAIN_DELAY", "2s")];
        assert_eq!(of(&Arguments::default(), &[]), (1, seconds(1)));
        assert_eq!(of(&Arguments::default(), &variables), (2, seconds(2)));
        let listen = Some("127.0.0.1:3".parse().unwrap());
        let arguments = Arguments { listen, drain_delay: Some("0s".to_owned()), ..Arguments::default() };
        assert_eq!(of(&arguments, &variables), (3, seconds(0)));
    }

    /// Each instance admits its share of a limit while the store is unreachable.
    #[test]
    fn instances_are_a_number_or_count_themselves() {
        let load = |variables: &[(&str, &str)]| {
            let outside = read(&Arguments::default(), variables).unwrap();
            let config = Config::from_sources(None, &[], &outside).unwrap();
            config.shared.map(|shared| shared.instances)
        };
        let redis = ("SLIDEGATE_REDIS", "redis://h");
        assert_eq!(load(&[("SLIDEGATE_INSTANCES", "3"), redis]), Some(Some(3)));
        assert_eq!(load(&[("SLIDEGATE_INSTANCES", "auto"), redis]), Some(None));
        assert_eq!(load(&[("SLIDEGATE_INSTANCES", "1")]), None);
    }

    /// A misspelt variable would give each instance the whole limit. Variables of Kubernetes and tests
    /// are ignored.
    #[test]
    fn unknown_variables_are_rejected_with_what_was_meant() {
        let check = |name: &str, value: &str| {
            let variable = [name, value].map(str::to_owned);
            check_names_of([variable].into_iter()).map_err(|errors| errors.to_string())
        };
        for (name, meant) in [
            ("SLIDEGATE_REDIS_URL", "SLIDEGATE_REDIS"),
            ("SLIDEGATE_REDIS_PASSWORD", "SLIDEGATE_REDIS"),
            ("SLIDEGATE_REDIS_PORT", "SLIDEGATE_REDIS"),
            ("SLIDEGATE_REDIS_FIEL", "SLIDEGATE_REDIS_FILE"),
            ("SLIDEGATE_REDSI", "SLIDEGATE_REDIS"),
            ("SLIDEGATE_REDISS", "SLIDEGATE_REDIS"),
            ("SLIDEGATE_redis", "SLIDEGATE_REDIS"),
            ("SLIDEGATE_INSTANCE", "SLIDEGATE_INSTANCES"),
            ("SLIDEGATE_ADMIN_TOKEN", "SLIDEGATE_ADMIN_TOKENS"),
            ("SLIDEGATE_TOKENS", "SLIDEGATE_ADMIN_TOKENS"),
            ("SLIDEGATE_TOKEN_FILE", "SLIDEGATE_TOKEN"),
            ("SLIDEGATE_CONFIG_FILE", "SLIDEGATE_CONFIG"),
            ("SLIDEGATE_LISTEN_ADDR", "SLIDEGATE_LISTEN"),
            ("SLIDEGATE_PORT", "SLIDEGATE_LISTEN"),
            ("SLIDEGATE_PASSWORD", "SLIDEGATE_RESP_PASSWORD"),
            ("SLIDEGATE_SECRET", "SLIDEGATE_KEY_SECRET"),
            ("SLIDEGATE_DRAIN", "SLIDEGATE_DRAIN_DELAY"),
            ("SLIDEGATE_ENVOY_CALENDER", "SLIDEGATE_ENVOY_CALENDAR"),
        ] {
            let error = check(name, "7979").unwrap_err();
            let expected = format!("{name}: unknown variable: did you mean `{meant}`? ");
            assert!(error.starts_with(&expected), "{error}");
        }
        let error = check("SLIDEGATE_FLAVOUR", "hidden").unwrap_err();
        assert!(
            error.contains("must be one of SLIDEGATE_ADMIN_TOKENS, ") && !error.contains("hidden"),
            "{error}"
        );
        for (name, value) in [
            ("SLIDEGATE_SERVICE_HOST", "10.0.0.1"),
            ("SLIDEGATE_SERVICE_PORT", "7979"),
            ("SLIDEGATE_SERVICE_PORT_HTTP", "7979"),
            ("SLIDEGATE_SERVICE_PORT_GRPC_V3", "8081"),
            ("SLIDEGATE_PORT", "tcp://10.0.0.1:7979"),
            ("SLIDEGATE_PORT", "tcp://[fd00::1]:7979"),
            ("SLIDEGATE_PORT_7979_TCP", "tcp://10.0.0.1:7979"),
            ("SLIDEGATE_PORT_7979_TCP_PROTO", "tcp"),
            ("SLIDEGATE_PORT_7979_TCP_PORT", "7979"),
            ("SLIDEGATE_PORT_7979_TCP_ADDR", "10.0.0.1"),
            ("SLIDEGATE_PORT_53_UDP", "udp://10.0.0.1:53"),
            ("SLIDEGATE_REDIS_SERVICE_HOST", "10.0.0.1"),
            ("SLIDEGATE_REDIS_PORT", "tcp://10.0.0.1:6379"),
            ("SLIDEGATE_REDIS_PORT_6379_TCP_ADDR", "10.0.0.1"),
            ("SLIDEGATE_MY_API_SERVICE_PORT_HTTP", "80"),
            ("SLIDEGATE_BIN", "x"),
            ("SLIDEGATE_TEST_HISTORIES", "9"),
            ("SLIDEGATE_SOAK_SECONDS", "9"),
            ("SLIDEGATE_RESERVATION_SEED", "9"),
            ("SLIDEGATE_REDIS_FILE", "x"),
            ("SLIDEGATE_URL", "x"),
            ("SLIDEGATEX", "x"),
            ("PATH", "x"),
        ] {
            assert_eq!(check(name, value), Ok(()), "{name}={value}");
        }
        for (name, value) in [
            ("SLIDEGATE_SERVICE_PORT", "tcp://x"),
            ("SLIDEGATE_PORT", "tcp://me:hidden@h:1"),
            ("SLIDEGATE_PORT_X_TCP_ADDR", "10.0.0.1"),
            ("SLIDEGATE_KEY_SECRET_FILE_", "x"),
            ("SLIDEGATE_LISTEN_FILE", "x"),
        ] {
            assert!(check(name, value).is_err(), "{name}={value}");
        }
    }

    /// The service would reject a variable that its own code reads.
    #[test]
    fn every_variable_in_the_code_is_known_and_documented() {
        let code = [
            include_str!("environment.rs").split("#[cfg(test)]").next().unwrap_or_default(),
            include_str!("admin.rs"),
            include_str!("../cli/sources.rs"),
            include_str!("../cli/client.rs"),
            include_str!("../envoy/settings.rs").split("#[cfg(test)]").next().unwrap_or_default(),
        ];
        let texts = code.iter().flat_map(|file| file.split('"').skip(1).step_by(2));
        let names: Vec<_> =
            texts.filter(|text| text.starts_with(PREFIX) && text.len() > PREFIX.len()).collect();
        assert!(names.len() > super::names().count() - 4, "{names:?}");
        for name in names.into_iter().filter(|name| !name.contains(' ')) {
            assert!(is_known(name), "{name}");
        }
        let pages = [
            include_str!("../../../../docs/config.md"),
            include_str!("../../../../docs/envoy-ratelimit.md"),
            include_str!("../../../../docs/commands.md"),
        ]
        .concat();
        for name in super::names() {
            assert!(pages.contains(&format!("`{PREFIX}{name}`")), "{name}");
        }
    }

    /// Files of mounted secrets end with a line break that is not part of the secret.
    #[test]
    fn secrets_are_read_from_files() {
        let folder = TempDir::new("secret");
        let file = &format!("{}/secret", folder.as_str());
        let with = |content: &str, variables: &[(&str, &str)]| {
            folder.file("secret", content);
            read(&Arguments::default(), variables)
        };
        let outside = with("redis://:hidden@h\n", &[("SLIDEGATE_REDIS_FILE", file)]).unwrap();
        let expected = RedisOptions::new("redis://:hidden@h").unwrap();
        assert_eq!(parse_with("", &outside).shared.unwrap().options, StoreOptions::Redis(expected));
        let resp = "resp: {listen: '127.0.0.1:6380'}";
        let outside = with("hidden\r\n", &[("SLIDEGATE_RESP_PASSWORD_FILE", file)]).unwrap();
        assert!(parse_with(resp, &outside).resp.unwrap().password.unwrap().is(b"hidden"));
        let tokens = format!("ops:write:{}", "0".repeat(64));
        let outside = with(&tokens, &[("SLIDEGATE_ADMIN_TOKENS_FILE", file)]).unwrap();
        assert_eq!(outside.tokens.len(), 1);
    }
}

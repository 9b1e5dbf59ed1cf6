//! Settings from the command line and the environment. They take precedence over the file.

use std::net::SocketAddr;

use serde_json::Value as Json;
use slidegate::parse_window;
use slidegate_config::errors::ConfigErrors;
use slidegate_config::values::{Form, Text, only_if};
use slidegate_config::yaml::Excerpt;

use super::MAX_DRAIN_DELAY;
use super::admin;
use super::resp::Password;
use super::store::read_line;
use super::traces::{ENDPOINT, endpoint};
use super::values::{ADDRESS, ByteSize, NEW_FILE, RedisUrl, address};

/// The variable with the store's URL.
pub(super) const URL_VARIABLE: &str = "SLIDEGATE_REDIS";

/// The variable with the address of the HTTP listener.
pub(super) const LISTEN_VARIABLE: &str = "SLIDEGATE_LISTEN";
/// The variable with the number of instances.
const INSTANCES_VARIABLE: &str = "SLIDEGATE_INSTANCES";
/// Its value if instances count themselves.
const COUNTED_INSTANCES: &str = "auto";

const INSTANCES: Form = Form::new("instances", "a whole number from 1 to 10000, or `auto`", |text| {
    let is_valid = text.parse().is_ok_and(|count: u64| (1..=10_000).contains(&count));
    if text == COUNTED_INSTANCES { Ok("null".to_owned()) } else { only_if(is_valid, text) }
});

const DRAIN_DELAY: Form =
    Form::new("drain-delay", "0s to 1h with a unit (ms, s, m or h), for example `5s`", |text| {
        only_if(parse_window(text).is_ok_and(|delay| delay <= MAX_DRAIN_DELAY), text)
    });

const KEY_SECRET: Form = Form::new("key-secret", "a text", |text| Ok(text.to_owned())).secret();

const PROTOCOL: Form =
    Form::new("otlp-protocol", "`http/protobuf`; give the collector's port for it, usually 4318", |text| {
        only_if(text == "http/protobuf", text)
    });

const RATIO: Form = Form::new("ratio", "a number from 0 to 1", |text| {
    let ratio = text.trim().parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
    ratio.map(|ratio| ratio.to_string()).ok_or_else(String::new)
});

/// Settings from the command line and the environment.
#[derive(Default, Clone)]
pub(crate) struct Outside {
    /// Valid values, each with its JSON pointer into a file.
    pub(super) settings: Vec<(&'static str, Json)>,
    /// Additional admin tokens, as in the file.
    pub(super) tokens: Vec<Json>,
    /// Whether envoyproxy/ratelimit's variables define where Envoy's rate-limit service listens.
    pub(super) has_other_grpc: bool,
    /// Whether limits come from elsewhere as well, so that a file needs no policies.
    pub(super) has_other_limits: bool,
}

/// Arguments of `serve` that take precedence over the file.
#[derive(Debug, Default, Clone, clap::Args)]
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
    #[arg(long, value_name = "SIZE")]
    pub(crate) max_bytes: Option<String>,
    /// File in which usage of the memory store outlives a restart; overrides the config file
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<String>,
    /// Whether envoyproxy/ratelimit's variables define where Envoy's rate-limit service listens.
    #[arg(skip)]
    pub(crate) has_other_grpc: bool,
}

impl Outside {
    /// Reads the environment. The command line takes precedence.
    pub(crate) fn read(arguments: &Arguments) -> Result<Self, ConfigErrors> {
        Self::read_by(arguments, variable)
    }

    /// Reads variables with `variable`.
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
        Ok(Self { settings, tokens, has_other_grpc: arguments.has_other_grpc, has_other_limits: false })
    }

    /// Rejects several instances whose limits are not shared: each would admit the whole limit.
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

/// The text of an argument or a variable, if it is valid.
pub(super) fn checked(source: &str, form: Form, text: &str) -> Result<String, ConfigErrors> {
    (form.check)(text).map_err(|why| match why.as_str() {
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

/// The value of a variable, or the content of the file whose path is in `NAME_FILE`: other processes
/// may see the environment.
fn secret(
    name: &str,
    variable: impl Fn(&str) -> Result<Option<String>, ConfigErrors>,
) -> Result<Option<String>, ConfigErrors> {
    let source = format!("{name}_FILE");
    let (value, Some(path)) = (variable(name)?, variable(&source)?) else { return variable(name) };
    if value.is_some() {
        return Err(ConfigErrors::one(source, format_args!("conflicts with {name}; keep one")));
    }
    let invalid = |why: String| ConfigErrors::one(&source, format_args!("`{path}` {why}"));
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

    use slidegate::RedisOptions;
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::config::Config;
    use crate::config::tests::parse_with;

    fn read(arguments: &Arguments, variables: &[(&str, &str)]) -> Result<Outside, String> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let variable = |name: &str| Ok(value(name).map(|(_, value)| (*value).to_owned()));
        Outside::read_by(arguments, variable).map_err(|errors| errors.to_string())
    }

    /// A container has its settings in the environment, and a person at a shell overrides them.
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

    /// Mounted secrets end with a line end that is no part of them, and one of two secrets is old.
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
        assert_eq!(parse_with("", &outside).shared.unwrap().options, expected);
        let resp = "resp: {listen: '127.0.0.1:6380'}";
        let outside = with("hidden\r\n", &[("SLIDEGATE_RESP_PASSWORD_FILE", file)]).unwrap();
        assert!(parse_with(resp, &outside).resp.unwrap().password.unwrap().is(b"hidden"));
        let tokens = format!("ops:write:{}", "0".repeat(64));
        let outside = with(&tokens, &[("SLIDEGATE_ADMIN_TOKENS_FILE", file)]).unwrap();
        assert_eq!(outside.tokens.len(), 1);
    }
}

//! Settings from the command line and the environment. They take precedence over the file.

use std::net::SocketAddr;

use serde_json::Value as Json;
use slidegate::RedisOptions;
use slidegate_envoy::yaml::Shown;

use super::admin;
use super::check::default_of;
use super::errors::ConfigErrors;
use super::resp::Password;
use super::traces::{ENDPOINT, endpoint};
use super::values::{Form, Text};

/// The variable with the store's URL.
pub(super) const URL_VARIABLE: &str = "SLIDEGATE_REDIS";

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

/// Arguments of the command line that take precedence over the file.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Arguments<'a> {
    /// The URL of the store.
    pub(crate) redis: Option<&'a str>,
    /// Where the HTTP interface listens.
    pub(crate) listen: Option<SocketAddr>,
    /// Where Envoy's rate-limit service listens.
    pub(crate) grpc: Option<SocketAddr>,
    /// Whether envoyproxy/ratelimit's variables define where Envoy's rate-limit service listens.
    pub(crate) has_other_grpc: bool,
    /// Where the RESP port listens.
    pub(crate) resp: Option<SocketAddr>,
}

impl Outside {
    /// Reads the environment. The command line takes precedence.
    pub(crate) fn read(arguments: Arguments<'_>) -> Result<Self, ConfigErrors> {
        Self::read_by(arguments, |name| match std::env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(ConfigErrors::one(name, "invalid encoding: the variable must be UTF-8"))
            }
        })
    }

    /// Reads variables with `variable`.
    pub(super) fn read_by(
        arguments: Arguments<'_>,
        variable: impl Fn(&str) -> Result<Option<String>, ConfigErrors>,
    ) -> Result<Self, ConfigErrors> {
        let Arguments { redis, listen, grpc, has_other_grpc, resp } = arguments;
        let addresses =
            [("/server/listen", listen), ("/grpc/listen", grpc), ("/resp/listen", resp)].into_iter();
        let mut settings: Vec<(&str, Json)> =
            addresses.filter_map(|(path, address)| Some((path, address?.to_string().into()))).collect();
        let checked = |source: &str, form: Form, text: String| {
            let key = source.rsplit('_').next().unwrap_or_default().to_lowercase();
            (form.check)(&text).map_err(|why| match why.as_str() {
                "" => ConfigErrors::one(source, format_args!("invalid {key}: must be {}", form.expected)),
                why => ConfigErrors::one(source, why),
            })
        };
        let redis = match redis {
            Some(url) => Some(checked("--redis", RedisOptions::FORM, url.to_owned())?),
            None => variable(URL_VARIABLE)?
                .map(|url| checked(URL_VARIABLE, RedisOptions::FORM, url))
                .transpose()?,
        };
        settings.extend(redis.map(|url| ("/store/redis", url.into())));
        settings.extend(variable("SLIDEGATE_KEY_SECRET")?.map(|secret| ("/store/key_secret", secret.into())));
        let source = "SLIDEGATE_RESP_PASSWORD";
        if let Some(password) = variable(source)? {
            settings.push(("/resp/password", checked(source, Password::FORM, password)?.into()));
        }
        settings.extend(traces(&variable)?);
        let tokens =
            variable(admin::TOKENS_VARIABLE)?.map(|value| admin::from_variable(&value)).transpose()?;
        Ok(Self { settings, tokens: tokens.unwrap_or_default(), has_other_grpc, has_other_limits: false })
    }

    #[cfg(test)]
    pub(super) fn of(settings: &[(&'static str, &str)]) -> Self {
        let settings = settings.iter().map(|(path, text)| (*path, Json::from(*text)));
        Self { settings: settings.collect(), ..Self::default() }
    }

    /// Puts these values into the checked JSON of a file.
    pub(super) fn apply(&self, file: &mut Json, schema: &Json) {
        for (path, value) in &self.settings {
            let (section, key) = path.rsplit_once('/').expect("a path has a section");
            // Only an address or a URL adds a section; the others need an existing one.
            let creates = matches!(key, "redis" | "endpoint") || *path == "/resp/listen";
            if file.pointer(section).is_none() && creates {
                let parts: Vec<_> = section.split('/').skip(1).collect();
                let schema = parts.iter().fold(schema, |schema, part| &schema["properties"][part]);
                let parent = parts.iter().fold(&mut *file, |parent, part| &mut parent[part]);
                *parent = default_of(schema).unwrap_or_default();
            }
            if let Some(section) = file.pointer_mut(section) {
                section[key] = value.clone();
            }
        }
        if let Some(tokens) = file.pointer_mut("/admin/tokens").and_then(Json::as_array_mut) {
            tokens.extend(self.tokens.iter().cloned());
        }
    }
}

/// The standard variables of OpenTelemetry. `OTEL_EXPORTER_OTLP_HEADERS`,
/// `OTEL_EXPORTER_OTLP_COMPRESSION` and `OTEL_RESOURCE_ATTRIBUTES` are read by the exporter itself.
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
    if let Some(other) = variable(name)?.filter(|other| other != "http/protobuf" && !settings.is_empty()) {
        let message = format!(
            "invalid protocol `{}`: must be `http/protobuf`; give the collector's port for it, usually 4318",
            Shown(&other)
        );
        return Err(ConfigErrors::one(name, message));
    }
    let name = "OTEL_TRACES_SAMPLER_ARG";
    if let Some(text) = variable(name)? {
        let ratio = text.trim().parse().ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
        let invalid = || format!("invalid ratio `{}`: must be a number from 0 to 1", Shown(&text));
        let ratio = ratio.ok_or_else(|| ConfigErrors::one(name, invalid()))?;
        settings.push(("/observe/traces/sample_ratio", ratio.into()));
    }
    settings.extend(variable("OTEL_SERVICE_NAME")?.map(|name| ("/observe/traces/service_name", name.into())));
    Ok(settings)
}

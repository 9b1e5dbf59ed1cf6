//! `observe: traces:`, and the standard environment variables that say the same.
//!
//! The environment wins over the file, as it does elsewhere. Without an endpoint in either there are no traces.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue, Uri};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Secret;

use super::check::Section;
use super::values::{Parsed, Text, checked_text};
use super::yaml::Shown;
use super::{ConfigErrors, Findings};

/// The standard variables that are honoured; `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_COMPRESSION` and
/// `OTEL_RESOURCE_ATTRIBUTES` are read by the exporter itself.
pub(super) const VARIABLES: [&str; 6] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_SERVICE_NAME",
    "OTEL_TRACES_SAMPLER_ARG",
    "OTEL_SDK_DISABLED",
];

const DEFAULT_NAME: &str = "slidegate";
/// Longest name of a service, in bytes.
const MAX_NAME: usize = 255;
/// Most header fields that a collector is sent.
const MAX_HEADERS: usize = 16;
/// The path of traces after a collector's URL, as the OTLP standard has it.
const PATH: &str = "/v1/traces";

/// Where spans of decisions are sent, by OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "endpoint: http://127.0.0.1:4318"))]
pub(super) struct TracesSection {
    /// The collector's URL, `http` or `https`; `/v1/traces` is added.
    endpoint: Option<Parsed<Endpoint>>,
    /// Header fields that the collector expects, such as a key.
    #[serde(default)]
    #[schemars(extend("propertyNames" = {"format": "header-name"}))]
    headers: BTreeMap<String, Parsed<FieldValue>>,
    /// The share of decisions that have a span, of those whose caller sent no trace. The others follow their caller.
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    sample_ratio: Option<f64>,
    /// The service's name in traces, 1 to 255 bytes.
    #[schemars(extend("default" = "slidegate"))]
    service_name: Option<String>,
}

/// Where spans go, and which.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Traces {
    /// The whole URL.
    pub(crate) endpoint: String,
    /// What a collector wants to see beside them, such as a key.
    pub(crate) headers: BTreeMap<String, Secret<String>>,
    /// The share of decisions without a parent that have a span, from 0 to 1. Others do as their parent does.
    pub(crate) sample_ratio: f64,
    pub(crate) service_name: String,
}

/// What the environment says of traces.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct OutsideTraces {
    is_disabled: bool,
    endpoint: Option<String>,
    sample_ratio: Option<f64>,
    service_name: Option<String>,
}

impl OutsideTraces {
    /// Reads the environment by `variable`.
    pub(super) fn read(
        variable: impl Fn(&str) -> Result<Option<String>, ConfigErrors>,
    ) -> Result<Self, ConfigErrors> {
        let [all, traces, protocol, service_name, ratio, disabled] = VARIABLES;
        let is_disabled = variable(disabled)?.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if is_disabled {
            return Ok(Self { is_disabled, ..Self::default() });
        }
        let refused = |name: &str, message: String| ConfigErrors::one(name, None, &message);
        let url = |name: &'static str| {
            let Some(value) = variable(name)? else { return Ok(None) };
            let invalid = || refused(name, format!("invalid URL: must be {}", Endpoint::EXPECTED));
            endpoint(&value, name == traces).map(Some).ok_or_else(invalid)
        };
        let endpoint = url(traces)?.or(url(all)?);
        if let (Some(_), Some(other)) =
            (&endpoint, variable(protocol)?.filter(|protocol| protocol != "http/protobuf"))
        {
            let message = format!(
                "invalid protocol `{}`: must be `http/protobuf`; give the collector's port for it, usually 4318",
                Shown(&other)
            );
            return Err(refused(protocol, message));
        }
        let sample_ratio = match variable(ratio)? {
            Some(text) => {
                let read = text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
                let invalid = || format!("invalid ratio `{}`: must be a number from 0 to 1", Shown(&text));
                Some(read.ok_or_else(|| refused(ratio, invalid()))?)
            }
            None => None,
        };
        let service_name = variable(service_name)?;
        Ok(Self { is_disabled, endpoint, sample_ratio, service_name })
    }

    /// What the file says, with the environment's word before it.
    pub(super) fn over(&self, file: Option<TracesSection>) -> Option<Traces> {
        if self.is_disabled {
            return None;
        }
        let TracesSection { endpoint, headers, sample_ratio, service_name } = file.unwrap_or_default();
        let headers = headers.into_iter();
        Some(Traces {
            endpoint: self.endpoint.clone().or(endpoint.map(|endpoint| endpoint.0.0))?,
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), Secret::new(value.0.0)))
                .collect(),
            sample_ratio: self.sample_ratio.or(sample_ratio).unwrap_or(1.0),
            service_name: (self.service_name.clone().or(service_name))
                .unwrap_or_else(|| DEFAULT_NAME.to_owned()),
        })
    }
}

/// Reports what is wrong with the section as a whole.
pub(super) fn check(
    spans: &TracesSection,
    section: &Section<'_>,
    outside: &OutsideTraces,
    findings: &mut Findings,
) {
    if outside.endpoint.is_none() && !outside.is_disabled && !section.has("endpoint") {
        let message = format_args!("missing endpoint: write {}", Endpoint::EXPECTED);
        section.report("", message, findings);
    }
    section.report_many("headers", spans.headers.len(), MAX_HEADERS, findings);
    if spans.service_name.as_ref().is_some_and(|name| name.len() > MAX_NAME) {
        let message = format_args!("invalid service_name: must have at most {MAX_NAME} bytes");
        section.report("service_name", message, findings);
    }
}

/// The whole URL of traces, where `/v1/traces` is added unless the URL is whole already.
fn endpoint(url: &str, is_whole: bool) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
        return None;
    }
    let url = url.trim_end_matches('/');
    Some(if is_whole || url.ends_with(PATH) { url.to_owned() } else { format!("{url}{PATH}") })
}

/// The whole URL of traces.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint(String);

impl Text for Endpoint {
    const FORMAT: &'static str = "otlp-url";
    const IS_SECRET: bool = true;
    const EXPECTED: &'static str =
        "the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`";
    const PATTERN: &'static str = "^https?://";

    fn parse(url: &str) -> Result<Self, String> {
        if url.contains('@') {
            // Not repeated: a password may stand before the `@`.
            return Err(
                "contains a name or password; put what the collector expects under `headers`".to_owned()
            );
        }
        let invalid = || format!("must be {}, not `{}`", Self::EXPECTED, Shown(url));
        endpoint(url, false).map(Self).ok_or_else(invalid)
    }
}

checked_text! {
    /// The name of a header field.
    Field, "header-name", "the name of a header field, for example `authorization`", "",
        |text| text.parse::<HeaderName>().is_ok();
}

/// The value of a header field.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FieldValue(String);

impl Text for FieldValue {
    const FORMAT: &'static str = "header-value";
    const EXPECTED: &'static str = "the text of a header field";
    const IS_SECRET: bool = true;

    fn parse(text: &str) -> Result<Self, String> {
        HeaderValue::from_str(text).map(|_| Self(text.to_owned())).map_err(|_| String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::error;
    use crate::config::{Config, Outside};

    const POLICIES: &str = "\npolicies: [{name: p, quota: 1/1s}]";

    fn outside(variables: &[(&str, &str)]) -> Result<OutsideTraces, ConfigErrors> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        OutsideTraces::read(|name| Ok(value(name).map(|(_, value)| (*value).to_owned())))
    }

    fn read(text: &str, variables: &[(&str, &str)]) -> Option<Traces> {
        let outside = Outside { traces: outside(variables).unwrap(), ..Outside::default() };
        Config::parse_with(&format!("{text}{POLICIES}"), "f", &outside).unwrap().observe.traces
    }

    /// Spans that go nowhere, or somewhere else, are missed on the day that they are needed.
    #[test]
    fn every_setting_arrives_and_the_environment_comes_first() {
        assert_eq!(read("", &[]), None);
        let text = "observe: {traces: {endpoint: 'https://otlp.example/in/', sample_ratio: 0.25, service_name: edge, \
                    headers: {Api-Key: k}}}";
        let traces = read(text, &[]).unwrap();
        assert_eq!(
            (traces.endpoint.as_str(), traces.sample_ratio),
            ("https://otlp.example/in/v1/traces", 0.25)
        );
        assert_eq!(traces.service_name, "edge");
        assert_eq!(traces.headers["api-key"], Secret::new("k".into()));
        assert!(!format!("{traces:?}").contains("\"k\""), "{traces:?}");
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:4318"),
            ("OTEL_SERVICE_NAME", "other"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
        ];
        let alone = read("", &variables).unwrap();
        assert_eq!((alone.endpoint.as_str(), alone.sample_ratio), ("http://h:4318/v1/traces", 0.5));
        let both = read(text, &variables).unwrap();
        assert_eq!(
            (both.endpoint.as_str(), both.service_name.as_str()),
            ("http://h:4318/v1/traces", "other")
        );
        assert_eq!(both.headers.len(), 1);
        let beside = read("observe: {traces: {sample_ratio: 0}}", &variables[..1]).unwrap();
        assert_eq!((beside.sample_ratio, beside.service_name.as_str()), (0.0, "slidegate"));
        let whole = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://h/spans"), variables[0]];
        assert_eq!(read("", &whole).unwrap().endpoint, "http://h/spans");
        assert_eq!(read(text, &[("OTEL_SDK_DISABLED", "true")]), None);
    }

    /// What is wrong must be said at the start: a limiter is not looked at for its missing spans.
    #[test]
    fn each_wrong_setting_names_its_value_and_the_way_out() {
        for (settings, expected) in [
            (
                "endpoint: 'grpc://h:4317'",
                "slidegate.yaml:1: observe: traces: invalid endpoint: must be the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`, not `grpc://h:4317`",
            ),
            (
                "endpoint: 'h:4318'",
                "slidegate.yaml:1: observe: traces: invalid endpoint: must be the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`, not `h:4318`",
            ),
            (
                "sample_ratio: 0.1",
                "slidegate.yaml:1: observe: traces: missing endpoint: write the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`",
            ),
            (
                "endpoint: 'http://h', sample_ratio: 10",
                "slidegate.yaml:1: observe: traces: invalid sample_ratio `10`: must be a number from 0 to 1",
            ),
            (
                "endpoint: 'http://h', sample_ratio: some",
                "slidegate.yaml:1: observe: traces: invalid sample_ratio `some`: must be a number from 0 to 1",
            ),
            (
                "endpoint: 'http://u:secret@h'",
                "slidegate.yaml:1: observe: traces: invalid endpoint: contains a name or password; put what the collector expects under `headers`",
            ),
            (
                "endpoint: 'http://h', headers: {'a b': secret}",
                "slidegate.yaml:1: observe: traces: headers: invalid key `a b`: must be the name of a header field, for example `authorization`",
            ),
            (
                "endpiont: 'http://h'",
                "slidegate.yaml:1: observe: traces: unknown key `endpiont`: did you mean `endpoint`?",
            ),
        ] {
            assert_eq!(error(&format!("observe: {{traces: {{{settings}}}}}{POLICIES}")), expected);
        }
        for (variable, value, expected) in [
            (
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "collector",
                "OTEL_EXPORTER_OTLP_ENDPOINT: invalid URL: must be the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`",
            ),
            (
                "OTEL_TRACES_SAMPLER_ARG",
                "half",
                "OTEL_TRACES_SAMPLER_ARG: invalid ratio `half`: must be a number from 0 to 1",
            ),
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                "grpc",
                "OTEL_EXPORTER_OTLP_PROTOCOL: invalid protocol `grpc`: must be `http/protobuf`; give the collector's port for it, usually 4318",
            ),
        ] {
            let variables = [(variable, value), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://h")];
            assert_eq!(outside(&variables).unwrap_err().to_string(), expected);
        }
    }
}

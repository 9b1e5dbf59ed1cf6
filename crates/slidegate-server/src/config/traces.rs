//! `observe: traces:`, and the standard environment variables that say the same.
//!
//! The environment wins over the file, as it does elsewhere. Without an endpoint in either there are no traces.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue, Uri};
use slidegate::Secret;

use super::file::{Node, Shown, Value};
use super::section::{Section, text, wrong};
use super::{ConfigErrors, Findings};

pub(super) const KEYS: [&str; 4] = ["endpoint", "headers", "sample_ratio", "service_name"];
pub(super) const EXAMPLE: &str = "endpoint: http://127.0.0.1:4318";

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

const ENDPOINT: &str = "give the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`";
const RATIO: &str = "give a number from 0 to 1, for example `0.01` for one in a hundred";
const NAME: &str = "give 1 to 255 bytes, for example `service_name: slidegate`";
const DEFAULT_NAME: &str = "slidegate";
/// Longest name of a service, in bytes.
const MAX_NAME: usize = 255;
/// Most header fields that a collector is sent.
const MAX_HEADERS: usize = 16;
/// The path of traces behind a collector's URL, as the OTLP standard has it.
const PATH: &str = "/v1/traces";

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
            let is_whole = name == traces;
            endpoint(&value, is_whole)
                .map(Some)
                .ok_or_else(|| refused(name, format!("this is no URL for spans; {ENDPOINT}")))
        };
        let endpoint = url(traces)?.or(url(all)?);
        if let (Some(_), Some(other)) =
            (&endpoint, variable(protocol)?.filter(|protocol| protocol != "http/protobuf"))
        {
            let message = format!(
                "the protocol is `{}` and spans are sent as `http/protobuf`; write that, with the \
                 collector's port for it, which is 4318 as a rule",
                Shown(&other)
            );
            return Err(refused(protocol, message));
        }
        let sample_ratio = match variable(ratio)? {
            Some(text) => {
                let read = self::ratio(&text);
                Some(read.ok_or_else(|| refused(ratio, format!("the ratio is `{}`; {RATIO}", Shown(&text))))?)
            }
            None => None,
        };
        let service_name = variable(service_name)?;
        Ok(Self { is_disabled, endpoint, sample_ratio, service_name })
    }

    /// The traces that the environment alone asks for.
    pub(super) fn alone(&self) -> Option<Traces> {
        self.over(None)
    }

    /// What the file says, with the environment's word before it.
    fn over(&self, file: Option<Traces>) -> Option<Traces> {
        if self.is_disabled {
            return None;
        }
        let file = file.or_else(|| {
            Some(Traces {
                endpoint: self.endpoint.clone()?,
                headers: BTreeMap::new(),
                sample_ratio: 1.0,
                service_name: DEFAULT_NAME.to_owned(),
            })
        })?;
        Some(Traces {
            endpoint: self.endpoint.clone().unwrap_or(file.endpoint),
            sample_ratio: self.sample_ratio.unwrap_or(file.sample_ratio),
            service_name: self.service_name.clone().unwrap_or(file.service_name),
            headers: file.headers,
        })
    }
}

/// Reads the section, which may not be there.
pub(super) fn traces(
    section: Option<&Section<'_>>,
    outside: &OutsideTraces,
    findings: &mut Findings,
) -> Option<Traces> {
    let Some(section) = section else { return outside.alone() };
    if outside.endpoint.is_none() && !outside.is_disabled {
        section.expect("endpoint", ENDPOINT, findings);
    }
    let endpoint = section.read("endpoint", findings, |node| {
        let url = text("endpoint", node, ENDPOINT)?;
        if url.contains('@') {
            // Not repeated: what stands before it is a secret.
            return Err(
                "endpoint has a name or password in it; put what the collector wants to see under `headers`"
                    .to_owned(),
            );
        }
        self::endpoint(url, false).ok_or_else(|| wrong("endpoint", node, ENDPOINT))
    });
    let sample_ratio = section.read("sample_ratio", findings, |node| match &node.value {
        Value::Number(number) => ratio(number).ok_or_else(|| wrong("sample_ratio", node, RATIO)),
        _ => Err(wrong("sample_ratio", node, RATIO)),
    });
    let service_name = section.read("service_name", findings, |node| {
        let name = text("service_name", node, NAME)?;
        if name.len() > MAX_NAME { Err(wrong("service_name", node, NAME)) } else { Ok(name.to_owned()) }
    });
    let headers = section.get("headers").map(|node| headers(node, section, findings)).unwrap_or_default();
    let file = endpoint.map(|endpoint| Traces {
        endpoint,
        headers: headers.clone(),
        sample_ratio: sample_ratio.unwrap_or(1.0),
        service_name: service_name.clone().unwrap_or_else(|| DEFAULT_NAME.to_owned()),
    });
    let traces = outside.over(file)?;
    // What the file says beside an endpoint of the environment counts as well.
    Some(Traces {
        headers,
        sample_ratio: outside.sample_ratio.or(sample_ratio).unwrap_or(traces.sample_ratio),
        service_name: outside.service_name.clone().or(service_name).unwrap_or(traces.service_name),
        ..traces
    })
}

fn headers(node: &Node, section: &Section<'_>, findings: &mut Findings) -> BTreeMap<String, Secret<String>> {
    const WAY: &str = "write for example `headers: {authorization: Bearer ...}`";
    let entries = node.entries().unwrap_or_default();
    if node.entries().is_none() || entries.len() > MAX_HEADERS {
        let message = format!("headers is {node}; {WAY}, at most {MAX_HEADERS}");
        section.find(node.line, message, findings);
    }
    let mut headers = BTreeMap::new();
    for entry in entries.iter().take(MAX_HEADERS) {
        let value = entry.value.scalar().filter(|value| HeaderValue::from_str(value).is_ok());
        match value {
            Some(value) if entry.key.parse::<HeaderName>().is_ok() => {
                headers.insert(entry.key.to_ascii_lowercase(), Secret::new(value.to_owned()));
            }
            // The value may be a key, and is not repeated.
            _ => section.find(
                entry.line,
                format_args!("headers: `{}` is no header field with a text; {WAY}", Shown(&entry.key)),
                findings,
            ),
        }
    }
    headers
}

/// The whole URL of traces; as it is, if that is what it is said to be.
fn endpoint(url: &str, is_whole: bool) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
        return None;
    }
    let url = url.trim_end_matches('/');
    Some(if is_whole || url.ends_with(PATH) { url.to_owned() } else { format!("{url}{PATH}") })
}

fn ratio(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))
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
        let url = "give the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`";
        let ratio = "give a number from 0 to 1, for example `0.01` for one in a hundred";
        for (settings, expected) in [
            ("endpoint: 'grpc://h:4317'", format!("endpoint is `grpc://h:4317`; {url}")),
            ("endpoint: 'h:4318'", format!("endpoint is `h:4318`; {url}")),
            ("sample_ratio: 0.1", format!("endpoint is missing; {url}")),
            ("endpoint: 'http://h', sample_ratio: 10", format!("sample_ratio is 10; {ratio}")),
            ("endpoint: 'http://h', sample_ratio: some", format!("sample_ratio is `some`; {ratio}")),
            (
                "endpoint: 'http://u:secret@h'",
                "endpoint has a name or password in it; put what the collector wants to see under `headers`".into(),
            ),
            (
                "endpoint: 'http://h', headers: {'a b': secret}",
                "headers: `a b` is no header field with a text; write for example `headers: {authorization: Bearer ...}`"
                    .into(),
            ),
            ("endpiont: 'http://h'", "unknown key `endpiont`; did you mean `endpoint`?".into()),
        ] {
            assert_eq!(
                error(&format!("observe: {{traces: {{{settings}}}}}{POLICIES}")),
                format!("slidegate.yaml:1: traces: {expected}"),
                "{settings}"
            );
        }
        for (variable, value, expected) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector", format!("this is no URL for spans; {url}")),
            ("OTEL_TRACES_SAMPLER_ARG", "half", format!("the ratio is `half`; {ratio}")),
            (
                "OTEL_EXPORTER_OTLP_PROTOCOL",
                "grpc",
                "the protocol is `grpc` and spans are sent as `http/protobuf`; write that, with the collector's port for it, \
                 which is 4318 as a rule"
                    .into(),
            ),
        ] {
            let variables = [(variable, value), ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://h")];
            assert_eq!(
                outside(&variables).unwrap_err().to_string(),
                format!("{variable}: {expected}"),
                "{variable}"
            );
        }
    }
}

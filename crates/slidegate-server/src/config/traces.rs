//! The section `observe.traces`: where spans of decisions are sent.
//!
//! The standard variables of OpenTelemetry take precedence, see `environment.rs`.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue, Uri};
use lined_config::{Form, Section, only_if};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::Secret;
use slidegate_config::values::{Parsed, Text, form_of};

use crate::http_client::origin;

/// The path of traces below a collector's URL, as OTLP defines it.
const PATH: &str = "/v1/traces";

/// Where spans of decisions are sent, by OTLP over HTTP.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "endpoint: http://127.0.0.1:4318"))]
pub(crate) struct Traces {
    /// `http` or `https`; `/v1/traces` is added. Logs and the status do not show another path. Default: required.
    #[serde(default)]
    #[schemars(extend("format" = "otlp-url", "default" = null))]
    pub(crate) endpoint: String,
    /// Header fields for the collector, at most 16.
    #[serde(default)]
    #[schemars(extend("x-example" = "{authorization: Bearer ...}", "propertyNames" = {"format": "header-name"}, "maxProperties" = 16))]
    pub(crate) headers: BTreeMap<String, Parsed<HeaderText>>,
    /// The share of decisions with a span, if the caller sent no trace context. With one, the caller's sampling
    /// decision is used.
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    pub(crate) sample_ratio: f64,
    /// The service name in traces, 1 to 255 bytes.
    #[schemars(length(max = 255), extend("default" = "slidegate"))]
    pub(crate) service_name: String,
}

impl Traces {
    /// The endpoint for messages. A path other than the standard one is not shown, because it may hold
    /// a secret.
    pub(crate) fn shown(&self) -> String {
        let origin = origin(&self.endpoint);
        if self.endpoint == format!("{origin}{PATH}") { self.endpoint.clone() } else { origin }
    }

    /// Reports a missing endpoint.
    pub(super) fn check(&self, section: &Section<'_>) {
        if self.endpoint.is_empty() && !section.has("endpoint") {
            section.report("", format_args!("missing endpoint: must be {}", ENDPOINT.expected));
        }
    }
}

/// A URL with the scheme `http` or `https` and a host.
pub(super) fn http_url(url: &str) -> Option<Uri> {
    let uri: Uri = url.parse().ok()?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    (is_http && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
}

/// The full URL of traces. `/v1/traces` is added unless the URL is complete.
pub(super) fn endpoint(url: &str, is_whole: bool) -> Option<String> {
    http_url(url).filter(|uri| uri.query().is_none())?;
    let url = url.trim_end_matches('/');
    Some(if is_whole || url.ends_with(PATH) { url.to_owned() } else { format!("{url}{PATH}") })
}

/// The URL of a collector. The text to keep is the full URL of traces.
pub(super) const ENDPOINT: Form = Form::new(
    "otlp-url",
    "the collector's URL for OTLP over HTTP, for example `http://127.0.0.1:4318`",
    |url, _| {
        if url.contains('@') {
            // The URL is not shown: a password may precede the `@`.
            return Err(
                "contains a name or password; put what the collector expects under `headers`".to_owned()
            );
        }
        endpoint(url, false).ok_or_else(String::new)
    },
)
.pattern("^https?://")
.secret();

/// The name of a header field.
pub(super) const FIELD: Form =
    Form::new("header-name", "the name of a header field, for example `authorization`", |text, _| {
        only_if(text.parse::<HeaderName>().is_ok(), text)
    });

/// The text of a header field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeaderText(pub(crate) Secret<String>);

impl Text for HeaderText {
    const FORM: Form = form_of::<Self>("header-value", "the text of a header field").secret();

    fn parse(text: &str) -> Result<Self, String> {
        HeaderValue::from_str(text).map(|_| Self(Secret::new(text.to_owned()))).map_err(|_| String::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse_with;
    use crate::config::{Arguments, Outside};
    use lined_config::ConfigErrors;

    fn outside(variables: &[(&str, &str)]) -> Result<Outside, ConfigErrors> {
        let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let variable = |name: &str| Ok(value(name).map(|(_, value)| (*value).to_owned()));
        Outside::read_by(&Arguments::default(), variable)
    }

    fn read(text: &str, variables: &[(&str, &str)]) -> Option<Traces> {
        let outside = outside(variables).unwrap();
        parse_with(text, &outside).observe.traces
    }

    /// Spans that go nowhere are missed on the day they are needed.
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
        assert_eq!(traces.headers["Api-Key"].0.0, Secret::new("k".into()));
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
}

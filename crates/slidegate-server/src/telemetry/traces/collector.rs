//! The collector: one request of OTLP over HTTP, and what its response means.
//!
//! <https://opentelemetry.io/docs/specs/otlp/#otlphttp>

use std::borrow::Cow;
use std::env;
use std::io;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, header};
use flate2::Compression;
use flate2::write::GzEncoder;
use percent_encoding::percent_decode_str;
use prost::Message as _;

use ureq::SendBody;

use super::otlp::{Batch, Envelope, RequestReader};
use crate::{config, http_client};

/// Timeout of a request: the default of the OpenTelemetry specification.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes read of a response.
const MAX_ANSWER: u64 = 64 * 1024;
/// Maximum characters of an error message that are logged.
const MAX_MESSAGE: usize = 256;
const USER_AGENT: &str = concat!("slidegate/", env!("CARGO_PKG_VERSION"));

/// Where spans are sent.
#[derive(Debug)]
pub(super) struct Collector {
    agent: ureq::Agent,
    endpoint: String,
    headers: HeaderMap,
    is_compressed: bool,
    envelope: Envelope,
}

/// Spans that the collector did not accept.
#[derive(Debug)]
pub(super) struct Rejection {
    /// How many. `None`: all of them.
    pub(super) spans: Option<u64>,
    pub(super) message: String,
    pub(super) retry: Retry,
}

/// Whether, and when, the same request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    No,
    /// After a wait that grows.
    Later,
    /// After this time, as the collector asks for.
    After(Duration),
}

/// `opentelemetry/proto/collector/trace/v1/trace_service.proto`.
#[derive(Clone, PartialEq, prost::Message)]
struct ExportTraceServiceResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<ExportTracePartialSuccess>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExportTracePartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_spans: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

impl Collector {
    /// The standard variables of OpenTelemetry for header fields, compression and resource
    /// attributes are read here.
    ///
    /// # Errors
    /// The collector uses TLS and the system trusts no certificate authority.
    pub(super) fn new(settings: &config::Traces) -> Result<Self, io::Error> {
        let by_user = settings.headers.iter().map(|(name, value)| (name.as_str(), value.expose().as_str()));
        let by_system = variable("HEADERS").unwrap_or_default();
        let by_system: Vec<_> = pairs(&by_system).map(|(name, value)| (name, decoded(value))).collect();
        let fields = by_user.chain(by_system.iter().map(|(name, value)| (*name, &**value)));
        let mut headers = HeaderMap::new();
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        for (name, value) in fields {
            // The configuration has only valid ones.
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), value.parse()) {
                headers.insert(name, value);
            }
        }
        let is_compressed = variable("COMPRESSION").is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        if is_compressed {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        let agent = http_client::agent(&settings.endpoint, ANSWER_TIMEOUT, None)?;
        let endpoint = settings.endpoint.clone();
        Ok(Self { agent, endpoint, headers, is_compressed, envelope: envelope(&settings.service_name) })
    }

    /// Sends these spans, and waits for the response.
    pub(super) fn send(&self, batches: &[Batch]) -> Result<(), Rejection> {
        let reader = RequestReader::new(&self.envelope, batches);
        if self.is_compressed {
            let body = compressed(reader);
            return self.post(body.len(), SendBody::from_reader(&mut body.as_slice()));
        }
        let (len, mut reader) = (reader.len(), reader);
        self.post(len, SendBody::from_reader(&mut reader))
    }

    fn post(&self, length: usize, body: SendBody<'_>) -> Result<(), Rejection> {
        let mut request = Request::post(&self.endpoint).header(header::CONTENT_LENGTH, length);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
        }
        let request = request.body(body).map_err(|error| Rejection::of(&error, Retry::No))?;
        let answer = self.agent.run(request).map_err(|error| Rejection::of(&error, Retry::Later))?;
        let (head, mut body) = answer.into_parts();
        if !head.status.is_success() {
            let retry = match head.status.as_u16() {
                429 | 502 | 503 | 504 => retry_after(&head.headers).map_or(Retry::Later, Retry::After),
                _ => Retry::No,
            };
            return Err(Rejection::of(&format_args!("the collector responded with {}", head.status), retry));
        }
        // It has the spans, whatever it says about them.
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec().unwrap_or_default();
        let response = ExportTraceServiceResponse::decode(body.as_slice()).unwrap_or_default();
        let rejected = response.partial_success.filter(|partial| partial.rejected_spans > 0);
        rejected.map_or(Ok(()), |partial| {
            let message = format!("the collector rejected spans: {}", partial.error_message);
            let spans = Some(partial.rejected_spans.cast_unsigned());
            Err(Rejection { spans, ..Rejection::of(&message, Retry::No) })
        })
    }
}

impl Rejection {
    fn of(error: &dyn std::fmt::Display, retry: Retry) -> Self {
        Self { spans: None, message: error.to_string().chars().take(MAX_MESSAGE).collect(), retry }
    }
}

/// The resource of all spans: the attributes of the environment, and the service's own over them.
fn envelope(service_name: &str) -> Envelope {
    let version = env!("CARGO_PKG_VERSION");
    let own = [
        ("service.name", service_name),
        ("service.version", version),
        ("telemetry.sdk.name", "slidegate"),
        ("telemetry.sdk.language", "rust"),
        ("telemetry.sdk.version", version),
    ];
    let by_system = env::var("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let by_system = pairs(&by_system).filter(|(key, _)| own.iter().all(|(known, _)| known != key));
    Envelope::new("slidegate", own.into_iter().chain(by_system))
}

/// `OTEL_EXPORTER_OTLP_TRACES_NAME`, or else `OTEL_EXPORTER_OTLP_NAME`.
fn variable(name: &str) -> Option<String> {
    let names = [format!("OTEL_EXPORTER_OTLP_TRACES_{name}"), format!("OTEL_EXPORTER_OTLP_{name}")];
    names.iter().find_map(|name| env::var(name).ok().filter(|value| !value.is_empty()))
}

/// Pairs of a text such as `a=1,b=2`.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.trim(), value.trim())).filter(|(key, _)| !key.is_empty())
}

fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8().unwrap_or(Cow::Borrowed(text))
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn compressed(mut body: RequestReader<'_>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    io::copy(&mut body, &mut encoder).expect("it is in memory");
    encoder.finish().expect("it is in memory")
}

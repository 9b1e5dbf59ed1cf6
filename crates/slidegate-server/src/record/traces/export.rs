//! Span export: batches of the SDK, sent by OTLP over HTTP. Bounds the spans that wait and counts those sent,
//! failed and dropped.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use axum::http::Request;
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Response};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};
use prost::Message as _;
use schemars::JsonSchema;
use serde::Serialize;

use crate::http_client::without_url;
use crate::{config, http_client};

/// Timeout of a request with its retries: the OpenTelemetry default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum spans that wait or are being sent: about 13 MB.
pub(super) const MAX_WAITING: u64 = 8192;
/// Maximum spans per request: about 400 kB, below the 1 MB limit of most proxies.
const MAX_SENT: usize = 1024;
/// Maximum delay of a span for batching.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum bytes read of a response.
const MAX_ANSWER: u64 = 64 * 1024;
/// Maximum logged characters of an error message.
const MAX_MESSAGE: usize = 256;

/// Counts of spans by outcome.
#[derive(Debug, Default)]
pub(super) struct ExportCounters {
    waiting: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    /// Spans of the last request that the collector rejected.
    rejected: AtomicU64,
    /// Why the last request failed. Empty if it succeeded.
    last_error: Mutex<String>,
}

/// A snapshot of the counters of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Spans {
    pub(crate) sent: u64,
    /// The collector rejected them or did not respond.
    pub(crate) failed: u64,
    /// The queue was full, or the service ended.
    pub(crate) dropped: u64,
}

impl ExportCounters {
    pub(super) fn spans(&self) -> Spans {
        let Self { sent, failed, dropped, .. } = self;
        Spans { sent: sent.load(Relaxed), failed: failed.load(Relaxed), dropped: dropped.load(Relaxed) }
    }

    pub(super) fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// At shutdown: counts waiting spans as dropped.
    pub(super) fn drop_waiting(&self) {
        self.dropped.fetch_add(self.waiting.load(Relaxed), Relaxed);
    }

    fn set_error(&self, error: &str) {
        let error = error.chars().take(MAX_MESSAGE).collect();
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

/// A tracer's processor: a queue and a thread that sends it in batches. The exporter reads the standard
/// OpenTelemetry variables for header fields and compression.
///
/// # Errors
/// The collector uses TLS and the system trusts no certificate authority, or a standard variable is
/// invalid.
pub(super) fn processor(
    settings: &config::Traces,
    counters: &Arc<ExportCounters>,
) -> Result<impl SpanProcessor + use<>, io::Error> {
    let agent = http_client::agent(&settings.endpoint, TIMEOUT, None)?;
    let headers = settings.headers.iter().map(|(name, value)| (name.clone(), value.0.0.expose().clone()));
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(CollectorClient { agent, counters: Arc::clone(counters) })
        .with_protocol(Protocol::HttpBinary)
        .with_endpoint(settings.endpoint.as_str())
        .with_timeout(TIMEOUT)
        .with_headers(headers.collect())
        .build()
        .map_err(io::Error::other)?;
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(usize::try_from(MAX_WAITING).expect("a small number"))
        .with_max_export_batch_size(MAX_SENT)
        .with_scheduled_delay(EVERY);
    let exporter = CountedExporter { exporter, counters: Arc::clone(counters) };
    let batches = BatchSpanProcessor::new(exporter, config.build());
    Ok(BoundedProcessor { batches, counters: Arc::clone(counters) })
}

/// The resource of all spans. The service's own attributes override those of the environment.
pub(super) fn resource(service_name: &str) -> Resource {
    Resource::builder()
        .with_service_name(service_name.to_owned())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Drops and counts spans before the SDK's queue would, because the SDK does not report drops.
#[derive(Debug)]
struct BoundedProcessor {
    batches: BatchSpanProcessor,
    counters: Arc<ExportCounters>,
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let ExportCounters { waiting, dropped, .. } = &*self.counters;
        if waiting.fetch_add(1, Relaxed) < MAX_WAITING {
            self.batches.on_end(span);
        } else {
            waiting.fetch_sub(1, Relaxed);
            dropped.fetch_add(1, Relaxed);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Counts spans that were sent or rejected.
#[derive(Debug)]
struct CountedExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    counters: Arc<ExportCounters>,
}

impl SpanExporter for CountedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let ExportCounters { waiting, sent, failed, rejected, .. } = &*self.counters;
        let spans = batch.len() as u64;
        let result = self.exporter.export(batch).await;
        let not_accepted = if result.is_ok() { rejected.swap(0, Relaxed).min(spans) } else { spans };
        sent.fetch_add(spans - not_accepted, Relaxed);
        failed.fetch_add(not_accepted, Relaxed);
        waiting.fetch_sub(spans, Relaxed);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends requests on the SDK's thread and keeps the last error.
#[derive(Debug)]
struct CollectorClient {
    agent: ureq::Agent,
    counters: Arc<ExportCounters>,
}

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let url = head.uri.to_string();
        let answer = self.agent.run(Request::from_parts(head, &body[..]));
        let (head, mut body) =
            answer.inspect_err(|error| self.counters.set_error(&without_url(error, &url)))?.into_parts();
        // The collector accepted the request, whatever the body says.
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec().unwrap_or_default();
        let response = ExportTraceServiceResponse::decode(body.as_slice()).unwrap_or_default();
        if !head.status.is_success() {
            self.counters.set_error(&format!("the collector responded with {}", head.status));
        } else if let Some(partial) = response.partial_success.filter(|partial| partial.rejected_spans > 0) {
            self.counters.rejected.store(partial.rejected_spans.cast_unsigned(), Relaxed);
            self.counters.set_error(&format!("the collector rejected spans: {}", partial.error_message));
        } else {
            self.counters.set_error("");
        }
        Ok(Response::from_parts(head, body.into()))
    }
}

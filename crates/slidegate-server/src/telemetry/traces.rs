//! Traces: one span per decision, exported as OTLP over HTTP.
//!
//! A slow or unreachable collector never delays decisions: a separate thread exports spans from a
//! bounded queue. Spans are dropped if the queue is full or the export fails; both are counted and
//! logged.

use std::io;
use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Relaxed},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use axum::http::HeaderMap;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, TraceContextExt, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider, Span, SpanData,
    SpanProcessor,
};
use slidegate::{Decisions, PolicyDecision, Timestamp, Verb, millis_ceil};

use crate::app::explanation;
use crate::caller::{Caller, Protocol};
use crate::log_limit::LogLimit;
use crate::{config, http_client};

/// Maximum spans in the queue or in flight: about 4 MB.
const MAX_WAITING: usize = 4096;
/// Maximum spans per export.
const BATCH: usize = 512;
/// Maximum delay of a span for batching.
const EVERY: Duration = Duration::from_secs(1);
/// Timeout of an export: the default of the OpenTelemetry specification.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the last export at shutdown.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Maximum bytes read of a collector's response.
const MAX_ANSWER: u64 = 64 * 1024;
/// Maximum length of a propagated `tracestate`: the minimum that W3C Trace Context requires.
const MAX_STATE: usize = 512;
/// Maximum shadow denials listed in a span.
const MAX_SHADOWS: usize = 8;
/// Minimum interval between log lines about lost spans.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Creates and exports spans.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    /// The context of spans without a parent.
    root: Context,
    endpoint: String,
    tally: Arc<Tally>,
    log_limit: LogLimit,
    /// Lost spans already logged.
    reported: AtomicU64,
}

/// Counters of spans.
#[derive(Debug, Default)]
struct Tally {
    /// In the queue or in flight.
    waiting: AtomicUsize,
    sent: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    last_error: Mutex<String>,
}

impl Tally {
    fn last_error(&self) -> MutexGuard<'_, String> {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A snapshot of the counters of spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spans {
    pub(crate) sent: u64,
    /// The export failed.
    pub(crate) failed: u64,
    /// The queue was full.
    pub(crate) dropped: u64,
}

impl Traces {
    /// # Errors
    /// One line: the collector uses TLS and the system trusts no certificate authority.
    pub(super) fn start(settings: &config::Traces) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("cannot export spans to {}: {error}; see observe: traces", settings.endpoint)
        };
        let tally = Arc::new(Tally::default());
        let headers = settings.headers.iter();
        let headers = headers.map(|(name, value)| (name.clone(), value.expose().clone()));
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(
                Client::new(&settings.endpoint, Arc::clone(&tally)).map_err(|error| failed(&error))?,
            )
            .with_endpoint(&settings.endpoint)
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_timeout(ANSWER_TIMEOUT)
            .with_headers(headers.collect())
            .build()
            .map_err(|error| failed(&error))?;
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_WAITING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(EVERY)
            .build();
        let exporter = Counted { exporter, tally: Arc::clone(&tally) };
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(batch).build();
        let ratio = Sampler::TraceIdRatioBased(settings.sample_ratio);
        let resource = Resource::builder()
            .with_service_name(settings.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_span_processor(Bounded { batches, tally: Arc::clone(&tally) })
            .with_resource(resource)
            .build();
        let tracer = provider.tracer("slidegate");
        let (root, endpoint) = (Context::new(), settings.endpoint.clone());
        Ok(Self {
            provider,
            tracer,
            root,
            endpoint,
            tally,
            log_limit: LogLimit::every(LOGGED_EVERY),
            reported: AtomicU64::new(0),
        })
    }

    /// The caller in the trace headers of a request.
    pub(super) fn caller(protocol: Protocol, headers: &HeaderMap) -> Caller {
        let context = TraceContextPropagator::new()
            .extract_with_context(&Context::new(), &Fields(HeaderExtractor(headers)));
        Caller { protocol, parent: Some(context).filter(|context| context.span().span_context().is_valid()) }
    }

    /// Creates a span from `start` to `end`, if its parent or the ratio samples it. `shown` redacts
    /// a key.
    pub(super) fn record(
        &self,
        caller: &Caller,
        verb: Verb,
        (start, end): (Timestamp, Timestamp),
        decisions: &Decisions<'_>,
        shown: impl FnOnce(&PolicyDecision<'_>) -> String,
    ) {
        let name = match verb {
            Verb::Check => "slidegate.check",
            Verb::Peek => "slidegate.peek",
            Verb::Refund => "slidegate.refund",
            Verb::Penalize => "slidegate.penalize",
        };
        let builder =
            SpanBuilder::from_name(name).with_kind(SpanKind::Server).with_start_time(system_time(start));
        let parent = caller.parent.as_ref().unwrap_or(&self.root);
        let mut span = self.tracer.build_with_context(builder, parent);
        if !span.is_recording() {
            return;
        }
        let verdict = if decisions.is_denied() { "deny" } else { "allow" };
        span.set_attribute(KeyValue::new("slidegate.door", caller.protocol.name()));
        span.set_attribute(KeyValue::new("slidegate.verb", super::verb_name(verb)));
        span.set_attribute(KeyValue::new("slidegate.verdict", verdict));
        // If all policies are in shadow, the strictest of them.
        let shadows = || decisions.iter().filter(|one| !one.policy().is_enforced());
        let stricter = |a: PolicyDecision<'_>, b: PolicyDecision<'_>| b.is_stricter_than(&a);
        let binding =
            decisions.strictest().or_else(|| shadows().reduce(|a, b| if stricter(a, b) { b } else { a }));
        if let Some(one) = binding {
            describe(&mut span, &one, shown(&one));
        }
        let denied = shadows().filter(|one| one.is_denied()).take(MAX_SHADOWS);
        let denied: Vec<StringValue> = denied.map(|one| one.policy().name().to_owned().into()).collect();
        if !denied.is_empty() {
            let names = Value::Array(Array::String(denied));
            span.set_attribute(KeyValue::new("slidegate.shadow_denied_by", names));
        }
        span.end_with_timestamp(system_time(end));
    }

    /// The counters of spans.
    pub(crate) fn spans(&self) -> Spans {
        let Tally { sent, failed, dropped, .. } = &*self.tally;
        Spans { sent: sent.load(Relaxed), failed: failed.load(Relaxed), dropped: dropped.load(Relaxed) }
    }

    /// The full URL of the collector.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Logs the spans lost since the last report.
    pub(super) fn report_losses(&self) {
        let Spans { failed, dropped, .. } = self.spans();
        let lost = (failed + dropped).saturating_sub(self.reported.load(Relaxed));
        if lost == 0 || self.log_limit.admit_key(b"").is_none() {
            return;
        }
        self.reported.store(failed + dropped, Relaxed);
        let error = self.tally.last_error().clone();
        tracing::warn!(
            lost,
            failed,
            dropped,
            endpoint = self.endpoint,
            error,
            "spans were lost: the collector rejects them or is too slow; decisions are not delayed"
        );
    }

    /// Exports the remaining spans, within the shutdown timeout.
    pub(super) fn end(&self) {
        // Spans that were not exported are counted.
        let _ = self.provider.shutdown_with_timeout(LAST_SPANS);
    }
}

fn describe(span: &mut Span, one: &PolicyDecision<'_>, key: String) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let policy = one.policy();
    span.set_attribute(KeyValue::new("slidegate.policy", policy.name().to_owned()));
    span.set_attribute(KeyValue::new("slidegate.key", key));
    span.set_attribute(KeyValue::new("slidegate.limit", number(one.limit())));
    span.set_attribute(KeyValue::new("slidegate.window_ms", number(millis_ceil(one.quota().window()))));
    span.set_attribute(KeyValue::new("slidegate.remaining", number(one.remaining())));
    span.set_attribute(KeyValue::new("slidegate.cost", number(one.asked())));
    span.set_attribute(KeyValue::new("slidegate.source", one.source().name()));
    span.set_attribute(KeyValue::new("slidegate.shadow", !policy.is_enforced()));
    if let Some(reason) = one.reason() {
        span.set_attribute(KeyValue::new("slidegate.reason", reason.name()));
    }
    if let Some(block) = one.block() {
        if let Some(end) = block.ends_at() {
            span.set_attribute(KeyValue::new("slidegate.blocked_until", explanation::time(end)));
        }
        if let Some(name) = block.blocked_by() {
            span.set_attribute(KeyValue::new("slidegate.blocked_by", name.to_owned()));
        }
    }
    if let Some(failure) = one.store_failure() {
        span.set_attribute(KeyValue::new("slidegate.store_failure", failure.to_string()));
    }
    if let (true, Some(wait)) = (one.is_denied(), one.retry_after()) {
        span.set_attribute(KeyValue::new("slidegate.retry_after_ms", number(millis_ceil(wait))));
    }
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_micros())
}

/// The header fields of a request, without a `tracestate` over the maximum length.
struct Fields<'h>(HeaderExtractor<'h>);

impl Extractor for Fields<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?;
        (key != "tracestate" || value.len() <= MAX_STATE).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys()
    }
}

/// Bounds the queue. The batch processor has its own bound, but does not report what it drops.
#[derive(Debug)]
struct Bounded {
    batches: BatchSpanProcessor,
    tally: Arc<Tally>,
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.tally.waiting.fetch_add(1, AcqRel) < MAX_WAITING {
            self.batches.on_end(span);
        } else {
            self.tally.waiting.fetch_sub(1, AcqRel);
            self.tally.dropped.fetch_add(1, Relaxed);
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

/// Counts exported and failed spans.
#[derive(Debug)]
struct Counted {
    exporter: opentelemetry_otlp::SpanExporter,
    tally: Arc<Tally>,
}

impl opentelemetry_sdk::trace::SpanExporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        self.tally.last_error().clear();
        let outcome = self.exporter.export(batch).await;
        let counter = match &outcome {
            Ok(()) => &self.tally.sent,
            Err(error) => {
                let mut last = self.tally.last_error();
                if last.is_empty() {
                    *last = error.to_string();
                }
                drop(last);
                &self.tally.failed
            }
        };
        counter.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Relaxed);
        self.tally.waiting.fetch_sub(spans, AcqRel);
        outcome
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// The HTTP client of the exporter. It blocks, on the exporter's own thread.
#[derive(Debug)]
struct Client {
    agent: ureq::Agent,
    /// Receives the error, which the exporter does not return.
    tally: Arc<Tally>,
}

impl Client {
    fn new(endpoint: &str, tally: Arc<Tally>) -> Result<Self, io::Error> {
        Ok(Self { agent: http_client::agent(endpoint, ANSWER_TIMEOUT, None)?, tally })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.agent.run(request.map(|body| body.to_vec())).inspect_err(|error| {
            *self.tally.last_error() = error.to_string();
        })?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

//! Traces: one OpenTelemetry span per decision.
//!
//! A slow or unreachable collector never delays decisions: an SDK thread sends batches of spans. Spans that
//! do not fit its queue are dropped, counted and logged.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderName};
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, TraceContextExt as _, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use slidegate::{Decisions, PolicyDecision, clock::Timestamp, verb::Verb};
use slidegate_http::headers::millis_ceil;

use crate::caller::{Caller, Protocol};
use crate::config;
use crate::engine::explanation;
use crate::log_limit::LogLimit;
use crate::record::redaction::Redactor;
use crate::record::verb_name;

use export::ExportCounters;
pub(crate) use export::Spans;
use slidegate_config::policy::KeysShown;

mod export;

/// Maximum wait for the last spans at shutdown.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// Minimum interval between log lines about lost spans.
const LOGGED_EVERY: Duration = Duration::from_secs(10);
/// Maximum length of a propagated `tracestate`: the minimum that W3C Trace Context requires.
const MAX_STATE: usize = 512;
/// Maximum shadow denials listed in a span.
const MAX_SHADOWS: usize = 8;

/// Creates and exports spans.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    counters: Arc<ExportCounters>,
    endpoint: String,
    log_limit: LogLimit,
    /// Lost spans already logged.
    reported: AtomicU64,
}

/// A span's attributes, apart from those of the decisions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpanOf<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) verb: Verb,
    pub(crate) start: Timestamp,
}

impl Traces {
    /// # Errors
    /// One line: the collector uses TLS and the system trusts no certificate authority.
    pub(crate) fn start(settings: &config::Traces) -> Result<Self, String> {
        let counters = Arc::new(ExportCounters::default());
        let processor = export::processor(settings, &counters).map_err(|error| {
            format!("cannot export spans to {}: {error}; see observe: traces", settings.shown())
        })?;
        let root = Sampler::TraceIdRatioBased(settings.sample_ratio);
        let provider = SdkTracerProvider::builder()
            .with_sampler(Sampler::ParentBased(Box::new(root)))
            .with_resource(export::resource(&settings.service_name))
            .with_span_processor(processor)
            .build();
        Ok(Self {
            tracer: provider.tracer("slidegate"),
            provider,
            counters,
            endpoint: settings.shown(),
            log_limit: LogLimit::every(LOGGED_EVERY),
            reported: AtomicU64::new(0),
        })
    }

    /// The caller, from a request's trace headers.
    pub(crate) fn caller(protocol: Protocol, headers: &HeaderMap) -> Caller {
        let context = TraceContextPropagator::new().extract(&TraceHeaders(headers));
        Caller { protocol, parent: context.has_active_span().then_some(context) }
    }

    /// Creates a span that ends `now`, if its parent or the ratio samples it. Keys are redacted by
    /// `keys_shown`.
    pub(crate) fn record(
        &self,
        span: SpanOf<'_>,
        now: impl FnOnce() -> Timestamp,
        decisions: &Decisions<'_>,
        redactor: &Redactor,
        keys_shown: impl FnOnce(&PolicyDecision<'_>) -> KeysShown,
    ) {
        let SpanOf { caller, verb, start } = span;
        let name = match verb {
            Verb::Check => "slidegate.check",
            Verb::Peek => "slidegate.peek",
            Verb::Refund => "slidegate.refund",
            Verb::Penalize => "slidegate.penalize",
        };
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let builder = builder.with_start_time(system_time(start));
        let root = Context::new();
        let mut span = self.tracer.build_with_context(builder, caller.parent.as_ref().unwrap_or(&root));
        if span.is_recording() {
            span.set_attributes([
                KeyValue::new("slidegate.protocol", caller.protocol.name()),
                KeyValue::new("slidegate.verb", verb_name(verb)),
                KeyValue::new("slidegate.verdict", if decisions.is_denied() { "deny" } else { "allow" }),
            ]);
            if let Some(one) = binding(decisions) {
                let key = one.key().to_string();
                span.set_attributes(attributes(&one, redactor.show(&key, keys_shown(&one))));
            }
            let denied = shadows(decisions).filter(|one| one.decision().is_denied()).take(MAX_SHADOWS);
            let denied: Vec<StringValue> = denied.map(|one| one.policy().name().to_owned().into()).collect();
            if !denied.is_empty() {
                let names = Value::Array(Array::String(denied));
                span.set_attribute(KeyValue::new("slidegate.shadow_denied_by", names));
            }
            span.end_with_timestamp(system_time(now()));
        }
    }

    pub(crate) fn spans(&self) -> Spans {
        self.counters.spans()
    }

    /// The collector's URL, for display.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Logs the spans lost since the last report.
    pub(crate) fn report_losses(&self) {
        let Spans { failed, dropped, .. } = self.spans();
        let lost = (failed + dropped).saturating_sub(self.reported.load(Relaxed));
        if lost == 0 || self.log_limit.admit_key(b"").is_none() {
            return;
        }
        self.reported.store(failed + dropped, Relaxed);
        let error = self.counters.last_error();
        tracing::warn!(
            lost,
            failed,
            dropped,
            endpoint = self.endpoint,
            error,
            "spans were lost: the collector rejects them or is too slow; decisions are not delayed"
        );
    }

    /// Exports the remaining spans, within the shutdown timeout. Unsent spans are counted as dropped.
    pub(crate) fn end(&self) {
        if self.provider.shutdown_with_timeout(LAST_SPANS).is_err() {
            self.counters.drop_waiting();
        }
    }
}

/// The header fields of W3C Trace Context.
struct TraceHeaders<'h>(&'h HeaderMap);

impl Extractor for TraceHeaders<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.to_str().ok().filter(|text| text.len() <= MAX_STATE)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

/// The decision that a span describes: the strictest, or the strictest shadow policy's if all are in shadow.
fn binding<'d>(decisions: &'d Decisions<'_>) -> Option<PolicyDecision<'d>> {
    let stricter = |a: PolicyDecision<'d>, b: PolicyDecision<'d>| {
        if b.decision().is_stricter_than(a.decision()) { b } else { a }
    };
    decisions.strictest().or_else(|| shadows(decisions).reduce(stricter))
}

fn shadows<'d>(decisions: &'d Decisions<'_>) -> impl Iterator<Item = PolicyDecision<'d>> {
    decisions.iter().filter(|one| !one.policy().options().enforced)
}

/// The attributes of a decision; `key` is the redacted text.
fn attributes(one: &PolicyDecision<'_>, key: Cow<'_, str>) -> Vec<KeyValue> {
    let number = |name, number: u64| KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX));
    let mut all = vec![
        KeyValue::new("slidegate.policy", one.policy().name().to_owned()),
        KeyValue::new("slidegate.key", key.into_owned()),
        number("slidegate.limit", one.decision().limit()),
        number("slidegate.window_ms", millis_ceil(one.quota().window())),
        number("slidegate.remaining", one.decision().remaining()),
        number("slidegate.cost", one.asked().ceil()),
        KeyValue::new("slidegate.source", one.decision().source().name()),
        KeyValue::new("slidegate.shadow", !one.policy().options().enforced),
    ];
    all.extend(one.decision().reason().map(|reason| KeyValue::new("slidegate.reason", reason.name())));
    if let Some(block) = one.block() {
        let end = block.ends_at().map(explanation::time);
        all.extend(end.map(|end| KeyValue::new("slidegate.blocked_until", end)));
        let by = block.blocked_by().map(str::to_owned);
        all.extend(by.map(|name| KeyValue::new("slidegate.blocked_by", name)));
    }
    let failure = one.store_failure().map(ToString::to_string);
    all.extend(failure.map(|failure| KeyValue::new("slidegate.store_failure", failure)));
    if let (true, Some(wait)) = (one.decision().is_denied(), one.decision().retry_after()) {
        all.push(number("slidegate.retry_after_ms", millis_ceil(wait)));
    }
    all
}

fn system_time(at: Timestamp) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_micros())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use prost::Message as _;
    use slidegate::{Gate, Policy, PolicySet, Quota, Request};

    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn parent(traceparent: &str, tracestate: &str) -> Option<Context> {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", traceparent.parse().unwrap());
        headers.insert("tracestate", tracestate.parse().unwrap());
        Traces::caller(Protocol::Http, &headers).parent
    }

    /// A caller whose span is not recognized loses this service from its traces; long headers must not fill
    /// the queue's memory.
    #[test]
    fn a_caller_is_known_by_its_ids_its_flag_and_a_short_state() {
        let long = format!("a={}", "x".repeat(MAX_STATE));
        for (traceparent, tracestate, is_sampled, state) in [
            (VALID, "vendor=x", true, "vendor=x"),
            (&VALID.replace("-01", "-00"), "", false, ""),
            (&VALID.replace("00-", "01-"), "nonsense", true, ""),
            (VALID, &long, true, ""),
        ] {
            let context = parent(traceparent, tracestate).unwrap();
            let span = context.span();
            let span = span.span_context();
            assert_eq!(span.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
            assert_eq!(span.span_id().to_string(), "b7ad6b7169203331");
            let found = (span.is_sampled(), span.is_remote(), span.trace_state().header());
            assert_eq!(found, (is_sampled, true, state.to_owned()), "{traceparent} {tracestate}");
        }
        for invalid in
            ["", "00", &VALID.to_uppercase(), &VALID.replace("00-", "ff-"), &VALID.replace('-', "_")]
        {
            assert!(parent(invalid, "").is_none(), "{invalid}");
        }
        assert!(Traces::caller(Protocol::Http, &HeaderMap::new()).parent.is_none());
    }

    /// A collector that sends these responses, then accepts. Returns the number of spans in each request.
    fn collector(responses: Vec<Vec<u8>>) -> (String, Receiver<usize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            let mut responses = responses.into_iter();
            for stream in listener.incoming() {
                serve(&stream.unwrap(), &sender, &mut responses);
            }
        });
        (url, requests)
    }

    fn serve(mut stream: &TcpStream, sender: &Sender<usize>, responses: &mut impl Iterator<Item = Vec<u8>>) {
        let mut reader = BufReader::new(stream);
        loop {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            let field = |line: &str| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok();
            let mut body = vec![0; head.lines().find_map(field).unwrap()];
            reader.read_exact(&mut body).unwrap();
            assert!(body.len() < 1_000_000, "{}", body.len());
            let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
            let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
            // The test may already have stopped receiving.
            let _ = sender.send(scopes.map(|scope| scope.spans.len()).sum());
            stream.write_all(&responses.next().unwrap_or_else(|| response("200 OK", "", &[]))).unwrap();
        }
    }

    fn response(status: &str, more: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\n{more}content-length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    fn traces(endpoint: String) -> Traces {
        let (headers, service_name) = (BTreeMap::new(), "slidegate".into());
        Traces::start(&config::Traces { endpoint, headers, sample_ratio: 1.0, service_name }).unwrap()
    }

    fn record(traces: &Traces, spans: u64) {
        let policy = Policy::new("per-user", Quota::per_minute(10)).unwrap().with_scope(["user"]);
        let gate = Gate::new(PolicySet::new([policy]).unwrap());
        let request = Request::new().with("user", "alice");
        let caller = Protocol::Http.into();
        let (verb, start) = (Verb::Check, Timestamp::from_secs(1));
        let redactor = Redactor::new(None);
        for _ in 0..spans {
            let span = SpanOf { caller: &caller, verb, start };
            traces.record(span, || start, &gate.check(&request), &redactor, |_| KeysShown::Plain);
        }
    }

    fn counted(traces: &Traces, spans: u64) -> Spans {
        for _ in 0..6000 {
            let Spans { sent, failed, dropped } = traces.spans();
            if sent + failed + dropped == spans {
                return traces.spans();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{:?}", traces.spans());
    }

    /// No span may be lost or counted twice, from any number of threads, and the last ones are sent at the
    /// end.
    #[test]
    fn every_span_arrives_once() {
        let (url, requests) = collector(Vec::new());
        let traces = traces(url);
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| record(&traces, 1000))));
        });
        assert_eq!(counted(&traces, 4000), Spans { sent: 4000, failed: 0, dropped: 0 });
        record(&traces, 7);
        traces.end();
        assert_eq!(traces.spans(), Spans { sent: 4007, failed: 0, dropped: 0 });
        assert_eq!(requests.try_iter().sum::<usize>(), 4007);
    }

    /// A collector may accept later what it refuses now; it never accepts what it cannot parse.
    #[test]
    fn requests_are_repeated_if_and_only_if_that_may_help() {
        let busy = [
            response("503 Busy", "", &[]),
            response("429 Too many", "retry-after: 0\r\n", &[]),
            response("502 Bad gateway", "", &[]),
        ];
        let (url, requests) = collector(busy.to_vec());
        let once_busy = traces(url);
        record(&once_busy, 1);
        assert_eq!(counted(&once_busy, 1), Spans { sent: 1, failed: 0, dropped: 0 });
        assert_eq!((requests.try_iter().count(), once_busy.counters.last_error()), (4, String::new()));

        for (always, times, error) in [
            (response("503 Busy", "", &[]), 4, "the collector responded with 503 Service Unavailable"),
            (response("400 Bad", "", &[]), 1, "the collector responded with 400 Bad Request"),
        ] {
            let (url, requests) = collector(vec![always; 9]);
            let traces = traces(url);
            record(&traces, 1);
            assert_eq!(counted(&traces, 1), Spans { sent: 0, failed: 1, dropped: 0 });
            assert_eq!((requests.try_iter().count(), traces.counters.last_error().as_str()), (times, error));
        }
    }

    /// A collector may accept only some of the spans and say how many it rejected.
    #[test]
    fn spans_that_a_collector_rejects_are_not_counted_as_sent() {
        let partial_success =
            ExportTracePartialSuccess { rejected_spans: 2, error_message: "too old".into() };
        let body = ExportTraceServiceResponse { partial_success: Some(partial_success) }.encode_to_vec();
        let (url, _requests) = collector(vec![response("200 OK", "", &body)]);
        let traces = traces(url);
        record(&traces, 5);
        assert_eq!(counted(&traces, 5), Spans { sent: 3, failed: 2, dropped: 0 });
        assert_eq!(traces.counters.last_error(), "the collector rejected spans: too old");
    }
}

//! Traces: one span per decision, exported as OTLP over HTTP.
//!
//! The thread that decided encodes the span, into a batch of its own. A slow or unreachable
//! collector never delays decisions: a separate thread sends batches, and what there is no memory
//! for or is not accepted is lost, counted and logged.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::http::HeaderMap;
use opentelemetry::trace::{SpanId, TraceId};
use rand::RngExt as _;
use slidegate::{Decisions, PolicyDecision, Timestamp, Verb};

use crate::caller::{Caller, Protocol};
use crate::config::{self, KeysShown};
use crate::log_limit::LogLimit;
use crate::telemetry::redaction::Redactor;

use attributes::SpanContent;
use collector::Collector;
pub(crate) use exporter::Spans;
use exporter::{Exporter, OpenBatch};
use otlp::SpanHead;

mod attributes;
mod collector;
mod context;
mod exporter;
mod otlp;

/// Minimum interval between log lines about lost spans.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Creates and exports spans.
#[derive(Debug)]
pub(crate) struct Traces {
    sampler: RatioSampler,
    exporter: Exporter,
    endpoint: String,
    log_limit: LogLimit,
    /// Lost spans already logged.
    reported: AtomicU64,
}

/// What a span says, apart from the decisions.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanOf<'a> {
    pub(super) caller: &'a Caller,
    pub(super) verb: Verb,
    pub(super) start: Timestamp,
}

impl Traces {
    /// # Errors
    /// One line: the collector uses TLS and the system trusts no certificate authority.
    pub(super) fn start(settings: &config::Traces) -> Result<Self, String> {
        let collector = Collector::new(settings).map_err(|error| {
            format!("cannot export spans to {}: {error}; see observe: traces", settings.endpoint)
        })?;
        Ok(Self {
            sampler: RatioSampler::new(settings.sample_ratio),
            exporter: Exporter::start(collector),
            endpoint: settings.endpoint.clone(),
            log_limit: LogLimit::every(LOGGED_EVERY),
            reported: AtomicU64::new(0),
        })
    }

    /// The caller in the trace headers of a request.
    pub(super) fn caller(protocol: Protocol, headers: &HeaderMap) -> Caller {
        Caller { protocol, parent: context::parent(headers).map(Box::new) }
    }

    /// Creates a span that ends `now`, if its parent or the ratio samples it. Keys are shown as
    /// `keys_shown` has it.
    pub(super) fn record(
        &self,
        span: SpanOf<'_>,
        now: impl FnOnce() -> Timestamp,
        decisions: &Decisions<'_>,
        redactor: &Redactor,
        keys_shown: impl FnOnce(&PolicyDecision<'_>) -> KeysShown,
    ) {
        let parent = span.caller.parent.as_deref();
        if parent.is_some_and(|parent| !parent.is_sampled()) {
            return;
        }
        let mut open = self.exporter.open();
        let OpenBatch { batch, random, scratch } = &mut *open;
        let trace_id = match parent {
            Some(parent) => parent.trace_id(),
            None => {
                let trace_id = TraceId::from(random.random::<u128>());
                if !self.sampler.is_sampled(trace_id) {
                    return;
                }
                trace_id
            }
        };
        let span_id = SpanId::from(random.random::<u64>());
        let head = SpanHead { trace_id, span_id, parent, start: span.start, end: now() };
        let content = SpanContent::new(span.caller.protocol, span.verb, decisions);
        scratch.share(&content);
        self.exporter.add(batch, &head, &scratch.shared, |attributes| {
            content.describe(attributes, |one| {
                scratch.key.clear();
                write!(scratch.key, "{}", one.key()).expect("a string takes every text");
                redactor.show(&scratch.key, keys_shown(one))
            });
        });
    }

    /// The counters of spans.
    pub(crate) fn spans(&self) -> Spans {
        self.exporter.spans()
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
        let error = self.exporter.last_error();
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
        self.exporter.end();
    }
}

/// The sampler `TraceIdRatioBased` of the OpenTelemetry SDK: a share of all traces, by their id, so
/// that all services agree on which. It compares 63 bits of the id, see
/// `sample_based_on_probability` in `opentelemetry_sdk::trace::sampler`.
#[derive(Debug)]
struct RatioSampler {
    /// Traces below are sampled. `None`: all.
    end: Option<u64>,
}

impl RatioSampler {
    fn new(ratio: f64) -> Self {
        #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
        let end = (ratio.max(0.0) * (1_u64 << 63) as f64) as u64;
        Self { end: (ratio < 1.0).then_some(end) }
    }

    fn is_sampled(&self, trace_id: TraceId) -> bool {
        let [.., a, b, c, d, e, f, g, h] = trace_id.to_bytes();
        self.end.is_none_or(|end| u64::from_be_bytes([a, b, c, d, e, f, g, h]) >> 1 < end)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_sdk::trace::{Sampler, SamplingDecision, ShouldSample};

    use super::*;

    /// Two services that sample a share of traces must sample the same ones.
    #[test]
    fn traces_are_sampled_as_the_sdk_samples_them() {
        let mut ids = vec![0, u128::MAX, 1 << 63, (1 << 63) - 1, 1 << 64];
        ids.extend((0..10_000_u128).map(|n| (n + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835)));
        for ratio in [0.0, 1e-9, 0.01, 0.1, 0.5, 0.999, 1.0 - f64::EPSILON, 1.0] {
            let (ours, theirs) = (RatioSampler::new(ratio), Sampler::TraceIdRatioBased(ratio));
            for id in ids.iter().map(|id| TraceId::from(*id)) {
                let kind = opentelemetry::trace::SpanKind::Server;
                let wanted = theirs.should_sample(None, id, "", &kind, &[], &[]).decision;
                assert_eq!(ours.is_sampled(id), wanted == SamplingDecision::RecordAndSample, "{id} {ratio}");
            }
        }
    }
}

//! Attributes of spans.
//!
//! Spans that follow one another on a thread mostly have the same policy, verb and verdict. What
//! they have in common is encoded once.

use std::borrow::Cow;
use std::time::Duration;

use slidegate::{DecisionSource, Decisions, PolicyDecision, Verb, millis_ceil};
use smallvec::SmallVec;

use super::otlp::{Attributes, SharedFields};
use crate::app::explanation;
use crate::caller::Protocol;
use crate::telemetry::verb_name;

/// Maximum shadow denials listed in a span.
const MAX_SHADOWS: usize = 8;

/// What a span says.
#[derive(Debug)]
pub(super) struct SpanContent<'d> {
    protocol: Protocol,
    verb: Verb,
    decisions: &'d Decisions<'d>,
    /// The decision that the span describes: the strictest, or the strictest of the policies in
    /// shadow if all of them are.
    binding: Option<PolicyDecision<'d>>,
}

/// What a thread keeps from one span to the next.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The text of a key.
    pub(super) key: String,
    pub(super) shared: SharedFields,
    /// What they are of.
    shared_of: Option<SharedOf>,
}

/// What most spans that follow one another have in common.
#[derive(Debug, PartialEq)]
struct SharedOf {
    protocol: Protocol,
    verb: Verb,
    is_denied: bool,
    policy: Option<PolicyFields>,
}

#[derive(Debug, PartialEq)]
struct PolicyFields {
    name: String,
    is_enforced: bool,
    limit: u64,
    window: Duration,
    cost: u64,
    source: DecisionSource,
}

impl Scratch {
    /// Encodes the fields that this span shares with others, unless they are encoded already.
    #[inline]
    pub(super) fn share(&mut self, span: &SpanContent<'_>) {
        if !self.shared_of.as_ref().is_some_and(|known| known.is_of(span)) {
            self.encode(span);
        }
    }

    #[cold]
    fn encode(&mut self, span: &SpanContent<'_>) {
        let is_denied = span.decisions.is_denied();
        let name = match span.verb {
            Verb::Check => "slidegate.check",
            Verb::Peek => "slidegate.peek",
            Verb::Refund => "slidegate.refund",
            Verb::Penalize => "slidegate.penalize",
        };
        self.shared.encode(name, |attributes| {
            attributes.text("slidegate.door", span.protocol.name());
            attributes.text("slidegate.verb", verb_name(span.verb));
            attributes.text("slidegate.verdict", if is_denied { "deny" } else { "allow" });
            if let Some(one) = &span.binding {
                attributes.text("slidegate.policy", one.policy().name());
                attributes.number("slidegate.limit", one.limit());
                attributes.number("slidegate.window_ms", millis_ceil(one.quota().window()));
                attributes.number("slidegate.cost", one.asked());
                attributes.text("slidegate.source", one.source().name());
                attributes.flag("slidegate.shadow", !one.policy().is_enforced());
            }
        });
        let policy = span.binding.as_ref().map(|one| PolicyFields {
            name: one.policy().name().to_owned(),
            is_enforced: one.policy().is_enforced(),
            limit: one.limit(),
            window: one.quota().window(),
            cost: one.asked(),
            source: one.source(),
        });
        let (protocol, verb) = (span.protocol, span.verb);
        self.shared_of = Some(SharedOf { protocol, verb, is_denied, policy });
    }
}

impl SharedOf {
    #[inline]
    fn is_of(&self, span: &SpanContent<'_>) -> bool {
        let is_policy = match (&self.policy, &span.binding) {
            (Some(known), Some(one)) => known.is_of(one),
            (None, None) => true,
            _ => false,
        };
        let call = (span.protocol, span.verb, span.decisions.is_denied());
        (self.protocol, self.verb, self.is_denied) == call && is_policy
    }
}

impl PolicyFields {
    #[inline]
    fn is_of(&self, one: &PolicyDecision<'_>) -> bool {
        let policy = one.policy();
        (self.limit, self.cost, self.source) == (one.limit(), one.asked(), one.source())
            && (self.window, self.is_enforced) == (one.quota().window(), policy.is_enforced())
            && self.name == policy.name()
    }
}

impl<'d> SpanContent<'d> {
    pub(super) fn new(protocol: Protocol, verb: Verb, decisions: &'d Decisions<'_>) -> Self {
        let stricter = |a: PolicyDecision<'d>, b: PolicyDecision<'d>| b.is_stricter_than(&a);
        let of_shadows = || shadows(decisions).reduce(|a, b| if stricter(a, b) { b } else { a });
        Self { protocol, verb, decisions, binding: decisions.strictest().or_else(of_shadows) }
    }

    /// Writes the attributes that the span does not share with others. `shown` is the text of a key.
    #[inline]
    pub(super) fn describe<'k>(
        &self,
        attributes: &mut Attributes<'_>,
        shown: impl FnOnce(&PolicyDecision<'_>) -> Cow<'k, str>,
    ) {
        if let Some(one) = &self.binding {
            describe_decision(attributes, one, &shown(one));
        }
        let mut denied = shadows(self.decisions).filter(|one| one.is_denied()).take(MAX_SHADOWS).peekable();
        if denied.peek().is_some() {
            let names: SmallVec<[&str; MAX_SHADOWS]> = denied.map(|one| one.policy().name()).collect();
            attributes.texts("slidegate.shadow_denied_by", names.iter().copied());
        }
    }
}

fn shadows<'d>(decisions: &'d Decisions<'_>) -> impl Iterator<Item = PolicyDecision<'d>> {
    decisions.iter().filter(|one| !one.policy().is_enforced())
}

/// Writes the attributes of a decision that are its own.
#[inline]
fn describe_decision(attributes: &mut Attributes<'_>, one: &PolicyDecision<'_>, key: &str) {
    attributes.text("slidegate.key", key);
    attributes.number("slidegate.remaining", one.remaining());
    if let Some(reason) = one.reason() {
        attributes.text("slidegate.reason", reason.name());
    }
    if let Some(block) = one.block() {
        if let Some(end) = block.ends_at() {
            attributes.text("slidegate.blocked_until", &explanation::time(end));
        }
        if let Some(name) = block.blocked_by() {
            attributes.text("slidegate.blocked_by", name);
        }
    }
    if let Some(failure) = one.store_failure() {
        attributes.text("slidegate.store_failure", &failure.to_string());
    }
    if let (true, Some(wait)) = (one.is_denied(), one.retry_after()) {
        attributes.number("slidegate.retry_after_ms", millis_ceil(wait));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use opentelemetry::trace::{SpanId, TraceId};
    use opentelemetry::{Array, KeyValue, StringValue, Value};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1::Span;
    use opentelemetry_proto::transform::common::tonic::Attributes as Converted;
    use proptest::prelude::*;
    use prost::Message as _;
    use slidegate::{
        Block, FallbackStore, Gate, OnStoreError, Policy, PolicySet, Quota, RedisOptions, RedisStore,
        Request, Timestamp,
    };

    use super::*;
    use crate::config::KeysShown;
    use crate::telemetry::redaction::Redactor;
    use crate::telemetry::traces::otlp::{Batch, Envelope, RequestReader, SpanHead};

    /// The attributes of a span, from the table in docs/observability.md.
    fn expected(protocol: Protocol, verb: Verb, decisions: &Decisions<'_>, key: &str) -> Vec<KeyValue> {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut all = vec![
            KeyValue::new("slidegate.door", protocol.name()),
            KeyValue::new("slidegate.verb", format!("{verb:?}").to_lowercase()),
            KeyValue::new("slidegate.verdict", if decisions.is_denied() { "deny" } else { "allow" }),
        ];
        let shadows: Vec<_> = decisions.iter().filter(|one| !one.policy().is_enforced()).collect();
        let mut binding = decisions.strictest();
        if binding.is_none() {
            for one in decisions.iter() {
                if binding.is_none_or(|known| one.is_stricter_than(&known)) {
                    binding = Some(one);
                }
            }
        }
        if let Some(one) = binding {
            let window_ms = u64::try_from(one.quota().window().as_nanos().div_ceil(1_000_000)).unwrap();
            all.extend([
                KeyValue::new("slidegate.policy", one.policy().name().to_owned()),
                KeyValue::new("slidegate.limit", number(one.limit())),
                KeyValue::new("slidegate.window_ms", number(window_ms)),
                KeyValue::new("slidegate.cost", number(one.asked())),
                KeyValue::new("slidegate.source", one.source().name()),
                KeyValue::new("slidegate.shadow", !one.policy().is_enforced()),
                KeyValue::new("slidegate.key", key.to_owned()),
                KeyValue::new("slidegate.remaining", number(one.remaining())),
            ]);
            all.extend(one.reason().map(|reason| KeyValue::new("slidegate.reason", reason.name())));
            let end = one.block().and_then(Block::ends_at).map(explanation::time);
            all.extend(end.map(|end| KeyValue::new("slidegate.blocked_until", end)));
            let by = one.block().and_then(Block::blocked_by).map(str::to_owned);
            all.extend(by.map(|by| KeyValue::new("slidegate.blocked_by", by)));
            let failure = one.store_failure().map(ToString::to_string);
            all.extend(failure.map(|failure| KeyValue::new("slidegate.store_failure", failure)));
            if let (true, Some(wait)) = (one.is_denied(), one.retry_after()) {
                let wait_ms = u64::try_from(wait.as_micros().div_ceil(1000)).unwrap();
                all.push(KeyValue::new("slidegate.retry_after_ms", number(wait_ms)));
            }
        }
        let denied = shadows.iter().filter(|one| one.is_denied()).take(8);
        let denied: Vec<StringValue> = denied.map(|one| one.policy().name().to_owned().into()).collect();
        if !denied.is_empty() {
            all.push(KeyValue::new("slidegate.shadow_denied_by", Value::Array(Array::String(denied))));
        }
        all
    }

    /// Each applies to requests that have the attribute of its name.
    fn policies() -> PolicySet {
        let policy = |name: &str, quota: Quota| Policy::new(name, quota).unwrap().scope([name]);
        let quota = |limit: u64| Quota::new(limit, Duration::from_micros(3_600_000_500)).unwrap();
        let end = Timestamp::from_secs(4_000_000_000);
        let shadows = (0..10).map(|n| policy(&format!("tried-{n}"), quota(n % 3)).shadow());
        let vast = quota(1 << 40).with_algorithm(slidegate::Algorithm::TokenBucket);
        let enforced = [
            policy("user", quota(3)),
            policy("zero", quota(0)),
            policy("open", quota(2)).on_store_error(OnStoreError::Allow),
            policy("closed", quota(2)).on_store_error(OnStoreError::Deny),
            policy("blocked", quota(9)).with_block(["mallory"], Block::until(end).by("ops")),
            policy("banned", quota(9)).with_block(["mallory"], Block::forever()),
            policy("vast", vast).scope(["vast", "user"]),
        ];
        PolicySet::new(enforced.into_iter().chain(shadows)).unwrap()
    }

    /// A request: for each attribute that it has, one of a few values; its verb; its cost.
    #[derive(Debug, Clone)]
    struct Asked {
        attributes: Vec<(String, String)>,
        verb: Verb,
        cost: u64,
        keys_shown: KeysShown,
    }

    fn asked() -> impl Strategy<Value = Asked> {
        let name = prop_oneof![
            proptest::sample::select(vec!["user", "zero", "open", "closed", "blocked", "banned", "vast"])
                .prop_map(str::to_owned),
            (0..10).prop_map(|n| format!("tried-{n}")),
        ];
        let value = prop_oneof![
            Just("mallory".to_owned()),
            Just("zo\u{eb}, 100%\u{1f980}\n".to_owned()),
            Just("x".repeat(1000)),
            "\\PC{0,300}",
        ];
        let attributes = proptest::collection::btree_map(name, value, 0..8);
        let verb = proptest::sample::select(vec![
            Verb::Check,
            Verb::Check,
            Verb::Peek,
            Verb::Refund,
            Verb::Penalize,
        ]);
        let cost = prop_oneof![Just(0), Just(1), Just(2), Just(u64::MAX)];
        let shown = proptest::sample::select(vec![KeysShown::Plain, KeysShown::Masked, KeysShown::Hashed]);
        (attributes, verb, cost, shown).prop_map(|(attributes, verb, cost, keys_shown)| Asked {
            attributes: attributes.into_iter().collect(),
            verb,
            cost,
            keys_shown,
        })
    }

    /// Checks the span of these decisions.
    fn verify(scratch: &mut Scratch, asked: &Asked, decisions: &Decisions<'_>) {
        let redactor = Redactor::new(Some("secret"));
        let span = SpanContent::new(Protocol::Resp, asked.verb, decisions);
        let (trace_id, span_id) = (TraceId::from(1), SpanId::from(2));
        let (start, end) = (Timestamp::from_secs(7), Timestamp::from_secs(8));
        let head = SpanHead { trace_id, span_id, parent: None, start, end };
        let mut batch = Batch::default();
        let mut key = String::new();
        scratch.share(&span);
        assert!(batch.add(&head, &scratch.shared, |attributes| {
            span.describe(attributes, |one| {
                key = redactor.show(&one.key().to_string(), asked.keys_shown).into_owned();
                key.clone().into()
            });
        }));
        let mut request = Vec::new();
        let envelope = Envelope::new("", std::iter::empty());
        RequestReader::new(&envelope, &[batch]).read_to_end(&mut request).unwrap();
        let request = ExportTraceServiceRequest::decode(request.as_slice()).unwrap();
        let [Span { attributes, name, .. }] = &request.resource_spans[0].scope_spans[0].spans[..] else {
            panic!("{request:?}")
        };
        assert_eq!(*name, format!("slidegate.{}", format!("{:?}", asked.verb).to_lowercase()));
        let expected = expected(Protocol::Resp, asked.verb, decisions, &key);
        assert_eq!(*attributes, Converted::from(expected).0, "{asked:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Who builds an alert on an attribute must find it, under its name and with its type.
        #[test]
        fn every_decision_has_the_documented_attributes(asked in proptest::collection::vec(asked(), 1..30)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _guard = runtime.enter();
            let mut scratch = Scratch::default();
            let memory = Gate::new(policies());
            let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let redis = RedisStore::new(RedisOptions::new(&format!("redis://{nobody}")).unwrap()).unwrap();
            let unreachable = Gate::with_store(policies(), FallbackStore::new(redis)).unwrap();
            for asked in &asked {
                let mut request = Request::new().cost(asked.cost);
                for (name, value) in &asked.attributes {
                    request = request.with(name, value.as_str());
                }
                let requests = [request];
                verify(&mut scratch, asked, &memory.apply_all(asked.verb, &requests));
                verify(&mut scratch, asked, &runtime.block_on(unreachable.apply_all(asked.verb, &requests)));
            }
        }
    }
}

//! OTLP: spans as protobuf.
//!
//! The fields of a span that are its own are encoded when it is recorded. Those that it shares with
//! the spans before it are stored once, and put into each span when it is sent: less than a third of
//! the bytes have to be stored, and to go from one processor core to another.
//!
//! The messages and field numbers are those of `opentelemetry-proto`:
//! `opentelemetry/proto/{collector/trace,trace,common,resource}/v1/*.proto`. Written by hand because
//! with generated types each span is some thirty allocations.

use std::io::{self, Read};

use opentelemetry::trace::{SpanContext, SpanId, TraceId};
use slidegate::Timestamp;

/// Wire types, the lower three bits of a field's tag: <https://protobuf.dev/programming-guides/encoding/>.
const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LENGTH: u8 = 2;
const FIXED32: u8 = 5;

const fn tag(field: u8, wire_type: u8) -> u8 {
    field << 3 | wire_type
}

/// `Resource.attributes` and `ResourceSpans.resource`.
const FIRST: u8 = tag(1, LENGTH);
/// `ResourceSpans.scope_spans`, `ScopeSpans.spans` and `KeyValue.value`.
const SECOND: u8 = tag(2, LENGTH);
/// `Span.attributes`.
const ATTRIBUTE: u8 = tag(9, LENGTH);
const SPAN_KIND_SERVER: u8 = 2;
/// The trace is sampled (W3C), and whether the parent is remote is known (`SpanFlags`).
const FLAGS: u32 = 0x1 | 0x100;
/// The parent is remote.
const PARENT_IS_REMOTE: u32 = 0x200;
/// Maximum bytes of a span.
const MAX_SPAN: usize = 4096;
/// A span's tag and its length, which has two bytes.
const SPAN_START: usize = 3;
/// Maximum bytes that a span takes in a batch: itself, and the starts of two records.
pub(super) const MAX_STORED: usize = MAX_SPAN + 2 * RECORD_START;
/// A record starts with its length and this bit.
const RECORD_START: usize = 2;
/// The record has shared fields, otherwise a span's own.
const IS_SHARED: u16 = 1 << 15;

/// The start of a span.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanHead<'a> {
    pub(super) trace_id: TraceId,
    pub(super) span_id: SpanId,
    pub(super) parent: Option<&'a SpanContext>,
    pub(super) start: Timestamp,
    pub(super) end: Timestamp,
}

/// The fields of a span that many spans share: name, kind, status and attributes.
#[derive(Debug, Default)]
pub(super) struct SharedFields {
    bytes: Vec<u8>,
    /// Changes with them. 0: nothing is encoded.
    version: u64,
}

impl SharedFields {
    /// Encodes these instead.
    pub(super) fn encode(&mut self, name: &str, attributes: impl FnOnce(&mut Attributes<'_>)) {
        self.version += 1;
        self.bytes.clear();
        text(&mut self.bytes, tag(5, LENGTH), name);
        // The status is present, and neither `ok` nor an error.
        self.bytes.extend_from_slice(&[tag(6, VARINT), SPAN_KIND_SERVER, tag(15, LENGTH), 0]);
        attributes(&mut Attributes(&mut self.bytes));
    }
}

/// Spans as they are stored: records of shared fields, each followed by those of the spans that have
/// them.
#[derive(Debug, Default)]
pub(super) struct Batch {
    records: Vec<u8>,
    spans: u64,
    /// Bytes of the spans when they are sent.
    sent_len: usize,
    /// Of the shared fields that were stored last.
    shared_version: u64,
}

impl Batch {
    /// An empty batch in this memory.
    pub(super) fn new(mut memory: Vec<u8>) -> Self {
        memory.clear();
        Self { records: memory, ..Self::default() }
    }

    pub(super) fn into_memory(self) -> Vec<u8> {
        self.records
    }

    pub(super) fn spans(&self) -> u64 {
        self.spans
    }

    /// Whether there is memory for any span.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.records.capacity() - self.records.len() >= MAX_STORED
    }

    /// Adds a span: its own fields, those that it shares with the span before it if these are the
    /// same, and its own attributes. Returns false, and adds nothing, if it is longer than
    /// [`MAX_SPAN`].
    #[must_use]
    #[inline]
    pub(super) fn add(
        &mut self,
        head: &SpanHead<'_>,
        shared: &SharedFields,
        attributes: impl FnOnce(&mut Attributes<'_>),
    ) -> bool {
        let before = self.records.len();
        if self.shared_version != shared.version {
            self.share(shared);
        }
        let at = self.records.len();
        let out = &mut self.records;
        let flags = FLAGS | if head.parent.is_some() { PARENT_IS_REMOTE } else { 0 };
        let mut own = [0; RECORD_START + 18 + 10 + 9 + 9 + 6];
        // The length is written at the end.
        own[2..4].copy_from_slice(&[tag(1, LENGTH), 16]);
        own[4..20].copy_from_slice(&head.trace_id.to_bytes());
        own[20..22].copy_from_slice(&[tag(2, LENGTH), 8]);
        own[22..30].copy_from_slice(&head.span_id.to_bytes());
        own[30] = tag(7, FIXED64);
        own[31..39].copy_from_slice(&nanos(head.start).to_le_bytes());
        own[39] = tag(8, FIXED64);
        own[40..48].copy_from_slice(&nanos(head.end).to_le_bytes());
        // Field 16 has a tag of two bytes.
        own[48..50].copy_from_slice(&[0x80 | FIXED32, 1]);
        own[50..].copy_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&own);
        if let Some(parent) = head.parent {
            let state = parent.trace_state().header();
            if !state.is_empty() {
                text(out, tag(3, LENGTH), &state);
            }
            out.extend_from_slice(&[tag(4, LENGTH), 8]);
            out.extend_from_slice(&parent.span_id().to_bytes());
        }
        attributes(&mut Attributes(out));
        let own_len = out.len() - at - RECORD_START;
        let span_len = own_len + shared.bytes.len();
        let Some(length) = u16::try_from(own_len).ok().filter(|_| span_len <= MAX_SPAN) else {
            self.records.truncate(before);
            self.shared_version = 0;
            return false;
        };
        out[at..at + RECORD_START].copy_from_slice(&length.to_le_bytes());
        self.spans += 1;
        self.sent_len += SPAN_START + span_len;
        true
    }

    #[cold]
    fn share(&mut self, shared: &SharedFields) {
        // What is too long has no span.
        let length = u16::try_from(shared.bytes.len().min(MAX_SPAN)).expect("few bytes");
        self.records.extend_from_slice(&(length | IS_SHARED).to_le_bytes());
        self.records.extend_from_slice(&shared.bytes[..length.into()]);
        self.shared_version = shared.version;
    }
}

/// Reads a request: what is before the spans, and batches of spans.
#[derive(Debug)]
pub(super) struct RequestReader<'b> {
    batches: std::slice::Iter<'b, Batch>,
    /// The rest of a batch.
    records: &'b [u8],
    shared: &'b [u8],
    /// Bytes that did not fit into the reader's memory, of which some are read.
    pending: Vec<u8>,
    read: usize,
    len: usize,
}

impl<'b> RequestReader<'b> {
    pub(super) fn new(envelope: &Envelope, batches: &'b [Batch]) -> Self {
        let spans_len = batches.iter().map(|batch| batch.sent_len).sum();
        let pending = envelope.before(spans_len);
        let len = pending.len() + spans_len;
        Self { batches: batches.iter(), records: &[], shared: &[], pending, read: 0, len }
    }

    /// The length of the request.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The next span's own fields.
    #[inline]
    fn next(&mut self) -> Option<&'b [u8]> {
        loop {
            let Some((length, rest)) = self.records.split_first_chunk::<RECORD_START>() else {
                (self.records, self.shared) = (&self.batches.next()?.records, &[]);
                continue;
            };
            let length = u16::from_le_bytes(*length);
            let (record, rest) = rest.split_at(usize::from(length & !IS_SHARED));
            self.records = rest;
            if length & IS_SHARED == 0 {
                return Some(record);
            }
            self.shared = record;
        }
    }
}

impl Read for RequestReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = (&self.pending[self.read..]).read(into)?;
        self.read += filled;
        while filled < into.len() {
            let Some(own) = self.next() else { break };
            let room = &mut into[filled..];
            let length = own.len() + self.shared.len();
            let span_len = SPAN_START + length;
            // A length below 128 has a byte more than it needs, which is valid.
            let [low, high] = [length & 0x7F | 0x80, length >> 7].map(|byte| byte.to_le_bytes()[0]);
            let parts: [&[u8]; 3] = [&[SECOND, low, high], self.shared, own];
            if room.len() >= span_len {
                parts.iter().fold(room, |room, part| {
                    let (to, room) = room.split_at_mut(part.len());
                    to.copy_from_slice(part);
                    room
                });
                filled += span_len;
            } else {
                self.pending = parts.concat();
                self.read = self.pending.as_slice().read(room)?;
                filled += self.read;
            }
        }
        Ok(filled)
    }
}

fn nanos(at: Timestamp) -> u64 {
    at.as_micros().saturating_mul(1000)
}

/// Writes attributes to the end of a span.
#[derive(Debug)]
pub(super) struct Attributes<'b>(&'b mut Vec<u8>);

/// Keys up to this length are written with all that is before the value, in one piece whose length
/// is known when this is compiled.
const SHORT_KEY: usize = 32;

impl Attributes<'_> {
    #[inline]
    pub(super) fn text(&mut self, key: &'static str, value: &str) {
        let (key_len, value_len) = (key.len(), value.len());
        // The lengths of the value, its field and the attribute.
        let lengths = [value_len, value_len + 2, key_len + value_len + 6];
        let [Ok(value_len), Ok(field), Ok(all @ ..0x80)] = lengths.map(u8::try_from) else {
            return text_attribute(self.0, ATTRIBUTE, key, value);
        };
        self.start(key, all, [SECOND, field, FIRST, value_len]);
        self.0.extend_from_slice(value.as_bytes());
    }

    /// At most `i64::MAX`, as OTLP has no unsigned numbers.
    #[inline]
    pub(super) fn number(&mut self, key: &'static str, value: u64) {
        let mut rest = value.min(i64::MAX.cast_unsigned());
        let (mut digits, mut count) = ([0; 10], 0_u8);
        for digit in &mut digits {
            count += 1;
            *digit = rest.to_le_bytes()[0] | 0x80;
            rest >>= 7;
            if rest == 0 {
                *digit &= 0x7F;
                break;
            }
        }
        let key_len = u8::try_from(key.len()).expect("keys are short");
        self.start(key, key_len + count + 5, [SECOND, count + 1, tag(3, VARINT)]);
        let end = self.0.len() + usize::from(count);
        self.0.extend_from_slice(&digits);
        self.0.truncate(end);
    }

    #[inline]
    pub(super) fn flag(&mut self, key: &'static str, value: bool) {
        let key_len = u8::try_from(key.len()).expect("keys are short");
        self.start(key, key_len + 6, [SECOND, 2, tag(2, VARINT), value.into()]);
    }

    pub(super) fn texts<'t>(&mut self, key: &'static str, values: impl Iterator<Item = &'t str> + Clone) {
        let value_len = |value: &str| field_len(field_len(value.len()));
        let array_len = values.clone().map(value_len).sum();
        attribute(self.0, ATTRIBUTE, key, field_len(array_len));
        self.0.push(tag(5, LENGTH));
        varint(self.0, array_len as u64);
        for value in values {
            self.0.push(FIRST);
            varint(self.0, field_len(value.len()) as u64);
            text(self.0, FIRST, value);
        }
    }

    /// An attribute of this length up to its value, which follows these bytes.
    #[inline]
    fn start<const N: usize>(&mut self, key: &'static str, length: u8, before_value: [u8; N]) {
        let key_len = key.len();
        assert!(key_len <= SHORT_KEY && N <= 4, "keys are short");
        let mut field = [0; 4 + SHORT_KEY + 4];
        field[..4].copy_from_slice(&[ATTRIBUTE, length, FIRST, key_len.to_le_bytes()[0]]);
        field[4..4 + key_len].copy_from_slice(key.as_bytes());
        field[4 + key_len..4 + key_len + N].copy_from_slice(&before_value);
        let end = self.0.len() + 4 + key_len + N;
        // The array whole, because a copy of a known length is faster.
        self.0.extend_from_slice(&field);
        self.0.truncate(end);
    }
}

/// What comes before the spans of a request: the resource, the scope, and the lengths of what they
/// are in.
#[derive(Debug)]
pub(super) struct Envelope {
    /// `ResourceSpans.resource`
    resource: Vec<u8>,
    /// `ScopeSpans.scope`
    scope: Vec<u8>,
}

impl Envelope {
    /// The scope's name, and attributes of the resource.
    pub(super) fn new<'a>(scope: &str, attributes: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut content = Vec::new();
        attributes.for_each(|(key, value)| text_attribute(&mut content, FIRST, key, value));
        let mut resource = vec![FIRST];
        varint(&mut resource, content.len() as u64);
        resource.extend(content);
        let mut name = Vec::new();
        text(&mut name, FIRST, scope);
        let mut scope = vec![FIRST];
        varint(&mut scope, name.len() as u64);
        scope.extend(name);
        Self { resource, scope }
    }

    /// The bytes of a request before this many bytes of spans.
    pub(super) fn before(&self, spans_len: usize) -> Vec<u8> {
        let scope_spans_len = self.scope.len() + spans_len;
        let mut out = vec![FIRST];
        varint(&mut out, (self.resource.len() + field_len(scope_spans_len)) as u64);
        out.extend(&self.resource);
        out.push(SECOND);
        varint(&mut out, scope_spans_len as u64);
        out.extend(&self.scope);
        out
    }
}

/// Appends a `KeyValue` with this tag up to the content of its `AnyValue`, which has this length.
#[inline]
fn attribute(out: &mut Vec<u8>, tag: u8, key: &str, value_len: usize) {
    out.push(tag);
    varint(out, (field_len(key.len()) + field_len(value_len)) as u64);
    text(out, FIRST, key);
    out.push(SECOND);
    varint(out, value_len as u64);
}

#[inline]
fn text_attribute(out: &mut Vec<u8>, tag: u8, key: &str, value: &str) {
    attribute(out, tag, key, field_len(value.len()));
    text(out, FIRST, value);
}

#[inline]
fn text(out: &mut Vec<u8>, tag: u8, value: &str) {
    out.push(tag);
    varint(out, value.len() as u64);
    out.extend_from_slice(value.as_bytes());
}

/// The length of a field with a one-byte tag and a content of this length.
#[inline]
fn field_len(content_len: usize) -> usize {
    1 + varint_len(content_len as u64) + content_len
}

#[inline]
fn varint_len(value: u64) -> usize {
    // Seven bits each, at least one byte.
    ((value | 1).ilog2() / 7 + 1) as usize
}

#[inline]
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7F {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceFlags;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::common::v1::{
        AnyValue, ArrayValue, InstrumentationScope, KeyValue, any_value,
    };
    use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status};
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    /// An attribute of any type and of any length.
    #[derive(Debug, Clone)]
    enum Attribute {
        Text(String),
        Number(u64),
        Flag(bool),
        Texts(Vec<String>),
    }

    /// The shortest and the longest.
    const KEYS: [&str; 3] = ["k", "slidegate.key", "slidegate.a-key-of-32-characters"];

    fn attributes() -> impl Strategy<Value = Vec<(&'static str, Attribute)>> {
        let number = any::<u64>().prop_perturb(|number, mut random| number >> (random.random::<u8>() % 64));
        let text = || ".{0,8}|.{120,130}|\\PC{0,400}";
        let attribute = prop_oneof![
            text().prop_map(Attribute::Text),
            number.prop_map(Attribute::Number),
            any::<bool>().prop_map(Attribute::Flag),
            proptest::collection::vec(text(), 0..8).prop_map(Attribute::Texts),
        ];
        proptest::collection::vec((proptest::sample::select(&KEYS[..]), attribute), 0..12)
    }

    fn parent() -> impl Strategy<Value = Option<SpanContext>> {
        let state = proptest::option::of("[a-z]{1,9}=[ -+--<>-~]{1,200}");
        let context = (any::<u128>(), any::<u64>(), state).prop_map(|(trace, span, state)| {
            let state = state.map(|state| state.parse().unwrap()).unwrap_or_default();
            SpanContext::new(TraceId::from(trace), SpanId::from(span), TraceFlags::SAMPLED, true, state)
        });
        proptest::option::of(context)
    }

    fn expected(head: &SpanHead<'_>, attributes: &[(&str, Attribute)]) -> Span {
        let text = |text: &String| AnyValue { value: Some(any_value::Value::StringValue(text.clone())) };
        let value = |attribute: &Attribute| match attribute {
            Attribute::Text(one) => text(one),
            Attribute::Number(number) => {
                let number = i64::try_from(*number).unwrap_or(i64::MAX);
                AnyValue { value: Some(any_value::Value::IntValue(number)) }
            }
            Attribute::Flag(flag) => AnyValue { value: Some(any_value::Value::BoolValue(*flag)) },
            Attribute::Texts(texts) => {
                let values = texts.iter().map(text).collect();
                AnyValue { value: Some(any_value::Value::ArrayValue(ArrayValue { values })) }
            }
        };
        let attributes = attributes.iter().map(|(key, attribute)| KeyValue {
            key: (*key).to_owned(),
            value: Some(value(attribute)),
            ..KeyValue::default()
        });
        let parent = head.parent;
        Span {
            trace_id: head.trace_id.to_bytes().to_vec(),
            span_id: head.span_id.to_bytes().to_vec(),
            trace_state: parent.map(|parent| parent.trace_state().header()).unwrap_or_default(),
            parent_span_id: parent.map(|parent| parent.span_id().to_bytes().to_vec()).unwrap_or_default(),
            flags: if parent.is_some() { 0x301 } else { 0x101 },
            name: "slidegate.check".to_owned(),
            kind: 2,
            start_time_unix_nano: head.start.as_micros() * 1000,
            end_time_unix_nano: head.end.as_micros() * 1000,
            attributes: attributes.collect(),
            status: Some(Status::default()),
            ..Span::default()
        }
    }

    proptest! {
        /// A collector must read exactly what was decided, whatever clients put into their keys.
        #[test]
        fn a_collector_decodes_what_was_written(
            spans in proptest::collection::vec((any::<(u128, u64, u32, u32)>(), parent(), attributes()), 1..5),
            service in "\\PC{0,200}",
            memory in prop_oneof![1..100_usize, Just(1 << 17)],
        ) {
            let envelope = Envelope::new("scope", [("service.name", service.as_str())].into_iter());
            let mut batches = vec![Batch::default(), Batch::default()];
            let mut all = Vec::new();
            let mut shared = SharedFields::default();
            for (n, ((trace, span, start, length), parent, attributes)) in spans.iter().enumerate() {
                let start = Timestamp::from_micros(u64::from(*start) << 19);
                let head = SpanHead {
                    trace_id: TraceId::from(*trace),
                    span_id: SpanId::from(*span),
                    parent: parent.as_ref(),
                    start,
                    end: start + std::time::Duration::from_micros((*length).into()),
                };
                let write = |attributes: &[(&'static str, Attribute)], to: &mut Attributes<'_>| {
                    for (key, attribute) in attributes {
                        match attribute {
                            Attribute::Text(text) => to.text(key, text),
                            Attribute::Number(number) => to.number(key, *number),
                            Attribute::Flag(flag) => to.flag(key, *flag),
                            Attribute::Texts(texts) => to.texts(key, texts.iter().map(String::as_str)),
                        }
                    }
                };
                let (first, last) = attributes.split_at(attributes.len() / 2);
                shared.encode("slidegate.check", |to| write(first, to));
                // The span, and another one that shares its fields.
                let batch = &mut batches[n * 2 / spans.len()];
                for last in [last, &[]] {
                    let span = expected(&head, &[first, last].concat());
                    if batch.add(&head, &shared, |to| write(last, to)) {
                        all.push(span);
                    } else {
                        prop_assert!(span.encoded_len() > MAX_SPAN);
                    }
                }
            }
            prop_assert_eq!(batches.iter().map(Batch::spans).sum::<u64>(), all.len() as u64);
            let mut reader = RequestReader::new(&envelope, &batches);
            let (mut request, mut some) = (Vec::new(), vec![0; memory]);
            let length = reader.len();
            while let read @ 1.. = reader.read(&mut some).unwrap() {
                request.extend_from_slice(&some[..read]);
            }
            prop_assert_eq!(request.len(), length);
            let name = AnyValue { value: Some(any_value::Value::StringValue(service)) };
            let name = KeyValue { key: "service.name".into(), value: Some(name), ..KeyValue::default() };
            let mut expected = ResourceSpans::default();
            expected.resource.get_or_insert_default().attributes.push(name);
            let scope = InstrumentationScope { name: "scope".into(), ..InstrumentationScope::default() };
            expected.scope_spans.push(ScopeSpans { scope: Some(scope), spans: all, ..ScopeSpans::default() });
            let expected = ExportTraceServiceRequest { resource_spans: vec![expected] };
            prop_assert_eq!(ExportTraceServiceRequest::decode(request.as_slice()).unwrap(), expected);
        }
    }

    /// One key that a client made huge must not take the room of a thousand spans.
    #[test]
    fn a_span_that_is_too_long_is_left_out_and_the_longest_is_not() {
        let head = SpanHead {
            trace_id: TraceId::from(1),
            span_id: SpanId::from(1),
            parent: None,
            start: Timestamp::EPOCH,
            end: Timestamp::EPOCH,
        };
        let mut shared = SharedFields::default();
        shared.encode("slidegate.check", |_| ());
        let write = |length: usize| {
            let mut batch = Batch::new(Vec::with_capacity(MAX_STORED));
            assert!(batch.has_room());
            let is_added = batch.add(&head, &shared, |to| to.text("k", &"x".repeat(length)));
            assert_eq!((is_added, batch.spans()), (batch.sent_len > 0, u64::from(is_added)));
            (is_added, batch.sent_len, batch.records.len())
        };
        let fits = (1..MAX_SPAN).rev().find(|length| write(*length).0).unwrap();
        assert_eq!(write(fits), (true, SPAN_START + MAX_SPAN, MAX_STORED));
        assert_eq!(write(fits + 1), (false, 0, 0));
    }
}

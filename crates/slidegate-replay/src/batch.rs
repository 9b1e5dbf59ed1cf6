//! Batches of entries: what the policies ask of each entry, copied out of the reader's buffer.
//!
//! The reader hands out one entry at a time and reuses its memory. A batch owns its entries, so
//! that several jobs can decide it, each on a thread of its own. Only the attributes that
//! some policy asks for are copied.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use slidegate::{Policy, PolicySet, Request, Value, Verb};

use crate::attributes::{AttributeValue, RecordedRequest, attribute};
use crate::call::{Call, RecordedHold};
use crate::entry::Entry;

/// Entries decided together: enough that handing them to a thread costs nothing per entry, few
/// enough to stay in the CPU's cache.
const BATCH_ENTRIES: usize = 256;

/// Entries in order of time, as policies see them.
#[derive(Debug)]
pub(crate) struct EntryBatch {
    names: AttributeNames,
    entries: Vec<(BatchEntry, EntryKind)>,
    /// The attributes of each entry, in the order of the names.
    values: Vec<StoredValue>,
    /// Whether any entry, or a request of one, has the attribute, by name.
    occurred: Vec<bool>,
    /// The values that are text, one after the other.
    texts: Vec<u8>,
    /// Entries of several requests.
    calls: Vec<Call>,
}

/// Where a text is among those of a batch.
type TextRange = std::ops::Range<usize>;

/// The attributes that some policy asks for, in alphabetical order.
pub(crate) type AttributeNames = Arc<[String]>;

/// What is not an attribute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchEntry {
    pub(crate) time_us: u64,
    /// How long it took; `None` if the log does not say.
    pub(crate) duration_us: Option<u64>,
    pub(crate) cost: u64,
    /// The status that the log has; 0 if none.
    pub(crate) status: u16,
}

/// What an entry asks for.
#[derive(Debug)]
enum EntryKind {
    /// One request, which all policies that apply decide, or only the one of this name.
    Request(Verb, Option<TextRange>),
    /// Several requests, by their position among the calls of the batch.
    Call(usize),
}

#[derive(Debug)]
enum StoredValue {
    Absent,
    Address(IpAddr),
    Text(TextRange),
}

/// A line of a log, as it is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line<'b> {
    pub(crate) entry: BatchEntry,
    /// One request, those of a call, or none if a reservation was changed.
    pub(crate) requests: &'b [Request<'b>],
    /// What was done with a reservation, as a recording has it.
    pub(crate) hold: Option<&'b RecordedHold>,
}

/// The attributes that these sets ask for.
pub(crate) fn attribute_names<'a>(sets: impl IntoIterator<Item = &'a PolicySet>) -> AttributeNames {
    let policies = sets.into_iter().flat_map(PolicySet::iter);
    let names: BTreeSet<&str> = policies.flat_map(Policy::attributes).collect();
    names.into_iter().map(str::to_owned).collect()
}

impl EntryBatch {
    pub(crate) fn new(names: AttributeNames) -> Self {
        Self {
            entries: Vec::with_capacity(BATCH_ENTRIES),
            values: Vec::with_capacity(BATCH_ENTRIES * names.len()),
            occurred: vec![false; names.len()],
            texts: Vec::new(),
            calls: Vec::new(),
            names,
        }
    }

    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        for (name, occurred) in self.names.iter().zip(&mut self.occurred) {
            let value = match attribute(entry, name) {
                Some(AttributeValue::Address(ip)) => StoredValue::Address(ip),
                Some(AttributeValue::Text(text)) => StoredValue::Text(add(&mut self.texts, &text)),
                None => StoredValue::Absent,
            };
            *occurred |= !matches!(value, StoredValue::Absent);
            self.values.push(value);
        }
        let kind = match Call::of(entry) {
            Some(call) => {
                for (name, occurred) in self.names.iter().zip(&mut self.occurred) {
                    *occurred |= call.attribute_names().any(|known| name == known);
                }
                self.calls.push(call);
                EntryKind::Call(self.calls.len() - 1)
            }
            None => {
                let RecordedRequest { verb, policy } = RecordedRequest::of(entry);
                EntryKind::Request(verb, policy.map(|policy| add(&mut self.texts, policy.as_bytes())))
            }
        };
        let &Entry { time_us, duration_us, cost, status, .. } = entry;
        self.entries.push((BatchEntry { time_us, duration_us, cost, status }, kind));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_ENTRIES
    }

    /// Forgets the entries and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.values.clear();
        self.occurred.fill(false);
        self.texts.clear();
        self.calls.clear();
    }

    /// Whether any entry, or a request of one, has the attribute, by name.
    pub(crate) fn occurred(&self) -> &[bool] {
        &self.occurred
    }

    fn text(&self, range: &TextRange) -> &[u8] {
        &self.texts[range.clone()]
    }

    /// Each line, in order of time.
    pub(crate) fn for_each(&self, mut decide: impl FnMut(Line<'_>)) {
        for (at, (entry, kind)) in self.entries.iter().enumerate() {
            let (verb, policy) = match kind {
                EntryKind::Request(verb, policy) => (*verb, policy),
                EntryKind::Call(call) => {
                    let call = &self.calls[*call];
                    decide(Line { entry: *entry, requests: &call.requests(), hold: call.hold() });
                    continue;
                }
            };
            let mut request = Request::new().with_cost(entry.cost).with_verb(verb);
            if let Some(range) = policy {
                let policy = std::str::from_utf8(self.text(range));
                request = request.under(policy.expect("the name was text"));
            }
            // In place: a request takes as long to move as an attribute to add.
            let values = &self.values[at * self.names.len()..];
            request.extend(self.names.iter().zip(values).filter_map(|(name, value)| {
                let value = match value {
                    StoredValue::Absent => return None,
                    StoredValue::Address(ip) => Value::Address(*ip),
                    StoredValue::Text(range) => Value::Bytes(self.text(range)),
                };
                Some((name.as_str(), value))
            }));
            decide(Line { entry: *entry, requests: std::slice::from_ref(&request), hold: None });
        }
    }
}

fn add(texts: &mut Vec<u8>, text: &[u8]) -> TextRange {
    let start = texts.len();
    texts.extend_from_slice(text);
    start..texts.len()
}

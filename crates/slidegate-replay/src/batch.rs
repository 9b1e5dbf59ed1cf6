//! Batches of entries: the attributes that policies need, copied out of the reader's buffer.
//!
//! The reader returns one entry at a time and reuses its memory. A batch owns its entries, so
//! several jobs can decide it, each on its own thread. Only attributes that a policy needs are
//! copied.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use slidegate::{Policy, PolicySet, Request, Value};

use crate::attributes::{AttributeValue, attribute};
use crate::entry::Entry;

/// Entries decided together: enough to make the handover to a thread free per entry, few enough to
/// stay in the CPU cache.
const BATCH_ENTRIES: usize = 256;

/// Entries in order of time, as policies see them.
#[derive(Debug)]
pub(crate) struct EntryBatch {
    names: AttributeNames,
    entries: Vec<BatchEntry>,
    /// The attributes of each entry, in the order of the names.
    values: Vec<StoredValue>,
    /// Text values, concatenated.
    texts: Vec<u8>,
}

/// The attributes that policies need, in alphabetical order.
pub(crate) type AttributeNames = Arc<[String]>;

/// An entry without its attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchEntry {
    pub(crate) time_us: u64,
    pub(crate) cost: u64,
    /// The logged status; 0 if none.
    pub(crate) status: u16,
}

#[derive(Debug)]
enum StoredValue {
    Absent,
    Address(IpAddr),
    /// The position of a text in the batch.
    Text(Range<usize>),
}

/// The attributes that these sets need.
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
            texts: Vec::new(),
            names,
        }
    }

    /// Adds an entry and notes which attributes have occurred, in the order of the names.
    pub(crate) fn push(&mut self, entry: &Entry<'_>, occurred: &mut [bool]) {
        for (name, occurred) in self.names.iter().zip(occurred) {
            let value = match attribute(entry, name) {
                Some(AttributeValue::Address(ip)) => StoredValue::Address(ip),
                Some(AttributeValue::Text(text)) => {
                    let start = self.texts.len();
                    self.texts.extend_from_slice(&text);
                    StoredValue::Text(start..self.texts.len())
                }
                None => StoredValue::Absent,
            };
            *occurred |= !matches!(value, StoredValue::Absent);
            self.values.push(value);
        }
        let &Entry { time_us, cost, status, .. } = entry;
        self.entries.push(BatchEntry { time_us, cost, status });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= BATCH_ENTRIES
    }

    /// Removes all entries but keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.values.clear();
        self.texts.clear();
    }

    /// Calls `decide` for each entry with its request, in order of time.
    pub(crate) fn for_each(&self, mut decide: impl FnMut(BatchEntry, &Request<'_>)) {
        for (at, entry) in self.entries.iter().enumerate() {
            let mut request = Request::new().with_cost(entry.cost);
            // In place: moving a request takes as long as adding an attribute.
            let values = &self.values[at * self.names.len()..];
            request.extend(self.names.iter().zip(values).filter_map(|(name, value)| {
                let value = match value {
                    StoredValue::Absent => return None,
                    StoredValue::Address(ip) => Value::Address(*ip),
                    StoredValue::Text(range) => Value::Bytes(&self.texts[range.clone()]),
                };
                Some((name.as_str(), value))
            }));
            decide(*entry, &request);
        }
    }
}

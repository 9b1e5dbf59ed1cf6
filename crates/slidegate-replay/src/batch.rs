//! Batches of entries: what the policies ask of each entry, copied out of the reader's buffer.
//!
//! The reader hands out one entry at a time and reuses its memory. A batch owns its entries, so
//! that several scenarios can decide it, each on a thread of its own. Only the attributes that
//! some policy asks for are copied.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use slidegate::{PolicySet, Request, Value, Verb};

use crate::attributes::{RecordedCall, value};
use crate::entry::Entry;

/// Entries decided together: enough that handing them to a thread costs nothing per entry, few
/// enough to stay in the CPU's cache.
pub(crate) const BATCH_ENTRIES: usize = 1024;

/// Entries in order of time, as policies see them.
#[derive(Debug)]
pub(crate) struct EntryBatch {
    names: AttributeNames,
    entries: Vec<BatchEntry>,
    /// One per entry and name.
    values: Vec<StoredValue>,
    /// The values that are text.
    bytes: Vec<u8>,
}

/// The attributes that some policy asks for.
pub(crate) type AttributeNames = Arc<[String]>;

/// What is not an attribute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchEntry {
    pub(crate) time_us: u64,
    pub(crate) cost: u64,
    /// The status that the log has; 0 if none.
    pub(crate) status: u16,
    verb: Verb,
    /// The only policy that decides: a range of the batch's bytes.
    policy: Option<(usize, usize)>,
}

#[derive(Debug, Clone, Copy)]
enum StoredValue {
    Absent,
    Address(IpAddr),
    /// A range of `bytes`.
    Text {
        start: usize,
        end: usize,
    },
}

/// The attributes that these sets ask for, in alphabetical order.
pub(crate) fn attribute_names<'a>(sets: impl IntoIterator<Item = &'a PolicySet>) -> AttributeNames {
    let names = sets.into_iter().flat_map(PolicySet::iter).flat_map(|policy| {
        let conditions = policy.conditions().iter().map(|(name, _)| name);
        policy.scope_attributes().iter().chain(conditions).cloned()
    });
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

impl EntryBatch {
    pub(crate) fn new(names: AttributeNames) -> Self {
        let values = Vec::with_capacity(BATCH_ENTRIES * names.len());
        Self { names, entries: Vec::with_capacity(BATCH_ENTRIES), values, bytes: Vec::new() }
    }

    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        let mut digits = [0; 5];
        let status = decimal(entry.status, &mut digits);
        for name in &*self.names {
            let value = match value(entry, name, status) {
                Some(Value::Address(ip)) => StoredValue::Address(ip),
                Some(Value::Bytes(text)) => {
                    let start = self.bytes.len();
                    self.bytes.extend_from_slice(text);
                    StoredValue::Text { start, end: self.bytes.len() }
                }
                _ => StoredValue::Absent,
            };
            self.values.push(value);
        }
        let RecordedCall { verb, policy } = RecordedCall::of(entry);
        let policy = policy.map(|policy| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(policy.as_bytes());
            (start, self.bytes.len())
        });
        let &Entry { time_us, cost, status, .. } = entry;
        self.entries.push(BatchEntry { time_us, cost, status, verb, policy });
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
        self.bytes.clear();
    }

    /// Each entry with its request, in order of time.
    ///
    /// A request is built in place and lent: moving one takes as long as half a decision.
    pub(crate) fn for_each(&self, mut decide: impl FnMut(BatchEntry, &Request<'_>)) {
        let width = self.names.len();
        for (at, entry) in self.entries.iter().enumerate() {
            let names = self.names.iter().map(String::as_str);
            let values = names.zip(&self.values[at * width..][..width]);
            let mut request = Request::new().cost(entry.cost).verb(entry.verb);
            if let Some((start, end)) = entry.policy {
                let policy = std::str::from_utf8(&self.bytes[start..end]);
                request = request.under(policy.expect("the name was text"));
            }
            request.extend(values.filter_map(|(name, value)| match *value {
                StoredValue::Absent => None,
                StoredValue::Address(ip) => Some((name, Value::Address(ip))),
                StoredValue::Text { start, end } => Some((name, Value::Bytes(&self.bytes[start..end]))),
            }));
            decide(*entry, &request);
        }
    }
}

/// The digits of a number, without an allocation.
fn decimal(number: u16, digits: &mut [u8; 5]) -> &str {
    let (mut rest, mut at) = (number, digits.len());
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
        if rest == 0 {
            return std::str::from_utf8(&digits[at..]).expect("digits are ASCII");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A condition on the status compares text: a lost digit would put all 404s under 40.
    #[test]
    fn every_status_is_written_as_the_standard_library_does() {
        for status in 0..=u16::MAX {
            assert_eq!(decimal(status, &mut [0; 5]), status.to_string());
        }
    }
}

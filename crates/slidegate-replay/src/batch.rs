//! Batches of entries: what the policies ask of each entry, copied out of the reader's buffer.
//!
//! The reader hands out one entry at a time and reuses its memory. A batch owns its entries, so
//! that several scenarios can decide it, each on a thread of its own. Only the attributes that
//! some policy asks for are copied, attribute by attribute, and those that keys consist of are
//! hashed once for all policies.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use slidegate::client_addr::{Ipv6Prefix, group};
use slidegate::{PolicySet, Request, Value, Verb};

use crate::attributes::{Attribute, EntryTexts, RecordedRequest, client_value, path_value, text_value};
use crate::block::{Record, Text};
use crate::call::{Call, RecordedHold};
use crate::entry::{Entries, Entry};
use crate::identity::{self, Identity};

/// Entries decided together: enough that handing them to a thread costs nothing per entry, few
/// enough to stay in the CPU's cache.
pub(crate) const BATCH_ENTRIES: usize = 256;

/// Entries in order of time, as policies see them.
#[derive(Debug)]
pub(crate) struct EntryBatch {
    names: AttributeNames,
    asks_for_path: bool,
    entries: Vec<BatchEntry>,
    /// Whether all entries are checks by all policies that apply.
    is_plain: bool,
    /// In the order of the names.
    columns: Vec<Column>,
    /// The values that are text.
    texts: Texts,
    /// Entries of several requests.
    calls: Vec<Call>,
}

/// Texts, one after the other.
#[derive(Debug, Default)]
struct Texts(Vec<u8>);

/// Where a text is among those of a batch.
#[derive(Debug, Clone, Copy)]
struct TextRange {
    start: u32,
    len: u32,
}

impl Texts {
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // lines are bounded, and so are the entries of a batch
    fn add(&mut self, text: &[u8]) -> TextRange {
        let start = self.0.len() as u32;
        self.0.extend_from_slice(text);
        TextRange { start, len: text.len() as u32 }
    }

    #[inline]
    fn get(&self, range: TextRange) -> &[u8] {
        &self.0[range.start as usize..][..range.len as usize]
    }
}

/// The attributes that some policy asks for, in alphabetical order.
pub(crate) type AttributeNames = Arc<[AttributeName]>;

/// An attribute that some policy asks for.
#[derive(Debug)]
pub(crate) struct AttributeName {
    name: String,
    attribute: Attribute,
    /// Whether keys consist of it, not only conditions.
    is_in_keys: bool,
}

impl AttributeName {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

/// What is not an attribute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchEntry {
    pub(crate) time_us: u64,
    /// How long it took; `None` if the log does not say.
    pub(crate) duration_us: Option<u64>,
    pub(crate) cost: u64,
    /// The status that the log has; 0 if none.
    pub(crate) status: u16,
    verb: Verb,
    kind: EntryKind,
}

/// What an entry asks for.
#[derive(Debug, Clone, Copy)]
enum EntryKind {
    /// One request, which all policies that apply decide.
    Ordinary,
    /// One request, which only the policy of this name decides.
    Named(TextRange),
    /// Several requests, by their position among the calls of the batch.
    Call(u32),
}

impl BatchEntry {
    /// Whether it is a check by all policies that apply.
    #[inline]
    pub(crate) fn is_plain_check(&self) -> bool {
        self.verb == Verb::Check && matches!(self.kind, EntryKind::Ordinary)
    }
}

/// One attribute of all entries.
#[derive(Debug, Default)]
struct Column {
    values: Vec<StoredValue>,
    /// Their identities; of texts only if keys consist of them. Those of IPv6 addresses depend on
    /// the policy.
    ids: Vec<Identity>,
    has_ipv6: bool,
    /// Whether any entry has it.
    has_any: bool,
}

#[derive(Debug, Clone, Copy)]
enum StoredValue {
    Absent,
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Text(TextRange),
}

impl Column {
    #[inline]
    fn push(&mut self, name: &AttributeName, value: Option<Value<'_>>, texts: &mut Texts) {
        self.has_any |= value.is_some();
        // Each case by itself: a value that is put together first is copied slowly.
        match value {
            Some(Value::Address(IpAddr::V4(ip))) => {
                self.values.push(StoredValue::V4(ip));
                self.ids.push(identity::of_group(IpAddr::V4(ip)));
            }
            Some(Value::Address(IpAddr::V6(ip))) => {
                self.has_ipv6 = true;
                self.values.push(StoredValue::V6(ip));
                self.ids.push(identity::of_group(IpAddr::V6(ip)));
            }
            Some(Value::Bytes(text)) => {
                self.values.push(StoredValue::Text(texts.add(text)));
                self.ids.push(if name.is_in_keys { identity::of_text(text) } else { identity::NONE });
            }
            _ => {
                self.values.push(StoredValue::Absent);
                self.ids.push(identity::NONE);
            }
        }
    }

    /// Takes the values of entries.
    fn extend(&mut self, name: &AttributeName, from: Entries<'_>, texts: &mut Texts) {
        let Entries { block, records } = from;
        self.values.reserve(records.len());
        self.ids.reserve(records.len());
        match name.attribute {
            Attribute::Ip => self.extend_texts(name, from, texts, Text::Client, client_value),
            Attribute::Path => {
                for record in records {
                    if record.has_extras() {
                        self.push_any(name, from, record, texts);
                        continue;
                    }
                    let path = block.text(record.texts[Text::Target as usize]).and_then(path_value);
                    self.push(name, path.as_deref().map(Value::Bytes), texts);
                }
            }
            Attribute::Method => self.extend_texts(name, from, texts, Text::Method, text_value),
            Attribute::User => self.extend_texts(name, from, texts, Text::User, any_text),
            Attribute::UserAgent => self.extend_texts(name, from, texts, Text::UserAgent, any_text),
            Attribute::Host => self.extend_texts(name, from, texts, Text::Host, any_text),
            Attribute::Referer => self.extend_texts(name, from, texts, Text::Referer, any_text),
            Attribute::Status | Attribute::Other => {
                for record in records {
                    self.push_any(name, from, record, texts);
                }
            }
        }
    }

    #[inline(always)]
    fn extend_texts(
        &mut self,
        name: &AttributeName,
        from: Entries<'_>,
        texts: &mut Texts,
        which: Text,
        value: impl Fn(&[u8]) -> Option<Value<'_>>,
    ) {
        for record in from.records {
            if record.has_extras() {
                self.push_any(name, from, record, texts);
                continue;
            }
            let text = from.block.text(record.texts[which as usize]);
            self.push(name, text.and_then(&value), texts);
        }
    }

    /// Takes the value of an entry that may have it among its further attributes.
    fn push_any(&mut self, name: &AttributeName, from: Entries<'_>, record: &Record, texts: &mut Texts) {
        let entry = Entry::of(from.block, record);
        let entry_texts = EntryTexts::new(&entry, name.attribute == Attribute::Path);
        self.push(name, name.attribute.value(&entry, &name.name, &entry_texts), texts);
    }
}

/// A header that is empty is present.
#[inline]
fn any_text(text: &[u8]) -> Option<Value<'_>> {
    Some(Value::Bytes(text))
}

/// The attributes that these sets ask for.
pub(crate) fn attribute_names<'a>(sets: impl IntoIterator<Item = &'a PolicySet>) -> AttributeNames {
    let mut names: BTreeMap<&str, bool> = BTreeMap::new();
    for policy in sets.into_iter().flat_map(PolicySet::iter) {
        for name in policy.scope_attributes() {
            names.insert(name, true);
        }
        for (name, _) in policy.conditions() {
            names.entry(name).or_insert(false);
        }
    }
    let named = |(name, is_in_keys): (&str, bool)| AttributeName {
        name: name.to_owned(),
        attribute: Attribute::of(name),
        is_in_keys,
    };
    names.into_iter().map(named).collect()
}

impl EntryBatch {
    pub(crate) fn new(names: AttributeNames) -> Self {
        let columns = names.iter().map(|_| Column::default()).collect();
        let asks_for_path = names.iter().any(|name| name.attribute == Attribute::Path);
        let entries = Vec::with_capacity(BATCH_ENTRIES);
        let (texts, calls) = (Texts::default(), Vec::new());
        Self { names, asks_for_path, entries, is_plain: true, columns, texts, calls }
    }

    pub(crate) fn push(&mut self, entry: &Entry<'_>) {
        let Self { names, columns, texts, .. } = self;
        let entry_texts = EntryTexts::new(entry, self.asks_for_path);
        for (name, column) in names.iter().zip(columns) {
            column.push(name, name.attribute.value(entry, &name.name, &entry_texts), texts);
        }
        self.push_entry(entry);
    }

    /// Adds an entry without its attributes.
    fn push_entry(&mut self, entry: &Entry<'_>) {
        let RecordedRequest { verb, policy } = RecordedRequest::of(entry);
        let kind = match (Call::of(entry), policy) {
            (Some(call), _) => {
                for (name, column) in self.names.iter().zip(&mut self.columns) {
                    column.has_any |= call.attribute_names().any(|known| name.is(known));
                }
                self.calls.push(call);
                #[allow(clippy::cast_possible_truncation)] // at most the entries of a batch
                EntryKind::Call(self.calls.len() as u32 - 1)
            }
            (None, Some(policy)) => EntryKind::Named(self.texts.add(policy.as_bytes())),
            (None, None) => EntryKind::Ordinary,
        };
        let &Entry { time_us, duration_us, cost, status, .. } = entry;
        let entry = BatchEntry { time_us, duration_us, cost, status, verb, kind };
        self.is_plain &= entry.is_plain_check();
        self.entries.push(entry);
    }

    /// Takes as many entries as there is room for. Returns how many.
    ///
    /// It is what [`push`](Self::push) does, attribute by attribute.
    pub(crate) fn extend(&mut self, from: Entries<'_>) -> usize {
        let count = from.len().min(BATCH_ENTRIES - self.entries.len());
        let Entries { block, records } = from;
        let from = Entries { block, records: &records[..count] };
        let Self { names, columns, texts, .. } = self;
        for (name, column) in names.iter().zip(columns) {
            column.extend(name, from, texts);
        }
        for record in from.records {
            let &Record { time_us, cost, status, .. } = record;
            if record.has_extras() {
                self.push_entry(&Entry::of(block, record));
            } else {
                let (verb, kind) = (Verb::Check, EntryKind::Ordinary);
                let duration_us = record.duration_us();
                self.entries.push(BatchEntry { time_us, duration_us, cost, status, verb, kind });
            }
        }
        count
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
        self.is_plain = true;
        self.texts.0.clear();
        self.calls.clear();
        for column in &mut self.columns {
            column.values.clear();
            column.ids.clear();
            column.has_ipv6 = false;
            column.has_any = false;
        }
    }

    pub(crate) fn entries(&self) -> &[BatchEntry] {
        &self.entries
    }

    /// Whether any entry, or a request of one, has an attribute.
    pub(crate) fn has_any(&self, column: usize) -> bool {
        self.columns[column].has_any
    }

    /// The number of an attribute's column.
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|known| known.name == name)
    }

    /// An attribute of an entry.
    #[inline]
    pub(crate) fn value(&self, column: usize, entry: usize) -> Option<Value<'_>> {
        match self.columns[column].values[entry] {
            StoredValue::Absent => None,
            StoredValue::V4(ip) => Some(Value::Address(IpAddr::V4(ip))),
            StoredValue::V6(ip) => Some(Value::Address(IpAddr::V6(ip))),
            StoredValue::Text(range) => Some(Value::Bytes(self.texts.get(range))),
        }
    }

    /// Whether all entries are checks by all policies that apply.
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// The identities of an attribute that is part of keys, unless they depend on the policy.
    pub(crate) fn identities(&self, column: usize) -> Option<&[Identity]> {
        let Column { ids, has_ipv6, .. } = &self.columns[column];
        (!has_ipv6).then_some(ids)
    }

    /// The identity of an attribute that is part of a key; [`NONE`](identity::NONE) if it is absent.
    #[inline]
    pub(crate) fn identity(&self, column: usize, entry: usize, prefix: Ipv6Prefix) -> Identity {
        let Column { values, ids, .. } = &self.columns[column];
        match values[entry] {
            StoredValue::V6(ip) => identity::of_group(group(IpAddr::V6(ip), prefix)),
            _ => ids[entry],
        }
    }

    /// The requests that an entry stands for: one, or those of its call.
    ///
    /// One is built in place and lent: moving it takes as long as half a decision.
    pub(crate) fn with_requests<T>(&self, at: usize, decide: impl FnOnce(&[Request<'_>]) -> T) -> T {
        let entry = self.entries[at];
        if let EntryKind::Call(call) = entry.kind {
            return decide(&self.calls[call as usize].requests());
        }
        let mut request = Request::new().cost(entry.cost).verb(entry.verb);
        if let EntryKind::Named(range) = entry.kind {
            let policy = std::str::from_utf8(self.texts.get(range));
            request = request.under(policy.expect("the name was text"));
        }
        let names = self.names.iter().map(|name| name.name.as_str()).enumerate();
        request.extend(names.filter_map(|(column, name)| Some((name, self.value(column, at)?))));
        decide(std::slice::from_ref(&request))
    }

    /// What an entry did with a reservation, as a recording has it.
    pub(crate) fn hold(&self, entry: BatchEntry) -> Option<&RecordedHold> {
        match entry.kind {
            EntryKind::Call(call) => self.calls[call as usize].hold(),
            EntryKind::Ordinary | EntryKind::Named(_) => None,
        }
    }

    /// Each entry with its requests, in order of time.
    pub(crate) fn for_each(&self, mut decide: impl FnMut(BatchEntry, &[Request<'_>])) {
        for (at, entry) in self.entries.iter().enumerate() {
            self.with_requests(at, |requests| decide(*entry, requests));
        }
    }
}

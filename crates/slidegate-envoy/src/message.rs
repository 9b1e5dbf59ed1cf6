//! The message of a rate-limit call, decoded with a few allocations however many descriptors it has.
//!
//! The messages that Envoy sends are read here. Anything else, such as unknown fields or malformed
//! messages, is left to prost, so that it is accepted or rejected as by every other service.

use std::ops::Range;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::encoding::decode_varint;
use prost::{DecodeError, Message};

/// A `RateLimitRequest`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallMessage {
    /// The keys and values of all entries in their order, then the domain.
    texts: String,
    /// Where the key and the value of each entry end in `texts`. Each begins where the text before
    /// it ends.
    entries: Vec<EntryEnds>,
    descriptors: Vec<DescriptorFields>,
    hits_addend: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct EntryEnds {
    key: usize,
    value: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct DescriptorFields {
    /// Where its entries end. They begin where those of the descriptor before end.
    entries_end: usize,
    limit: Option<RateLimitOverride>,
    hits_addend: Option<u64>,
    is_negative_hits: bool,
}

/// A `RateLimitResponse`, encoded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct EncodedResponse(pub(crate) Vec<u8>);

/// A descriptor of a call.
#[derive(Debug, Clone)]
pub(crate) struct Descriptor<'m> {
    message: &'m CallMessage,
    entries: Range<usize>,
    fields: &'m DescriptorFields,
}

impl CallMessage {
    /// Decodes a message.
    ///
    /// # Errors
    /// Those of prost.
    pub(crate) fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        match read(message) {
            Some(read) => Ok(read),
            None => RateLimitRequest::decode(message).map(Self::from),
        }
    }

    /// The domain.
    pub(crate) fn domain(&self) -> &str {
        &self.texts[self.entries.last().map_or(0, |entry| entry.value)..]
    }

    /// The hits of descriptors that do not have their own.
    pub(crate) fn hits_addend(&self) -> u32 {
        self.hits_addend
    }

    /// The descriptors.
    pub(crate) fn descriptors(&self) -> impl ExactSizeIterator<Item = Descriptor<'_>> {
        let mut start = 0;
        self.descriptors.iter().map(move |fields| {
            let entries = start..fields.entries_end;
            start = fields.entries_end;
            Descriptor { message: self, entries, fields }
        })
    }
}

impl<'m> Descriptor<'m> {
    /// The key and the value of each entry.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'m str, &'m str)> + use<'m> {
        let CallMessage { texts, entries, .. } = self.message;
        let mut start = self.entries.start.checked_sub(1).map_or(0, |before| entries[before].value);
        entries[self.entries.clone()].iter().map(move |ends| {
            let entry = (&texts[start..ends.key], &texts[ends.key..ends.value]);
            start = ends.value;
            entry
        })
    }

    /// The limit that it carries.
    pub(crate) fn limit(&self) -> Option<RateLimitOverride> {
        self.fields.limit
    }

    /// Its own hits.
    pub(crate) fn hits_addend(&self) -> Option<u64> {
        self.fields.hits_addend
    }

    /// Whether its hits are refunds.
    pub(crate) fn is_negative_hits(&self) -> bool {
        self.fields.is_negative_hits
    }
}

impl From<RateLimitRequest> for CallMessage {
    fn from(request: RateLimitRequest) -> Self {
        let mut out = Parts::for_bytes(0);
        for descriptor in request.descriptors {
            descriptor
                .entries
                .iter()
                .for_each(|entry| out.add_entry(entry.key.as_bytes(), entry.value.as_bytes()));
            out.descriptors.push(DescriptorFields {
                entries_end: out.entries.len(),
                limit: descriptor.limit,
                hits_addend: descriptor.hits_addend.map(|hits| hits.value),
                is_negative_hits: descriptor.is_negative_hits,
            });
        }
        out.complete(request.domain.as_bytes(), request.hits_addend).expect("the texts are strings")
    }
}

/// The parts of a message, of which the texts are still to be checked.
struct Parts {
    texts: Vec<u8>,
    entries: Vec<EntryEnds>,
    descriptors: Vec<DescriptorFields>,
}

impl Parts {
    /// For a message of so many bytes. Growing a list copies it, so there is room for those of most
    /// calls.
    fn for_bytes(bytes: usize) -> Self {
        Self {
            texts: Vec::with_capacity(bytes),
            entries: Vec::with_capacity(8),
            descriptors: Vec::with_capacity(6),
        }
    }

    fn add_entry(&mut self, key: &[u8], value: &[u8]) {
        self.texts.extend_from_slice(key);
        let key = self.texts.len();
        self.texts.extend_from_slice(value);
        self.entries.push(EntryEnds { key, value: self.texts.len() });
    }

    /// The message; `None` if a text is not UTF-8. All of them are checked at once: together they
    /// are valid and none begins within a character if and only if each is valid.
    fn complete(mut self, domain: &[u8], hits_addend: u32) -> Option<CallMessage> {
        self.texts.extend_from_slice(domain);
        let Self { texts, entries, descriptors } = self;
        let texts = String::from_utf8(texts).ok()?;
        let is_whole =
            |ends: &EntryEnds| texts.is_char_boundary(ends.key) && texts.is_char_boundary(ends.value);
        entries.iter().all(is_whole).then_some(CallMessage { texts, entries, descriptors, hits_addend })
    }
}

/// The key of a field of bytes, a message or a text, whose number this is.
const fn bytes_field(number: u64) -> u64 {
    number << 3 | 2
}

/// The key of a field that is a number.
const fn number_field(number: u64) -> u64 {
    number << 3
}

const DOMAIN: u64 = bytes_field(1);
const DESCRIPTOR: u64 = bytes_field(2);
const HITS_ADDEND: u64 = number_field(3);

const ENTRY: u64 = bytes_field(1);
const LIMIT: u64 = bytes_field(2);
const OWN_HITS_ADDEND: u64 = bytes_field(3);
const IS_NEGATIVE_HITS: u64 = number_field(4);

const KEY: u64 = bytes_field(1);
const VALUE: u64 = bytes_field(2);

const REQUESTS_PER_UNIT: u64 = number_field(1);
const UNIT: u64 = number_field(2);

/// The field of a wrapped number.
const WRAPPED: u64 = number_field(1);

/// Reads a message; `None` if it has other fields than Envoy sends, has a text or a message twice
/// where one is expected, or is malformed.
fn read(mut message: &[u8]) -> Option<CallMessage> {
    let mut parts = Parts::for_bytes(message.len());
    let (mut domain, mut hits_addend) = (None, 0);
    while !message.is_empty() {
        match number(&mut message)? {
            DESCRIPTOR => read_descriptor(bytes(&mut message)?, &mut parts)?,
            DOMAIN => set(&mut domain, bytes(&mut message)?)?,
            HITS_ADDEND => hits_addend = low_32_bits(number(&mut message)?),
            _ => return None,
        }
    }
    parts.complete(domain.unwrap_or_default(), hits_addend)
}

fn read_descriptor(mut message: &[u8], parts: &mut Parts) -> Option<()> {
    let mut fields = DescriptorFields::default();
    while !message.is_empty() {
        match number(&mut message)? {
            ENTRY => read_entry(bytes(&mut message)?, parts)?,
            LIMIT => set(&mut fields.limit, read_limit(bytes(&mut message)?)?)?,
            OWN_HITS_ADDEND => set(&mut fields.hits_addend, read_wrapped(bytes(&mut message)?)?)?,
            IS_NEGATIVE_HITS => fields.is_negative_hits = number(&mut message)? != 0,
            _ => return None,
        }
    }
    fields.entries_end = parts.entries.len();
    parts.descriptors.push(fields);
    Some(())
}

fn read_entry(mut message: &[u8], parts: &mut Parts) -> Option<()> {
    let (mut key, mut value) = (None, None);
    while !message.is_empty() {
        match number(&mut message)? {
            KEY => set(&mut key, bytes(&mut message)?)?,
            VALUE => set(&mut value, bytes(&mut message)?)?,
            _ => return None,
        }
    }
    parts.add_entry(key.unwrap_or_default(), value.unwrap_or_default());
    Some(())
}

fn read_limit(mut message: &[u8]) -> Option<RateLimitOverride> {
    let mut limit = RateLimitOverride::default();
    while !message.is_empty() {
        match number(&mut message)? {
            REQUESTS_PER_UNIT => limit.requests_per_unit = low_32_bits(number(&mut message)?),
            UNIT => limit.unit = low_32_bits(number(&mut message)?).cast_signed(),
            _ => return None,
        }
    }
    Some(limit)
}

fn read_wrapped(mut message: &[u8]) -> Option<u64> {
    let mut value = 0;
    while !message.is_empty() {
        match number(&mut message)? {
            WRAPPED => value = number(&mut message)?,
            _ => return None,
        }
    }
    Some(value)
}

/// Sets a field that a message has at most once; `None` if it has it twice.
fn set<T>(field: &mut Option<T>, value: T) -> Option<()> {
    field.replace(value).is_none().then_some(())
}

/// Reads a number from the beginning of `message`.
fn number(message: &mut &[u8]) -> Option<u64> {
    decode_varint(message).ok()
}

/// Reads bytes and their length from the beginning of `message`.
fn bytes<'m>(message: &mut &'m [u8]) -> Option<&'m [u8]> {
    let length = usize::try_from(number(message)?).ok()?;
    let (bytes, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(bytes)
}

/// A number of 32 bits as protocol buffers define it: the upper bits are dropped.
#[allow(clippy::cast_possible_truncation)]
fn low_32_bits(number: u64) -> u32 {
    number as u32
}

/// Compares a message with what prost makes of it. `None` if it is left to prost.
///
/// # Panics
/// They differ.
#[cfg(any(test, fuzzing))]
pub(crate) fn compare(message: &[u8]) -> Option<CallMessage> {
    let of_prost = RateLimitRequest::decode(message).map(CallMessage::from);
    let read = read(message);
    if let Some(read) = &read {
        assert_eq!(Ok(read), of_prost.as_ref(), "{message:?}");
    }
    assert_eq!(CallMessage::decode(message), of_prost, "{message:?}");
    read
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use envoy_types::pb::google::protobuf::UInt64Value;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};

    use super::*;

    fn requests() -> impl Strategy<Value = RateLimitRequest> {
        let text = || "[aß€😀]{0,3}|[a-z]{100,200}";
        let entry = (text(), text()).prop_map(|(key, value)| Entry { key, value });
        let limit = (any::<u32>(), any::<i32>())
            .prop_map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
        let hits = any::<u64>().prop_map(|value| UInt64Value { value });
        let descriptor = (vec(entry, 0..4), option::of(limit), option::of(hits), any::<bool>());
        let descriptor = descriptor.prop_map(|(entries, limit, hits_addend, is_negative_hits)| {
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        });
        (text(), vec(descriptor, 0..7), any::<u32>()).prop_map(|(domain, descriptors, hits_addend)| {
            RateLimitRequest { domain, descriptors, hits_addend }
        })
    }

    /// Numbers as they are encoded: also with more bytes than necessary, or too many.
    fn varints() -> impl Strategy<Value = Vec<u8>> {
        let shortest = any::<u64>().prop_map(|number| {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(number, &mut bytes);
            bytes
        });
        let small = (0..0x80u8).prop_map(|number| vec![number]);
        let padded = (0..0x80u8, 0..11usize).prop_map(|(number, zeros)| {
            let mut bytes = vec![number | 0x80];
            bytes.extend(vec![0x80; zeros]);
            bytes.push(0);
            bytes
        });
        prop_oneof![small, shortest, padded]
    }

    /// Fields of any wire type, nested at random, with numbers that messages have and others.
    fn fields() -> impl Strategy<Value = Vec<u8>> {
        let number = 0..7u8;
        let varint =
            (number.clone(), varints()).prop_map(|(number, value)| [vec![number << 3], value].concat());
        let fixed = (number.clone(), select(vec![(1, 8), (5, 4)]), any::<[u8; 8]>())
            .prop_map(|(number, (kind, length), bytes)| [&[number << 3 | kind], &bytes[..length]].concat());
        let group = number.clone().prop_map(|number| vec![number << 3 | 3, number << 3 | 4]);
        let text =
            (number.clone(), vec(any::<u8>(), 0..3)).prop_map(|(number, bytes)| bytes_of(number, &bytes));
        let leaf = prop_oneof![4 => varint, 1 => fixed, 1 => group, 4 => text];
        let list = |field| vec(field, 0..4).prop_map(|fields: Vec<Vec<u8>>| fields.concat());
        list(leaf.prop_recursive(3, 20, 4, move |inner| {
            (1..4u8, vec(inner, 0..4)).prop_map(|(number, fields)| bytes_of(number, &fields.concat()))
        }))
    }

    fn bytes_of(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(bytes.len() as u64, &mut field);
        [&field, bytes].concat()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// What Envoy sends takes the short path, and says the same on it.
        #[test]
        fn messages_are_read_as_by_prost(request in requests()) {
            let message = request.encode_to_vec();
            let read = compare(&message).expect("it has the usual fields");
            prop_assert_eq!(read, CallMessage::from(request));
        }

        /// A proxy in front must not read another call than this one does.
        #[test]
        fn changed_messages_are_accepted_and_rejected_as_by_prost(
            request in requests(),
            changes in vec((any::<Index>(), any::<u8>()), 0..4),
            kept in option::of(any::<Index>()),
        ) {
            let mut message = request.encode_to_vec();
            for (at, byte) in changes {
                if !message.is_empty() {
                    let at = at.index(message.len());
                    message[at] = byte;
                }
            }
            message.truncate(kept.map_or(message.len(), |kept| kept.index(message.len() + 1)));
            compare(&message);
        }

        /// The same for any fields, and with fields that come twice.
        #[test]
        fn odd_messages_are_accepted_and_rejected_as_by_prost(
            before in fields(),
            request in requests(),
            after in fields(),
        ) {
            compare(&before);
            compare(&[before, request.encode_to_vec(), after].concat());
        }
    }

    fn texts(message: &CallMessage) -> Vec<Vec<(&str, &str)>> {
        message.descriptors().map(|descriptor| descriptor.entries().collect()).collect()
    }

    /// Each descriptor has its own entries, also next to ones without any.
    #[test]
    fn entries_belong_to_their_descriptor() {
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let of = |entries: Vec<Entry>| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
        let request = RateLimitRequest {
            domain: "web".into(),
            descriptors: vec![
                of(vec![]),
                of(vec![entry("a", "1"), entry("", "2")]),
                of(vec![]),
                of(vec![entry("ß", "")]),
            ],
            hits_addend: 3,
        };
        let read = CallMessage::decode(&request.encode_to_vec()).unwrap();
        assert_eq!(texts(&read), [vec![], vec![("a", "1"), ("", "2")], vec![], vec![("ß", "")]]);
        assert_eq!((read.domain(), read.hits_addend()), ("web", 3));
    }

    /// Two texts that are valid only together would otherwise be split within a character.
    #[test]
    fn a_character_cannot_be_shared_by_two_texts() {
        let entry = [bytes_of(1, &[0xC3]), bytes_of(2, &[0x9F])].concat();
        let message = bytes_of(2, &bytes_of(1, &entry));
        assert_eq!(compare(&message), None);
        let error = CallMessage::decode(&message).unwrap_err().to_string();
        assert!(error.ends_with("invalid string value: data is not UTF-8 encoded"), "{error}");
    }
}

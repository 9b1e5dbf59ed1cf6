//! The messages of `ShouldRateLimit`, with keys and values of any bytes.
//!
//! Envoy's whole API as generated code would take longer to compile than the rest of the service;
//! the tests decode and encode with it.
//!
//! protobuf requires UTF-8, but a header field that a client sends to its proxy may be any bytes. As text,
//! one such value would make the whole call an error, and a proxy that fails open would let it pass. Decoding
//! keeps at most one part more than is read, so its memory is bounded.

mod response;

use prost::bytes::{Buf, BufMut, Bytes};
use prost::encoding::{self, DecodeContext, WireType, skip_field};
use prost::{DecodeError, Message};

use crate::limits::MAX_ATTRIBUTES;

pub(crate) use response::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse};

/// Maximum descriptors of a call. Envoy sends one per rate limit action of a route, and planning compares
/// each with all others.
pub(crate) const MAX_DESCRIPTORS: usize = 64;

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RateLimitRequest {
    pub(crate) domain: String,
    /// At most one more than [`MAX_DESCRIPTORS`].
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct RateLimitDescriptor {
    /// At most one more than [`MAX_ATTRIBUTES`].
    pub(crate) entries: Vec<Entry>,
    pub(crate) limit: Option<RateLimitOverride>,
    pub(crate) hits_addend: Option<u64>,
    pub(crate) is_negative_hits: bool,
}

/// An entry of a descriptor.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Entry {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

/// A limit that a descriptor carries: `RateLimitDescriptor.RateLimitOverride`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct RateLimitOverride {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    /// A number of [`Unit`](crate::envoy::Unit), or another one.
    #[prost(int32, tag = "2")]
    pub(crate) unit: i32,
}

impl Message for RateLimitRequest {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if !self.domain.is_empty() {
            encoding::string::encode(1, &self.domain, buf);
        }
        encoding::message::encode_repeated(2, &self.descriptors, buf);
        if self.hits_addend > 0 {
            encoding::uint32::encode(3, &self.hits_addend, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => encoding::string::merge(wire_type, &mut self.domain, buf, ctx),
            2 if self.descriptors.len() <= MAX_DESCRIPTORS => {
                encoding::message::merge_repeated(wire_type, &mut self.descriptors, buf, ctx)
            }
            3 => encoding::uint32::merge(wire_type, &mut self.hits_addend, buf, ctx),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let domain = if self.domain.is_empty() { 0 } else { encoding::string::encoded_len(1, &self.domain) };
        let hits = if self.hits_addend > 0 { encoding::uint32::encoded_len(3, &self.hits_addend) } else { 0 };
        domain + encoding::message::encoded_len_repeated(2, &self.descriptors) + hits
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Message for RateLimitDescriptor {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encoding::message::encode_repeated(1, &self.entries, buf);
        if let Some(limit) = &self.limit {
            encoding::message::encode(2, limit, buf);
        }
        if let Some(hits) = &self.hits_addend {
            encoding::message::encode(3, hits, buf);
        }
        if self.is_negative_hits {
            encoding::bool::encode(4, &self.is_negative_hits, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 if self.entries.len() <= MAX_ATTRIBUTES => {
                encoding::message::merge_repeated(wire_type, &mut self.entries, buf, ctx)
            }
            2 => encoding::message::merge(wire_type, self.limit.get_or_insert_default(), buf, ctx),
            3 => encoding::message::merge(wire_type, self.hits_addend.get_or_insert_default(), buf, ctx),
            4 => encoding::bool::merge(wire_type, &mut self.is_negative_hits, buf, ctx),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        let limit = self.limit.as_ref().map_or(0, |limit| encoding::message::encoded_len(2, limit));
        let hits = self.hits_addend.as_ref().map_or(0, |hits| encoding::message::encoded_len(3, hits));
        let negative = if self.is_negative_hits { encoding::bool::encoded_len(4, &true) } else { 0 };
        encoding::message::encoded_len_repeated(1, &self.entries) + limit + hits + negative
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use envoy_types::pb::envoy::config::core::v3 as core;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as common;
    use envoy_types::pb::envoy::service::ratelimit::v3 as service;
    use envoy_types::pb::google::protobuf;

    use super::*;

    fn generated(descriptors: usize, entries: usize) -> service::RateLimitRequest {
        let entry = |at: usize| common::rate_limit_descriptor::Entry {
            key: format!("key-{at}"),
            value: if at == 0 { String::new() } else { "välue".repeat(at) },
        };
        let descriptor = |at: u32| common::RateLimitDescriptor {
            entries: (0..entries).map(entry).collect(),
            limit: at.is_multiple_of(2).then_some(common::rate_limit_descriptor::RateLimitOverride {
                requests_per_unit: at,
                unit: 3,
            }),
            hits_addend: at.is_multiple_of(3).then_some(protobuf::UInt64Value { value: u64::from(at) << 40 }),
            is_negative_hits: at.is_multiple_of(5),
        };
        let descriptors = (0..u32::try_from(descriptors).unwrap()).map(descriptor).collect();
        service::RateLimitRequest { domain: "web".into(), descriptors, hits_addend: 7 }
    }

    /// Envoy sends the encoding of its own definition.
    #[test]
    fn a_request_is_the_same_bytes_as_the_generated_message() {
        for message in [service::RateLimitRequest::default(), generated(1, 1), generated(12, 5)] {
            let bytes = message.encode_to_vec();
            let read = RateLimitRequest::decode(&bytes[..]).unwrap();
            assert_eq!(read.encode_to_vec(), bytes);
            assert_eq!(read.encoded_len(), bytes.len());
            assert_eq!((&read.domain, read.hits_addend), (&message.domain, message.hits_addend));
            let texts = |bytes: &Bytes| std::str::from_utf8(bytes).unwrap().to_owned();
            for (read, sent) in read.descriptors.iter().zip(&message.descriptors) {
                let limit = sent.limit.map(|limit| (limit.requests_per_unit, limit.unit));
                assert_eq!(read.limit.map(|limit| (limit.requests_per_unit, limit.unit)), limit);
                assert_eq!(read.hits_addend, sent.hits_addend.map(|hits| hits.value));
                assert_eq!(read.is_negative_hits, sent.is_negative_hits);
                let entries: Vec<_> =
                    read.entries.iter().map(|one| (texts(&one.key), texts(&one.value))).collect();
                let expected: Vec<_> =
                    sent.entries.iter().map(|one| (one.key.clone(), one.value.clone())).collect();
                assert_eq!(entries, expected);
            }
        }
    }

    /// Envoy reads a response by its own definition.
    #[test]
    fn a_response_is_the_same_bytes_as_the_generated_message() {
        let kind = prost_types::value::Kind::StringValue("v".into());
        let value = prost_types::Value { kind: Some(kind) };
        let response = RateLimitResponse {
            overall_code: Code::OverLimit.into(),
            statuses: vec![DescriptorStatus {
                code: Code::Ok.into(),
                current_limit: Some(RateLimit { requests_per_unit: 10, unit: 2, name: "per-user".into() }),
                limit_remaining: 3,
                duration_until_reset: Some(prost_types::Duration { seconds: 4, nanos: 5 }),
            }],
            response_headers_to_add: vec![HeaderValue { key: "k".into(), value: "v".into() }],
            raw_body: b"body".into(),
            dynamic_metadata: Some(prost_types::Struct { fields: [("f".to_owned(), value)].into() }),
        };
        let kind = protobuf::value::Kind::StringValue("v".into());
        let value = protobuf::Value { kind: Some(kind) };
        let generated = service::RateLimitResponse {
            overall_code: service::rate_limit_response::Code::OverLimit.into(),
            statuses: vec![service::rate_limit_response::DescriptorStatus {
                code: service::rate_limit_response::Code::Ok.into(),
                current_limit: Some(service::rate_limit_response::RateLimit {
                    requests_per_unit: 10,
                    unit: 2,
                    name: "per-user".into(),
                }),
                limit_remaining: 3,
                duration_until_reset: Some(protobuf::Duration { seconds: 4, nanos: 5 }),
                quota: None,
            }],
            response_headers_to_add: vec![core::HeaderValue {
                key: "k".into(),
                value: "v".into(),
                raw_value: Vec::new(),
            }],
            raw_body: b"body".into(),
            dynamic_metadata: Some(protobuf::Struct { fields: HashMap::from([("f".to_owned(), value)]) }),
            ..service::RateLimitResponse::default()
        };
        assert_eq!(response.encode_to_vec(), generated.encode_to_vec());
    }

    /// A megabyte of empty parts, two bytes each, must not become 50 MB in memory.
    #[test]
    fn of_too_many_parts_one_too_many_is_kept() {
        let read = RateLimitRequest::decode(&[0x12, 0].repeat(500_000)[..]).unwrap();
        assert_eq!(read.descriptors.len(), MAX_DESCRIPTORS + 1);
        let read = RateLimitDescriptor::decode(&[0x0a, 0].repeat(500_000)[..]).unwrap();
        assert_eq!(read.entries.len(), MAX_ATTRIBUTES + 1);
    }

    /// A header field may be any bytes, and so may an entry that a proxy derives from it.
    #[test]
    fn keys_and_values_are_any_bytes() {
        let entry = Entry { key: Bytes::from_static(b"\xffk"), value: Bytes::from_static(b"\x00\xfe\n") };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        assert_eq!(RateLimitDescriptor::decode(&descriptor.encode_to_vec()[..]).unwrap(), descriptor);
    }
}

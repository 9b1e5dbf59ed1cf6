//! Dynamic metadata of a response, for later filters and access logs of Envoy.
//!
//! A denial names its policy, key and reason. With `RESPONSE_DYNAMIC_METADATA`, every response
//! contains the call, as in envoyproxy/ratelimit, and the `metadata` of the limits that allowed it.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::{Map, Value as Json, json};
use slidegate_http::headers::millis_ceil;

use super::denial::{CallDenial, wait};
use super::request::DescriptorTarget;
use super::values::MAX_VALUE;
use crate::engine::explanation;
use crate::envoy::Unit;
use crate::wire::grpc::message::{Code, DescriptorStatus, RateLimitDescriptor, RateLimitRequest};

/// The denying policy, its key and the reason.
pub(super) fn denial(denial: &CallDenial<'_>) -> Map<String, Json> {
    let one = &denial.decision;
    object([
        ("policy", one.policy().name().into()),
        ("key", one.key().to_string().into()),
        ("why", explanation::one(one).into()),
        ("reason", denial.reason().name().into()),
        ("source", one.decision().source().name().into()),
        ("descriptor", denial.descriptor.into()),
        ("limit", one.decision().limit().into()),
        ("retry_after_ms", wait(one).map(millis_ceil).into()),
    ])
}

/// The call, and the metadata of the limits that allowed it.
pub(super) fn of_call(
    call: &RateLimitRequest,
    targets: &[DescriptorTarget<'_>],
    statuses: &[DescriptorStatus],
) -> Map<String, Json> {
    let descriptors = call.descriptors.iter().map(descriptor);
    let mut out = object([("domain", call.domain.as_str().into()), ("descriptors", descriptors.collect())]);
    if call.hits_addend > 0 {
        out.insert("hitsAddend".to_owned(), call.hits_addend.into());
    }
    let mut merged = Map::new();
    for (target, status) in targets.iter().zip(statuses) {
        if let DescriptorTarget::Limit { limit, .. } = target
            && status.code() == Code::Ok
        {
            for (name, json) in &limit.rule.metadata {
                merged.entry(name).or_insert_with(|| json.clone());
            }
        }
    }
    if !merged.is_empty() {
        out.insert("metadata".to_owned(), merged.into());
    }
    out
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Json {
    let entries = descriptor.entries.iter().map(|entry| {
        let [key, value] = [&entry.key, &entry.value].map(|bytes| &bytes[..bytes.len().min(MAX_VALUE)]);
        format!("{}={}", String::from_utf8_lossy(key), String::from_utf8_lossy(value))
    });
    let mut out = json!({ "entries": entries.collect::<Vec<_>>() });
    if let Some(limit) = descriptor.limit {
        let unit = Unit::from_number(limit.unit).map_or("UNKNOWN", Unit::name);
        out["limit"] = format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit).into();
    }
    if let Some(hits) = descriptor.hits_addend {
        out["hitsAddend"] = hits.into();
    }
    out
}

fn object<const N: usize>(pairs: [(&str, Json); N]) -> Map<String, Json> {
    pairs.into_iter().map(|(name, json)| (name.to_owned(), json)).collect()
}

/// Converts a JSON object to a message.
pub(super) fn of_json(object: Map<String, Json>) -> Struct {
    Struct { fields: object.into_iter().map(|(name, json)| (name, value(json))).collect() }
}

fn value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        // Rounded like in every JSON reader.
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(list) => Kind::ListValue(ListValue { values: list.into_iter().map(value).collect() }),
        Json::Object(object) => Kind::StructValue(of_json(object)),
    };
    Value { kind: Some(kind) }
}

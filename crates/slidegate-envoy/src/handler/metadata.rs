//! Dynamic metadata of a response, for later filters and access logs of Envoy.
//!
//! A denial names its policy, its key and the reason. With `RESPONSE_DYNAMIC_METADATA`, every
//! response contains the call, as in envoyproxy/ratelimit, and the `metadata` of the limits that
//! allowed it.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use slidegate::millis_ceil;

use super::denial::Denial;
use super::request::{Target, Targets};
use super::status::DescriptorStatus;
use crate::config::Unit;
use crate::message::{CallMessage, Descriptor};

/// Which policy and key denied, and why.
pub(super) fn denial(denial: &Denial<'_>, why: String, wait: Option<Duration>) -> Struct {
    let one = &denial.decision;
    fields([
        ("policy", text(one.policy().name())),
        ("key", text(one.key().to_string())),
        ("why", text(why)),
        ("reason", text(denial.reason().name())),
        ("source", text(one.source().name())),
        ("descriptor", number(denial.descriptor as u64)),
        ("limit", number(one.limit())),
        ("retry_after_ms", wait.map(millis_ceil).map_or(value(Kind::NullValue(0)), number)),
    ])
}

/// The call, and the metadata of the limits that allowed it.
pub(super) fn of_call(
    call: &CallMessage,
    targets: &Targets<'_>,
    statuses: &[DescriptorStatus<'_>],
) -> Struct {
    let mut out = fields([
        ("domain", text(call.domain())),
        ("descriptors", list(call.descriptors().map(|one| value(Kind::StructValue(descriptor(&one)))))),
    ]);
    if call.hits_addend() > 0 {
        out.fields.insert("hitsAddend".to_owned(), number(u64::from(call.hits_addend())));
    }
    let mut merged = Struct::default();
    for (target, status) in targets.iter().zip(statuses) {
        if let Target::Limit { limit, .. } = target
            && status.code == Code::Ok
        {
            for (name, json) in &limit.rule.metadata {
                merged.fields.entry(name.clone()).or_insert_with(|| of_json(json));
            }
        }
    }
    if !merged.fields.is_empty() {
        out.fields.insert("metadata".to_owned(), value(Kind::StructValue(merged)));
    }
    out
}

fn descriptor(descriptor: &Descriptor<'_>) -> Struct {
    let entries = descriptor.entries().map(|(key, value)| text(format!("{key}={value}")));
    let mut out = fields([("entries", list(entries))]);
    if let Some(limit) = descriptor.limit() {
        let unit = Unit::from_number(limit.unit).map_or("UNKNOWN", Unit::name);
        let limit = text(format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit));
        out.fields.insert("limit".to_owned(), limit);
    }
    if let Some(hits) = descriptor.hits_addend() {
        out.fields.insert("hitsAddend".to_owned(), number(hits));
    }
    out
}

fn fields<const N: usize>(pairs: [(&str, Value); N]) -> Struct {
    Struct {
        fields: pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect::<HashMap<_, _>>(),
    }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

fn text(text: impl Into<String>) -> Value {
    value(Kind::StringValue(text.into()))
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    value(Kind::ListValue(ListValue { values: values.collect() }))
}

/// A number as JSON has it.
#[allow(clippy::cast_precision_loss)] // as every reader of JSON rounds it
fn number(number: u64) -> Value {
    value(Kind::NumberValue(number as f64))
}

fn of_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => value(Kind::NullValue(0)),
        serde_json::Value::Bool(flag) => value(Kind::BoolValue(*flag)),
        serde_json::Value::Number(number) => value(Kind::NumberValue(number.as_f64().unwrap_or_default())),
        serde_json::Value::String(string) => text(&**string),
        serde_json::Value::Array(values) => list(values.iter().map(of_json)),
        serde_json::Value::Object(entries) => {
            let fields = entries.iter().map(|(name, json)| (name.clone(), of_json(json))).collect();
            value(Kind::StructValue(Struct { fields }))
        }
    }
}

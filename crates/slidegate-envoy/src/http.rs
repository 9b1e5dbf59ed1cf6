//! The HTTP paths of envoyproxy/ratelimit: `/json`, `/healthcheck`, `/rlconfig` and `/stats`, with
//! its bodies and codes.
//!
//! `/json` accepts any method and returns 400 for every error, as envoyproxy/ratelimit does;
//! scripts rely on it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value as Dynamic};
use http_body_util::{BodyExt, Limited};
use prost::Message;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::grpc::MAX_MESSAGE_BYTES;
use crate::handler::{RateLimitHandler, has_refund};
use crate::host::{Action, Host};
use crate::message::CallMessage;
use crate::timed_body::TimedBody;

/// The paths of the HTTP port.
pub fn routes<H: Host>() -> [(&'static str, MethodRouter<Arc<RateLimitHandler<H>>>); 2] {
    [("/json", any(decide)), ("/healthcheck", get(healthcheck))]
}

/// The path of the running config, for operators.
pub fn config_routes<H: Host>() -> [(&'static str, MethodRouter<Arc<RateLimitHandler<H>>>); 1] {
    [("/rlconfig", get(rlconfig))]
}

/// The router of the debug port. Every other path lists them, as in envoyproxy/ratelimit.
pub fn debug_router<H: Host>(handler: Arc<RateLimitHandler<H>>) -> Router {
    Router::new()
        .route("/rlconfig", get(rlconfig))
        .route("/stats", get(stats))
        .fallback(|| async {
            "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n"
        })
        .with_state(handler)
}

async fn decide<H: Host>(State(handler): State<Arc<RateLimitHandler<H>>>, request: Request) -> Response {
    let host = handler.host();
    let caller = host.caller(request.headers());
    let (head, body) = request.into_parts();
    if let Err(response) = host.authorize_http(&head, Action::Decide) {
        return response;
    }
    let Some(call) = read(body).await else { return bad_request() };
    if has_refund(&call)
        && let Err(response) = host.authorize_http(&head, Action::Adjust)
    {
        return response;
    }
    let response = match handler.should_rate_limit(&call, &caller).await {
        Ok(response) => RateLimitResponse::decode(&*response.0).expect("what is encoded here can be decoded"),
        Err(status) => {
            host.log_rejected_call(&status);
            return bad_request();
        }
    };
    let status = match response.overall_code() {
        Code::Ok => StatusCode::OK,
        // Only a denial because of the store has a body for the client.
        Code::OverLimit if !response.raw_body.is_empty() => StatusCode::SERVICE_UNAVAILABLE,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, [(header::CONTENT_TYPE, "application/json")], json(&response).to_string()).into_response()
}

fn bad_request() -> Response {
    (StatusCode::BAD_REQUEST, "Bad Request\n").into_response()
}

async fn healthcheck<H: Host>(State(handler): State<Arc<RateLimitHandler<H>>>) -> Response {
    if handler.host().is_ready() && handler.is_healthy() {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "").into_response()
    }
}

async fn rlconfig<H: Host>(State(handler): State<Arc<RateLimitHandler<H>>>) -> String {
    let config = handler.files().and_then(|files| files.live.current());
    config.map(|config| config.dump()).unwrap_or_default()
}

/// It may contain values of requests, so it is only on the debug port.
async fn stats<H: Host>(State(handler): State<Arc<RateLimitHandler<H>>>) -> String {
    handler.files().map(|files| files.live.stats()).unwrap_or_default()
}

/// Reads a call; `None` if the body is malformed, too large or late.
async fn read(body: Body) -> Option<CallMessage> {
    let bytes = Limited::new(TimedBody::new(body), MAX_MESSAGE_BYTES).collect().await.ok()?.to_bytes();
    let call: Call = serde_json::from_slice(&bytes).ok()?;
    Some(RateLimitRequest::from(call).into())
}

/// A call as JSON: names in either spelling, and 64-bit numbers as numbers or strings, as protocol
/// buffers define.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend", deserialize_with = "whole")]
    hits_addend: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Descriptor {
    #[serde(default)]
    entries: Vec<Pair>,
    limit: Option<Own>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend", deserialize_with = "whole_or_none")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits", rename = "isNegativeHits")]
    is_negative_hits: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    #[serde(default, alias = "requests_per_unit", rename = "requestsPerUnit", deserialize_with = "whole")]
    requests_per_unit: u32,
    #[serde(default)]
    unit: Named,
}

/// A value of an enumeration: its name or its number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Named {
    Name(String),
    Number(i32),
}

impl Default for Named {
    fn default() -> Self {
        Self::Number(0)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Whole {
    Number(u64),
    Text(String),
}

impl Whole {
    fn number<E: serde::de::Error>(self) -> Result<u64, E> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Text(text) => text.parse().map_err(E::custom),
        }
    }
}

fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    u32::try_from(Whole::deserialize(from)?.number::<D::Error>()?).map_err(serde::de::Error::custom)
}

fn whole_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    Option::<Whole>::deserialize(from)?.map(Whole::number).transpose()
}

impl From<Call> for RateLimitRequest {
    fn from(call: Call) -> Self {
        let descriptors = call.descriptors.into_iter().map(|one| RateLimitDescriptor {
            entries: one.entries.into_iter().map(|pair| Entry { key: pair.key, value: pair.value }).collect(),
            limit: one.limit.map(|own| RateLimitOverride {
                requests_per_unit: own.requests_per_unit,
                unit: match own.unit {
                    Named::Number(number) => number,
                    Named::Name(name) => Unit::from_str_name(&name).unwrap_or(Unit::Unknown).into(),
                },
            }),
            hits_addend: one.hits_addend.map(|value| UInt64Value { value }),
            is_negative_hits: one.is_negative_hits,
        });
        Self { domain: call.domain, descriptors: descriptors.collect(), hits_addend: call.hits_addend }
    }
}

/// A response as JSON: default values are omitted, as protocol buffers define.
fn json(response: &RateLimitResponse) -> Value {
    let mut out = Map::new();
    out.insert("overallCode".into(), response.overall_code().as_str_name().into());
    if !response.statuses.is_empty() {
        out.insert("statuses".into(), response.statuses.iter().map(status).collect());
    }
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| serde_json::json!({ "key": header.key, "value": header.value }));
        out.insert("responseHeadersToAdd".into(), headers.collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        out.insert("dynamicMetadata".into(), of_struct(metadata));
    }
    Value::Object(out)
}

fn status(status: &DescriptorStatus) -> Value {
    let mut out = Map::new();
    out.insert("code".into(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        let mut shown = Map::new();
        if !limit.name.is_empty() {
            shown.insert("name".into(), limit.name.clone().into());
        }
        if limit.requests_per_unit > 0 {
            shown.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
        }
        if limit.unit() != Unit::Unknown {
            shown.insert("unit".into(), limit.unit().as_str_name().into());
        }
        out.insert("currentLimit".into(), shown.into());
    }
    if status.limit_remaining > 0 {
        out.insert("limitRemaining".into(), status.limit_remaining.into());
    }
    if let Some(span) = &status.duration_until_reset {
        out.insert("durationUntilReset".into(), format!("{}s", span.seconds).into());
    }
    out.into()
}

fn of_struct(fields: &Struct) -> Value {
    fields.fields.iter().map(|(name, value)| (name.clone(), of_dynamic(value))).collect::<Map<_, _>>().into()
}

fn of_dynamic(value: &Dynamic) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StructValue(fields)) => of_struct(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(of_dynamic).collect(),
    }
}

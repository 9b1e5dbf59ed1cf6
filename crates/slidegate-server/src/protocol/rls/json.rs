//! The HTTP paths of envoyproxy/ratelimit: `/json`, `/healthcheck`, `/rlconfig` and `/stats`, with its bodies and codes.
//!
//! `/json` takes any method and answers 400 for everything that went wrong, as the reference does: scripts rely on it.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
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
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::ask;
use super::limits::Limits;
use super::service::MAX_MESSAGE_BYTES;
use crate::access::{Action, Peer};
use crate::caller::Protocol;
use crate::log_limit::log_limited;
use crate::routes::Routes;

/// The reference's paths, for its HTTP port.
pub(crate) fn routes(limits: Arc<Limits>) -> Routes {
    Routes::over(limits, [("/json", any(decide)), ("/healthcheck", get(healthcheck))])
}

/// The configuration in force, for those who may look.
pub(crate) fn config_routes(limits: Arc<Limits>) -> Routes {
    Routes::over(limits, [("/rlconfig", get(rlconfig))])
}

/// The reference's paths for its debug port. Every other path lists them, as there.
pub(crate) fn debug_routes(limits: Arc<Limits>) -> Router {
    Router::new()
        .route("/rlconfig", get(rlconfig))
        .route("/stats", get(stats))
        .fallback(|| async {
            "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n"
        })
        .with_state(limits)
}

async fn decide(State(limits): State<Arc<Limits>>, request: Request) -> Response {
    let caller = limits.app().observer().caller(Protocol::Grpc, request.headers());
    let (head, body) = request.into_parts();
    let (access, peer) = (&limits.app().access, Peer::of(&head.extensions));
    if let Err(problem) = access.decision(&head.headers, Action::Decide, peer) {
        return problem.response();
    }
    let Some(call) = read(body).await else { return refused() };
    if ask::gives_back(&call)
        && let Err(problem) = access.decision(&head.headers, Action::Adjust, peer)
    {
        return problem.response();
    }
    let answer = match limits.decide(&call, &caller).await {
        Ok(answer) => answer,
        Err(status) => {
            log_limited!(DEBUG, None, %status, "refused a call of /json");
            return refused();
        }
    };
    let status = match answer.overall_code() {
        Code::Ok => StatusCode::OK,
        // Only a denial that is due to the store has a body for the client.
        Code::OverLimit if !answer.raw_body.is_empty() => StatusCode::SERVICE_UNAVAILABLE,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Unknown => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, [(header::CONTENT_TYPE, "application/json")], write(&answer).to_string()).into_response()
}

fn refused() -> Response {
    (StatusCode::BAD_REQUEST, "Bad Request\n").into_response()
}

async fn healthcheck(State(limits): State<Arc<Limits>>) -> Response {
    if limits.app().readiness.is_ready() && limits.is_well() {
        "OK".into_response()
    } else {
        (StatusCode::INTERNAL_SERVER_ERROR, "").into_response()
    }
}

async fn rlconfig(State(limits): State<Arc<Limits>>) -> String {
    let envoy = limits.files().and_then(|files| files.live.current());
    envoy.map(|envoy| envoy.dump()).unwrap_or_default()
}

/// May hold values of requests, so it is on the debug port alone.
async fn stats(State(limits): State<Arc<Limits>>) -> String {
    limits.files().map(|files| files.live.stats()).unwrap_or_default()
}

/// The call that a body is; `None` if it is none, or too large.
async fn read(body: Body) -> Option<RateLimitRequest> {
    let bytes = Limited::new(body, MAX_MESSAGE_BYTES).collect().await.ok()?.to_bytes();
    let call: Call = serde_json::from_slice(&bytes).ok()?;
    Some(call.into())
}

/// A call as JSON: names in either spelling, and numbers of 64 bits as text or not, as protocol buffers have it.
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

/// An enumeration's value: its name or its number.
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

/// An answer as JSON: what is the default is left out, as protocol buffers have it.
fn write(answer: &RateLimitResponse) -> Value {
    let mut out = Map::new();
    out.insert("overallCode".into(), answer.overall_code().as_str_name().into());
    if !answer.statuses.is_empty() {
        out.insert("statuses".into(), answer.statuses.iter().map(status).collect());
    }
    if !answer.response_headers_to_add.is_empty() {
        let headers = answer.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({ "key": header.key, "value": header.value }));
        out.insert("responseHeadersToAdd".into(), headers.collect());
    }
    if let Some(metadata) = &answer.dynamic_metadata {
        out.insert("dynamicMetadata".into(), of_struct(metadata));
    }
    Value::Object(out)
}

fn status(status: &DescriptorStatus) -> Value {
    let mut out = Map::new();
    out.insert("code".into(), status.code().as_str_name().into());
    if let Some(limit) = &status.current_limit {
        let mut told = Map::new();
        if !limit.name.is_empty() {
            told.insert("name".into(), limit.name.clone().into());
        }
        if limit.requests_per_unit > 0 {
            told.insert("requestsPerUnit".into(), limit.requests_per_unit.into());
        }
        if limit.unit() != Unit::Unknown {
            told.insert("unit".into(), limit.unit().as_str_name().into());
        }
        out.insert("currentLimit".into(), told.into());
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
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => text.clone().into(),
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StructValue(fields)) => of_struct(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(of_dynamic).collect(),
    }
}

//! Telemetry over HTTP: `/metrics`, `/v1/events`, `/v1/top`, `/v1/keys`, `/v1/live`.
//!
//! The mounting router applies access control.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use exposition::Format;
use parts::{off, policy};
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::{self, Grant, Limited};
use crate::control::state::{Admin, AdminState};
use crate::engine::App;
use crate::record::events::{EVENTS_KEPT, Event, Filter};
use crate::shares::Share;
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;
use crate::wire::routes::Routes;

pub(crate) mod closing;
mod envoy_metrics;
mod exposition;
pub(crate) mod findings;
pub(crate) mod history;
pub(crate) mod key_list;
mod key_usage;
mod lease_metrics;
pub(crate) mod live;
mod metrics;
mod page;
mod parts;
mod stream;
pub(crate) mod top;
mod wait_metrics;

/// Default number of events in a response.
const EVENTS: usize = 100;

pub(crate) fn routes(admin: Arc<Admin>) -> Routes {
    let table = [
        ("/metrics", get(metrics)),
        ("/v1/events", get(events)),
        ("/v1/top", get(top::top)),
        ("/v1/keys", get(key_list::keys)),
        ("/v1/live", get(live)),
    ];
    Routes::over(admin, table)
}

/// The page of metrics, for any path.
pub(crate) fn metrics_route(admin: Arc<Admin>) -> MethodRouter {
    get(metrics).with_state(admin)
}

async fn metrics(State(admin): AdminState, headers: HeaderMap) -> Result<Response, Problem> {
    if !admin.app.observer().options.metrics {
        return Err(off("metrics"));
    }
    let format = Format::wanted(&headers);
    let headers = [
        (header::CONTENT_TYPE, format.media_type()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::VARY, HeaderValue::from_static("Accept")),
    ];
    Ok((headers, format.write(metrics::page(&admin))).into_response())
}

async fn events(
    State(admin): AdminState,
    Extension(grant): Extension<Grant>,
    Extension(by): Extension<access::Operator>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let app = &admin.app;
    if !app.observer().options.events {
        return Err(off("events"));
    }
    let mut query = Parameters::of(&uri)?;
    let (policy, key) = (policy(&mut query, app)?, query.take("key"));
    if grant.is_of_one_key {
        one_key(app, policy.as_deref())?;
    }
    let filter = Filter { policy, key, is_exact: grant.is_of_one_key, only_denials: false };
    let limit = query.number("limit", EVENTS, EVENTS_KEPT)?;
    query.nothing_else("policy, key and limit")?;
    if wants_stream(&headers) {
        let permit = permit(app, &by)?;
        let after = headers.get("last-event-id").map(last_event_id).transpose()?;
        return Ok(streamed(Sse::new(stream::denials(Arc::clone(app), filter, after, (permit, grant)))));
    }
    let events = app.observer().events().recent(&filter, limit);
    Ok(problem::ok(&Events { events: events.iter().map(|event| &**event).collect() }))
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Events<'a> {
    /// Newest first.
    events: Vec<&'a Event>,
}

async fn live(
    State(admin): AdminState,
    Extension(grant): Extension<Grant>,
    Extension(by): Extension<access::Operator>,
    uri: Uri,
) -> Result<Response, Problem> {
    Parameters::of(&uri)?.nothing_else("nothing")?;
    let permit = permit(&admin.app, &by)?;
    Ok(streamed(Sse::new(stream::live(Arc::clone(&admin.app), (permit, grant)))))
}

/// Rejects a text that may stand for several keys. With the store's `hash_tag`, one text may cover a key per
/// attribute value, and a token of one key would read the others too.
fn one_key(app: &App, policy: Option<&str>) -> Result<(), Problem> {
    let tag = if let Some(shared) = app.shared() { shared.store().hash_tag() } else { None };
    let Some(tag) = tag else { return Ok(()) };
    let name = policy.unwrap_or_default();
    if app.policies().by_name(name).is_some_and(|policy| policy.scope().iter().any(|one| one == tag)) {
        return Ok(());
    }
    let detail = format!(
        "a token of one key does not read events of policy `{name}`: keys lie in the store by `{tag}` (hash_tag), which \
         the policy does not count by, so that other keys have the same text; add `{tag}` to its scope"
    );
    Err(Problem::new(StatusCode::FORBIDDEN, detail))
}

/// Reserves a stream. Customers have their own quota of streams, so operators always get in.
fn permit(app: &App, access::Operator(name, limited): &access::Operator) -> Result<Share<String>, Problem> {
    let [operators, keys] = &app.observer().streams;
    let streams = if *limited == Limited::ToOneKey { keys } else { operators };
    streams.take(name).ok_or_else(|| {
        let name = name.escape_debug();
        let detail = format!("`{name}` has as many streams open as it leaves free for others; close one");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })
}

fn streamed<S>(stream: Sse<S>) -> Response
where
    Sse<S>: IntoResponse,
    S: futures_util::Stream<Item = Result<axum::response::sse::Event, std::convert::Infallible>>
        + Send
        + 'static,
{
    // Proxies must not buffer the stream.
    ([("x-accel-buffering", "no")], stream.keep_alive(KeepAlive::default())).into_response()
}

fn wants_stream(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|one| {
        one.split(';')
            .next()
            .is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("text/event-stream"))
    })
}

fn last_event_id(value: &HeaderValue) -> Result<u64, Problem> {
    value.to_str().ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let text = String::from_utf8_lossy(value.as_bytes()).escape_debug().to_string();
        Problem::field(
            "last-event-id",
            format!("invalid Last-Event-ID `{text}`: must be the id of an event, a whole number"),
        )
    })
}

//! Telemetry over HTTP: `/metrics`, `/v1/events`, `/v1/top`, `/v1/live`.
//!
//! Access control is applied where these routes are mounted.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::events::{EVENTS_KEPT, Event, Filter};
use super::observer::MAX_STREAMS;
use super::top::{By, PERIOD, Ranking};
use crate::app::App;
use crate::problem::{self, Problem};
use crate::query;
use crate::routes::Routes;
use exposition::Format;

mod envoy_metrics;
mod exposition;
pub(super) mod live;
mod metrics;
mod stream;

type Shared = State<Arc<App>>;

/// Default number of events or keys in a response.
const EVENTS: usize = 100;
const KEYS: usize = 20;
/// Maximum keys in a response.
const MAX_KEYS: usize = 1000;

/// The telemetry routes.
pub(crate) fn routes(app: Arc<App>) -> Routes {
    let table = [
        ("/metrics", get(metrics)),
        ("/v1/events", get(events)),
        ("/v1/top", get(top)),
        ("/v1/live", get(live)),
    ];
    Routes::over(app, table)
}

/// Only the metrics, at the given path.
pub(crate) fn metrics_routes(app: Arc<App>, path: &str) -> Router {
    Router::new().route(path, get(metrics)).with_state(app)
}

async fn metrics(State(app): Shared, headers: HeaderMap) -> Result<Response, Problem> {
    if !app.observer().options.metrics {
        return Err(off("metrics"));
    }
    let format = Format::wanted(&headers);
    let headers = [
        (header::CONTENT_TYPE, format.media_type()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::VARY, HeaderValue::from_static("Accept")),
    ];
    Ok((headers, format.write(metrics::page(&app))).into_response())
}

async fn events(State(app): Shared, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    if !app.observer().options.events {
        return Err(off("events"));
    }
    let mut query = Query::of(&uri)?;
    let (policy, key) = (policy(&mut query, &app)?, query.take("key"));
    let filter = Filter { policy, key, only_denials: false };
    let limit = query.number("limit", EVENTS, EVENTS_KEPT)?;
    query.nothing_else("policy, key and limit")?;
    if wants_stream(&headers) {
        let permit = permit(&app)?;
        let after = headers.get("last-event-id").map(last_event_id).transpose()?;
        return Ok(streamed(Sse::new(stream::denials(app, filter, after, permit))));
    }
    let events = app.observer().events().recent(&filter, limit);
    Ok(problem::ok(&Events { events: events.iter().map(|event| &**event).collect() }))
}

async fn top(State(app): Shared, uri: Uri) -> Result<Response, Problem> {
    let observer = app.observer();
    if !observer.options.top {
        return Err(off("top"));
    }
    let mut query = Query::of(&uri)?;
    let policy = policy(&mut query, &app)?;
    let by = match query.take("by").as_deref() {
        None | Some("used") => By::Used,
        Some("denied") => By::Denied,
        Some(other) => {
            let detail = format!("invalid by `{}`: must be `used` or `denied`", other.escape_debug());
            return Err(Problem::field("by", detail));
        }
    };
    let limit = query.number("limit", KEYS, MAX_KEYS)?;
    query.nothing_else("policy, by and limit")?;
    let registry = observer.registry.load();
    let registered = registry
        .in_force()
        .iter()
        .filter(|counters| policy.as_ref().is_none_or(|name| *name == counters.name));
    let rankings: Vec<_> =
        registered.map(|counters| (counters, observer.top.ranking(counters.number, by))).collect();
    let error_bound = rankings.iter().map(|(_, ranking)| ranking.error_bound).max().unwrap_or(0);
    let is_sampled = rankings.iter().any(|(_, Ranking { is_sampled, .. })| *is_sampled);
    let mut keys: Vec<_> = rankings
        .iter()
        .flat_map(|(counters, ranking)| ranking.keys.iter().map(move |one| (counters, one)))
        .collect();
    keys.sort_by_key(|(_, one)| std::cmp::Reverse(one.count));
    let held = app.held_by_key(policy.as_deref());
    let held_of = |policy: &str, key: &Arc<str>| held.get(&(policy.into(), Arc::clone(key))).copied();
    let keys = keys.into_iter().take(limit).map(|(counters, one)| TopKey {
        held: held_of(&counters.name, &one.key).unwrap_or(0),
        policy: &counters.name,
        key: observer.redactor.show(&one.key, counters.keys_shown).into_owned(),
        count: one.count,
        at_most_over: one.over,
        last_at: crate::app::explanation::time(one.last_at),
    });
    let keys = keys.collect();
    let (by, period_s) = (by.name(), PERIOD.as_secs());
    Ok(problem::ok(&Tops { policy: policy.as_deref(), by, error_bound, sampled: is_sampled, period_s, keys }))
}

#[derive(Serialize)]
struct Events<'a> {
    /// Newest first.
    events: Vec<&'a Event>,
}

#[derive(Serialize)]
struct Tops<'a> {
    /// `null`: all policies.
    policy: Option<&'a str>,
    by: &'static str,
    /// Upper bound of the count of any key not listed.
    error_bound: u64,
    /// Whether counts are estimated from a sample.
    sampled: bool,
    /// Counts cover the current period and the previous one, each this long.
    period_s: u64,
    /// Highest count first.
    keys: Vec<TopKey<'a>>,
}

#[derive(Serialize)]
struct TopKey<'a> {
    policy: &'a str,
    key: String,
    count: u64,
    /// Maximum overestimate of the count.
    at_most_over: u64,
    /// What open reservations of this instance hold.
    held: u64,
    last_at: String,
}

async fn live(State(app): Shared, uri: Uri) -> Result<Response, Problem> {
    Query::of(&uri)?.nothing_else("nothing")?;
    let permit = permit(&app)?;
    Ok(streamed(Sse::new(stream::live(app, permit))))
}

/// Reserves a stream.
fn permit(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    Arc::clone(&app.observer().streams).try_acquire_owned().map_err(|_| {
        let detail = format!("{MAX_STREAMS} streams are open, the maximum; close one");
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

/// The requested policy, which must be active.
fn policy(query: &mut Query, app: &App) -> Result<Option<String>, Problem> {
    let Some(name) = query.take("policy") else { return Ok(None) };
    if app.observer().registry.load().in_force().iter().any(|counters| counters.name == name) {
        return Ok(Some(name));
    }
    let detail = format!("unknown policy `{}`: must be one that /v1/policies lists", name.escape_debug());
    Err(Problem::field("policy", detail).with_status(StatusCode::NOT_FOUND))
}

/// The query parameters, each taken once.
struct Query(Vec<(String, String)>);

impl Query {
    fn of(uri: &Uri) -> Result<Self, Problem> {
        query::texts(uri.query().unwrap_or_default()).map(Self)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let permit = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(permit).1)
    }

    /// A whole number from 1 to `most`.
    fn number(&mut self, name: &'static str, default: usize, most: usize) -> Result<usize, Problem> {
        let Some(text) = self.take(name) else { return Ok(default) };
        text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or_else(|| {
            Problem::field(
                name,
                format!("invalid {name} `{}`: must be a whole number from 1 to {most}", text.escape_debug()),
            )
        })
    }

    /// Rejects unknown parameters: a misspelled filter would be ignored.
    fn nothing_else(&self, known: &str) -> Result<(), Problem> {
        self.0.first().map_or(Ok(()), |(name, _)| {
            let detail =
                format!("unknown parameter `{}`: must be one of {known}, once each", name.escape_debug());
            Err(Problem::new(StatusCode::BAD_REQUEST, detail))
        })
    }
}

/// The error for data that the config disables.
fn off(setting: &str) -> Problem {
    let detail =
        format!("this is switched off; write `{setting}: true` under `observe` in the configuration");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

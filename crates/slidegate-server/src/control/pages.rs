//! Telemetry over HTTP: `/metrics`, `/v1/events`, `/v1/top`, `/v1/live`.
//!
//! The mounting router applies access control.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use exposition::Format;
use key_usage::{BlockedKey, KeyUsage};
use schemars::JsonSchema;
use serde::Serialize;

use crate::access::{self, Grant, Limited};
use crate::engine::App;
use crate::record::events::{EVENTS_KEPT, Event, Filter};
use crate::record::top::{By, KeyCount, PERIOD};
use crate::shares::Share;
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;
use crate::wire::routes::Routes;

mod envoy_metrics;
mod exposition;
pub(crate) mod history;
mod key_usage;
pub(crate) mod live;
mod metrics;
mod page;
mod stream;

type Shared = State<Arc<App>>;

/// Default number of events or keys in a response.
const EVENTS: usize = 100;
const KEYS: usize = 20;
/// Maximum keys in a response.
const MAX_KEYS: usize = 1000;

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

async fn events(
    State(app): Shared,
    Extension(grant): Extension<Grant>,
    Extension(by): Extension<access::By>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if !app.observer().options.events {
        return Err(off("events"));
    }
    let mut query = Parameters::of(&uri)?;
    let (policy, key) = (policy(&mut query, &app)?, query.take("key"));
    if grant.is_of_one_key {
        one_key(&app, policy.as_deref())?;
    }
    let filter = Filter { policy, key, is_exact: grant.is_of_one_key, only_denials: false };
    let limit = query.number("limit", EVENTS, EVENTS_KEPT)?;
    query.nothing_else("policy, key and limit")?;
    if wants_stream(&headers) {
        let permit = permit(&app, &by)?;
        let after = headers.get("last-event-id").map(last_event_id).transpose()?;
        return Ok(streamed(Sse::new(stream::denials(app, filter, after, (permit, grant)))));
    }
    let events = app.observer().events().recent(&filter, limit);
    Ok(problem::ok(&Events { events: events.iter().map(|event| &**event).collect() }))
}

async fn top(State(app): Shared, uri: Uri) -> Result<Response, Problem> {
    let observer = app.observer();
    if !observer.options.top {
        return Err(off("top"));
    }
    let mut query = Parameters::of(&uri)?;
    let policy = policy(&mut query, &app)?;
    let order = match query.take("by").as_deref() {
        None => Order::Counted(By::Used),
        Some(text) => Order::of(text)?,
    };
    let limit = query.number("limit", KEYS, MAX_KEYS)?;
    let instance = query.take("instance");
    query.nothing_else("policy, by, limit and instance")?;
    let fleet = app.fleet(instance.as_deref()).await.map_err(Problem::unknown_instance)?;
    let instances = fleet.as_ref().map_or(1, |fleet| fleet.instances.len());
    if order == Order::Blocked {
        let keys = key_usage::blocked(&app, policy.as_deref(), limit);
        return Ok(problem::ok(&BlockedKeys { policy, by: order.name(), keys }));
    }
    let names: Vec<_> = observer
        .policies()
        .into_iter()
        .filter(|name| policy.as_ref().is_none_or(|one| one == name))
        .collect();
    let ranked = |name| order.counted().iter().map(move |by| (name, *by));
    let rankings: Vec<_> = names
        .iter()
        .flat_map(ranked)
        .map(|(name, by): (&String, By)| {
            let own = observer.ranking(name, by);
            let ranking = match &fleet {
                Some(fleet) => fleet.ranking(name, by, own),
                None => own,
            };
            (name, ranking)
        })
        .collect();
    let error_bound = rankings.iter().map(|(_, ranking)| ranking.error_bound).max().unwrap_or(0);
    let sampled = rankings.iter().any(|(_, ranking)| ranking.is_sampled);
    let mut keys: Vec<(&String, &KeyCount)> = rankings
        .iter()
        .flat_map(|(name, ranking)| ranking.keys.iter().map(move |one| (*name, one)))
        .collect();
    keys.sort_by_key(|(_, one)| std::cmp::Reverse(one.count));
    if order == Order::Closest {
        // Most recently decided keys first, each once.
        keys.sort_by_key(|(_, one)| std::cmp::Reverse(one.last_at));
        let mut seen = HashSet::new();
        keys.retain(|(name, one)| seen.insert((*name, Arc::clone(&one.key))));
        keys.truncate(key_usage::MAX_KEYS);
    } else {
        keys.truncate(limit);
    }
    // A redacted text may stand for a key that only another instance knows.
    let unredacted = |policy: &str, shown: &str| match observer.keys_shown_as(policy, shown) {
        None => Some(shown.to_owned()),
        Some(known) => <[Box<str>; 1]>::try_from(known).ok().map(|[key]| key.into()),
    };
    let looked_up = keys.iter().take(key_usage::MAX_KEYS);
    let named: Vec<_> =
        looked_up.map(|(policy, one)| Some(((*policy).clone(), unredacted(policy, &one.key)?))).collect();
    let asked: Vec<_> = named.iter().flatten().cloned().collect();
    let usage = key_usage::usage_of(&app, &asked).await;
    let now = |at: usize| named.get(at)?.as_ref().and_then(|name| usage.get(name).copied());
    let mut held: HashMap<(Arc<str>, String), u64> = HashMap::new();
    let shows_this =
        fleet.as_ref().is_none_or(|fleet| fleet.instances.iter().any(|instance| instance.is_this));
    for ((policy, key), cost) in app.held_by_key(policy.as_deref()).into_iter().filter(|_| shows_this) {
        let shown = observer.shown(&policy, &key);
        *held.entry((policy, shown)).or_default() += cost;
    }
    let listed = keys.iter().enumerate().map(|(at, (policy, one))| TopKey {
        held: held.get(&(policy.as_str().into(), one.key.to_string())).copied().unwrap_or(0),
        policy,
        key: one.key.to_string(),
        count: one.count,
        at_most_over: one.over,
        last_at: crate::engine::explanation::time(one.last_at),
        now: now(at),
    });
    let mut keys: Vec<_> = listed.collect();
    if order == Order::Closest {
        keys.retain(|key| key.now.is_some_and(|now| now.part() > 0));
        keys.sort_by_key(|key| std::cmp::Reverse(key.now.map(|now| now.part())));
        keys.truncate(limit);
    }
    let (by, period_s) = (order.name(), PERIOD.as_secs());
    let fleet_error = fleet.and_then(|fleet| fleet.error);
    let policy = policy.as_deref();
    Ok(problem::ok(&Tops { policy, by, instances, fleet_error, error_bound, sampled, period_s, keys }))
}

/// The order of listed keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Counted(By),
    /// The used share of the limit, now.
    Closest,
    /// Blocked by an operator.
    Blocked,
}

impl Order {
    const ALL: [Self; 4] = [Self::Counted(By::Used), Self::Counted(By::Denied), Self::Closest, Self::Blocked];

    fn of(text: &str) -> Result<Self, Problem> {
        Self::ALL.into_iter().find(|order| order.name() == text).ok_or_else(|| {
            let detail = format!(
                "invalid by `{}`: must be `used`, `denied`, `closest` or `blocked`",
                text.escape_debug()
            );
            Problem::field("by", detail)
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::Counted(by) => by.name(),
            Self::Closest => "closest",
            Self::Blocked => "blocked",
        }
    }

    /// The counts to list.
    fn counted(self) -> &'static [By] {
        match self {
            Self::Counted(By::Used) => &[By::Used],
            Self::Counted(By::Denied) => &[By::Denied],
            Self::Closest | Self::Blocked => &[By::Used, By::Denied],
        }
    }
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Events<'a> {
    /// Newest first.
    events: Vec<&'a Event>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct Tops<'a> {
    /// `null`: all policies.
    policy: Option<&'a str>,
    by: &'static str,
    /// Number of instances summed.
    instances: usize,
    /// Why the other instances are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet_error: Option<String>,
    /// Upper bound of the count of any key not listed.
    error_bound: u64,
    /// Whether counts are estimated from a sample.
    sampled: bool,
    /// Counts cover the current period and the previous one, each this long.
    period_s: u64,
    /// Highest count first.
    keys: Vec<TopKey<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct BlockedKeys {
    /// `null`: all policies.
    policy: Option<String>,
    #[schemars(extend("const" = "blocked"))]
    by: &'static str,
    /// Those that end first in front.
    keys: Vec<BlockedKey>,
}

#[derive(Serialize, JsonSchema)]
struct TopKey<'a> {
    policy: &'a str,
    key: String,
    count: u64,
    /// Maximum overestimate of the count.
    at_most_over: u64,
    /// Cost held by open reservations of this instance.
    held: u64,
    last_at: String,
    /// `null`: not known.
    now: Option<KeyUsage>,
}

async fn live(
    State(app): Shared,
    Extension(grant): Extension<Grant>,
    Extension(by): Extension<access::By>,
    uri: Uri,
) -> Result<Response, Problem> {
    Parameters::of(&uri)?.nothing_else("nothing")?;
    let permit = permit(&app, &by)?;
    Ok(streamed(Sse::new(stream::live(app, (permit, grant)))))
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
fn permit(app: &App, access::By(name, limited): &access::By) -> Result<Share<String>, Problem> {
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

/// The requested policy, which must be active.
fn policy(query: &mut Parameters, app: &App) -> Result<Option<String>, Problem> {
    let Some(name) = query.take("policy") else { return Ok(None) };
    if app.observer().registry.load().in_force().iter().any(|counters| counters.name == name) {
        return Ok(Some(name));
    }
    let detail = format!("unknown policy `{}`: must be one that /v1/policies lists", name.escape_debug());
    Err(Problem::field("policy", detail).with_status(StatusCode::NOT_FOUND))
}

/// The error for data that the config disables.
fn off(setting: &str) -> Problem {
    let detail =
        format!("this is switched off; write `{setting}: true` under `observe` in the configuration");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

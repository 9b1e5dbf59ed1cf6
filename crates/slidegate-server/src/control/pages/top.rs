//! `/v1/top`: the keys with the most usage or denials, closest to their limit, or blocked.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::Amount;
use slidegate::clock::{Clock, Timestamp};
use slidegate_config::names::candidate_of;

use super::key_usage::{self, BlockedKey, KeyUsage};
use super::parts::{off, policy};
use crate::control::fleet::FleetView;
use crate::control::state::AdminState;
use crate::engine::App;
use crate::engine::explanation::time;
use crate::record::fullest::WHOLE;
use crate::record::observer::Observer;
use crate::record::top::{By, PERIOD, Ranking};
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

/// Default number of keys in a response.
const KEYS: usize = 20;
/// Maximum keys in a response.
const MAX_KEYS: usize = 1000;

pub(super) async fn top(State(admin): AdminState, uri: Uri) -> Result<Response, Problem> {
    let app = &admin.app;
    let observer = app.observer();
    if !observer.options.top {
        return Err(off("top"));
    }
    let mut query = Parameters::of(&uri)?;
    let policy = policy(&mut query, app)?;
    let order = match query.take("by").as_deref() {
        None => Order::Counted(By::Used),
        Some(text) => Order::of(text)?,
    };
    let limit = query.number("limit", KEYS, MAX_KEYS)?;
    let instance = query.take("instance");
    query.nothing_else("policy, by, limit and instance")?;
    let fleet = admin.fleet(instance.as_deref()).await.map_err(Problem::unknown_instance)?;
    if order == Order::Blocked {
        let keys = key_usage::blocked(&admin, policy.as_deref(), limit);
        return Ok(problem::ok(&BlockedKeys { policy, by: order.name(), keys }));
    }
    let mut names = observer.policies();
    names.retain(|name| policy.as_ref().is_none_or(|one| one == name));
    let (fleet, mut rankings) = (fleet.as_ref(), Vec::new());
    let mut first = match order {
        Order::Counted(by) => {
            rankings = names.iter().map(|name| (name, ranking(observer, fleet, name, by))).collect();
            most_counted(&rankings, limit)
        }
        _ => fullest(observer, fleet, &names),
    };
    let now = usage_now(app, &first).await;
    let shows_this = fleet.is_none_or(|fleet| fleet.instances.iter().any(|instance| instance.is_this));
    let held = if shows_this { held(app, policy.as_deref()) } else { HashMap::new() };
    for (one, now) in first.iter_mut().zip(now) {
        one.held = held.get(&(one.policy.into(), one.key.clone())).copied().unwrap_or(0);
        one.share = now.map(|now| now.share).or(one.share);
        one.now = now;
    }
    let mut looked_up = None;
    if order == Order::Closest {
        looked_up = Some(first.len());
        first.retain(|one| one.share > Some(0.0));
        first.sort_by(|a, b| b.share.unwrap_or(0.0).total_cmp(&a.share.unwrap_or(0.0)));
        first.truncate(limit);
    }
    Ok(problem::ok(&Tops {
        policy: policy.as_deref(),
        by: order.name(),
        instances: fleet.map_or(1, |fleet| fleet.instances.len()),
        fleet_error: fleet.and_then(|fleet| fleet.error.clone()),
        error_bound: rankings
            .iter()
            .map(|(_, ranking)| ranking.amount(ranking.error_bound))
            .max()
            .unwrap_or_default(),
        sampled: rankings.iter().any(|(_, ranking)| ranking.is_sampled),
        looked_up,
        period_s: PERIOD.as_secs(),
        keys: first,
    }))
}

/// The ranking of a policy over all shown instances.
pub(super) fn ranking(observer: &Observer, fleet: Option<&FleetView>, policy: &str, by: By) -> Ranking {
    let own = observer.ranking(policy, by);
    match fleet {
        Some(fleet) => fleet.ranking(policy, by, own),
        None => own,
    }
}

fn most_counted<'n>(rankings: &[(&'n String, Ranking)], limit: usize) -> Vec<TopKeyBody<'n>> {
    let keys = rankings.iter().flat_map(|(name, ranking)| {
        ranking.keys.iter().map(move |one| (*name, one, ranking.amount(one.count), ranking.amount(one.over)))
    });
    let mut keys: Vec<_> = keys.collect();
    keys.sort_by_key(|(.., count, _)| Reverse(*count));
    keys.truncate(limit);
    let listed = keys.into_iter().map(|(policy, one, count, over)| TopKeyBody {
        count: Some(count),
        at_most_over: Some(over),
        ..TopKeyBody::new(policy, &one.key, one.last_at)
    });
    listed.collect()
}

/// The keys that were fullest at their last decision, as many as can be looked up.
fn fullest<'n>(observer: &Observer, fleet: Option<&FleetView>, names: &'n [String]) -> Vec<TopKeyBody<'n>> {
    let now = observer.wall_time(observer.clock.now());
    let mut keys = Vec::new();
    for name in names.iter().filter(|name| candidate_of(name).is_none()) {
        let own = observer.fullest(name);
        let fullest = match fleet {
            Some(fleet) => fleet.fullest(name, own, now),
            None => own,
        };
        keys.extend(fullest.into_iter().map(|one| (name, one)));
    }
    keys.sort_by_key(|(_, one)| Reverse(one.strength(now)));
    keys.truncate(key_usage::MAX_KEYS);
    #[allow(clippy::cast_precision_loss)] // millionths
    let listed = keys.into_iter().map(|(policy, one)| TopKeyBody {
        share: (one.resets_at > now).then(|| one.share as f64 / WHOLE as f64),
        ..TopKeyBody::new(policy, &one.key, one.last_at)
    });
    listed.collect()
}

/// The usage now of the first keys. `None`: not known.
async fn usage_now(app: &App, keys: &[TopKeyBody<'_>]) -> Vec<Option<KeyUsage>> {
    // A redacted text may stand for a key that only another instance knows.
    let unredacted = |policy: &str, shown: &str| match app.observer().keys_shown_as(policy, shown) {
        None => Some(shown.to_owned()),
        Some(known) => <[Box<str>; 1]>::try_from(known).ok().map(|[key]| key.into()),
    };
    let looked_up = keys.iter().take(key_usage::MAX_KEYS);
    let named: Vec<_> =
        looked_up.map(|one| Some((one.policy.to_owned(), unredacted(one.policy, &one.key)?))).collect();
    let asked: Vec<_> = named.iter().flatten().cloned().collect();
    let usage = key_usage::usage_of(app, &asked).await;
    let of = |name: &Option<_>| usage.get(name.as_ref()?).copied();
    named.iter().map(of).chain(std::iter::repeat(None)).take(keys.len()).collect()
}

/// Cost held by open reservations of this instance, by policy and key as shown.
fn held(app: &App, policy: Option<&str>) -> HashMap<(Arc<str>, String), u64> {
    let mut held = HashMap::new();
    for ((policy, key), cost) in app.held_by_key(policy) {
        let shown = app.observer().shown(&policy, &key);
        *held.entry((policy, shown)).or_default() += cost;
    }
    held
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
    #[schemars(with = "f64", range(min = 0))]
    error_bound: Amount,
    /// Whether counts are estimated from a sample.
    sampled: bool,
    /// Counts cover the current period and the previous one, each this long.
    period_s: u64,
    /// Of `by=closest`: how many keys were looked up, those that were fullest at their last decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    looked_up: Option<usize>,
    /// Highest count or share first.
    keys: Vec<TopKeyBody<'a>>,
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct BlockedKeys {
    /// `null`: all policies.
    policy: Option<String>,
    #[schemars(extend("const" = "blocked"))]
    by: &'static str,
    /// Blocked keys, in the order in which their blocks end.
    keys: Vec<BlockedKey>,
}

#[derive(Serialize, JsonSchema)]
struct TopKeyBody<'a> {
    policy: &'a str,
    key: String,
    /// Absent by `closest`, like `at_most_over`.
    #[schemars(with = "Option<f64>", range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<Amount>,
    /// Maximum overestimate of the count.
    #[schemars(with = "Option<f64>", range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    at_most_over: Option<Amount>,
    /// Cost held by open reservations of this instance.
    held: u64,
    last_at: String,
    /// The taken part of the limit, 1 if it is full: now, or at the last decision if `now` is not known. `null`: not
    /// known.
    share: Option<f64>,
    /// `null`: not known.
    now: Option<KeyUsage>,
}

impl<'a> TopKeyBody<'a> {
    fn new(policy: &'a str, key: &str, last_at: Timestamp) -> Self {
        let (key, last_at) = (key.to_owned(), time(last_at));
        Self { policy, key, count: None, at_most_over: None, held: 0, last_at, share: None, now: None }
    }
}

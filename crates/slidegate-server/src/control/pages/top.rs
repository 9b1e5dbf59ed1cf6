//! `/v1/top`: the keys with the most usage or denials, closest to their limit, or blocked.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;

use super::key_usage::{self, BlockedKey, KeyUsage};
use super::parts::{off, policy};
use crate::control::fleet::FleetView;
use crate::control::state::AdminState;
use crate::engine::App;
use crate::engine::explanation::time;
use crate::record::observer::Observer;
use crate::record::top::{By, KeyCount, PERIOD, Ranking};
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

/// Default number of keys in a response.
const KEYS: usize = 20;
/// Maximum keys in a response.
const MAX_KEYS: usize = 1000;

/// A key with its policy.
type Counted<'r> = (&'r String, &'r KeyCount);

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
    let rankings = rankings(observer, fleet.as_ref(), &names, order);
    let counted = first_keys(&rankings, order, limit);
    let now = usage_now(app, &counted).await;
    let instances = fleet.as_ref().map_or(&[][..], |fleet| &fleet.instances);
    let shows_this = fleet.is_none() || instances.iter().any(|instance| instance.is_this);
    let held = if shows_this { held(app, policy.as_deref()) } else { HashMap::new() };
    let listed = counted.iter().enumerate().map(|(at, (policy, one))| TopKeyBody {
        held: held.get(&(policy.as_str().into(), one.key.to_string())).copied().unwrap_or(0),
        policy,
        key: one.key.to_string(),
        count: one.count,
        at_most_over: one.over,
        last_at: time(one.last_at),
        now: now.get(at).copied().flatten(),
    });
    let mut keys: Vec<_> = listed.collect();
    if order == Order::Closest {
        keys.retain(|key| key.now.is_some_and(|now| now.part() > 0));
        keys.sort_by_key(|key| Reverse(key.now.map(|now| now.part())));
        keys.truncate(limit);
    }
    Ok(problem::ok(&Tops {
        policy: policy.as_deref(),
        by: order.name(),
        instances: fleet.as_ref().map_or(1, |fleet| fleet.instances.len()),
        fleet_error: fleet.as_ref().and_then(|fleet| fleet.error.clone()),
        error_bound: rankings.iter().map(|(_, ranking)| ranking.error_bound).max().unwrap_or(0),
        sampled: rankings.iter().any(|(_, ranking)| ranking.is_sampled),
        period_s: PERIOD.as_secs(),
        keys,
    }))
}

/// The rankings of these policies by what the order lists, over all shown instances.
fn rankings<'n>(
    observer: &Observer,
    fleet: Option<&FleetView>,
    names: &'n [String],
    order: Order,
) -> Vec<(&'n String, Ranking)> {
    let ranked = names.iter().flat_map(|name| order.counted().iter().map(move |by| (name, *by)));
    let rankings = ranked.map(|(name, by)| {
        let own = observer.ranking(name, by);
        (
            name,
            match fleet {
                Some(fleet) => fleet.ranking(name, by, own),
                None => own,
            },
        )
    });
    rankings.collect()
}

/// The keys to list. Of [`Order::Closest`], those whose usage is looked up.
fn first_keys<'r>(rankings: &'r [(&'r String, Ranking)], order: Order, limit: usize) -> Vec<Counted<'r>> {
    let keys = |(name, ranking): &'r (&'r String, Ranking)| ranking.keys.iter().map(move |one| (*name, one));
    let mut keys: Vec<_> = rankings.iter().flat_map(keys).collect();
    keys.sort_by_key(|(_, one)| Reverse(one.count));
    if order == Order::Closest {
        // Most recently decided keys first, each once.
        keys.sort_by_key(|(_, one)| Reverse(one.last_at));
        let mut seen = HashSet::new();
        keys.retain(|(name, one)| seen.insert((*name, Arc::clone(&one.key))));
        keys.truncate(key_usage::MAX_KEYS);
    } else {
        keys.truncate(limit);
    }
    keys
}

/// The usage now of the first keys. `None`: not known.
async fn usage_now(app: &App, keys: &[Counted<'_>]) -> Vec<Option<KeyUsage>> {
    // A redacted text may stand for a key that only another instance knows.
    let unredacted = |policy: &str, shown: &str| match app.observer().keys_shown_as(policy, shown) {
        None => Some(shown.to_owned()),
        Some(known) => <[Box<str>; 1]>::try_from(known).ok().map(|[key]| key.into()),
    };
    let looked_up = keys.iter().take(key_usage::MAX_KEYS);
    let named: Vec<_> =
        looked_up.map(|(policy, one)| Some(((*policy).clone(), unredacted(policy, &one.key)?))).collect();
    let asked: Vec<_> = named.iter().flatten().cloned().collect();
    let usage = key_usage::usage_of(app, &asked).await;
    named.iter().map(|name| usage.get(name.as_ref()?).copied()).collect()
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
    count: u64,
    /// Maximum overestimate of the count.
    at_most_over: u64,
    /// Cost held by open reservations of this instance.
    held: u64,
    last_at: String,
    /// `null`: not known.
    now: Option<KeyUsage>,
}

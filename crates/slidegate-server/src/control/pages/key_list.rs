//! `/v1/keys`: the keys of a policy with their usage, in pages, for exports and support.
//!
//! The store names its keys, a bounded number per page, and each page looks their usage up. A key of which the
//! store has only a hash cannot be named; such keys are counted.

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::store::{PolicyKeys, ResetCursor};
use slidegate::{Amount, Amounts, Decision};

use super::key_usage;
use super::parts::policy;
use crate::control::state::AdminState;
use crate::engine::explanation::time;
use crate::wire::problem::{self, Problem};
use crate::wire::query::Parameters;

/// Keys examined for a page, by default and at most: about 16 calls of the store. In memory, up to a shard more.
const KEYS: usize = 1000;

pub(super) async fn keys(State(admin): AdminState, uri: Uri) -> Result<Response, Problem> {
    let app = &admin.app;
    let mut query = Parameters::of(&uri)?;
    let name = policy(&mut query, app)?.ok_or_else(|| {
        let detail = "policy is missing; give one that /v1/policies lists, for example `?policy=per-user`";
        Problem::field("policy", detail)
    })?;
    let over = query.take("over").map_or(Ok(0), |text| percent(&text))?;
    let limit = query.number("limit", KEYS, KEYS)?;
    let wrong = |error: slidegate::Error| Problem::field("cursor", error.to_string());
    let cursor: Option<ResetCursor> =
        query.take("cursor").map(|text| text.parse()).transpose().map_err(wrong)?;
    query.nothing_else("policy, over, limit and cursor")?;
    let policies = app.policies();
    let policy = policies.by_name(&name).ok_or_else(|| {
        let detail = format!("policy `{}` was just removed; send the request again", name.escape_debug());
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    let step = if policy.scope().is_empty() {
        // The only key, whatever stands for it in the store.
        Ok(PolicyKeys { keys: vec!["*".to_owned()], scanned: 1, ..PolicyKeys::default() })
    } else {
        app.store().list_policy_step(&name, cursor.as_ref(), limit as u64).await
    };
    let PolicyKeys { keys: found, mut unnamed, scanned, next, .. } = step.map_err(|error| {
        if error.is_policy() {
            return wrong(error);
        }
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("{error}; the same request can be sent again"))
    })?;
    let mut keys = Vec::new();
    let named: Vec<_> = found.into_iter().map(|key| (name.clone(), key)).collect();
    for asked in named.chunks(key_usage::MAX_KEYS) {
        let peeked = key_usage::peek(app, asked).await;
        unnamed += asked.len().saturating_sub(peeked.len()) as u64;
        if let Some((decision, _)) = peeked.values().find(|(decision, _)| !decision.is_counted()) {
            let detail = format!(
                "the store did not reply, decided by {}; send the same request again",
                decision.source().name()
            );
            return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail));
        }
        let listed = peeked.into_iter().map(|((_, key), (decision, quota))| {
            let plan = policy.tier_with(&quota);
            ListedKey::new(app.observer().shown(&name, &key), plan, &decision)
        });
        keys.extend(listed.filter(|one| one.used > Amount::default() || one.held > Amount::default()));
    }
    keys.retain(|one| one.share >= f64::from(over) / 100.0);
    keys.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.key.cmp(&b.key)));
    let cursor = next.map(|next| next.to_string());
    Ok(problem::ok(&KeyPage { policy: &name, keys, unnamed, scanned, cursor }))
}

/// Reads a share of a limit in percent.
fn percent(text: &str) -> Result<u32, Problem> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number.parse().ok().filter(|percent| *percent <= 100).ok_or_else(|| {
        let text = text.escape_debug();
        let detail =
            format!("invalid over `{text}`: must be a share of the limit from 0% to 100%, for example `80%`");
        Problem::field("over", detail)
    })
}

#[derive(Serialize, JsonSchema)]
pub(crate) struct KeyPage<'a> {
    policy: &'a str,
    /// Keys of this page with usage, from the asked share on, the fullest first. A key may be on several pages.
    keys: Vec<ListedKey<'a>>,
    /// Keys of this page that are not listed: the store has only a hash of them, or finds them only by further
    /// attributes.
    unnamed: u64,
    /// Keys of all policies that were examined since the first page; approximate with a shared store.
    scanned: u64,
    /// The cursor of the next page; `null` on the last.
    cursor: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct ListedKey<'a> {
    /// Redacted as the policy configures.
    key: String,
    #[schemars(with = "f64", range(min = 0))]
    used: Amount,
    /// Cost that open reservations hold.
    #[schemars(with = "f64", range(min = 0))]
    held: Amount,
    #[schemars(with = "u64")]
    limit: Amount,
    /// The part of the limit that is used or held, 1 if it is full.
    share: f64,
    /// The key's tier. `null`: its last charge was under none, or several have this limit.
    plan: Option<&'a str>,
    /// When the key is unused, if nothing more is charged.
    resets_at: String,
}

impl<'a> ListedKey<'a> {
    #[allow(clippy::cast_precision_loss)] // a share
    fn new(key: String, plan: Option<&'a str>, decision: &Decision) -> Self {
        let Amounts { limit, used, held, .. } = decision.amounts();
        let taken = decision.used.saturating_add(decision.held);
        let share = if decision.limit == 0 { 1.0 } else { taken as f64 / decision.limit as f64 };
        Self { key, used, held, limit, share, plan, resets_at: time(decision.reset_at()) }
    }
}

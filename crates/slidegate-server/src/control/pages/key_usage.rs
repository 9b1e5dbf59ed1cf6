//! Current usage of listed keys, and blocked keys.
//!
//! The lists count charges of the last minutes. Only the store knows how close a key is to its limit.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::{Amount, Amounts, Decision, Policy, Quota, Reason, Request, verb::Verb};
use slidegate_config::names::candidate_of;
use slidegate_http::headers::millis_ceil;

use crate::clock::{at_text, now_ms};
use crate::control::changes::KeyKind;
use crate::control::state::Admin;
use crate::engine::App;
use crate::record::redaction::Redactor;
use crate::wire::key_text::KeyText;

/// Maximum keys per lookup: the store decides them in one step.
pub(super) const MAX_KEYS: usize = 64;

/// The usage of a key now.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[schemars(rename = "KeyNow")]
pub(super) struct KeyUsage {
    #[schemars(with = "u64")]
    limit: Amount,
    window_ms: u64,
    #[schemars(with = "f64", range(min = 0))]
    remaining: Amount,
    /// The taken part of the limit, from 0 to 1. A limit of 0 is always full.
    #[serde(skip)]
    pub(super) share: f64,
    /// Time until a request of cost 1 fits. `null`: it never fits.
    retry_after_ms: Option<u64>,
    is_blocked: bool,
}

impl KeyUsage {
    fn of(decision: &Decision, quota: &Quota) -> Self {
        let wait = if decision.is_denied() { decision.retry_after() } else { Some(Duration::ZERO) };
        let Amounts { limit, remaining, .. } = decision.amounts();
        let taken = decision.limit - decision.remaining.min(decision.limit);
        #[allow(clippy::cast_precision_loss)] // a share
        let share = if decision.limit == 0 { 1.0 } else { taken as f64 / decision.limit as f64 };
        Self {
            limit,
            window_ms: millis_ceil(quota.window()),
            remaining,
            share,
            retry_after_ms: wait.map(millis_ceil),
            is_blocked: decision.reason() == Some(Reason::Blocked),
        }
    }
}

/// A key that an operator has blocked.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BlockedKey {
    policy: String,
    pub(super) key: String,
    until: String,
    by: String,
}

/// The usage of these keys, by policy and key.
pub(super) async fn usage_of(app: &App, keys: &[(String, String)]) -> HashMap<(String, String), KeyUsage> {
    let peeked = peek(app, keys).await.into_iter();
    peeked.map(|(key, (decision, quota))| (key, KeyUsage::of(&decision, &quota))).collect()
}

/// Peeks at these keys, at most [`MAX_KEYS`], by policy and key. Omits keys that are too long to be known, and keys
/// that the store finds only by further attributes.
pub(super) async fn peek(
    app: &App,
    keys: &[(String, String)],
) -> HashMap<(String, String), (Decision, Quota)> {
    let policies = app.policies();
    let tag =
        if let Some(shared) = app.shared() { shared.store().hash_tag().map(str::to_owned) } else { None };
    let is_found = |policy: &Policy| tag.as_ref().is_none_or(|tag| policy.scope().contains(tag));
    let read = |(policy, key): &(String, String)| {
        let policy = policies.by_name(policy).filter(|policy| is_found(policy))?;
        let is_address = |attribute: &str| app.attributes.is_address(attribute);
        let text = Some(key).filter(|key| !Redactor::is_cut(key))?;
        KeyText::read(policy, text, is_address).ok().map(|key| (policy, key))
    };
    let known: Vec<_> = keys.iter().take(MAX_KEYS).filter_map(read).collect();
    let under = known
        .iter()
        .map(|(policy, key)| app.store().under_last_quota(&policies, policy, key.request(policy)));
    let requests: Vec<Request<'_>> = join_all(under).await;
    if requests.is_empty() {
        return HashMap::new();
    }
    let decisions = app.store().apply(Some(Verb::Peek), &requests, None).await;
    let enforced = decisions.iter().filter(|one| candidate_of(one.policy().name()).is_none());
    enforced
        .map(|one| {
            let name = (one.policy().name().to_owned(), one.key().to_string());
            (name, (*one.decision(), *one.quota()))
        })
        .collect()
}

/// The blocked keys of a policy, or of all policies; the earliest end first.
pub(super) fn blocked(admin: &Admin, policy: Option<&str>, limit: usize) -> Vec<BlockedKey> {
    let document = admin.control.document();
    let is_wanted = |name: &str| policy.is_none_or(|policy| policy == name);
    let mut blocks: Vec<_> = document
        .living(now_ms())
        .filter(|change| change.kind == KeyKind::Block && is_wanted(&change.policy))
        .collect();
    blocks.sort_by_key(|block| block.until_ms);
    let shown = blocks.into_iter().take(limit).map(|block| BlockedKey {
        policy: block.policy.clone(),
        key: admin.app.observer().shown(&block.policy, &block.key),
        until: at_text(block.until_ms),
        by: block.by.clone(),
    });
    shown.collect()
}

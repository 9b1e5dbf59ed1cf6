//! What policies did that an operator should look at: the status has it, alarms and metrics show it.
//!
//! Figures are counted on all instances. Events are not looked at, because they are sampled in a flood.

use std::collections::HashMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::clock::Clock;
use slidegate_config::names::candidate_of;

use super::{history, key_usage, top};
use crate::control::fleet::FleetView;
use crate::control::state::Admin;
use crate::record::history::STEP;
use crate::record::top::PERIOD;
use crate::record::{By, KeyCount};

/// Steps of the history in the time that counts of top keys cover at least, which is that of the alert
/// `SlidegateManyDenials`. At most they cover twice as many.
#[allow(clippy::cast_possible_truncation)] // 30
const STEPS: usize = (PERIOD.as_secs() / STEP.as_secs()) as usize;
/// Denials of a policy in that time, below which they are nobody's concern: one a second, as in the alert.
const MIN_DENIALS: u64 = 300;
/// A key that was not denied for so long floods no more.
const QUIET: Duration = Duration::from_secs(60);
/// Requests without an attribute, below which they may be a few odd ones.
const MIN_WITHOUT_ATTRIBUTE: u64 = 10;

/// Of all instances.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Findings {
    /// Keys with more than half of the denials of their policy in the last ten minutes, at least 300. Left out are those
    /// that are blocked, or were not denied for a minute.
    pub(super) flooding_keys: Vec<FloodingKey>,
    /// Policies that denied more than half of their checks in the last five minutes, at least 300.
    many_denials: Vec<ManyDenials>,
    /// Policies that have decided nothing since the start of this instance: all requests that they apply to lack an
    /// attribute of their scope.
    limiting_nothing: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct FloodingKey {
    policy: String,
    key: String,
    /// Denials of the key, at least.
    denied: u64,
    /// Denials of the policy.
    of: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct ManyDenials {
    policy: String,
    denied: u64,
    checks: u64,
}

impl Findings {
    /// `fleet`: the instances, unless there is only this one.
    pub(crate) fn of(admin: &Admin, fleet: Option<&FleetView>) -> Self {
        let (observer, mut found) = (admin.app.observer(), Self::default());
        let Some(mut history) = history::read(&admin.app, 2 * STEPS) else { return found };
        admin.add_other_instances(&mut history);
        let policies = admin.app.policies();
        let [longer, recent] = [2 * STEPS, STEPS].map(|steps| history.checks(steps));
        for policy in policies.iter().filter(|policy| candidate_of(policy.name()).is_none()) {
            let name = policy.name();
            let of = |checks: &HashMap<&str, [u64; 2]>| checks.get(name).copied().unwrap_or_default();
            let ([_, denied_longer], [allowed, denied]) = (of(&longer), of(&recent));
            let checks = allowed + denied;
            let counts = observer.counts(name).unwrap_or_default();
            let decided = checks + counts.allowed + counts.denied + counts.shadow_denied;
            if decided == 0 && counts.missing_attribute >= MIN_WITHOUT_ATTRIBUTE {
                found.limiting_nothing.push(name.to_owned());
            }
            if denied >= MIN_DENIALS && is_most(denied, checks) {
                found.many_denials.push(ManyDenials { policy: name.to_owned(), denied, checks });
            }
            // A policy without a scope has only one key.
            if denied_longer >= MIN_DENIALS && !policy.scope().is_empty() && observer.options.top {
                found.flooding_keys.extend(flooding_key(admin, fleet, name, denied_longer));
            }
        }
        found
    }
}

/// The key with most of the denials of a policy, unless it is blocked or quiet.
fn flooding_key(admin: &Admin, fleet: Option<&FleetView>, policy: &str, of: u64) -> Option<FloodingKey> {
    let observer = admin.app.observer();
    let now = observer.wall_time(observer.clock.now());
    let ranking = top::ranking(observer, fleet, policy, By::Denied);
    let least = |one: &KeyCount| one.count - one.over;
    let most = ranking.keys.iter().max_by_key(|one| least(one))?;
    if !is_most(least(most), of) || most.last_at + QUIET < now {
        return None;
    }
    let blocked = key_usage::blocked(admin, Some(policy), usize::MAX);
    let is_blocked = blocked.iter().any(|block| block.key == *most.key);
    let (policy, key) = (policy.to_owned(), most.key.to_string());
    // The history lacks what an instance counted before another knew it.
    (!is_blocked).then(|| FloodingKey { policy, key, denied: least(most), of: of.max(least(most)) })
}

fn is_most(part: u64, whole: u64) -> bool {
    part > whole / 2
}

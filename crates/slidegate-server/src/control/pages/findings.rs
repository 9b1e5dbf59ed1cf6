//! What policies did that an operator should look at: the status has it, alarms and metrics show it.
//!
//! Figures are counted on all instances. Events are not looked at, because they are sampled in a flood.

use schemars::JsonSchema;
use serde::Serialize;
use slidegate_config::names::candidate_of;

use super::{history, key_usage, top};
use crate::control::fleet::FleetView;
use crate::control::state::Admin;
use crate::record::history::STEP;
use crate::record::top::PERIOD;
use crate::record::{By, KeyCount};

/// Steps of the history that are looked at: the time that counts of top keys cover at most.
const STEPS: usize = (2 * PERIOD.as_secs() / STEP.as_secs()) as usize;
/// Denials of a policy in that time, below which they are nobody's concern: one in two seconds.
const MIN_DENIALS: u64 = 300;
/// Requests without an attribute, below which they may be a few odd ones.
const MIN_WITHOUT_ATTRIBUTE: u64 = 10;

/// Of the last ten minutes, and of all instances.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Findings {
    /// Keys with more than half of the denials of their policy. Blocked ones are left out.
    pub(super) flooding_keys: Vec<FloodingKey>,
    /// Policies that denied more than half of their checks.
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
        let Some(mut history) = history::read(&admin.app, STEPS) else { return found };
        admin.add_other_instances(&mut history);
        let policies = admin.app.policies();
        for policy in policies.iter().filter(|policy| candidate_of(policy.name()).is_none()) {
            let name = policy.name();
            let [allowed, denied] = history.checks(name);
            let checks = allowed + denied;
            let counts = observer.counts(name).unwrap_or_default();
            let decided = checks + counts.allowed + counts.denied + counts.shadow_denied;
            if decided == 0 && counts.missing_attribute >= MIN_WITHOUT_ATTRIBUTE {
                found.limiting_nothing.push(name.to_owned());
            }
            if denied < MIN_DENIALS {
                continue;
            }
            if is_most(denied, checks) {
                found.many_denials.push(ManyDenials { policy: name.to_owned(), denied, checks });
            }
            // A policy without a scope has only one key.
            if !policy.scope().is_empty() && observer.options.top {
                found.flooding_keys.extend(flooding_key(admin, fleet, name, denied));
            }
        }
        found
    }
}

/// The key with most of the denials of a policy, unless it is blocked.
fn flooding_key(admin: &Admin, fleet: Option<&FleetView>, policy: &str, of: u64) -> Option<FloodingKey> {
    let ranking = top::ranking(admin.app.observer(), fleet, policy, By::Denied);
    let least = |one: &KeyCount| one.count - one.over;
    let most = ranking.keys.iter().max_by_key(|one| least(one)).filter(|one| is_most(least(one), of))?;
    let blocked = key_usage::blocked(admin, Some(policy), usize::MAX);
    let is_blocked = blocked.iter().any(|block| block.key == *most.key);
    let (policy, key) = (policy.to_owned(), most.key.to_string());
    (!is_blocked).then(|| FloodingKey { policy, key, denied: least(most), of })
}

fn is_most(part: u64, whole: u64) -> bool {
    part > whole / 2
}

//! The outcome of a sweep.

use serde::Serialize;

use crate::scenario::Scenario;
use crate::sweep::{Sweep, SweepPoint, SweptSetting};

/// One policy under many limits or windows.
#[derive(Debug, Clone, Serialize)]
pub struct SweepOutcome {
    /// The policy.
    pub policy: String,
    /// `limit` or `window`.
    pub setting: &'static str,
    /// The configured value.
    pub configured: String,
    /// Requests that the policy applied to.
    pub seen: u64,
    /// Different keys.
    pub keys: u64,
    /// The maximum share of those requests that may be denied.
    pub deny_at_most: String,
    /// Each value, ascending.
    pub points: Vec<SweepPointOutcome>,
    /// The recommended value: the smallest limit, or longest window, that denies few enough
    /// requests.
    pub recommended: Option<String>,
    /// `lowest`, `highest`, `shortest` or `longest` if no value beyond the recommended one was tried.
    pub edge: Option<&'static str>,
    /// Why it is recommended, or why none is.
    pub reason: String,
}

/// Denials under one value of a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct SweepPointOutcome {
    /// The limit, or the window as text.
    pub value: String,
    /// The limit, or the window in seconds.
    pub number: f64,
    /// Requests that the policy denied.
    pub denied: u64,
    /// Different keys that the policy denied.
    pub denied_keys: u64,
    /// Requests that any enforced policy denied.
    pub requests_denied: u64,
    /// Keys that the store evicted while they still counted.
    pub dropped_keys: u64,
}

impl SweepOutcome {
    pub(super) fn of(sweep: &Sweep, points: &[SweepPoint], configured: &Scenario) -> Self {
        let policies = configured.policies();
        let at = sweep.position(&policies).expect("the sweep was started with these policies");
        let policy = policies.iter().nth(at).expect("a position of the set");
        let setting = sweep.setting;
        let seen = configured.tally.policies[at].seen;
        let keys = configured.tally.policies[at].keys.keys.len() as u64;
        let outcomes = points.iter().map(|point| SweepPointOutcome {
            value: setting.text(point.value),
            number: setting.number(point.value),
            denied: point.counts.denied,
            denied_keys: point.counts.denied_keys.len() as u64,
            requests_denied: point.counts.denied_in_all,
            dropped_keys: point.dropped(),
        });
        let outcomes: Vec<_> = outcomes.collect();
        let (recommended, reason) = sweep.recommend(&policies, policy.name(), (seen, keys), points);
        Self {
            policy: policy.name().to_owned(),
            setting: setting.name(),
            configured: setting.text(setting.of(policy.quota())),
            seen,
            keys,
            deny_at_most: sweep.deny_at_most.to_string(),
            edge: recommended.as_deref().and_then(|value| edge(setting, value, &outcomes)),
            points: outcomes,
            recommended,
            reason,
        }
    }
}

/// The end of the tried values that this one is.
fn edge(setting: SweptSetting, value: &str, points: &[SweepPointOutcome]) -> Option<&'static str> {
    let [low, high] = match setting {
        SweptSetting::Limit => ["lowest", "highest"],
        SweptSetting::Window => ["shortest", "longest"],
    };
    let is = |point: Option<&SweepPointOutcome>| point.is_some_and(|point| point.value == value);
    is(points.first()).then_some(low).or_else(|| is(points.last()).then_some(high))
}

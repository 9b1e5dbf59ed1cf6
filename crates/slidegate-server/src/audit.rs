//! The audit log: who changed which limit or key, and how. Never contains a token.
//!
//! Operators' changes are all logged. Clients that may refund, penalize and reset do so at their own rate, so their
//! lines are limited, and the next line says how many were suppressed.

use std::sync::LazyLock;

use slidegate::{Decision, Decisions, MemoryStore, Quota, verb::Verb};

use crate::log_limit::{LogLimit, LogRates};

/// Lines about the changes of one client, and of all clients, per second.
const MAX_LINES: (u64, u64) = (10, 100);
/// Maximum clients tracked.
const MAX_CLIENTS: usize = 1024;

/// Logs a change by an operator.
pub(crate) fn operator(by: &str, action: &str, policy: &str, key: &str, detail: &str) {
    tracing::info!(target: "slidegate::audit", by, action, policy, key, detail, "changed");
}

/// Logs what a client's refund or penalty moved on each key. `shown` redacts a key of a policy.
pub(crate) fn moved(by: &str, verb: Verb, decisions: &Decisions<'_>, shown: impl Fn(&str, &str) -> String) {
    let action = if verb == Verb::Refund { "refund" } else { "penalize" };
    for one in decisions.iter().filter(|one| one.decision().is_counted() && one.decision().cost > 0) {
        let decision = *one.decision();
        let used = match verb {
            Verb::Refund => decision.used.saturating_add(decision.cost),
            _ => decision.used.saturating_sub(decision.cost),
        };
        let before = Decision { used, ..decision }.amounts().used;
        let (policy, after) = (one.policy().name(), decision.amounts());
        let detail = || format!("used {before} -> {} of {}", after.used, after.limit);
        client(by, action, policy, &shown(policy, &one.key().to_string()), detail);
    }
}

/// Logs that a client reset keys; `before` is a peek at them from before.
pub(crate) fn reset(by: &str, before: &Decisions<'_>, shown: impl Fn(&str, &str) -> String) {
    for one in before.iter().filter(|one| one.decision().is_counted()) {
        let policy = one.policy().name();
        let used = one.decision().amounts().used;
        client(by, "reset", policy, &shown(policy, &one.key().to_string()), || format!("used {used} -> 0"));
    }
}

fn client(by: &str, action: &str, policy: &str, key: &str, detail: impl FnOnce() -> String) {
    static LIMIT: LazyLock<LogLimit> = LazyLock::new(|| {
        let [each, all] = [MAX_LINES.0, MAX_LINES.1].map(Quota::per_second);
        LogLimit::new(LogRates { each, all, max_clients: MAX_CLIENTS }, &MemoryStore::builder())
    });
    if let Some(suppressed) = LIMIT.admit_key(by.as_bytes()) {
        let suppressed = (suppressed > 0).then_some(suppressed);
        tracing::info!(target: "slidegate::audit", by, action, policy, key, detail = detail(), suppressed, "changed");
    }
}

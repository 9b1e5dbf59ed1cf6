//! Why: decisions said in a sentence that names policy, key, numbers and the way out.

use std::time::Duration;

use slidegate::{Decisions, PolicyDecision, Source, format_window};

/// The sentence of all decisions on a request: that of the one that binds. `absence` says why a fallback decided, if
/// one did: "redis at 10.0.0.5:6379 did not answer in 50 ms".
pub(crate) fn why(decisions: &Decisions<'_>, absence: &str) -> String {
    match decisions.strictest() {
        Some(strictest) => one(&strictest, absence),
        None => "no enforced policy applies to these attributes, so nothing limits the request".to_owned(),
    }
}

/// The sentence of one policy's decision.
pub(crate) fn one(decision: &PolicyDecision<'_>, absence: &str) -> String {
    let fallback = || format!("decided by fallback `{}`, as {absence}", decision.source.name());
    match decision.source {
        Source::Allow | Source::Deny => {
            format!("{}: `{}` was not counted; {}", decision.policy().name(), decision.key(), fallback())
        }
        Source::Local => format!("{}; {}", counted(decision), fallback()),
        _ => counted(decision),
    }
}

/// What counts on the key, and what that leaves.
fn counted(decision: &PolicyDecision<'_>) -> String {
    let (policy, key) = (decision.policy().name(), decision.key());
    let window = format_window(decision.quota().window());
    let used = format!("{policy}: `{key}` has used {} of {} per {window}", decision.used, decision.limit);
    if decision.is_allowed() {
        return format!("{used}, {} remain", decision.remaining);
    }
    match decision.retry_after() {
        Some(wait) => format!("{used}; the cost fits in {}", seconds(wait)),
        None => format!("{used}; the cost is more than the limit and never fits"),
    }
}

/// A wait for people: in seconds with milliseconds, rounded up.
fn seconds(wait: Duration) -> String {
    let ms = slidegate::millis_ceil(wait);
    if ms.is_multiple_of(1000) {
        format!("{} s", ms / 1000)
    } else {
        format!("{}.{:03} s", ms / 1000, ms % 1000)
    }
}

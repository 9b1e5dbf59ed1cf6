//! Why: decisions said in a sentence that names policy, key, numbers and the way out.

use std::fmt::Write as _;
use std::time::Duration;

use slidegate::{Decisions, PolicyDecision, Source, format_window};

/// The sentence of all decisions on a request: that of the one that binds. `absence` says why a fallback decided, if
/// one did: "redis at 10.0.0.5:6379 gave no answer of use within 50 ms".
pub(crate) fn why(decisions: &Decisions<'_>, absence: &str) -> String {
    match decisions.strictest() {
        Some(strictest) => one(&strictest, absence),
        None => NOTHING.to_owned(),
    }
}

/// The sentence where no decision binds.
pub(crate) const NOTHING: &str =
    "no enforced policy applies to these attributes, so nothing limits the request";

/// The sentence of one policy's decision.
pub(crate) fn one(decision: &PolicyDecision<'_>, absence: &str) -> String {
    of_key(decision, &decision.key().to_string(), absence)
}

/// The same where the key has been written already, as each decision is told with its own.
pub(crate) fn of_key(decision: &PolicyDecision<'_>, key: &str, absence: &str) -> String {
    let mut said = String::with_capacity(USUAL);
    for piece in [decision.policy().name(), ": `", key] {
        said.push_str(piece);
    }
    if matches!(decision.source, Source::Allow | Source::Deny) {
        said.push_str("` was not counted");
    } else {
        counted(&mut said, decision);
    }
    if !matches!(decision.source, Source::Store | Source::Remembered) {
        write!(said, "; decided by fallback `{}`, as {absence}", decision.source.name())
            .expect("a String takes all that is written");
    }
    said
}

/// Room for a sentence about a usual key.
const USUAL: usize = 128;

/// What counts on the key, and what that leaves.
fn counted(said: &mut String, decision: &PolicyDecision<'_>) {
    let mut digits = itoa::Buffer::new();
    said.push_str("` has used ");
    said.push_str(digits.format(decision.used));
    said.push_str(" of ");
    said.push_str(digits.format(decision.limit));
    said.push_str(" per ");
    said.push_str(&format_window(decision.quota().window()));
    if decision.is_allowed() {
        said.push_str(", ");
        said.push_str(digits.format(decision.remaining));
        said.push_str(" remain");
        return;
    }
    match decision.retry_after() {
        Some(wait) => {
            said.push_str("; the cost fits in ");
            said.push_str(&seconds(wait));
        }
        None => said.push_str("; the cost is more than the limit and never fits"),
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

//! Explanations: describes a decision in a sentence with policy, key, numbers and the wait.
//!
//! For operators and calling programs: it names the author of a block and the cause of a store
//! failure.

use std::fmt::{self, Display as _};
use std::time::Duration;

use slidegate::clock::{Timestamp, format_wait};
use slidegate::internal::NamedDecision;
use slidegate::{Algorithm, Amount, Amounts, Block, PolicyDecision, Reason};

use crate::wire::key_text::Shown;

/// The explanation if no enforced policy applies.
pub(crate) const NOTHING: &str =
    "no enforced policy applies to these attributes, so nothing limits the request";

/// Explains one policy's decision, with the text of its key.
pub(crate) struct Explanation<'d, K> {
    pub(crate) decision: PolicyDecision<'d>,
    pub(crate) key: K,
}

/// Explains one policy's decision.
pub(crate) fn one<'d>(decision: &PolicyDecision<'d>) -> Explanation<'d, Shown<'d>> {
    Explanation { decision: *decision, key: Shown(decision.key()) }
}

impl<K: fmt::Display> fmt::Display for Explanation<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = &self.decision;
        f.write_str(decision.policy().name())?;
        f.write_str(": `")?;
        self.key.fmt(f)?;
        if let Some(block) = decision.block() {
            match decision.key().missing() {
                Some(attribute) => {
                    f.write_str("` lacks ")?;
                    f.write_str(attribute)?;
                    f.write_str(", and is denied by on_missing")?;
                }
                None => {
                    f.write_str("` is ")?;
                    f.write_str(&blocked(block))?;
                }
            }
            if decision.decision().is_counted() {
                used(f, ", and has", decision)?;
            }
        } else if decision.decision().is_counted() {
            used(f, "` has", decision)?;
            room(f, decision)?;
        } else {
            f.write_str("` was not counted")?;
        }
        let Some(failure) = decision.store_failure() else { return Ok(()) };
        let fallback = decision.decision().source().name();
        write!(f, "; decided by fallback `{fallback}` ({failure})")
    }
}

/// Describes a block: its end and its author.
pub(crate) fn blocked(block: &Block) -> String {
    let mut said = "blocked".to_owned();
    if let Some(end) = block.ends_at() {
        said.push_str(" until ");
        said.push_str(&time(end));
    }
    if let Some(name) = block.blocked_by() {
        said.push_str(" by ");
        said.push_str(name);
    }
    said
}

/// Formats a time as RFC 3339 with milliseconds.
pub(crate) fn time(at: Timestamp) -> String {
    let us = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    format!("{:.3}", jiff::Timestamp::from_microsecond(us).unwrap_or(jiff::Timestamp::MAX))
}

/// Writes the usage of the key.
fn used(f: &mut fmt::Formatter<'_>, intro: &str, decision: &PolicyDecision<'_>) -> fmt::Result {
    let Amounts { limit, used, held, .. } = decision.decision().amounts();
    f.write_str(intro)?;
    if decision.quota().algorithm() == Algorithm::InFlight {
        number(f, " ", held)?;
        number(f, " of ", limit)?;
        return f.write_str(" in flight");
    }
    number(f, " used ", used)?;
    number(f, " of ", limit)?;
    if let Some(unit) = decision.policy().said_unit() {
        f.write_str(" ")?;
        f.write_str(unit)?;
    }
    f.write_str(" per ")?;
    decision.quota().window_text().fmt(f)?;
    if decision.decision().held() > 0 {
        number(f, " and holds ", held)?;
        f.write_str(" for open reservations")?;
    }
    Ok(())
}

fn number(f: &mut fmt::Formatter<'_>, intro: &str, amount: Amount) -> fmt::Result {
    f.write_str(intro)?;
    if amount == amount.floor().into() {
        f.write_str(itoa::Buffer::new().format(amount.floor()))
    } else {
        amount.fmt(f)
    }
}

/// Writes the remaining amount or the wait.
fn room(f: &mut fmt::Formatter<'_>, decision: &PolicyDecision<'_>) -> fmt::Result {
    if decision.decision().is_allowed() {
        number(f, ", ", decision.decision().amounts().remaining)?;
        return f.write_str(" remain");
    }
    match decision.decision().reason() {
        Some(Reason::TooManyHolds) => {
            return f.write_str("; it has as many open reservations as a key may have");
        }
        Some(Reason::QueueFull) => {
            return f.write_str("; as many requests wait for their turn as may");
        }
        Some(Reason::StoreFull) => {
            return f.write_str("; the server has no room for more open reservations under this policy");
        }
        _ => {}
    }
    let Some(wait) = decision.decision().retry_after() else {
        return f.write_str("; the cost is more than the limit and never fits");
    };
    if decision.decision().held() > 0 {
        // Holds are usually settled before they expire.
        write!(f, "; the cost fits in at most {}", seconds(wait))?;
    } else if let Some(border) = NamedDecision::from(decision).border() {
        write!(f, "; resets on {border}, in {}", seconds(wait))?;
    } else {
        write!(f, "; the cost fits in {}", seconds(wait))?;
    }
    let Some(longest) = decision.policy().options().wait else { return Ok(()) };
    write!(f, "; requests of proxies wait up to {}", seconds(longest))
}

/// Formats a wait, rounded up: below a minute in seconds with milliseconds.
fn seconds(wait: Duration) -> String {
    if wait >= Duration::from_secs(60) {
        return format_wait(wait);
    }
    let ms = slidegate_http::headers::millis_ceil(wait);
    if ms.is_multiple_of(1000) {
        format!("{} s", ms / 1000)
    } else {
        format!("{}.{:03} s", ms / 1000, ms % 1000)
    }
}

//! Explanations: describes a decision in a sentence with policy, key, numbers and the wait.
//!
//! For operators and calling programs: it names the author of a block and the cause of a store
//! failure.

use std::fmt::Write as _;
use std::time::Duration;

use slidegate::clock::{Timestamp, format_wait};
use slidegate::internal::NamedDecision;
use slidegate::{Algorithm, Amount, Amounts, Block, PolicyDecision, Reason};

use crate::wire::key_text;

/// The explanation if no enforced policy applies.
pub(crate) const NOTHING: &str =
    "no enforced policy applies to these attributes, so nothing limits the request";

/// Explains one policy's decision.
pub(crate) fn one(decision: &PolicyDecision<'_>) -> String {
    of_key(decision, &key_text::shown(&decision.key()))
}

/// Like [`one`], with the text of the key.
pub(crate) fn of_key(decision: &PolicyDecision<'_>, key: &str) -> String {
    let mut said = String::with_capacity(USUAL);
    for piece in [decision.policy().name(), ": `", key] {
        said.push_str(piece);
    }
    if let Some(block) = decision.block() {
        match decision.key().missing() {
            Some(attribute) => {
                said.push_str("` lacks ");
                said.push_str(attribute);
                said.push_str(", and is denied by on_missing");
            }
            None => {
                said.push_str("` is ");
                said.push_str(&blocked(block));
            }
        }
        if decision.decision().is_counted() {
            used(&mut said, ", and has", decision);
        }
    } else if decision.decision().is_counted() {
        used(&mut said, "` has", decision);
        room(&mut said, decision);
    } else {
        said.push_str("` was not counted");
    }
    if let Some(failure) = decision.store_failure() {
        let fallback = decision.decision().source().name();
        write!(said, "; decided by fallback `{fallback}` ({failure})")
            .expect("writing to a String cannot fail");
    }
    said
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

/// Initial capacity for a typical explanation.
const USUAL: usize = 128;

/// Appends the usage of the key.
fn used(said: &mut String, intro: &str, decision: &PolicyDecision<'_>) {
    let Amounts { limit, used, held, .. } = decision.decision().amounts();
    said.push_str(intro);
    if decision.quota().algorithm() == Algorithm::InFlight {
        number(said, " ", held);
        number(said, " of ", limit);
        said.push_str(" in flight");
        return;
    }
    number(said, " used ", used);
    number(said, " of ", limit);
    if let Some(unit) = decision.policy().said_unit() {
        said.push(' ');
        said.push_str(unit);
    }
    said.push_str(" per ");
    said.push_str(&decision.quota().window_text());
    if decision.decision().held() > 0 {
        number(said, " and holds ", held);
        said.push_str(" for open reservations");
    }
}

fn number(said: &mut String, intro: &str, amount: Amount) {
    said.push_str(intro);
    if amount == amount.floor().into() {
        said.push_str(itoa::Buffer::new().format(amount.floor()));
    } else {
        write!(said, "{amount}").expect("writing to a String cannot fail");
    }
}

/// Appends the remaining amount or the wait.
fn room(said: &mut String, decision: &PolicyDecision<'_>) {
    if decision.decision().is_allowed() {
        number(said, ", ", decision.decision().amounts().remaining);
        said.push_str(" remain");
        return;
    }
    match decision.decision().reason() {
        Some(Reason::TooManyHolds) => {
            return said.push_str("; it has as many open reservations as a key may have");
        }
        Some(Reason::QueueFull) => {
            return said.push_str("; as many requests wait for their turn as may");
        }
        Some(Reason::StoreFull) => {
            return said.push_str("; the server has no room for more open reservations under this policy");
        }
        _ => {}
    }
    match decision.decision().retry_after() {
        // Holds are usually settled before they expire.
        Some(wait) if decision.decision().held() > 0 => {
            said.push_str("; the cost fits in at most ");
            said.push_str(&seconds(wait));
        }
        Some(wait) => match NamedDecision::from(decision).border() {
            Some(border) => {
                write!(said, "; resets on {border}, in {}", seconds(wait))
                    .expect("writing to a String cannot fail");
            }
            None => {
                said.push_str("; the cost fits in ");
                said.push_str(&seconds(wait));
            }
        },
        None => return said.push_str("; the cost is more than the limit and never fits"),
    }
    if let Some(longest) = decision.policy().options().wait {
        said.push_str("; requests of proxies wait up to ");
        said.push_str(&seconds(longest));
    }
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

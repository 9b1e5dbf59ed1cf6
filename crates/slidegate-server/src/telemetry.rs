//! Telemetry: counters, denial events, top keys and traces of decisions, and their export.
//!
//! `observer.rs` records; everything below `routes.rs` exports what was recorded.

use slidegate::Verb;

mod control_state;
mod escalations;
mod events;
mod histogram;
mod history;
mod notifications;
mod observer;
mod per_thread;
mod policy_counters;
mod redaction;
mod reports;
mod routes;
mod sampler;
mod settled_shares;
mod shown_keys;
mod top;
mod traces;
mod webhook;

pub(crate) use escalations::{EarnedBlock, NotBlocked};
pub(crate) use events::{EVENTS_KEPT, Event, Expired, Filter};
pub(crate) use history::{HistoryReport, Marker, MarkerKind, OtherCounts, bytes_at_most as history_bytes};
pub(crate) use notifications::Drop as NotDelivered;
pub(crate) use observer::Observer;
pub(crate) use policy_counters::{Counts, HoldOutcome};
pub(crate) use redaction::Redactor;
pub(crate) use routes::history::{last_hour, read as history};
pub(crate) use routes::live::tick;
#[cfg(test)]
pub(crate) use routes::{BlockedKeys, Events, Tops};
pub(crate) use routes::{metrics_routes, routes};
pub(crate) use top::{By, KeyCount, Ranking};
pub(crate) use traces::Spans;

/// All verbs, in the order of their discriminants.
const VERBS: [Verb; 4] = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize];

/// The name of a verb in metrics and spans.
fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Check => "check",
        Verb::Peek => "peek",
        Verb::Refund => "refund",
        Verb::Penalize => "penalize",
    }
}

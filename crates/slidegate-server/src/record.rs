//! Telemetry: counters, denial events, top keys and traces of decisions, and their export.
//!
//! `observer.rs` records; `control/pages.rs` exports what was recorded.

use slidegate::verb::Verb;

pub(crate) mod control_state;
pub(crate) mod escalations;
pub(crate) mod event_parts;
pub(crate) mod events;
pub(crate) mod fullest;
pub(crate) mod histogram;
pub(crate) mod history;
pub(crate) mod notifications;
pub(crate) mod observer;
pub(crate) mod per_thread;
pub(crate) mod policy_counters;
pub(crate) mod redaction;
pub(crate) mod reports;
pub(crate) mod sampler;
pub(crate) mod settled_shares;
pub(crate) mod shown_keys;
pub(crate) mod top;
pub(crate) mod traces;
pub(crate) mod waits;
pub(crate) mod webhook;

pub(crate) use escalations::{EarnedBlock, NotBlocked};
pub(crate) use event_parts::{ClosedPeriod, Expired};
pub(crate) use events::{EVENTS_KEPT, Event, Filter};
pub(crate) use fullest::{FullKey, fullest_first};
pub(crate) use history::{HistoryReport, Marker, MarkerKind, OtherCounts, bytes_at_most as history_bytes};
pub(crate) use notifications::Drop as NotDelivered;
pub(crate) use observer::Observer;
pub(crate) use policy_counters::{Counts, HoldOutcome};
pub(crate) use redaction::Redactor;
pub(crate) use top::{By, KeyCount, Ranking};
pub(crate) use traces::Spans;
pub(crate) use waits::{MAX_WAITING, TurnOutcome, Waits};

/// All verbs, in discriminant order.
pub(crate) const VERBS: [Verb; 4] = [Verb::Check, Verb::Peek, Verb::Refund, Verb::Penalize];

/// The verb's name in metrics and spans.
pub(crate) fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Check => "check",
        Verb::Peek => "peek",
        Verb::Refund => "refund",
        Verb::Penalize => "penalize",
    }
}

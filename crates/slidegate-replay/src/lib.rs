//! Replays access logs under rate-limit policies, to see what they would have denied.
//!
//! The decisions come from the gate that also decides live requests, on a clock that follows the
//! log. So the report says what would have happened. One pass can decide any number of [values of a
//! limit](Sweep).
//!
//! ```
//! use std::sync::Arc;
//! use slidegate::{Policy, PolicySet, Quota};
//! use slidegate_replay::{LogReader, Options, Plan, PlainWording, Replay, TextStyle, Wording};
//!
//! let log = r#"192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5
//! 192.0.2.1 - - [20/Nov/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 5
//! "#;
//! let policy = Policy::new("per-ip", Quota::per_minute(1))?.with_scope(["ip"]);
//! let wording: Arc<dyn Wording> = Arc::new(PlainWording);
//! let mut replay = Replay::new(Plan::of(PolicySet::new([policy])?, Options::default()), &wording)?;
//! let mut reader = LogReader::from_reader(log.as_bytes())?;
//! while let Some(entry) = reader.next_entry()? {
//!     replay.push(&entry)?;
//! }
//! let outcome = replay.finish(reader.stats())?;
//! let report = outcome.text(TextStyle::default()).to_string();
//! assert!(report.contains("seen 2  allowed 1  denied 1 (50.0%)"), "{report}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod replay;

mod attributes;
mod block;
mod client;
mod clock_changes;
mod column;
mod entry;
mod format;
mod input;
mod malformed;
mod reader;
mod reorder;
mod stats;

mod batch;
mod decider;
mod diff;
mod evidence;
mod keys;
mod live_keys;
mod pass;
mod scenario;
mod sweep;
mod timeline;

mod each;
mod outcome;
mod report;
mod share;
mod wording;

mod key_size;

pub use clock_changes::ClockChanges;
pub use decider::Options;
pub use diff::Diff;
pub use entry::{Entry, Extras, RequestLine};
pub use evidence::Missing;
pub use format::name::LogFormat;
pub use key_size::{redis_bytes_at_most, redis_holds_bytes, redis_table_bytes};
pub use malformed::Malformed;
pub use outcome::{
    KeyOutcome, LogOutcome, Outcome, PolicyOutcome, ScenarioOutcome, SweepOutcome, SweepPointOutcome,
    TimeOutcome, UsageOutcome,
};
pub use reader::{LogOptions, LogReader, Progress};
pub use replay::{Plan, Replay};
pub use report::{
    ChangedKey, DiffOutcome, DiffPolicy, DiffPolicySide, DiffReport, PageAssets, TextReport, TextStyle,
    Threshold, Thresholds,
};
pub use share::Share;
pub use stats::{LogStats, LogSummary, MalformedLine, TimeJump};
pub use sweep::{MAX_SWEEP_POINTS, Sweep};
pub use wording::{PlainWording, Wording, grouped};

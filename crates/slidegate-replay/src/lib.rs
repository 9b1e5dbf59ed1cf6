#![doc = include_str!("../README.md")]
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

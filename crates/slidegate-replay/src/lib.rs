//! Replays an access log under rate-limit policies, to see what they would have denied.
//!
//! The decisions come from the gate that also decides live requests, on a clock that follows the
//! log. So the report says what would have happened.
//!
//! ```
//! use slidegate::{Policy, PolicySet, Quota};
//! use slidegate_replay::{LogReader, Options, Replay};
//!
//! let log = r#"192.0.2.1 - - [20/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5
//! 192.0.2.1 - - [20/Nov/2026:10:00:01 +0000] "GET / HTTP/1.1" 200 5
//! "#;
//! let policy = Policy::new("per-ip", Quota::per_minute(1))?.scope(["ip"]);
//! let options = Options {
//!     max_keys: 1_000_000,
//!     top: 5,
//!     describe: |policy| format!("{}: {}", policy.name(), policy.quota()),
//!     explain: |decision| decision.map_or("no policy".into(), |one| one.key().to_string()),
//! };
//! let mut replay = Replay::new(PolicySet::new([policy])?, options);
//! let mut reader = LogReader::from_reader(log.as_bytes())?;
//! while let Some(entry) = reader.next_entry()? {
//!     replay.decide(&entry, None)?;
//! }
//! let report = replay.report(reader.stats()).to_string();
//! assert!(report.contains("seen 2  allowed 1  denied 1 (50.0%)"), "{report}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod attributes;
mod column;
mod entry;
mod reader;
mod reorder;
mod report;
mod run;

pub use entry::{Entry, Malformed, RequestLine};
pub use reader::{LogReader, LogStats, MalformedLine, Progress};
pub use report::Report;
pub use run::{Options, Replay};

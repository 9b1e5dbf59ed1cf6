//! Statistics of logs: counts, examples with file and line, and how times were read.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::clock_changes::ClockChanges;
use crate::malformed::Malformed;
use crate::wording::count_of;

/// Statistics of the logs read so far. `lines` is always `entries + malformed + other`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Lines of any kind, blank ones included.
    pub lines: u64,
    /// Lines that are requests.
    pub entries: u64,
    /// Lines that could not be parsed and were skipped.
    pub malformed: u64,
    /// Lines that are not requests by design: headers, comments, parts of lines, and server
    /// messages about other things.
    pub other: u64,
    /// Entries too late to be sorted, returned after younger ones.
    pub late: u64,
    /// Entries more than a day after the previous one: a quiet day, a missing log, or a clock that
    /// jumped.
    pub gaps: u64,
    /// Entries whose time is the request's start, computed from end and duration.
    pub derived_starts: u64,
    /// Entries for which only the request's end is known.
    pub ends: u64,
    /// Entries without a readable cost although a cost field was given: they cost 1.
    pub without_cost: u64,
    /// Entries with a repeated or skipped local time.
    pub clock_changes: ClockChanges,
    /// The earliest time of all entries, in microseconds since the Unix epoch. `None` before the
    /// first entry.
    pub first_us: Option<u64>,
    /// The latest time of all entries.
    pub last_us: Option<u64>,
    /// The first malformed lines.
    pub malformed_lines: Vec<MalformedLine>,
    /// The first entries that were late or came after a gap.
    pub jumps: Vec<TimeJump>,
    /// Arguments of `--field` and `--cost-field` that no line has matched so far, as given.
    pub missing_fields: Vec<String>,
    /// Each log, in the order of reading.
    pub logs: Vec<LogSummary>,
}

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogSummary {
    /// The path, or `-`.
    pub name: Arc<str>,
    /// The format, such as `combined`, with its wrapper and compression.
    pub format: String,
    /// Whether the format was detected rather than named.
    pub is_detected: bool,
    /// Whether the log may have the start or the end of requests: the format alone does not say.
    #[serde(skip)]
    pub is_time_ambiguous: bool,
    /// Lines of any kind.
    pub lines: u64,
    /// Lines that are requests.
    #[serde(rename = "requests")]
    pub entries: u64,
    /// Lines that could not be parsed.
    pub malformed: u64,
    /// Columns named by `--field` or `--cost-field` that the log does not have.
    #[serde(skip)]
    pub missing_columns: Vec<String>,
    #[serde(skip)]
    pub(crate) first_us: Option<u64>,
}

/// An example of a malformed line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedLine {
    /// Its log; `None` if there is only one.
    pub log: Option<Arc<str>>,
    /// Line number, from 1.
    pub number: u64,
    /// Why it could not be parsed.
    pub reason: Malformed,
    /// The start of the line in printable ASCII, with other bytes escaped. `…` marks a cut.
    pub excerpt: String,
}

/// An entry whose time is far from the previous entry's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeJump {
    /// Its log; `None` if there is only one.
    pub log: Option<Arc<str>>,
    /// Line number, from 1.
    pub number: u64,
    /// Its time, in microseconds since the Unix epoch.
    pub time_us: u64,
    /// The latest time of the entries before it.
    pub after_us: u64,
}

impl fmt::Display for MalformedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { log, number, reason, excerpt } = self;
        write_place(f, log.as_deref(), *number)?;
        write!(f, ": {reason}: {excerpt}")
    }
}

impl fmt::Display for TimeJump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_place(f, self.log.as_deref(), self.number)?;
        let by = |us: u64| u128::from(us.div_ceil(1_000_000));
        match self.time_us.checked_sub(self.after_us) {
            Some(ahead_us) => write!(f, ": {} s after the entry before", by(ahead_us)),
            None => write!(f, ": {} s before a line already decided", by(self.after_us - self.time_us)),
        }
    }
}

fn write_place(f: &mut fmt::Formatter<'_>, log: Option<&str>, number: u64) -> fmt::Result {
    match log {
        Some(log) => write!(f, "{log} line {number}"),
        None => write!(f, "line {number}"),
    }
}

/// Maximum formats listed in a note.
const MAX_LISTED: usize = 5;

impl LogStats {
    /// Notes for readers of the results, one sentence each: formats, how times were read, and what
    /// was left out.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.formats();
        if self.derived_starts > 0 {
            notes.push(format!(
                "{} at their start: the logged end less the duration",
                count_of(self.derived_starts, "request is decided", "requests are decided")
            ));
        }
        if self.ends > 0 {
            notes.push(format!(
                "{} at their end: the log has no duration; slow requests look later than they were",
                count_of(self.ends, "request is decided", "requests are decided")
            ));
        }
        notes.extend(self.clock_changes.notes());
        if self.logs.iter().any(|log| log.is_time_ambiguous && log.entries > 0) {
            notes.push(
                "times are as logged: nginx logs the end of a request, Apache and Traefik its start"
                    .to_owned(),
            );
        }
        let mut count = |count: u64, one: &str, several: &str| {
            if count > 0 {
                notes.push(count_of(count, one, several));
            }
        };
        count(
            self.other,
            "line is not about a request, such as a header or a comment",
            "lines are not about requests, such as headers and comments",
        );
        count(
            self.without_cost,
            "request has no readable cost, and costs 1",
            "requests have no readable cost, and cost 1",
        );
        count(self.gaps, "gap of more than a day", "gaps of more than a day");
        for log in &self.logs {
            if !log.missing_columns.is_empty() {
                notes.push(format!("{} has no column {}", log.name, quoted_list(&log.missing_columns)));
            }
        }
        let empty: Vec<_> =
            self.logs.iter().filter(|log| log.entries == 0).map(|log| log.name.to_string()).collect();
        if !empty.is_empty() && empty.len() < self.logs.len() {
            let shown = quoted_list(&empty[..empty.len().min(MAX_LISTED)]);
            notes.push(format!("{} logs without a readable line: {shown}", empty.len()));
        }
        notes
    }

    /// The number of logs per format.
    fn formats(&self) -> Vec<String> {
        let mut formats: Vec<(String, usize, &str)> = Vec::new();
        for log in self.logs.iter().filter(|log| log.entries > 0) {
            let how = if log.is_detected { "detected" } else { "given" };
            let format = format!("{} ({how})", log.format);
            match formats.iter_mut().find(|(known, ..)| *known == format) {
                Some((_, count, _)) => *count += 1,
                None => formats.push((format, 1, &log.name)),
            }
        }
        let lines = formats.into_iter().take(MAX_LISTED).map(|(format, count, name)| match count {
            1 => format!("{name}: format {format}"),
            _ => format!("{count} logs: format {format}"),
        });
        lines.collect()
    }
}

fn quoted_list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

//! The error for an input without a readable line.

use crate::format::name::LogFormat;
use crate::malformed::Malformed;
use crate::stats::{LogStats, MalformedLine};
use crate::wording::count_of;

/// The error for an input without requests: "0 denied" for a file in another format would mislead.
pub(super) fn unreadable(name: &str, lines: u64, stats: &LogStats, is_named: bool) -> String {
    if lines == 0 {
        return format!("{name}: the log is empty: nothing to replay");
    }
    let lines = count_of(lines, "line", "lines");
    let format = stats.logs.first().map_or("", |log| log.format.as_str());
    let has_no_time = |line: &MalformedLine| matches!(line.reason, Malformed::Field("time", _));
    let mut text = if format.starts_with("json") && stats.malformed_lines.iter().any(has_no_time) {
        format!(
            "{name}: no request in {lines}: JSON without a time under a usual name; name it, for example \
             `--field time=when.at`, and so the client, `--field ip=SOURCE`"
        )
    } else if is_named {
        format!("{name}: no request in {lines}: expected lines of the format `{format}`")
    } else {
        format!(
            "{name}: no request in {lines}: its format is not known; name it with `--log-format`, one of {}",
            LogFormat::NAMES
        )
    };
    for line in &stats.malformed_lines {
        text.push_str("\n  ");
        text.push_str(&line.to_string());
    }
    text
}

//! Times as operators see them: milliseconds, since the epoch by the system clock.

use std::time::Duration;

/// Milliseconds since the epoch, by the system clock, so that a change expires at the same time on
/// all instances.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// Formats a time as RFC 3339 with milliseconds.
pub(crate) fn at_text(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| ms.to_string(), |at| format!("{at:.3}"))
}

/// A duration in whole milliseconds.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

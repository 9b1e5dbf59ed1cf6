//! Times of run-time changes: milliseconds since the epoch, by the clock of the machine.

/// Milliseconds since the epoch, by the machine's clock: what ends at a time, ends then in every instance.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// A time as answers have it: RFC 3339 with milliseconds.
pub(crate) fn at_text(ms: u64) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| ms.to_string(), |at| format!("{at:.3}"))
}

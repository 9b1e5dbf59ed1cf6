//! Connection timeouts, checked once a second for all connections: no timer per connection.

use std::time::Duration;

use super::activity::{ActivityState, Phase, TICKS_PER_SECOND, Tick};
use super::reasons::CloseReason;

/// A client that takes no byte of its replies for this long is disconnected.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum durations of a connection's phases. `None`: unlimited.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Timeouts {
    /// Until the reply to its first request: an HTTP head, or an HTTP/2 preface with settings.
    pub(crate) opening: Option<Duration>,
    /// From the first byte of a request to its reply, or to the end of its head in HTTP.
    pub(crate) request: Option<Duration>,
    /// Between two requests.
    pub(crate) idle: Option<Duration>,
    /// While a reply waits for a client that does not read.
    pub(crate) write: Option<Duration>,
}

/// The timeout that a connection has exceeded, if any.
pub(super) fn violated(timeouts: &Timeouts, state: ActivityState, now: Tick) -> Option<CloseReason> {
    let (limit, reason) = match state.phase {
        Phase::Blocked => (timeouts.write, CloseReason::Write),
        Phase::Quiet | Phase::Receiving if !state.has_replied && timeouts.opening.is_some() => {
            (timeouts.opening, CloseReason::Opening)
        }
        Phase::Receiving => (timeouts.request, CloseReason::Request),
        Phase::Quiet => (timeouts.idle, CloseReason::Idle),
        Phase::Serving => return None,
    };
    (now.saturating_sub(state.since) >= ticks(limit?)).then_some(reason)
}

/// Rounds up and adds one, because the current tick began some time ago.
fn ticks(span: Duration) -> Tick {
    let ticks = (span.as_millis() * u128::from(TICKS_PER_SECOND)).div_ceil(1000) + 1;
    Tick::try_from(ticks).unwrap_or(Tick::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way of holding a connection without using it must end.
    #[test]
    fn each_phase_has_its_timeout() {
        let of = |seconds| Some(Duration::from_secs(seconds));
        let timeouts = Timeouts { opening: of(1), request: of(2), idle: of(3), write: of(4) };
        for (phase, has_replied, after_s, reason) in [
            (Phase::Quiet, false, 1, CloseReason::Opening),
            (Phase::Receiving, false, 1, CloseReason::Opening),
            (Phase::Receiving, true, 2, CloseReason::Request),
            (Phase::Quiet, true, 3, CloseReason::Idle),
            (Phase::Blocked, true, 4, CloseReason::Write),
        ] {
            let state = ActivityState { phase, since: 100, has_replied };
            let end = 100 + after_s * TICKS_PER_SECOND + 1;
            assert_eq!(violated(&timeouts, state, end - 1), None, "{phase:?}");
            assert_eq!(violated(&timeouts, state, end), Some(reason), "{phase:?}");
            assert_eq!(violated(&Timeouts::default(), state, Tick::MAX), None, "{phase:?}");
        }
        let serving = ActivityState { phase: Phase::Serving, since: 0, has_replied: false };
        assert_eq!(violated(&timeouts, serving, Tick::MAX), None);
    }
}

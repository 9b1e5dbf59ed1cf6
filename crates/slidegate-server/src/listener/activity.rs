//! A connection's activity, in one atomic that its task writes and the sweep reads.
//!
//! The task stores a coarse tick and reads no clock. Only the task writes, so plain loads and
//! stores suffice.

use std::sync::atomic::{AtomicU64, Ordering};

/// Ticks per second: the resolution of all connection timeouts.
pub(super) const TICKS_PER_SECOND: u32 = 4;

/// A coarse point in time: ticks since the service started.
pub(super) type Tick = u32;

/// The phase of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Idle: every byte received was replied to, or none was received.
    Quiet,
    /// The client has sent bytes without a reply yet.
    Receiving,
    /// A complete HTTP request is being handled, or a command waits for its turn.
    Serving,
    /// The client does not read: a write waits for space in the socket's send buffer.
    Blocked,
}

/// The state at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ActivityState {
    pub(super) phase: Phase,
    /// Start of the phase; in `Quiet`, the time of the last byte sent.
    pub(super) since: Tick,
    /// Whether bytes were sent after bytes were received.
    pub(super) has_replied: bool,
}

#[derive(Debug)]
pub(super) struct Activity(AtomicU64);

const PHASES: u64 = 0b11;
/// Bytes were received.
const RECEIVED: u64 = 0b100;
/// Bytes were sent after that.
const REPLIED: u64 = 0b1000;

impl Activity {
    pub(super) fn new(now: Tick) -> Self {
        Self(AtomicU64::new(packed(Phase::Quiet, now)))
    }

    /// Records that bytes arrived.
    #[inline]
    pub(super) fn received(&self, now: Tick) {
        let old = self.0.load(Ordering::Relaxed);
        if old & PHASES == Phase::Quiet as u64 {
            self.0.store(packed(Phase::Receiving, now) | old & REPLIED | RECEIVED, Ordering::Relaxed);
        }
    }

    /// Records that a complete request arrived.
    #[inline]
    pub(super) fn serving(&self, now: Tick) {
        let old = self.0.load(Ordering::Relaxed);
        self.0.store(packed(Phase::Serving, now) | old & (RECEIVED | REPLIED), Ordering::Relaxed);
    }

    /// Records that the socket took bytes for the client.
    #[inline]
    pub(super) fn sent(&self, now: Tick) {
        let old = self.0.load(Ordering::Relaxed);
        let replied = if old & RECEIVED == 0 { 0 } else { REPLIED };
        self.0.store(packed(Phase::Quiet, now) | old & RECEIVED | replied, Ordering::Relaxed);
    }

    /// Records that the socket takes no bytes for the client.
    pub(super) fn blocked(&self, now: Tick) {
        let old = self.0.load(Ordering::Relaxed);
        if old & PHASES != Phase::Blocked as u64 {
            self.0.store(packed(Phase::Blocked, now) | old & (RECEIVED | REPLIED), Ordering::Relaxed);
        }
    }

    /// Starts again after the TLS handshake.
    pub(super) fn restart(&self, now: Tick) {
        self.0.store(packed(Phase::Quiet, now), Ordering::Relaxed);
    }

    pub(super) fn state(&self) -> ActivityState {
        let state = self.0.load(Ordering::Relaxed);
        let phase = match state & PHASES {
            0 => Phase::Quiet,
            1 => Phase::Receiving,
            2 => Phase::Serving,
            _ => Phase::Blocked,
        };
        let since = Tick::try_from(state >> 32).unwrap_or(Tick::MAX);
        ActivityState { phase, since, has_replied: state & REPLIED != 0 }
    }
}

fn packed(phase: Phase, since: Tick) -> u64 {
    u64::from(since) << 32 | phase as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(phase: Phase, since: Tick, has_replied: bool) -> ActivityState {
        ActivityState { phase, since, has_replied }
    }

    /// A client that sends a byte now and then must not look busy: only replies count.
    #[test]
    fn bytes_without_a_reply_do_not_renew_the_activity() {
        let activity = Activity::new(3);
        assert_eq!(activity.state(), state(Phase::Quiet, 3, false));
        activity.received(5);
        activity.received(9);
        assert_eq!(activity.state(), state(Phase::Receiving, 5, false));
        activity.sent(10);
        assert_eq!(activity.state(), state(Phase::Quiet, 10, true));
        activity.received(11);
        activity.serving(12);
        activity.received(13);
        assert_eq!(activity.state(), state(Phase::Serving, 12, true));
    }

    /// HTTP/2 servers speak first: their greeting does not prove a client that knows the protocol.
    #[test]
    fn a_greeting_is_no_reply() {
        let activity = Activity::new(0);
        activity.sent(1);
        assert_eq!(activity.state(), state(Phase::Quiet, 1, false));
        activity.received(2);
        activity.sent(2);
        assert!(activity.state().has_replied);
        activity.restart(4);
        assert_eq!(activity.state(), state(Phase::Quiet, 4, false));
    }

    /// A slow reader is cut off after a time without progress, however often the write is retried.
    #[test]
    fn retried_writes_do_not_renew_a_blocked_write_and_progress_does() {
        let activity = Activity::new(0);
        activity.blocked(1);
        activity.blocked(7);
        assert_eq!(activity.state(), state(Phase::Blocked, 1, false));
        activity.received(8);
        assert_eq!(activity.state().phase, Phase::Blocked);
        activity.sent(9);
        assert_eq!(activity.state().phase, Phase::Quiet);
        activity.blocked(9);
        assert_eq!(activity.state().since, 9);
    }
}

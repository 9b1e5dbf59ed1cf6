//! One protocol's connections: cap, timeouts and counters.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use super::reasons::{CloseReason, RefusalReason};
use super::timeouts::Timeouts;
use super::unfinished::UnfinishedRequests;

/// How a protocol accepts connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionSpec {
    /// The protocol label in metrics.
    pub(crate) protocol: &'static str,
    /// Maximum connections of this protocol, within the total budget. `None`: the whole budget.
    pub(crate) max: Option<usize>,
    pub(crate) timeouts: Timeouts,
    /// The reply to a refused client, in its own protocol.
    pub(crate) refusal: &'static [u8],
}

#[derive(Debug)]
pub(crate) struct ProtocolConnections {
    pub(crate) protocol: &'static str,
    pub(crate) max: Option<usize>,
    pub(super) timeouts: Timeouts,
    pub(super) refusal: &'static [u8],
    pub(super) unfinished: UnfinishedRequests,
    open: AtomicUsize,
    /// Whether connections must end after their current request.
    ending: AtomicBool,
    /// Notified when the last connection ends.
    emptied: Notify,
    accepted: AtomicU64,
    refused: [AtomicU64; RefusalReason::ALL.len()],
    closed: [AtomicU64; CloseReason::ALL.len()],
}

impl ProtocolConnections {
    pub(super) fn new(spec: ConnectionSpec) -> Self {
        let ConnectionSpec { protocol, max, timeouts, refusal } = spec;
        Self {
            protocol,
            max,
            timeouts,
            refusal,
            unfinished: UnfinishedRequests::default(),
            open: AtomicUsize::new(0),
            ending: AtomicBool::new(false),
            emptied: Notify::new(),
            accepted: AtomicU64::new(0),
            refused: Default::default(),
            closed: Default::default(),
        }
    }

    /// Open connections.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Bytes held by connections for incomplete requests.
    pub(crate) fn unfinished_bytes(&self) -> usize {
        self.unfinished.bytes()
    }

    /// Requests dropped for lack of memory for the rest of them.
    pub(crate) fn unfinished_refused(&self) -> u64 {
        self.unfinished.refused()
    }

    /// Connections admitted since the start.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Refused connections by reason.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = (RefusalReason, u64)> {
        RefusalReason::ALL
            .into_iter()
            .map(|reason| (reason, self.refused[reason as usize].load(Ordering::Relaxed)))
    }

    /// Connections that the service closed, by reason.
    pub(crate) fn closings(&self) -> impl Iterator<Item = (CloseReason, u64)> {
        CloseReason::ALL
            .into_iter()
            .map(|reason| (reason, self.closed[reason as usize - 1].load(Ordering::Relaxed)))
    }

    /// Whether connections must end after their current request.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }

    /// Sets the flag. The caller must then wake the connections' tasks.
    pub(super) fn begin_ending(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Waits for connections to end. Returns the number open after `grace`.
    pub(crate) async fn closed_within(&self, grace: Duration) -> usize {
        match timeout(grace, self.all_closed()).await {
            Ok(()) => 0,
            Err(_) => self.open(),
        }
    }

    async fn all_closed(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.open() == 0 {
                return;
            }
            emptied.await;
        }
    }

    pub(super) fn refused(&self, reason: RefusalReason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self, reason: CloseReason) {
        self.closed[reason as usize - 1].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection as open, unless the protocol is at its maximum.
    pub(super) fn begin(&self) -> bool {
        let max = self.max.unwrap_or(usize::MAX);
        let grow = |open| (open < max).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok()
    }

    pub(super) fn admitted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Reverts [`begin`](Self::begin).
    pub(super) fn end(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.emptied.notify_waiters();
        }
    }
}

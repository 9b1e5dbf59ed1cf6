//! The connections of one protocol: its cap, its timeouts, and what became of connections.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::timeouts::Timeouts;

/// How a protocol accepts connections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionSpec {
    /// The label of its metrics.
    pub(crate) protocol: &'static str,
    /// Most connections of this protocol, within the budget of all. `None`: the whole budget.
    pub(crate) max: Option<usize>,
    pub(crate) timeouts: Timeouts,
    pub(crate) refusal: Refusal,
}

/// What a refused client is told, in its own protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// 503 with `Retry-After`.
    Http,
    /// The error of Redis.
    Resp,
    /// GOAWAY: no call of this connection was processed.
    Grpc,
}

/// Why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalReason {
    /// `server.max_connections` are open and in use.
    Total,
    /// Its peer has `server.max_connections_per_peer` open and in use.
    Peer,
    /// The protocol's own maximum is reached.
    Protocol,
    /// The process has no file descriptor left.
    Descriptors,
}

/// Why the service closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CloseReason {
    /// It was idle longest when another one needed its place.
    Evicted = 1,
    /// It did not begin to speak the protocol in time.
    Opening,
    /// A request did not arrive in time.
    Request,
    /// It was idle for too long.
    Idle,
    /// The client did not read.
    Write,
    /// The TLS handshake failed, or took too long.
    Handshake,
}

impl RefusalReason {
    const ALL: [Self; 4] = [Self::Total, Self::Peer, Self::Protocol, Self::Descriptors];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Peer => "peer",
            Self::Protocol => "protocol",
            Self::Descriptors => "descriptors",
        }
    }
}

impl CloseReason {
    const ALL: [Self; 6] =
        [Self::Evicted, Self::Opening, Self::Request, Self::Idle, Self::Write, Self::Handshake];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Opening => "opening_timeout",
            Self::Request => "request_timeout",
            Self::Idle => "idle_timeout",
            Self::Write => "write_timeout",
            Self::Handshake => "tls_handshake",
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

/// The connections of one protocol.
#[derive(Debug)]
pub(crate) struct ProtocolConnections {
    pub(crate) protocol: &'static str,
    pub(crate) max: Option<usize>,
    pub(super) timeouts: Timeouts,
    pub(super) refusal: Refusal,
    open: AtomicUsize,
    /// Told when the last connection ends.
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
            open: AtomicUsize::new(0),
            emptied: Notify::new(),
            accepted: AtomicU64::new(0),
            refused: Default::default(),
            closed: Default::default(),
        }
    }

    /// Connections that are open now.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
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

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
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

    /// Counts a connection as open, unless the protocol's own maximum is reached.
    pub(super) fn begin(&self) -> bool {
        let max = self.max.unwrap_or(usize::MAX);
        let grow = |open| (open < max).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grow).is_ok()
    }

    pub(super) fn admitted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// The end of what [`begin`](Self::begin) counted.
    pub(super) fn end(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.emptied.notify_waiters();
        }
    }
}

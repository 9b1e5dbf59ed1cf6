//! Reasons for refused and closed connections: labels of their metrics.

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
    /// It was idle longest when another needed its place.
    Evicted = 1,
    /// It did not start the protocol in time.
    Opening,
    /// A request did not arrive in time.
    Request,
    /// It was idle for too long.
    Idle,
    /// The client did not read.
    Write,
    /// The TLS handshake failed, or took too long.
    Handshake,
    /// The client sent too many frames that belong to no call.
    Flood,
    /// There was no memory for its incomplete request.
    Memory,
}

impl RefusalReason {
    pub(super) const ALL: [Self; 4] = [Self::Total, Self::Peer, Self::Protocol, Self::Descriptors];

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
    pub(super) const ALL: [Self; 8] = [
        Self::Evicted,
        Self::Opening,
        Self::Request,
        Self::Idle,
        Self::Write,
        Self::Handshake,
        Self::Flood,
        Self::Memory,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::Opening => "opening_timeout",
            Self::Request => "request_timeout",
            Self::Idle => "idle_timeout",
            Self::Write => "write_timeout",
            Self::Handshake => "tls_handshake",
            Self::Flood => "flood",
            Self::Memory => "memory",
        }
    }

    pub(super) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == code)
    }
}

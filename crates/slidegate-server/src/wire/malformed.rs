//! Malformed client input: counted by protocol, reason and outcome; logged at a limited rate.
//!
//! A proxy that fails open passes on a request whose call is refused, so refused requests may be unlimited
//! there. Flawed input that is still decided is counted too: it shows who tries.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use axum::http::StatusCode;

use crate::caller::Protocol;
use crate::log_limit::LogLimit;

/// The flaw in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Bytes that are not UTF-8 where text is usual.
    Encoding,
    /// A name or value above its maximum length, or an empty name.
    Length,
    /// An address attribute whose value is not an address.
    Address,
    /// A repeated name.
    Repeated,
    /// More parts than are read.
    TooMany,
    /// A cost above the maximum.
    Cost,
    /// A malformed message, body, command or field.
    Invalid,
    /// A message, body or head above its maximum size.
    TooLarge,
    /// A body that did not arrive in time.
    Late,
    /// A method that the path does not support.
    Method,
}

/// The handling of malformed input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// Decided like any other request.
    Decided,
    /// The client gets an error.
    Refused,
}

impl Flaw {
    pub(crate) const ALL: [Self; 10] = [
        Self::Encoding,
        Self::Length,
        Self::Address,
        Self::Repeated,
        Self::TooMany,
        Self::Cost,
        Self::Invalid,
        Self::TooLarge,
        Self::Late,
        Self::Method,
    ];

    /// The label in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Encoding => "encoding",
            Self::Length => "length",
            Self::Address => "address",
            Self::Repeated => "repeated",
            Self::TooMany => "too_many",
            Self::Cost => "cost",
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
            Self::Late => "late",
            Self::Method => "method",
        }
    }

    /// The flaw that a response with this status refuses; `None` for other errors, such as a missing token.
    fn of_status(status: StatusCode) -> Option<Self> {
        Some(match status {
            StatusCode::BAD_REQUEST
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY => Self::Invalid,
            StatusCode::METHOD_NOT_ALLOWED => Self::Method,
            StatusCode::REQUEST_TIMEOUT => Self::Late,
            StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::URI_TOO_LONG
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Self::TooLarge,
            _ => return None,
        })
    }
}

impl Handling {
    pub(crate) const ALL: [Self; 2] = [Self::Decided, Self::Refused];

    /// The label in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Refused => "refused",
        }
    }
}

/// Counts of malformed input.
#[derive(Debug, Default)]
pub(crate) struct Malformed {
    counts: [[[AtomicU64; Flaw::ALL.len()]; Handling::ALL.len()]; Protocol::ALL.len()],
    log: LogLimit,
}

impl Malformed {
    /// Counts and logs input with this flaw. The input may contain a secret, so it is not logged.
    pub(crate) fn record(&self, protocol: Protocol, flaw: Flaw, handling: Handling) {
        self.counts[protocol as usize][handling as usize][flaw as usize].fetch_add(1, Relaxed);
        let (protocol, reason) = (protocol.name(), flaw.name());
        let key = [protocol, reason, handling.name()].join(" ");
        let Some(suppressed) = self.log.admit_key(key.as_bytes()) else { return };
        let suppressed = (suppressed > 0).then_some(suppressed);
        match handling {
            Handling::Decided => {
                tracing::info!(
                    suppressed,
                    protocol,
                    reason,
                    "malformed input of a client, decided like any other"
                );
            }
            Handling::Refused => {
                tracing::warn!(
                    suppressed,
                    protocol,
                    reason,
                    "malformed input of a client, refused; a proxy that fails open passes such requests on"
                );
            }
        }
    }

    /// Counts a refusal with this status, if its input is malformed.
    pub(crate) fn refused(&self, protocol: Protocol, status: StatusCode) {
        if let Some(flaw) = Flaw::of_status(status) {
            self.record(protocol, flaw, Handling::Refused);
        }
    }

    /// Number of occurrences.
    pub(crate) fn count(&self, protocol: Protocol, flaw: Flaw, handling: Handling) -> u64 {
        self.counts[protocol as usize][handling as usize][flaw as usize].load(Relaxed)
    }
}

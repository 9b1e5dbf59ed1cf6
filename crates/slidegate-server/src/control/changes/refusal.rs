//! Errors of run-time changes.

/// Why a change was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    /// One line: what is invalid and how to fix it.
    pub(crate) detail: String,
}

/// The kind of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The target does not exist.
    Unknown,
    /// The state differs from what the caller expected.
    Conflict,
    /// The store is unreachable.
    Away,
}

impl Refusal {
    pub(crate) fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }
}

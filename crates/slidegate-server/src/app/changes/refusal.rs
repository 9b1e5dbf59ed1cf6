//! Why a run-time change was refused.

/// Why something was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) cause: Cause,
    /// One line that names the thing and the way out.
    pub(crate) detail: String,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no such thing.
    Unknown,
    /// It is not as the caller thought.
    Conflict,
    /// The store did not answer.
    Away,
}

impl Refusal {
    pub(crate) fn new(cause: Cause, detail: impl Into<String>) -> Self {
        Self { cause, detail: detail.into() }
    }
}

//! Why a shared store did not decide.

use std::fmt;

use redis_once::{Failure, FailureKind};

/// Why a shared store did not decide and a policy's [fallback](crate::OnStoreError) did.
///
/// Its text is one line with the node and what happened, and the server's own words if it replied
/// an error: `redis at 10.0.0.5:6379: READONLY You can't write against a read only replica.`
///
/// ```
/// use slidegate::redis::{FailureKind, StoreFailure};
///
/// let failure = StoreFailure::new(FailureKind::Timeout, "table at 10.0.0.5: no reply within 50 ms");
/// assert_eq!(failure.kind(), FailureKind::Timeout);
/// assert_eq!(failure.to_string(), "table at 10.0.0.5: no reply within 50 ms");
/// ```
#[derive(Debug, Clone)]
pub struct StoreFailure(Cause);

#[derive(Debug, Clone)]
enum Cause {
    Redis(Failure),
    /// Of a store outside this crate.
    Other {
        kind: FailureKind,
        text: String,
    },
}

impl StoreFailure {
    /// A failure of a store outside this crate. `text` is one line.
    #[must_use]
    pub fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self(Cause::Other { kind, text: text.into() })
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> FailureKind {
        match &self.0 {
            Cause::Redis(failure) => failure.kind,
            Cause::Other { kind, .. } => *kind,
        }
    }
}

impl From<Failure> for StoreFailure {
    fn from(failure: Failure) -> Self {
        Self(Cause::Redis(failure))
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Cause::Redis(failure) => failure.fmt(f),
            Cause::Other { text, .. } => f.write_str(text),
        }
    }
}

//! Why a shared store did not decide.

use std::fmt;

/// Why a shared store did not decide and a policy's [fallback](crate::OnStoreError) did.
///
/// Displays as one line with the server and the failure, including the server's error reply:
/// `redis at 10.0.0.5:6379: READONLY You can't write against a read only replica.`
///
/// ```
/// use slidegate::store::StoreFailure;
///
/// let failure = StoreFailure::new("timeout", "table at 10.0.0.5: no reply within 50 ms");
/// assert_eq!(failure.kind(), "timeout");
/// assert_eq!(failure.to_string(), "table at 10.0.0.5: no reply within 50 ms");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFailure {
    kind: &'static str,
    text: String,
}

impl StoreFailure {
    /// The kind of a call skipped because earlier ones failed. It explains nothing, so statistics
    /// keep the failure before it.
    pub const BREAKER_OPEN: &'static str = "breaker_open";

    /// A failure. `kind` is one lower-case word, used as a metric label. `text` is one line.
    #[must_use]
    pub fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// The kind of failure, in one lower-case word.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Whether the store replies and refuses what decisions need, so that somebody has to change
    /// it: the kind is `auth`, `noperm` or `other`. Other failures mostly pass.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self.kind, "auth" | "noperm" | "other")
    }
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

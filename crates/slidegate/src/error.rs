//! The one error of the library: what was wrong with a value that a program or its user wrote.
//!
//! Decisions never fail on the memory store, so everything here is met while a limiter is being set up.

use std::fmt;

/// Why a quota, a policy, a rule for client addresses, a style of headers or a store could not be built.
///
/// Its text is one line that names the thing, the value and the way out. The kind can be asked for by predicate; it
/// has no public variants, so that new causes break nobody.
///
/// ```
/// use slidegate::Quota;
///
/// let error = "100/0s".parse::<Quota>().unwrap_err();
/// assert!(error.is_quota());
/// assert_eq!(error.to_string(), "window `0s` is out of range; give 1ms to 366d, for example `1m`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quota,
    Policy,
    Address,
    Header,
    #[cfg(feature = "redis")]
    Store,
}

impl Error {
    pub(crate) fn quota(message: impl Into<String>) -> Self {
        Self { kind: Kind::Quota, message: message.into() }
    }

    pub(crate) fn policy(message: impl Into<String>) -> Self {
        Self { kind: Kind::Policy, message: message.into() }
    }

    pub(crate) fn address(message: impl Into<String>) -> Self {
        Self { kind: Kind::Address, message: message.into() }
    }

    pub(crate) fn header(message: impl Into<String>) -> Self {
        Self { kind: Kind::Header, message: message.into() }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn store(message: impl Into<String>) -> Self {
        Self { kind: Kind::Store, message: message.into() }
    }

    /// Whether a limit, window, burst, number of slots or their text form was wrong.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.kind == Kind::Quota
    }

    /// Whether a policy's name, condition, scope or override, or a set of policies, was wrong.
    #[must_use]
    pub fn is_policy(&self) -> bool {
        self.kind == Kind::Policy
    }

    /// Whether a trusted proxy, a source of client addresses or a prefix length was wrong.
    #[must_use]
    pub fn is_address(&self) -> bool {
        self.kind == Kind::Address
    }

    /// Whether a style of response headers was unknown.
    #[must_use]
    pub fn is_header(&self) -> bool {
        self.kind == Kind::Header
    }

    /// Whether a shared store's address, certificate or other option was wrong.
    #[cfg(feature = "redis")]
    #[must_use]
    pub fn is_store(&self) -> bool {
        self.kind == Kind::Store
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

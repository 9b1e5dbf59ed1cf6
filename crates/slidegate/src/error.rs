//! The library's error: an invalid setting, or a request that cannot be decided.
//!
//! Most errors occur while a limiter is built. The exception is a request that names an unknown
//! policy or cost, or lacks an attribute of the policy it names. Such a request is denied, and
//! [`Decisions::error`](crate::Decisions::error) holds the error.

use std::fmt;

/// Why a value could not be built (a quota, a policy, a client address rule, a header style or a
/// store), or why a request could not be decided by the policy that it names.
///
/// The text is one line: what is invalid, the value, what is expected and how to fix it. The kind
/// is available through predicates. There are no public variants, so new kinds are not breaking
/// changes.
///
/// ```
/// use slidegate::Quota;
///
/// let error = "100/0s".parse::<Quota>().unwrap_err();
/// assert!(error.is_quota());
/// assert_eq!(error.to_string(), "invalid window `0s`: must be 1ms to 366d, for example `1m`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ErrorKind {
    Quota,
    Policy,
    Address,
    Header,
    UnknownPolicy,
    MissingAttribute,
    UnknownCost,
    Store,
    Ticket,
}

/// Maximum number of policies that an error lists. A set may hold thousands.
const MAX_LISTED: usize = 10;

impl Error {
    /// An error of a [store](crate::store::Store) that cannot count a quota. The text is one line.
    pub fn quota(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Quota, message: message.into() }
    }

    /// An invalid policy. `message` says what is invalid and what is expected.
    pub fn policy(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Policy, message: message.into() }
    }

    /// An invalid ticket, or an invalid time of a reservation. `message` says what is invalid and what is expected.
    pub fn ticket(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Ticket, message: message.into() }
    }

    /// An invalid address, network or rule for client addresses. `message` says what is invalid and what is expected.
    pub fn address(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Address, message: message.into() }
    }

    /// An invalid option of header fields. `message` says what is invalid and what is expected.
    pub fn header(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Header, message: message.into() }
    }

    /// A policy that is not in a set with the names `known`.
    #[doc(hidden)]
    pub fn unknown_policy<'n>(name: &str, known: impl ExactSizeIterator<Item = &'n str>) -> Self {
        let more = known.len().saturating_sub(MAX_LISTED);
        let listed: Vec<_> = known.take(MAX_LISTED).map(|name| format!("`{name}`")).collect();
        let mut message = format!("unknown policy `{}`: ", name.escape_debug());
        match (listed.as_slice(), more) {
            ([], _) => message.push_str("the gate has no policies"),
            (_, 0) => message = message + "the gate has " + &listed.join(", "),
            (_, more) => {
                message = message + "the gate has " + &listed.join(", ") + &format!(" and {more} more");
            }
        }
        Self { kind: ErrorKind::UnknownPolicy, message }
    }

    /// A cost by a name that no policy counts, without the one by the name that `policy` counts.
    pub(crate) fn unknown_cost(name: &str, policy: &str, missing: &str) -> Self {
        let name = name.escape_debug();
        let message = format!(
            "unknown cost `{name}`: no policy counts it, and policy `{policy}` counts `{missing}`, which is missing; \
             correct the name, or add `{missing}`"
        );
        Self { kind: ErrorKind::UnknownCost, message }
    }

    /// A request that names a policy and lacks an attribute of its scope.
    pub(crate) fn missing_attribute(policy: &str, attribute: &str) -> Self {
        let message = format!(
            "policy `{policy}`: the request lacks attribute `{attribute}`; add `.with(\"{attribute}\", ...)`"
        );
        Self { kind: ErrorKind::MissingAttribute, message }
    }

    /// An error of a [store](crate::store::Store): it did not reply, or was configured wrongly. The
    /// text is one line.
    pub fn store(message: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Store, message: message.into() }
    }

    /// Whether a limit, window, burst, number of slots or the text of a quota was invalid.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.kind == ErrorKind::Quota
    }

    /// Whether a policy's name, condition, scope or override, or a set of policies, was invalid.
    #[must_use]
    pub fn is_policy(&self) -> bool {
        self.kind == ErrorKind::Policy
    }

    /// Whether a trusted proxy, a client address source or a prefix length was invalid.
    #[must_use]
    pub fn is_address(&self) -> bool {
        self.kind == ErrorKind::Address
    }

    /// Whether the name of a header style was unknown.
    #[must_use]
    pub fn is_header(&self) -> bool {
        self.kind == ErrorKind::Header
    }

    /// Whether a request named a policy that the gate does not have.
    #[must_use]
    pub fn is_unknown_policy(&self) -> bool {
        self.kind == ErrorKind::UnknownPolicy
    }

    /// Whether a request named a policy and lacked an attribute of its scope.
    #[must_use]
    pub fn is_missing_attribute(&self) -> bool {
        self.kind == ErrorKind::MissingAttribute
    }

    /// Whether a cost had a name that no policy counts, and not the one that a policy
    /// [counts](crate::Counts::Named).
    #[must_use]
    pub fn is_unknown_cost(&self) -> bool {
        self.kind == ErrorKind::UnknownCost
    }

    /// Whether a ticket, or the time of a reservation, was invalid.
    #[must_use]
    pub fn is_ticket(&self) -> bool {
        self.kind == ErrorKind::Ticket
    }

    /// Whether a shared store did not reply, or an address, a certificate or another option of it
    /// was invalid.
    #[must_use]
    pub fn is_store(&self) -> bool {
        self.kind == ErrorKind::Store
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

//! Verbs and roles: what is done with a request's cost, and how a request takes part in a call of
//! several.

/// How a request's cost is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Verb {
    /// Charge the cost if it fits.
    #[default]
    Check,
    /// Decide whether the cost fits, and change nothing.
    Peek,
    /// Return cost that was charged and still counts.
    Refund,
    /// Charge the cost whether it fits or not.
    Penalize,
}

impl Verb {
    /// Whether it asks if a cost fits, so that it can be denied.
    #[must_use]
    #[inline]
    pub fn is_question(self) -> bool {
        matches!(self, Self::Check | Self::Peek)
    }
}

/// How a request takes part in a call of several requests, see [`Gate::apply`](crate::Gate::apply).
///
/// In the order of this list, a role decides more: where two checks, or two peeks, of one call meet
/// on one key, the earlier role of the two applies to both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Role {
    /// If its check or peek is denied, the call is denied. A check is charged if the call is
    /// allowed.
    #[default]
    Deciding,
    /// The call is denied if all requests of this role are denied. A check is charged if it fits
    /// itself and the call is allowed. Requests that no policy applies to are left out. Of a request
    /// that names no policy, each policy that applies counts as a request of its own.
    Together,
    /// Not a request of its own, but a second key for the request just before it in the call, under
    /// the same policy. It has no decision.
    ///
    /// - After a check it charges its cost, as a penalty, if that check was not charged. It does
    ///   not if a peek denied the call, nor where the policy [counts denials](crate::Excess::Count)
    ///   anyway.
    /// - After a peek it changes nothing: its usage is added to that of the peek.
    ///
    /// So peeks see what was refused, and checks do not.
    Refusals,
}

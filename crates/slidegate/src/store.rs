//! Stores: where usage lives, and what can be done with it.
//!
//! A store takes a plan of charges and carries it out on all its keys or on none, in one atomic step. It knows keys,
//! quotas and costs; it knows no policy, no request and no header.

pub(crate) mod memory;

/// What to do with the costs of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Charge if it fits.
    Check,
    /// Look whether it fits, and change nothing.
    Peek,
    /// Give back what was charged and still counts.
    Refund,
    /// Charge whether it fits or not.
    Penalize,
}

//! Verbs: what can be done with a request's cost.

/// What to do with a request's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Charge if it fits.
    Check,
    /// Look whether it fits, and change nothing.
    Peek,
    /// Give back what was charged and still counts.
    Refund,
    /// Charge whether it fits or not.
    Penalize,
}

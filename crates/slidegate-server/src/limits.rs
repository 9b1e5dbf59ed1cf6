//! Bounds of a request, the same in every protocol.

/// Most attributes of a request. Policies look for theirs one by one.
pub(crate) const MAX_ATTRIBUTES: usize = 32;
/// Longest name of an attribute, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// Longest value of an attribute, in bytes: more than any token or path that should be counted by.
pub(crate) const MAX_VALUE: usize = 8192;
/// Largest cost: above it JSON readers that keep numbers as doubles would read another one.
pub(crate) const MAX_COST: u64 = (1 << 53) - 1;

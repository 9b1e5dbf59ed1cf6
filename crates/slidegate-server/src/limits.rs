//! Bounds of a request, equal in all protocols.

/// Maximum attributes of a request. Policies search them linearly.
pub(crate) const MAX_ATTRIBUTES: usize = 32;
/// Maximum length of an attribute name, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// Maximum length of an attribute value, in bytes: longer than any reasonable token or path.
pub(crate) const MAX_VALUE: usize = 8192;
/// Maximum cost. Above it, JSON parsers that use doubles would read a different number.
pub(crate) const MAX_COST: u64 = (1 << 53) - 1;

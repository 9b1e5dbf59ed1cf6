//! Bounds of a request, equal in all protocols.

/// Maximum attributes of a request. Policies search them linearly.
pub(crate) const MAX_ATTRIBUTES: usize = 32;
/// Maximum length of an attribute value, in bytes: longer than any reasonable token or path.
pub(crate) const MAX_VALUE: usize = 8192;
/// Maximum cost. Above it, JSON parsers that use doubles would read a different number.
pub(crate) const MAX_COST: u64 = (1 << 53) - 1;
/// Maximum costs by name in a request. Every policy that applies searches them.
pub(crate) const MAX_COST_NAMES: usize = 16;
/// Maximum length of the name of a cost: that of a policy's `counts`.
pub(crate) const MAX_COST_NAME: usize = 64;
/// Maximum length of an idempotency key. A UUID has 36 characters, and each is stored for a window.
pub(crate) const MAX_ID: usize = 128;

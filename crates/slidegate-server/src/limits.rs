//! Bounds of a request, equal in all protocols.
//!
//! Attribute values are bounded only by their transport, at most 64 KiB: clients of proxies choose them, and
//! stores hash long keys.

use std::time::Duration;

/// Maximum attributes of a request. Policies search them linearly.
pub(crate) const MAX_ATTRIBUTES: usize = 32;
/// Maximum cost. Above it, JSON parsers that use doubles would read a different number.
pub(crate) const MAX_COST: u64 = (1 << 53) - 1;
/// Maximum named costs in a request. Every applicable policy searches them.
pub(crate) const MAX_COST_NAMES: usize = 16;
/// Maximum length of a cost's name: that of a policy's `counts`.
pub(crate) const MAX_COST_NAME: usize = 64;
/// Maximum wait for a turn: proxies and load balancers end longer requests.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(60);
/// Maximum length of an idempotency key. A UUID has 36 characters, and each is stored for a window.
pub(crate) const MAX_ID: usize = 128;

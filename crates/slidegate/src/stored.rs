//! Stored values: decisions on the bytes that the scripts for Redis store, without Redis.
//!
//! This is for `slidegate-module`, which decides inside of Redis and Valkey. **Applications have no
//! use for it**, and it may change in any release. It is what the scripts in `lua/` do with one key,
//! computed by the same algorithms as the memory store: [`check`] is `check.lua`. Nothing here reads a
//! clock, and a value is only read: what is to be stored is returned as a [`Write`].
//!
//! Every byte of a value is documented in `docs/redis-layout.md`. Values may have any content, because
//! others can write to the same server: none makes a decision panic or take more steps than a log has
//! entries.

#[cfg(any(feature = "redis", feature = "stored-values"))]
// Public for the module alone.
#[cfg_attr(not(feature = "stored-values"), allow(unreachable_pub))]
pub(crate) mod call;
#[cfg(feature = "stored-values")]
mod call_key;
pub(crate) mod compact;
#[cfg(feature = "stored-values")]
mod counters;
#[cfg(feature = "stored-values")]
mod decide;
#[cfg(feature = "stored-values")]
mod entries;
#[cfg(feature = "stored-values")]
mod key;
#[cfg(feature = "stored-values")]
mod pair;
mod quota_bytes;
#[cfg(feature = "stored-values")]
mod reply;
#[cfg(feature = "stored-values")]
mod state;
#[cfg(feature = "stored-values")]
mod write;

#[cfg(feature = "stored-values")]
pub use call::{ChangeCall, DecideCall};
#[cfg(feature = "stored-values")]
pub use decide::{Decided, UnusableKey};
#[cfg(feature = "stored-values")]
pub use key::{Checked, Requests, check, decide};
#[cfg(feature = "stored-values")]
pub use pair::{Effect, Pair, Patch};
#[cfg(feature = "stored-values")]
pub use quota_bytes::quota_of;
#[cfg(feature = "stored-values")]
pub use reply::{Item, Reply};
#[cfg(feature = "stored-values")]
pub use state::{Numbers, Unusable};
#[cfg(feature = "stored-values")]
pub use write::{Bytes, Write};

#[cfg(feature = "redis")]
pub(crate) use quota_bytes::{letter, quota_bytes};

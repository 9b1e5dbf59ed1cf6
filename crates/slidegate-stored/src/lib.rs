//! Stored values: decisions on the bytes that the scripts for Redis store, without Redis.
//!
//! This is for `slidegate-module`, which decides inside Redis and Valkey. **Applications have no
//! use for it**, and it may change in any release. It is what the scripts in `lua/` do with one key,
//! computed by the same algorithms as the memory store: [`check`] is `check.lua`. Nothing here reads a
//! clock, and a value is only read: what is to be stored is returned as a [`Write`].
//!
//! Every byte of a value is documented in `docs/redis-layout.md`. Values may have any content, because
//! others can write to the same server: none makes a decision panic or take more steps than a log has
//! entries.

pub(crate) mod call;
mod call_key;
pub(crate) mod compact;
mod counters;
mod decide;
mod entries;
mod key;
mod pair;
mod quota_bytes;
mod reply;
mod state;
mod write;

pub use call::{ChangeCall, DecideCall};
pub use decide::{Decided, UnusableKey};
pub use key::{Checked, Requests, check, decide};
pub use pair::{Effect, Pair, Patch};
pub use quota_bytes::quota_of;
pub use reply::{Item, Reply};
pub use state::{Numbers, Unusable};
pub use write::{Bytes, Write};

pub(crate) use quota_bytes::{letter, quota_bytes};

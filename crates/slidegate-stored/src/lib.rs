#![doc = include_str!("../README.md")]
//!
//! Computes the decisions of the scripts of `slidegate-redis` with the algorithms of the memory
//! store: [`check`] is `check.lua`. Nothing here reads a clock, and values are only read: changes
//! are returned as a [`Write`].
//!
//! Values may have any content, because others can write to the server: none makes a decision panic
//! or take more steps than a log has entries.
#![forbid(unsafe_code)]

pub mod call;
mod call_key;
mod compact;
mod counters;
mod decide;
mod entries;
mod inspect;
mod key;
mod pair;
mod quota_bytes;
mod reply;
mod state;
mod write;

pub use call::{ChangeCall, DecideCall};
pub use counters::closed_totals;
pub use decide::{Decided, UnusableKey};
pub use inspect::inspect;
pub use key::{Checked, Requests, check, decide};
pub use pair::{Effect, Pair, Patch, value_bytes};
pub use quota_bytes::{WireForm, algorithm_of, letter, lettered_quota, quota_bytes, quota_of};
pub use reply::{Item, Reply};
pub use state::{Numbers, Total, Unusable, tags};
pub use write::{Bytes, Reader, Write};

//! An exact sliding-window rate limiter.
//!
//! ```
//! use slidegate::{Limiter, Quota};
//! let limiter = Limiter::new(Quota::per_minute(100));   // exact sliding window, in memory
//! if limiter.check("alice").is_denied() { /* 429 */ }
//! ```
//!
//! [`Limiter`] holds one quota for many keys. [`Gate`] decides requests under many policies at
//! once, all or none, and says which policy and key bound it. [`headers`] turns decisions into
//! response headers, [`client_addr`] finds out who the client is behind proxies.
//!
//! Four [algorithms](Algorithm) count the same way through one interface: the exact sliding window
//! is the default.

#![forbid(unsafe_code)]

/// The README's examples, run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// The examples of docs/embedding.md, run with the doctests.
#[cfg(all(doctest, feature = "axum", feature = "wait"))]
#[doc = include_str!("../../../docs/embedding.md")]
mod embedding {}

/// The examples of docs/reserve.md, run with the doctests.
#[cfg(all(doctest, feature = "axum", feature = "wait"))]
#[doc = include_str!("../../../docs/reserve.md")]
mod reserving {}

pub mod client_addr;
pub mod headers;
#[cfg(feature = "tower")]
pub mod layer;

mod algorithm;
mod all_or_nothing;
mod block;
mod charge;
mod decision;
mod error;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod hold;
#[cfg(any(feature = "redis", feature = "wait"))]
mod jitter;
mod key;
mod limiter;
mod policy;
mod policy_reset;
mod quota;
mod request;
mod request_path;
mod secret;
pub mod store;
#[cfg(feature = "stored-values")]
#[doc(hidden)]
pub mod stored;
mod sync;
mod ticket;
mod time;
mod usage;
mod verb;
#[cfg(feature = "wait")]
mod waiting;

pub use block::Block;
pub use charge::{Excess, OnStoreError};
pub use decision::{Decision, DecisionSource, Reason, Verdict};
pub use error::Error;
#[cfg(feature = "redis")]
pub use gate::PendingStats;
#[cfg(feature = "redis")]
pub use gate::SharedGate;
#[cfg(feature = "wait")]
pub use gate::{AcquireReservation, GateAcquire};
pub use gate::{
    Decisions, Extension, Gate, PolicyDecision, Reserved, SettledCost, SettledKey, Settlement, TicketGuard,
};
pub use hold::{HoldOptions, HoldStatus, Unsettled};
pub use key::Key;
pub use limiter::Limiter;
pub use policy::{Match, Policy, PolicySet};
pub use quota::{Algorithm, Quota, format_window, parse_window};
pub use request::{Cost, CostUnit, Counts, OwnedValue, Request, Value};
pub use request_path::normalized_path;
pub use secret::Secret;
#[cfg(feature = "redis")]
pub use store::fallback::FallbackStore;
pub use store::memory::snapshot::{InMemory, RestoredSnapshot, SavedSnapshot, SnapshotError, SnapshotFile};
pub use store::memory::{MemoryEstimate, MemoryStats, MemoryStore, MemoryStoreBuilder};
#[cfg(feature = "redis")]
pub use store::redis::{ClientCertificate, FailureKind, RedisOptions, RedisStore, StoreFailure};
pub use ticket::{Ticket, TicketHold};
pub use time::{Clock, ManualClock, SystemClock, Timestamp, millis_ceil, secs_ceil};
pub use usage::{KeyUse, OpenHold, RecordedCharge, UsageForecast};
pub use verb::{Role, Verb};
#[cfg(feature = "wait")]
pub use waiting::{Acquire, MaxWaiting, NotAcquired, NotAcquiredKind};

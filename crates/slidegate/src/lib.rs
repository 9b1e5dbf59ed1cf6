#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod network;

mod algorithm;
mod all_or_nothing;
mod amount;
mod block;
mod charge;
mod cost;
mod decision;
mod error;
mod fold;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod hold;
mod key;
mod lease;
mod limiter;
mod policy;
mod policy_reset;
mod quota;
mod request;
pub mod request_path;
mod secret;
#[doc(hidden)]
pub mod shares;
pub mod store;
mod sync;
mod ticket;
mod time;
mod usage;
pub mod verb;
mod waiting;

pub use amount::Amount;
pub use block::Block;
pub use charge::{Excess, OnMissing, OnStoreError};
pub use cost::{Cost, CostUnit, Counts};
pub use decision::{Amounts, Decision, DecisionSource, Reason, Verdict};
pub use error::Error;
pub use fold::Fold;
pub use gate::SharedGate;
pub use gate::{Decisions, Gate, PolicyDecision};
pub use key::Key;
pub use lease::LeaseLength;
pub use limiter::Limiter;
pub use policy::{Match, OverridePart, Policy, PolicyOptions, PolicySet, Tiers};
pub use quota::{Algorithm, Calendar, Quota};
pub use request::{OwnedValue, Request, Value};
pub use secret::Secret;
pub use store::memory::MemoryStore;

/// Internals for slidegate's other crates. They may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::algorithm::sliding_log::{Entries, Log};
    pub use crate::algorithm::*;
    pub use crate::all_or_nothing::{Denials, all_or_none, complete};
    pub use crate::amount::MILLION;
    pub use crate::charge::{MetQuota, Part, PerCharge};
    pub use crate::decision::Waits;
    pub use crate::fold::Folded;
    pub use crate::gate::configure::check_policy;
    pub use crate::gate::denial::{MAX_INTEGER, MAX_KEY, NamedDecision, UNDECIDED, integer};
    pub use crate::hold::{
        EndedHold, HEADER_BYTES, Hold, HoldChange, Holds, MAX_HOLDS, NewHold, TAG, TableList, new_id,
    };
    pub use crate::key::{HashSeed, KeySpace};
    pub use crate::lease::{Demand, LEAST_REQUESTS, Slice, holder_of, renewed_after_us, slice_of, usable_us};
    pub use crate::policy_reset::{Place, ResetCounts};
    pub use crate::quota::{QuotaFields, Setting};
    pub use crate::store::poll_once;
    pub use crate::store::set_table::SetTable;
    pub use crate::ticket::TicketPart;
    pub use crate::time::{SECOND_US, instant, jitter, micros, millis_ceil, monotonic, secs_ceil};
}

/// Waiting for a turn: the futures of `acquire`, how many may wait, and why one was not admitted.
pub mod acquire {
    pub use crate::gate::GateAcquire;
    #[doc(hidden)]
    pub use crate::gate::{Ask, NoTurn, Patience};
    pub use crate::limiter::Acquire;
    pub use crate::waiting::{MaxWaiting, NotAcquired, NotAcquiredKind};
}

/// Clocks and timestamps, and lengths of time as text.
pub mod clock {
    pub use crate::quota::{format_window, parse_window, time_zone_data};
    pub use crate::time::{Clock, ManualClock, SystemClock, Timestamp, format_wait};
}

/// Reservations: cost that is held until it is known. [`Gate::reserve`] makes one.
pub mod reserve {
    pub use crate::gate::{
        AcquireReservation, Extension, PendingStats, Reserved, SettledCost, SettledKey, Settlement,
        TicketGuard,
    };
    pub use crate::hold::{HoldOptions, HoldStatus, Unsettled};
    pub use crate::ticket::{Ticket, TicketHold};
}

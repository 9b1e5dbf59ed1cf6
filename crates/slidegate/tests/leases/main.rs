//! Quota leases: no window exceeds its limit, and what that costs. One store and its instances on a virtual clock, and a
//! checker that knows only what was admitted.
// A test that cannot go on panics; rates and shares are estimates.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
#![cfg(not(loom))]

mod cases;
mod checker;
mod demand;
mod model;
mod simulation;
mod store;
mod table;

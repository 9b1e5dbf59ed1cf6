//! The service over a shared store: Redis servers of its own, and their failures.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod audit;
mod closing;
mod control;
mod doctor;
mod escalation;
mod expired_reservations;
mod failover;
mod figures;
mod fleet;
mod key_size;
mod leases;
mod notifications;
mod passwords;
mod plans;
mod reservations;
mod rollout;
mod shared_store;
mod sharing;
mod unavailable;
mod watchdog;

//! The Redis store against real servers, their failures and their lies.
//!
//! Every test starts the servers it needs, on loopback, and ends them. They are Redis or whatever
//! `REDIS_SERVER` names.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod calendar;
mod callers;
mod charges_nothing;
mod clocks;
mod closed;
mod cluster;
mod deadlines;
mod every_store;
mod exactness;
mod extensions;
mod faults;
mod harness;
mod histories;
mod hold_clocks;
mod hold_histories;
mod holds;
mod hostile;
mod increx;
mod inspect;
mod instances;
mod layout;
mod leases;
mod mixed;
mod native;
mod offers;
mod outages;
mod oversized;
mod own_store;
mod penalties;
mod pending;
mod refusals;
mod scripts;
mod self_test;
mod sharing;
mod slots;
mod tickets;
mod tls;
mod unknown_policy;
mod upkeep;
mod waiting;
mod weighted;

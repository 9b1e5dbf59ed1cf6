//! The module in real servers, against the scripts.
//!
//! Every test starts the servers it needs, on loopback, and ends them. They are Redis or whatever
//! `REDIS_SERVER` names.
// A test that cannot go on panics.
#![allow(clippy::unwrap_used)]

mod calls;
mod commands;
mod damaged;
mod decide;
mod effects;
mod histories;
mod holds;
mod rights;

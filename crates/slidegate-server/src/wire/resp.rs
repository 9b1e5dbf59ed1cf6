//! RESP: rate limits for Redis clients, by slidegate's own commands and those of redis-cell and
//! throttlecrab.
//!
//! Speaks RESP2 and RESP3. It stores no keys or values. `resp/commands.rs` lists the commands;
//! docs/resp.md documents every reply.

mod answer;
mod batch;
mod commands;
mod connection;
mod cost;
mod decide;
mod dispatch;
mod error;
mod frame;
#[cfg(fuzzing)]
pub(crate) mod fuzzing;
mod hold_arguments;
mod holds;
mod listener;
mod reply;
mod session;
mod shared;
mod throttle;
mod transaction;
mod turn;

pub(crate) use listener::{TLS, bind};

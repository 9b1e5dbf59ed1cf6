//! Servers, faults and clocks for the tests of slidegate. Not published.
//!
//! Everything is synchronous and blocks the calling thread. What has to run meanwhile, a proxy or a
//! fake server, runs on threads of its own, so both plain and asynchronous tests can use it.
//!
//! Knows none of slidegate's crates: it judges them from outside.

#![forbid(unsafe_code)]
// A test that cannot go on panics.
#![allow(clippy::unwrap_used, missing_debug_implementations)]

pub mod redis;
pub mod service;

pub mod certificates;
pub mod clock;
pub mod http;
pub mod poll;
pub mod ports;
pub mod process;
pub mod proxy;
pub mod temp_dir;
pub mod window_checker;

mod background;

pub use poll::{until, until_true};
pub use temp_dir::TempDir;

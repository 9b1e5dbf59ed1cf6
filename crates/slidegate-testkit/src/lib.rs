//! Servers, faults and clocks for the tests of slidegate. Not published.
//!
//! Everything is synchronous and blocks the calling thread. Proxies and fake servers run on their
//! own threads, so both plain and asynchronous tests can use them.
//!
//! Depends on no slidegate crate: it judges them from outside.

#![forbid(unsafe_code)]
// A test that cannot continue panics.
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

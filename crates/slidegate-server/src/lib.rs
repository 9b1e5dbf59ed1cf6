#![doc = include_str!("../README.md")]
//! # This crate
//!
//! The service and its tools as a library: the `slidegate` binary only calls [`main`].

#![forbid(unsafe_code)]
// These macros panic when their reader is gone: commands print through `cli::output`, the service
// logs through `tracing`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

/// The examples of the repository's README, run with the doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}

mod access;
mod audit;
mod caller;
mod cli;
mod clock;
mod config;
mod control;
mod debounce;
mod engine;
mod envoy;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod http_client;
mod limits;
mod listener;
mod log_limit;
mod record;
mod service_manager;
mod shares;
mod shutdown;
mod stores;
mod wire;

/// Reads the command line of this process, runs its command, and returns the exit code.
pub fn main() -> ExitCode {
    cli::Cli::read().run()
}

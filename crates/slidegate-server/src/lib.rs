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
mod admin;
mod app;
mod auth;
mod caller;
mod cli;
mod config;
mod dashboard;
mod debounce;
mod envoy;
mod fields;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod grpc;
mod http;
mod http_client;
mod json_body;
mod key_text;
mod limits;
mod listener;
mod log_limit;
mod malformed;
mod ports;
mod problem;
mod protocol;
mod protocols;
mod query;
mod request;
mod resp;
mod routes;
mod service_manager;
mod shares;
mod shutdown;
mod telemetry;

/// Reads the command line of this process, runs its command, and returns the exit code.
pub fn main() -> ExitCode {
    cli::Cli::read().run()
}

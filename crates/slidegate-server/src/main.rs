//! `slidegate`: the service and its tools.

// They panic when their reader is gone: commands print through `cli::output`, the service logs through `tracing`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

mod access;
mod admin;
mod auth_attempts;
mod cli;
mod config;
mod control;
mod dashboard;
mod envoy;
mod front;
mod http_client;
mod listener;
mod log_limit;
mod observe;
mod protocol;
mod shadow;
mod shutdown;
mod store;
mod watched;
mod why;

fn main() -> ExitCode {
    cli::Cli::read().run()
}

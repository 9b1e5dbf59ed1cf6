//! `slidegate`: the service and its tools.

use std::process::ExitCode;

mod admin;
mod cli;
mod config;
mod control;
mod dashboard;
mod envoy;
mod front;
mod listener;
mod observe;
mod protocol;
mod replay;
mod shadow;
mod shutdown;
mod store;
mod watched;
mod why;

fn main() -> ExitCode {
    cli::Cli::read().run()
}

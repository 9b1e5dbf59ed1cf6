//! `slidegate`: the service and its tools.

use std::process::ExitCode;

use clap::Parser;

mod cli;
mod config;
mod dashboard;
mod front;
mod listener;
mod observe;
mod protocol;
mod replay;
mod shutdown;
mod store;
mod why;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}

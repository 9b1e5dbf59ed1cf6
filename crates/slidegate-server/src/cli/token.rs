//! `slidegate token new`: creates a token and prints its config line.

use clap::{Args, Subcommand};
use slidegate_config::values::is_name;

use super::failure::Failure;
use super::output;
use crate::access::tokens;
use crate::config::{Right, Rights};

#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    command: TokenCommand,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Create a token, which is printed once; the service stores only its digest
    New {
        /// Name of its owner, recorded with every change
        #[arg(long, default_value = "ops", value_parser = name)]
        name: String,
        /// Rights, separated by commas
        #[arg(long, value_enum, value_delimiter = ',', default_value = "write")]
        scope: Vec<Right>,
    },
}

fn name(text: &str) -> Result<String, String> {
    if is_name(text) { Ok(text.to_owned()) } else { Err("use 1 to 64 of A-Z a-z 0-9 _ . -".to_owned()) }
}

pub(super) fn run(args: &TokenArgs) -> Result<(), Failure> {
    let TokenCommand::New { name, scope } = &args.command;
    let (token, sha256) = tokens::generate()?;
    let rights = Rights::of(scope.iter().copied());
    let scope = rights.listed();
    output::print(format_args!(
        "token         {token}\n\
         configuration admin: {{tokens: [{{name: {name}, scope: {scope}, sha256: {sha256}}}]}}\n\
         environment   SLIDEGATE_ADMIN_TOKENS={name}:{rights}:{sha256}"
    ))
}

//! The command line: commands, options and exit codes.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use failure::Failure;

mod annotations;
mod check;
mod client;
mod demo;
mod demo_traffic;
mod diff;
mod doctor;
mod explain;
pub(crate) mod failure;
mod generate;
mod health;
mod help;
mod init;
mod key;
mod logs;
mod messages;
mod notify;
pub(crate) mod output;
mod policy;
mod reload;
mod replay;
mod serve;
mod snapshots;
mod sources;
mod token;
mod top;
mod validate;
pub(crate) mod values;
mod wording;

/// The version as bug reports need it. `-V` prints the first line.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\nrevision: ",
    env!("SLIDEGATE_REVISION"),
    "\ntarget:   ",
    env!("SLIDEGATE_TARGET"),
    "\nfeatures: ",
    env!("SLIDEGATE_FEATURES"),
);

/// An exact sliding-window rate limiter.
///
/// `slidegate serve` without options listens on loopback, with a default policy.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version, long_version = VERSION, after_long_help = help::FILES, max_term_width = 100)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Level of messages on standard error: error, warn, info, debug, trace, or a filter such as
    /// `slidegate=debug` [default: info]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = messages::level)]
    #[arg(help_heading = help::MESSAGES, hide_short_help = true)]
    log_level: Option<String>,
    /// Write messages, and what `serve` prints when it starts, as JSON, one object a line
    #[arg(long = "log-json", global = true, help_heading = help::MESSAGES, hide_short_help = true)]
    writes_json_messages: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    #[command(after_help = help::SERVE)]
    Serve(serve::ServeArgs),
    /// Run the service with synthetic traffic, to look at its page
    #[command(after_help = help::DEMO)]
    Demo(demo::DemoArgs),
    /// Ask the service on this machine whether it is ready
    #[command(after_help = help::HEALTH)]
    Health(health::HealthArgs),
    /// Examine the Redis that limits are shared in, and say what to fix
    #[command(after_help = help::DOCTOR)]
    Doctor(doctor::DoctorArgs),
    /// Check one request on a running server
    #[command(after_help = help::CHECK)]
    Check(check::CheckArgs),
    /// Show the keys with the most usage or denials
    #[command(after_help = help::TOP)]
    Top(top::TopArgs),
    /// Validate a config file, and describe each policy and limit
    #[command(after_help = help::VALIDATE)]
    Validate(validate::ValidateArgs),
    /// Inspect or change one key on a running server
    #[command(after_help = help::KEY)]
    Key(key::KeyArgs),
    /// List or change policies of a running server and all instances
    #[command(after_help = help::POLICY)]
    Policy(policy::PolicyCommands),
    /// Create tokens for the HTTP API
    #[command(after_help = help::TOKEN)]
    Token(token::TokenArgs),
    /// Say which policies apply to a request and why, without a server
    #[command(after_help = help::EXPLAIN)]
    Explain(explain::ExplainArgs),
    /// Replay an access log through policies: what would be denied?
    #[command(after_help = help::REPLAY)]
    Replay(replay::ReplayArgs),
    /// Replay an access log through two config files, and compare
    #[command(after_help = help::DIFF)]
    Diff(diff::DiffArgs),
    /// Write a first config file
    #[command(after_help = help::INIT)]
    Init(init::InitArgs),
    /// Write the schema of config files, shell completions or man pages
    #[command(after_help = help::GENERATE)]
    Generate(generate::GenerateArgs),
}

impl Cli {
    /// Parses the command line. Exits for `--help`, `--version` and invalid arguments.
    pub(crate) fn read() -> Self {
        if std::env::args_os().len() == 1 {
            output::print_error(help::NEXT);
            std::process::exit(2);
        }
        let matches = help::shaped(Self::command()).try_get_matches();
        matches
            .and_then(|matches| Self::from_arg_matches(&matches))
            .map_err(values::without_secrets)
            .unwrap_or_else(|error| {
                match values::invalid_value(&error).or_else(|| help::other_word(&error)) {
                    Some(line) => {
                        output::print_error(format_args!("{line}; see --help"));
                        std::process::exit(2)
                    }
                    None => error.exit(),
                }
            })
    }

    /// Runs the command. Errors go to standard error, with exit code 2.
    pub(crate) fn run(self) -> ExitCode {
        self.execute().unwrap_or_else(|Failure(lines)| {
            output::print_error(lines);
            ExitCode::from(2)
        })
    }

    fn execute(self) -> Result<ExitCode, Failure> {
        messages::start(&self.log_level(), self.writes_json_messages)?;
        match self.command {
            Command::Serve(args) => serve::run(&args, self.writes_json_messages)?,
            Command::Demo(args) => demo::run(&args, self.writes_json_messages)?,
            Command::Health(args) => return Ok(health::run(&args)),
            Command::Doctor(args) => return doctor::run(&args),
            Command::Check(args) => return check::run(&args),
            Command::Top(args) => top::run(&args)?,
            Command::Validate(args) => return validate::run(&args),
            Command::Key(args) => key::run(&args)?,
            Command::Policy(args) => policy::run(&args)?,
            Command::Token(args) => token::run(&args)?,
            Command::Explain(args) => explain::run(&args)?,
            Command::Replay(args) => replay::run(&args)?,
            Command::Diff(args) => return diff::run(&args),
            Command::Init(args) => init::run(&args)?,
            Command::Generate(args) => generate::run(&args, Cli::command())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The log level from the command line, with --envoy-env from the environment, or that of the command. Invalid
    /// settings are reported later.
    fn log_level(&self) -> String {
        let of_command = || match &self.command {
            Command::Serve(serve::ServeArgs { envoy, .. }) if envoy.envoy_env => {
                envoy.settings().ok()??.log_level
            }
            // Its address stays on the last line.
            Command::Demo(_) => Some("warn".to_owned()),
            _ => None,
        };
        self.log_level.clone().or_else(of_command).unwrap_or_else(|| "info".to_owned())
    }
}

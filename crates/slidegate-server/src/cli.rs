//! The command line: what can be asked of the binary, and the code it ends with.

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use failure::Failure;

mod check;
mod client;
mod envoy_listeners;
mod explain;
pub(crate) mod failure;
mod key;
pub(crate) mod output;
mod policy;
mod reload;
mod replay;
mod serve;
mod sources;
mod token;
mod top;
mod validate;
pub(crate) mod values;

/// An exact sliding-window rate limiter.
///
/// `slidegate serve` alone starts on loopback with a default policy and says how to try it.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version, max_term_width = 100)]
pub(crate) struct Cli {
    /// The least severe log lines to write to standard error: error, warn, info, debug, trace, or a filter such as
    /// `slidegate=debug`. Without it `info`.
    #[arg(long = "log", id = "log-level", global = true, value_name = "LEVEL")]
    log_level: Option<String>,
    /// How log lines are written.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves decisions over HTTP.
    Serve(serve::ServeArgs),
    /// Asks a running server about one request. Ends with 0 if allowed, 1 if denied, 2 if it could not be asked.
    Check(check::CheckArgs),
    /// Shows which keys use most or are denied most on a running server, again and again on a terminal, else once.
    Top(top::TopArgs),
    /// Checks a configuration file, or files of envoyproxy/ratelimit, and says each policy and limit back.
    Validate(validate::ValidateArgs),
    /// Looks at one key of a policy, or does something about it, on a running server.
    Key(key::KeyArgs),
    /// Lists and changes limits of a running server, for the whole fleet.
    Policy(policy::PolicyCommands),
    /// Tokens of those who may look at a server and change it.
    Token(token::TokenArgs),
    /// Says which policies or limits apply to a request, which do not, and why. Asks no server and charges nothing.
    Explain(explain::ExplainArgs),
    /// Decides a web server's access log under policies, with the log's own time.
    Replay(replay::ReplayArgs),
}

impl Cli {
    /// Reads the command line; ends the process where there is nothing to run.
    pub(crate) fn read() -> Self {
        Self::try_parse().unwrap_or_else(|error| match values::refusal(&error) {
            Some(line) => {
                output::print_error(format_args!("{line}; see --help"));
                std::process::exit(2)
            }
            None => error.exit(),
        })
    }

    /// Runs the command. What went wrong is on standard error.
    pub(crate) fn run(self) -> ExitCode {
        let outcome = start_log(&self.log_level(), self.log_format).and_then(|()| match self.command {
            Command::Serve(args) => serve::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Validate(args) => validate::run(&args),
            Command::Key(args) => key::run(&args),
            Command::Policy(args) => policy::run(&args),
            Command::Token(args) => token::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Replay(args) => replay::run(&args),
        });
        outcome.unwrap_or_else(|failure| {
            output::print_error(failure);
            ExitCode::from(2)
        })
    }
}

impl Cli {
    /// The command line's level, or the environment's where that is asked. Settings that are wrong are told later.
    fn log_level(&self) -> String {
        let of_environment = || match &self.command {
            Command::Serve(serve::ServeArgs { envoy, .. }) if envoy.envoy_env => {
                envoy.settings().ok()??.log_level
            }
            _ => None,
        };
        self.log_level.clone().or_else(of_environment).unwrap_or_else(|| "info".to_owned())
    }
}

fn start_log(level: &str, format: LogFormat) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(level).map_err(|error| {
        Failure(format!("--log `{level}` is no level: {error}; use error, warn, info, debug or trace"))
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // They would be printed on standard error, which is what could not be written.
        .log_internal_errors(false);
    match format {
        LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => log.json().init(),
    }
    Ok(())
}

//! The command line: what can be asked of the binary, and the code it ends with.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use slidegate::{Algorithm, Excess};

use crate::config::{Arguments, Config, Outside, SharedStore, Sources};
use slidegate_envoy::{Rate, Settings};
use values::{address, attribute, cost, excess, keys, milliseconds, rate};

mod check;
mod client;
mod envoy_listeners;
mod explain;
mod key;
pub(crate) mod output;
mod policy;
mod reload;
mod replay;
mod serve;
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
    Serve(ServeArgs),
    /// Asks a running server about one request. Ends with 0 if allowed, 1 if denied, 2 if it could not be asked.
    Check(CheckArgs),
    /// Shows which keys use most or are denied most on a running server, again and again on a terminal, else once.
    Top(TopArgs),
    /// Checks a configuration file, or files of envoyproxy/ratelimit, and says each policy and limit back.
    Validate(ValidateArgs),
    /// Looks at one key of a policy, or does something about it, on a running server.
    Key(key::KeyArgs),
    /// Lists and changes limits of a running server, for the whole fleet.
    Policy(policy::PolicyCommands),
    /// Tokens of those who may look at a server and change it.
    Token(token::TokenArgs),
    /// Says which policies or limits apply to a request, which do not, and why. Asks no server and charges nothing.
    Explain(ExplainArgs),
    /// Decides a web server's access log under policies, with the log's own time.
    Replay(replay::ReplayArgs),
}

/// Where policies come from. Both may be given: the policies on the command line follow those of the file.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// The configuration, in YAML.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A policy such as `100/1m per user`, `5 per 30s per ip,path`, `10/s per token using token-bucket named api`.
    #[arg(long = "policy", value_name = "TEXT")]
    pub(crate) policies: Vec<String>,
}

impl PolicyArgs {
    /// The configuration that these name, or the default one, for commands that serve nothing.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        // Where the service listens is not their concern.
        let arguments = Arguments { has_other_grpc: true, ..Arguments::default() };
        let loaded = self.sources(arguments)?.load().map_err(|errors| Failure(errors.to_string()))?;
        Ok(loaded.config)
    }

    /// Where the configuration comes from, to be read again.
    fn sources(&self, arguments: Arguments<'_>) -> Result<Sources, Failure> {
        let outside = Outside::read(arguments).map_err(|errors| Failure(errors.to_string()))?;
        let (file, texts) = (self.config.clone(), self.policies.clone());
        Ok(Sources { file, texts, outside, has_others: false, complete: Arc::new(|config| config) })
    }

    /// The same beside the limits of envoyproxy/ratelimit's files: there is no default policy then, and the store may be
    /// the one that the environment names.
    fn sources_beside(&self, settings: &Settings, arguments: Arguments<'_>) -> Result<Sources, Failure> {
        let theirs = settings.redis.clone().filter(|_| arguments.redis.is_none());
        let sources = self.sources(Arguments {
            redis: arguments.redis.or(theirs.as_ref().map(|redis| redis.url.expose().as_str())),
            has_other_grpc: settings.grpc.is_served(),
            ..arguments
        })?;
        for line in &settings.ignored_variables {
            tracing::warn!("{line}");
        }
        let complete = move |mut config: Config| {
            if let Some(redis) = &theirs {
                config.shared = config.shared.map(|store| SharedStore {
                    deadline: redis.deadline.unwrap_or(store.deadline),
                    options: redis.clone().apply(store.options),
                    ..store
                });
            }
            config
        };
        Ok(Sources { has_others: true, complete: Arc::new(complete), ..sources })
    }
}

/// Files of envoyproxy/ratelimit, and whether its environment variables count.
#[derive(Debug, Args)]
struct EnvoyArgs {
    /// A folder with configuration of envoyproxy/ratelimit, which is watched for changes. See docs/envoy.md.
    #[arg(long, value_name = "FOLDER")]
    envoy_config: Option<PathBuf>,
    /// Take the place of envoyproxy/ratelimit: honour its environment variables, such as `RUNTIME_ROOT`.
    #[arg(long)]
    envoy_env: bool,
    /// How limits of those files are counted that ask for no algorithm of their own: sliding-log unless said.
    #[arg(long, value_name = "ALGORITHM")]
    envoy_algorithm: Option<Algorithm>,
    /// What becomes of refused hits under limits of those files that do not say it themselves: `refuse` counts none of
    /// them, unless said; `count` counts all, as envoyproxy/ratelimit does; `charge` admits a cost while anything remains.
    #[arg(long, value_name = "EXCESS", value_parser = excess)]
    envoy_excess: Option<Excess>,
    /// Let several of those files have one domain, as `MERGE_DOMAIN_CONFIG` does.
    #[arg(long)]
    envoy_merge_domains: bool,
}

impl EnvoyArgs {
    /// `None` if neither a folder is named nor the environment asked.
    fn settings(&self) -> Result<Option<Settings>, Failure> {
        let mut settings = match (&self.envoy_config, self.envoy_env) {
            (None, false)
                if self.envoy_algorithm.is_some()
                    || self.envoy_excess.is_some()
                    || self.envoy_merge_domains =>
            {
                return Err(Failure(
                    "--envoy-algorithm, --envoy-excess and --envoy-merge-domains are about files of \
                     envoyproxy/ratelimit; name their folder with --envoy-config"
                        .to_owned(),
                ));
            }
            (None, false) => return Ok(None),
            (Some(folder), false) => Settings::of_folder(folder.clone()),
            (_, true) => {
                let of_environment = Settings::of_environment(&|name| std::env::var(name).ok());
                of_environment.map_err(|error| Failure(error.to_string()))?
            }
        };
        if let Some(folder) = &self.envoy_config {
            settings.folder.path.clone_from(folder);
        }
        if let Some(algorithm) = self.envoy_algorithm {
            settings.options.algorithm = algorithm;
        }
        if let Some(excess) = self.envoy_excess {
            settings.options.excess = excess;
        }
        settings.options.merge_domains |= self.envoy_merge_domains;
        Ok(Some(settings))
    }
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    envoy: EnvoyArgs,
    /// The address to listen to, before the configuration's.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    listen: Option<SocketAddr>,
    /// The address of Envoy's rate-limit service over gRPC, before the configuration's. Without either it is not served.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    grpc: Option<SocketAddr>,
    /// The Redis whose limits all instances share, such as `redis://127.0.0.1:6379`, before the configuration's.
    ///
    /// Also `redis+cluster://A:6379,B:6379` and `redis+sentinel://A,B/MASTER`, and `rediss` for TLS. The variable
    /// `SLIDEGATE_REDIS` says the same without showing a password among the processes.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The address to serve clients of Redis on, such as `127.0.0.1:6380`, before the configuration's. Off unless given.
    ///
    /// Speaks RESP2 and RESP3: `RL.CHECK`, and the commands of redis-cell and throttlecrab. The variable
    /// `SLIDEGATE_RESP_PASSWORD` is the password that clients have to give.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    resp: Option<SocketAddr>,
}

#[derive(Debug, Args)]
struct ValidateArgs {
    /// The configuration, in YAML.
    file: Option<PathBuf>,
    #[command(flatten)]
    envoy: EnvoyArgs,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    #[command(flatten)]
    policies: PolicyArgs,
    #[command(flatten)]
    envoy: EnvoyArgs,
    /// The domain of the descriptors, with --envoy-config or --envoy-env.
    #[arg(long)]
    domain: Option<String>,
    /// The limit that the descriptors bring along, such as `10/MINUTE`.
    #[arg(long, requires = "domain", value_parser = rate, value_name = "COUNT/UNIT")]
    limit: Option<Rate>,
    /// With a domain: descriptors, such as `path=/login,ip=192.0.2.7`, a comma within a value written `\,`. Without:
    /// attributes, such as `user=alice`.
    #[arg(required = true, value_name = "NAME=VALUE")]
    parts: Vec<String>,
    /// Print JSON instead of words.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Attributes of the request, such as `user=alice`.
    #[arg(required = true, value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, String)>,
    /// What the request costs.
    #[arg(long, default_value = "1", value_parser = cost, allow_hyphen_values = true)]
    cost: u64,
    /// Look without charging.
    #[arg(long)]
    peek: bool,
    /// Print the server's JSON instead of words.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
}

#[derive(Debug, Args)]
struct TopArgs {
    /// Only the keys of this policy.
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// What keys are ordered by.
    #[arg(long, value_enum, default_value_t = TopBy::Used)]
    by: TopBy,
    /// Most keys to show.
    #[arg(long, value_name = "N", default_value = "20", value_parser = keys)]
    limit: u16,
    /// Between two looks, in milliseconds.
    #[arg(long, value_name = "MS", default_value = "2000", value_parser = milliseconds)]
    every: Duration,
    /// Look once, also on a terminal.
    #[arg(long)]
    once: bool,
    /// Print the server's JSON once, instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: client::ServerArgs,
    /// The token itself, which the list of processes shows to everybody on this machine: use `--token-file`.
    #[arg(long, value_name = "TOKEN", hide = true)]
    token: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TopBy {
    /// Cost that was charged.
    Used,
    /// Denials.
    Denied,
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
            Command::Serve(ServeArgs { envoy, .. }) if envoy.envoy_env => envoy.settings().ok()??.log_level,
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

/// Why a command could not do its work: lines for people.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

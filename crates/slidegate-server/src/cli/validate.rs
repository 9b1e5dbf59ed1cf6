//! `slidegate validate`: parses a configuration as `serve` does and describes it.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use slidegate::{Algorithm, Counts, Policy, PolicySet, clock::format_window};

use super::annotations::{Annotation, Severity};
use super::failure::{Failure, fail};
use super::output;
use super::sources::{EnvoyArgs, PolicyArgs};
use super::values::key_count;
use crate::config::{Arguments, Config, Sources, describe, describe_keys, format_bytes};
use crate::control::fleet;
use crate::envoy::{EnvoyConfig, Settings};
use crate::listener::SocketFile;
use crate::{record, wire::protocols};

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// Config file (YAML)
    file: Option<PathBuf>,
    /// The same, as `serve` and `health` take it
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = ValidateFormat::Text)]
    format: ValidateFormat,
    /// Print what one key and so many keys of each policy take in memory and in Redis, such as `1M`
    #[arg(long, value_name = "N", value_parser = key_count, conflicts_with = "format")]
    keys: Option<u64>,
    #[command(flatten)]
    envoy: EnvoyArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ValidateFormat {
    /// A description of each policy and limit, or the errors
    Text,
    /// Errors and warnings as an array of JSON; see docs/commands.md
    Json,
    /// Errors and warnings as annotations of GitHub Actions
    Github,
}

/// Exit code of an invalid configuration.
const INVALID: u8 = 2;

pub(super) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let settings = args.envoy.settings()?;
    let policies = PolicyArgs::of_file(args.file.clone().or_else(|| args.config.clone()));
    let file = policies.file();
    if file.is_none() && settings.is_none() {
        return fail(
            "nothing to validate; give a config file, or a folder of envoyproxy/ratelimit files with --envoy-config",
        );
    }
    let sources = match &settings {
        Some(settings) => policies.sources_with_envoy(settings, Arguments::default())?,
        None => policies.sources(&Arguments::default())?,
    };
    let name = file.as_ref().map(|file| file.display().to_string());
    let validated = Validated::load(&sources, settings.as_ref(), name.as_deref());
    let found = match (args.format, validated) {
        (ValidateFormat::Text, Ok(valid)) => {
            if let Some(file) = &file {
                output::print(file_summary(file, &valid))?;
            }
            if let Some((settings, envoy)) = settings.zip(valid.envoy.as_ref()) {
                output::print(folder_summary(&settings, envoy))?;
            }
            if let Some(keys) = args.keys {
                let of_file = valid.config.policies.iter().filter(|_| file.is_some());
                for policy in of_file.chain(valid.envoy.iter().flat_map(EnvoyConfig::policies)) {
                    output::print(describe_keys(policy, keys))?;
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
        (ValidateFormat::Text, Err(invalid)) => return Err(invalid.failure),
        (_, Ok(valid)) => (ExitCode::SUCCESS, valid.annotations(name.as_deref())),
        (_, Err(invalid)) => (ExitCode::from(INVALID), invalid.annotations),
    };
    let (code, annotations) = found;
    if args.format == ValidateFormat::Json {
        output::print(serde_json::to_string_pretty(&annotations)?)?;
    } else {
        for annotation in &annotations {
            output::print(annotation.workflow_command())?;
        }
    }
    Ok(code)
}

/// A valid configuration.
struct Validated {
    config: Config,
    envoy: Option<EnvoyConfig>,
}

/// Why a configuration is invalid, as text and as annotations.
struct Invalid {
    failure: Failure,
    annotations: Vec<Annotation>,
}

impl Invalid {
    /// Lines without a place in the file.
    fn lines(text: impl Display, file: Option<&str>) -> Self {
        let failure = Failure(text.to_string());
        let annotation = |line| Annotation::whole_file(Severity::Error, file, line);
        Self { annotations: failure.0.lines().map(annotation).collect(), failure }
    }
}

impl Validated {
    fn load(sources: &Sources, settings: Option<&Settings>, file: Option<&str>) -> Result<Self, Invalid> {
        let config = sources.load().map_err(|errors| Invalid {
            annotations: Annotation::of_errors(&errors, file),
            failure: errors.into(),
        })?;
        protocols::check_certificates(&config).map_err(|line| Invalid::lines(line, file))?;
        let envoy = settings.map(|settings| load_envoy(settings, &config)).transpose();
        // These lines name their files.
        Ok(Self { config, envoy: envoy.map_err(|Failure(lines)| Invalid::lines(lines, None))? })
    }

    /// Warnings about valid settings of the file that are probably unintended.
    fn warnings(&self) -> Vec<String> {
        let of_file = self.config.all_warnings().cloned();
        of_file.chain(in_flight_warning(&self.config)).chain(cost_warnings(&self.config)).collect()
    }

    fn annotations(&self, file: Option<&str>) -> Vec<Annotation> {
        let annotation = |file| move |line: &String| Annotation::whole_file(Severity::Warning, file, line);
        let of_envoy = self.envoy.iter().flat_map(EnvoyConfig::warnings).map(annotation(None));
        self.warnings().iter().map(annotation(file)).chain(of_envoy).collect()
    }
}

/// Describes the policies and settings of the file.
fn file_summary(file: &Path, valid: &Validated) -> String {
    let Validated { config, envoy } = valid;
    let mut lines = Vec::new();
    let count = config.policies.iter().len();
    let plural = if count == 1 { "policy" } else { "policies" };
    lines.push(format!("{} is valid: {count} {plural}.", file.display()));
    lines.extend(config.policies.iter().map(|policy| format!("  {}", describe(policy, config.storage()))));
    if let Some(shared) = &config.shared {
        let instances = match shared.instances {
            None => "all instances, which count themselves there".to_owned(),
            Some(1) => "1 instance".to_owned(),
            Some(count) => format!("{count} instances"),
        };
        lines.push(format!(
            "Limits are shared in {} by {instances}, each with its share of the limit while Redis is unavailable. A decision \
             takes at most {} ms.",
            shared.options,
            shared.deadline.as_millis()
        ));
    }
    if let Some(resp) = &config.resp {
        let password = if resp.password.is_some() { "with a password" } else { "without a password" };
        let addresses = addresses(resp.listen, resp.socket.as_ref());
        lines.push(format!("RESP listens on {addresses} {password}{}.", over_tls(resp.tls.is_some())));
    }
    lines.extend(valid.warnings().iter().map(|warning| format!("warning: {warning}")));
    let candidates = config.candidates.iter().map(|(name, quota)| (name.as_str(), quota));
    let policies = config.policies.iter().chain(envoy.iter().flat_map(EnvoyConfig::policies));
    let worst_case = config.memory.worst_case(policies, candidates, config.resp.is_some());
    lines.push(format!(
        "HTTP listens on {}{}. The memory store holds up to {} keys.",
        addresses(Some(config.listen), config.socket.as_ref()),
        over_tls(config.tls.is_some()),
        worst_case.estimate.keys
    ));
    lines.push(worst_case.to_string());
    if config.observe.metrics {
        let policies = config.policies.iter().len() + envoy.iter().flat_map(EnvoyConfig::policies).count();
        let mut bytes = record::history_bytes(policies);
        if config.shared.as_ref().is_some_and(|shared| shared.fleet) {
            bytes += fleet::history_bytes(policies);
        }
        let bytes = format_bytes(bytes as u64);
        lines.push(format!("The history of the last hour takes up to {bytes}."));
    }
    if let Some(snapshot) = &config.memory.snapshot {
        lines.push(format!(
            "Usage is saved to {} every {} and at shutdown.",
            snapshot.path.display(),
            format_window(snapshot.interval.0)
        ));
    }
    lines.join("\n")
}

fn addresses(listen: Option<SocketAddr>, socket: Option<&SocketFile>) -> String {
    let socket = socket.map(|file| format!("unix:{}", file.path.display()));
    listen.map(|at| at.to_string()).into_iter().chain(socket).collect::<Vec<_>>().join(" and ")
}

fn over_tls(is_encrypted: bool) -> &'static str {
    if is_encrypted { ", over TLS" } else { "" }
}

/// Warns that some protocols cannot release reservations of in-flight limits.
fn in_flight_warning(config: &Config) -> Option<String> {
    let limits = config.policies.iter().filter(|policy| policy.quota().algorithm() == Algorithm::InFlight);
    let names: Vec<_> = limits.map(|policy| format!("`{}`", policy.name())).collect();
    (!names.is_empty()).then(|| {
        format!(
            "in flight under {}: only reservations count. Checks, Envoy's ShouldRateLimit, the routes for nginx, \
             Caddy and Traefik, and CL.THROTTLE cannot release a reservation, so they only check the limit.",
            names.join(", ")
        )
    })
}

/// Warns about policies that sum all costs, if another policy counts one named cost and allows more
/// of it than they allow in total.
fn cost_warnings(config: &Config) -> Vec<String> {
    let rate = |policy: &&Policy| policy.quota().algorithm() != Algorithm::InFlight;
    let warning = |sum: &Policy| {
        let (all, window) = (sum.quota().capacity(), sum.quota().window());
        let exceeds = |one: &&Policy| {
            let is_named = matches!(one.options().counts, Counts::Named(_));
            let is_shorter = one.quota().window() <= window && one.quota().capacity() > all;
            is_named && (is_shorter || one.estimate().is_some_and(|estimate| estimate > all.into()))
        };
        let one = config.policies.iter().filter(rate).find(exceeds)?;
        let Counts::Named(cost) = &one.options().counts else { return None };
        let (name, other) = (sum.name(), one.name());
        Some(format!(
            "policy `{name}` adds all costs up and allows {all}, but policy `{other}` allows more of the cost \
             `{cost}` alone. If `{name}` is to count requests, give it `counts: requests`."
        ))
    };
    let sums = config.policies.iter().filter(rate).filter(|policy| policy.options().counts == Counts::Cost);
    sums.filter_map(warning).collect()
}

/// Loads the envoyproxy/ratelimit files and checks that their names do not clash with configured
/// policies.
fn load_envoy(settings: &Settings, config: &Config) -> Result<EnvoyConfig, Failure> {
    let envoy = EnvoyConfig::load(&settings.folder, settings.options.clone())?;
    PolicySet::new(config.policies.iter().chain(envoy.policies()).cloned())?;
    Ok(envoy)
}

/// The folder's limits in the format of `/rlconfig`, and warnings.
fn folder_summary(settings: &Settings, envoy: &EnvoyConfig) -> String {
    let mut lines = vec![format!("{} is valid: {}.", settings.folder.path.display(), envoy.summary())];
    lines.extend(envoy.dump().lines().map(|line| format!("  {line}")));
    lines.extend(envoy.warnings().iter().map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}

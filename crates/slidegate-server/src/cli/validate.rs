//! `slidegate validate`: parses a configuration as `serve` does and describes it.

use std::net::SocketAddr;
use std::path::Path;

use slidegate::{Algorithm, Counts, Policy, PolicySet, format_window};

use super::failure::{Failure, fail};
use super::output;
use super::sources::{EnvoyArgs, PolicyArgs};
use crate::config::{Arguments, Config, describe};
use crate::envoy::{EnvoyConfig, Settings};
use crate::listener::SocketFile;
use crate::protocols;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(super) struct ValidateArgs {
    /// Config file (YAML)
    file: Option<PathBuf>,
    /// The same, as `serve` and `health` take it
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    #[command(flatten)]
    envoy: EnvoyArgs,
}

pub(super) fn run(args: &ValidateArgs) -> Result<(), Failure> {
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
    let config = sources.load()?;
    protocols::check_certificates(&config)?;
    let envoy = settings.as_ref().map(|settings| load_envoy(settings, &config)).transpose()?;
    if let Some(file) = &file {
        output::print(file_summary(file, &config, envoy.as_ref()))?;
    }
    if let Some((settings, envoy)) = settings.zip(envoy) {
        output::print(folder_summary(&settings, &envoy))?;
    }
    Ok(())
}

/// Describes the policies and settings of the file.
fn file_summary(file: &Path, config: &Config, envoy: Option<&EnvoyConfig>) -> String {
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
    lines.extend(in_flight_warning(config));
    lines.extend(cost_warnings(config));
    let candidates = config.candidates.iter().map(|(name, quota)| (name.as_str(), quota));
    let policies = config.policies.iter().chain(envoy.into_iter().flat_map(EnvoyConfig::policies));
    let worst_case = config.memory.worst_case(policies, candidates, config.resp.is_some());
    lines.push(format!(
        "HTTP listens on {}{}. The memory store holds up to {} keys.",
        addresses(Some(config.listen), config.socket.as_ref()),
        over_tls(config.tls.is_some()),
        worst_case.estimate.keys
    ));
    lines.push(worst_case.to_string());
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

/// A warning about limits in flight: some protocols cannot release what they reserve.
fn in_flight_warning(config: &Config) -> Option<String> {
    let limits = config.policies.iter().filter(|policy| policy.quota().algorithm() == Algorithm::InFlight);
    let names: Vec<_> = limits.map(|policy| format!("`{}`", policy.name())).collect();
    (!names.is_empty()).then(|| {
        format!(
            "warning: in flight under {}: only reservations count. Checks, Envoy's ShouldRateLimit, the routes for nginx, \
             Caddy and Traefik, and CL.THROTTLE cannot release a reservation, so they only check the limit.",
            names.join(", ")
        )
    })
}

/// Policies that add all costs up, although a policy beside them counts one by its name and allows
/// more of it than they allow of all.
fn cost_warnings(config: &Config) -> Vec<String> {
    let rate = |policy: &&Policy| policy.quota().algorithm() != Algorithm::InFlight;
    let warning = |sum: &Policy| {
        let (all, window) = (sum.quota().capacity(), sum.quota().window());
        let exceeds = |one: &&Policy| {
            let is_named = matches!(one.counts(), Counts::Named(_));
            let is_shorter = one.quota().window() <= window && one.quota().capacity() > all;
            is_named && (is_shorter || one.estimate().is_some_and(|estimate| estimate > all))
        };
        let one = config.policies.iter().filter(rate).find(exceeds)?;
        let Counts::Named(cost) = one.counts() else { return None };
        let (name, other) = (sum.name(), one.name());
        Some(format!(
            "warning: policy `{name}` adds all costs up and allows {all}, but policy `{other}` allows more of the cost \
             `{cost}` alone. If `{name}` is to count requests, give it `counts: requests`."
        ))
    };
    let sums = config.policies.iter().filter(rate).filter(|policy| *policy.counts() == Counts::Cost);
    sums.filter_map(warning).collect()
}

/// Loads the envoyproxy/ratelimit files, and checks that their names do not clash with the
/// configured policies.
fn load_envoy(settings: &Settings, config: &Config) -> Result<EnvoyConfig, Failure> {
    let envoy = EnvoyConfig::load(&settings.folder, settings.options.clone())?;
    PolicySet::new(config.policies.iter().chain(envoy.policies()).cloned())?;
    Ok(envoy)
}

/// The folder's limits as `/rlconfig` prints them, and warnings.
fn folder_summary(settings: &Settings, envoy: &EnvoyConfig) -> String {
    let mut lines = vec![format!("{} is valid: {}.", settings.folder.path.display(), envoy.summary())];
    lines.extend(envoy.dump().lines().map(|line| format!("  {line}")));
    lines.extend(envoy.warnings().iter().map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}

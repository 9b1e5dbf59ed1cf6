//! `slidegate validate`: the configuration said back in words, read as `serve` reads it.

use std::path::Path;
use std::process::ExitCode;

use slidegate::PolicySet;

use super::{Failure, PolicyArgs, ValidateArgs};
use crate::config::{Config, describe};
use crate::envoy::{Envoy, Settings};

pub(super) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let settings = args.envoy.settings()?;
    if args.file.is_none() && settings.is_none() {
        return Err(Failure(
            "there is nothing to validate; give a file, or a folder of envoyproxy/ratelimit's with --envoy-config"
                .to_owned(),
        ));
    }
    let policies = PolicyArgs { config: args.file.clone(), policies: Vec::new() };
    let sources = match &settings {
        Some(settings) => policies.sources_beside(settings, None, None)?,
        None => policies.sources(None, None)?,
    };
    let config = sources.load().map_err(|errors| Failure(errors.to_string()))?.config;
    let envoy = settings.as_ref().map(|settings| beside(settings, &config)).transpose()?;
    if let Some(file) = &args.file {
        of_file(file, &config);
    }
    if let Some((settings, envoy)) = settings.zip(envoy) {
        of_folder(&settings, &envoy);
    }
    Ok(ExitCode::SUCCESS)
}

fn of_file(file: &Path, config: &Config) {
    println!("{} is valid: {} policies.", file.display(), config.policies.iter().len());
    for policy in config.policies.iter() {
        println!("  {}", describe(policy, config.counted()));
    }
    if let Some(shared) = &config.shared {
        let instances = match shared.instances {
            1 => "an unsaid number of instances, each with the whole limit while redis is away".to_owned(),
            count => format!("{count} instances, each with its part of the limit while redis is away"),
        };
        println!(
            "Limits are shared over {} by {instances}. A decision takes {} ms at most.",
            shared.options,
            shared.deadline.as_millis()
        );
    }
    if let Some(resp) = &config.resp {
        let password = if resp.password.is_some() { "with a password" } else { "without a password" };
        let tls = if resp.tls.is_some() { ", over TLS" } else { "" };
        println!("Clients of Redis are served on {} {password}{tls}.", resp.listen);
    }
    println!("It listens to {} and holds up to {} keys in memory.", config.listen, config.max_keys);
}

/// The files of envoyproxy/ratelimit, if they can stand beside the policies of the configuration.
fn beside(settings: &Settings, config: &Config) -> Result<Envoy, Failure> {
    let envoy = Envoy::load(settings).map_err(|refusal| Failure(refusal.to_string()))?;
    PolicySet::new(config.policies.iter().chain(envoy.policies()).cloned())
        .map_err(|error| Failure(error.to_string()))?;
    Ok(envoy)
}

/// Their limits as `/rlconfig` tells them.
fn of_folder(settings: &Settings, envoy: &Envoy) {
    println!("{} is valid: {}.", settings.folder.path.display(), envoy.summary());
    for line in envoy.dump().lines() {
        println!("  {line}");
    }
    for warning in envoy.warnings() {
        println!("warning: {warning}");
    }
}

//! `slidegate validate`: the configuration said back in words.

use std::path::Path;
use std::process::ExitCode;

use super::Failure;
use crate::config::{Config, Outside, describe};

pub(super) fn run(file: &Path) -> Result<ExitCode, Failure> {
    let outside = Outside::read(None, None).map_err(|errors| Failure(errors.to_string()))?;
    let config = Config::load(file, &outside).map_err(|errors| Failure(errors.to_string()))?;
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
    Ok(ExitCode::SUCCESS)
}

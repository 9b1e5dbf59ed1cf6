//! `slidegate validate`: the configuration said back in words.

use std::path::Path;
use std::process::ExitCode;

use super::Failure;
use crate::config::{Config, describe};

pub(super) fn run(file: &Path) -> Result<ExitCode, Failure> {
    let config = Config::load(file).map_err(|errors| Failure(errors.to_string()))?;
    println!("{} is valid: {} policies.", file.display(), config.policies.iter().len());
    for policy in config.policies.iter() {
        println!("  {}", describe(policy));
    }
    println!("It listens to {} and holds up to {} keys in memory.", config.listen, config.max_keys);
    Ok(ExitCode::SUCCESS)
}

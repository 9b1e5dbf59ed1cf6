//! Arguments that say where policies come from: a config file, the command line, files of envoyproxy/ratelimit.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use slidegate::{Algorithm, Excess};

use super::failure::Failure;
use super::values::excess;
use crate::config::{Arguments, Config, Outside, SharedStore, Sources};
use slidegate_envoy::Settings;

/// Where policies come from. Both may be given: the policies on the command line follow those of the file.
#[derive(Debug, Args)]
pub(super) struct PolicyArgs {
    /// The configuration, in YAML.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// A policy such as `100/1m per user`, `5 per 30s per ip,path`, `10/s per token using token-bucket named api`.
    #[arg(long = "policy", value_name = "TEXT")]
    pub(super) policies: Vec<String>,
}

impl PolicyArgs {
    /// The configuration that these name, or the default one, for commands that serve nothing.
    pub(super) fn config(&self) -> Result<Config, Failure> {
        // Where the service listens is not their concern.
        let arguments = Arguments { has_other_grpc: true, ..Arguments::default() };
        let loaded = self.sources(arguments)?.load().map_err(|errors| Failure(errors.to_string()))?;
        Ok(loaded.config)
    }

    /// Where the configuration comes from, to be read again.
    pub(super) fn sources(&self, arguments: Arguments<'_>) -> Result<Sources, Failure> {
        let outside = Outside::read(arguments).map_err(|errors| Failure(errors.to_string()))?;
        let (file, texts) = (self.config.clone(), self.policies.clone());
        Ok(Sources { file, texts, outside, has_others: false, complete: Arc::new(|config| config) })
    }

    /// The same beside the limits of envoyproxy/ratelimit's files: there is no default policy then, and the store may be
    /// the one that the environment names.
    pub(super) fn sources_beside(
        &self,
        settings: &Settings,
        arguments: Arguments<'_>,
    ) -> Result<Sources, Failure> {
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
pub(super) struct EnvoyArgs {
    /// A folder with configuration of envoyproxy/ratelimit, which is watched for changes. See docs/envoy.md.
    #[arg(long, value_name = "FOLDER")]
    envoy_config: Option<PathBuf>,
    /// Take the place of envoyproxy/ratelimit: honour its environment variables, such as `RUNTIME_ROOT`.
    #[arg(long)]
    pub(super) envoy_env: bool,
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
    pub(super) fn settings(&self) -> Result<Option<Settings>, Failure> {
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

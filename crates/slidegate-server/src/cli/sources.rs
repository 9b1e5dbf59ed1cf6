//! Arguments that select the policies' sources: a config file, the command line, and envoyproxy/ratelimit
//! files.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use slidegate::{Algorithm, Excess};

use super::failure::{Failure, fail};
use super::output;
use super::values::excess;
use crate::config::{Arguments, Config, Outside, Preset, Sources};
use crate::envoy::{CalendarWindows, Settings};

/// The environment variable with the path of the config file.
const CONFIG_VARIABLE: &str = "SLIDEGATE_CONFIG";
/// The config file used from the current directory: the one that `init` writes.
pub(super) const CONFIG_FILE: &str = "slidegate.yaml";

/// Policies from a file, the command line, or both; the file's come first.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policies")]
pub(super) struct PolicyArgs {
    /// Config file (YAML), or set the variable `SLIDEGATE_CONFIG` [default: `slidegate.yaml` in the
    /// current directory, if there is one and neither --policy nor --preset]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Policies for a usual case, instead of a config file; `slidegate init --preset NAME` writes them
    #[arg(long, value_name = "NAME")]
    preset: Option<Preset>,
    /// A policy such as `100/1m per user`, `5 per 30s per ip,path`, `10/s per token using
    /// token-bucket named api`; may be repeated
    #[arg(long = "policy", value_name = "TEXT")]
    pub(super) policies: Vec<String>,
}

impl PolicyArgs {
    /// The policies of this file, or of the default file.
    pub(super) fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, preset: None, policies: Vec::new() }
    }

    /// Loads the configuration, or the default one, for commands other than `serve`. Prints which one, unless
    /// the command line says so.
    pub(super) fn config(&self) -> Result<Config, Failure> {
        if self.config.is_none() && self.preset.is_none() && self.policies.is_empty() {
            output::print_error(format_args!("configuration: {}", self.origin()));
        }
        // These commands do not listen, so listener settings do not matter.
        let arguments = Arguments { has_other_grpc: true, ..Arguments::default() };
        Ok(self.sources(&arguments)?.load()?)
    }

    /// The config file: the named one, or the one in the current directory. With policies on the command
    /// line, no default file is used.
    pub(super) fn file(&self) -> Option<PathBuf> {
        let of_environment = || std::env::var_os(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        let has_policies = self.preset.is_some() || !self.policies.is_empty();
        let here = || Some(PathBuf::from(CONFIG_FILE)).filter(|path| !has_policies && path.exists());
        self.config.clone().or_else(|| of_environment().map(PathBuf::from)).or_else(here)
    }

    /// The source of the configuration, for display.
    pub(super) fn origin(&self) -> String {
        let preset = self.preset.map(|preset| {
            let (name, _) = preset.file();
            format!("preset {name}; `slidegate init --preset {name}` writes it to {CONFIG_FILE}")
        });
        match (self.file().map(|file| file.display().to_string()).or(preset), self.policies.is_empty()) {
            (Some(file), true) => file,
            (Some(file), false) => format!("{file} and --policy"),
            (None, false) => "--policy".to_owned(),
            (None, true) => {
                format!(
                    "the default policy, as there is no ./{CONFIG_FILE}; see --preset, --config and --policy"
                )
            }
        }
    }

    /// The sources of the configuration, read again by a reload.
    pub(super) fn sources(&self, arguments: &Arguments) -> Result<Sources, Failure> {
        let mut outside = Outside::read(arguments)?;
        outside.preset = self.preset;
        let (file, texts) = (self.file(), self.policies.clone());
        if let (Some(preset), Some(file)) = (self.preset, &file) {
            let (name, file) = (preset.file().0, file.display());
            return fail(format!(
                "--preset {name} and the config file {file} exclude each other, as both say all policies; give one, \
                 or copy from what `slidegate init - --preset {name}` prints into {file}"
            ));
        }
        Ok(Sources { file, texts, outside, has_others: false, complete: Arc::new(|config| config) })
    }

    /// [`Self::sources`] with envoyproxy/ratelimit files: there is no default policy, and the environment may
    /// select the store.
    pub(super) fn sources_with_envoy(
        &self,
        settings: &Settings,
        arguments: Arguments,
    ) -> Result<Sources, Failure> {
        let theirs = settings.redis.clone().filter(|_| arguments.redis.is_none());
        let redis = theirs.as_ref().map(|redis| redis.url.expose().clone());
        let sources = self.sources(&Arguments {
            redis: arguments.redis.or(redis),
            has_other_grpc: settings.grpc.is_served(),
            ..arguments
        })?;
        for line in &settings.ignored_variables {
            tracing::warn!("{line}");
        }
        let complete = move |mut config: Config| {
            if let (Some(redis), Some(shared)) = (&theirs, &mut config.shared)
                && let Some(options) = shared.options.redis()
            {
                *options = redis.clone().apply(options.clone());
                shared.deadline = redis.deadline.unwrap_or(shared.deadline);
            }
            config
        };
        Ok(Sources { has_others: true, complete: Arc::new(complete), ..sources })
    }
}

/// envoyproxy/ratelimit files and environment variables.
#[derive(Debug, Args)]
#[command(next_help_heading = "Files of envoyproxy/ratelimit")]
pub(super) struct EnvoyArgs {
    /// Folder with envoyproxy/ratelimit config files; hot-reloaded. See docs/envoy-ratelimit.md
    #[arg(long, value_name = "FOLDER")]
    envoy_config: Option<PathBuf>,
    /// Replace envoyproxy/ratelimit: read its environment variables, such as `RUNTIME_ROOT`
    #[arg(long)]
    pub(super) envoy_env: bool,
    /// Algorithm of limits in those files that name none [default: sliding-log]
    #[arg(long, value_name = "ALGORITHM")]
    envoy_algorithm: Option<Algorithm>,
    /// Time zone, such as `Europe/Berlin`, in whose calendar units of hour to year of those files begin and
    /// end, counted by fixed-window. Without it a month is 30 days and a year 365
    #[arg(long, value_name = "ZONE")]
    envoy_calendar: Option<CalendarWindows>,
    /// How limits in those files treat hits over the limit by default: `refuse` counts
    /// none; `count` counts all, as envoyproxy/ratelimit does; `charge` admits any cost while
    /// something remains [default: refuse]
    #[arg(long, value_name = "EXCESS", value_parser = excess)]
    envoy_excess: Option<Excess>,
    /// Allow several files with the same domain, as `MERGE_DOMAIN_CONFIG` does
    #[arg(long)]
    envoy_merge_domains: bool,
}

impl EnvoyArgs {
    /// `None` without --envoy-config and --envoy-env.
    pub(super) fn settings(&self) -> Result<Option<Settings>, Failure> {
        let mut settings = match (&self.envoy_config, self.envoy_env) {
            (None, false)
                if self.envoy_algorithm.is_some()
                    || self.envoy_calendar.is_some()
                    || self.envoy_excess.is_some()
                    || self.envoy_merge_domains =>
            {
                return fail(
                    "--envoy-algorithm, --envoy-calendar, --envoy-excess and --envoy-merge-domains require \
                     envoyproxy/ratelimit files; give their folder with --envoy-config",
                );
            }
            (None, false) => return Ok(None),
            (Some(folder), false) => Settings::of_folder(folder.clone()),
            (_, true) => {
                let of_environment = Settings::of_environment(&|name| std::env::var(name).ok());
                of_environment?
            }
        };
        if let Some(folder) = &self.envoy_config {
            settings.folder.path.clone_from(folder);
        }
        if let Some(algorithm) = self.envoy_algorithm {
            settings.options.algorithm = algorithm;
        }
        if let Some(calendar) = self.envoy_calendar {
            settings.options.calendar = Some(calendar);
        }
        if let Some(excess) = self.envoy_excess {
            settings.options.excess = excess;
        }
        settings.options.merge_domains |= self.envoy_merge_domains;
        Ok(Some(settings))
    }
}

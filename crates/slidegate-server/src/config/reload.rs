//! Reloading: the configuration's file, watched for as long as the service runs.
//!
//! What a link leads to is looked at as well: volumes of Kubernetes change by a link that is put in the place of another.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::{Config, ConfigErrors, Outside};

/// Where a configuration comes from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) file: Option<PathBuf>,
    pub(crate) texts: Vec<String>,
    pub(crate) outside: Outside,
    /// Whether policies come from elsewhere besides, so that there is no default one.
    pub(crate) has_others: bool,
    /// Puts into a configuration what the command line says and no file does.
    pub(crate) complete: Arc<dyn Fn(Config) -> Config + Send + Sync>,
}

/// A configuration and the SHA-256 of its file, of nothing without one.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) hash: String,
}

/// What tells one state of a file from another without reading it. `None` where there is no file.
pub(crate) type Fingerprint = Option<(PathBuf, u64, SystemTime, u64)>;

impl Sources {
    /// Where it comes from, in a word: the file's path, `command line` or `default`.
    pub(crate) fn name(&self) -> String {
        match &self.file {
            Some(file) => file.display().to_string(),
            None if self.texts.is_empty() => "default".to_owned(),
            None => "command line".to_owned(),
        }
    }

    /// Reads everything anew.
    pub(crate) fn load(&self) -> Result<Loaded, ConfigErrors> {
        let bytes = self.file.as_ref().and_then(|file| std::fs::read(file).ok()).unwrap_or_default();
        let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
        let hash = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let read = if self.has_others { Config::beside_others } else { Config::from_sources };
        let config = read(self.file.as_deref(), &self.texts, &self.outside)?;
        Ok(Loaded { config: (self.complete)(config), hash })
    }

    /// Looks at the file, and at what links lead to.
    pub(crate) fn look(&self) -> Fingerprint {
        let path = self.file.as_ref()?.canonicalize().ok()?;
        let found = path.metadata().ok()?;
        Some((path, found.ino(), found.modified().ok()?, found.len()))
    }
}

/// What another configuration would change and cannot while the service runs, in words.
pub(crate) fn differences(old: &Config, new: &Config) -> Vec<&'static str> {
    let is_other = |part: &dyn Fn(&Config) -> String| part(old) != part(new);
    [
        ("server: listen", is_other(&|config| config.listen.to_string())),
        ("server: shutdown_grace", is_other(&|config| format!("{:?}", config.shutdown_grace))),
        ("store: memory: max_keys", is_other(&|config| config.max_keys.to_string())),
        ("store", is_other(&|config| format!("{:?}", config.shared))),
        ("attributes: addresses", is_other(&|config| format!("{:?}", config.address_attributes))),
        ("grpc", is_other(&|config| format!("{:?}", config.grpc))),
        ("resp", is_other(&|config| format!("{:?}", config.resp))),
        ("headers", is_other(&|config| format!("{:?}", config.headers))),
        ("auth", is_other(&|config| format!("{:?}", config.auth))),
        ("observe", is_other(&|config| format!("{:?}", config.observe.besides_policies()))),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}

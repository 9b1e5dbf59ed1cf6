//! The sources of the config, and which changes need a restart. `cli::reload` watches them.
//!
//! Symbolic links are resolved, because Kubernetes updates volumes by replacing a link.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use lined_config::ConfigErrors;
use serde_json::{Map, Value};

use super::Config;
use super::environment::Outside;

/// Where a config comes from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) file: Option<PathBuf>,
    pub(crate) texts: Vec<String>,
    pub(crate) outside: Outside,
    /// Whether there are other limits, such as Envoy's, and therefore no default policy.
    pub(crate) has_others: bool,
    /// Adds arguments that have no key in the file.
    pub(crate) complete: Arc<dyn Fn(Config) -> Config + Send + Sync>,
}

/// Identifies the state of a file without reading it. `None` if there is no file.
pub(crate) type Fingerprint = Option<(PathBuf, u64, SystemTime, u64)>;

impl Sources {
    /// The name for logs: the path of the file, `preset NAME`, `command line` or `default`.
    pub(crate) fn name(&self) -> String {
        match (&self.file, self.outside.preset) {
            (Some(file), _) => file.display().to_string(),
            (None, Some(preset)) => format!("preset {}", preset.file().0),
            (None, None) if self.texts.is_empty() => "default".to_owned(),
            (None, None) => "command line".to_owned(),
        }
    }

    /// Loads the config.
    pub(crate) fn load(&self) -> Result<Config, ConfigErrors> {
        let outside = Outside { has_other_limits: self.has_others, ..self.outside.clone() };
        Config::from_sources(self.file.as_deref(), &self.texts, &outside).map(&*self.complete)
    }

    /// The state of the file, with links resolved.
    pub(crate) fn look(&self) -> Fingerprint {
        let path = self.file.as_ref()?.canonicalize().ok()?;
        let found = path.metadata().ok()?;
        Some((path, found.ino(), found.modified().ok()?, found.len()))
    }
}

/// Sections that are hot-reloaded.
const HOT_RELOADED: [&str; 2] = ["policies", "admin"];

/// The changed keys that need a restart. Compares values, including secrets and the contents of
/// certificates.
pub(crate) fn differences(old: &Config, new: &Config) -> Vec<String> {
    let keys =
        |json: &Value| json.as_object().into_iter().flat_map(Map::keys).cloned().collect::<BTreeSet<_>>();
    let mut changed = Vec::new();
    let sections = &keys(&old.file.json) | &keys(&new.file.json);
    for section in sections.iter().filter(|section| !HOT_RELOADED.contains(&section.as_str())) {
        let (old, new) = (&old.file.json[section], &new.file.json[section]);
        let all = &keys(old) | &keys(new);
        changed
            .extend(all.iter().filter(|key| old[*key] != new[*key]).map(|key| format!("{section}: {key}")));
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    /// Operators must learn which change is not in force, above all that of a leaked password.
    #[test]
    fn each_changed_key_is_named_and_no_other() {
        let before = "server: {listen: '127.0.0.1:1', shutdown_grace: 60s}\n\
                      store: {redis: 'redis+sentinel://me:old@h/m?sentinel_pass=old2', deadline: 20ms, key_secret: old3}\n\
                      resp: {listen: '127.0.0.1:2', idle_timeout: 60s, max_connections: 5, password: old4}\n\
                      grpc: {listen: '127.0.0.1:3'}\nheaders: {retry_after: true}\nauth: {preset: nginx}\n\
                      observe: {top: true, traces: {endpoint: 'http://h', headers: {authorization: old5}}}\n";
        let of = |from: &str, to: &str| {
            assert!(before.contains(from), "{from}");
            differences(&parse(before), &parse(&before.replacen(from, to, 1)))
        };
        // Other words for the same value are no change.
        assert_eq!((of("60s", "1m"), of("20ms", "20 milliseconds")), (vec![], vec![]));
        for (from, to, expected) in [
            ("127.0.0.1:1", "127.0.0.1:9", "server: listen"),
            ("shutdown_grace: 60s", "shutdown_grace: 61s", "server: shutdown_grace"),
            ("me:old", "me:new", "store: redis"),
            ("old2", "new", "store: redis"),
            ("20ms", "30ms", "store: deadline"),
            ("old3", "new", "store: key_secret"),
            (", key_secret: old3", "", "store: key_secret"),
            ("deadline", "connect_timeout: 1s, deadline", "store: connect_timeout"),
            ("127.0.0.1:2", "127.0.0.1:9", "resp: listen"),
            ("idle_timeout: 60s", "idle_timeout: 61s", "resp: idle_timeout"),
            ("max_connections: 5", "max_connections: 6", "resp: max_connections"),
            ("old4", "new", "resp: password"),
            ("127.0.0.1:3", "127.0.0.1:9", "grpc: listen"),
            ("retry_after: true", "retry_after: false", "headers: retry_after"),
            ("nginx", "caddy", "auth: preset"),
            ("top: true", "top: false", "observe: top"),
            ("old5", "new", "observe: traces"),
        ] {
            assert_eq!(of(from, to), [expected], "{to}");
        }
        let three = before.replace("me:old", "me:new").replace("20ms", "21ms").replace("old3", "new");
        let three = differences(&parse(before), &parse(&three));
        assert_eq!(three, ["store: deadline", "store: key_secret", "store: redis"]);
    }

    /// A config that is printed by mistake must not show its secrets.
    #[test]
    fn debug_of_a_configuration_shows_no_secret() {
        let text = "resp: {listen: '127.0.0.1:6380', password: SECRET-1}\n\
                    store: {redis: 'redis+sentinel://me:SECRET-2@h/m?sentinel_pass=SECRET-3', key_secret: SECRET-4}\n\
                    observe: {traces: {endpoint: 'http://h', headers: {authorization: SECRET-5}}}\n\
                    admin: {tokens: [{name: ops, scope: read, sha256: DIGEST}]}\n";
        let shown = |secret: &str, digest: &str| {
            format!("{:?}", parse(&text.replace("SECRET", secret).replace("DIGEST", &digest.repeat(32))))
        };
        let first = shown("hidden", "0a");
        assert!(!first.contains("hidden"), "{first}");
        // If any form of a secret were shown, another secret would look different.
        assert_eq!(first, shown("others", "0b"));
    }
}

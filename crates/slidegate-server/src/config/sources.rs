//! The sources of the configuration, and what a change of the file affects. `cli::reload` watches them.
//!
//! Links are resolved: volumes of Kubernetes change by replacing a link.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use slidegate_config::errors::ConfigErrors;

use super::Config;
use super::environment::Outside;

/// Where a configuration comes from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) file: Option<PathBuf>,
    pub(crate) texts: Vec<String>,
    pub(crate) outside: Outside,
    /// Whether limits come from elsewhere as well, so that there is no default policy.
    pub(crate) has_others: bool,
    /// Completes a configuration with arguments that no file has.
    pub(crate) complete: Arc<dyn Fn(Config) -> Config + Send + Sync>,
}

/// Identifies the state of a file without reading it. `None` if there is no file.
pub(crate) type Fingerprint = Option<(PathBuf, u64, SystemTime, u64)>;

impl Sources {
    /// The name of the source: the path of the file, `command line` or `default`.
    pub(crate) fn name(&self) -> String {
        match &self.file {
            Some(file) => file.display().to_string(),
            None if self.texts.is_empty() => "default".to_owned(),
            None => "command line".to_owned(),
        }
    }

    /// Loads the configuration.
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

/// The sections whose changes are activated without a restart.
const HOT_RELOADED: [&str; 2] = ["policies", "admin"];

/// The keys whose change needs a restart. Values are compared, including secrets and the contents
/// of certificates.
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

    /// Anyone who changes a password that leaked has to learn that the old one is still in force.
    #[test]
    fn a_changed_secret_is_named() {
        for (text, expected) in [
            ("resp: {listen: '127.0.0.1:6380', password: SECRET}", "resp: password"),
            ("store: {redis: 'redis://:SECRET@h'}", "store: redis"),
            ("store: {redis: 'redis+sentinel://h/m?sentinel_pass=SECRET'}", "store: redis"),
            ("store: {redis: 'redis://h', key_secret: SECRET}", "store: key_secret"),
            (
                "observe: {traces: {endpoint: 'http://h', headers: {authorization: SECRET}}}",
                "observe: traces",
            ),
        ] {
            let of = |secret: &str| parse(&text.replace("SECRET", secret));
            assert_eq!(differences(&of("one"), &of("one")), [""; 0], "{text}");
            assert_eq!(differences(&of("one"), &of("two")), [expected], "{text}");
        }
    }

    /// Values are compared: another one that means the same is no difference, and each that is one
    /// has its name.
    #[test]
    fn each_changed_section_is_named_and_no_other() {
        let before = "server: {listen: '127.0.0.1:1', shutdown_grace: 60s}\nstore: {memory: {max_keys: 1000}}\n\
                      resp: {listen: '127.0.0.1:2', idle_timeout: 60s, max_connections: 5}\n\
                      grpc: {listen: '127.0.0.1:3'}\nheaders: {retry_after: true}\nauth: {preset: nginx}\n\
                      observe: {top: true}\n";
        let differences = |from: &str, to: &str| {
            assert!(before.contains(from), "{from}");
            differences(&parse(before), &parse(&before.replacen(from, to, 1)))
        };
        assert_eq!(differences("60s", "1m"), [""; 0]);
        for (from, to, expected) in [
            ("127.0.0.1:1", "127.0.0.1:9", "server: listen"),
            ("shutdown_grace: 60s", "shutdown_grace: 61s", "server: shutdown_grace"),
            ("1000", "1001", "store: memory"),
            ("127.0.0.1:2", "127.0.0.1:9", "resp: listen"),
            ("idle_timeout: 60s", "idle_timeout: 61s", "resp: idle_timeout"),
            ("max_connections: 5", "max_connections: 6", "resp: max_connections"),
            ("127.0.0.1:3", "127.0.0.1:9", "grpc: listen"),
            ("retry_after: true", "retry_after: false", "headers: retry_after"),
            ("nginx", "caddy", "auth: preset"),
            ("top: true", "top: false", "observe: top"),
        ] {
            assert_eq!(differences(from, to), [expected], "{to}");
        }
    }

    /// What was changed and is not in force has to be said by its name, a password above all.
    #[test]
    fn each_changed_setting_of_the_store_is_named_and_no_other() {
        let before = "redis: 'rediss://me:old@h', deadline: 20ms, key_secret: old";
        let of = |keys: &str| parse(&format!("store: {{{keys}}}\n"));
        let differences = |keys: &str| differences(&of(before), &of(keys));
        assert_eq!(differences(before), [""; 0]);
        for (from, to, expected) in [
            ("20ms", "20 milliseconds", &[][..]),
            ("me:old", "me:new", &["store: redis"]),
            ("@h", "@h/1", &["store: redis"]),
            ("20ms", "30ms", &["store: deadline"]),
            ("key_secret: old", "key_secret: new", &["store: key_secret"]),
            (", key_secret: old", "", &["store: key_secret"]),
            ("deadline", "connect_timeout: 1s, deadline", &["store: connect_timeout"]),
            ("deadline", "cache_denials: false, deadline", &["store: cache_denials"]),
        ] {
            assert_eq!(differences(&before.replace(from, to)), expected, "{to}");
        }
        let three = before.replace("old", "new").replace("20ms", "21ms");
        assert_eq!(differences(&three), ["store: deadline", "store: key_secret", "store: redis"]);
    }

    /// A configuration that is printed, by whatever mistake, must not tell what it keeps secret.
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
        // Whatever a secret is kept as: if it were shown, another one would look otherwise.
        assert_eq!(first, shown("others", "0b"));
    }
}

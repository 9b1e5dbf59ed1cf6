//! Hot reload of the config files. An invalid change is rejected and the running config stays
//! active.
//!
//! Policies of new files become active before handlers see the new config, and old policies are
//! removed when no call holds their config. So no call is decided without its policy.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use slidegate::{Policy, PolicySet};
use tokio::sync::watch;

use super::folder::{FileText, FolderState};
use super::settings::Settings;
use super::statistics::Statistics;
use super::{ConfigError, EnvoyConfig, Folder, ReadOptions};
use crate::debounce::Debounced;

/// The running config, for handlers.
#[derive(Debug, Clone)]
pub(crate) struct LiveConfig {
    current: watch::Receiver<Option<Arc<EnvoyConfig>>>,
    statistics: Arc<Statistics>,
}

/// Hot-reloads changed files.
#[derive(Debug)]
pub(crate) struct ConfigWatcher {
    folder: Folder,
    options: ReadOptions,
    /// Policies from elsewhere, which stay active.
    other_policies: Vec<Policy>,
    sender: watch::Sender<Option<Arc<EnvoyConfig>>>,
    statistics: Arc<Statistics>,
    /// The state of the files at the last poll, or why it could not be read.
    state: Debounced<Result<FolderState, String>>,
    /// The last texts read, valid or not.
    texts: Vec<FileText>,
    /// Earlier configs that calls may still hold.
    retiring: Vec<Arc<EnvoyConfig>>,
}

impl LiveConfig {
    /// The running config. `None` until files have been loaded.
    pub(crate) fn current(&self) -> Option<Arc<EnvoyConfig>> {
        self.current.borrow().clone()
    }

    /// The statistics, which survive reloads.
    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// All statistics in the text format of `/stats`.
    pub(crate) fn stats(&self) -> String {
        let mut lines = self.statistics.lines();
        let [succeeded, failed] = self.loads();
        lines.insert("ratelimit.service.config_load_success".to_owned(), succeeded);
        lines.insert("ratelimit.service.config_load_error".to_owned(), failed);
        lines.iter().map(|(name, count)| format!("{name}: {count}\n")).collect()
    }

    /// Successful and rejected loads.
    pub(crate) fn loads(&self) -> [u64; 2] {
        let calls = self.statistics.calls();
        [&calls.loads_succeeded, &calls.loads_failed].map(|count| count.load(Ordering::Relaxed))
    }
}

impl ConfigWatcher {
    /// Loads the files for the first time. `other_policies` are active besides theirs.
    ///
    /// # Errors
    /// The files are invalid, unless `settings.may_start_without_config` is set.
    pub(crate) fn start(
        settings: &Settings,
        other_policies: &PolicySet,
    ) -> Result<(Self, LiveConfig), ConfigError> {
        let (sender, current) = watch::channel(None);
        let statistics = Arc::new(Statistics::new(settings.near_limit_ratio));
        let live = LiveConfig { current, statistics: Arc::clone(&statistics) };
        let folder = settings.folder.clone();
        let state = Debounced::new(folder.fingerprint());
        let mut watcher = Self {
            folder,
            options: settings.options.clone(),
            other_policies: other_policies.iter().cloned().collect(),
            sender,
            state,
            statistics,
            texts: Vec::new(),
            retiring: Vec::new(),
        };
        match watcher.read() {
            Ok(Some(envoy)) => {
                watcher.policies_with(&envoy)?;
                watcher.activate(envoy);
            }
            Ok(None) => {}
            Err(error) if settings.may_start_without_config => watcher.report(&error),
            Err(error) => return Err(error),
        }
        Ok((watcher, live))
    }

    /// The policies of the running config, of earlier configs that calls may still hold, and the
    /// others.
    ///
    /// # Errors
    /// Two policies have the same name.
    pub(crate) fn policies(&self) -> Result<PolicySet, ConfigError> {
        match &*self.sender.borrow() {
            Some(envoy) => self.policies_with(envoy),
            None => PolicySet::new(self.other_policies.clone())
                .map_err(|error| ConfigError::one(error.to_string())),
        }
    }

    /// Polls the files and reloads changed ones. `configure` activates policies.
    pub(crate) fn poll(&mut self, configure: &dyn Fn(PolicySet) -> Result<(), slidegate::Error>) {
        self.retire(configure);
        if !self.state.is_due(self.folder.fingerprint()) {
            return;
        }
        let outcome = self.read().and_then(|envoy| {
            let Some(envoy) = envoy else { return Ok(()) };
            configure(self.policies_with(&envoy)?).map_err(|error| ConfigError::one(error.to_string()))?;
            self.activate(envoy);
            Ok(())
        });
        if let Err(error) = outcome {
            self.report(&error);
        }
    }

    /// The compiled files; `None` if their texts have not changed since the last read.
    fn read(&mut self) -> Result<Option<EnvoyConfig>, ConfigError> {
        let files = self.state.last().as_ref().map_err(ConfigError::one)?;
        let texts = files.read(&self.folder).map_err(ConfigError::one)?;
        if texts == self.texts {
            return Ok(None);
        }
        let envoy = EnvoyConfig::parse(&texts, self.options.clone());
        self.texts = texts;
        let mut envoy = envoy?;
        envoy.attach_counters(&self.statistics);
        Ok(Some(envoy))
    }

    /// The policies of this config and the others, and as many of earlier configs as fit.
    fn policies_with(&self, envoy: &EnvoyConfig) -> Result<PolicySet, ConfigError> {
        let mut policies: Vec<_> = self.other_policies.iter().chain(envoy.policies()).collect();
        let mut names: HashSet<_> = policies.iter().map(|policy| policy.name()).collect();
        let held = self.sender.borrow();
        for old in self.retiring.iter().chain(&*held).flat_map(|old| old.policies()) {
            if policies.len() < PolicySet::MAX_POLICIES && names.insert(old.name()) {
                policies.push(old);
            }
        }
        PolicySet::new(policies.into_iter().cloned()).map_err(|error| ConfigError::one(error.to_string()))
    }

    fn activate(&mut self, envoy: EnvoyConfig) {
        self.statistics.calls().loads_succeeded.fetch_add(1, Ordering::Relaxed);
        for warning in envoy.warnings() {
            tracing::warn!("{warning}");
        }
        tracing::info!(folder = %self.folder.path.display(), "config loaded: {}", envoy.summary());
        self.retiring.extend(self.sender.send_replace(Some(Arc::new(envoy))));
    }

    fn report(&self, error: &ConfigError) {
        self.statistics.calls().loads_failed.fetch_add(1, Ordering::Relaxed);
        for line in error.lines() {
            tracing::error!("{line}");
        }
        let kept = if self.sender.borrow().is_some() {
            "the running config stays active"
        } else {
            "there is no config yet"
        };
        tracing::error!(folder = %self.folder.path.display(), "invalid config rejected; {kept}");
    }

    /// Removes policies of earlier configs that no call holds.
    fn retire(&mut self, configure: &dyn Fn(PolicySet) -> Result<(), slidegate::Error>) {
        let before = self.retiring.len();
        self.retiring.retain(|old| Arc::strong_count(old) > 1);
        if self.retiring.len() < before {
            self.statistics.forget_unused();
        }
        if self.retiring.len() < before
            && let Ok(policies) = self.policies()
            && let Err(error) = configure(policies)
        {
            tracing::error!(%error, "cannot remove the policies of earlier config files");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use slidegate::{Gate, Request};
    use slidegate_testkit::TempDir;

    use super::*;
    use crate::envoy::{Lookup, SCOPE};

    /// Replaces the file atomically.
    fn swap(files: &TempDir, text: &str) {
        let new = files.file(".new", text);
        fs::rename(new, files.path().join("edge.yaml")).unwrap();
    }

    fn one_limit(key: &str, limit: u32) -> String {
        format!(
            "domain: edge\ndescriptors: [{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
        )
    }

    fn started(files: &TempDir) -> (ConfigWatcher, LiveConfig, Gate) {
        let settings = Settings::of_folder(files.path().to_owned());
        let (watcher, live) = ConfigWatcher::start(&settings, &PolicySet::default()).unwrap();
        let gate = Gate::new(watcher.policies().unwrap());
        (watcher, live, gate)
    }

    fn names(gate: &Gate) -> Vec<String> {
        let mut names: Vec<_> = gate.policies().iter().map(|policy| policy.name().to_owned()).collect();
        names.sort();
        names
    }

    /// A call during a reload must be decided under the old limit or the new one, never without a
    /// limit.
    #[test]
    fn a_limit_stays_in_force_until_no_call_holds_it() {
        let files = TempDir::new("retire");
        swap(&files, &one_limit("old", 1));
        let (mut watcher, live, gate) = started(&files);
        let poll = |watcher: &mut ConfigWatcher| {
            watcher.poll(&|policies| {
                gate.configure(policies).unwrap();
                Ok(())
            });
        };
        let held = live.current().unwrap();
        swap(&files, &one_limit("new", 1));
        poll(&mut watcher);
        assert_eq!(live.loads()[0], 1, "a file that has just changed may still be written");
        poll(&mut watcher);
        assert_eq!(live.loads(), [2, 0]);
        assert!(matches!(
            live.current().unwrap().lookup("edge", &[("old", "x")], None),
            Lookup::NoMatch { domain_found: true }
        ));
        poll(&mut watcher);
        assert_eq!(names(&gate), ["edge..own-limits", "edge.new", "edge.old"]);
        let Lookup::Limited(hit) = held.lookup("edge", &[("old", "x")], None) else {
            panic!("it had a limit")
        };
        let request = Request::new().with(SCOPE, &hit.key).under(hit.policy).with_cost(2);
        assert!(gate.check(&request).is_denied(), "the limit that was looked up still applies");
        drop(held);
        poll(&mut watcher);
        assert_eq!(names(&gate), ["edge..own-limits", "edge.new"]);
    }

    /// Alerts count failed loads: one per invalid change, none for unchanged files.
    #[test]
    fn each_change_is_loaded_or_rejected_once() {
        let files = TempDir::new("once");
        swap(&files, &one_limit("user", 1));
        let (mut watcher, live, gate) = started(&files);
        let mut polls = || {
            for _ in 0..4 {
                watcher.poll(&|policies| {
                    gate.configure(policies).unwrap();
                    Ok(())
                });
            }
            live.loads()
        };
        assert_eq!(polls(), [1, 0]);
        swap(&files, &one_limit("user", 1));
        assert_eq!(polls(), [1, 0], "a new file with the same text is not a change");
        swap(&files, "domain: ''\n");
        assert_eq!(polls(), [1, 1]);
        fs::remove_file(files.path().join("edge.yaml")).unwrap();
        assert_eq!(polls(), [1, 2], "an empty folder is an error, not a config without limits");
        assert!(live.current().unwrap().has_domains());
        assert_eq!(names(&gate), ["edge..own-limits", "edge.user"]);
        swap(&files, &one_limit("user", 2));
        assert_eq!(polls(), [2, 2]);
    }

    /// If the store rejects the limits, the old ones stay active.
    #[test]
    fn limits_that_the_store_rejects_are_not_loaded() {
        let files = TempDir::new("store");
        swap(&files, &one_limit("user", 1));
        let (mut watcher, live, _) = started(&files);
        swap(&files, &one_limit("user", 2));
        let reject = |_| Err("x/1s".parse::<slidegate::Quota>().unwrap_err());
        (0..2).for_each(|_| watcher.poll(&reject));
        assert_eq!(live.loads(), [1, 1]);
        assert!(live.current().unwrap().dump().contains("requests_per_unit=1,"));
    }
}

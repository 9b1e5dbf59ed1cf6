//! Watching: takes changed files in, and keeps the last good configuration while they are wrong.
//!
//! Policies of the new files come into force before the doors see them, and those of the old ones leave when no request
//! holds them any more: none is ever decided without its policy.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slidegate::{Policy, PolicySet};
use tokio::sync::watch;

use super::folder::{Fingerprint, Text};
use super::{Envoy, Folder, Reading, Refusal, Settings, Statistics};
use crate::watched::Watched;

/// The configuration in force, for the doors.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    current: watch::Receiver<Option<Arc<Envoy>>>,
    loads: Arc<Loads>,
    statistics: Arc<Statistics>,
}

/// How often files were taken, and how often they were wrong.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    succeeded: AtomicU64,
    failed: AtomicU64,
}

/// What becomes of files.
#[derive(Debug)]
pub(crate) struct Watcher {
    folder: Folder,
    reading: Reading,
    /// Policies that are in force whatever the files say.
    native: Vec<Policy>,
    sender: watch::Sender<Option<Arc<Envoy>>>,
    loads: Arc<Loads>,
    statistics: Arc<Statistics>,
    /// What the last look found, or why it could not.
    watched: Watched<Result<Fingerprint, String>>,
    /// What was last read, good or bad.
    texts: Vec<Text>,
    /// Earlier configurations that requests may still hold.
    retiring: Vec<Arc<Envoy>>,
}

impl Live {
    /// `None` while none was ever taken.
    pub(crate) fn current(&self) -> Option<Arc<Envoy>> {
        self.current.borrow().clone()
    }

    /// What is counted, whatever configuration is in force.
    pub(crate) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// All that is counted, in lines as the reference's `/stats` has them.
    pub(crate) fn stats(&self) -> String {
        let mut lines = self.statistics.lines();
        lines.insert("ratelimit.service.config_load_success".to_owned(), self.loads_succeeded());
        lines.insert("ratelimit.service.config_load_error".to_owned(), self.loads_failed());
        lines.iter().map(|(name, count)| format!("{name}: {count}\n")).collect()
    }

    /// How often files were taken.
    pub(crate) fn loads_succeeded(&self) -> u64 {
        self.loads.succeeded.load(Ordering::Relaxed)
    }

    /// How often files were wrong.
    pub(crate) fn loads_failed(&self) -> u64 {
        self.loads.failed.load(Ordering::Relaxed)
    }
}

impl Watcher {
    /// Reads the files for the first time. `native` is in force beside them.
    ///
    /// # Errors
    /// Why they cannot be taken, unless the settings say to start all the same.
    pub(crate) fn start(settings: &Settings, native: &PolicySet) -> Result<(Self, Live), Refusal> {
        let (sender, current) = watch::channel(None);
        let loads = Arc::<Loads>::default();
        let statistics = Arc::new(Statistics::new(settings.near_limit_ratio));
        let live = Live { current, loads: Arc::clone(&loads), statistics: Arc::clone(&statistics) };
        let folder = settings.folder.clone();
        let watched = Watched::start(folder.look());
        let mut watcher = Self {
            folder,
            reading: settings.reading.clone(),
            native: native.iter().cloned().collect(),
            sender,
            loads,
            watched,
            statistics,
            texts: Vec::new(),
            retiring: Vec::new(),
        };
        match watcher.read() {
            Ok(Some(envoy)) => {
                watcher.set(&envoy)?;
                watcher.taken(envoy);
            }
            Ok(None) => {}
            Err(refusal) if settings.may_start_without => watcher.refused(&refusal),
            Err(refusal) => return Err(refusal),
        }
        Ok((watcher, live))
    }

    /// The policies that are in force now.
    ///
    /// # Errors
    /// A policy of the files has the name of another one.
    pub(crate) fn policies(&self) -> Result<PolicySet, Refusal> {
        match &*self.sender.borrow() {
            Some(envoy) => self.set(envoy),
            None => PolicySet::new(self.native.clone()).map_err(|error| Refusal::one(error.to_string())),
        }
    }

    /// Looks at the files, and takes them in if they have changed. `configure` puts policies in force.
    pub(crate) fn look(&mut self, configure: &dyn Fn(PolicySet) -> Result<(), slidegate::Error>) {
        self.retire(configure);
        if !self.watched.is_due(self.folder.look()) {
            return;
        }
        let outcome = self.read().and_then(|envoy| {
            let Some(envoy) = envoy else { return Ok(()) };
            configure(self.set(&envoy)?).map_err(|error| Refusal::one(error.to_string()))?;
            self.taken(envoy);
            Ok(())
        });
        if let Err(refusal) = outcome {
            self.refused(&refusal);
        }
    }

    /// What the files say now; `None` if it is what they said when they were last read.
    fn read(&mut self) -> Result<Option<Envoy>, Refusal> {
        let seen = self.watched.seen().as_ref().map_err(Refusal::one)?;
        let texts = seen.read(&self.folder).map_err(Refusal::one)?;
        if texts == self.texts {
            return Ok(None);
        }
        let envoy = Envoy::read(&texts, self.reading.clone());
        self.texts = texts;
        let mut envoy = envoy?;
        envoy.count_in(&self.statistics);
        Ok(Some(envoy))
    }

    /// The policies of these files and those that are always in force, and of earlier files as far as there is room.
    fn set(&self, envoy: &Envoy) -> Result<PolicySet, Refusal> {
        let mut policies: Vec<_> = self.native.iter().chain(envoy.policies()).collect();
        let mut names: HashSet<_> = policies.iter().map(|policy| policy.name()).collect();
        let held = self.sender.borrow();
        for old in self.retiring.iter().chain(&*held).flat_map(|old| old.policies()) {
            if policies.len() < PolicySet::MAX_POLICIES && names.insert(old.name()) {
                policies.push(old);
            }
        }
        PolicySet::new(policies.into_iter().cloned()).map_err(|error| Refusal::one(error.to_string()))
    }

    fn taken(&mut self, envoy: Envoy) {
        self.loads.succeeded.fetch_add(1, Ordering::Relaxed);
        for warning in envoy.warnings() {
            tracing::warn!("{warning}");
        }
        tracing::info!(folder = %self.folder.path.display(), "configuration taken: {}", envoy.summary());
        self.retiring.extend(self.sender.send_replace(Some(Arc::new(envoy))));
    }

    fn refused(&self, refusal: &Refusal) {
        self.loads.failed.fetch_add(1, Ordering::Relaxed);
        for line in refusal.lines() {
            tracing::error!("{line}");
        }
        let kept = if self.sender.borrow().is_some() {
            "the last good one stays in force"
        } else {
            "there is none yet"
        };
        tracing::error!(folder = %self.folder.path.display(), "configuration not taken; {kept}");
    }

    /// Takes policies of earlier files out of force once nobody holds those.
    fn retire(&mut self, configure: &dyn Fn(PolicySet) -> Result<(), slidegate::Error>) {
        let before = self.retiring.len();
        self.retiring.retain(|old| Arc::strong_count(old) > 1);
        if self.retiring.len() < before {
            self.statistics.forget_gone();
        }
        if self.retiring.len() < before
            && let Ok(policies) = self.policies()
            && let Err(error) = configure(policies)
        {
            tracing::error!(%error, "policies of earlier files stay in force");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use slidegate::{Gate, Request};

    use super::*;
    use crate::envoy::{Lookup, SCOPE};

    /// A folder of its own, which goes with the value.
    struct Files(PathBuf);

    impl Files {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("slidegate-{test}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// Puts other files in the place of those that are there, as a whole.
        fn swap(&self, text: &str) {
            let new = self.0.join(".new");
            fs::write(&new, text).unwrap();
            fs::rename(new, self.0.join("edge.yaml")).unwrap();
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn one_limit(key: &str, limit: u32) -> String {
        format!(
            "domain: edge\ndescriptors: [{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: {limit}}}}}]\n"
        )
    }

    fn started(files: &Files) -> (Watcher, Live, Gate) {
        let settings = Settings::of_folder(files.0.clone());
        let (watcher, live) = Watcher::start(&settings, &PolicySet::default()).unwrap();
        let gate = Gate::new(watcher.policies().unwrap());
        (watcher, live, gate)
    }

    fn names(gate: &Gate) -> Vec<String> {
        let mut names: Vec<_> = gate.policies().iter().map(|policy| policy.name().to_owned()).collect();
        names.sort();
        names
    }

    /// A request that is decided while files change must be decided under the old limit or the new one, never under none.
    #[test]
    fn a_limit_stays_in_force_until_no_request_holds_it() {
        let files = Files::new("retire");
        files.swap(&one_limit("old", 1));
        let (mut watcher, live, gate) = started(&files);
        let look = |watcher: &mut Watcher| {
            watcher.look(&|policies| {
                gate.configure(policies);
                Ok(())
            });
        };
        let held = live.current().unwrap();
        files.swap(&one_limit("new", 1));
        look(&mut watcher);
        assert_eq!(live.loads_succeeded(), 1, "files that have just changed may still be being written");
        look(&mut watcher);
        assert_eq!((live.loads_succeeded(), live.loads_failed()), (2, 0));
        assert!(matches!(
            live.current().unwrap().lookup("edge", &[("old", "x")], None),
            Lookup::NoMatch { domain_found: true }
        ));
        look(&mut watcher);
        assert_eq!(names(&gate), ["edge..own-limits", "edge.new", "edge.old"]);
        let Lookup::Limited(hit) = held.lookup("edge", &[("old", "x")], None) else {
            panic!("it had a limit")
        };
        let request = Request::new().with(SCOPE, &hit.key).under(hit.policy).cost(2);
        assert!(gate.check(&request).is_denied(), "it is decided under the limit that was looked up");
        drop(held);
        look(&mut watcher);
        assert_eq!(names(&gate), ["edge..own-limits", "edge.new"]);
    }

    /// An operator who counts failed loads must see one for each, and none for files that stay as they are.
    #[test]
    fn each_change_is_taken_or_refused_once() {
        let files = Files::new("once");
        files.swap(&one_limit("user", 1));
        let (mut watcher, live, gate) = started(&files);
        let mut looks = || {
            for _ in 0..4 {
                watcher.look(&|policies| {
                    gate.configure(policies);
                    Ok(())
                });
            }
            (live.loads_succeeded(), live.loads_failed())
        };
        assert_eq!(looks(), (1, 0));
        files.swap(&one_limit("user", 1));
        assert_eq!(looks(), (1, 0), "another file with the same text is no change");
        files.swap("domain: ''\n");
        assert_eq!(looks(), (1, 1));
        fs::remove_file(files.0.join("edge.yaml")).unwrap();
        assert_eq!(looks(), (1, 2), "a folder without files is no configuration without limits");
        assert!(live.current().unwrap().has_domains());
        assert_eq!(names(&gate), ["edge..own-limits", "edge.user"]);
        files.swap(&one_limit("user", 2));
        assert_eq!(looks(), (2, 2));
    }

    /// Files that a store cannot count by must leave everything as it was.
    #[test]
    fn what_the_store_refuses_is_not_taken() {
        let files = Files::new("store");
        files.swap(&one_limit("user", 1));
        let (mut watcher, live, _) = started(&files);
        files.swap(&one_limit("user", 2));
        let refuse = |_| Err("x/1s".parse::<slidegate::Quota>().unwrap_err());
        (0..2).for_each(|_| watcher.look(&refuse));
        assert_eq!((live.loads_succeeded(), live.loads_failed()), (1, 1));
        assert!(live.current().unwrap().dump().contains("requests_per_unit=1,"));
    }
}

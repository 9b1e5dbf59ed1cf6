//! Watching: takes changed files in, and keeps the last good configuration while they are wrong.
//!
//! A change is taken once two looks have found the same: files that are still being written are not read. Policies of the
//! new files come into force before the doors see them, and those of the old ones leave when no request holds them any
//! more: none is ever decided without its policy.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{Policy, PolicySet};
use tokio::sync::watch;

use super::folder::{Fingerprint, Text};
use super::{Envoy, Folder, Reading, Refusal, Settings};

/// Between two looks at the files. A change is in force within two of them; a volume of Kubernetes takes a minute.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The configuration in force, for the doors.
#[derive(Debug, Clone)]
pub(crate) struct Live {
    current: watch::Receiver<Option<Arc<Envoy>>>,
    loads: Arc<Loads>,
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
    /// What the last look found, and why it could not.
    seen: Result<Fingerprint, String>,
    /// Whether that has been dealt with.
    is_settled: bool,
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
        let live = Live { current, loads: Arc::clone(&loads) };
        let folder = settings.folder.clone();
        let seen = folder.look();
        let mut watcher = Self {
            folder,
            reading: settings.reading.clone(),
            native: native.iter().cloned().collect(),
            sender,
            loads,
            seen,
            is_settled: true,
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
        let seen = self.folder.look();
        if seen != self.seen {
            self.seen = seen;
            self.is_settled = false;
            return;
        }
        if self.is_settled {
            return;
        }
        self.is_settled = true;
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
        let seen = self.seen.as_ref().map_err(Refusal::one)?;
        let texts = seen.read(&self.folder).map_err(Refusal::one)?;
        if texts == self.texts {
            return Ok(None);
        }
        let envoy = Envoy::read(&texts, self.reading.clone());
        self.texts = texts;
        envoy.map(Some)
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
        tracing::info!(folder = %self.folder.path.display(), limits = envoy.policies().len(), "configuration taken");
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
        if self.retiring.len() < before
            && let Ok(policies) = self.policies()
            && let Err(error) = configure(policies)
        {
            tracing::error!(%error, "policies of earlier files stay in force");
        }
    }
}

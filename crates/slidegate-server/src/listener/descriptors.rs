//! File descriptors: the process limit, a reserve, and one spare for when all are used.
//!
//! Without a spare, a connection that cannot be accepted stays in the kernel's queue and the accept
//! loop spins on it.

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors reserved from connections: for the store and its reconnects, hot reloads, the
/// exporter, and connections being refused.
const RESERVE: usize = 64 + super::refusal::MAX_REFUSALS;

/// The process's file descriptors.
#[derive(Debug)]
pub(super) struct Descriptors {
    limit: Option<u64>,
    spare: Mutex<Option<File>>,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self { limit: getrlimit(Resource::Nofile).current, spare: Mutex::new(spare()) }
    }
}

impl Descriptors {
    /// The soft limit. `None`: unlimited.
    pub(super) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Open descriptors. `None` if the system does not report them.
    pub(super) fn open() -> Option<usize> {
        let folder = std::fs::read_dir("/proc/self/fd").or_else(|_| std::fs::read_dir("/dev/fd")).ok()?;
        // The folder itself is one of them.
        Some(folder.count().saturating_sub(1))
    }

    /// Descriptors left for connections. `None`: unlimited.
    pub(super) fn available(&self) -> Option<usize> {
        let limit = usize::try_from(self.limit?).unwrap_or(usize::MAX);
        Some(limit.saturating_sub(Self::open().unwrap_or_default()).saturating_sub(RESERVE))
    }

    /// Opens a spare again if another part of the process took the last one.
    pub(super) fn keep_spare(&self) {
        let mut held = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = spare();
        }
    }

    /// Frees the spare descriptor for `run`, when no other is left.
    pub(super) fn with_spare(&self, run: impl FnOnce()) {
        let mut held = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        drop(held.take());
        run();
        *held = spare();
    }
}

fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Raises the soft limit of file descriptors to the hard limit.
///
/// # Errors
/// The system refuses.
pub(crate) fn raise_limit() -> Result<(), String> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum || current.is_none() {
        return Ok(());
    }
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
        .map_err(|error| format!("cannot raise the limit of file descriptors: {error}"))
}

//! Snapshots of the memory store: read at the start, written at an interval and at shutdown.
//!
//! If a snapshot cannot be written, this is logged and counted, and the previous one stays. If one
//! cannot be read, it is set aside, and the service starts without usage.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use slidegate::store::{RestoredSnapshot, SavedSnapshot, SnapshotFile};
use tokio::sync::Notify;

use super::store::Store;
use crate::clock::{millis, now_ms};
use crate::config::SnapshotSettings;
use crate::log_limit::LogLimit;

/// The name of the run-time changes in a snapshot.
const CHANGES: &str = "changes";
/// Minimum interval between snapshots requested by run-time changes.
const DEBOUNCE: Duration = Duration::from_millis(500);

/// The snapshot file of the memory store, and its state.
#[derive(Debug)]
pub(crate) struct Snapshots {
    path: PathBuf,
    /// Locked while a snapshot is written or restored.
    file: Mutex<SnapshotFile>,
    interval: Duration,
    /// Requests a snapshot before the interval is over.
    requested: Notify,
    status: Mutex<SnapshotStatus>,
    log_limit: LogLimit,
}

/// Outcomes of this process's snapshots.
#[derive(Debug, Clone, Default)]
pub(crate) struct SnapshotStatus {
    pub(crate) last: Option<LastSnapshot>,
    pub(crate) saved: u64,
    pub(crate) failed: u64,
    /// Why the last attempt failed, if it did.
    pub(crate) error: Option<String>,
    pub(crate) restored: Option<RestoredSnapshot>,
    pub(crate) rejected: Option<RejectedSnapshot>,
}

/// The last snapshot written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastSnapshot {
    /// In milliseconds since the epoch.
    pub(crate) at_ms: u64,
    pub(crate) took: Duration,
    pub(crate) content: SavedSnapshot,
}

/// A snapshot that was found at the start and not used.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RejectedSnapshot {
    pub(crate) reason: String,
    pub(crate) kept_as: PathBuf,
}

impl Snapshots {
    /// Locks the file and reads it if it exists.
    ///
    /// # Errors
    /// One line: the file cannot be written, is used by another process, or cannot be read.
    pub(super) fn open(settings: &SnapshotSettings) -> Result<Self, String> {
        let mut file = SnapshotFile::open(&settings.path).map_err(|error| error.to_string())?;
        let mut status = SnapshotStatus::default();
        match file.read() {
            Ok(_) => {}
            Err(error) if error.is_damaged() => {
                status.rejected = Some(reject(&file, error.to_string())?);
            }
            Err(error) => return Err(format!("`{}`: {error}", settings.path.display())),
        }
        Ok(Self {
            path: settings.path.clone(),
            file: Mutex::new(file),
            interval: settings.interval.0,
            requested: Notify::new(),
            status: Mutex::new(status),
            log_limit: LogLimit::default(),
        })
    }

    /// The file, with its content at the start.
    pub(super) fn file(&self) -> MutexGuard<'_, SnapshotFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run-time changes in the snapshot.
    pub(crate) fn changes(&self) -> Option<String> {
        let file = self.file();
        let changes = file.attachment(CHANGES)?;
        Some(String::from_utf8_lossy(changes).into_owned())
    }

    /// Restores the usage under the active policies.
    pub(crate) fn restore(&self, store: &Store) {
        let mut file = self.file();
        match store.restore(&mut file) {
            Ok(None) => {}
            Ok(Some(restored)) => {
                let RestoredSnapshot { keys, expired, unknown_policy, other_algorithm, downtime, .. } =
                    restored;
                let downtime_ms = millis(downtime);
                tracing::info!(
                    keys,
                    expired,
                    unknown_policy,
                    other_algorithm,
                    downtime_ms,
                    "usage was restored from the snapshot"
                );
                self.status().restored = Some(restored);
            }
            Err(error) => match reject(&file, error.to_string()) {
                Ok(rejected) => self.status().rejected = Some(rejected),
                Err(error) => tracing::error!(error, "the damaged snapshot cannot be set aside"),
            },
        }
    }

    /// Writes a snapshot with these run-time changes. Blocks until it is on disk.
    pub(crate) fn save(&self, store: &Store, changes: &str) {
        let mut file = self.file();
        let started = store.elapsed();
        let saved = store.save(&mut file, &[(CHANGES, changes.as_bytes())]);
        let took = store.elapsed() - started;
        let mut status = self.status();
        match saved {
            Ok(content) => {
                status.saved += 1;
                status.last = Some(LastSnapshot { at_ms: now_ms(), took, content });
                if status.error.take().is_some() {
                    tracing::info!("usage is saved again");
                }
            }
            Err(error) => {
                status.failed += 1;
                let is_new = status.error.replace(error.to_string()).is_none();
                // Also charged for the first line, or the next failure would log it again.
                let is_admitted = self.log_limit.admit(None).is_some();
                if is_new || is_admitted {
                    tracing::warn!(
                        path = %self.path().display(),
                        %error,
                        "usage cannot be saved; the former snapshot stays"
                    );
                }
            }
        }
    }

    /// Waits until the next snapshot is due.
    pub(crate) async fn due(&self) {
        let requested = async {
            self.requested.notified().await;
            tokio::time::sleep(DEBOUNCE).await;
        };
        let _ = tokio::time::timeout(self.interval, requested).await;
    }

    /// Requests a snapshot soon: a change must not wait for the interval.
    pub(crate) fn request(&self) {
        self.requested.notify_one();
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    pub(crate) fn status(&self) -> MutexGuard<'_, SnapshotStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sets a damaged snapshot aside.
fn reject(file: &SnapshotFile, reason: String) -> Result<RejectedSnapshot, String> {
    let path = file.path().display();
    let kept_as = file
        .set_aside()
        .map_err(|error| format!("the damaged snapshot `{path}` cannot be renamed: {error}"))?;
    tracing::error!(
        %path,
        kept_as = %kept_as.display(),
        reason,
        "the snapshot was rejected: the service starts without its usage and run-time changes"
    );
    Ok(RejectedSnapshot { reason, kept_as })
}

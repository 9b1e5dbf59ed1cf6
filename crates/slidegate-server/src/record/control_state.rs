//! The observer's state of the config and of run-time changes.

use std::sync::atomic::{AtomicBool, AtomicU64};

use slidegate::clock::Timestamp;

#[derive(Debug, Clone, Default)]
pub(crate) struct ConfigState {
    /// SHA-256 of the active config file.
    pub(crate) hash: String,
    /// When it was loaded, by the observer's clock.
    pub(crate) at: Timestamp,
    /// Successful reloads since the start, and rejected ones.
    pub(crate) loads: u64,
    pub(crate) failures: u64,
    /// The error of the last reload, if it was rejected.
    pub(crate) error: Option<String>,
    /// Settings of the file that need a restart, in one line.
    pub(crate) pending: Option<String>,
}

/// The state of run-time changes in a shared store.
#[derive(Debug, Default)]
pub(crate) struct ChangesSeen {
    /// How often the store lost changes that are active here.
    pub(crate) losses: AtomicU64,
    /// Whether the store held the active changes when last read.
    pub(crate) are_stored: AtomicBool,
}

//! Snapshots: the usage of a memory store in a file, so that it outlives the process.
//!
//! A snapshot is a list of records under one checksum; docs/snapshot-format.md describes them. It is
//! written while decisions go on: a shard is locked while a part of it is copied to memory, some 32
//! KiB at a time, and never while anything is written to the file.
//!
//! Keys are copied one after the other, so a snapshot is no picture of one instant: it has each key
//! as it was when it was copied. What is charged to a key after that is not in it. After a restore
//! a limit can therefore be exceeded by what was charged since the last snapshot, and by no more.

use std::fmt;
use std::io;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::time::Timestamp;

mod file;
pub(in crate::store::memory) mod format;
mod restore;
mod save;

pub use file::SnapshotFile;
pub(crate) use format::SavedPolicy;
pub(crate) use save::SnapshotWriter;

/// A store whose usage is in a [`MemoryStore`], so that a gate can [save](crate::Gate::save_to) and
/// [restore](crate::Gate::restore) it.
pub trait InMemory: Store {
    /// The memory store that decides.
    fn in_memory(&self) -> &MemoryStore;
}

impl MemoryStore {
    /// The file that [`Gate::save`](crate::Gate::save) last wrote, which stays locked.
    pub(crate) fn saved_to(&self) -> MutexGuard<'_, Option<SnapshotFile>> {
        self.saved_to.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts of a saved snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedSnapshot {
    /// Keys in the snapshot.
    pub keys: u64,
    /// Bytes of the snapshot.
    pub bytes: u64,
}

/// Counts of a restored snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RestoredSnapshot {
    /// Keys that count again.
    pub keys: u64,
    /// Holds that count again, or were charged because their time has ended.
    pub holds: u64,
    /// Keys without counted usage.
    pub expired: u64,
    /// Keys of policies that are not active, or have another scope.
    pub unknown_policy: u64,
    /// Keys whose policy counts by another algorithm now: they start afresh.
    pub other_algorithm: u64,
    /// Keys that were charged before they could be restored.
    pub already_used: u64,
    /// Time between the snapshot and the restore, by which everything has become older.
    pub downtime: Duration,
    /// When the snapshot was written, by the wall clock of then.
    pub written_at: Timestamp,
}

/// Why a snapshot cannot be read or written. The text is one line.
#[derive(Debug)]
pub struct SnapshotError {
    message: String,
    kind: SnapshotErrorKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotErrorKind {
    Damaged,
    InUse,
    Io,
    OtherStore,
}

impl SnapshotError {
    /// Whether the file can be read, but is not a whole snapshot of a version that this release
    /// reads.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.kind == SnapshotErrorKind::Damaged
    }

    /// Whether another process uses the file.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.kind == SnapshotErrorKind::InUse
    }

    /// Whether the store was not [built for the snapshot](crate::store::MemoryStoreBuilder::for_snapshot). The
    /// file is whole.
    #[must_use]
    pub fn is_for_another_store(&self) -> bool {
        self.kind == SnapshotErrorKind::OtherStore
    }

    fn damaged(message: impl Into<String>) -> Self {
        Self { kind: SnapshotErrorKind::Damaged, message: message.into() }
    }

    fn io(doing: &str, error: &io::Error) -> Self {
        Self { kind: SnapshotErrorKind::Io, message: format!("{doing}: {error}") }
    }
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SnapshotError {}

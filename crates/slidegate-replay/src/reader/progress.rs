//! How far logs have been read.

use std::sync::atomic::Ordering;

use super::LogReader;

/// How far the logs have been read, in bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far, including read-ahead.
    pub bytes_read: u64,
    /// The length of all files. `None` if there is a pipe. A log that is still written can grow
    /// past it.
    pub total_bytes: Option<u64>,
}

impl LogReader {
    /// How far the logs have been read.
    pub fn progress(&self) -> Progress {
        Progress { bytes_read: self.bytes_read.load(Ordering::Relaxed), total_bytes: self.total_bytes }
    }
}

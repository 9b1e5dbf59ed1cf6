//! Progress of reading.

use std::sync::atomic::Ordering;

use super::LogReader;

/// Progress of reading, in bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far, including read-ahead.
    pub bytes_read: u64,
    /// Length of all files. `None` if there is a pipe. A log still being written can exceed it.
    pub total_bytes: Option<u64>,
}

impl LogReader {
    /// The progress so far.
    pub fn progress(&self) -> Progress {
        Progress { bytes_read: self.bytes_read.load(Ordering::Relaxed), total_bytes: self.total_bytes }
    }
}

//! How far logs have been read.

/// How far the logs have been read, in bytes on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read so far, including read-ahead.
    pub bytes_read: u64,
    /// The length of all files. `None` if there is a pipe. A log that is still written can grow
    /// past it.
    pub total_bytes: Option<u64>,
}

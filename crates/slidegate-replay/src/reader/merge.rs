//! What the merge of several logs goes by: the next entry of each, and the run that is handed out.

use super::open_log::Release;
use crate::reorder::PendingLine;

/// The next entry of a log. The order of the fields is the order of the merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub(super) time_us: u64,
    pub(super) log: usize,
    pub(super) number: u64,
    pub(super) slot: usize,
    pub(super) line: PendingLine,
    pub(super) release: Release,
}

/// Entries that follow one another in their block and in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) slot: usize,
    pub(super) block: usize,
    /// The next record to hand out.
    pub(super) next: usize,
    pub(super) end: usize,
    pub(super) len: usize,
}

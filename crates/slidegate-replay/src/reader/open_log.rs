//! A log that is open: its blocks, and its lines that wait to be in order.

use crate::block::{Block, Record};
use crate::format::field::FieldCounts;
use crate::input::pool::Feed;
use crate::reorder::{FollowLimit, PendingLine, PendingLines, RecordHandle, Reorder};

/// Lines that may wait to be sorted, of all logs: two minutes at 8,000 requests a second.
const MAX_PENDING_LINES: usize = 1_048_576;
/// Memory of the blocks whose lines wait, of all logs.
const MAX_PENDING_BYTES: usize = 512 * 1024 * 1024;

/// A log that is open.
pub(crate) struct OpenLog {
    pub(crate) log: usize,
    pub(crate) feed: Feed,
    pub(crate) reorder: Reorder,
    /// By number; `None` for those that are free.
    pub(crate) blocks: Vec<Option<LiveBlock>>,
    pub(crate) held_bytes: usize,
    /// The block whose records are being taken in, and the next of them.
    pub(crate) newest: Option<(usize, usize)>,
    /// A block that is no longer needed, for its memory.
    pub(crate) spare: Option<Block>,
    pub(crate) counts: FieldCounts,
    pub(crate) has_ended: bool,
}

pub(crate) struct LiveBlock {
    pub(crate) block: Block,
    /// Records that have not been handed out.
    pub(crate) remaining: usize,
}

/// Lines that are taken in together at most when too many wait.
const FULL_RUN: usize = 256;

/// A line in order of time, and how far those after it may go with it.
#[derive(Debug)]
pub(crate) struct NextLine {
    pub(crate) line: PendingLine,
    pub(crate) release: Release,
}

/// Why a line was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Release {
    /// Nothing older can come.
    Due,
    /// Too many wait: so many more than may.
    Full(usize),
    /// The log has ended.
    Ended,
}

impl PendingLines for Vec<Option<LiveBlock>> {
    #[inline]
    fn line(&self, handle: RecordHandle) -> PendingLine {
        let live = self[handle.block as usize].as_ref().expect("the block of a line that waits is live");
        let Record { time_us, line, .. } = live.block.parsed.records[handle.record as usize];
        PendingLine { time_us, number: line, handle }
    }
}

impl OpenLog {
    /// The next line in order of time. `None` if the next block is needed for it, or the log has
    /// ended.
    #[inline]
    pub(crate) fn next_pending(&mut self, logs_open: usize) -> Option<NextLine> {
        let Self { reorder, blocks, .. } = self;
        let blocks = &*blocks;
        loop {
            if let Some(line) = reorder.release_due(blocks) {
                return Some(NextLine { line, release: Release::Due });
            }
            let most = MAX_PENDING_LINES / logs_open;
            let is_full = reorder.len() > most;
            let is_large = self.held_bytes > MAX_PENDING_BYTES / logs_open;
            if (is_full || is_large)
                && let Some(line) = reorder.release(blocks)
            {
                let more = if is_large { usize::MAX } else { reorder.len() - most };
                return Some(NextLine { line, release: Release::Full(more) });
            }
            let Some((block, record)) = self.newest else {
                let line = if self.has_ended { reorder.release(blocks) } else { None };
                return line.map(|line| NextLine { line, release: Release::Ended });
            };
            let live = blocks[block].as_ref().expect("the newest block is live until it is taken in");
            let records = &live.block.parsed.records;
            let times = records[record..].iter().map(|record| record.time_us);
            let room = if is_large { 1 } else { most - reorder.len().min(most) + FULL_RUN };
            let handle = RecordHandle { block: small(block), record: small(record) };
            let next = record + reorder.hold(handle, times, room, blocks);
            self.newest = (next < records.len()).then_some((block, next));
        }
    }

    /// How many lines go with the one that was released last, besides it.
    #[inline]
    pub(crate) fn following(&mut self, after: PendingLine, release: Release, limit: FollowLimit) -> usize {
        let Self { reorder, blocks, .. } = self;
        let live = blocks[after.handle.block as usize].as_ref().expect("the block of a line is live");
        let times = live.block.parsed.records[after.handle.record as usize + 1..].iter();
        let most = match release {
            Release::Full(more) => more.min(limit.most),
            Release::Due | Release::Ended => limit.most,
        };
        let limit = FollowLimit { most, is_due_only: release == Release::Due, ..limit };
        reorder.release_following(after, limit, times.map(|record| record.time_us))
    }
}

/// Numbers of blocks and of records in a block are far below 2^32.
#[allow(clippy::cast_possible_truncation)]
fn small(number: usize) -> u32 {
    number as u32
}

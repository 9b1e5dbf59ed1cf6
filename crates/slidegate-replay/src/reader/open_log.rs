//! An open log: its blocks, and its lines that wait to be sorted.

use crate::block::Block;
use crate::format::field::FieldCounts;
use crate::input::pool::Feed;
use crate::reorder::{PendingLine, Reorder};

/// Maximum lines that wait to be sorted, over all logs: two minutes at 8,000 requests a second.
const MAX_PENDING_LINES: usize = 1_048_576;
/// Maximum memory of blocks with waiting lines, over all logs.
const MAX_PENDING_BYTES: usize = 512 * 1024 * 1024;

pub(super) struct OpenLog {
    pub(super) log: usize,
    pub(super) feed: Feed,
    pub(super) reorder: Reorder,
    /// By number; `None` if free.
    pub(super) blocks: Vec<Option<LiveBlock>>,
    pub(super) held_bytes: usize,
    /// The block being processed and its next record.
    pub(super) newest: Option<(usize, usize)>,
    /// An unused block, kept for its memory.
    pub(super) spare: Option<Block>,
    pub(super) counts: FieldCounts,
    pub(super) has_ended: bool,
}

pub(super) struct LiveBlock {
    pub(super) block: Block,
    /// Records not yet returned.
    pub(super) remaining: usize,
}

/// The next entry of a log. The field order is the merge order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Head {
    pub(super) time_us: u64,
    pub(super) log: usize,
    pub(super) line: PendingLine,
    pub(super) slot: usize,
}

impl OpenLog {
    /// The next line in order of time. `None` if it needs the next block, or the log has ended.
    pub(super) fn next_pending(&mut self, logs_open: usize) -> Option<PendingLine> {
        let reorder = &mut self.reorder;
        loop {
            if let Some(line) = reorder.release_due() {
                return Some(line);
            }
            let is_full = reorder.len() * logs_open > MAX_PENDING_LINES
                || self.held_bytes * logs_open > MAX_PENDING_BYTES;
            if is_full && let Some(line) = reorder.release() {
                return Some(line);
            }
            let Some((block, record)) = self.newest else {
                return if self.has_ended { reorder.release() } else { None };
            };
            let live = self.blocks[block].as_ref().expect("the newest block is live until it is taken in");
            let records = &live.block.parsed.records;
            let (time_us, number) = (records[record].time_us, records[record].line);
            reorder.hold(PendingLine { time_us, number, block, record });
            self.newest = (record + 1 < records.len()).then_some((block, record + 1));
        }
    }
}

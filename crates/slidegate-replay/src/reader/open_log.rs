//! A log that is open: its blocks, and its lines that wait to be in order.

use crate::block::{Block, Record};
use crate::format::field::FieldCounts;
use crate::input::pool::Feed;
use crate::reorder::{PendingLine, RecordHandle, Reorder};

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

impl OpenLog {
    /// The next line in order of time. `None` if the next block is needed for it, or the log has
    /// ended.
    #[inline]
    pub(crate) fn next_pending(&mut self, logs_open: usize) -> Option<PendingLine> {
        loop {
            if let Some(pending) = self.reorder.release_due() {
                return Some(pending);
            }
            let is_full = self.reorder.len() > MAX_PENDING_LINES / logs_open
                || self.held_bytes > MAX_PENDING_BYTES / logs_open;
            if is_full && let Some(pending) = self.reorder.release() {
                return Some(pending);
            }
            let Some((block, record)) = self.newest else {
                return if self.has_ended { self.reorder.release() } else { None };
            };
            let live = self.blocks[block].as_ref().expect("the newest block is live until it is taken in");
            let records = &live.block.parsed.records;
            let Record { time_us, line, .. } = records[record];
            self.newest = (record + 1 < records.len()).then_some((block, record + 1));
            let handle = RecordHandle { block: small(block), record: small(record) };
            self.reorder.hold(PendingLine { time_us, number: line, handle });
        }
    }
}

/// Numbers of blocks and of records in a block are far below 2^32.
#[allow(clippy::cast_possible_truncation)]
fn small(number: usize) -> u32 {
    number as u32
}

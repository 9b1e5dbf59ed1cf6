//! Writing a snapshot.

use std::io::{self, Write};

use super::format::{Header, MAGIC, Record, Summed, VERSION, put};
use super::{SavedPolicy, SavedSnapshot};
use crate::quota::Algorithm;
use crate::store::memory::MemoryStore;
use crate::store::memory::shard::Copy;
use crate::time::{Boot, Moment, micros};

/// Records are written when they take this many bytes.
const BLOCK_BYTES: usize = 256 << 10;

/// Copies keys to blocks, and writes these.
#[derive(Debug)]
pub(crate) struct SnapshotWriter<W> {
    out: Summed<W>,
    /// The instant at which all ages are taken.
    begin: Moment,
    next: Cursor,
    /// Records that are not yet written.
    block: Vec<u8>,
    keys: u64,
}

/// The next keys to copy.
#[derive(Debug, Default)]
struct Cursor {
    /// One table per algorithm and shard, then the holds of each shard: so a restored hold finds
    /// its key's usage.
    table: usize,
    /// The lower half of the hash of the first key, by which a table is ordered whatever its size.
    place: u32,
}

impl<W: Write> SnapshotWriter<W> {
    pub(crate) fn new(out: W, memory: &MemoryStore, attachments: &[(&str, &[u8])]) -> io::Result<Self> {
        let begin = memory.clock.moment(memory.clock.now());
        let block = Vec::with_capacity(2 * BLOCK_BYTES);
        let mut writer = Self { out: Summed::new(out), begin, next: Cursor::default(), block, keys: 0 };
        writer.out.write_all(&MAGIC)?;
        writer.out.write_all(&VERSION.to_le_bytes())?;
        let Boot { id, elapsed_us } = memory.clock.boot().unwrap_or_default();
        let attachments = attachments.iter().map(|(name, content)| ((*name).to_owned(), content.to_vec()));
        let header = Header {
            wall_us: begin.wall.as_micros(),
            boot_us: elapsed_us,
            boot_id: id,
            identity_seed: memory.secret.identity_seed(),
            attachments: attachments.collect(),
        };
        put(&header, &mut writer.block);
        writer.write_block()?;
        Ok(writer)
    }

    /// The policies of the keys that are copied next.
    pub(crate) fn policies(&mut self, policies: Vec<SavedPolicy>) {
        put(&Record::Policies(policies), &mut self.block);
    }

    /// Copies some keys. Returns false after the last.
    pub(crate) fn copy(&mut self, memory: &MemoryStore) -> bool {
        let tables = memory.shards.len() * Algorithm::ALL.len();
        let Cursor { table, place } = self.next;
        let holds_of = table.checked_sub(tables);
        let kept = &mut *memory.lock(holds_of.unwrap_or(table / Algorithm::ALL.len()));
        let inline_quotas = &kept.inline_quotas;
        let copy = Copy { from: place, begin: self.begin, secret: &memory.secret, inline_quotas };
        let next = if holds_of.is_some() {
            kept.shard.copy_holds(&copy, &mut self.block)
        } else {
            let algorithm = Algorithm::ALL[table % Algorithm::ALL.len()];
            let (keys, next) = kept.shard.copy(&copy, algorithm, &mut self.block);
            self.keys += keys;
            next
        };
        self.next = match next {
            Some(place) => Cursor { table, place },
            None => Cursor { table: table + 1, place: 0 },
        };
        self.next.table < tables + memory.shards.len()
    }

    /// Writes what was copied, once there is enough.
    pub(crate) fn write_if_full(&mut self) -> io::Result<()> {
        if self.block.len() >= BLOCK_BYTES { self.write_block() } else { Ok(()) }
    }

    fn write_block(&mut self) -> io::Result<()> {
        self.out.write_all(&(self.block.len() as u64).to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }

    /// Completes the snapshot.
    pub(crate) fn end(mut self, memory: &MemoryStore) -> io::Result<SavedSnapshot> {
        self.write_block()?;
        let took_us = micros(memory.clock.now() - self.begin.at);
        self.out.write_all(&took_us.to_le_bytes())?;
        self.out.write_all(&self.out.checksum())?;
        Ok(SavedSnapshot { keys: self.keys, bytes: self.out.bytes })
    }
}

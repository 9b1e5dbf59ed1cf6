//! Writing a snapshot.

use std::io::{self, Write};

use super::section::{self, Kind, MAGIC, PREAMBLE_BYTES, VERSION};
use super::{SavedPolicy, SavedSnapshot};
use crate::quota::Algorithm;
use crate::store::memory::{MemoryStore, shard};
use crate::time::{Boot, Moment};

/// Keys are written when they take this many bytes.
const SECTION_BYTES: usize = 256 << 10;

/// Writes sections.
#[derive(Debug)]
pub(crate) struct SnapshotWriter<W> {
    out: W,
    /// The instant at which all ages are taken.
    begin: Moment,
    /// Keys that are not yet written.
    keys: Vec<u8>,
    /// Holds that are not yet written.
    holds: Vec<u8>,
    sections: u32,
    saved: SavedSnapshot,
}

/// Which keys are copied next.
#[derive(Debug, Default)]
pub(crate) struct Cursor {
    /// Whether all keys are copied, and their holds are next: so a restored hold finds the usage of
    /// its key.
    is_on_holds: bool,
    shard: usize,
    algorithm: usize,
    /// The lower half of the hash of the first key, by which a table is ordered whatever its size.
    place: u32,
}

impl<W: Write> SnapshotWriter<W> {
    pub(crate) fn new(mut out: W, memory: &MemoryStore) -> io::Result<Self> {
        out.write_all(&MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let begin = memory.clock.moment(memory.clock.now());
        let saved = SavedSnapshot { keys: 0, bytes: PREAMBLE_BYTES as u64 };
        let (keys, holds) = (Vec::with_capacity(2 * SECTION_BYTES), Vec::new());
        let mut writer = Self { out, begin, keys, holds, sections: 0, saved };
        let Boot { id, elapsed_us } = memory.clock.boot().unwrap_or_default();
        let mut header = begin.wall.as_micros().to_le_bytes().to_vec();
        header.extend_from_slice(&id);
        header.extend_from_slice(&elapsed_us.to_le_bytes());
        header.extend_from_slice(&memory.secret.identity_seed());
        writer.section(Kind::Header, &header)?;
        Ok(writer)
    }

    pub(crate) fn attachment(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let mut out = Vec::with_capacity(name.len() + content.len() + 2);
        put_text(&mut out, name);
        out.extend_from_slice(content);
        self.section(Kind::Attachment, &out)
    }

    /// The policies of the keys that follow.
    pub(crate) fn policies<'p>(
        &mut self,
        policies: impl ExactSizeIterator<Item = SavedPolicy<'p>>,
    ) -> io::Result<()> {
        self.write_keys()?;
        let mut out = count_of(policies.len()).to_le_bytes().to_vec();
        policies.for_each(|policy| policy.save(&mut out));
        self.section(Kind::Policies, &out)
    }

    /// Copies some keys. Returns false after the last.
    pub(crate) fn copy(&mut self, memory: &MemoryStore, cursor: &mut Cursor) -> bool {
        let kept = &mut *memory.lock(cursor.shard);
        if cursor.is_on_holds {
            let copy = (self.begin, &memory.secret, &kept.inline_quotas);
            let next = kept.shard.copy_holds(cursor.place, copy, &mut self.holds);
            cursor.place = next.unwrap_or(0);
            cursor.shard += usize::from(next.is_none());
            return cursor.shard < memory.shards.len();
        }
        let algorithm = Algorithm::ALL[cursor.algorithm];
        let copy = shard::Copy {
            algorithm,
            from: cursor.place,
            begin: self.begin,
            secret: &memory.secret,
            inline_quotas: &kept.inline_quotas,
        };
        let (keys, next) = kept.shard.copy(&copy, &mut self.keys);
        self.saved.keys += keys;
        cursor.place = next.unwrap_or(0);
        if next.is_none() {
            cursor.algorithm += 1;
        }
        if cursor.algorithm == Algorithm::ALL.len() {
            (cursor.shard, cursor.algorithm) = (cursor.shard + 1, 0);
        }
        if cursor.shard == memory.shards.len() {
            *cursor = Cursor { is_on_holds: true, ..Cursor::default() };
        }
        true
    }

    /// Writes the copied keys once there are enough.
    pub(crate) fn write_if_full(&mut self) -> io::Result<()> {
        if self.keys.len().max(self.holds.len()) >= SECTION_BYTES { self.write_keys() } else { Ok(()) }
    }

    fn write_keys(&mut self) -> io::Result<()> {
        if !self.keys.is_empty() {
            let keys = std::mem::take(&mut self.keys);
            let written = self.section(Kind::Keys, &keys);
            self.keys = keys;
            self.keys.clear();
            written?;
        }
        if self.holds.is_empty() {
            return Ok(());
        }
        let holds = std::mem::take(&mut self.holds);
        self.section(Kind::Holds, &holds)
    }

    /// Completes the snapshot.
    pub(crate) fn end(mut self, memory: &MemoryStore) -> io::Result<SavedSnapshot> {
        self.write_keys()?;
        let mut end = self.saved.keys.to_le_bytes().to_vec();
        let took_us = memory.clock.now() - self.begin.at;
        end.extend_from_slice(&crate::time::micros(took_us).to_le_bytes());
        self.section(Kind::End, &end)?;
        self.out.flush()?;
        Ok(self.saved)
    }

    fn section(&mut self, kind: Kind, content: &[u8]) -> io::Result<()> {
        self.saved.bytes += section::write(&mut self.out, kind, self.sections, content)?;
        self.sections += 1;
        Ok(())
    }
}

/// A text with its length in two bytes; a longer one is cut, which no name is.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..len.into()]);
}

pub(super) fn count_of(len: usize) -> u32 {
    u32::try_from(len).expect("a set has less than 2^32 policies and overrides")
}

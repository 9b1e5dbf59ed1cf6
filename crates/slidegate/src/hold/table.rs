//! Tables: a key's holds as stored in Redis, see docs/redis-layout.md. Numbers are little-endian.

use std::cell::Cell;

use smallvec::SmallVec;

use super::HoldList;
use super::HoldVec;
use super::{Hold, Holds, MAX_HOLDS, Unsettled};

/// The first byte of a table.
pub const TAG: u8 = 0x15;
/// Bytes of a table's header, and of each hold.
pub const HEADER_BYTES: usize = 32;
const HOLD_BYTES: usize = 30;
/// Maximum sum: scripts count to 2^53.
const MAX_SUM: u64 = (1 << 53) - 1;

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Hold {
    fn read(bytes: &[u8; HOLD_BYTES]) -> Self {
        Self {
            id: number(&bytes[..8]),
            until: number(&bytes[8..15]),
            held: number(&bytes[15..22]),
            settled: number(&bytes[22..29]),
            unsettled: if bytes[29] & 1 == 0 { Unsettled::Charge } else { Unsettled::Forget },
            has_ended: bytes[29] & 2 != 0,
        }
    }

    fn bytes(&self) -> [u8; HOLD_BYTES] {
        let mut bytes = [0; HOLD_BYTES];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        for (at, number) in [(8, self.until), (15, self.held), (22, self.settled)] {
            bytes[at..at + 7].copy_from_slice(&number.to_le_bytes()[..7]);
        }
        bytes[29] = u8::from(self.unsettled == Unsettled::Forget) | u8::from(self.has_ended) << 1;
        bytes
    }
}

/// Reads a header into an empty list and the number of holds. `None` if it is not a header.
fn header<L: Default>(header: &[u8]) -> Option<(Holds<L>, usize)> {
    let header: &[u8; HEADER_BYTES] = header.try_into().ok()?;
    let at = |from: usize| number(&header[from..from + 7]);
    let count = usize::from(u16::from_le_bytes([header[29], header[30]]));
    let (sum, earliest, latest, seen) = (at(1), at(8), at(15), at(22));
    let is_valid = header[0] == TAG && count <= MAX_HOLDS && sum <= MAX_SUM;
    let holds = Holds { holds: L::default(), sum, earliest, latest, seen, unlisted: 0 };
    is_valid.then_some((holds, count))
}

impl<L> Holds<L> {
    /// The time of the store's last decision.
    pub fn seen(&self) -> u64 {
        self.seen
    }
}

impl Holds {
    /// Bytes before the first hold of a table.
    pub const HEADER_BYTES: usize = HEADER_BYTES;
    /// Bytes of a hold.
    pub const HOLD_BYTES: usize = HOLD_BYTES;
    /// The first byte of a table.
    pub const TAG: u8 = TAG;

    /// Reads a table, possibly without its list of holds. `None` if it is not a table.
    pub fn read(head: &[u8], list: &[u8]) -> Option<Self> {
        let (mut holds, count) = header::<HoldVec>(head)?;
        let (listed, rest) = list.as_chunks::<HOLD_BYTES>();
        let is_whole = rest.is_empty() && (listed.is_empty() || listed.len() == count);
        holds.holds = listed.iter().map(Hold::read).collect();
        let listed_sum: u64 = holds.holds.iter().map(|hold| hold.held).sum();
        if !is_whole || !listed.is_empty() && listed_sum != holds.sum {
            return None;
        }
        holds.unlisted = count - listed.len();
        Some(holds)
    }
}

/// The holds of a stored table, read in place. Changes are kept beside them until they are written.
#[derive(Debug, Clone, Default)]
pub struct TableList<'v> {
    /// The bytes after the header.
    stored: &'v [u8],
    len: usize,
    /// Changed holds with their places, in order of change.
    changed: SmallVec<[(usize, Hold); 2]>,
    /// All holds, if the list was rebuilt.
    replaced: Option<Vec<Hold>>,
    /// Whether a read went past the end of the table.
    is_cut_off: Cell<bool>,
}

impl<'v> TableList<'v> {
    fn read(&self, at: usize) -> Option<Hold> {
        let hold = self.stored.as_chunks().0.get(at).map(Hold::read);
        self.is_cut_off.set(self.is_cut_off.get() || hold.is_none());
        hold
    }

    fn replace(&mut self, holds: Vec<Hold>) {
        self.changed.clear();
        self.replaced = Some(holds);
    }

    fn changed(&self, at: usize) -> Option<Hold> {
        self.changed.iter().rev().find(|(place, _)| *place == at).map(|(_, hold)| *hold)
    }
}

impl HoldList for TableList<'_> {
    fn len(&self) -> usize {
        self.replaced.as_ref().map_or(self.len, Vec::len)
    }

    fn get(&self, at: usize) -> Hold {
        let nothing =
            Hold { id: 0, until: 0, held: 0, settled: 0, unsettled: Unsettled::Forget, has_ended: true };
        match &self.replaced {
            Some(holds) => holds[at],
            None => self.changed(at).or_else(|| self.read(at)).unwrap_or(nothing),
        }
    }

    fn set(&mut self, at: usize, hold: Hold) {
        match &mut self.replaced {
            Some(holds) => holds[at] = hold,
            None => self.changed.push((at, hold)),
        }
    }

    fn push(&mut self, hold: Hold) {
        if let Some(holds) = &mut self.replaced {
            return holds.push(hold);
        }
        if self.len > 0 && self.changed(self.len - 1).is_none() {
            // Written behind a gap, it would follow holds of zeros.
            self.read(self.len - 1);
        }
        self.changed.push((self.len, hold));
        self.len += 1;
    }

    fn swap_remove(&mut self, at: usize) {
        if let Some(holds) = &mut self.replaced {
            holds.swap_remove(at);
            return;
        }
        let last = self.len - 1;
        if at < last {
            let hold = self.get(last);
            self.changed.push((at, hold));
        }
        self.len = last;
    }

    fn find(&self, id: u64) -> Option<usize> {
        if let Some(holds) = &self.replaced {
            return holds.iter().rposition(|hold| hold.id == id);
        }
        if !self.changed.is_empty() {
            return (0..self.len).rev().find(|at| self.get(*at).id == id);
        }
        let (holds, _) = self.stored.as_chunks::<HOLD_BYTES>();
        let id = id.to_le_bytes();
        let found = holds.iter().take(self.len).rposition(|hold| hold[..8] == id);
        if found.is_none() && self.len > 0 {
            self.read(self.len - 1);
        }
        found
    }

    fn take_until(&mut self, now: u64) -> Vec<Hold> {
        let (taken, left): (Vec<Hold>, Vec<Hold>) = self.iter().partition(|hold| hold.until <= now);
        // Without a change the table stays as it is.
        if !taken.is_empty() {
            self.replace(left);
        }
        taken
    }

    fn move_back(&mut self, by: u64) {
        let moved = |hold: Hold| Hold { until: hold.until.saturating_sub(by), ..hold };
        self.replace(self.iter().map(moved).collect());
    }
}

impl<'v> Holds<TableList<'v>> {
    /// The holds of a stored table, or why it is malformed.
    pub fn of_table(table: &'v [u8]) -> Result<Self, String> {
        let damaged = || format!("damaged: it has {} bytes", table.len());
        let (head, stored) = table.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
        let (mut holds, len) =
            header::<TableList<'v>>(head).ok_or("damaged: its header is not that of a table of holds")?;
        holds.holds.stored = stored;
        holds.holds.len = len;
        Ok(holds)
    }

    /// The header as it is stored.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0] = TAG;
        for (at, number) in [(1, self.sum), (8, self.earliest), (15, self.latest), (22, self.seen)] {
            header[at..at + 7].copy_from_slice(&number.to_le_bytes()[..7]);
        }
        let count = u16::try_from(self.count()).unwrap_or(u16::MAX);
        header[29..31].copy_from_slice(&count.to_le_bytes());
        header
    }

    /// The first holds as they are stored.
    pub fn list(&self, count: usize) -> Vec<u8> {
        let list = &self.holds;
        if list.replaced.is_none() && list.changed.iter().all(|(at, _)| *at >= count) {
            let stored = list.stored.get(..count * HOLD_BYTES);
            list.is_cut_off.set(list.is_cut_off.get() || stored.is_none());
            return stored.unwrap_or_default().to_vec();
        }
        self.iter().take(count).flat_map(|hold| hold.bytes()).collect()
    }

    /// The holds changed in place or added, with their offsets in the table.
    pub fn patches(&self) -> impl Iterator<Item = (usize, [u8; HOLD_BYTES])> + '_ {
        self.holds.changed.iter().map(|(at, hold)| (HEADER_BYTES + at * HOLD_BYTES, hold.bytes()))
    }

    /// Whether a hold was added, changed or removed.
    pub fn is_changed(&self) -> bool {
        !self.holds.changed.is_empty() || self.is_replaced()
    }

    /// Whether the list was rebuilt, so that the whole table must be written.
    pub fn is_replaced(&self) -> bool {
        self.holds.replaced.is_some()
    }

    /// Whether a read went past the end of the table.
    pub fn is_cut_off(&self) -> bool {
        self.holds.is_cut_off.get()
    }

    /// Whether the sum can be stored. The holds of a damaged table may sum up to more.
    pub fn is_countable(&self) -> bool {
        self.sum <= MAX_SUM
    }

    /// The start time of an empty table.
    pub fn begin(&mut self, now: u64) {
        self.seen = now;
    }
}

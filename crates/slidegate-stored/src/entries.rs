//! The entries of a log in a stored value: a header, which has the newest, and a ring.
//!
//! The stored bytes are not changed. Changes are kept beside them until they are written: at most
//! one entry is appended, because all requests of a call share one time.

use std::cell::Cell;

use slidegate::Quota;
use slidegate::internal::{Entries, Log, LogReply, QuotaFields, SECOND_US, SlidingLog};

use crate::quota_bytes::WireForm;
use crate::state::{Before, Numbers, Stored, StoredAs, Unusable};
use crate::write::{Bytes, Fields, Reader, Write, number};

/// Bytes of the header.
const HEADER: usize = 48;
/// The first byte.
pub(super) const TAG: u8 = 0x14;
/// The first byte of a truncated log.
pub(super) const CUT_OFF: u8 = 0x1f;
/// Timestamps in the ring are relative to a time modulo 2 to this.
const SHIFT_BITS: u32 = 48;
/// The most bits of a step: those of the longest window.
const MOST_STEP_BITS: u8 = 45;

/// The entries of one value.
#[derive(Debug, Clone, Default)]
pub(super) struct StoredEntries<'v> {
    /// The bytes after the header.
    ring: &'v [u8],
    /// Widths of the fields in the ring, as they are stored: 16 times the bytes of a timestamp, plus
    /// those of a cost.
    widths: Widths,
    /// Place of the oldest entry in the ring.
    head: u16,
    /// Number of entries that fit in the ring.
    room: u16,
    /// Number of entries, with the newest.
    len: u16,
    newest_cost: u64,
    /// Timestamps in the ring are low bytes of time plus this.
    shift: u64,
    /// The time that they are relative to: the newest timestamp before any charge.
    anchor: u64,
    /// The second at which the key expires.
    expires_s: u64,
    ahead_bits: u8,
    /// The former newest entry, to be written to the ring.
    pushed: Option<(u64, u64)>,
    /// The reduced cost of the ring's oldest entry, after a partial refund.
    reduced: Option<u64>,
    /// Whether the ring is complete.
    is_whole: bool,
    /// Whether a read went past the end of an incomplete ring.
    is_cut_off: Cell<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Widths {
    timestamp: u8,
    cost: u8,
}

impl Default for Widths {
    fn default() -> Self {
        Self { timestamp: 4, cost: 0 }
    }
}

impl Widths {
    fn entry(self) -> usize {
        usize::from(self.timestamp) + usize::from(self.cost)
    }

    /// The bits that a timestamp keeps.
    fn mask(self) -> u64 {
        if self.timestamp == 4 { u64::from(u32::MAX) } else { (1 << SHIFT_BITS) - 1 }
    }

    /// An entry with its timestamp already shifted.
    fn bytes(self, shifted: u64, cost: u64) -> Bytes {
        let timestamp = Bytes::default().with(shifted & self.mask(), self.timestamp.into());
        timestamp.with(cost, self.cost.into())
    }
}

/// Bytes of a cost in the ring; 0 if it is 1.
fn cost_bytes(cost: u64) -> u8 {
    match cost {
        0..=1 => 0,
        2..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x1_0000_0000 => 4,
        _ => 7,
    }
}

impl StoredEntries<'_> {
    /// Entries in the ring, from the oldest on.
    fn in_ring(&self) -> u16 {
        self.len.saturating_sub(1).saturating_sub(u16::from(self.pushed.is_some()))
    }

    /// Where an entry of the ring begins, counted from the oldest.
    fn offset(&self, at: u16) -> usize {
        let place = (usize::from(self.head) + usize::from(at)) % usize::from(self.room).max(1);
        place * self.widths.entry()
    }

    /// The shifted timestamp and the cost of an entry in the ring, without what does not fit.
    fn read(&self, at: u16) -> Option<(u64, u64)> {
        let from = self.offset(at);
        let bytes = self.ring.get(from..from + self.widths.entry()).filter(|_| self.is_whole);
        let Some(bytes) = bytes else {
            self.is_cut_off.set(true);
            return None;
        };
        let (low, cost) = bytes.split_at(self.widths.timestamp.into());
        Some((number(low), if cost.is_empty() { 1 } else { number(cost) }))
    }

    /// The full timestamp of an entry in the ring, plus the shift.
    fn shifted(&self, low: u64) -> u64 {
        let newest = self.anchor.wrapping_add(self.shift);
        newest.wrapping_sub(newest.wrapping_sub(low) & self.widths.mask())
    }

    /// The ring of a new value with these widths, in entry order.
    fn rebuilt(&self, widths: Widths, value: &mut Bytes) -> Result<(), Unusable> {
        for at in 0..self.in_ring() {
            let (low, cost) = self.read(at).ok_or_else(Unusable::cut_off)?;
            let cost = self.reduced.filter(|_| at == 0).unwrap_or(cost);
            value.extend(&widths.bytes(self.shifted(low), cost));
        }
        Ok(())
    }

    fn header(&self, log: &Log<Self>, ring: RingFields, expires_s: u64) -> Bytes {
        let (used, newest, oldest, _) = log.parts();
        let RingFields { widths, head, len, room } = ring;
        let widths = u64::from(widths.timestamp) * 16 + u64::from(widths.cost);
        let header = Bytes::default().with(TAG.into(), 1).with(self.ahead_bits.into(), 1);
        let header = header.with(used, 7).with(newest, 7).with(oldest, 7).with(widths, 1);
        let header = header.with(head.into(), 2).with(len.into(), 2).with(room.into(), 2);
        header.with(self.newest_cost, 7).with(self.shift, 6).with(expires_s, 5)
    }
}

/// The ring's fields in a header.
#[derive(Clone, Copy)]
struct RingFields {
    widths: Widths,
    head: u16,
    len: u16,
    room: u16,
}

impl Entries for StoredEntries<'_> {
    fn len(&self) -> u16 {
        self.len
    }

    fn ahead_bits(&self) -> u8 {
        self.ahead_bits
    }

    fn set_ahead_bits(&mut self, bits: u8) {
        self.ahead_bits = bits;
    }

    fn timestamp(&self, at: u16, newest: u64) -> u64 {
        if at >= self.in_ring() {
            return self.pushed.filter(|_| at == self.in_ring()).map_or(newest, |(timestamp, _)| timestamp);
        }
        let Some((low, _)) = self.read(at) else { return newest };
        let anchor = self.anchor;
        anchor.saturating_sub(anchor.wrapping_add(self.shift).wrapping_sub(low) & self.widths.mask())
    }

    fn cost(&self, at: u16) -> u64 {
        if at >= self.in_ring() {
            return self.pushed.filter(|_| at == self.in_ring()).map_or(self.newest_cost, |(_, cost)| cost);
        }
        self.reduced.filter(|_| at == 0).or_else(|| self.read(at).map(|(_, cost)| cost)).unwrap_or(1)
    }

    fn clear(&mut self) {
        (self.head, self.len, self.pushed, self.reduced) = (0, 0, None, None);
    }

    fn drop_oldest(&mut self) {
        self.reduced = None;
        if self.in_ring() > 0 {
            self.head = self.head.checked_add(1).filter(|next| *next < self.room).unwrap_or(0);
        }
        self.len = self.len.saturating_sub(1);
    }

    /// A charged value is written before it is refunded, so nothing is pushed.
    fn reduce_oldest(&mut self, cost: u64) {
        if self.in_ring() > 0 { self.reduced = Some(cost) } else { self.newest_cost = cost }
    }

    fn push(&mut self, _quota: &Quota, newest: u64, _timestamp: u64, cost: u64) {
        if self.len > 0 {
            self.pushed = Some((newest, self.newest_cost));
        }
        self.newest_cost = cost;
        self.len += 1;
    }

    fn add_to_newest(&mut self, _newest: u64, cost: u64) {
        self.newest_cost = self.newest_cost.saturating_add(cost);
    }

    fn move_newest(&mut self, _quota: &Quota, _newest: u64, _timestamp: u64, cost: u64) {
        self.newest_cost = self.newest_cost.saturating_add(cost);
    }

    fn move_back(&mut self, _newest: u64, by: u64) {
        self.anchor -= by;
        self.shift = self.shift.wrapping_add(by) & ((1 << SHIFT_BITS) - 1);
    }

    fn heap_bytes(&self) -> usize {
        0
    }

    fn most_heap_bytes(_quota: &Quota, _entries: u64, _cost: u64) -> usize {
        0
    }
}

impl WireForm for SlidingLog {
    const LETTER: &'static str = "L";
    /// The log stays in the store.
    type Reply = LogReply;

    /// The step of its times, and its bits; the maximum number of entries, and how many of them the limit can
    /// fill.
    fn own_fields(quota: &Quota) -> Bytes {
        let most = u64::from(quota.max_entries());
        let steps = Bytes::default().with(quota.step_us(), 6).with(quota.step_bits().into(), 1);
        steps.with(most, 2).with(quota.limit().min(most), 2)
    }

    fn read_own_fields(common: QuotaFields, own: &mut Reader<'_>) -> Option<Quota> {
        let (step_us, _, most, _) = (own.number(6)?, own.byte()?, own.small()?, own.small()?);
        let slots = u16::try_from(most).ok()?.checked_sub(u16::from(step_us > 1))?;
        QuotaFields { slots, ..common }.quota().filter(|quota| quota.step_us() == step_us && slots < u16::MAX)
    }

    fn of_numbers(_quota: &Quota, _settled: u64, numbers: &[u64]) -> Result<LogReply, String> {
        let ([used, newest, oldest], entries) = match numbers.split_first_chunk() {
            Some((sums, entries)) if entries.len().is_multiple_of(2) => (*sums, entries),
            _ => return Err(format!("{} numbers instead of 3 and pairs for a key", numbers.len())),
        };
        let entries = entries.chunks_exact(2).map(|entry| (entry[0], entry[1])).collect();
        Ok(LogReply::new(used, newest, oldest, entries))
    }
}

impl StoredAs for SlidingLog {
    type Value<'v> = Log<StoredEntries<'v>>;
}

impl<'v> Stored<'v> for Log<StoredEntries<'v>> {
    const TAGS: &'static [u8] = &[TAG];

    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)> {
        let (header, ring) = value.split_at_checked(HEADER)?;
        let mut fields = Fields(header);
        let (tag, ahead_bits) = (fields.byte(), fields.byte());
        let (used, newest, oldest) = (fields.next(7), fields.next(7), fields.next(7));
        let (widths, head, len, room) = (fields.byte(), fields.small(), fields.small(), fields.small());
        let (newest_cost, shift, expires_s) = (fields.next(7), fields.next(6), fields.next(5));
        if tag != TAG || ahead_bits > MOST_STEP_BITS {
            return None;
        }
        let widths = Widths { timestamp: widths / 16, cost: widths % 16 };
        let are_widths = matches!(widths.timestamp, 4 | 6) && matches!(widths.cost, 0 | 1 | 2 | 4 | 7);
        let is_whole = are_widths
            && len <= room
            && (head < room || room == 0)
            && ring.len() == usize::from(room) * widths.entry();
        let entries = StoredEntries {
            ring,
            widths: if are_widths { widths } else { Widths::default() },
            head,
            room,
            len: len.saturating_add(1),
            newest_cost,
            shift,
            anchor: newest,
            expires_s,
            ahead_bits,
            pushed: None,
            reduced: None,
            is_whole,
            is_cut_off: Cell::new(false),
        };
        let mut log = Self::from_parts(used, newest, oldest, entries);
        if used == 0 {
            log.clear();
        }
        Some((log, None))
    }

    fn moment(&self) -> u64 {
        self.parts().1
    }

    /// Another quota's steps may have changed the newest timestamp as well.
    fn has_moved(&self, moment: u64) -> bool {
        self.parts().3.anchor < moment
    }

    fn counts_until(&self, quota: &Quota, _settled: u64) -> u64 {
        self.parts().1 + quota.window_us()
    }

    fn numbers(&self, numbers: Numbers) -> Numbers {
        let (used, newest, oldest, _) = self.parts();
        numbers.with(used).with(newest).with(oldest)
    }

    fn oldest(&self, needed: u64) -> Vec<(u64, u64)> {
        let mut sum = 0u64;
        let is_needed = |(_, cost): &(u64, u64)| {
            let is_needed = sum < needed;
            sum = sum.saturating_add(*cost);
            is_needed
        };
        self.entries().take_while(is_needed).collect()
    }

    fn is_cut_off(&self) -> bool {
        self.parts().3.is_cut_off.get()
    }

    fn write(&self, quota: &Quota, now: u64, before: &Before) -> Result<Option<Write>, Unusable> {
        let (_, newest, _, entries) = self.parts();
        let mut widths = entries.widths;
        if quota.window_us() + quota.step_us() >= 1 << 32 {
            widths.timestamp = 6;
        }
        if let Some((_, cost)) = entries.pushed {
            widths.cost = widths.cost.max(cost_bytes(cost));
        }
        let in_ring = entries.in_ring();
        let len = in_ring + u16::from(entries.pushed.is_some());
        let run =
            entries.pushed.map(|(timestamp, cost)| widths.bytes(timestamp.wrapping_add(entries.shift), cost));
        let window = quota.window_us();
        let until = newest.max(now) + window;
        // Two windows, so that most charges in place need not renew it, and four seconds: a charge may
        // count up to a step longer than a window, and a second longer if the clock was set back.
        let ttl_ms = (until - now).max((until - now + window).min(2 * window)) / 1000 + 4000;
        let (expire_at_ms, expires_s) = (now / 1000 + ttl_ms, (now + ttl_ms * 1000) / SECOND_US);
        if before.length < HEADER || widths != entries.widths || len > entries.room {
            // Room for twice as many entries plus three, but no more than the limit can fill besides
            // the newest.
            let most = quota.limit().min(quota.max_entries().into()).saturating_sub(1);
            let most = u16::try_from(most).unwrap_or(u16::MAX);
            let room = (len.saturating_mul(2).saturating_add(3)).min(most).max(len);
            let ring = RingFields { widths, head: 0, len, room };
            let mut value = entries.header(self, ring, expires_s);
            entries.rebuilt(widths, &mut value)?;
            value.extend(&run.unwrap_or_default());
            value.fill_up_to(HEADER + usize::from(room) * widths.entry());
            return Ok(Some(Write::Value { bytes: value, expire_at_ms }));
        }
        if run.is_some() && !entries.is_whole {
            // Written past its end, the gap would be filled with zeros.
            let head = Bytes::default().with(CUT_OFF.into(), 1);
            let mark = Write::Patch { head, entry: None, expire_at_ms: None };
            return Err(Unusable { write: Some(Box::new(mark)), ..Unusable::cut_off() });
        }
        let entry = match entries.reduced {
            Some(cost) => {
                let at = HEADER + entries.offset(0) + usize::from(widths.timestamp);
                Some((at, Bytes::default().with(cost, widths.cost.into())))
            }
            None => run.map(|run| (HEADER + entries.offset(in_ring), run)),
        };
        // The stored second is rounded down. One that is too short loses usage. It is too long after the window was shortened or the clock
        // was set back.
        let stored_until = entries.expires_s * SECOND_US;
        let renews = until > stored_until || stored_until + SECOND_US > now + 2 * window + 5 * SECOND_US;
        let expires_s = if renews { expires_s } else { entries.expires_s };
        let ring = RingFields { widths, head: entries.head, len, room: entries.room };
        let head = entries.header(self, ring, expires_s);
        Ok(Some(Write::Patch { head, entry, expire_at_ms: renews.then_some(expire_at_ms) }))
    }
}

//! The entries of a sliding log: what the algorithm asks of them, and how they lie in memory.
//!
//! In memory they are packed in a ring whose fields are as narrow as the window and the largest cost
//! allow: 4 to 14 bytes per charge, usually 4. The first five are stored next to the key.

use std::fmt::Debug;

use super::ring::{Ring, Widths, add, array, cost_bytes, timestamp_bytes};
use crate::quota::Quota;

/// The entries of a log, oldest first, each a timestamp in microseconds and a cost.
///
/// `newest` is the timestamp of the newest entry before the call; implementations may keep the
/// others relative to it.
#[allow(clippy::len_without_is_empty)] // nothing asks
pub trait Entries: Default + Clone + Debug {
    /// Number of entries.
    fn len(&self) -> u16;

    /// Bits of the step to which the newest timestamp was rounded up. It may be that far ahead of
    /// the time of its charge.
    fn ahead_bits(&self) -> u8;

    /// Sets how far the newest entry is ahead of the clock.
    fn set_ahead_bits(&mut self, bits: u8);

    /// The timestamp of an entry, counted from the oldest.
    fn timestamp(&self, at: u16, newest: u64) -> u64;

    /// The cost of an entry, counted from the oldest.
    fn cost(&self, at: u16) -> u64;

    /// Removes all.
    fn clear(&mut self);

    /// Removes the oldest, which is not the only one.
    fn drop_oldest(&mut self);

    /// Gives the oldest a lower cost.
    fn reduce_oldest(&mut self, cost: u64);

    /// Appends an entry.
    fn push(&mut self, quota: &Quota, newest: u64, timestamp: u64, cost: u64);

    /// Adds to the cost of the newest.
    fn add_to_newest(&mut self, newest: u64, cost: u64);

    /// Gives the newest this timestamp and adds to its cost.
    fn move_newest(&mut self, quota: &Quota, newest: u64, timestamp: u64, cost: u64);

    /// Makes all timestamps earlier by so many microseconds.
    fn move_back(&mut self, newest: u64, by: u64);

    /// Bytes that are on the heap.
    fn heap_bytes(&self) -> usize;

    /// Maximum heap bytes for this many entries of at most this cost.
    fn most_heap_bytes(quota: &Quota, entries: u64, cost: u64) -> usize;
}

/// 32 bytes, plus the ring if it is larger than 23 bytes.
#[derive(Debug, Clone, Default)]
pub struct PackedEntries {
    /// The entries, oldest at `head`: timestamp, then cost, little-endian.
    pub(super) ring: Ring,
    head: u16,
    /// Number of entries.
    len: u16,
    /// Number of entries that fit in the ring.
    pub(super) capacity: u16,
    pub(super) widths: Widths,
    /// Bits of the step to which the newest timestamp was rounded up. It lies here because a log has
    /// no other room for it.
    ahead_bits: u8,
}

impl Entries for PackedEntries {
    #[inline(always)]
    fn len(&self) -> u16 {
        self.len
    }

    #[inline(always)]
    fn ahead_bits(&self) -> u8 {
        self.ahead_bits
    }

    /// Sets how far the newest entry is ahead of the clock.
    #[inline(always)]
    fn set_ahead_bits(&mut self, bits: u8) {
        self.ahead_bits = bits;
    }

    fn timestamp(&self, at: u16, newest: u64) -> u64 {
        let bytes = &self.ring.bytes()[self.offset(at)..];
        let low = u64::from(u32::from_le_bytes(array(bytes)));
        let (low, mask) = if self.widths.timestamp() == 4 {
            (low, u64::from(u32::MAX))
        } else {
            (low | u64::from(u16::from_le_bytes(array(&bytes[4..]))) << 32, (1 << 48) - 1)
        };
        // A clock that stepped back to the epoch would put old entries before it.
        newest.saturating_sub(newest.wrapping_sub(low) & mask)
    }

    #[inline]
    fn cost(&self, at: u16) -> u64 {
        let cost_bytes = self.widths.cost();
        if cost_bytes == 0 {
            return 1;
        }
        let bytes = &self.ring.bytes()[self.offset(at) + usize::from(self.widths.timestamp())..];
        match cost_bytes {
            1 => u64::from(bytes[0]),
            2 => u64::from(u16::from_le_bytes(array(bytes))),
            4 => u64::from(u32::from_le_bytes(array(bytes))),
            _ => u64::from_le_bytes(array(bytes)),
        }
    }

    #[inline]
    fn clear(&mut self) {
        self.head = 0;
        self.len = 0;
    }

    #[inline]
    fn drop_oldest(&mut self) {
        self.head = if self.head + 1 == self.capacity { 0 } else { self.head + 1 };
        self.len -= 1;
    }

    fn reduce_oldest(&mut self, cost: u64) {
        self.write_cost(0, cost);
    }

    #[inline]
    fn push(&mut self, quota: &Quota, newest: u64, timestamp: u64, cost: u64) {
        let timestamp_bytes = timestamp_bytes(quota).max(self.widths.timestamp());
        let cost_bytes = cost_bytes(cost).max(self.widths.cost());
        let widths = Widths::new(timestamp_bytes, cost_bytes);
        if self.len == self.capacity || widths != self.widths {
            self.grow(quota, newest, widths);
        }
        self.write_timestamp(self.len, timestamp);
        self.write_cost(self.len, cost);
        self.len += 1;
    }

    #[inline(always)]
    fn add_to_newest(&mut self, newest: u64, cost: u64) {
        let offset = self.offset(self.len - 1) + usize::from(self.widths.timestamp());
        let field = &mut self.ring.bytes_mut()[offset..];
        let fitted = match self.widths.cost() {
            0 => false,
            1 => add::<1>(field, cost),
            2 => add::<2>(field, cost),
            4 => add::<4>(field, cost),
            _ => add::<8>(field, cost),
        };
        if !fitted {
            self.add_and_widen(newest, cost);
        }
    }

    fn move_newest(&mut self, quota: &Quota, newest: u64, timestamp: u64, cost: u64) {
        let timestamp_bytes = timestamp_bytes(quota).max(self.widths.timestamp());
        let widths = Widths::new(timestamp_bytes, self.widths.cost());
        if widths != self.widths {
            self.rebuild(newest, self.capacity, widths);
        }
        self.write_timestamp(self.len - 1, timestamp);
        self.add_to_newest(timestamp, cost);
    }

    fn move_back(&mut self, newest: u64, by: u64) {
        for at in 0..self.len {
            self.write_timestamp(at, self.timestamp(at, newest).wrapping_sub(by));
        }
    }

    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        match &self.ring {
            Ring::Inline(_) => 0,
            Ring::Heap(bytes) => bytes.len(),
        }
    }

    fn most_heap_bytes(quota: &Quota, entries: u64, cost: u64) -> usize {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX).min(quota.max_entries().into());
        let bytes = entries * Widths::new(timestamp_bytes(quota), cost_bytes(cost.max(1))).entry();
        if bytes <= Ring::INLINE_BYTES { 0 } else { bytes }
    }
}

impl PackedEntries {
    /// No entries, and a ring for these: each a distance and a cost, the oldest and the newest so many
    /// microseconds apart. `None` if no log can have them.
    pub(super) fn with_room(quota: &Quota, span_us: u64, entries: &[(u64, u64)]) -> Option<Self> {
        let len = u16::try_from(entries.len()).ok()?;
        let timestamp_bytes = match span_us {
            0..0x1_0000_0000 => timestamp_bytes(quota),
            0x1_0000_0000..0x1_0000_0000_0000 => 6,
            _ => return None,
        };
        let cost_bytes = entries.iter().map(|(_, cost)| cost_bytes(*cost)).max()?;
        let widths = Widths::new(timestamp_bytes, cost_bytes);
        let capacity = len.max(widths.inline_entries());
        let ring = Ring::new(usize::from(capacity) * widths.entry());
        Some(Self { ring, capacity, widths, ..Self::default() })
    }

    #[cold]
    fn add_and_widen(&mut self, newest: u64, cost: u64) {
        let cost = self.cost(self.len - 1) + cost;
        self.rebuild(newest, self.capacity, Widths::new(self.widths.timestamp(), cost_bytes(cost)));
        self.write_cost(self.len - 1, cost);
    }

    /// Makes room for one more entry of these widths. The ring starts with what fits next to the
    /// key, then doubles, up to the number of entries that the limit can fill.
    #[cold]
    fn grow(&mut self, quota: &Quota, newest: u64, widths: Widths) {
        let most = quota.max_entries();
        let fillable = u16::try_from(quota.limit()).unwrap_or(most).min(most);
        let inline = widths.inline_entries();
        let needed = self.len + 1;
        let capacity = if needed <= inline {
            inline
        } else if needed <= self.capacity {
            self.capacity
        } else if needed <= fillable {
            (self.capacity * 2).clamp(needed, fillable)
        } else {
            self.capacity.saturating_mul(2).min(most).max(needed)
        };
        self.rebuild(newest, capacity, widths);
    }

    /// Copies the entries to a ring of another size or other widths.
    #[cold]
    fn rebuild(&mut self, newest: u64, capacity: u16, widths: Widths) {
        let ring = Ring::new(usize::from(capacity) * widths.entry());
        let Self { len, ahead_bits, .. } = *self;
        let mut next = Self { ring, head: 0, len, capacity, widths, ahead_bits };
        for at in 0..self.len {
            next.write_timestamp(at, self.timestamp(at, newest));
            next.write_cost(at, self.cost(at));
        }
        *self = next;
    }

    /// Offset in the ring of an entry, counted from the oldest.
    #[inline]
    fn offset(&self, at: u16) -> usize {
        let at = u32::from(self.head) + u32::from(at);
        let capacity = u32::from(self.capacity);
        let at = if at >= capacity { at - capacity } else { at };
        at as usize * self.widths.entry()
    }

    #[inline]
    fn write_timestamp(&mut self, at: u16, timestamp: u64) {
        let (offset, timestamp_bytes) = (self.offset(at), self.widths.timestamp());
        let bytes = &mut self.ring.bytes_mut()[offset..];
        let timestamp = timestamp.to_le_bytes();
        // By width, because a copy of variable length is a function call.
        match timestamp_bytes {
            4 => bytes[..4].copy_from_slice(&timestamp[..4]),
            _ => bytes[..6].copy_from_slice(&timestamp[..6]),
        }
    }

    /// Writes a cost. The field must be wide enough.
    #[inline]
    fn write_cost(&mut self, at: u16, cost: u64) {
        let cost_bytes = self.widths.cost();
        debug_assert!(super::ring::cost_bytes(cost) <= cost_bytes, "a cost is cut");
        let offset = self.offset(at) + usize::from(self.widths.timestamp());
        let bytes = &mut self.ring.bytes_mut()[offset..];
        let cost = cost.to_le_bytes();
        match cost_bytes {
            0 => {}
            1 => bytes[0] = cost[0],
            2 => bytes[..2].copy_from_slice(&cost[..2]),
            4 => bytes[..4].copy_from_slice(&cost[..4]),
            _ => bytes[..8].copy_from_slice(&cost),
        }
    }
}

//! The memory of a sliding log: the bytes of its entries, and how wide their fields are.

use crate::quota::Quota;

/// The bytes of the entries. A few fit in the table's slot, so that a key with few charges needs
/// one memory access.
#[derive(Debug, Clone)]
pub(super) enum Ring {
    Inline([u8; Self::INLINE_BYTES]),
    Heap(Box<[u8]>),
}

impl Ring {
    /// The most that fits without making the table's slot larger.
    pub(super) const INLINE_BYTES: usize = 23;

    pub(super) fn new(bytes: usize) -> Self {
        if bytes <= Self::INLINE_BYTES {
            Self::default()
        } else {
            Self::Heap(vec![0; bytes].into_boxed_slice())
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Heap(bytes) => bytes,
        }
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Inline(bytes) => bytes,
            Self::Heap(bytes) => bytes,
        }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::Inline([0; Self::INLINE_BYTES])
    }
}

/// Widths of the fields in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Widths(u8);

impl Widths {
    pub(super) fn new(timestamp: u8, cost: u8) -> Self {
        Self(timestamp << 4 | cost)
    }

    /// Bytes of a timestamp: its low 4 or 6. The rest follows from `newest`, because all entries
    /// are within one window of it.
    #[inline]
    pub(super) fn timestamp(self) -> u8 {
        self.0 >> 4
    }

    /// Bytes of a cost: 0 (every cost is 1), 1, 2, 4 or 8.
    #[inline]
    pub(super) fn cost(self) -> u8 {
        self.0 & 0xF
    }

    /// Bytes of an entry.
    #[inline]
    pub(super) fn entry(self) -> usize {
        usize::from(self.timestamp() + self.cost())
    }

    /// Entries that fit next to the key.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // at most 23
    pub(super) fn inline_entries(self) -> u16 {
        (Ring::INLINE_BYTES / self.entry()) as u16
    }
}

/// Bytes that distinguish all timestamps of a log, which span one window and one step.
pub(super) fn timestamp_bytes(quota: &Quota) -> u8 {
    if quota.window_us() + quota.step_us() < 1 << 32 { 4 } else { 6 }
}

/// Bytes of a cost in the ring.
pub(super) fn cost_bytes(cost: u64) -> u8 {
    match cost {
        1 => 0,
        0..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x1_0000_0000 => 4,
        _ => 8,
    }
}

/// Adds to a field of `N` bytes. Returns whether the sum fits.
#[inline]
pub(super) fn add<const BYTES: usize>(field: &mut [u8], cost: u64) -> bool {
    let field = field.first_chunk_mut::<BYTES>().expect("an entry has all its bytes");
    let mut sum = [0; 8];
    sum[..BYTES].copy_from_slice(field);
    let sum = u64::from_le_bytes(sum) + cost;
    let fits = BYTES == 8 || sum >> (8 * BYTES) == 0;
    if fits {
        field.copy_from_slice(&sum.to_le_bytes()[..BYTES]);
    }
    fits
}

/// The first `N` bytes of a field.
#[inline]
pub(super) fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("an entry has all its bytes")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// One bit too few, and an old charge is taken for a new one.
    #[test]
    fn four_bytes_hold_timestamps_up_to_a_span_of_two_to_the_32_microseconds() {
        let of = |window_us| timestamp_bytes(&Quota::new(1, Duration::from_micros(window_us)).unwrap());
        assert_eq!((of((1 << 32) - 2), of((1 << 32) - 1), of(1 << 32)), (4, 6, 6));
    }

    /// Every entry of every key pays for a field that is too wide.
    #[test]
    fn costs_take_the_fewest_bytes_that_hold_them() {
        let costs = [1, 0, 2, 0xFF, 0x100, 0xFFFF, 0x1_0000, 0xFFFF_FFFF, 0x1_0000_0000, u64::MAX];
        assert_eq!(costs.map(cost_bytes), [0, 1, 1, 1, 2, 2, 4, 4, 8, 8]);
    }
}

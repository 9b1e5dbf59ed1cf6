//! Saved states: bytes in which the usage of a key outlives the process. docs/snapshot-format.md
//! has every one of them.
//!
//! Instants are saved as ages, because the clock of the next process starts elsewhere. All numbers
//! are little-endian.

use crate::quota::Quota;

/// A state that can be saved.
pub(crate) trait SavedState: Sized {
    /// Appends the state to a snapshot.
    fn save(&self, ages: Ages, out: &mut Vec<u8>);

    /// Reads what [`save`](Self::save) wrote, under the quota of then. `None` if that cannot have
    /// been written. `now` is the time of the algorithm.
    fn load(input: &mut Input<'_>, ages: Ages, quota: &Quota, now: u64) -> Option<Self>;
}

/// Converts instants to ages at one instant, and back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ages {
    /// The instant in microseconds since the epoch, by the clock of the states.
    pub(crate) at_us: u64,
}

impl Ages {
    /// Microseconds since `at_us`; negative if it is later.
    pub(crate) fn of(self, at_us: u64) -> i64 {
        self.at_us.wrapping_sub(at_us).cast_signed()
    }

    /// The instant of this age; at least 1, because 0 stands for never.
    pub(crate) fn at(self, age_us: i64) -> u64 {
        let later = age_us.unsigned_abs();
        if age_us < 0 { self.at_us.saturating_add(later) } else { self.at_us.saturating_sub(later).max(1) }
    }
}

/// The bytes that are yet to be read.
#[derive(Debug)]
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next bytes, if there are as many.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
}

//! Saved states: bytes in which the usage of a key outlives the process. docs/snapshot-format.md
//! has every one of them.
//!
//! Instants are saved as ages, because the clock of the next process starts elsewhere. All numbers
//! are little-endian.

use crate::hold::{Hold, Holds, Unsettled};
use crate::quota::Quota;

/// A state that can be saved.
pub(crate) trait SavedState: Sized {
    /// Appends the state to a snapshot.
    fn save(&self, ages: Ages, out: &mut Vec<u8>);

    /// Reads what [`save`](Self::save) wrote, under the quota of then. `None` if that cannot have
    /// been written. `now` is the time of the algorithm.
    fn load(input: &mut Input<'_>, ages: Ages, quota: &Quota, now: u64) -> Option<Self>;
}

impl Holds {
    /// Appends the holds to a snapshot. The ages are by elapsed time.
    pub(crate) fn save(&self, ages: Ages, out: &mut Vec<u8>) {
        // A table has at most 1024.
        let count = u16::try_from(self.iter().len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_le_bytes());
        for hold in self.iter().take(count.into()) {
            out.extend_from_slice(&hold.id.to_le_bytes());
            out.extend_from_slice(&ages.of(hold.until).to_le_bytes());
            out.extend_from_slice(&hold.held.to_le_bytes());
            out.extend_from_slice(&hold.settled.to_le_bytes());
            let flags = u8::from(hold.unsettled == Unsettled::Forget) | u8::from(hold.has_ended) << 1;
            out.push(flags);
        }
    }

    /// Reads what [`save`](Self::save) wrote. `None` if that cannot have been written.
    pub(crate) fn load(input: &mut Input<'_>, ages: Ages, now: u64) -> Option<Self> {
        let mut holds = Self::default();
        holds.arrive(now, 0);
        for _ in 0..input.u16()? {
            let (id, until) = (input.u64()?, ages.at(input.i64()?));
            let (held, settled, flags) = (input.u64()?, input.u64()?, input.u8()?);
            let unsettled = if flags & 1 == 0 { Unsettled::Charge } else { Unsettled::Forget };
            let has_ended = flags & 2 != 0;
            holds.restore(Hold { id, until, held, settled, unsettled, has_ended })?;
        }
        Some(holds)
    }
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
        self.at_us.saturating_add_signed(age_us.saturating_neg()).max(1)
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

//! One request, as its process writes it to standard output, and the clock that all processes share.

use rustix::time::{ClockId, clock_gettime};

/// Bytes of a record.
pub(crate) const LENGTH: usize = 24;

/// How a request was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Denied,
    Allowed,
    /// Not decided: Redis failed or was too slow.
    Failed,
}

/// A request. Of cost 0, it is none: `received` is the CPU time of its process so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record {
    /// In nanoseconds of the machine's monotonic clock, as `received`.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) cost: u64,
    pub(crate) outcome: Outcome,
}

impl Record {
    pub(crate) fn bytes(self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[..8].copy_from_slice(&self.sent.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.received.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.cost * 4 + self.outcome as u64).to_le_bytes());
        bytes
    }

    pub(crate) fn read(bytes: &[u8; LENGTH]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let outcome = match word(16) % 4 {
            0 => Outcome::Denied,
            1 => Outcome::Allowed,
            _ => Outcome::Failed,
        };
        Self { sent: word(0), received: word(8), cost: word(16) / 4, outcome }
    }
}

/// Nanoseconds of the monotonic clock, which is the same in all processes of a machine.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

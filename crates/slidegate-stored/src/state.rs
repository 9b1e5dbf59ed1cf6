//! States: read from stored values, written to them, and replied.

use slidegate::internal::{State, for_algorithm};
use slidegate::{Algorithm, Quota};

use crate::quota_bytes::WireForm;
use crate::write::{Bytes, Write};

/// Maximum number of numbers in a reply about one key.
const MOST_NUMBERS: usize = 6;
/// Bytes of each.
const NUMBER_BYTES: usize = 7;

/// Numbers of seven bytes, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Numbers {
    bytes: [[u8; NUMBER_BYTES]; MOST_NUMBERS],
    len: usize,
}

/// Why a value cannot be used. Nothing is charged then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// The script's error: `not of layout 1 or 2: its first byte is 21`.
    pub message: String,
    /// The write that marks the damage, so that it keeps being reported.
    pub write: Option<Box<Write>>,
}

/// The stored value before.
#[derive(Debug)]
pub(super) struct Before {
    /// Bytes of the value; 0 if there was none.
    pub(super) length: usize,
    /// The moment that its expiry was computed from. See [`Stored::expires`].
    pub(super) expires: u64,
    /// The end and the total of its window, then those of one that has ended. See [`Stored::totals`].
    pub(super) totals: [Total; 2],
}

/// The end of a fixed window in microseconds since the epoch, and what was used in it.
pub type Total = (u64, u64);

/// A state in memory that can be stored.
pub(super) trait StoredAs: WireForm {
    /// The state as read from a value: a log leaves its entries there.
    type Value<'v>: Stored<'v>;
}

/// The state `S` as read from a value.
pub(super) type Value<'v, S> = <S as StoredAs>::Value<'v>;

/// A state that can be read from a stored value and written to one.
pub(super) trait Stored<'v>: State {
    /// The first bytes of its values.
    const TAGS: &'static [u8];

    /// The state in a value of this algorithm, and its window if the value has it. `None` if the
    /// value is damaged or of another algorithm.
    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)>;

    /// A time that only moves back if the clock did.
    fn moment(&self) -> u64;

    /// Whether the clock was set back so far that the state changed; `moment` is its
    /// [moment](Self::moment) before. Even a denial stores this.
    fn has_moved(&self, moment: u64) -> bool {
        self.moment() < moment
    }

    /// The end that the expiry was computed from; 0 if the expiry must be computed again.
    fn expires(&self, _has_same_window: bool) -> u64 {
        0
    }

    /// Corrects the state if other time zone data counted it in a window of the same calendar.
    fn align(&mut self, _quota: &Quota) {}

    /// The totals in the value that this state was read from, if its algorithm keeps some.
    fn totals(&self, _value: &[u8]) -> [Total; 2] {
        Default::default()
    }

    /// Whether the value is stored although nothing counts.
    fn is_kept(&self, _quota: &Quota, _before: &Before) -> bool {
        false
    }

    /// The whole content that this quota does not count, if its maximum is smaller.
    fn cut(&self, _quota: &Quota) -> Option<u64> {
        None
    }

    /// The value after a refund, in the window `own` that the state was counted in, with the same
    /// length and expiry. The state is settled. `None` if a refund changes the key like a charge.
    fn refund_kept(&self, _own: &Quota, _settled: u64, _refunded: u64, _value: &[u8]) -> Option<Bytes> {
        None
    }

    /// When a charge made now stops counting.
    fn counts_until(&self, quota: &Quota, settled: u64) -> u64;

    /// Appends the state's reply.
    fn numbers(&self, numbers: Numbers) -> Numbers;

    /// The oldest entries of a log that together have at least this cost.
    fn oldest(&self, _needed: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Whether a read went past the value's end.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// The write that stores the state at this time.
    fn write(&self, quota: &Quota, now: u64, before: &Before) -> Result<Option<Write>, Unusable>;
}

/// The first bytes of all values of a rate.
pub fn tags() -> Vec<u8> {
    let of = |algorithm| for_algorithm!(algorithm, S => Value::<'static, S>::TAGS);
    Algorithm::ALL.map(of).concat()
}

impl Numbers {
    /// The numbers, one after the other.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes[..self.len].as_flattened()
    }

    /// The numbers one by one.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.bytes[..self.len].iter().map(|bytes| crate::write::number(bytes))
    }

    pub(super) fn with(mut self, number: u64) -> Self {
        self.bytes[self.len].copy_from_slice(&number.to_le_bytes()[..NUMBER_BYTES]);
        self.len += 1;
        self
    }
}

impl Unusable {
    pub(super) fn damaged(what: &str) -> Self {
        Self { message: format!("damaged: {what}"), write: None }
    }

    pub(super) fn cut_off() -> Self {
        Self::damaged("its ring is cut off")
    }
}

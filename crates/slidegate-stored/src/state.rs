//! A state that is read from a stored value and written to one, and what is replied of it.

use slidegate::Quota;
use slidegate::internal::State;

use super::write::{Bytes, Write};

/// Most numbers in a reply about one key.
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
    /// The error as a script reports it: `not of layout 1 or 2: its first byte is 21`.
    pub message: String,
    /// What is to be stored, so that the damage is reported from now on.
    pub write: Option<Box<Write>>,
}

/// What was stored before.
#[derive(Debug)]
pub(super) struct Before {
    /// Bytes of the value; 0 if there was none.
    pub(super) length: usize,
    /// The moment that its expiry was computed from, see [`Stored::expires`].
    pub(super) expires: u64,
}

/// A state of memory, of which values are stored.
pub(super) trait StoredAs {
    /// The same state where it is read from a value: a log leaves its entries there.
    type Value<'v>: Stored<'v>;
}

/// What is read from a value of the state `S`.
pub(super) type Value<'v, S> = <S as StoredAs>::Value<'v>;

/// A state that is read from a stored value and written to one.
pub(super) trait Stored<'v>: State {
    /// The algorithm's number in the first byte.
    const NUMBER: u8;

    /// The state in a value of this algorithm, and the window it was counted under if it says so.
    /// `None` if it is of another algorithm, or damaged.
    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)>;

    /// A time that only moves back if the clock did.
    fn moment(&self) -> u64;

    /// Whether the clock was set back so far that the state was changed, which had this
    /// [moment](Self::moment) before: what a denial records as well.
    fn has_moved(&self, moment: u64) -> bool {
        self.moment() < moment
    }

    /// The end that the expiry was computed from; 0 if the expiry must be computed again.
    fn expires(&self, _has_same_window: bool) -> u64 {
        0
    }

    /// Corrects the state, which was counted in a window of the same calendar, if that was by other time
    /// zone data.
    fn align(&mut self, _quota: &Quota) {}

    /// Whole content that this quota does not count, if its maximum is smaller than the content.
    fn cut(&self, _quota: &Quota) -> Option<u64> {
        None
    }

    /// The value after a refund of so much, in the window `own` that the state was counted in: as long as
    /// before, and with the same expiry. The state is settled. `None` if a refund changes the key as a
    /// charge does.
    fn refund_kept(&self, _own: &Quota, _settled: u64, _refunded: u64, _value: &[u8]) -> Option<Bytes> {
        None
    }

    /// When nothing that is charged now counts any more.
    fn counts_until(&self, quota: &Quota, settled: u64) -> u64;

    /// Appends what is replied of the state.
    fn numbers(&self, numbers: Numbers) -> Numbers;

    /// The oldest entries of a log that together have at least this cost.
    fn oldest(&self, _needed: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }

    /// Whether something was read from where the value has no bytes.
    fn is_cut_off(&self) -> bool {
        false
    }

    /// What is to be stored of the state at this time.
    fn write(&self, quota: &Quota, now: u64, before: &Before) -> Result<Option<Write>, Unusable>;
}

impl Numbers {
    /// The numbers, one after the other.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes[..self.len].as_flattened()
    }

    /// The numbers one by one.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.bytes[..self.len].iter().map(|bytes| super::write::number(bytes))
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

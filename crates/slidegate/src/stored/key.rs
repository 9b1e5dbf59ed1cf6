//! One key: its stored value read, settled, charged, and what is to be stored then.
//!
//! The steps are those of `check.lua`: a cost is charged if it fits, and the reply has the state from
//! before any charge, from which the caller computes the decisions.

use super::entries::StoredEntries;
use super::write::Write;
use crate::algorithm::sliding_log::Log;
use crate::algorithm::{self, FixedWindow, SlidingWindow, State, TokenBucket};
use crate::decision::Decision;
use crate::quota::{Algorithm, Quota, QuotaFields};
use crate::time::Timestamp;
use crate::verb::Verb;

/// Most numbers in a reply about one key.
const MOST_NUMBERS: usize = 6;
/// Bytes of each.
const NUMBER_BYTES: usize = 7;

/// Consecutive requests of the same cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requests {
    /// The cost of each, at most 2^53 - 1.
    pub cost: u64,
    /// How many.
    pub count: u64,
}

/// The reply to a check, and what is to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The reply of `check.lua`: the number of requests charged, the time, and the state from before
    /// the charges.
    pub numbers: Numbers,
    /// Timestamp and cost of a log's oldest entries, if a denied cost has to wait for several.
    pub entries: Vec<(u64, u64)>,
    /// `None` if nothing changes.
    pub write: Option<Write>,
}

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
    pub write: Option<Write>,
}

/// What was stored before.
#[derive(Debug)]
pub(super) struct Before {
    /// Bytes of the value; 0 if there was none.
    pub(super) length: usize,
    /// The moment that its expiry was computed from, see [`Stored::expires`].
    pub(super) expires: u64,
}

/// How a state was settled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Its [moment](Stored::moment) before.
    pub(super) moment: u64,
    pub(super) now: u64,
    pub(super) settled: u64,
}

/// A state that is read from a stored value and written to one.
pub(super) trait Stored<'v>: State {
    /// The algorithm's number in the first byte.
    const NUMBER: u8;

    /// The state in a value of this algorithm, and the window it was counted under if it says so.
    /// `None` if it is of another algorithm, or damaged.
    fn read(value: &'v [u8]) -> Option<(Self, Option<u64>)>;

    /// A time that only moves back if the clock did.
    fn moment(&self) -> u64;

    /// Whether the clock was set back so far that the state was changed: what a denial records as
    /// well.
    fn has_moved(&self, _counted: &Quota, step: Step) -> bool {
        self.moment() < step.moment
    }

    /// The end that the expiry was computed from; 0 if the expiry must be computed anew.
    fn expires(&self, _has_same_window: bool) -> u64 {
        0
    }

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
    fn write(&self, quota: &Quota, now: u64, before: &Before) -> Result<Write, Unusable>;
}

impl Numbers {
    /// The numbers, one after the other.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes[..self.len].as_flattened()
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

/// A key, settled to a time.
struct OpenKey<S> {
    state: S,
    settled: u64,
    /// Whether the clock was set back so far that the state was changed.
    has_moved: bool,
    before: Before,
}

impl<'v, S: Stored<'v>> OpenKey<S> {
    fn open(value: Option<&'v [u8]>, quota: &Quota, now: u64) -> Result<Self, Unusable> {
        let found = value.and_then(S::read);
        if found.is_none() {
            value.map_or(Ok(()), |value| may_be_replaced::<S>(value))?;
        }
        let length = value.map_or(0, <[u8]>::len);
        let (mut state, window_us) = found.unwrap_or_default();
        let has_same_window = window_us.is_none_or(|window_us| window_us == quota.window_us());
        let (moment, expires) = (state.moment(), state.expires(has_same_window));
        let before = Before { length, expires };
        let Some(window_us) = window_us.filter(|_| !has_same_window) else {
            let settled = state.settle(quota, now);
            let has_moved = state.has_moved(quota, Step { moment, now, settled });
            return Ok(Self { state, settled, has_moved, before });
        };
        let counted = QuotaFields { window_us, ..quota.fields() }.quota();
        let counted = counted.ok_or_else(|| Unusable::damaged(&format!("its window is {window_us} us")))?;
        let settled = state.settle(&counted, now);
        let has_moved = state.has_moved(&counted, Step { moment, now, settled });
        state.adopt(quota, settled);
        Ok(Self { state, settled, has_moved, before })
    }

    fn is_readable(&self) -> Result<(), Unusable> {
        if self.state.is_cut_off() { Err(Unusable::cut_off()) } else { Ok(()) }
    }

    fn write(&self, quota: &Quota, now: u64, charged: u64) -> Result<Option<Write>, Unusable> {
        let is_changed = charged > 0 || self.has_moved && self.state.used(quota, self.settled) > 0;
        is_changed.then(|| self.state.write(quota, now, &self.before)).transpose()
    }

    fn check(&mut self, quota: &Quota, now: u64, requests: &[Requests]) -> Result<Checked, Unusable> {
        let used = self.state.used(quota, self.settled);
        let capacity = quota.capacity();
        let (mut cost, mut charged, mut needed) = (0u64, 0u64, 0u64);
        for &Requests { cost: asks, count } in requests {
            if asks == 0 {
                charged = charged.saturating_add(count);
                continue;
            }
            let room = capacity.saturating_sub(used.saturating_add(cost));
            let fit = (room / asks).min(count);
            cost += fit * asks;
            charged += fit;
            if fit < count && asks <= capacity {
                needed = needed.max(used.saturating_add(cost).saturating_add(asks) - capacity);
            }
        }
        let numbers = self.state.numbers(Numbers::default().with(charged).with(now).with(self.settled));
        let needed = needed.min(used);
        let entries = if needed > 1 { self.state.oldest(needed) } else { Vec::new() };
        self.is_readable()?;
        self.state.charge(quota, self.settled, cost);
        let write = self.write(quota, now, cost)?;
        Ok(Checked { numbers, entries, write })
    }

    fn decide(mut self, quota: &Quota, now: u64, cost: u64) -> Result<(Decision, Option<Write>), Unusable> {
        let Self { settled, .. } = self;
        let done = algorithm::perform(&mut self.state, quota, settled, Verb::Check, cost);
        let at = Timestamp::from_micros(now);
        let decision = algorithm::decision(&self.state, quota, at, settled, done);
        self.is_readable()?;
        let write = self.write(quota, now, decision.cost)?;
        Ok((decision, write))
    }
}

/// Whether a value that is not valid for an algorithm may be replaced, because it is of another one.
/// The first byte 31 marks a log that was found truncated.
fn may_be_replaced<'v, S: Stored<'v>>(value: &[u8]) -> Result<(), Unusable> {
    match value.first() {
        // The scripts read a log by a range, which is empty if there is no value.
        None if S::NUMBER == StoredEntries::NUMBER => Ok(()),
        Some(first @ (0x11..=0x14 | 0x21 | 0x22)) if first % 16 != S::NUMBER => Ok(()),
        Some(0x11..=0x14 | 0x21 | 0x22 | 0x1f) => {
            Err(Unusable::damaged(&format!("it has {} bytes", value.len())))
        }
        first => {
            let first = first.map_or_else(|| "nil".to_owned(), u8::to_string);
            let message = format!("not of layout 1 or 2: its first byte is {first}");
            Err(Unusable { message, write: None })
        }
    }
}

macro_rules! with_stored {
    ($value:expr, $quota:expr, $now:expr, $key:ident => $run:expr) => {
        match $quota.algorithm() {
            Algorithm::SlidingLog => {
                let $key = OpenKey::<Log<StoredEntries<'_>>>::open($value, $quota, $now)?;
                $run
            }
            Algorithm::SlidingWindow => {
                let $key = OpenKey::<SlidingWindow>::open($value, $quota, $now)?;
                $run
            }
            Algorithm::FixedWindow => {
                let $key = OpenKey::<FixedWindow>::open($value, $quota, $now)?;
                $run
            }
            Algorithm::TokenBucket => {
                let $key = OpenKey::<TokenBucket>::open($value, $quota, $now)?;
                $run
            }
            Algorithm::InFlight => {
                let message = "not that of a rate: what is in flight needs a script".to_owned();
                return Err(Unusable { message, write: None });
            }
        }
    };
}

/// Charges those of the requests that fit, in order, at this time in microseconds since the Unix
/// epoch. `value` is what is stored, if anything.
///
/// # Errors
/// If another program wrote the value, it is damaged, or it has holds.
pub fn check(
    value: Option<&[u8]>,
    quota: &Quota,
    now_us: u64,
    requests: &[Requests],
) -> Result<Checked, Unusable> {
    with_stored!(value, quota, now_us, key => {
        let mut key = key;
        key.check(quota, now_us, requests)
    })
}

/// The decision on one request, and what is to be stored. The cost is at most 2^53 - 1.
///
/// # Errors
/// As [`check`].
pub fn decide(
    value: Option<&[u8]>,
    quota: &Quota,
    now_us: u64,
    cost: u64,
) -> Result<(Decision, Option<Write>), Unusable> {
    with_stored!(value, quota, now_us, key => key.decide(quota, now_us, cost))
}

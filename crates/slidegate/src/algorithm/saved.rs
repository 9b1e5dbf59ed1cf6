//! Saved states: what of a key outlives the process, and what stores and people need to know of each algorithm.
//!
//! docs/snapshot-format.md lists what is saved. //! Instants are saved as ages, because the clock of the next process starts elsewhere.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::State;
use crate::hold::{Hold, Holds, Unsettled};
use crate::quota::Quota;

/// The state of an algorithm: a state that can be saved.
pub(crate) trait SavedState: State {
    /// The saved form.
    type Saved: Serialize + DeserializeOwned;

    /// The form to save.
    fn save(&self, ages: Ages) -> Self::Saved;

    /// The state that was saved, under the quota of then. `None` if it cannot have been. `now` is the
    /// time of the algorithm.
    fn load(saved: Self::Saved, ages: Ages, quota: &Quota, now: u64) -> Option<Self>;

    /// At least what counts, whatever the quota: what a store keeps of a key that it evicts.
    fn most_used(&self) -> u64;

    /// The latest time at which a key can have been charged that has used at most this cost and of
    /// which nothing counts from some time on: later than `after`, and not later than `by`.
    ///
    /// Not later than `now`; but where what counts depends on the moment of the charge, it may be as much later as
    /// `by` is later than `after`, so that the key is not admitted later than it was told.
    fn charged_by(quota: &Quota, cost: u64, after: u64, by: u64, now: u64) -> u64;

    /// The maximum that still counts of a cost charged at `made`.
    fn counts_still(quota: &Quota, cost: u64, made: u64, now: u64) -> u64;

    /// How this quota counts, for people: the end of `100 per minute, counted by ...`.
    fn describe(quota: &Quota) -> String;
}

/// A hold as it is saved.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedHold {
    id: u64,
    /// The age of its end.
    until: i64,
    held: u64,
    settled: u64,
    is_charged_at_end: bool,
    has_ended: bool,
}

impl Holds {
    /// The holds to save. The ages are by elapsed time.
    pub fn save(&self, ages: Ages) -> Vec<SavedHold> {
        let save = |hold: Hold| SavedHold {
            id: hold.id,
            until: ages.of(hold.until),
            held: hold.held,
            settled: hold.settled,
            is_charged_at_end: hold.unsettled == Unsettled::Charge,
            has_ended: hold.has_ended,
        };
        self.iter().map(save).collect()
    }

    /// Restores the result of [`save`](Self::save). `None` if no key can have had these holds.
    pub fn load(saved: Vec<SavedHold>, ages: Ages, now: u64) -> Option<Self> {
        let mut holds = Self::default();
        holds.arrive(now, 0);
        for SavedHold { id, until, held, settled, is_charged_at_end, has_ended } in saved {
            let unsettled = if is_charged_at_end { Unsettled::Charge } else { Unsettled::Forget };
            holds.restore(Hold { id, until: ages.at(until), held, settled, unsettled, has_ended })?;
        }
        Some(holds)
    }
}

/// Converts instants to ages at one instant, and back.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    /// The instant in microseconds since the epoch, by the clock of the states.
    pub at_us: u64,
}

impl Ages {
    /// Microseconds since `at_us`; negative if it is later.
    pub fn of(self, at_us: u64) -> i64 {
        self.at_us.wrapping_sub(at_us).cast_signed()
    }

    /// The instant of this age; at least 1, because 0 stands for never.
    pub fn at(self, age_us: i64) -> u64 {
        self.at_us.saturating_add_signed(age_us.saturating_neg()).max(1)
    }
}

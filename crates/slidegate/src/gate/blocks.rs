//! Blocks applied to decisions: the store reports the usage of a blocked key, and the block denies.

use crate::charge::{Charge, Charges, PerCharge};
use crate::decision::{Decision, DecisionSource, Verdict, Waits};
use crate::store::with_denials;
use crate::time::Timestamp;

/// The remaining time of blocks, at least one of which is in force.
///
/// A block denies any cost, whatever the store would decide. So the store only reports usage, and
/// the block is applied to its decision.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// Per charge, in microseconds.
    rests_us: PerCharge<Option<u64>>,
}

impl Blocks {
    /// `None` if no key is blocked now, the usual case. `now` is a date, because blocks end at a
    /// date.
    pub(crate) fn of(charges: &[Charge<'_>], now: impl FnOnce() -> Timestamp) -> Option<Self> {
        if charges.iter().all(|charge| charge.block.is_none()) {
            return None;
        }
        let now = now();
        let rests_us: PerCharge<Option<u64>> =
            charges.iter().map(|charge| charge.block.and_then(|block| block.rest_us(now))).collect();
        rests_us.iter().any(Option::is_some).then_some(Self { rests_us })
    }

    /// The charges for the store, where blocked ones become denials.
    pub(crate) fn without_blocked<'a>(&self, charges: &[Charge<'a>]) -> Charges<'a> {
        with_denials(charges, |at| self.rests_us[at].is_some() && charges[at].part.is_deniable())
    }

    pub(crate) fn apply(self, charges: &[Charge<'_>], decisions: &mut [Decision]) {
        for ((charge, rest_us), decision) in charges.iter().zip(self.rests_us).zip(decisions) {
            if let Some(rest_us) = rest_us {
                *decision = blocked(*decision, rest_us, charge.part.is_deniable());
            }
        }
    }
}

/// The decision on a key blocked for `rest_us`. `asks`: whether the block denies the request.
///
/// Nothing of the limit remains during the block. If the key lacks capacity when the block ends,
/// the wait is the longer of the two, so that the same request is admitted after it.
pub(crate) fn blocked(decision: Decision, rest_us: u64, asks: bool) -> Decision {
    let Waits { retry_us, reset_us, frees_us } = decision.waits;
    // A fallback that denies only estimates the wait; the block replaces it.
    let until_room_us = if decision.source == DecisionSource::Deny { 0 } else { retry_us };
    let waits = Waits {
        retry_us: if asks { rest_us.max(until_room_us) } else { retry_us },
        reset_us: if rest_us == Waits::NEVER { reset_us } else { reset_us.max(rest_us) },
        frees_us: if decision.used < decision.limit { rest_us } else { rest_us.max(frees_us) },
    };
    let decision = Decision { is_blocked: true, remaining: 0, waits, ..decision };
    if asks { Decision { verdict: Verdict::Deny, cost: 0, ..decision } } else { decision }
}

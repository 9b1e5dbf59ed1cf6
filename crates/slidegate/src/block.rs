//! Blocks: keys that nothing of cost passes under, whatever their quota has left.
//!
//! A block is not a quota of zero: the decision keeps the key's own limit and usage, and the wait
//! is the rest of the block. It is laid over what the store says of the key, so it needs no store
//! to hold, and ends at once when it is lifted.

use smallvec::SmallVec;

use crate::charge::{Charge, Charges, with_denials};
use crate::decision::{Decision, DecisionSource, Verdict, Waits};
use crate::time::Timestamp;

/// A key that is blocked under a policy: until when, and by whom.
///
/// ```
/// use slidegate::{Block, Gate, Policy, PolicySet, Quota, Reason, Request};
///
/// let per_user = Policy::new("per-user", Quota::per_minute(5))?
///     .scope(["user"])
///     .with_block(["mallory"], Block::forever().by("ops"));
/// let gate = Gate::new(PolicySet::new([per_user])?);
/// let request = Request::new().with("user", "mallory");
/// let decisions = gate.check(&request);
/// let denied = decisions.strictest().unwrap();
/// assert_eq!((denied.reason(), denied.limit(), denied.used()), (Some(Reason::Blocked), 5, 0));
/// assert_eq!(denied.block().unwrap().blocked_by(), Some("ops"));
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// `None`: for ever.
    until: Option<Timestamp>,
    by: Option<Box<str>>,
}

impl Block {
    /// A block that ends at this time, by the wall clock of this machine.
    #[must_use]
    pub fn until(end: Timestamp) -> Self {
        Self { until: Some(end), by: None }
    }

    /// A block that ends when it is taken out of the policy.
    #[must_use]
    pub fn forever() -> Self {
        Self { until: None, by: None }
    }

    /// The same block with the name of whoever made it. The name is for operators: header fields
    /// and problem bodies, which reach end users, do not contain it.
    #[must_use]
    pub fn by(self, name: impl Into<Box<str>>) -> Self {
        Self { by: Some(name.into()), ..self }
    }

    /// When it ends; `None` if it does not end by itself.
    #[must_use]
    pub fn ends_at(&self) -> Option<Timestamp> {
        self.until
    }

    /// Whoever made it, if that is known.
    #[must_use]
    pub fn blocked_by(&self) -> Option<&str> {
        self.by.as_deref()
    }

    /// How long it lasts from now on: [`Waits::NEVER`] if it does not end; `None` if it is over.
    pub(crate) fn rest_us(&self, now: Timestamp) -> Option<u64> {
        match self.until {
            None => Some(Waits::NEVER),
            Some(end) => Some(end.as_micros().saturating_sub(now.as_micros())).filter(|rest_us| *rest_us > 0),
        }
    }
}

/// What is left of the blocks of charges, of which at least one is not over.
///
/// A block denies what asks for any cost, whatever the store would say. So the store is asked about
/// usage only, and the block is laid over its decision.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// For each charge, in microseconds.
    rests_us: SmallVec<[Option<u64>; 4]>,
}

impl Blocks {
    /// `None` if no key is blocked now, which is the usual case. `now` is the date, as blocks end
    /// at one.
    pub(crate) fn of(charges: &[Charge<'_>], now: impl FnOnce() -> Timestamp) -> Option<Self> {
        if charges.iter().all(|charge| charge.block.is_none()) {
            return None;
        }
        let now = now();
        let rests_us: SmallVec<[Option<u64>; 4]> =
            charges.iter().map(|charge| charge.block.and_then(|block| block.rest_us(now))).collect();
        rests_us.iter().any(Option::is_some).then_some(Self { rests_us })
    }

    /// What is left for the store to decide.
    pub(crate) fn left<'a>(&self, charges: &[Charge<'a>]) -> Charges<'a> {
        with_denials(charges, |at| self.rests_us[at].is_some() && charges[at].part.is_deniable())
    }

    /// The store's decisions with blocked keys denied.
    pub(crate) fn lay_over(
        self,
        charges: &[Charge<'_>],
        mut decisions: SmallVec<[Decision; 4]>,
    ) -> SmallVec<[Decision; 4]> {
        for ((charge, rest_us), decision) in charges.iter().zip(self.rests_us).zip(&mut decisions) {
            if let Some(rest_us) = rest_us {
                *decision = blocked(*decision, rest_us, charge.part.is_deniable());
            }
        }
        decisions
    }
}

/// A decision on a key that is blocked for so long. `asks` says whether the block denies what was
/// asked.
///
/// Nothing remains of the limit while the block lasts. Where the key has no room either when the
/// block ends, the wait is the longer of the two, so that the same request passes after it.
pub(crate) fn blocked(decision: Decision, rest_us: u64, asks: bool) -> Decision {
    let Waits { retry_us, reset_us, frees_us } = decision.waits;
    // What a fallback says of the wait is a guess about the store, which the block does not need.
    let until_room_us = if decision.source == DecisionSource::Deny { 0 } else { retry_us };
    let waits = Waits {
        retry_us: if asks { rest_us.max(until_room_us) } else { retry_us },
        reset_us: if rest_us == Waits::NEVER { reset_us } else { reset_us.max(rest_us) },
        frees_us: if decision.used < decision.limit { rest_us } else { rest_us.max(frees_us) },
    };
    let decision = Decision { is_blocked: true, remaining: 0, waits, ..decision };
    if asks { Decision { verdict: Verdict::Deny, cost: 0, ..decision } } else { decision }
}

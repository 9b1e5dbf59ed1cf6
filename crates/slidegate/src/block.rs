//! Blocks: keys that nothing of cost passes under, whatever their quota has left.
//!
//! A block is not a quota of zero: the decision keeps the key's own limit and usage, and the wait is the rest of the block.
//! It is laid over what the store says of the key, so it needs no store to hold, and ends at once when it is lifted.

use smallvec::SmallVec;

use crate::charge::{Charge, Charges};
use crate::decision::{Decision, Source, Verdict, Waits};
use crate::time::Timestamp;
use crate::verb::Verb;

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
/// assert_eq!((denied.reason(), denied.limit, denied.used), (Some(Reason::Blocked), 5, 0));
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

    /// The same block with the name of whoever made it. The name is for operators: header fields and problem bodies, which
    /// reach end users, do not contain it.
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

/// How charges are decided of which at least one has a block that is not over.
///
/// An enforced policy with a blocked key denies the request, so everything is only looked at. A blocked key of a shadow
/// policy denies nothing: it alone is only looked at, since a shadow policy that would deny is not charged.
#[derive(Debug)]
pub(crate) struct Blocks {
    verb: Verb,
    /// What to do with the charges of [`main`](Self::main).
    main_verb: Verb,
    /// What is left of each charge's block, in microseconds.
    rests_us: SmallVec<[Option<u64>; 4]>,
    /// Which charges are looked at apart from the others.
    apart: SmallVec<[bool; 4]>,
}

impl Blocks {
    /// `None` if no key is blocked now, which is the usual case. `now` is the date, as blocks end at one.
    pub(crate) fn of(verb: Verb, charges: &[Charge<'_>], now: impl FnOnce() -> Timestamp) -> Option<Self> {
        if charges.iter().all(|charge| charge.block.is_none()) {
            return None;
        }
        let now = now();
        let rests_us: SmallVec<[Option<u64>; 4]> =
            charges.iter().map(|charge| charge.block.and_then(|block| block.rest_us(now))).collect();
        if rests_us.iter().all(Option::is_none) {
            return None;
        }
        let denies = |(charge, rest): (&Charge<'_>, &Option<u64>)| rest.is_some() && charge.part.cost > 0;
        let is_check = verb == Verb::Check;
        let is_denied =
            is_check && charges.iter().zip(&rests_us).any(|both| both.0.part.enforced && denies(both));
        let apart =
            charges.iter().zip(&rests_us).map(|both| is_check && !is_denied && denies(both)).collect();
        let main_verb = if is_denied { Verb::Peek } else { verb };
        Some(Self { verb, main_verb, rests_us, apart })
    }

    /// Whether a check is denied by a block, so that all of its charges are only looked at, together.
    #[cfg(feature = "redis")]
    pub(crate) fn denies_check(&self) -> bool {
        self.verb == Verb::Check && self.main_verb == Verb::Peek
    }

    /// The charges that are decided together, and how.
    pub(crate) fn main<'a>(&self, charges: &[Charge<'a>]) -> (Verb, Charges<'a>) {
        (self.main_verb, self.where_apart_is(false, charges))
    }

    /// The charges that are only looked at apart from those: often none.
    pub(crate) fn apart<'a>(&self, charges: &[Charge<'a>]) -> Charges<'a> {
        self.where_apart_is(true, charges)
    }

    fn where_apart_is<'a>(&self, wanted: bool, charges: &[Charge<'a>]) -> Charges<'a> {
        let charges = charges.iter().zip(&self.apart);
        charges.filter(|(_, apart)| **apart == wanted).map(|(charge, _)| charge.clone()).collect()
    }

    /// The decisions in the order of the charges, blocked keys denied.
    pub(crate) fn join(
        self,
        charges: &[Charge<'_>],
        main: impl IntoIterator<Item = Decision>,
        apart: impl IntoIterator<Item = Decision>,
    ) -> SmallVec<[Decision; 4]> {
        let (mut main, mut apart) = (main.into_iter(), apart.into_iter());
        let decide = |((charge, rest_us), is_apart): ((&Charge<'_>, &Option<u64>), &bool)| {
            let next = if *is_apart { apart.next() } else { main.next() };
            let decision = next.expect("a store decides every charge it is given");
            let asks = matches!(self.verb, Verb::Check | Verb::Peek) && charge.part.cost > 0;
            rest_us.map_or(decision, |rest_us| blocked(decision, rest_us, asks))
        };
        charges.iter().zip(&self.rests_us).zip(&self.apart).map(decide).collect()
    }
}

/// A decision on a key that is blocked for so long. `asks` says whether the block denies what was asked.
///
/// Nothing remains of the limit while the block lasts. Where the key has no room either when the block ends, the wait is
/// the longer of the two, so that the same request passes after it.
pub(crate) fn blocked(decision: Decision, rest_us: u64, asks: bool) -> Decision {
    let Waits { retry_us, reset_us, frees_us } = decision.waits;
    // What a fallback says of the wait is a guess about the store, which the block does not need.
    let until_room_us = if decision.source == Source::Deny { 0 } else { retry_us };
    let waits = Waits {
        retry_us: if asks { rest_us.max(until_room_us) } else { retry_us },
        reset_us: if rest_us == Waits::NEVER { reset_us } else { reset_us.max(rest_us) },
        frees_us: if decision.used < decision.limit { rest_us } else { rest_us.max(frees_us) },
    };
    let decision = Decision { is_blocked: true, remaining: 0, waits, ..decision };
    if asks { Decision { verdict: Verdict::Deny, cost: 0, ..decision } } else { decision }
}

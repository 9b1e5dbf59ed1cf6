//! A check of keys in several slots as a state machine, without input or output: `spread.rs` makes
//! its calls, and a model tries every order of their events.

use smallvec::SmallVec;

use crate::charge::Excess;
use crate::decision::Decision;
use crate::store::redis::call::{Answers, Subject, Subjects};
use crate::store::redis::{Executed, Failure, FailureKind, Undecided};

/// The subjects of a request that are in one slot, and their positions in the request.
#[derive(Debug, Clone)]
pub(in crate::store::redis) struct SlotPart {
    pub(in crate::store::redis) subjects: Subjects,
    pub(in crate::store::redis) positions: SmallVec<[usize; 2]>,
}

/// The decisions known so far, in the order of the subjects.
pub(super) type Known = SmallVec<[Option<Decision>; 4]>;

/// Charges in one slot that are to be refunded.
#[derive(Debug)]
pub(super) struct SlotRefund {
    pub(super) subjects: Subjects,
    /// How long each of them counts at least, in microseconds from when it was charged. A later
    /// refund would take away what other requests have charged.
    pub(super) counts_us: u64,
}

/// A check whose keys are in several slots. Call the first part; if it neither denies nor fails,
/// all others concurrently.
#[derive(Debug, Clone)]
pub(super) struct SpreadCheck {
    parts: Vec<SlotPart>,
    answers: Known,
    /// Positions in `parts`.
    charged: SmallVec<[usize; 4]>,
    denied: bool,
    failure: Option<Failure>,
}

impl SpreadCheck {
    /// The first part is the first to be called.
    pub(super) fn new(parts: Vec<SlotPart>) -> Self {
        let answers = none_of(&parts);
        Self { parts, answers, charged: SmallVec::new(), denied: false, failure: None }
    }

    pub(super) fn parts(&self) -> &[SlotPart] {
        &self.parts
    }

    /// The outcome of the check of a part, which charged it if it allows.
    pub(super) fn checked(&mut self, part: usize, decided: Result<Answers, Failure>) {
        if let Some(decided) = self.decided(part, decided) {
            let denies = self.parts[part].subjects.denies(&decided);
            self.denied |= denies;
            if !denies {
                self.charged.push(part);
            }
        }
    }

    /// The outcome of a part that was only peeked at, because the first part denied.
    pub(super) fn refused(&mut self, part: usize, peeked: Result<Answers, Failure>) {
        self.decided(part, peeked);
    }

    /// A call ended without an outcome.
    pub(super) fn ended_unexpectedly(&mut self) {
        self.failure = Some(ended());
    }

    /// Whether an enforced policy denies.
    pub(super) fn is_denied(&self) -> bool {
        self.denied
    }

    /// Whether the others need not be called.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The outcome once every call has ended, and what is to be refunded, see
    /// [`refunds`].
    pub(super) fn end(mut self, cost: u64, soon_us: u64) -> (Result<Answers, Undecided>, Vec<SlotRefund>) {
        let is_refunded = self.denied || self.failure.is_some();
        let charged = self.charged.iter().filter(|_| is_refunded).map(|part| &self.parts[*part]);
        let refunds = refunds(charged, &mut self.answers, cost, soon_us);
        (complete(self.answers, self.denied, self.failure), refunds)
    }

    fn decided(&mut self, part: usize, decided: Result<Answers, Failure>) -> Option<Answers> {
        match decided {
            Ok(decided) => {
                put(&mut self.answers, &self.parts[part], decided.iter().copied());
                Some(decided)
            }
            Err(failure) => {
                self.failure = Some(failure);
                None
            }
        }
    }
}

/// What these parts were charged, to be refunded, and the decisions as they are after that. Charges
/// that count for less than `soon_us` are apart, so that the others need not be as quick.
pub(super) fn refunds<'p>(
    charged: impl Iterator<Item = &'p SlotPart>,
    answers: &mut [Option<Decision>],
    cost: u64,
    soon_us: u64,
) -> Vec<SlotRefund> {
    let mut refunds = Vec::new();
    for part in charged {
        let nothing = || SlotRefund { subjects: Subjects(SmallVec::new()), counts_us: u64::MAX };
        let mut by_time = [nothing(), nothing()];
        for (position, subject) in part.positions.iter().zip(&part.subjects.0) {
            // A shadow policy that would have denied was not charged, and a policy that counts
            // denials keeps its charge.
            let is_refunded =
                |decision: &&mut Decision| decision.cost > 0 && subject.part.excess != Excess::Count;
            if let Some(decision) = answers[*position].as_mut().filter(is_refunded) {
                // A charge is capped at the maximum usage of its key, so its refund is too.
                let own_cost = Some(decision.cost).filter(|charged| *charged != cost);
                let counts_us = decision.waits.reset_us.min(subject.quota.window_us());
                let refund = &mut by_time[usize::from(counts_us >= soon_us)];
                refund.subjects.0.push(Subject { own_cost, ..subject.clone() });
                refund.counts_us = refund.counts_us.min(counts_us);
                decision.used = decision.used.saturating_sub(decision.cost);
                decision.remaining = decision.limit.saturating_sub(decision.used);
                decision.cost = 0;
            }
        }
        refunds.extend(by_time.into_iter().filter(|refund| !refund.subjects.0.is_empty()));
    }
    refunds
}

/// No decision yet for any subject of these parts.
pub(super) fn none_of(parts: &[SlotPart]) -> Known {
    SmallVec::from_elem(None, parts.iter().map(|part| part.positions.len()).sum())
}

pub(super) fn put(
    known: &mut [Option<Decision>],
    part: &SlotPart,
    decided: impl IntoIterator<Item = Decision>,
) {
    for (position, decision) in part.positions.iter().zip(decided) {
        known[*position] = Some(decision);
    }
}

/// The decisions, if there is one for each subject.
fn complete(answers: Known, denied: bool, failure: Option<Failure>) -> Result<Answers, Undecided> {
    if failure.is_none()
        && let Some(whole) = answers.iter().copied().collect()
    {
        return Ok(whole);
    }
    Err(Undecided {
        failure: failure.unwrap_or_else(missing).into(),
        denied: denied.then(|| answers.into_vec()),
    })
}

pub(super) fn ended() -> Failure {
    Failure::without_node(
        Executed::Maybe,
        FailureKind::ConnectionLost,
        "a part of the request ended unexpectedly",
    )
}

pub(super) fn missing() -> Failure {
    Failure::without_node(Executed::Maybe, FailureKind::Malformed, "did not decide every key")
}

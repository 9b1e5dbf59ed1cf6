//! Calls over several cluster slots. Those with one verb are [`spread`](crate::spread); parts with
//! different verbs or roles are decided here, because no single step can decide them.
//!
//! The steps are those of [`all_or_none`](slidegate::internal::all_or_none), each over all
//! slots: first everything is peeked at, then checks are charged, then come penalties and refunds.
//! No step is atomic with the others. What a check finds taken since the peek is denied, and if
//! that denies the call, what the call has charged before is refunded. So no limit is ever
//! exceeded. For as long as the steps take, another request may be denied for what is about to be
//! refunded, and a peek may be out of date.

use slidegate::internal::{Denials, Part, complete};
use slidegate::{
    Decision, Excess,
    verb::{Role, Verb},
};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::call::{Answers, Subjects};
use crate::spread::{SpreadRequest, Undecided, ended};

/// Positions of parts in their call.
type Positions = SmallVec<[usize; 4]>;

/// A call that is decided step by step.
struct Mixed<'a> {
    request: &'a SpreadRequest,
    subjects: &'a Subjects,
    parts: SmallVec<[Part; 4]>,
    /// Start of the call: nothing was charged before.
    asked: Instant,
    /// The decisions so far.
    answers: Answers,
}

/// Decides subjects in several slots: in one step per slot if they have one verb, otherwise step by
/// step.
///
/// A separate task makes the charges: a caller who gives up must not leave only some of them
/// charged.
pub(super) async fn decide(request: SpreadRequest, subjects: &Subjects) -> Result<Answers, Undecided> {
    let decided = match subjects.only_verb() {
        Some(Verb::Peek | Verb::Refund | Verb::Penalize) => {
            return Ok(request.on_each_slot(subjects).await?);
        }
        Some(Verb::Check) => {
            let parts = request.parts(subjects);
            tokio::spawn(async move { request.check_parts(parts).await })
        }
        None => {
            let subjects = subjects.clone();
            tokio::spawn(async move { in_steps(&request, &subjects).await })
        }
    };
    decided.await.unwrap_or_else(|_| Err(ended().into()))
}

/// Decides subjects in several slots, step by step.
async fn in_steps(request: &SpreadRequest, subjects: &Subjects) -> Result<Answers, Undecided> {
    let parts: SmallVec<[Part; 4]> = subjects.0.iter().map(|subject| subject.part(request.cost)).collect();
    let mut peeks = subjects.with_verb(Verb::Peek);
    for (peek, part) in peeks.0.iter_mut().zip(&parts) {
        if !part.verb.is_question() {
            peek.own_cost = Some(0);
        }
    }
    let asked = slidegate::internal::instant();
    let mut answers = request.on_each_slot(&peeks).await?;
    complete(&parts, &mut answers);
    let mut mixed = Mixed { request, subjects, parts, asked, answers };
    match mixed.carry_out().await {
        Ok(()) => Ok(mixed.answers),
        Err(undecided) => {
            let checks = mixed.positions(|part| part.verb == Verb::Check);
            mixed.refund(&checks);
            Err(undecided)
        }
    }
}

impl Mixed<'_> {
    /// Charges and refunds as the peeks allow.
    async fn carry_out(&mut self) -> Result<(), Undecided> {
        // Deciding checks are charged all or none; each other check on its own.
        let is_check = |part: &Part| part.verb == Verb::Check;
        let deciding = self.positions(|part| is_check(part) && part.role == Role::Deciding);
        let others = self.positions(|part| is_check(part) && part.role != Role::Deciding);
        let is_denied = self.denials().is_call;
        self.check(&deciding, is_denied).await?;
        let before = self.denials();
        for at in others {
            let is_left_out = before.is_call || self.answers[at].is_denied();
            self.check(&[at], is_left_out).await?;
        }
        let denials = self.denials();
        if denials.is_call && !before.is_call {
            // Other requests were charged since the peeks.
            self.refund(&deciding);
        }
        for verb in [Verb::Penalize, Verb::Refund] {
            let mut moved = self.positions(|part| part.verb == verb);
            moved.retain(|at| denials.moves(*at, &self.parts, &self.answers));
            if !moved.is_empty() {
                let moving = self.subjects.at(&moved).with_verb(verb);
                let done = self.request.on_each_slot(&moving).await?;
                self.put(&moved, done);
            }
        }
        Ok(())
    }

    /// Checks the subjects at these positions. If `left_out`, only those that count denials are
    /// charged.
    async fn check(&mut self, positions: &[usize], left_out: bool) -> Result<(), Undecided> {
        if positions.is_empty() {
            return Ok(());
        }
        // Their cost is 0, so the check itself does not deny them.
        let over_limit: Positions = positions
            .iter()
            .copied()
            .filter(|at| self.parts[*at].over_limit && self.answers[*at].is_denied())
            .collect();
        let checks = self.subjects.at(positions).with_verb(Verb::Check);
        let parts = self.request.parts(&checks);
        if !left_out {
            let decided = self.request.check_parts(parts).await?;
            self.put(positions, decided);
        } else if checks.0.iter().any(|subject| subject.part.excess == Excess::Count) {
            for part in parts {
                let refused = self.request.refuse_part(&part.subjects).await?;
                let whole: Positions = part.positions.iter().map(|at| positions[*at]).collect();
                self.put(&whole, refused);
            }
        }
        for at in over_limit {
            self.answers[at].deny_over_limit(self.parts[at].excess == Excess::Charge);
        }
        Ok(())
    }

    /// Refunds the charges of the checks at these positions.
    fn refund(&mut self, positions: &[usize]) {
        let checks = self.subjects.at(positions).with_verb(Verb::Check);
        let mut charged: Vec<_> = positions.iter().map(|at| Some(self.answers[*at])).collect();
        self.request.refund_parts(&self.request.parts(&checks), &mut charged, self.asked);
        self.put(positions, charged.into_iter().flatten());
    }

    fn denials(&self) -> Denials {
        Denials::of(&self.parts, |at| self.answers[at].is_denied())
    }

    fn positions(&self, keep: impl Fn(&Part) -> bool) -> Positions {
        (0..self.parts.len()).filter(|at| keep(&self.parts[*at])).collect()
    }

    fn put(&mut self, positions: &[usize], decided: impl IntoIterator<Item = Decision>) {
        for (at, decision) in positions.iter().zip(decided) {
            self.answers[*at] = decision;
        }
    }
}

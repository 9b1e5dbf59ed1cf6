//! Requests with keys in several slots of a cluster, which no single call can decide.
//!
//! The slot whose policies deny most often is charged first, then all others concurrently. If one
//! of them denies or fails, the charges in the other slots are refunded in full, unless they may
//! have ceased to count meanwhile. A denial stands even if another slot does not reply. No limit is
//! exceeded by that. Until the refund, one or two round trips later, another request may be denied
//! because of it; if the process ends before, the charge stays for its window.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use check::Undecided;
use redis_once::{Failure, LastFailure};
use slidegate::internal::instant;
use slidegate::{Decision, Excess, Verdict, verb::Verb};
use smallvec::SmallVec;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::batch::Batcher;
use crate::call::{Answers, Subject, Subjects};
use crate::calls::Calls;

pub(crate) mod check;

pub(super) use check::{SlotPart, ended};
use check::{SlotRefund, SpreadCheck, missing, none_of, put};

/// Decides requests slot by slot.
#[derive(Debug)]
pub(super) struct SlotCalls {
    pub(super) calls: Arc<Calls>,
    /// `None` if checks are not batched.
    pub(super) batcher: Option<Batcher>,
    pub(super) denials: DenialRates,
}

impl SlotCalls {
    /// Checks subjects that are charged all or none, by slot.
    pub(super) async fn check_parts(
        self: &Arc<Self>,
        mut parts: Vec<SlotPart>,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Undecided> {
        let asked = instant();
        parts.sort_by_key(|part| std::cmp::Reverse(self.denials.of(&part.subjects)));
        let mut check = SpreadCheck::new(parts);
        let first = check.parts()[0].subjects.clone();
        check.checked(0, self.decide_part(first, cost, deadline).await);
        let others = if check.has_failed() { 1..1 } else { 1..check.parts().len() };
        if check.is_denied() {
            // The others are peeked at for the reply, and charged only by policies that count
            // denials.
            for part in others {
                let peeked = self.refuse_part(&check.parts()[part].subjects, cost, deadline).await;
                check.refused(part, peeked);
            }
        } else {
            let mut checks = JoinSet::new();
            for part in others {
                let (slots, subjects) = (Arc::clone(self), check.parts()[part].subjects.clone());
                checks.spawn(async move { (part, slots.decide_part(subjects, cost, deadline).await) });
            }
            while let Some(checked) = checks.join_next().await {
                match checked {
                    Ok((part, decided)) => check.checked(part, decided),
                    Err(_) => check.ended_unexpectedly(),
                }
            }
        }
        let (outcome, refunds) = check.end(cost, SOON_US);
        self.send_refunds(refunds, cost, asked);
        outcome
    }

    /// Decides in each slot separately, one after the other.
    pub(super) async fn on_each_slot(
        &self,
        subjects: &Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let parts = self.parts(subjects);
        let mut answers = none_of(&parts);
        for part in parts {
            let decided = self.call_one(&part.subjects, cost, deadline).await?;
            put(&mut answers, &part, decided);
        }
        answers.into_iter().collect::<Option<_>>().ok_or_else(missing)
    }

    /// Decides one request on subjects of one slot.
    async fn call_one(&self, subjects: &Subjects, cost: u64, deadline: Instant) -> Result<Answers, Failure> {
        let last_failure = LastFailure::default();
        // Boxed, because rustc limits how deep futures may nest in those of a caller.
        let answers = Box::pin(self.calls.call(subjects, &[cost], None, deadline, &last_failure)).await?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    /// Decides subjects of one slot; checks share a call with other checks of the same keys.
    pub(super) async fn decide_part(
        self: &Arc<Self>,
        subjects: Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let batched = self.batcher.as_ref().filter(|_| subjects.may_be_batched());
        let answers = match batched {
            Some(batcher) => batcher.check(&self.calls, subjects.clone(), cost, deadline).await?,
            None => self.call_one(&subjects, cost, deadline).await?,
        };
        self.denials.record(&subjects, &answers);
        Ok(answers)
    }

    /// Peeks at subjects of one slot for a request that another slot denied, and charges those that
    /// count denials.
    pub(super) async fn refuse_part(
        &self,
        subjects: &Subjects,
        cost: u64,
        deadline: Instant,
    ) -> Result<Answers, Failure> {
        let mut answers = self.call_one(&subjects.with_verb(Verb::Peek), cost, deadline).await?;
        let (mut positions, mut counted) = (Vec::new(), Subjects(SmallVec::new()));
        for (position, subject) in subjects.0.iter().enumerate() {
            if subject.part.excess == Excess::Count {
                positions.push(position);
                counted.0.push(subject.clone());
            }
        }
        if counted.0.is_empty() {
            return Ok(answers);
        }
        let charged = self.call_one(&counted.with_verb(Verb::Penalize), cost, deadline).await?;
        let peeked = self.call_one(&counted.with_verb(Verb::Peek), cost, deadline).await?;
        for (position, (charged, peeked)) in positions.into_iter().zip(charged.into_iter().zip(peeked)) {
            answers[position] = match answers[position].verdict {
                Verdict::Allow => charged,
                Verdict::Deny => Decision { cost: charged.cost, ..peeked },
            };
        }
        Ok(answers)
    }

    /// Refunds the charges of these parts since `asked`. See [`Self::send_refunds`].
    pub(super) fn refund_parts(
        self: &Arc<Self>,
        charged: &[SlotPart],
        answers: &mut [Option<Decision>],
        cost: u64,
        asked: Instant,
    ) {
        self.send_refunds(check::refunds(charged.iter(), answers, cost, SOON_US), cost, asked);
    }

    /// Refunds charges made since `asked`, in the background and past the deadline: a request that
    /// was not admitted must not stay charged. A charge that may have expired is not refunded, as
    /// that would remove charges of other requests.
    fn send_refunds(self: &Arc<Self>, mut refunds: Vec<SlotRefund>, cost: u64, asked: Instant) {
        if refunds.is_empty() {
            return;
        }
        refunds.sort_by_key(|refund| refund.counts_us);
        let slots = Arc::clone(self);
        let patience = instant() + REFUND_DEADLINE;
        tokio::spawn(async move {
            for SlotRefund { subjects, counts_us } in refunds {
                let counts = asked.checked_add(Duration::from_micros(counts_us)).unwrap_or(patience);
                // A refund that fails stays charged for its window: less is admitted, never more.
                let refund = subjects.with_verb(Verb::Refund);
                let _ = slots.call_one(&refund, cost, patience.min(counts)).await;
            }
            // Denials that were cached meanwhile may be out of date.
            slots.calls.denials.invalidate(patience).await;
        });
    }

    /// The subjects by slot.
    pub(super) fn parts(&self, subjects: &Subjects) -> Vec<SlotPart> {
        let mut by_slot = BTreeMap::<u16, SmallVec<[usize; 2]>>::new();
        for (at, subject) in subjects.0.iter().enumerate() {
            by_slot.entry(self.calls.client.slot(&subject.name)).or_default().push(at);
        }
        let part =
            |positions: SmallVec<[usize; 2]>| SlotPart { subjects: subjects.at(&positions), positions };
        by_slot.into_values().map(part).collect()
    }
}

/// The deadline of a refund.
const REFUND_DEADLINE: Duration = Duration::from_secs(2);
/// Charges that may cease to count before that are refunded apart from the others, and first.
const SOON_US: u64 = 2_000_000;

/// How often each policy has denied recently. The slot that is most likely to deny is charged
/// first, so that few charges must be refunded. Policies may share a rate; no decision depends on
/// it.
#[derive(Debug)]
pub(super) struct DenialRates([AtomicU32; 256]);

impl Default for DenialRates {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU32::new(0)))
    }
}

impl DenialRates {
    /// The highest rate of these subjects' policies, in 2^-16.
    fn of(&self, subjects: &Subjects) -> u32 {
        subjects.0.iter().map(|subject| self.rate(subject).load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    fn record(&self, subjects: &Subjects, answers: &Answers) {
        for (subject, decision) in subjects.0.iter().zip(answers) {
            let rate = self.rate(subject);
            let old = rate.load(Ordering::Relaxed);
            let seen = if subject.part.enforced && decision.is_denied() { 1 << 16 } else { 0 };
            rate.store(old - old / 16 + seen / 16, Ordering::Relaxed);
        }
    }

    fn rate(&self, subject: &Subject) -> &AtomicU32 {
        let policy = subject.name.split(|byte| *byte == b':').rev().nth(1).unwrap_or_default();
        let sum = policy.iter().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte));
        &self.0[usize::from(sum)]
    }
}

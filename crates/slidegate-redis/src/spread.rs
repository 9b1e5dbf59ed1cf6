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

use redis_once::Failure;
use slidegate::internal::instant;
use slidegate::{Decision, Excess, Verdict, verb::Verb};
use smallvec::SmallVec;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::batch::Batcher;
use crate::call::{Answers, Subject, Subjects};

mod check;

pub(super) use check::{SlotPart, Undecided, ended};
use check::{SlotRefund, SpreadCheck, missing, none_of, put};

/// A request with keys in several slots.
#[derive(Debug, Clone)]
pub(super) struct SpreadRequest {
    pub(super) batcher: Batcher,
    pub(super) denial_rates: Arc<DenialRates>,
    pub(super) cost: u64,
    pub(super) deadline: Instant,
}

impl SpreadRequest {
    /// Checks subjects that are charged all or none, by slot.
    pub(super) async fn check_parts(&self, mut parts: Vec<SlotPart>) -> Result<Answers, Undecided> {
        let asked = instant();
        parts.sort_by_key(|part| std::cmp::Reverse(self.denial_rates.of(&part.subjects)));
        let mut check = SpreadCheck::new(parts);
        let first = self.check_part(&check.parts()[0].subjects).await;
        check.checked(0, first);
        let others = if check.has_failed() { 1..1 } else { 1..check.parts().len() };
        if check.is_denied() {
            // The others are peeked at for the reply, and charged only by policies that count
            // denials.
            for part in others {
                let peeked = self.refuse_part(&check.parts()[part].subjects).await;
                check.refused(part, peeked);
            }
        } else {
            let mut checks = JoinSet::new();
            for part in others {
                let (request, subjects) = (self.clone(), check.parts()[part].subjects.clone());
                checks.spawn(async move { (part, request.check_part(&subjects).await) });
            }
            while let Some(checked) = checks.join_next().await {
                match checked {
                    Ok((part, decided)) => check.checked(part, decided),
                    Err(_) => check.ended_unexpectedly(),
                }
            }
        }
        let (outcome, refunds) = check.end(self.cost, SOON_US);
        self.send_refunds(refunds, asked);
        outcome
    }

    /// Decides in each slot separately, one after the other.
    pub(super) async fn on_each_slot(&self, subjects: &Subjects) -> Result<Answers, Failure> {
        let parts = self.parts(subjects);
        let mut answers = none_of(&parts);
        for part in parts {
            let decided = self.decide_part(&part.subjects).await?;
            put(&mut answers, &part, decided);
        }
        answers.into_iter().collect::<Option<_>>().ok_or_else(missing)
    }

    /// Checks subjects of one slot.
    async fn check_part(&self, subjects: &Subjects) -> Result<Answers, Failure> {
        let answers = self.batcher.decide(subjects, self.cost, self.deadline).await?;
        self.denial_rates.record(subjects, &answers);
        Ok(answers)
    }

    /// Decides subjects of one slot by a call of their own.
    async fn decide_part(&self, subjects: &Subjects) -> Result<Answers, Failure> {
        self.batcher.calls.decide_alone(subjects, self.cost, self.deadline).await
    }

    /// Peeks at subjects of one slot for a request that another slot denied, and charges those that
    /// count denials.
    pub(super) async fn refuse_part(&self, subjects: &Subjects) -> Result<Answers, Failure> {
        let mut answers = self.decide_part(&subjects.with_verb(Verb::Peek)).await?;
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
        let charged = self.decide_part(&counted.with_verb(Verb::Penalize)).await?;
        let peeked = self.decide_part(&counted.with_verb(Verb::Peek)).await?;
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
        &self,
        charged: &[SlotPart],
        answers: &mut [Option<Decision>],
        asked: Instant,
    ) {
        self.send_refunds(check::refunds(charged.iter(), answers, self.cost, SOON_US), asked);
    }

    /// Refunds charges made since `asked`, in the background and past the deadline: a request that
    /// was not admitted must not stay charged. A charge that may have expired is not refunded, as
    /// that would remove charges of other requests.
    fn send_refunds(&self, mut refunds: Vec<SlotRefund>, asked: Instant) {
        if refunds.is_empty() {
            return;
        }
        refunds.sort_by_key(|refund| refund.counts_us);
        let (calls, cost) = (Arc::clone(&self.batcher.calls), self.cost);
        let patience = instant() + REFUND_DEADLINE;
        tokio::spawn(async move {
            for SlotRefund { subjects, counts_us } in refunds {
                let counts = asked.checked_add(Duration::from_micros(counts_us)).unwrap_or(patience);
                // A refund that fails stays charged for its window: less is admitted, never more.
                let refund = subjects.with_verb(Verb::Refund);
                let _ = calls.decide_alone(&refund, cost, patience.min(counts)).await;
            }
            // Denials that were cached meanwhile may be out of date.
            calls.denials.invalidate(Some(&[]), patience).await;
        });
    }

    /// The subjects by slot.
    pub(super) fn parts(&self, subjects: &Subjects) -> Vec<SlotPart> {
        let mut by_slot = BTreeMap::<u16, SmallVec<[usize; 2]>>::new();
        for (at, subject) in subjects.0.iter().enumerate() {
            by_slot.entry(self.batcher.calls.client.slot(&subject.name)).or_default().push(at);
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

/// How often each policy has denied such requests recently. The slot that is most likely to deny is charged
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

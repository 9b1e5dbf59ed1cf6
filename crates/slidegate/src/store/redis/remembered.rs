//! Remembered denials: while a denial is still true, nobody is asked again.
//!
//! Nothing is remembered while nobody could tell that it has ended, see [`news`](super::news). A denial's wait counts from
//! when the call was sent, which is before the server decided, so it is never remembered for longer than it is true. It
//! holds for the same keys and for costs at least as large, and ends at once with a refund, a reset or another quota.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::call::{Answers, Subjects};
use crate::decision::{Source, Waits};

/// Most denials that are remembered: an attacker with many keys must not take the memory. Some 500 bytes each.
const MOST: usize = 65_536;

/// Denials by the keys they are about.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    denials: Mutex<HashMap<Subjects, Denial>>,
    /// Whether news of what ends them arrive.
    hears: AtomicBool,
    /// How often all were forgotten.
    forgotten: AtomicU64,
}

/// What was known when a call was sent: what it replies is remembered only if nothing has been forgotten since.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    forgotten: u64,
    sent: Instant,
}

#[derive(Debug)]
struct Denial {
    cost: u64,
    answers: Answers,
    sent: Instant,
    /// When the first of the denying keys has room again.
    until: Instant,
}

impl Remembered {
    /// For a call that is about to be sent.
    pub(crate) fn ticket(&self, sent: Instant) -> Ticket {
        Ticket { forgotten: self.forgotten.load(Ordering::SeqCst), sent }
    }

    /// News arrive from now on, or no more. What was missed meanwhile nobody knows: all is forgotten.
    pub(crate) fn hears(&self, hears: bool) {
        self.hears.store(hears, Ordering::SeqCst);
        self.forget_all();
    }

    /// The denial that is still true of these keys and this cost, with the waits that are left.
    pub(crate) fn answer(&self, subjects: &Subjects, cost: u64, now: Instant) -> Option<Answers> {
        let denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        let denial = denials.get(subjects).filter(|denial| cost >= denial.cost && now < denial.until)?;
        let passed = now.saturating_duration_since(denial.sent);
        let passed_us = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        let mut answers = denial.answers.clone();
        for (subject, answer) in subjects.0.iter().zip(&mut answers) {
            let Waits { retry_us, reset_us, frees_us } = &mut answer.waits;
            for wait in [reset_us, frees_us] {
                *wait = wait.saturating_sub(passed_us);
            }
            if subject.part(cost).asks() > answer.limit {
                *retry_us = Waits::NEVER;
            } else if *retry_us != Waits::NEVER {
                *retry_us = retry_us.saturating_sub(passed_us);
            }
            answer.at = answer.at + passed;
            answer.source = Source::Remembered;
        }
        Some(answers)
    }

    /// Remembers a denial that was asked for with this ticket.
    pub(crate) fn remember(&self, subjects: &Subjects, cost: u64, answers: &Answers, ticket: Ticket) {
        let sent = ticket.sent;
        let denying =
            subjects.0.iter().zip(answers).filter(|(subject, one)| subject.enforced && one.is_denied());
        let Some(wait_us) = denying.map(|(_, one)| one.waits.retry_us).min() else { return };
        // What never fits costs nothing to decide again, and nothing would end it.
        if wait_us == Waits::NEVER {
            return;
        }
        let until = sent + Duration::from_micros(wait_us);
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.hears.load(Ordering::SeqCst) || ticket.forgotten != self.forgotten.load(Ordering::SeqCst) {
            return;
        }
        if denials.len() >= MOST {
            denials.retain(|_, denial| denial.until > sent);
            if denials.len() >= MOST {
                return;
            }
        }
        let denial = Denial { cost, answers: answers.clone(), sent, until };
        denials.insert(subjects.clone(), denial);
    }

    pub(crate) fn forget_all(&self) {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        denials.clear();
    }
}

//! Calls as the native module reads them: what a node that has it is asked instead of a script.

use smallvec::SmallVec;

use super::call::{MOST, Subject, Subjects};
use crate::store::redis::transport::NativeCommand;
use crate::stored::call::{CallPart, DecideCall, MAX_PARTS, MAX_REQUESTS};
use crate::stored::quota_bytes;

/// What the module is asked with a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeTerms<'c> {
    pub(crate) costs: &'c [u64],
    /// Nothing is charged after this, in microseconds of the server's clock.
    pub(crate) latest: u64,
    pub(crate) has_holds: bool,
    /// Whether the call has an idempotency key.
    pub(crate) is_once: bool,
}

impl Subjects {
    /// The command of the module that does what the script of [`call`](Self::call) does. `None` if the
    /// module does not count as far, or reads no call of so many parts.
    pub(crate) fn native_command(&self, costs: &[u64], has_holds: bool) -> Option<NativeCommand> {
        let is_countable = |subject: &Subject| subject.quota.limit().max(subject.quota.burst()) <= MOST;
        let is_decided = self.0.len() <= MAX_PARTS && costs.len() <= MAX_REQUESTS;
        let command =
            if self.alone().is_some() && !has_holds { NativeCommand::Check1 } else { NativeCommand::Decide };
        (is_decided && self.0.iter().all(is_countable)).then_some(command)
    }

    /// The call as the module reads it: of a check of one key the quota.
    pub(crate) fn native_argument(&self, command: NativeCommand, terms: NativeTerms<'_>) -> Vec<u8> {
        if let (NativeCommand::Check1, Some(subject)) = (command, self.alone()) {
            return quota_bytes(&subject.quota);
        }
        let NativeTerms { costs, latest, has_holds, is_once } = terms;
        let mut keys = 0;
        // By subject: the number of its key.
        let mut numbers = SmallVec::<[usize; 4]>::new();
        for (at, subject) in self.0.iter().enumerate() {
            numbers.push(numbers.get(subject.key).copied().unwrap_or(keys));
            keys += usize::from(subject.key == at);
        }
        let part = |(subject, key): (&Subject, &usize)| CallPart {
            key: *key,
            quota: subject.quota,
            part: subject.part,
            own_cost: subject.own_cost,
            hold: subject.hold,
        };
        let parts = self.0.iter().zip(&numbers).map(part).collect();
        let once_ms = is_once.then(|| self.once_ms());
        DecideCall { latest, has_holds, once_ms, costs: costs.into(), parts }.bytes()
    }

    /// How long the first reply to an idempotency key is stored: the longest of the windows and the
    /// times of the holds.
    pub(super) fn once_ms(&self) -> u64 {
        let lasts_us = |subject: &Subject| {
            let ttl_us = subject.hold.map_or(0, |hold| hold.ttl_us);
            subject.quota.window_us().max(ttl_us)
        };
        self.0.iter().map(lasts_us).max().unwrap_or(0).div_ceil(1000)
    }
}

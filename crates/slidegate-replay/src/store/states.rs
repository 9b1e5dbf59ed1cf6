//! The usage of the keys of which something counts.
//!
//! They are few at a time compared with the keys of a log, so they stay in the processor's cache.
//! Each new one examines two others and frees what has expired, which keeps them few.

use slidegate::store::PlainKeyState;
use slidegate::{Algorithm, Decision, Quota, Timestamp, Verb};

use super::PolicyKeys;

/// States that each new one examines: one would suffice to keep pace.
const SWEPT: usize = 2;
/// States among which the weakest is dropped when there are too many.
const CANDIDATES: usize = 16;

/// States of keys in use, up to a maximum.
#[derive(Debug)]
pub(super) struct States {
    slots: Vec<StateSlot>,
    free: Vec<u32>,
    /// The slot at which the next sweep begins.
    hand: usize,
    max_states: usize,
    /// States that were dropped while they still counted.
    pub(super) dropped: u64,
}

/// A state, and whose it is.
#[derive(Debug)]
pub(super) struct StateSlot {
    pub(super) state: PlainKeyState,
    /// Until then it need not be examined: something counts at least until then, or it is free.
    counts_until: Timestamp,
    algorithm: Algorithm,
    /// Whether it was charged more than once: such keys are dropped last.
    is_repeated: bool,
    /// Whether it is in use.
    is_taken: bool,
    quota: u32,
    policy: u32,
    /// The position of its key's record.
    record: u32,
}

impl StateSlot {
    fn unused(algorithm: Algorithm) -> Self {
        let state = PlainKeyState::new(algorithm);
        let counts_until = Timestamp::EPOCH;
        let (is_repeated, is_taken) = (false, false);
        Self { state, counts_until, algorithm, is_repeated, is_taken, quota: 0, policy: 0, record: 0 }
    }

    /// Charges a new state.
    #[inline]
    pub(super) fn charge_first(&mut self, quota: &Quota, cost: u64, now: Timestamp) -> u64 {
        self.counts_until = now + quota.window();
        self.state.charge(quota, cost, now)
    }

    /// Charges a state that was charged before.
    #[inline]
    pub(super) fn charge_again(&mut self, quota: &Quota, cost: u64, now: Timestamp) -> u64 {
        self.is_repeated = true;
        self.charge_first(quota, cost, now)
    }

    /// Carries out a verb on a new state.
    pub(super) fn apply_first(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision {
        self.state.apply(quota, verb, cost, now)
    }

    /// Carries out a verb on a state that was charged before.
    pub(super) fn apply(&mut self, quota: &Quota, verb: Verb, cost: u64, now: Timestamp) -> Decision {
        self.is_repeated |= verb != Verb::Peek;
        self.state.apply(quota, verb, cost, now)
    }
}

/// Whose state is new.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateOwner {
    pub(super) policy: u32,
    pub(super) record: usize,
    pub(super) quota: u32,
}

impl States {
    pub(super) fn new(max_states: usize) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), hand: 0, max_states: max_states.max(1), dropped: 0 }
    }

    #[inline]
    pub(super) fn at(&mut self, state: u32) -> &mut StateSlot {
        &mut self.slots[state as usize]
    }

    pub(super) fn max_states(&self) -> usize {
        self.max_states
    }

    /// An unused state for a key that has none.
    pub(super) fn add(
        &mut self,
        owner: StateOwner,
        policies: &mut [PolicyKeys],
        now: Timestamp,
    ) -> &mut StateSlot {
        for _ in 0..SWEPT.min(self.slots.len()) {
            let at = self.next();
            let slot = &self.slots[at];
            if slot.is_taken && slot.counts_until <= now && self.used(at, policies, now) == 0 {
                self.release(at, policies);
            }
        }
        if self.slots.len() - self.free.len() >= self.max_states {
            self.drop_weakest(policies, now);
        }
        let PolicyKeys { keys, algorithm, .. } = &mut policies[owner.policy as usize];
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(StateSlot::unused(*algorithm));
            u32::try_from(self.slots.len() - 1).expect("a bounded number of states")
        });
        keys.at(owner.record).set_state(at);
        let slot = &mut self.slots[at as usize];
        // An expired log is empty and keeps its memory. What counters and buckets hold when nothing of
        // it counts depends on their quota, which is another one now.
        if slot.algorithm != *algorithm || *algorithm != Algorithm::SlidingLog {
            *slot = StateSlot::unused(*algorithm);
        }
        (slot.is_taken, slot.is_repeated) = (true, false);
        slot.counts_until = Timestamp::EPOCH;
        (slot.quota, slot.policy) = (owner.quota, owner.policy);
        #[allow(clippy::cast_possible_truncation)] // fewer than 2^32 keys are in memory
        let record = owner.record as u32;
        slot.record = record;
        slot
    }

    /// The record of a state's key is elsewhere now.
    #[allow(clippy::cast_possible_truncation)] // fewer than 2^32 keys are in memory
    pub(super) fn moved(&mut self, state: u32, policy: u32, record: usize) {
        let slot = &mut self.slots[state as usize];
        debug_assert!(slot.is_taken && slot.policy == policy);
        slot.record = record as u32;
    }

    /// Frees a state that is unused.
    pub(super) fn release(&mut self, at: usize, policies: &mut [PolicyKeys]) {
        let slot = &mut self.slots[at];
        slot.is_taken = false;
        policies[slot.policy as usize].keys.at(slot.record as usize).clear();
        self.free.push(u32::try_from(at).expect("a bounded number of states"));
    }

    /// Frees a state of which something may count.
    pub(super) fn forget(&mut self, at: usize, policies: &mut [PolicyKeys]) {
        self.release(at, policies);
        let slot = &mut self.slots[at];
        slot.state = PlainKeyState::new(slot.algorithm);
    }

    fn next(&mut self) -> usize {
        let at = if self.hand < self.slots.len() { self.hand } else { 0 };
        self.hand = at + 1;
        at
    }

    fn used(&mut self, at: usize, policies: &[PolicyKeys], now: Timestamp) -> u64 {
        let slot = &mut self.slots[at];
        let quota = &policies[slot.policy as usize].quotas[slot.quota as usize].quota;
        slot.state.room(quota, 0, now).used
    }

    /// Drops the weakest of some states: an expired one, else one that was charged only once, else
    /// the one that has used the smallest share of its limit.
    #[cold]
    fn drop_weakest(&mut self, policies: &mut [PolicyKeys], now: Timestamp) {
        let mut weakest: Option<((bool, bool, u64), usize)> = None;
        let mut seen = 0;
        // Free slots are passed over. There is a state, as there are too many.
        while seen < CANDIDATES && seen < self.max_states {
            let at = self.next();
            if !self.slots[at].is_taken {
                continue;
            }
            seen += 1;
            let used = self.used(at, policies, now);
            let slot = &self.slots[at];
            let capacity = policies[slot.policy as usize].quotas[slot.quota as usize].quota.capacity();
            let share = u64::try_from(u128::from(used) * 1000 / u128::from(capacity.max(1)));
            let rank = (used > 0, slot.is_repeated, share.unwrap_or(u64::MAX));
            if weakest.is_none_or(|(least, _)| rank < least) {
                weakest = Some((rank, at));
            }
        }
        if let Some(((counts, ..), at)) = weakest {
            self.dropped += u64::from(counts);
            self.forget(at, policies);
        }
    }
}

//! The gate that decides the entries of a log, on a clock that follows them.

use std::sync::Arc;

use slidegate::{Gate, ManualClock, MemoryStats, MemoryStore, PolicySet, Request, Timestamp, Verb};

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
}

impl Decider {
    /// A gate with an empty store that holds up to `max_keys` keys.
    pub(crate) fn new(policies: PolicySet, max_keys: usize) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
        Self { gate: Gate::with_memory(policies, store), clock, now: Timestamp::EPOCH }
    }

    /// Sets the clock to the time of an entry, or leaves it if that is earlier. Returns the time.
    #[inline]
    pub(crate) fn follow(&mut self, time_us: u64) -> Timestamp {
        let time = Timestamp::from_micros(time_us);
        if time > self.now {
            self.now = time;
            self.clock.set(time);
        }
        self.now
    }

    #[inline]
    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Refunds or penalizes what a recording says was refunded or penalized. Peeks change nothing.
    pub(crate) fn adjust(&self, request: &Request<'_>) {
        if self.has_policy_of(request) && request.own_verb() != Verb::Peek {
            self.gate.apply(std::slice::from_ref(request));
        }
    }

    /// Whether the policies have the one that a recorded request was under, if it was under one.
    #[inline]
    pub(crate) fn has_policy_of(&self, request: &Request<'_>) -> bool {
        request.named_policy().is_none_or(|name| self.gate.policies().by_name(name).is_some())
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    pub(crate) fn store(&self) -> MemoryStats {
        self.gate.store().stats()
    }
}

//! The gate that decides log entries, with a clock that follows the log.

use slidegate::{
    Decisions, Gate, MemoryStore, PolicySet, Request,
    clock::{ManualClock, Timestamp},
};

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
}

/// Bounds of a replay or diff.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Maximum keys in memory at once, per set of policies and per value of a sweep. The outcome
    /// reports if more were needed.
    pub max_keys: usize,
    /// Maximum keys listed per policy, or per direction of a diff.
    pub top: usize,
    /// Threads that decide, besides the reading one; 0 for none. The outcome does not depend on it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_keys: MemoryStore::DEFAULT_MAX_KEYS, top: 5, threads: 0 }
    }
}

impl Decider {
    pub(crate) fn new(policies: PolicySet, options: Options) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(options.max_keys).clock(clock.clone()).build();
        Self { gate: Gate::with_memory(policies, store), clock, now: Timestamp::EPOCH }
    }

    /// Decides a request at its time, or at the current time if that is later.
    pub(crate) fn decide<'r>(&mut self, time_us: u64, request: &'r Request<'r>) -> Decisions<'r> {
        self.now = self.now.max(Timestamp::from_micros(time_us));
        self.clock.set(self.now);
        self.gate.check(request)
    }

    /// The current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }
}

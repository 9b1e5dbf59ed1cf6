//! The gate that decides the entries of a log, on a clock that follows them.

use slidegate::{Decisions, Gate, ManualClock, MemoryStore, PolicySet, Timestamp};

use crate::batch::Line;

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
}

/// Bounds of a replay, or of a diff.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most keys in memory at once, for each set of policies and each value of a sweep. The outcome
    /// says if more were needed.
    pub max_keys: usize,
    /// Most keys that the outcome lists for each policy, or in each direction of a diff.
    pub top: usize,
    /// Threads that decide, besides the one that reads; 0 for none. The outcome is the same with
    /// any number.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_keys: MemoryStore::DEFAULT_MAX_KEYS, top: 5, threads: 0 }
    }
}

impl Decider {
    /// A gate with an empty store.
    pub(crate) fn new(policies: PolicySet, options: Options) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(options.max_keys).clock(clock.clone()).build();
        Self { gate: Gate::with_memory(policies, store), clock, now: Timestamp::EPOCH }
    }

    /// Decides a line at its time, or at the time reached if that is later.
    pub(crate) fn decide<'r>(&mut self, line: Line<'r>) -> Decisions<'r> {
        self.now = self.now.max(Timestamp::from_micros(line.entry.time_us));
        self.clock.set(self.now);
        self.gate.check(line.request)
    }

    /// The time reached.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }
}

//! What several limits would have denied, decided by the exact log.
//!
//! Only keys that are above the lowest limit in some window can be denied. They are few, so that
//! all limits are tried at once.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use slidegate::{Gate, ManualClock, MemoryStore, Policy, PolicySet, Quota, Request, Timestamp};

use super::peaks::KeyPeaks;

/// The slots of the logs: as many as there may be, so that limits up to this are exact.
const SLOTS: u16 = u16::MAX - 1;

/// Limits that are tried.
#[derive(Debug)]
pub(super) struct Trial {
    limits: Vec<u64>,
    /// One shadow policy for each limit.
    gate: Gate,
    clock: ManualClock,
    busy: HashSet<u64>,
    /// By limit, the denied requests of each key.
    denied: Vec<HashMap<u64, u64>>,
}

/// A limit, and what it would have denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) limit: u64,
    pub(super) denied: u64,
    pub(super) denied_keys: usize,
}

impl Trial {
    /// `limits` are in ascending order, and the last one denies nothing.
    pub(super) fn new(window: Duration, peaks: &KeyPeaks, limits: Vec<u64>) -> Self {
        let busy: HashSet<u64> = peaks.above(limits[0]).collect();
        let clock = ManualClock::at(Timestamp::EPOCH);
        let keys = (busy.len() * limits.len()).max(1);
        let store = MemoryStore::builder().max_keys(keys).clock(clock.clone()).build();
        let policies = limits.iter().map(|limit| {
            let quota = Quota::new(*limit, window).expect("the window was checked").with_slots(SLOTS);
            let policy = Policy::new(format!("limit-{limit}"), quota).expect("the name is valid");
            policy.with_scope(["key"]).shadow()
        });
        let policies = PolicySet::new(policies).expect("policies have names of their own");
        let denied = limits.iter().map(|_| HashMap::new()).collect();
        Self { gate: Gate::with_memory(policies, store), limits, clock, busy, denied }
    }

    pub(super) fn check(&mut self, key: u64, now: Timestamp, cost: u64) {
        if !self.busy.contains(&key) {
            return;
        }
        self.clock.set(now);
        let bytes = key.to_le_bytes();
        let request = Request::new().with("key", &bytes).with_cost(cost);
        let decisions = self.gate.check(&request);
        for one in decisions.iter().filter(|one| one.is_denied()) {
            *self.denied[one.position()].entry(key).or_default() += 1;
        }
    }

    /// The smallest limit for which the number of denied requests is accepted.
    pub(super) fn choose(&self, is_accepted: impl Fn(u64) -> bool) -> Choice {
        let choice = |at: usize| {
            let denied = &self.denied[at];
            Choice { limit: self.limits[at], denied: denied.values().sum(), denied_keys: denied.len() }
        };
        let choices = (0..self.limits.len()).map(choice);
        choices
            .clone()
            .find(|choice| is_accepted(choice.denied))
            .unwrap_or_else(|| choice(self.limits.len() - 1))
    }
}

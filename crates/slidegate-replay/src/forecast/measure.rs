//! What a log says about the keys of policies: how many exist at once, and how busy they are.
//!
//! Keys count as existing for two windows and five seconds after a request, which is the longest
//! time to live of a key in Redis.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use slidegate::{Gate, ManualClock, MemoryStore, PolicySet, Request, Timestamp};

use super::Demand;
use crate::attributes::with_request;
use crate::entry::Entry;

/// Keys that are followed one by one, for each policy: 24 bytes each, so about 200 MB.
const MAX_KEYS: usize = 4_000_000;
/// Steps into which the life of a key is divided. So many keys may be counted a step too long.
const STEPS: u64 = 64;
/// A key in Redis lives for at most two windows and this long (docs/redis-layout.md).
const MARGIN_US: u64 = 5_000_000;

/// Follows the keys of policies through a log.
#[derive(Debug)]
pub struct Measurement {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
    hasher: RandomState,
    policies: Vec<PolicyKeys>,
}

/// The keys of one policy.
#[derive(Debug)]
struct PolicyKeys {
    /// Length of a step.
    step_us: u64,
    /// The step in which each key had its last request.
    last_steps: HashMap<u64, u64>,
    /// The steps of one life, the newest last.
    steps: VecDeque<Step>,
    live: u64,
    max_live: u64,
    /// Requests that counted at once, when most did.
    max_charges: u64,
    key_bytes: u64,
    max_cost: u64,
    /// The second of the last request and the requests in it.
    second: (u64, u64),
    max_per_second: u64,
    is_full: bool,
}

/// Requests of one step.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    number: u64,
    /// Keys whose last request was in it.
    keys: u64,
    /// Requests that were charged.
    charges: u64,
}

impl Measurement {
    /// Starts with an empty store that holds up to `max_keys` keys.
    #[must_use]
    pub fn new(policies: PolicySet, max_keys: usize) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(max_keys).clock(clock.clone()).build();
        let keys = policies.iter().map(|policy| PolicyKeys::new(policy.quota().window())).collect();
        Self {
            gate: Gate::with_memory(policies, store),
            clock,
            now: Timestamp::EPOCH,
            hasher: RandomState::new(),
            policies: keys,
        }
    }

    /// Decides and follows one entry.
    pub fn count(&mut self, entry: &Entry<'_>) {
        self.now = self.now.max(Timestamp::from_micros(entry.time_us));
        self.clock.set(self.now);
        with_request(entry, |request| self.count_check(request));
    }

    fn count_check(&mut self, request: &Request<'_>) {
        let decisions = self.gate.check(request);
        for decision in decisions.iter() {
            let key = decision.key().to_bytes();
            let keys = &mut self.policies[decision.position()];
            let hash = self.hasher.hash_one(&key);
            let bytes = || decision.key().to_string().len() as u64;
            keys.count(hash, self.now.as_micros(), decisions.is_allowed(), bytes);
            keys.max_cost = keys.max_cost.max(decision.asked().ceil());
        }
    }

    /// The policies, in the order of the demands.
    #[must_use]
    pub fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    /// What the log says about each policy.
    #[must_use]
    pub fn demands(&self) -> Vec<Demand> {
        self.policies.iter().map(PolicyKeys::demand).collect()
    }

    /// Whether there were more keys than are followed, so that the numbers are too small.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        self.policies.iter().any(|keys| keys.is_full)
    }
}

impl PolicyKeys {
    fn new(window: std::time::Duration) -> Self {
        let window_us = u64::try_from(window.as_micros()).unwrap_or(u64::MAX / 4);
        Self {
            step_us: (2 * window_us + MARGIN_US).div_ceil(STEPS),
            last_steps: HashMap::new(),
            steps: VecDeque::new(),
            live: 0,
            max_live: 0,
            max_charges: 0,
            key_bytes: 0,
            max_cost: 1,
            second: (0, 0),
            max_per_second: 0,
            is_full: false,
        }
    }

    fn count(&mut self, key: u64, now_us: u64, is_charged: bool, key_bytes: impl Fn() -> u64) {
        let second = now_us / 1_000_000;
        self.second = (second, if self.second.0 == second { self.second.1 + 1 } else { 1 });
        self.max_per_second = self.max_per_second.max(self.second.1);
        self.advance(now_us / self.step_us);
        let newest = self.steps.back_mut().expect("the current step is there");
        newest.charges += u64::from(is_charged);
        let current = newest.number;
        let is_full = self.last_steps.len() >= MAX_KEYS;
        match self.last_steps.get_mut(&key) {
            Some(last) if *last == current => return,
            Some(last) => {
                let former = std::mem::replace(last, current);
                match self.steps.iter_mut().find(|step| step.number == former) {
                    Some(step) => step.keys -= 1,
                    None => self.live += 1,
                }
            }
            None if is_full => {
                self.is_full = true;
                return;
            }
            None => {
                self.last_steps.insert(key, current);
                self.key_bytes += key_bytes();
                self.live += 1;
            }
        }
        self.steps.back_mut().expect("the current step is there").keys += 1;
        self.max_live = self.max_live.max(self.live);
    }

    /// Requests that were charged within about one window, which is half of a life.
    fn recent_charges(&self) -> u64 {
        let newest = self.steps.back().map_or(0, |step| step.number);
        let recent = self.steps.iter().filter(|step| step.number + STEPS / 2 > newest);
        recent.map(|step| step.charges).sum()
    }

    /// Begins this step, and forgets those that are a life ago.
    fn advance(&mut self, current: u64) {
        if self.steps.back().is_some_and(|step| step.number == current) {
            return;
        }
        self.max_charges = self.max_charges.max(self.recent_charges());
        while let Some(oldest) = self.steps.front().filter(|step| step.number + STEPS < current) {
            self.live -= oldest.keys;
            self.steps.pop_front();
        }
        self.steps.push_back(Step { number: current, ..Step::default() });
    }

    fn demand(&self) -> Demand {
        let seen = self.last_steps.len().max(1) as u64;
        let charges = self.max_charges.max(self.recent_charges());
        #[allow(clippy::cast_precision_loss)] // rates and averages
        let (rate, charges) = (self.max_per_second as f64, charges as f64 / self.max_live.max(1) as f64);
        Demand {
            keys: self.max_live,
            key_bytes: self.key_bytes.div_ceil(seen),
            decisions_per_second: rate,
            cost: self.max_cost,
            charges_per_key: Some(charges),
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{Policy, Quota};

    use super::*;
    use crate::reader::LogReader;

    /// A line of this client, this many seconds after ten.
    fn line(client: &str, second: u64) -> String {
        let (minute, second) = (second / 60, second % 60);
        format!("{client} - - [20/Nov/2026:10:{minute:02}:{second:02} +0000] \"GET / HTTP/1.1\" 200 5\n")
    }

    fn demand(log: &str) -> Demand {
        let policy = Policy::new("per-ip", Quota::per_minute(10)).unwrap().with_scope(["ip"]);
        let mut measurement = Measurement::new(PolicySet::new([policy]).unwrap(), 1000);
        let mut reader = LogReader::from_reader(std::io::Cursor::new(log.as_bytes().to_vec())).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            measurement.count(&entry);
        }
        measurement.demands()[0]
    }

    /// Memory is for the keys that exist together, not for all that ever came.
    #[test]
    fn keys_count_for_two_windows_and_five_seconds_after_their_last_request() {
        // Ten clients at once, and one every three minutes afterwards: never two together.
        let busy: String = (0..10).map(|n| line(&format!("10.0.0.{n}"), 1)).collect();
        let quiet: String = (1..15).map(|n| line(&format!("10.0.1.{n}"), n * 180)).collect();
        assert_eq!(demand(&quiet).keys, 1);
        assert_eq!(demand(&format!("{busy}{quiet}")).keys, 10);
        // One that keeps coming is one.
        let same: String = (0..20).map(|n| line("10.0.0.1", n * 30)).collect();
        assert_eq!(demand(&same).keys, 1);
        // A hundred seconds apart they exist together.
        let near: String = (0..20).map(|n| line(&format!("10.0.1.{n}"), n * 100)).collect();
        assert_eq!(demand(&near).keys, 2);
    }

    /// The rate decides about CPUs: it is that of the worst second.
    #[test]
    fn the_rate_is_that_of_the_busiest_second_and_charges_are_those_of_a_window() {
        let log: String = (0..40).map(|n| line("10.0.0.1", if n < 7 { 5 } else { 5 + n })).collect();
        let demand = demand(&log);
        assert_eq!((demand.decisions_per_second, demand.keys, demand.cost), (7.0, 1, 1));
        assert_eq!(demand.key_bytes, "10.0.0.1".len() as u64);
        // Ten of the forty fit.
        assert_eq!(demand.charges_per_key, Some(10.0));
    }
}

//! The busiest window of each key.
//!
//! A window is divided into steps, and the sum of the steps that a window can touch is at least
//! what any one window has: a peak may be up to a step's cost too high, and never too low.

use std::collections::HashMap;
use std::time::Duration;

/// Keys that are followed one by one: 100 bytes each, so about 100 MB.
const MAX_KEYS: usize = 1_000_000;
/// Steps that a window can touch: one more than it consists of.
const TOUCHED: usize = 13;
/// Steps of a window.
const STEPS: u64 = TOUCHED as u64 - 1;

/// The peaks of all keys.
#[derive(Debug)]
pub(super) struct KeyPeaks {
    step_us: u64,
    keys: HashMap<u64, KeyPeak>,
    requests: u64,
    is_full: bool,
}

#[derive(Debug, Clone, Default)]
struct KeyPeak {
    newest: u64,
    steps: [u32; TOUCHED],
    peak: u64,
    requests: u64,
}

/// How the peaks of keys are distributed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Percentiles {
    pub(super) keys: usize,
    pub(super) p50: u64,
    pub(super) p95: u64,
    pub(super) p99: u64,
    pub(super) p999: u64,
    pub(super) max: u64,
}

impl KeyPeaks {
    pub(super) fn new(window: Duration) -> Self {
        let window_us = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        Self { step_us: window_us.div_ceil(STEPS), keys: HashMap::new(), requests: 0, is_full: false }
    }

    /// Counts a request. Times never decrease.
    pub(super) fn count(&mut self, key: u64, now_us: u64, cost: u64) {
        self.requests += 1;
        if self.keys.len() >= MAX_KEYS && !self.keys.contains_key(&key) {
            self.is_full = true;
            return;
        }
        self.keys.entry(key).or_default().count(now_us / self.step_us, cost);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests
    }

    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The most requests of one key.
    pub(super) fn busiest(&self) -> u64 {
        self.keys.values().map(|one| one.requests).max().unwrap_or_default()
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.is_full
    }

    /// The keys whose peak is above this.
    pub(super) fn above(&self, peak: u64) -> impl Iterator<Item = u64> {
        self.keys.iter().filter(move |(_, one)| one.peak > peak).map(|(key, _)| *key)
    }

    pub(super) fn percentiles(&self) -> Percentiles {
        let mut peaks: Vec<_> = self.keys.values().map(|one| one.peak).collect();
        peaks.sort_unstable();
        // The nearest rank: the least peak that this many in a thousand do not exceed.
        let at = |per_mille: usize| {
            let rank = (peaks.len() * per_mille).div_ceil(1000).max(1);
            peaks.get(rank - 1).copied().unwrap_or_default()
        };
        Percentiles {
            keys: peaks.len(),
            p50: at(500),
            p95: at(950),
            p99: at(990),
            p999: at(999),
            max: at(1000),
        }
    }
}

impl KeyPeak {
    fn count(&mut self, step: u64, cost: u64) {
        // Those between the last step and this one had no requests.
        let passed = (step - self.newest).min(TOUCHED as u64);
        for empty in step - passed..step {
            self.steps[slot(empty + 1)] = 0;
        }
        self.newest = step;
        self.requests += 1;
        let current = &mut self.steps[slot(step)];
        *current = current.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        self.peak = self.peak.max(self.steps.iter().map(|cost| u64::from(*cost)).sum());
    }
}

fn slot(step: u64) -> usize {
    usize::try_from(step % TOUCHED as u64).unwrap_or_default()
}

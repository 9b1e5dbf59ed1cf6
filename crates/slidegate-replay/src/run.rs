//! Decides each entry of a log through a gate whose clock follows the entries.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;
use slidegate::{Gate, ManualClock, MemoryStats, MemoryStore, Policy, PolicyDecision, PolicySet, Timestamp};

use crate::attributes::request;
use crate::entry::Entry;

/// Keys that are counted one by one, for each policy: 16 bytes each, so about 100 MB. Past it the
/// count is a bound.
const MAX_COUNTED_KEYS: usize = 4_000_000;
/// Denied keys of which the number of denials is kept, for each policy.
const MAX_DENIED_KEYS: usize = 1_000_000;

/// Bounds of a replay, and how it words policies and decisions.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most keys in memory at once. The report says if more were needed.
    pub max_keys: usize,
    /// Most denied keys that the report lists for each policy.
    pub top: usize,
    /// Describes a policy in one line, for the report.
    pub describe: fn(&Policy) -> String,
    /// Explains a decision in one line; `None` if no enforced policy applied to the request.
    pub explain: fn(Option<&PolicyDecision<'_>>) -> String,
}

/// A gate whose clock follows a log, and what it has decided so far.
#[derive(Debug)]
pub struct Replay {
    gate: Gate,
    pub(crate) options: Options,
    clock: ManualClock,
    now: Timestamp,
    hasher: RandomState,
    /// In the order of the policies.
    pub(crate) counts: Vec<ReplayCounts>,
    /// Requests that no policy applied to.
    pub(crate) unmatched: u64,
    /// Requests that an enforced policy denied.
    pub(crate) denied: u64,
}

/// What one policy decided.
#[derive(Debug, Default)]
pub(crate) struct ReplayCounts {
    pub(crate) seen: u64,
    pub(crate) denied: u64,
    /// Hashes of the keys seen.
    keys: HashSet<u64>,
    pub(crate) denied_keys: HashMap<String, DeniedKey>,
    /// Denials on keys beyond [`MAX_DENIED_KEYS`].
    pub(crate) denied_uncounted: u64,
}

/// A key that was denied at least once.
#[derive(Debug)]
pub(crate) struct DeniedKey {
    pub(crate) denied: u64,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// Why it was denied the first time.
    pub(crate) why: String,
}

impl ReplayCounts {
    /// How many keys were seen, and whether there were more.
    pub(crate) fn keys(&self) -> (usize, bool) {
        (self.keys.len(), self.keys.len() == MAX_COUNTED_KEYS)
    }
}

impl Replay {
    /// Starts with an empty store under these policies.
    #[must_use]
    pub fn new(policies: PolicySet, options: Options) -> Self {
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(options.max_keys).clock(clock.clone()).build();
        let counts = policies.iter().map(|_| ReplayCounts::default()).collect();
        Self {
            gate: Gate::with_memory(policies, store),
            options,
            clock,
            now: Timestamp::EPOCH,
            hasher: RandomState::new(),
            counts,
            unmatched: 0,
            denied: 0,
        }
    }

    /// Decides one entry at its time, and writes the decision as a line of JSON to `each`.
    ///
    /// An entry older than the last one is decided at the time of the last one.
    ///
    /// # Errors
    /// The line cannot be written. The entry is decided anyway.
    pub fn decide(&mut self, entry: &Entry<'_>, each: Option<&mut dyn Write>) -> io::Result<()> {
        self.now = self.now.max(Timestamp::from_micros(entry.time_us));
        self.clock.set(self.now);
        let status = entry.status.to_string();
        let request = request(entry, &status);
        let decisions = self.gate.check(&request);
        if decisions.iter().len() == 0 {
            self.unmatched += 1;
        }
        if decisions.is_denied() {
            self.denied += 1;
        }
        for decision in decisions.iter() {
            self.counts[decision.position()].count(&decision, &self.hasher, self.options.explain);
        }
        let Some(out) = each else { return Ok(()) };
        let strictest = decisions.strictest();
        let line = DecisionLine {
            time: rfc3339(self.now),
            allowed: decisions.is_allowed(),
            policy: strictest.map(|decision| decision.policy().name()),
            key: strictest.map(|decision| decision.key().to_string()),
            remaining: strictest.map(|decision| decision.remaining()),
            why: (self.options.explain)(strictest.as_ref()),
        };
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }

    pub(crate) fn store(&self) -> MemoryStats {
        self.gate.store().stats()
    }
}

/// One decision as a line of JSON.
#[derive(Serialize)]
struct DecisionLine<'a> {
    time: String,
    allowed: bool,
    policy: Option<&'a str>,
    key: Option<String>,
    remaining: Option<u64>,
    why: String,
}

/// A time in RFC 3339.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| format!("{micros} us"), |time| time.to_string())
}

impl ReplayCounts {
    fn count(
        &mut self,
        decision: &PolicyDecision<'_>,
        hasher: &RandomState,
        explain: fn(Option<&PolicyDecision<'_>>) -> String,
    ) {
        self.seen += 1;
        let key = decision.key().to_string();
        if self.keys.len() < MAX_COUNTED_KEYS {
            self.keys.insert(hasher.hash_one(&key));
        }
        if !decision.is_denied() {
            return;
        }
        self.denied += 1;
        let full = self.denied_keys.len() >= MAX_DENIED_KEYS;
        match self.denied_keys.get_mut(&key) {
            Some(known) => {
                known.denied += 1;
                known.last = decision.at();
            }
            None if full => self.denied_uncounted += 1,
            None => {
                let why = explain(Some(decision));
                self.denied_keys
                    .insert(key, DeniedKey { denied: 1, first: decision.at(), last: decision.at(), why });
            }
        }
    }
}

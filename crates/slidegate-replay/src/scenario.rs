//! A scenario: policies that decide the entries of a log, and their results.
//!
//! Its gate's clock follows the log. No algorithm is implemented twice.

use std::io::{self, Write};
use std::sync::Arc;

use slidegate::{
    Decisions, PolicyDecision, PolicySet, clock::Timestamp, internal::PerCharge, store::MemoryStats,
};

use crate::batch::{BatchEntry, EntryBatch};
use crate::decider::{Decider, Options};
use crate::each::DecisionLine;
use crate::keys::SeenKeys;
use crate::live_keys::LiveKeys;
use crate::timeline::{MAX_BUCKETS, Timeline, VerdictCounts};
use crate::wording::Words;

/// Policies on an empty store, and their results so far.
#[derive(Debug)]
pub(crate) struct Scenario {
    decider: Decider,
    pub(crate) tally: Tally,
}

/// The results of a scenario so far.
#[derive(Debug)]
pub(crate) struct Tally {
    words: Words,
    pub(crate) counts: RequestCounts,
    pub(crate) timeline: Timeline<VerdictCounts>,
    pub(crate) live: LiveKeys,
    /// In the order of the policies.
    pub(crate) policies: Vec<PolicyCounts>,
    /// Writes each decision as a line of JSON.
    each: Option<EachWriter>,
    /// Whether the lines of the last batch were written.
    written: io::Result<()>,
}

/// Requests and their verdicts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCounts {
    pub(crate) requests: u64,
    /// Requests that an enforced policy denied.
    pub(crate) denied: u64,
    /// Requests that no policy applied to.
    pub(crate) unmatched: u64,
    /// Denied requests that the server had answered with status 200 to 399.
    pub(crate) denied_successes: u64,
}

/// Decisions of one policy.
#[derive(Debug)]
pub(crate) struct PolicyCounts {
    pub(crate) seen: u64,
    pub(crate) denied: u64,
    pub(crate) timeline: Timeline<u32>,
    pub(crate) keys: SeenKeys,
}

struct EachWriter(Box<dyn Write + Send>);

impl std::fmt::Debug for EachWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EachWriter").finish_non_exhaustive()
    }
}

impl Scenario {
    /// Decides by these policies. With `each`, writes each decision as a line of JSON.
    pub(crate) fn new(
        policies: PolicySet,
        options: Options,
        words: Words,
        each: Option<Box<dyn Write + Send>>,
    ) -> Self {
        let tally = Tally {
            live: LiveKeys::new(
                policies.iter().map(|policy| policy.options().counts.counted(policy.quota())),
            ),
            policies: policies.iter().map(|_| PolicyCounts::new()).collect(),
            words,
            counts: RequestCounts::default(),
            timeline: Timeline::new(MAX_BUCKETS),
            each: each.map(EachWriter),
            written: Ok(()),
        };
        Self { decider: Decider::new(policies, options), tally }
    }

    /// Decides the entries of a batch in their order.
    ///
    /// # Errors
    /// A line cannot be written. The entry is decided anyway.
    pub(crate) fn decide(&mut self, batch: &EntryBatch) -> io::Result<()> {
        let Self { decider, tally } = self;
        batch.for_each(|entry, request| {
            let decisions = decider.decide(entry.time_us, request);
            tally.count(decider.now(), entry, &decisions);
            tally.write_line(decider.now(), &decisions);
        });
        std::mem::replace(&mut tally.written, Ok(()))
    }

    /// Flushes the lines.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.tally.each.as_mut().map_or(Ok(()), |each| each.0.flush())
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.decider.gate().policies()
    }

    pub(crate) fn words(&self) -> &Words {
        &self.tally.words
    }

    pub(crate) fn store(&self) -> MemoryStats {
        self.decider.gate().store().stats()
    }
}

impl Tally {
    fn write_line(&mut self, now: Timestamp, decisions: &Decisions<'_>) {
        if let Some(EachWriter(out)) = &mut self.each
            && self.written.is_ok()
        {
            self.written = DecisionLine::of(now, decisions, &self.words).write(out);
        }
    }

    fn count(&mut self, now: Timestamp, entry: BatchEntry, decisions: &Decisions<'_>) {
        self.counts.requests += 1;
        let bucket = self.timeline.at(now.as_micros());
        if decisions.is_denied() {
            bucket.denied += 1;
            self.counts.denied += 1;
            self.counts.denied_successes += u64::from((200..400).contains(&entry.status));
        } else {
            bucket.allowed += 1;
        }
        self.counts.unmatched += u64::from(decisions.iter().len() == 0);
        let hash = |one: PolicyDecision<'_>| self.policies[one.position()].keys.keys.hash(&one.key());
        let hashes: PerCharge<u64> = decisions.iter().map(hash).collect();
        // Far more keys than a cache holds: finding those of a line at once waits for memory once.
        for (decision, hash) in decisions.iter().zip(&hashes) {
            self.policies[decision.position()].keys.keys.at(*hash);
        }
        for (decision, hash) in decisions.iter().zip(hashes) {
            let counts = &mut self.policies[decision.position()];
            counts.seen += 1;
            if decision.decision().is_denied() {
                counts.denied += 1;
                *counts.timeline.at(now.as_micros()) += 1;
            }
            if let Some(key) = counts.keys.count(hash, &decision, &self.words) {
                self.live.count(&mut key.live, &decision);
            }
        }
    }
}

impl PolicyCounts {
    fn new() -> Self {
        Self { seen: 0, denied: 0, timeline: Timeline::new(MAX_BUCKETS), keys: SeenKeys::default() }
    }
}

//! Scenarios: named sets of policies that decide the entries of a log, and what they decided.
//!
//! Each has a gate of its own, whose clock follows the log. The decisions are those of the gate:
//! there is no second implementation of any algorithm here.

use std::io::{self, Write};
use std::sync::Arc;

use slidegate::{Decisions, MemoryStats, PolicySet, Timestamp, Verb};

use crate::batch::{BatchEntry, EntryBatch};
use crate::compare::Truth;
use crate::decider::Decider;
use crate::each::DecisionLine;
use crate::key_table::KeyTable;
use crate::timeline::{MAX_BUCKETS, Timeline, VerdictCounts};
use crate::wording::Words;

/// A named set of policies over an empty store, and what it has decided so far.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) role: ScenarioRole,
    decider: Decider,
    words: Words,
    pub(crate) counts: RequestCounts,
    pub(crate) timeline: Timeline<VerdictCounts>,
    /// In the order of the policies.
    pub(crate) policies: Vec<PolicyCounts>,
    /// The exact log of what this scenario admitted, to judge it by.
    pub(crate) truth: Option<Box<Truth>>,
    /// Where each decision is written as a line of JSON.
    each: Option<EachWriter>,
}

/// Why a scenario is part of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScenarioRole {
    /// The configuration that was given.
    Configured,
    /// One of those that are compared, with the position of its exact scenario.
    Compared { exact: usize },
    /// The same policies, counted by the exact log.
    Exact,
}

/// Requests and their verdicts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RequestCounts {
    pub(crate) requests: u64,
    /// Requests that an enforced policy denied.
    pub(crate) denied: u64,
    /// Requests that no policy applied to.
    pub(crate) unmatched: u64,
    /// Denied requests that the server had answered with success, status 200 to 399.
    pub(crate) denied_successes: u64,
}

/// What one policy decided.
#[derive(Debug)]
pub(crate) struct PolicyCounts {
    pub(crate) seen: u64,
    pub(crate) denied: u64,
    pub(crate) timeline: Timeline<u32>,
    pub(crate) keys: KeyTable,
}

struct EachWriter(Box<dyn Write + Send>);

impl std::fmt::Debug for EachWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EachWriter").finish_non_exhaustive()
    }
}

impl Scenario {
    pub(crate) fn new(
        name: impl Into<String>,
        role: ScenarioRole,
        policies: PolicySet,
        max_keys: usize,
        words: Words,
    ) -> Self {
        let is_compared = matches!(role, ScenarioRole::Compared { .. });
        let truth = is_compared.then(|| Box::new(Truth::of(&policies, max_keys)));
        Self {
            name: name.into(),
            role,
            policies: policies.iter().map(|_| PolicyCounts::default()).collect(),
            decider: Decider::new(policies, max_keys),
            words,
            counts: RequestCounts::default(),
            timeline: Timeline::new(MAX_BUCKETS),
            truth,
            each: None,
        }
    }

    /// Writes each decision as a line of JSON.
    pub(crate) fn write_each(&mut self, to: Box<dyn Write + Send>) {
        self.each = Some(EachWriter(to));
    }

    /// Decides the entries of a batch in their order.
    ///
    /// # Errors
    /// A line cannot be written. The entry is decided anyway.
    pub(crate) fn decide(&mut self, batch: &EntryBatch) -> io::Result<()> {
        let mut written = Ok(());
        batch.for_each(|entry, request| {
            let now = self.decider.follow(entry.time_us);
            if request.own_verb() != Verb::Check {
                self.decider.adjust(request);
                if let Some(truth) = &mut self.truth {
                    truth.adjust(now, request);
                }
                return;
            }
            if !self.decider.has_policy_of(request) {
                self.count_unmatched(now);
                return;
            }
            let expected = self.truth.as_mut().map(|truth| truth.peek(now, request));
            let decisions = self.decider.gate().check(request);
            self.count(now, entry, &decisions);
            if let (Some(truth), Some(expected)) = (&mut self.truth, expected) {
                truth.judge(request, &decisions, &expected, &self.words);
            }
            if let Some(EachWriter(out)) = &mut self.each
                && written.is_ok()
            {
                written = DecisionLine::of(now, &decisions, &self.words).write(out);
            }
        });
        written
    }

    /// Writes what is buffered of the lines of [`write_each`](Self::write_each).
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.each.as_mut().map_or(Ok(()), |each| each.0.flush())
    }

    /// Counts a request that was under a policy which these policies do not have.
    fn count_unmatched(&mut self, now: Timestamp) {
        self.counts.requests += 1;
        self.counts.unmatched += 1;
        self.timeline.at(now.as_micros()).allowed += 1;
    }

    #[inline]
    fn count(&mut self, now: Timestamp, entry: BatchEntry, decisions: &Decisions<'_>) {
        let now_us = now.as_micros();
        let is_denied = decisions.is_denied();
        self.counts.requests += 1;
        let bucket = self.timeline.at(now_us);
        if is_denied {
            bucket.denied += 1;
            self.counts.denied += 1;
            self.counts.denied_successes += u64::from((200..400).contains(&entry.status));
        } else {
            bucket.allowed += 1;
        }
        let mut policies = 0;
        for decision in decisions.iter() {
            policies += 1;
            let counts = &mut self.policies[decision.position()];
            counts.seen += 1;
            if decision.is_denied() {
                counts.denied += 1;
                *counts.timeline.at(now_us) += 1;
            }
            counts.keys.count(&decision, &self.words);
        }
        self.counts.unmatched += u64::from(policies == 0);
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.decider.policies()
    }

    pub(crate) fn words(&self) -> &Words {
        &self.words
    }

    pub(crate) fn store(&self) -> MemoryStats {
        self.decider.store()
    }
}

impl Default for PolicyCounts {
    fn default() -> Self {
        Self { seen: 0, denied: 0, timeline: Timeline::new(MAX_BUCKETS), keys: KeyTable::default() }
    }
}

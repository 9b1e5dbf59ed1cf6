//! What is counted of each policy, and the registry of policies that decisions find their counters by.
//!
//! A row is found by the policy's position in its set and made sure of by its name: while a set is swapped, decisions of the
//! old one find theirs by name. Counts stay with a name through every change of policies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use slidegate::{Decision, PolicySet, Source, Verb};

use super::per_thread::{PerThread, copies_wanted};
use crate::config::KeysShown;

/// Most rows of policies that are no longer in force. Their counts go first when there are more.
const MAX_GONE: usize = 1024;
/// With more policies than this each has one copy of its counters only: sixteen of 16,384 would take 60 MB.
const MAX_SHARDED: usize = 1024;

/// The verdict of one policy, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allow,
    Deny,
    /// A shadow policy's denial, which denied nothing.
    ShadowDeny,
}

impl Outcome {
    pub(super) const ALL: [Self; 3] = [Self::Allow, Self::Deny, Self::ShadowDeny];

    #[inline]
    pub(super) fn of(decision: &Decision, is_enforced: bool) -> Self {
        match (decision.is_allowed(), is_enforced) {
            (true, _) => Self::Allow,
            (false, true) => Self::Deny,
            (false, false) => Self::ShadowDeny,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
        }
    }
}

/// Where decisions come from, as far as it is counted.
pub(super) const SOURCES: [Source; 5] =
    [Source::Store, Source::Remembered, Source::Local, Source::Allow, Source::Deny];

#[inline]
fn index_of(source: Source) -> usize {
    match source {
        Source::Remembered => 1,
        Source::Local => 2,
        Source::Allow => 3,
        Source::Deny => 4,
        // The library may learn of others.
        _ => 0,
    }
}

/// The counters of one policy.
#[derive(Debug)]
pub(super) struct PolicyCounters {
    pub(super) name: String,
    /// Given once, and never to another policy.
    pub(super) number: u32,
    pub(super) keys_shown: KeysShown,
    cells: Arc<PerThread<Cells>>,
}

#[derive(Debug, Default)]
struct Cells {
    checks: [[AtomicU64; SOURCES.len()]; Outcome::ALL.len()],
    /// Cost that checks and penalties charged.
    cost_allowed: AtomicU64,
    /// Cost that enforced denials refused.
    cost_denied: AtomicU64,
    cost_refunded: AtomicU64,
    /// Checks that were denied because their key is blocked.
    blocked: AtomicU64,
    /// Checks that were charged and left a key at four fifths of its limit or above.
    near_limit: AtomicU64,
}

impl Cells {
    /// Counts a denial of an enforced policy.
    fn record_denial(&self, decision: &Decision, asked: u64) {
        self.cost_denied.fetch_add(asked, Relaxed);
        self.blocked.fetch_add(u64::from(decision.is_blocked()), Relaxed);
    }
}

/// What was counted of a policy since the service started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) cost_allowed: u64,
    pub(crate) cost_denied: u64,
    pub(crate) cost_refunded: u64,
    pub(crate) blocked: u64,
    pub(crate) near_limit: u64,
}

impl PolicyCounters {
    /// Counts a policy's decision on a request of this cost; says what it was, if it was a check.
    #[inline]
    pub(super) fn record(
        &self,
        thread: usize,
        verb: Verb,
        decision: &Decision,
        is_enforced: bool,
        asked: u64,
    ) -> Option<Outcome> {
        let cells = self.cells.of(thread);
        match verb {
            Verb::Check => {}
            Verb::Peek => return None,
            Verb::Refund => {
                cells.cost_refunded.fetch_add(decision.cost, Relaxed);
                return None;
            }
            Verb::Penalize => {
                cells.cost_allowed.fetch_add(decision.cost, Relaxed);
                return None;
            }
        }
        let outcome = Outcome::of(decision, is_enforced);
        cells.checks[outcome as usize][index_of(decision.source)].fetch_add(1, Relaxed);
        match outcome {
            // Another policy may have denied; then nothing was charged here.
            Outcome::Allow if decision.cost > 0 => {
                // The decision's own cost is what several requests on this key were charged together.
                cells.cost_allowed.fetch_add(asked, Relaxed);
                if decision.used >= decision.limit - decision.limit / 5 {
                    cells.near_limit.fetch_add(1, Relaxed);
                }
            }
            Outcome::Deny => cells.record_denial(decision, asked),
            Outcome::Allow | Outcome::ShadowDeny => {}
        }
        Some(outcome)
    }

    /// Counts a look that stands for a check of this cost.
    pub(super) fn record_peek(&self, thread: usize, decision: &Decision, outcome: Outcome, asked: u64) {
        let cells = self.cells.of(thread);
        cells.checks[outcome as usize][index_of(decision.source)].fetch_add(1, Relaxed);
        if outcome == Outcome::Deny {
            cells.record_denial(decision, asked);
        }
    }

    /// How many checks had this outcome from this source.
    pub(super) fn checks(&self, outcome: Outcome, source: Source) -> u64 {
        self.cells.sum(|cells| cells.checks[outcome as usize][index_of(source)].load(Relaxed))
    }

    pub(super) fn counts(&self) -> Counts {
        let of = |outcome| SOURCES.iter().map(|source| self.checks(outcome, *source)).sum();
        Counts {
            allowed: of(Outcome::Allow),
            denied: of(Outcome::Deny),
            shadow_denied: of(Outcome::ShadowDeny),
            cost_allowed: self.cells.sum(|cells| cells.cost_allowed.load(Relaxed)),
            cost_denied: self.cells.sum(|cells| cells.cost_denied.load(Relaxed)),
            cost_refunded: self.cells.sum(|cells| cells.cost_refunded.load(Relaxed)),
            blocked: self.cells.sum(|cells| cells.blocked.load(Relaxed)),
            near_limit: self.cells.sum(|cells| cells.near_limit.load(Relaxed)),
        }
    }
}

/// The rows of all policies.
#[derive(Debug, Default)]
pub(super) struct PolicyRegistry {
    /// First those in force, in the order of their set, then those that were.
    rows: Vec<Arc<PolicyCounters>>,
    positions: HashMap<String, usize>,
    in_force: usize,
    /// How many rows there ever were.
    numbered: u32,
}

impl PolicyRegistry {
    /// The registry of this set. Policies that were known before keep their counts.
    pub(super) fn of(&self, policies: &PolicySet, keys_shown: impl Fn(&str) -> KeysShown) -> Self {
        let copies = if policies.iter().len() > MAX_SHARDED { 1 } else { copies_wanted() };
        let mut numbered = self.numbered;
        let mut rows: Vec<_> = policies
            .iter()
            .map(|policy| {
                let name = policy.name();
                let keys_shown = keys_shown(name);
                match self.by_name(name) {
                    Some(row) if row.keys_shown == keys_shown => Arc::clone(row),
                    Some(row) => Arc::new(PolicyCounters {
                        name: name.to_owned(),
                        number: row.number,
                        keys_shown,
                        cells: Arc::clone(&row.cells),
                    }),
                    None => {
                        numbered += 1;
                        let cells = Arc::new(PerThread::new(copies));
                        Arc::new(PolicyCounters {
                            name: name.to_owned(),
                            number: numbered,
                            keys_shown,
                            cells,
                        })
                    }
                }
            })
            .collect();
        let in_force = rows.len();
        let gone = self.rows.iter().filter(|row| policies.by_name(&row.name).is_none());
        rows.extend(gone.take(MAX_GONE).cloned());
        let positions = rows.iter().enumerate().map(|(position, row)| (row.name.clone(), position)).collect();
        Self { rows, positions, in_force, numbered }
    }

    /// The row of the policy of this name, which stands at this position of its set.
    #[inline]
    pub(super) fn row(&self, position: usize, name: &str) -> Option<&PolicyCounters> {
        match self.rows.get(position) {
            Some(row) if row.name == name => Some(row),
            _ => self.by_name(name).map(|row| &**row),
        }
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Arc<PolicyCounters>> {
        self.positions.get(name).map(|position| &self.rows[*position])
    }

    /// The rows of the policies in force, in their order.
    pub(super) fn in_force(&self) -> &[Arc<PolicyCounters>] {
        &self.rows[..self.in_force]
    }
}

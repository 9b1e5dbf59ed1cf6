//! Counters per policy, and the registry that finds them.
//!
//! The registry finds a policy's counters by its position in the set and verifies the name: while a
//! set is replaced, decisions of the old one find theirs by name. Counts stay with the name through
//! every change.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use slidegate::{Decision, DecisionSource, PolicySet, Verb};

use super::per_thread::{PerThread, copies_wanted};
use crate::config::KeysShown;

/// Maximum inactive policies whose counters are kept.
const MAX_GONE: usize = 1024;
/// With more policies than this, each has only one copy of its counters: sixteen copies of 16,384
/// would take 60 MB.
const MAX_SHARDED: usize = 1024;

/// The counted outcome of one policy's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allow,
    Deny,
    /// A denial by a shadow policy, which did not deny the request.
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

/// The counted sources of decisions.
pub(super) const SOURCES: [DecisionSource; 5] = [
    DecisionSource::Store,
    DecisionSource::CachedDenial,
    DecisionSource::Local,
    DecisionSource::Allow,
    DecisionSource::Deny,
];

#[inline]
fn index_of(source: DecisionSource) -> usize {
    match source {
        DecisionSource::CachedDenial => 1,
        DecisionSource::Local => 2,
        DecisionSource::Allow => 3,
        DecisionSource::Deny => 4,
        // The library may add sources.
        _ => 0,
    }
}

/// The counters of one policy.
#[derive(Debug)]
pub(super) struct PolicyCounters {
    pub(super) name: String,
    /// Unique, and never reused for another policy.
    pub(super) number: u32,
    pub(super) keys_shown: KeysShown,
    cells: Arc<PerThread<Cells>>,
}

#[derive(Debug, Default)]
struct Cells {
    checks: [[AtomicU64; SOURCES.len()]; Outcome::ALL.len()],
    /// Cost charged by checks and penalties.
    cost_allowed: AtomicU64,
    /// Cost denied by the enforced policy.
    cost_denied: AtomicU64,
    cost_refunded: AtomicU64,
    /// Checks denied because the key is blocked.
    blocked: AtomicU64,
    /// Admitted checks after which the key was at 80 % of its limit or above.
    near_limit: AtomicU64,
}

impl Cells {
    /// Counts a denial by an enforced policy.
    fn record_denial(&self, decision: &Decision, asked: u64) {
        self.cost_denied.fetch_add(asked, Relaxed);
        self.blocked.fetch_add(u64::from(decision.is_blocked()), Relaxed);
    }
}

/// A snapshot of a policy's counters since the start.
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
    /// Counts a decision on a request of this cost. Returns the outcome of a check.
    #[inline]
    pub(super) fn record(
        &self,
        thread: usize,
        verb: Verb,
        decision: &Decision,
        is_enforced: bool,
        asked: u64,
    ) -> Option<Outcome> {
        match verb {
            Verb::Check => {}
            Verb::Peek => return None,
            Verb::Refund => {
                self.cells.of(thread).cost_refunded.fetch_add(decision.cost, Relaxed);
                return None;
            }
            Verb::Penalize => {
                self.cells.of(thread).cost_allowed.fetch_add(decision.cost, Relaxed);
                return None;
            }
        }
        let outcome = Outcome::of(decision, is_enforced);
        self.record_check(thread, decision, outcome, asked);
        Some(outcome)
    }

    /// Records a check of this cost with this outcome.
    #[inline]
    pub(super) fn record_check(&self, thread: usize, decision: &Decision, outcome: Outcome, asked: u64) {
        let cells = self.cells.of(thread);
        cells.checks[outcome as usize][index_of(decision.source)].fetch_add(1, Relaxed);
        match outcome {
            // If another policy denied the request, nothing was charged here.
            Outcome::Allow if decision.cost > 0 => {
                // The decision's own cost is the sum over all requests of the call on this key.
                cells.cost_allowed.fetch_add(asked, Relaxed);
                if decision.used >= decision.limit - decision.limit / 5 {
                    cells.near_limit.fetch_add(1, Relaxed);
                }
            }
            Outcome::Deny => cells.record_denial(decision, asked),
            Outcome::Allow | Outcome::ShadowDeny => {}
        }
    }

    /// Checks with this outcome and source.
    pub(super) fn checks(&self, outcome: Outcome, source: DecisionSource) -> u64 {
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

/// The counters of all policies.
#[derive(Debug, Default)]
pub(super) struct PolicyRegistry {
    /// First the active policies, in the order of their set, then inactive ones.
    rows: Vec<Arc<PolicyCounters>>,
    positions: HashMap<String, usize>,
    in_force: usize,
    /// Number of policies ever registered.
    numbered: u32,
}

impl PolicyRegistry {
    /// The registry of this set. Known policies keep their counts.
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

    /// The counters of the policy with this name, expected at this position of its set.
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

    /// The counters of the active policies, in order.
    pub(super) fn in_force(&self) -> &[Arc<PolicyCounters>] {
        &self.rows[..self.in_force]
    }
}

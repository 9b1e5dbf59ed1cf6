//! What is counted of each policy, and the roll of policies that decisions find their counters by.
//!
//! A row is found by the policy's place in its set and made sure of by its name: while a set is swapped, decisions of the
//! old one find theirs by name. Counts stay with a name through every change of policies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use slidegate::{Decision, PolicySet, Source, Verb};

use super::lane::{Lanes, wanted};
use crate::config::KeysShown;

/// Most rows of policies that are no longer in force. Their counts go first when there are more.
const MOST_GONE: usize = 1024;
/// With more policies than this each has one copy of its counters only: sixteen of 16,384 would take 60 MB.
const MOST_SHARDED: usize = 1024;

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
fn place_of(source: Source) -> usize {
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
pub(super) struct Row {
    pub(super) name: String,
    /// Given once, and never to another policy.
    pub(super) number: u32,
    pub(super) keys_shown: KeysShown,
    lanes: Arc<Lanes<Cells>>,
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
    fn note_denial(&self, decision: &Decision, asked: u64) {
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

impl Row {
    /// Counts a policy's decision on a request of this cost; says what it was, if it was a check.
    #[inline]
    pub(super) fn note(
        &self,
        thread: usize,
        verb: Verb,
        decision: &Decision,
        is_enforced: bool,
        asked: u64,
    ) -> Option<Outcome> {
        let cells = self.lanes.of(thread);
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
        cells.checks[outcome as usize][place_of(decision.source)].fetch_add(1, Relaxed);
        match outcome {
            // Another policy may have denied; then nothing was charged here.
            Outcome::Allow if decision.cost > 0 => {
                // The decision's own cost is what several requests on this key were charged together.
                cells.cost_allowed.fetch_add(asked, Relaxed);
                if decision.used >= decision.limit - decision.limit / 5 {
                    cells.near_limit.fetch_add(1, Relaxed);
                }
            }
            Outcome::Deny => cells.note_denial(decision, asked),
            Outcome::Allow | Outcome::ShadowDeny => {}
        }
        Some(outcome)
    }

    /// Counts a look that stands for a check of this cost.
    pub(super) fn note_look(&self, thread: usize, decision: &Decision, outcome: Outcome, asked: u64) {
        let cells = self.lanes.of(thread);
        cells.checks[outcome as usize][place_of(decision.source)].fetch_add(1, Relaxed);
        if outcome == Outcome::Deny {
            cells.note_denial(decision, asked);
        }
    }

    /// How many checks had this outcome from this source.
    pub(super) fn checks(&self, outcome: Outcome, source: Source) -> u64 {
        self.lanes.sum(|cells| cells.checks[outcome as usize][place_of(source)].load(Relaxed))
    }

    pub(super) fn counts(&self) -> Counts {
        let of = |outcome| SOURCES.iter().map(|source| self.checks(outcome, *source)).sum();
        Counts {
            allowed: of(Outcome::Allow),
            denied: of(Outcome::Deny),
            shadow_denied: of(Outcome::ShadowDeny),
            cost_allowed: self.lanes.sum(|cells| cells.cost_allowed.load(Relaxed)),
            cost_denied: self.lanes.sum(|cells| cells.cost_denied.load(Relaxed)),
            cost_refunded: self.lanes.sum(|cells| cells.cost_refunded.load(Relaxed)),
            blocked: self.lanes.sum(|cells| cells.blocked.load(Relaxed)),
            near_limit: self.lanes.sum(|cells| cells.near_limit.load(Relaxed)),
        }
    }
}

/// The rows of all policies.
#[derive(Debug, Default)]
pub(super) struct Roll {
    /// First those in force, in the order of their set, then those that were.
    rows: Vec<Arc<Row>>,
    places: HashMap<String, usize>,
    in_force: usize,
    /// How many rows there ever were.
    numbered: u32,
}

impl Roll {
    /// The roll of this set. Policies that were known before keep their counts.
    pub(super) fn of(&self, policies: &PolicySet, keys_shown: impl Fn(&str) -> KeysShown) -> Self {
        let lanes = if policies.iter().len() > MOST_SHARDED { 1 } else { wanted() };
        let mut numbered = self.numbered;
        let mut rows: Vec<_> = policies
            .iter()
            .map(|policy| {
                let name = policy.name();
                let keys_shown = keys_shown(name);
                match self.by_name(name) {
                    Some(row) if row.keys_shown == keys_shown => Arc::clone(row),
                    Some(row) => Arc::new(Row {
                        name: name.to_owned(),
                        number: row.number,
                        keys_shown,
                        lanes: Arc::clone(&row.lanes),
                    }),
                    None => {
                        numbered += 1;
                        let lanes = Arc::new(Lanes::new(lanes));
                        Arc::new(Row { name: name.to_owned(), number: numbered, keys_shown, lanes })
                    }
                }
            })
            .collect();
        let in_force = rows.len();
        let gone = self.rows.iter().filter(|row| policies.by_name(&row.name).is_none());
        rows.extend(gone.take(MOST_GONE).cloned());
        let places = rows.iter().enumerate().map(|(place, row)| (row.name.clone(), place)).collect();
        Self { rows, places, in_force, numbered }
    }

    /// The row of the policy of this name, which stands at this place of its set.
    #[inline]
    pub(super) fn row(&self, place: usize, name: &str) -> Option<&Row> {
        match self.rows.get(place) {
            Some(row) if row.name == name => Some(row),
            _ => self.by_name(name).map(|row| &**row),
        }
    }

    pub(super) fn by_name(&self, name: &str) -> Option<&Arc<Row>> {
        self.places.get(name).map(|place| &self.rows[*place])
    }

    /// The rows of the policies in force, in their order.
    pub(super) fn in_force(&self) -> &[Arc<Row>] {
        &self.rows[..self.in_force]
    }
}

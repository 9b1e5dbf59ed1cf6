//! Per-policy counters, and the registry that finds them.
//!
//! The registry finds counters by the policy's position in its set and verifies the name. While a set is
//! replaced, decisions of the old one find theirs by name. Counts stay with the name through every change.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use slidegate::{Amount, Decision, DecisionSource, Policy, PolicySet, reserve::HoldStatus, verb::Verb};
use slidegate_config::policy::KeysShown;

use super::fullest::{FullKey, FullestKeys};
use super::per_thread::{PerThread, copies_wanted};
use super::settled_shares::SettledShares;

/// The name under which policies without their own series are summed. No policy can have it.
pub(crate) const OTHERS: &str = "~others";
/// Maximum inactive policies whose counters are kept.
const MAX_GONE: usize = 1024;
/// With more policies than this, each has a single copy of its counters: 16 copies for 16,384 policies would
/// take 60 MB.
const MAX_SHARDED: usize = 1024;

/// The counted outcome of a policy's decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allow,
    Deny,
    /// A denial by a shadow policy; it did not deny the request.
    ShadowDeny,
}

impl Outcome {
    pub(crate) const ALL: [Self; 3] = [Self::Allow, Self::Deny, Self::ShadowDeny];

    #[inline]
    pub(crate) fn of(decision: &Decision, is_enforced: bool) -> Self {
        match (decision.is_allowed(), is_enforced) {
            (true, _) => Self::Allow,
            (false, true) => Self::Deny,
            (false, false) => Self::ShadowDeny,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
        }
    }
}

/// The counted outcomes of reservations under a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldOutcome {
    Reserved,
    /// Settled in time, in full or in part.
    Settled,
    Extended,
    Cancelled,
    /// An extension that did not fit.
    Denied,
    /// Settled, extended or cancelled before.
    AlreadySettled,
    /// Settled, extended or cancelled after it expired.
    Late,
    /// Lost with the store's data.
    Unknown,
    /// Expired; counted by the process that made it.
    Expired,
}

impl HoldOutcome {
    pub(crate) const ALL: [Self; 9] = [
        Self::Reserved,
        Self::Settled,
        Self::Extended,
        Self::Cancelled,
        Self::Denied,
        Self::AlreadySettled,
        Self::Late,
        Self::Unknown,
        Self::Expired,
    ];

    /// The outcome for this status; `changed` is the outcome if the reservation was open.
    pub(crate) fn of(status: HoldStatus, changed: Self) -> Self {
        match status {
            HoldStatus::Denied => Self::Denied,
            HoldStatus::AlreadySettled => Self::AlreadySettled,
            HoldStatus::Expired => Self::Late,
            HoldStatus::Unknown => Self::Unknown,
            // The library may add statuses.
            _ => changed,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Settled => "settled",
            Self::Extended => "extended",
            Self::Cancelled => "cancelled",
            Self::Denied => "extension_denied",
            Self::AlreadySettled => "already_settled",
            Self::Late => "late",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
        }
    }
}

/// The counted sources of decisions.
pub(crate) const SOURCES: [DecisionSource; 6] = [
    DecisionSource::Store,
    DecisionSource::CachedDenial,
    DecisionSource::Local,
    DecisionSource::Allow,
    DecisionSource::Deny,
    DecisionSource::Leased,
];

#[inline]
fn index_of(source: DecisionSource) -> usize {
    match source {
        DecisionSource::CachedDenial => 1,
        DecisionSource::Local => 2,
        DecisionSource::Allow => 3,
        DecisionSource::Deny => 4,
        DecisionSource::Leased => 5,
        // The library may add sources.
        _ => 0,
    }
}

/// The counters of one policy. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct PolicyCounters {
    pub(crate) name: String,
    /// Unique, and never reused for another policy.
    pub(crate) number: u32,
    pub(crate) keys_shown: KeysShown,
    /// Cost units are multiplied by this in stores.
    per_unit: u64,
    cells: Arc<PerThread<Cells>>,
    /// Not per thread: reservations are few, and most policies have none.
    holds: Arc<[AtomicU64; HoldOutcome::ALL.len()]>,
    pub(crate) settled_shares: Arc<SettledShares>,
    /// Whether a request without a scope attribute was seen.
    has_skipped: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Cells {
    checks: [[AtomicU64; SOURCES.len()]; Outcome::ALL.len()],
    /// Cost charged by checks, penalties and settlements.
    cost_allowed: AtomicU64,
    /// Cost denied by the enforced policy.
    cost_denied: AtomicU64,
    cost_refunded: AtomicU64,
    /// Checks denied because the key is blocked.
    blocked: AtomicU64,
    /// Admitted checks that left the key at 80 % of its limit or above.
    near_limit: AtomicU64,
    /// Crossed thresholds that this instance reported.
    notifications: AtomicU64,
    /// Checks skipped because a scope attribute is missing.
    missing_attribute: AtomicU64,
    fullest: FullestKeys,
}

/// A snapshot of a policy's counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
    pub(crate) cost_allowed: Amount,
    pub(crate) cost_denied: Amount,
    pub(crate) blocked: u64,
    pub(crate) near_limit: u64,
    pub(crate) notifications: u64,
    pub(crate) missing_attribute: u64,
}

impl PolicyCounters {
    /// Counts a decision. `asked` and `charged` (or refunded) are as stores count them; `outcome` is the
    /// check's.
    #[inline]
    pub(crate) fn record(
        &self,
        thread: usize,
        verb: Verb,
        decision: &Decision,
        outcome: Outcome,
        asked: u64,
        charged: u64,
    ) {
        let cells = self.cells.of(thread);
        match (verb, outcome) {
            (Verb::Peek, _) => return,
            (Verb::Refund, _) => {
                cells.cost_refunded.fetch_add(charged, Relaxed);
                return;
            }
            (Verb::Penalize, _) => {
                cells.cost_allowed.fetch_add(charged, Relaxed);
                return;
            }
            // If another policy denied the request, nothing was charged here.
            (Verb::Check, Outcome::Allow) if charged > 0 => {
                // The decision's own cost is the sum over all requests of the call for this key.
                cells.cost_allowed.fetch_add(asked, Relaxed);
                if decision.used() >= decision.limit() - decision.limit() / 5 {
                    cells.near_limit.fetch_add(1, Relaxed);
                }
            }
            (Verb::Check, Outcome::Deny) => {
                cells.cost_denied.fetch_add(asked, Relaxed);
                cells.blocked.fetch_add(u64::from(decision.is_blocked()), Relaxed);
            }
            (Verb::Check, Outcome::Allow | Outcome::ShadowDeny) => {}
        }
        cells.checks[outcome as usize][index_of(decision.source())].fetch_add(1, Relaxed);
    }

    /// Counts the charge for a reservation.
    pub(crate) fn record_charge(&self, thread: usize, cost: u64) {
        self.cells.of(thread).cost_allowed.fetch_add(cost, Relaxed);
    }

    /// Counts a cancellation's refund.
    pub(crate) fn record_refund(&self, thread: usize, cost: u64) {
        self.cells.of(thread).cost_refunded.fetch_add(cost, Relaxed);
    }

    pub(crate) fn record_notification(&self, thread: usize) {
        self.cells.of(thread).notifications.fetch_add(1, Relaxed);
    }

    /// The fullest keys as this thread decided on them.
    #[inline]
    pub(super) fn fullest_of(&self, thread: usize) -> &FullestKeys {
        &self.cells.of(thread).fullest
    }

    /// The fullest keys of all threads, unordered.
    pub(super) fn fullest(&self) -> impl Iterator<Item = FullKey> {
        self.cells.iter().flat_map(|cells| cells.fullest.keys())
    }

    pub(super) fn forget_fullest(&self) {
        self.cells.iter().for_each(|cells| cells.fullest.clear());
    }

    pub(crate) fn record_missing_attribute(&self, thread: usize) {
        self.cells.of(thread).missing_attribute.fetch_add(1, Relaxed);
    }

    /// Marks the policy as skipping; returns whether this is the first time.
    pub(crate) fn is_first_skip(&self) -> bool {
        !self.has_skipped.load(Relaxed) && !self.has_skipped.swap(true, Relaxed)
    }

    /// Counts a reservation, or a change of one.
    pub(crate) fn record_hold(&self, outcome: HoldOutcome) {
        self.holds[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn holds(&self, outcome: HoldOutcome) -> u64 {
        self.holds[outcome as usize].load(Relaxed)
    }

    pub(crate) fn checks(&self, outcome: Outcome, source: DecisionSource) -> u64 {
        self.cells.sum(|cells| cells.checks[outcome as usize][index_of(source)].load(Relaxed))
    }

    /// Whether a store counts millionths of a unit.
    pub(crate) fn counts_millionths(&self) -> bool {
        self.per_unit != 1
    }

    /// Charged, denied and refunded cost, with its decimals.
    pub(crate) fn costs(&self) -> [Amount; 3] {
        let cells: [fn(&Cells) -> &AtomicU64; 3] =
            [|cells| &cells.cost_allowed, |cells| &cells.cost_denied, |cells| &cells.cost_refunded];
        cells.map(|cell| {
            let count = self.cells.sum(|cells| cell(cells).load(Relaxed));
            if self.per_unit == 1 { count.into() } else { Amount::from_millionths(count) }
        })
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |outcome| SOURCES.iter().map(|source| self.checks(outcome, *source)).sum();
        let [cost_allowed, cost_denied, _] = self.costs();
        Counts {
            allowed: of(Outcome::Allow),
            denied: of(Outcome::Deny),
            shadow_denied: of(Outcome::ShadowDeny),
            cost_allowed,
            cost_denied,
            blocked: self.cells.sum(|cells| cells.blocked.load(Relaxed)),
            near_limit: self.cells.sum(|cells| cells.near_limit.load(Relaxed)),
            notifications: self.cells.sum(|cells| cells.notifications.load(Relaxed)),
            missing_attribute: self.cells.sum(|cells| cells.missing_attribute.load(Relaxed)),
        }
    }
}

/// The counters of all policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyRegistry {
    /// Active policies in the order of their set, then inactive ones.
    all: Vec<Arc<PolicyCounters>>,
    positions: HashMap<String, usize>,
    in_force: usize,
    /// Number of policies ever registered.
    numbered: u32,
}

impl PolicyRegistry {
    /// The registry for this set. Known policies keep their counts.
    pub(crate) fn of(&self, policies: &PolicySet, keys_shown: impl Fn(&str) -> KeysShown) -> Self {
        let copies = if policies.iter().len() > MAX_SHARDED { 1 } else { copies_wanted() };
        let mut numbered = self.numbered;
        let counters = |policy: &Policy| {
            let name = policy.name();
            let keys_shown = keys_shown(name);
            let per_unit = policy.options().counts.count(1.into());
            // Counts in another unit do not add up.
            let known = self.by_name(name).filter(|known| known.per_unit == per_unit);
            if let Some(known) = known.filter(|known| known.keys_shown == keys_shown) {
                return Arc::clone(known);
            }
            if let Some(known) = known {
                return Arc::new(PolicyCounters { keys_shown, ..PolicyCounters::clone(known) });
            }
            numbered += 1;
            Arc::new(PolicyCounters {
                name: name.to_owned(),
                number: numbered,
                keys_shown,
                per_unit,
                cells: Arc::new(PerThread::new(copies)),
                holds: Arc::default(),
                settled_shares: Arc::default(),
                has_skipped: Arc::default(),
            })
        };
        let mut all: Vec<_> = policies.iter().map(counters).collect();
        let in_force = all.len();
        let gone = self.all.iter().filter(|known| policies.by_name(&known.name).is_none());
        all.extend(gone.take(MAX_GONE).cloned());
        let positions = all.iter().enumerate().map(|(position, one)| (one.name.clone(), position)).collect();
        Self { all, positions, in_force, numbered }
    }

    /// The counters of the policy with this name, expected at this position of its set.
    #[inline]
    pub(crate) fn find(&self, position: usize, name: &str) -> Option<&PolicyCounters> {
        match self.all.get(position) {
            Some(known) if known.name == name => Some(known),
            _ => self.by_name(name).map(|known| &**known),
        }
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<PolicyCounters>> {
        self.positions.get(name).map(|position| &self.all[*position])
    }

    /// All counters, inactive policies included.
    pub(crate) fn all(&self) -> &[Arc<PolicyCounters>] {
        &self.all
    }

    /// Counters of inactive policies.
    pub(super) fn gone(&self) -> &[Arc<PolicyCounters>] {
        &self.all[self.in_force..]
    }

    /// Counters of the active policies, in order.
    pub(crate) fn in_force(&self) -> &[Arc<PolicyCounters>] {
        &self.all[..self.in_force]
    }
}

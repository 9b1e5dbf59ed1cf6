//! Comparing: what a scenario admitted and denied, judged by the exact log.
//!
//! The truth is a second gate: the same policies, counted by the sliding log with as many slots as
//! there can be. It holds exactly what the scenario itself admitted, so a wrong decision does not
//! make all later ones wrong. Before each decision it is peeked at; afterwards it is charged with
//! what the scenario charged. A window's cost is exact while a key has at most [`MAX_SLOTS`]
//! different times in one window and a limit of at most [`MAX_SLOTS`].

use std::collections::HashSet;

use slidegate::{
    Algorithm, Amount, Amounts, Decisions, Policy, PolicyDecision, PolicySet, Quota, Request, Role,
    Timestamp, Verb,
};

use crate::decider::{Decider, Options, adjust};
use crate::keys::{KeyMap, MAX_DENIED_KEYS};
use crate::reservations::{Settled, holds, reserved_cost};
use crate::timeline::{Greatest, MAX_BUCKETS, Timeline};
use crate::wording::Words;

/// Slots of the exact log: the most that a quota can have.
pub(crate) const MAX_SLOTS: u16 = u16::MAX - 1;

/// The exact log of what a scenario admitted, and how its decisions compare.
#[derive(Debug)]
pub(crate) struct Truth {
    decider: Decider,
    /// In the order of the policies.
    pub(crate) policies: Vec<PolicyTruth>,
}

/// How the decisions of one policy compare with the exact log.
#[derive(Debug)]
pub(crate) struct PolicyTruth {
    /// Admitted although the window was full.
    pub(crate) wrongly_allowed: u64,
    /// Denied although the cost would have fitted.
    pub(crate) wrongly_denied: u64,
    /// The fullest window of any key.
    pub(crate) worst: WorstWindow,
    /// The greatest share of its limit that any key had in one window, over time.
    pub(crate) worst_over_time: Timeline<Greatest>,
    keys: KeyMap<KeyTruth>,
    /// Keys with a text so far.
    named: usize,
    /// Keys beyond the bounds, of which only the sums above know.
    pub(crate) keys_not_kept: bool,
}

/// The greatest admitted cost in any one window.
#[derive(Debug, Clone, Default)]
pub(crate) struct WorstWindow {
    pub(crate) cost: u64,
    pub(crate) limit: u64,
    pub(crate) key: String,
    /// The end of the window.
    pub(crate) at_us: u64,
}

/// How the decisions on one key compare with the exact log.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyTruth {
    /// Set when the key is denied, or something is wrong about it.
    pub(crate) text: Option<Box<str>>,
    pub(crate) denied: u64,
    pub(crate) wrongly_allowed: u64,
    pub(crate) wrongly_denied: u64,
    /// The greatest admitted cost in any one window, and its limit.
    pub(crate) worst_cost: u64,
    pub(crate) worst_limit: u64,
}

/// The same policies, counted by the exact log.
pub(crate) fn exact(policies: &PolicySet) -> PolicySet {
    let exact = |quota: &Quota| quota.with_algorithm(Algorithm::SlidingLog).with_slots(MAX_SLOTS);
    let policies = policies.iter().map(|policy| map_rates(policy, exact));
    PolicySet::new(policies).expect("another algorithm keeps a set valid")
}

/// A policy with its quotas changed, unless only their own algorithm can count them.
fn map_rates(policy: &Policy, change: impl Fn(&Quota) -> Quota) -> Policy {
    let policy = policy.clone();
    if has_one_algorithm(policy.quota()) { policy } else { policy.map_quotas(change) }
}

/// Whether another algorithm would make another promise of it: what is in flight is not a rate, and a
/// month is not any 31 days.
fn has_one_algorithm(quota: &Quota) -> bool {
    quota.algorithm() == Algorithm::InFlight || quota.calendar_window().is_some()
}

/// The same policies under another algorithm. Limits on what is in flight and calendar windows stay
/// as they are.
#[must_use]
pub fn with_algorithm(policies: &PolicySet, algorithm: Algorithm) -> PolicySet {
    let change = |policy: &Policy| map_rates(policy, |quota| quota.with_algorithm(algorithm));
    PolicySet::new(policies.iter().map(change)).expect("another algorithm keeps a set valid")
}

impl Truth {
    pub(crate) fn of(policies: &PolicySet, max_keys: usize) -> Self {
        Self {
            decider: Decider::new(exact(policies), Options { max_keys, ..Options::default() }),
            policies: policies.iter().map(|_| PolicyTruth::default()).collect(),
        }
    }

    /// Refunds or penalizes what a recording says was refunded or penalized.
    pub(crate) fn adjust(&mut self, now: Timestamp, request: &Request<'_>) {
        self.decider.follow(now.as_micros(), |_, _| ());
        adjust(self.decider.gate(), request);
    }

    /// Compares the decisions on a reservation with what it would fit beside: what the exact log
    /// counts, and what the scenario holds. Charges what was charged at once.
    pub(crate) fn judge_reservation(
        &mut self,
        now: Timestamp,
        requests: &[Request<'_>],
        decisions: &Decisions<'_>,
        words: &Words,
    ) {
        self.decider.follow(now.as_micros(), |_, _| ());
        let peeks: Vec<Request<'_>> = requests.iter().map(|one| one.clone().with_verb(Verb::Peek)).collect();
        let used = self.decider.gate().apply(&peeks);
        for (decision, exact) in decisions.iter().zip(used.iter()) {
            let truth = &mut self.policies[decision.position()];
            if decision.policy().quota().algorithm() == Algorithm::InFlight {
                truth.judge(&decision, decision.is_allowed(), words);
                if decision.cost() > 0 {
                    truth.note_window(&decision, decision.held(), words);
                }
                continue;
            }
            let cost = reserved_cost(&decision, &requests[decision.request()]);
            let (Amounts { held, cost: own, .. }, exact) = (decision.amounts(), exact.amounts());
            let held_with_others = if holds(decision.policy()) { own } else { Amount::default() };
            let fitted = exact.used + held + cost <= exact.limit + held_with_others;
            truth.judge(&decision, fitted, words);
        }
        let at_once = decisions.iter().filter(|one| one.cost() > 0 && !holds(one.policy()));
        for decision in at_once {
            let request = requests[decision.request()].clone();
            let part = request.under(decision.policy().name()).with_cost(decision.amounts().cost);
            self.penalize(&part, words);
        }
    }

    /// Charges what a reservation was settled to.
    pub(crate) fn settle(&mut self, now: Timestamp, settled: Settled<'_>, words: &Words) {
        self.decider.follow(now.as_micros(), |_, _| ());
        // Of several requests, each under a policy of its own, the others lack what its keys consist of.
        for (key, last) in settled.settlement.iter().filter_map(|key| Some((key, key.last()?))) {
            for request in settled.requests {
                self.penalize(&request.request().under(key.policy()).with_cost(last.cost), words);
            }
        }
    }

    /// Which checks of a line the exact log would allow by themselves: the request and the policy
    /// of each decision on them.
    pub(crate) fn peek_checks(
        &mut self,
        now: Timestamp,
        requests: &[Request<'_>],
    ) -> HashSet<(usize, usize)> {
        self.decider.follow(now.as_micros(), |_, _| ());
        let peeks: Vec<Request<'_>> = requests.iter().map(peek_of).collect();
        let decisions = self.decider.gate().apply(&peeks);
        let fits = decisions.iter().filter(|one| one.verb() == Verb::Peek && one.is_allowed());
        fits.map(|one| (one.request(), one.position())).collect()
    }

    /// Compares the decisions on a line's checks with what fitted, and charges and returns what the
    /// scenario charged and returned.
    pub(crate) fn judge(
        &mut self,
        requests: &[Request<'_>],
        decisions: &Decisions<'_>,
        fits: &HashSet<(usize, usize)>,
        words: &Words,
    ) {
        for decision in decisions.iter().filter(|one| one.verb() == Verb::Check) {
            let fitted = fits.contains(&(decision.request(), decision.position()));
            self.policies[decision.position()].judge(&decision, fitted, words);
        }
        for decision in decisions.iter().filter(|one| one.cost() > 0) {
            let part = requests[decision.request()]
                .clone()
                .under(decision.policy().name())
                .with_cost(decision.amounts().cost);
            match decision.verb() {
                Verb::Peek => {}
                Verb::Refund => _ = self.decider.gate().refund(&part),
                Verb::Check | Verb::Penalize => self.penalize(&part, words),
            }
        }
    }

    fn penalize(&mut self, part: &Request<'_>, words: &Words) {
        let charged = self.decider.gate().penalize(part);
        for charge in charged.iter() {
            self.policies[charge.position()].note_window(&charge, charge.used(), words);
        }
    }
}

/// What peeks at a check. Others change nothing, and stay so that requests have the same positions.
fn peek_of<'r>(request: &Request<'r>) -> Request<'r> {
    let is_check = request.verb() == Verb::Check && request.role() != Role::Refusals;
    let request = request.clone().with_role(Role::Deciding);
    if is_check { request.with_verb(Verb::Peek) } else { request.with_verb(Verb::Refund).with_cost(0) }
}

impl PolicyTruth {
    /// Compares a decision on a check with whether it fitted.
    fn judge(&mut self, decision: &PolicyDecision<'_>, fitted: bool, words: &Words) {
        let event = KeyTruth {
            denied: u64::from(decision.is_denied()),
            wrongly_allowed: u64::from(decision.is_allowed() && decision.cost() > 0 && !fitted),
            wrongly_denied: u64::from(decision.is_denied() && fitted),
            ..KeyTruth::default()
        };
        if event.denied + event.wrongly_allowed > 0 {
            self.count(decision, &event, words);
        }
    }

    /// Adds wrong or denied requests of a key.
    fn count(&mut self, decision: &PolicyDecision<'_>, event: &KeyTruth, words: &Words) {
        self.wrongly_allowed += event.wrongly_allowed;
        self.wrongly_denied += event.wrongly_denied;
        if let Some(key) = self.key(decision) {
            key.denied += event.denied;
            key.wrongly_allowed += event.wrongly_allowed;
            key.wrongly_denied += event.wrongly_denied;
            let is_new = key.text.is_none();
            if is_new {
                self.name(decision, words);
            }
        }
    }

    /// Adds a cost that a key had in one window, or held at once.
    fn note_window(&mut self, charge: &PolicyDecision<'_>, cost: u64, words: &Words) {
        let limit = charge.limit();
        let at_us = charge.at().as_micros();
        let share = share(cost, limit);
        let greatest = self.worst_over_time.at(at_us);
        greatest.0 = greatest.0.max(share);
        if is_worse((cost, limit), (self.worst.cost, self.worst.limit)) {
            self.worst = WorstWindow { cost, limit, key: words.key(charge), at_us };
        }
        let Some(key) = self.key(charge) else { return };
        if is_worse((cost, limit), (key.worst_cost, key.worst_limit)) {
            (key.worst_cost, key.worst_limit) = (cost, limit);
        }
        if cost > limit && key.text.is_none() {
            self.name(charge, words);
        }
    }

    fn key(&mut self, decision: &PolicyDecision<'_>) -> Option<&mut KeyTruth> {
        let key = self.keys.at(&decision.key());
        self.keys_not_kept |= key.is_none();
        key
    }

    fn name(&mut self, decision: &PolicyDecision<'_>, words: &Words) {
        if self.named >= MAX_DENIED_KEYS {
            self.keys_not_kept = true;
            return;
        }
        self.named += 1;
        if let Some(key) = self.key(decision) {
            key.text = Some(words.key(decision).into());
        }
    }

    /// The keys with the most wrong decisions, then the fullest windows, then the most denials.
    pub(crate) fn worst_keys(&self, most: usize) -> Vec<&KeyTruth> {
        let rank = |key: &KeyTruth| {
            let worst = (share(key.worst_cost, key.worst_limit) * 1000.0).to_bits();
            (key.wrongly_allowed + key.wrongly_denied, worst, key.denied)
        };
        let mut keys: Vec<&KeyTruth> = self.keys.values().filter(|key| key.text.is_some()).collect();
        keys.sort_unstable_by(|one, other| {
            rank(other).cmp(&rank(one)).then_with(|| one.text.cmp(&other.text))
        });
        keys.truncate(most);
        keys
    }
}

impl Default for PolicyTruth {
    fn default() -> Self {
        Self {
            wrongly_allowed: 0,
            wrongly_denied: 0,
            worst: WorstWindow::default(),
            worst_over_time: Timeline::new(MAX_BUCKETS),
            keys: KeyMap::default(),
            named: 0,
            keys_not_kept: false,
        }
    }
}

/// A cost as a multiple of a limit. Of a limit of 0 it is the cost itself.
#[allow(clippy::cast_precision_loss)] // for people to read
pub(crate) fn share(cost: u64, limit: u64) -> f64 {
    cost as f64 / limit.max(1) as f64
}

/// Whether a window is fuller than another, each as cost and limit; compared as fractions.
fn is_worse((cost, limit): (u64, u64), (than, of): (u64, u64)) -> bool {
    u128::from(cost) * u128::from(of.max(1)) > u128::from(than) * u128::from(limit.max(1))
}

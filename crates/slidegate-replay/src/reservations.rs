//! Reservations: requests that hold cost from their start to their end, as a log has both.
//!
//! A request under a policy that [expects
//! reservations](Policy::expects_reservations) is replayed as the service decides `/v1/reserve` without
//! a cost: each policy holds its estimate, and a policy that limits what is in flight a permit. At
//! the logged end, the reservation is settled to the logged cost. Until then it is extended every
//! third of its time, as a program that reserves has to. What ends at the time of a start ends
//! before it. A request whose duration is not known holds nothing: it is decided as a check.

use std::collections::BTreeMap;

use serde::Serialize;
use slidegate::{
    Algorithm, Amount, Amounts, Counts, Decisions, Gate, Policy, PolicyDecision, PolicySet, Request,
    Timestamp,
    reserve::{Settlement, Ticket},
};

use crate::batch::BatchEntry;
use crate::wording::count_of;

/// Most reservations that are open at once, in each scenario: about 0.5 kB each. One more settles
/// another one early.
pub(crate) const MAX_OPEN: usize = 262_144;

/// The same policies; what one learned of settled costs is not known to the other.
pub(crate) fn unlearned(policies: PolicySet) -> PolicySet {
    if !policies.iter().any(Policy::learns_estimate) {
        return policies;
    }
    let unlearned = |policy: &Policy| {
        let policy = policy.clone();
        if policy.learns_estimate() { policy.learn_estimate() } else { policy }
    };
    PolicySet::new(policies.iter().map(unlearned).collect::<Vec<_>>()).expect("the policies are a set")
}

/// The reservations of one scenario.
#[derive(Debug)]
pub(crate) struct Reservations {
    /// By the time of the next event, which is its end, or an extension before that; of two at one
    /// time, that of the older reservation is first.
    open: BTreeMap<(u64, u64), OpenReservation>,
    max_open: usize,
    /// How many were made.
    made: u64,
    pub(crate) counts: ReservationCounts,
    /// In the order of the policies.
    pub(crate) policies: Vec<PolicyReservations>,
}

/// Outcome of requests that could reserve.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReservationCounts {
    /// Requests that were decided as reservations.
    pub(crate) asked: u64,
    /// Requests under a policy that reserves whose duration is not known, decided as checks.
    pub(crate) without_duration: u64,
    /// Reservations that were settled before their end, because too many were open.
    pub(crate) settled_early: u64,
    /// Requests that reserved and whose logged cost is not 1.
    pub(crate) other_costs: u64,
}

/// The reservations under one policy.
#[derive(Debug, Clone, Default)]
pub(crate) struct PolicyReservations {
    /// Reservations open now.
    open: u64,
    pub(crate) counts: PolicyReservationsOutcome,
}

/// The reservations under one policy.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PolicyReservationsOutcome {
    /// Reservations that were admitted and held cost under this policy.
    pub admitted: u64,
    /// Requests that it denied, and that would have fitted if nothing had been held.
    pub denied_by_held: u64,
    /// Most reservations that were open at once, of all keys.
    pub most_open: u64,
    /// The most cost that a key held at once: under `in_flight`, what was in flight.
    pub most_held: u64,
    /// Reservations that were settled. The others were open when the log ended.
    pub settled: u64,
    /// What those held in all. 0 under `in_flight`, as is the next.
    pub held_cost: Amount,
    /// What those cost in all.
    pub settled_cost: Amount,
    /// Those that cost more than they held.
    pub above_held: u64,
}

/// A reservation whose request has not ended.
#[derive(Debug)]
pub(crate) struct OpenReservation {
    end_us: u64,
    number: u64,
    cost: u64,
    ticket: Ticket,
    /// The positions of the policies that hold cost.
    held_under: Box<[u32]>,
}

/// What a policy asks for a request that reserves without a cost.
fn estimated_cost(decision: &PolicyDecision<'_>) -> Amount {
    let policy = decision.policy();
    match policy.estimate().filter(|_| holds(policy)) {
        Some(estimate) => estimate.min(decision.amounts().limit),
        None => 1.into(),
    }
}

/// Whether a policy holds what reservations ask for. Others charge it at once.
pub(crate) fn holds(policy: &Policy) -> bool {
    *policy.counts() != Counts::Requests || policy.quota().algorithm() == Algorithm::InFlight
}

fn is_denied_by_held(decision: &PolicyDecision<'_>) -> bool {
    let Amounts { used, limit, .. } = decision.amounts();
    let is_by_usage = used + estimated_cost(decision) > limit;
    decision.is_denied() && !decision.is_blocked() && !is_by_usage
}

/// A request without the cost that the log has, which is known at the end only.
pub(crate) fn without_cost<'r>(request: &Request<'r>) -> Request<'r> {
    let mut unsaid = Request::new();
    unsaid.extend(request.attributes());
    unsaid
}

impl Reservations {
    /// None open.
    pub(crate) fn new(policies: &PolicySet) -> Self {
        Self::bounded(policies, MAX_OPEN)
    }

    /// The same with at most so many open at once.
    pub(crate) fn bounded(policies: &PolicySet, max_open: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            max_open,
            made: 0,
            counts: ReservationCounts::default(),
            policies: vec![PolicyReservations::default(); policies.iter().len()],
        }
    }

    /// What is to be known about figures with these reservations, in sentences.
    pub(crate) fn notes(&self, policies: &PolicySet) -> Vec<String> {
        let ReservationCounts { asked, without_duration, settled_early, other_costs } = self.counts;
        let mut notes = Vec::new();
        if without_duration > 0 {
            notes.push(count_of(
                without_duration,
                "request under a policy that reserves has no duration in the log: it is decided as a check and \
                 holds nothing, so limits on what is in flight do not deny it",
                "requests under a policy that reserves have no duration in the log: they are decided as checks \
                 and hold nothing, so limits on what is in flight deny none of them",
            ));
        }
        let has_estimate = policies.iter().any(|one| one.estimate().is_some_and(|cost| cost > 1.into()));
        if asked > 0 && other_costs == 0 && has_estimate {
            notes.push(
                "all reservations are settled to a cost of 1: name the cost in the log with --cost-field"
                    .to_owned(),
            );
        }
        if settled_early > 0 {
            notes.push(format!(
                "{}, because more than {} were open at once: some denials are missing",
                count_of(
                    settled_early,
                    "reservation is settled before its end",
                    "reservations are settled before their end"
                ),
                self.max_open
            ));
        }
        notes
    }

    /// Whether a request is to be decided as a reservation; counts one that cannot be.
    pub(crate) fn begins(&mut self, policies: &PolicySet, entry: BatchEntry, request: &Request<'_>) -> bool {
        let is_held = policies.applying_to(request).any(Policy::expects_reservations);
        self.counts.without_duration += u64::from(is_held && entry.duration_us.is_none());
        is_held && entry.duration_us.is_some()
    }

    /// Decides a request as a reservation, which is open from now on if it is admitted.
    pub(crate) fn reserve<'r>(
        &mut self,
        gate: &Gate,
        now: Timestamp,
        entry: BatchEntry,
        request: &'r Request<'r>,
    ) -> Decisions<'r> {
        self.counts.asked += 1;
        self.counts.other_costs += u64::from(entry.cost != 1);
        let (decisions, ticket) = gate.reserve(request).into_parts();
        self.count_denied(&decisions);
        let Some(ticket) = ticket.filter(|ticket| ticket.until().is_some()) else { return decisions };
        let held_under = self.count_open(&ticket, &decisions);
        // A line that came too late is decided later than it began, but ends when it did.
        let end_us = entry.time_us.saturating_add(entry.duration_us.unwrap_or(0)).max(now.as_micros());
        let one = OpenReservation { end_us, number: self.made, cost: entry.cost, ticket, held_under };
        self.made += 1;
        self.push(now, one);
        decisions
    }

    /// Counts an open reservation. Returns the positions of the policies that hold cost.
    fn count_open(&mut self, ticket: &Ticket, decisions: &Decisions<'_>) -> Box<[u32]> {
        let mut held_under = Vec::new();
        for decision in decisions.iter() {
            if ticket.policies().any(|name| name == decision.policy().name()) {
                let PolicyReservations { open, counts } = &mut self.policies[decision.position()];
                counts.admitted += 1;
                *open += 1;
                counts.most_open = counts.most_open.max(*open);
                counts.most_held = counts.most_held.max(decision.held());
                held_under.push(u32::try_from(decision.position()).expect("a set has fewer policies"));
            }
        }
        held_under.into()
    }

    fn count_denied(&mut self, decisions: &Decisions<'_>) {
        for decision in decisions.iter() {
            let counts = &mut self.policies[decision.position()].counts;
            counts.denied_by_held += u64::from(is_denied_by_held(&decision));
        }
    }

    fn push(&mut self, now: Timestamp, one: OpenReservation) {
        let heartbeat = now + one.ticket.heartbeat();
        self.open.insert((one.end_us.min(heartbeat.as_micros()), one.number), one);
    }

    /// The reservation with an event up to a time, and when that is; or, if too many are open, the
    /// next one.
    pub(crate) fn next_due(&mut self, until: Timestamp) -> Option<(Timestamp, OpenReservation)> {
        let is_over = self.open.len() > self.max_open;
        let next = self.open.first_entry()?;
        let due = Timestamp::from_micros(next.key().0);
        (is_over || due <= until).then(|| (due, next.remove()))
    }

    /// Carries out the event of a reservation at this time: extends it, or settles it.
    pub(crate) fn proceed(&mut self, gate: &Gate, now: Timestamp, mut one: OpenReservation) {
        const REPLIES: &str = "a store in memory replies";
        let has_ended = one.end_us <= now.as_micros();
        // The popped one leaves room for itself.
        if !has_ended && self.open.len() < self.max_open {
            one.ticket = gate.extend(&one.ticket).expect(REPLIES).into_ticket();
            self.push(now, one);
            return;
        }
        self.counts.settled_early += u64::from(!has_ended);
        let settlement = gate.settle(&one.ticket, one.cost).expect(REPLIES);
        self.count_settled(&one.ticket, &one.held_under, &settlement);
    }

    fn count_settled(&mut self, ticket: &Ticket, held_under: &[u32], settlement: &Settlement) {
        for position in held_under {
            let policy = &mut self.policies[*position as usize];
            policy.open -= 1;
            policy.counts.settled += 1;
        }
        let names: Vec<&str> = ticket.policies().collect();
        for key in settlement.iter() {
            let at = names.iter().position(|name| *name == key.policy());
            let (Some(at), Some(last)) = (at, key.last()) else { continue };
            let Some(position) = held_under.get(at) else { continue };
            let counts = &mut self.policies[*position as usize].counts;
            counts.held_cost = counts.held_cost + last.held;
            counts.settled_cost = counts.settled_cost + last.cost;
            counts.above_held += u64::from(last.cost > last.held);
        }
    }
}

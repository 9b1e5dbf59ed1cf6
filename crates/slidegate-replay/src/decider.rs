//! The gate that decides the entries of a log, on a clock that follows them.

use std::borrow::Cow;

use slidegate::{
    Decisions, Gate, ManualClock, MemoryStore, Policy, PolicySet, Request, Role, Timestamp, Verb,
};

use crate::batch::{BatchEntry, EntryBatch, Line};
use crate::call::{RecordedHold, RecordedReservation};
use crate::reservations::{Reservations, unlearned, without_cost};

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
    /// Where a policy reserves, or a recording may.
    reservations: Option<Reservations>,
}

/// Bounds of a replay, or of a diff.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most keys in memory at once, for each set of policies and each value of a sweep. The outcome
    /// says if more were needed.
    pub max_keys: usize,
    /// Whether the logs are recordings of the service, which may have reservations, also under
    /// policies that expect none.
    pub is_recorded: bool,
    /// Most keys that the outcome lists for each policy, or in each direction of a diff.
    pub top: usize,
    /// Threads that decide, besides the one that reads; 0 for none. The outcome is the same with
    /// any number.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_keys: MemoryStore::DEFAULT_MAX_KEYS, is_recorded: false, top: 5, threads: 0 }
    }
}

/// Counts what is decided.
pub(crate) trait DecisionCounter {
    /// Decides the requests of a line in one step, at its time, and counts them.
    fn decide(&mut self, asker: Asker<'_>, line: &KnownRequests<'_>);

    /// Carries out and counts a single request that is no check: a recorded refund or penalty.
    fn adjust(&mut self, gate: &Gate, request: &Request<'_>);
}

/// Decides a line: as checks, or as a reservation.
#[derive(Debug)]
pub(crate) struct Asker<'d> {
    pub(crate) gate: &'d Gate,
    pub(crate) now: Timestamp,
    pub(crate) entry: BatchEntry,
    reservation: Option<(&'d mut Reservations, Option<&'d RecordedReservation>)>,
}

impl Asker<'_> {
    /// Whether the line is a reservation.
    pub(crate) fn is_reservation(&self) -> bool {
        self.reservation.is_some()
    }

    /// Decides the requests in one step, which are charged or held if they are allowed.
    pub(crate) fn ask<'r>(self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        match self.reservation {
            None => self.gate.apply(requests),
            Some((known, Some(recorded))) => known.reserve_recorded(self.gate, requests, recorded),
            Some((known, None)) => known.reserve(self.gate, self.now, self.entry, &requests[0]),
        }
    }
}

impl Decider {
    /// A gate with an empty store.
    pub(crate) fn new(policies: PolicySet, options: Options) -> Self {
        let may_reserve = options.is_recorded || policies.iter().any(Policy::expects_reservations);
        let policies = unlearned(policies);
        let reservations = may_reserve.then(|| Reservations::new(&policies));
        let clock = ManualClock::at(Timestamp::EPOCH);
        let store = MemoryStore::builder().max_keys(options.max_keys).clock(clock.clone()).build();
        Self { gate: Gate::with_memory(policies, store), clock, now: Timestamp::EPOCH, reservations }
    }

    /// Decides the entries of a batch in their order.
    pub(crate) fn decide(&mut self, batch: &EntryBatch, counter: &mut impl DecisionCounter) {
        batch.for_each(|line| {
            self.follow(line.entry.time_us);
            if let Some(RecordedHold::Changed(_)) = line.hold {
                self.change(line);
                return;
            }
            let single = single_of(line);
            if let Some(request) = single.filter(|request| request.verb() != Verb::Check) {
                counter.adjust(&self.gate, request);
                return;
            }
            let asker = self.asker(line);
            let unsaid = single.filter(|_| asker.is_reservation()).map(without_cost);
            let requests = unsaid.as_ref().map_or(line.requests, std::slice::from_ref);
            let known = KnownRequests::of(requests, &[asker.gate]);
            counter.decide(asker, &known);
        });
    }

    /// Prepares the decision on a line. A single request that is a reservation is asked [without its
    /// cost](without_cost).
    pub(crate) fn asker<'d>(&'d mut self, line: Line<'d>) -> Asker<'d> {
        let Self { gate, reservations, now, .. } = self;
        let reservation = reservations.as_mut().and_then(|known| match (line.hold, single_of(line)) {
            (Some(RecordedHold::Made(recorded)), _) => Some((known, Some(recorded))),
            (_, Some(request)) if has_policy_of(gate, request) => {
                known.begins(&gate.policies(), line.entry, request).then_some((known, None))
            }
            _ => None,
        });
        Asker { gate, now: *now, entry: line.entry, reservation }
    }

    /// Carries out the change of a reservation that a line records, if it does.
    pub(crate) fn change(&mut self, line: Line<'_>) {
        let Self { gate, reservations: Some(reservations), .. } = self else { return };
        if let Some(RecordedHold::Changed(change)) = line.hold {
            reservations.change_recorded(gate, change);
        }
    }

    /// Sets the clock to the time of an entry, or leaves it if that is earlier. Until then, settles
    /// reservations whose requests have ended, and extends others.
    pub(crate) fn follow(&mut self, time_us: u64) {
        let Self { gate, clock, reservations, now } = self;
        let until = (*now).max(Timestamp::from_micros(time_us));
        if let Some(reservations) = reservations {
            while let Some((due, one)) = reservations.next_due(until) {
                // One that is settled early is due later.
                *now = (*now).max(due.min(until));
                clock.set(*now);
                reservations.proceed(gate, *now, one);
            }
            reservations.end_due(until);
        }
        *now = until;
        clock.set(until);
    }

    /// The reservations, where a policy or a recorded request reserves.
    pub(crate) fn reservations(&self) -> Option<&Reservations> {
        let expects = || self.gate.policies().iter().any(Policy::expects_reservations);
        self.reservations.as_ref().filter(|known| known.counts.asked > 0 || expects())
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }
}

/// The request of a line that is no call, or of a call with one request that decides.
pub(crate) fn single_of<'b>(line: Line<'b>) -> Option<&'b Request<'b>> {
    match line.requests {
        [request] if request.role() == Role::Deciding && line.hold.is_none() => Some(request),
        _ => None,
    }
}

/// The requests of a line that can be decided.
#[derive(Debug)]
pub(crate) struct KnownRequests<'r> {
    /// Those that are not under a policy which is missing.
    pub(crate) known: Cow<'r, [Request<'r>]>,
    /// How many are. What was refused of a request is not one of its own.
    pub(crate) unknown: u64,
    /// Whether there is a check among all of them, so that the line counts as a request.
    pub(crate) has_check: bool,
}

impl<'r> KnownRequests<'r> {
    /// The requests that all of these gates can decide.
    pub(crate) fn of(requests: &'r [Request<'r>], gates: &[&Gate]) -> Self {
        let is_known = |request: &Request<'_>| gates.iter().all(|gate| has_policy_of(gate, request));
        let is_own = |request: &&Request<'_>| request.role() != Role::Refusals;
        let has_check = requests.iter().filter(is_own).any(|request| request.verb() == Verb::Check);
        let unknown = requests.iter().filter(is_own).filter(|request| !is_known(request)).count() as u64;
        let known = match requests.iter().all(is_known) {
            true => Cow::Borrowed(requests),
            false => requests.iter().filter(|request| is_known(request)).cloned().collect(),
        };
        Self { known, unknown, has_check }
    }
}

/// Refunds or penalizes what a recording says was refunded or penalized. Peeks change nothing.
pub(crate) fn adjust(gate: &Gate, request: &Request<'_>) {
    if has_policy_of(gate, request) && request.verb() != Verb::Peek {
        gate.apply(std::slice::from_ref(request));
    }
}

/// Whether the policies have the one that a recorded request was under, if it was under one.
#[inline]
pub(crate) fn has_policy_of(gate: &Gate, request: &Request<'_>) -> bool {
    request.named_policy().is_none_or(|name| gate.policies().by_name(name).is_some())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use slidegate::{Counts, Decisions, Policy, Quota};

    use super::*;
    use crate::batch::{EntryBatch, attribute_names};
    use crate::entry::{Entry, Extras};

    /// Counts what is allowed.
    #[derive(Default)]
    struct Counter {
        allowed: Vec<bool>,
    }

    impl DecisionCounter for Counter {
        fn decide(&mut self, asker: Asker<'_>, line: &KnownRequests<'_>) {
            let decisions: Decisions<'_> = asker.ask(&line.known);
            self.allowed.push(decisions.is_allowed());
        }

        fn adjust(&mut self, _: &Gate, _: &Request<'_>) {}
    }

    /// The decisions on requests that begin and last so many seconds, with at most two open at once.
    fn decided(limit: u64, requests: &[(u64, u64)]) -> (Counter, Decider) {
        let quota = Quota::in_flight(limit, Duration::from_secs(30)).unwrap();
        let policy = Policy::new("streams", quota).unwrap().with_scope(["ip"]).with_counts(Counts::Requests);
        let policies = PolicySet::new([policy]).unwrap();
        let mut batch = EntryBatch::new(attribute_names([&policies]));
        for (start, duration) in requests {
            batch.push(&Entry {
                client: b"192.0.2.1",
                ident: None,
                user: None,
                time_us: start * 1_000_000,
                duration_us: Some(duration * 1_000_000),
                request: None,
                host: None,
                status: 200,
                bytes: 0,
                cost: 1,
                referer: None,
                user_agent: None,
                extra: Extras::default(),
            });
        }
        let reservations = Some(Reservations::bounded(&policies, 2));
        let mut decider = Decider { reservations, ..Decider::new(policies, Options::default()) };
        let mut counter = Counter::default();
        decider.decide(&batch, &mut counter);
        (counter, decider)
    }

    /// Memory is bounded, and what that costs is said.
    #[test]
    fn one_reservation_too_many_settles_another_early_and_is_counted() {
        let (counter, decider) = decided(3, &[(0, 100), (1, 15), (2, 100), (3, 1), (4, 1)]);
        assert_eq!(counter.allowed, [true; 5]);
        // At 3 s the third is one too many; at 4 s the fourth ends.
        let reservations = decider.reservations().unwrap();
        assert_eq!((reservations.counts.settled_early, reservations.policies[0].counts.settled), (1, 2));
        assert_eq!(
            reservations.notes(&decider.gate().policies()),
            [
                "1 reservation is settled before its end, because more than 2 were open at once: some denials are \
              missing"
            ]
        );
    }

    /// A line that comes too late is decided at the time reached, but its request ended when it did.
    #[test]
    fn a_late_request_ends_when_it_ended() {
        let (counter, _) = decided(1, &[(10, 1), (5, 7), (11, 1), (12, 1)]);
        // The second is decided at 10 s beside the first; the third finds the key free.
        assert_eq!(counter.allowed, [true, false, true, true]);
        let (counter, _) = decided(1, &[(10, 0), (5, 7), (11, 1), (12, 1)]);
        // Here it holds its permit until 12 s, although its line is seven seconds long.
        assert_eq!(counter.allowed, [true, true, false, true]);
    }
}

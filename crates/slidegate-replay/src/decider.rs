//! The gate that decides the entries of a log, on a clock that follows them.

use slidegate::{Decisions, Gate, ManualClock, MemoryStore, Policy, PolicySet, Request, Timestamp};

use crate::batch::{BatchEntry, EntryBatch, Line};
use crate::reservations::{Reservations, unlearned, without_cost};

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate,
    clock: ManualClock,
    now: Timestamp,
    /// Where a policy reserves.
    reservations: Option<Reservations>,
}

/// Bounds of a replay, or of a diff.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most keys in memory at once, for each set of policies and each value of a sweep. The outcome
    /// says if more were needed.
    pub max_keys: usize,
    /// Most keys that the outcome lists for each policy, or in each direction of a diff.
    pub top: usize,
    /// Threads that decide, besides the one that reads; 0 for none. The outcome is the same with
    /// any number.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_keys: MemoryStore::DEFAULT_MAX_KEYS, top: 5, threads: 0 }
    }
}

/// Counts what is decided.
pub(crate) trait DecisionCounter {
    /// Decides a request, at its time, and counts it.
    fn decide(&mut self, asker: Asker<'_>, request: &Request<'_>);
}

/// Decides a request: as a check, or as a reservation.
#[derive(Debug)]
pub(crate) struct Asker<'d> {
    gate: &'d Gate,
    pub(crate) now: Timestamp,
    pub(crate) entry: BatchEntry,
    /// Those that it becomes one of, if it is one.
    reservations: Option<&'d mut Reservations>,
}

impl Asker<'_> {
    /// Whether the request is a reservation, which is to be asked [without its cost](without_cost).
    pub(crate) fn is_reservation(&self) -> bool {
        self.reservations.is_some()
    }

    /// Decides the request, whose cost is charged or held if it is allowed.
    pub(crate) fn ask<'r>(self, request: &'r Request<'r>) -> Decisions<'r> {
        match self.reservations {
            None => self.gate.check(request),
            Some(known) => known.reserve(self.gate, self.now, self.entry, request),
        }
    }
}

impl Decider {
    /// A gate with an empty store.
    pub(crate) fn new(policies: PolicySet, options: Options) -> Self {
        let may_reserve = policies.iter().any(Policy::expects_reservations);
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
            let asker = self.asker(line);
            let unsaid = asker.is_reservation().then(|| without_cost(line.request));
            counter.decide(asker, unsaid.as_ref().unwrap_or(line.request));
        });
    }

    /// Prepares the decision on a request.
    pub(crate) fn asker<'d>(&'d mut self, line: Line<'d>) -> Asker<'d> {
        let Self { gate, reservations, now, .. } = self;
        let Line { entry, request } = line;
        let reservations = reservations
            .as_mut()
            .and_then(|known| known.begins(&gate.policies(), entry, request).then_some(known));
        Asker { gate, now: *now, entry, reservations }
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
        }
        *now = until;
        clock.set(until);
    }

    /// The reservations, where a policy reserves.
    pub(crate) fn reservations(&self) -> Option<&Reservations> {
        self.reservations.as_ref()
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use slidegate::{Counts, Policy, Quota};

    use super::*;
    use crate::batch::{EntryBatch, attribute_names};
    use crate::entry::{Entry, Extras};

    /// Counts what is allowed.
    #[derive(Default)]
    struct Counter {
        allowed: Vec<bool>,
    }

    impl DecisionCounter for Counter {
        fn decide(&mut self, asker: Asker<'_>, request: &Request<'_>) {
            self.allowed.push(asker.ask(request).is_allowed());
        }
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

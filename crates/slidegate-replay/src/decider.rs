//! The gate that decides the entries of a log, on a clock that follows them.
//!
//! Plain checks take a shorter path to the same states: their policies and keys are found for a
//! whole batch at a time, and no decision with all its waits is made of them. A check that needs
//! one, because a key is denied for the first time, goes through the gate like any other request.
//! `tests/replay/paths.rs` compares both paths on random policies and traffic.

use std::sync::Arc;

use slidegate::{Decisions, Gate, Policy, PolicySet, Request, Role, Timestamp, Verb};

use crate::batch::{BatchEntry, EntryBatch};
use crate::call::{RecordedHold, RecordedReservation};
use crate::compiled::CompiledPolicies;
use crate::reservations::{Reservations, Settled, unlearned, without_cost};
use crate::store::keys::{KeyRecord, NOT_DENIED};
use crate::store::{NO_KEY, ReplayStore};

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate<ReplayStore>,
    compiled: Option<CompiledPolicies>,
    /// Where a policy reserves.
    reservations: Option<Reservations>,
    found: Vec<PolicyVerdict>,
    now: Timestamp,
}

/// What a decider is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Most keys in its store.
    pub(crate) max_keys: usize,
    /// Whether there may be recorded reservations, also under policies that expect none.
    pub(crate) is_recorded: bool,
}

/// Counts what is decided.
pub(crate) trait DecisionCounter {
    /// Whether the first denial of a key is counted by its decision, not by its verdict alone.
    const NEEDS_FIRST_DENIAL: bool;

    /// Decides a request, at its time, and counts it.
    fn decide(&mut self, asker: Asker<'_>, request: &Request<'_>);

    /// Decides the requests of a call in one step, at its time, and counts it.
    fn decide_call(&mut self, asker: CallAsker<'_>, call: &KnownRequests<'_>);

    /// Counts the verdict on a plain check.
    fn count(&mut self, now: Timestamp, entry: BatchEntry, verdict: CheckVerdict<'_>);

    /// Counts the denial of a plain check by a policy.
    fn count_denied(&mut self, now: Timestamp, policy: usize, key: &mut KeyRecord);

    /// Called after a reservation was settled.
    fn settled(&mut self, now: Timestamp, settled: Settled<'_>) {
        let _ = (now, settled);
    }
}

/// Decides one request: as a check, or as a reservation.
#[derive(Debug)]
pub(crate) struct Asker<'d> {
    pub(crate) gate: &'d Gate<ReplayStore>,
    pub(crate) now: Timestamp,
    pub(crate) entry: BatchEntry,
    /// For a request that reserves.
    reservations: Option<&'d mut Reservations>,
}

impl Asker<'_> {
    /// Whether the request is a reservation.
    pub(crate) fn is_reservation(&self) -> bool {
        self.reservations.is_some()
    }

    /// Decides the request, which is charged or held if it is allowed.
    pub(crate) fn ask<'r>(self, request: &'r Request<'r>) -> Decisions<'r> {
        match self.reservations {
            Some(reservations) => reservations.reserve(self.gate, self.now, self.entry, request),
            None => self.gate.check(request),
        }
    }
}

/// Decides the requests of a call, or a recorded reservation.
#[derive(Debug)]
pub(crate) struct CallAsker<'d> {
    pub(crate) gate: &'d Gate<ReplayStore>,
    pub(crate) now: Timestamp,
    pub(crate) entry: BatchEntry,
    reservation: Option<(&'d mut Reservations, &'d RecordedReservation)>,
}

impl CallAsker<'_> {
    /// Whether it is a reservation.
    pub(crate) fn is_reservation(&self) -> bool {
        self.reservation.is_some()
    }

    /// Decides the requests in one step, which are charged or held if they are allowed.
    pub(crate) fn ask<'r>(self, requests: &'r [Request<'r>]) -> Decisions<'r> {
        match self.reservation {
            Some((reservations, recorded)) => reservations.reserve_recorded(self.gate, requests, recorded),
            None => self.gate.apply(requests),
        }
    }
}

/// What was decided on a plain check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CheckVerdict<'d> {
    pub(crate) is_denied: bool,
    /// Of each policy that applies.
    pub(crate) policies: &'d [PolicyVerdict],
}

/// What a policy said of a plain check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PolicyVerdict {
    /// The policy's place in the set.
    pub(crate) policy: usize,
    pub(crate) is_denied: bool,
    /// The position of its key.
    key: u32,
    used: u64,
}

impl Decider {
    /// A gate with an empty store that holds usage of up to `max_keys` keys.
    pub(crate) fn new(policies: PolicySet, bounds: Bounds) -> Self {
        Self::with_reservations(policies, bounds, false)
    }

    /// The same, and each reservation is settled together with its request.
    pub(crate) fn judged(policies: PolicySet, bounds: Bounds) -> Self {
        Self::with_reservations(policies, bounds, true)
    }

    fn with_reservations(policies: PolicySet, bounds: Bounds, keeps_requests: bool) -> Self {
        let Bounds { max_keys, is_recorded } = bounds;
        if !is_recorded && !policies.iter().any(Policy::expects_reservations) {
            return Self::without_reservations(policies, max_keys);
        }
        let policies = unlearned(policies);
        let reservations = Reservations::new(&policies, keeps_requests);
        let store = ReplayStore::holding(&policies, max_keys);
        Self { reservations: Some(reservations), ..Self::over(policies, store) }
    }

    /// One that only checks, whatever its policies are.
    pub(crate) fn without_reservations(policies: PolicySet, max_keys: usize) -> Self {
        let store = ReplayStore::new(&policies, max_keys);
        Self::over(policies, store)
    }

    fn over(policies: PolicySet, store: ReplayStore) -> Self {
        let compiled = CompiledPolicies::new(&policies);
        let gate = Gate::with_store(policies, store).expect("a store in memory takes any limit");
        Self { gate, compiled, reservations: None, found: Vec::new(), now: Timestamp::EPOCH }
    }

    /// Decides the entries of a batch in their order.
    pub(crate) fn decide(&mut self, batch: &EntryBatch, counter: &mut impl DecisionCounter) {
        if self.compiled.is_none() || self.reservations.is_some() {
            self.decide_ordinary(batch, counter);
        } else {
            self.decide_compiled(batch, counter);
        }
    }

    /// Decides all of them through the gate.
    pub(crate) fn decide_ordinary(&mut self, batch: &EntryBatch, counter: &mut impl DecisionCounter) {
        batch.for_each(|entry, requests| {
            self.settle_until(entry.time_us, |now, settled| counter.settled(now, settled));
            self.follow(entry.time_us);
            match requests {
                [] => self.change(batch, entry, |now, settled| counter.settled(now, settled)),
                [request] if request.own_role() == Role::Deciding && batch.hold(entry).is_none() => {
                    let asker = self.asker(entry, request);
                    if asker.is_reservation() {
                        counter.decide(asker, &without_cost(request));
                    } else {
                        counter.decide(asker, request);
                    }
                }
                _ => {
                    let call = KnownRequests::of(requests, &[&self.gate]);
                    counter.decide_call(self.call_asker(batch, entry), &call);
                }
            }
        });
    }

    /// Prepares the decision on a request. One that is a reservation is asked [without its
    /// cost](without_cost).
    pub(crate) fn asker(&mut self, entry: BatchEntry, request: &Request<'_>) -> Asker<'_> {
        let Self { gate, reservations, now, .. } = self;
        let is_check = request.own_verb() == Verb::Check && has_policy_of(gate, request);
        let reservations = reservations
            .as_mut()
            .filter(|_| is_check)
            .and_then(|known| known.begins(&gate.policies(), entry, request).then_some(known));
        Asker { gate, now: *now, entry, reservations }
    }

    /// Prepares the decision on a call.
    pub(crate) fn call_asker<'d>(&'d mut self, batch: &'d EntryBatch, entry: BatchEntry) -> CallAsker<'d> {
        let Self { gate, reservations, now, .. } = self;
        let recorded = match batch.hold(entry) {
            Some(RecordedHold::Made(recorded)) => Some(recorded),
            Some(RecordedHold::Changed(_)) | None => None,
        };
        CallAsker { gate, now: *now, entry, reservation: reservations.as_mut().zip(recorded) }
    }

    /// Carries out the change of a reservation that an entry records, if it does.
    pub(crate) fn change(
        &mut self,
        batch: &EntryBatch,
        entry: BatchEntry,
        mut on_settled: impl FnMut(Timestamp, Settled<'_>),
    ) {
        let Self { gate, reservations: Some(reservations), now, .. } = self else { return };
        if let Some(RecordedHold::Changed(change)) = batch.hold(entry) {
            reservations.change_recorded(gate, change, |settled| on_settled(*now, settled));
        }
    }

    /// Carries out what is due up to a time: settles reservations whose requests have ended, and
    /// extends others.
    pub(crate) fn settle_until(&mut self, until_us: u64, mut on_settled: impl FnMut(Timestamp, Settled<'_>)) {
        let Self { gate, reservations: Some(reservations), now, .. } = self else { return };
        let until = (*now).max(Timestamp::from_micros(until_us));
        while let Some(one) = reservations.next_due(until) {
            // One that is settled early is due later.
            *now = (*now).max(Timestamp::from_micros(one.due_us).min(until));
            gate.store().lock().set_time(*now);
            reservations.proceed(gate, *now, one, |settled| on_settled(*now, settled));
        }
        reservations.end_due(until);
    }

    /// The reservations, where a policy or a recorded request reserves.
    pub(crate) fn reservations(&self) -> Option<&Reservations> {
        let expects = || self.gate.policies().iter().any(Policy::expects_reservations);
        self.reservations.as_ref().filter(|known| known.counts.asked > 0 || expects())
    }

    fn decide_compiled<C: DecisionCounter>(&mut self, batch: &EntryBatch, counter: &mut C) {
        let Self { gate, compiled: Some(compiled), found, now, .. } = self else { return };
        let mut usages = gate.store().lock();
        compiled.find(batch, &mut usages);
        for (at, entry) in batch.entries().iter().enumerate() {
            *now = (*now).max(Timestamp::from_micros(entry.time_us));
            usages.set_time(*now);
            found.clear();
            let (mut is_denied, mut is_plain) = (false, entry.is_plain_check());
            for policy in 0..compiled.len() {
                let key = compiled.position(policy, at);
                if key == NO_KEY {
                    continue;
                }
                let Some(room) = usages.room(policy, key, entry.cost) else {
                    is_plain = false;
                    break;
                };
                is_plain &= room.fits || !C::NEEDS_FIRST_DENIAL || room.denied != NOT_DENIED;
                is_denied |= !room.fits && compiled.is_enforced(policy);
                found.push(PolicyVerdict { policy, is_denied: !room.fits, key, used: room.used });
            }
            if !is_plain {
                drop(usages);
                batch.with_requests(at, |requests| match requests {
                    [request] if request.own_role() == Role::Deciding => {
                        let asker = Asker { gate, now: *now, entry: *entry, reservations: None };
                        counter.decide(asker, request);
                    }
                    _ => {
                        let asker = CallAsker { gate, now: *now, entry: *entry, reservation: None };
                        counter.decide_call(asker, &KnownRequests::of(requests, &[gate]));
                    }
                });
                usages = gate.store().lock();
                continue;
            }
            for verdict in found.iter() {
                if verdict.is_denied {
                    usages.note_used(verdict.policy, verdict.key, verdict.used);
                    counter.count_denied(*now, verdict.policy, usages.record(verdict.policy, verdict.key));
                } else if !is_denied {
                    usages.charge(verdict.policy, verdict.key, entry.cost);
                }
            }
            counter.count(*now, *entry, CheckVerdict { is_denied, policies: found });
        }
    }

    /// Sets the clock to the time of an entry, or leaves it if that is earlier. Returns the time.
    #[inline]
    pub(crate) fn follow(&mut self, time_us: u64) -> Timestamp {
        let time = Timestamp::from_micros(time_us);
        if time > self.now {
            self.now = time;
            self.gate.store().lock().set_time(time);
        }
        self.now
    }

    #[inline]
    pub(crate) fn gate(&self) -> &Gate<ReplayStore> {
        &self.gate
    }

    pub(crate) fn policies(&self) -> Arc<PolicySet> {
        self.gate.policies()
    }
}

/// The requests of a call that can be decided.
#[derive(Debug)]
pub(crate) struct KnownRequests<'r> {
    /// Those that are not under a policy which is missing.
    pub(crate) known: Vec<Request<'r>>,
    /// How many are. What was refused of a request is not one of its own.
    pub(crate) unknown: u64,
    /// Whether there is a check among all of them, so that the call counts as a request.
    pub(crate) has_check: bool,
}

impl<'r> KnownRequests<'r> {
    /// The requests that all of these gates can decide.
    pub(crate) fn of(requests: &[Request<'r>], gates: &[&Gate<ReplayStore>]) -> Self {
        let mut call = Self { known: Vec::with_capacity(requests.len()), unknown: 0, has_check: false };
        for request in requests {
            call.has_check |= request.own_verb() == Verb::Check && request.own_role() != Role::Refusals;
            if gates.iter().all(|gate| has_policy_of(gate, request)) {
                call.known.push(request.clone());
            } else {
                call.unknown += u64::from(request.own_role() != Role::Refusals);
            }
        }
        call
    }
}

/// Refunds or penalizes what a recording says was refunded or penalized. Peeks change nothing.
pub(crate) fn adjust(gate: &Gate<ReplayStore>, request: &Request<'_>) {
    if has_policy_of(gate, request) && request.own_verb() != Verb::Peek {
        gate.apply(std::slice::from_ref(request));
    }
}

/// Whether the policies have the one that a recorded request was under, if it was under one.
#[inline]
pub(crate) fn has_policy_of(gate: &Gate<ReplayStore>, request: &Request<'_>) -> bool {
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

    /// Counts what is allowed and what was settled, in seconds.
    #[derive(Default)]
    struct Counter {
        allowed: Vec<bool>,
        settled: Vec<u64>,
    }

    impl DecisionCounter for Counter {
        const NEEDS_FIRST_DENIAL: bool = true;

        fn decide(&mut self, asker: Asker<'_>, request: &Request<'_>) {
            let decisions: Decisions<'_> = asker.ask(request);
            self.allowed.push(decisions.is_allowed());
        }

        fn decide_call(&mut self, _: CallAsker<'_>, _: &KnownRequests<'_>) {}
        fn count(&mut self, _: Timestamp, _: BatchEntry, _: CheckVerdict<'_>) {}
        fn count_denied(&mut self, _: Timestamp, _: usize, _: &mut KeyRecord) {}

        fn settled(&mut self, now: Timestamp, settled: Settled<'_>) {
            assert_eq!(settled.settlement.iter().len(), 1);
            self.settled.push(now.as_micros() / 1_000_000);
        }
    }

    /// The decisions on requests that begin and last so many seconds, with at most two open at once.
    fn decided(limit: u64, requests: &[(u64, u64)]) -> (Counter, Decider) {
        let quota = Quota::in_flight(limit, Duration::from_secs(30)).unwrap();
        let policy = Policy::new("streams", quota).unwrap().scope(["ip"]).counts(Counts::Requests);
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
        let reservations = Some(Reservations::bounded(&policies, false, 2));
        let mut decider =
            Decider { reservations, ..Decider::new(policies, Bounds { max_keys: 100, is_recorded: false }) };
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
        assert_eq!(counter.settled, [3, 4]);
        let reservations = decider.reservations().unwrap();
        assert_eq!(reservations.counts.settled_early, 1);
        assert_eq!(
            reservations.notes(&decider.policies()),
            [
                "1 reservations are settled before their end, because more than 2 were open at once: some denials are \
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

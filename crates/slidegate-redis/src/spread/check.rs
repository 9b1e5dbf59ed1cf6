//! A state machine, without I/O, that checks keys in several slots: `spread.rs` makes its calls,
//! and a model tests every order of their events.

use redis_once::{Executed, Failure, FailureKind};
use slidegate::{Decision, Excess};
use smallvec::SmallVec;

use crate::call::{Answers, Subject, Subjects};

/// The subjects of a request that are in one slot, and their positions in the request.
#[derive(Debug, Clone)]
pub(crate) struct SlotPart {
    pub(crate) subjects: Subjects,
    pub(crate) positions: SmallVec<[usize; 2]>,
}

/// Why some subjects have no decision.
#[derive(Debug, Clone)]
pub(crate) struct Undecided {
    pub(crate) failure: Failure,
    /// See [`DecideError::denied`](slidegate::store::DecideError::denied).
    pub(crate) denied: Option<Vec<Option<Decision>>>,
}

impl From<Failure> for Undecided {
    fn from(failure: Failure) -> Self {
        Self { failure, denied: None }
    }
}

/// The decisions known so far, in the order of the subjects.
pub(super) type PartialDecisions = SmallVec<[Option<Decision>; 4]>;

/// Charges in one slot to refund.
#[derive(Debug)]
pub(super) struct SlotRefund {
    pub(super) subjects: Subjects,
    /// How long each counts at least, in microseconds from its charge. A later refund would remove
    /// charges of other requests.
    pub(super) counts_us: u64,
}

/// A check whose keys are in several slots. Call the first part; if it neither denies nor fails,
/// all others concurrently.
#[derive(Debug, Clone)]
pub(super) struct SpreadCheck {
    parts: Vec<SlotPart>,
    answers: PartialDecisions,
    /// Positions in `parts`.
    charged: SmallVec<[usize; 4]>,
    denied: bool,
    failure: Option<Failure>,
}

impl SpreadCheck {
    /// The first part is the first to be called.
    pub(super) fn new(parts: Vec<SlotPart>) -> Self {
        let answers = none_of(&parts);
        Self { parts, answers, charged: SmallVec::new(), denied: false, failure: None }
    }

    pub(super) fn parts(&self) -> &[SlotPart] {
        &self.parts
    }

    /// The outcome of the check of a part, which charged it if it allows.
    pub(super) fn checked(&mut self, part: usize, decided: Result<Answers, Failure>) {
        if let Some(decided) = self.decided(part, decided) {
            let denies = self.parts[part].subjects.denies(&decided);
            self.denied |= denies;
            if !denies {
                self.charged.push(part);
            }
        }
    }

    /// The outcome of a part that was only peeked at, because the first part denied.
    pub(super) fn refused(&mut self, part: usize, peeked: Result<Answers, Failure>) {
        self.decided(part, peeked);
    }

    /// A call ended without an outcome.
    pub(super) fn ended_unexpectedly(&mut self) {
        self.failure = Some(ended());
    }

    /// Whether an enforced policy denies.
    pub(super) fn is_denied(&self) -> bool {
        self.denied
    }

    /// Whether the others need not be called.
    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The outcome once every call has ended, and the necessary [`refunds`].
    pub(super) fn end(mut self, cost: u64, soon_us: u64) -> (Result<Answers, Undecided>, Vec<SlotRefund>) {
        let is_refunded = self.denied || self.failure.is_some();
        let charged = self.charged.iter().filter(|_| is_refunded).map(|part| &self.parts[*part]);
        let refunds = refunds(charged, &mut self.answers, cost, soon_us);
        (complete(self.answers, self.denied, self.failure), refunds)
    }

    fn decided(&mut self, part: usize, decided: Result<Answers, Failure>) -> Option<Answers> {
        match decided {
            Ok(decided) => {
                put(&mut self.answers, &self.parts[part], decided.iter().copied());
                Some(decided)
            }
            Err(failure) => {
                self.failure = Some(failure);
                None
            }
        }
    }
}

/// The refunds of these parts, and the decisions after them. Charges that count for less than
/// `soon_us` are separate, so that only they must be quick.
pub(super) fn refunds<'p>(
    charged: impl Iterator<Item = &'p SlotPart>,
    answers: &mut [Option<Decision>],
    cost: u64,
    soon_us: u64,
) -> Vec<SlotRefund> {
    let mut refunds = Vec::new();
    for part in charged {
        let nothing = || SlotRefund { subjects: Subjects(SmallVec::new()), counts_us: u64::MAX };
        let mut by_time = [nothing(), nothing()];
        for (position, subject) in part.positions.iter().zip(&part.subjects.0) {
            // A shadow policy that would have denied was not charged, and a policy that counts
            // denials keeps its charge.
            let is_refunded =
                |decision: &&mut Decision| decision.cost > 0 && subject.part.excess != Excess::Count;
            if let Some(decision) = answers[*position].as_mut().filter(is_refunded) {
                // A charge is capped at the maximum usage of its key, so its refund is too.
                let own_cost = Some(decision.cost).filter(|charged| *charged != cost);
                let counts_us = decision.waits.reset_us.min(subject.quota.window_us());
                let refund = &mut by_time[usize::from(counts_us >= soon_us)];
                refund.subjects.0.push(Subject { own_cost, ..subject.clone() });
                refund.counts_us = refund.counts_us.min(counts_us);
                decision.used = decision.used.saturating_sub(decision.cost);
                decision.remaining = decision.limit.saturating_sub(decision.used);
                decision.cost = 0;
            }
        }
        refunds.extend(by_time.into_iter().filter(|refund| !refund.subjects.0.is_empty()));
    }
    refunds
}

/// No decision yet for any subject of these parts.
pub(super) fn none_of(parts: &[SlotPart]) -> PartialDecisions {
    SmallVec::from_elem(None, parts.iter().map(|part| part.positions.len()).sum())
}

pub(super) fn put(
    known: &mut [Option<Decision>],
    part: &SlotPart,
    decided: impl IntoIterator<Item = Decision>,
) {
    for (position, decision) in part.positions.iter().zip(decided) {
        known[*position] = Some(decision);
    }
}

/// The decisions, if there is one for each subject.
fn complete(answers: PartialDecisions, denied: bool, failure: Option<Failure>) -> Result<Answers, Undecided> {
    if failure.is_none()
        && let Some(whole) = answers.iter().copied().collect()
    {
        return Ok(whole);
    }
    Err(Undecided { failure: failure.unwrap_or_else(missing), denied: denied.then(|| answers.into_vec()) })
}

pub(crate) fn ended() -> Failure {
    Failure::without_node(
        Executed::Maybe,
        FailureKind::ConnectionLost,
        "a part of the request ended unexpectedly",
    )
}

pub(super) fn missing() -> Failure {
    Failure::without_node(Executed::Maybe, FailureKind::Malformed, "did not decide every key")
}

#[cfg(test)]
mod tests {
    //! A model of checks that meet in several slots: every order in which their calls, replies,
    //! failures and refunds can happen, tried one by one, with the state machine that also makes the
    //! real calls.

    use std::collections::HashSet;

    use slidegate::internal::Waits;
    use slidegate::{Quota, Verdict, clock::Timestamp};
    use smallvec::smallvec;

    use crate::call::check_of_nothing;

    use super::*;

    const COST: u64 = 1;

    /// Faults of a model.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Faults {
        Absent,
        /// Calls that are not executed, and calls that are executed but whose reply is lost.
        OfCalls,
        /// The process of a request ends.
        OfProcesses,
    }

    /// A request that is being checked.
    #[derive(Debug, Clone)]
    struct Caller {
        check: Option<SpreadCheck>,
        /// Parts that are to be called, and whether they are only peeked at.
        waiting: Vec<usize>,
        is_refusing: bool,
        /// The slots of its refunds that are on their way.
        refunds: Vec<usize>,
        outcome: Option<Outcome>,
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Outcome {
        Allowed,
        Denied,
        Failed,
        /// Its process ended.
        Gone,
    }

    /// The slots and the requests.
    #[derive(Debug, Clone)]
    struct World {
        used: Vec<u64>,
        limits: Vec<u64>,
        callers: Vec<Caller>,
        /// Charges that a failure or an end of a process left behind.
        is_exact: bool,
    }

    /// The next possible event.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        Call { caller: usize, waiting: usize, fate: Fate },
        Refund { caller: usize, refund: usize },
        Gone { caller: usize },
    }

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Fate {
        Replied,
        NotExecuted,
        ReplyLost,
    }

    fn subject(slot: usize, limit: u64) -> Subject {
        Subject {
            name: format!("slot-{slot}").into_bytes(),
            quota: Quota::per_minute(limit),
            part: check_of_nothing(),
            own_cost: None,
            key: 0,
            hold: None,
            lease_us: 0,
        }
    }

    impl Caller {
        /// Checks one key in each of these slots, the first one first.
        fn new(slots: &[usize], limits: &[u64]) -> Self {
            let parts = slots.iter().enumerate().map(|(position, slot)| SlotPart {
                subjects: Subjects(smallvec![subject(*slot, limits[*slot])]),
                positions: smallvec![position],
            });
            let check = Some(SpreadCheck::new(parts.collect()));
            Self { check, waiting: vec![0], is_refusing: false, refunds: Vec::new(), outcome: None }
        }

        fn slot(&self, part: usize) -> usize {
            slot_of(&self.check.as_ref().unwrap().parts()[part].subjects)
        }
    }

    fn slot_of(subjects: &Subjects) -> usize {
        let name = std::str::from_utf8(&subjects.0[0].name).unwrap();
        name.trim_start_matches("slot-").parse().unwrap()
    }

    impl World {
        fn new(limits: &[u64], requests: &[&[usize]]) -> Self {
            let callers = requests.iter().map(|slots| Caller::new(slots, limits)).collect();
            Self { used: vec![0; limits.len()], limits: limits.to_vec(), callers, is_exact: true }
        }

        fn events(&self, faults: Faults) -> Vec<Event> {
            let mut events = Vec::new();
            for (caller, state) in self.callers.iter().enumerate() {
                for waiting in 0..state.waiting.len() {
                    let mut fates = vec![Fate::Replied];
                    if faults == Faults::OfCalls {
                        fates.extend([Fate::NotExecuted, Fate::ReplyLost]);
                    }
                    events.extend(fates.into_iter().map(|fate| Event::Call { caller, waiting, fate }));
                }
                events.extend((0..state.refunds.len()).map(|refund| Event::Refund { caller, refund }));
                let is_under_way = !state.waiting.is_empty() || !state.refunds.is_empty();
                if faults == Faults::OfProcesses && is_under_way {
                    events.push(Event::Gone { caller });
                }
            }
            events
        }

        fn happens(&mut self, event: Event) {
            match event {
                Event::Refund { caller, refund } => {
                    let slot = self.callers[caller].refunds.remove(refund);
                    self.used[slot] =
                        self.used[slot].checked_sub(COST).expect("only what was charged is refunded");
                }
                Event::Gone { caller } => {
                    let caller = &mut self.callers[caller];
                    (caller.check, caller.waiting, caller.refunds) = (None, Vec::new(), Vec::new());
                    caller.outcome = caller.outcome.or(Some(Outcome::Gone));
                    self.is_exact = false;
                }
                Event::Call { caller, waiting, fate } => self.call(caller, waiting, fate),
            }
        }

        fn call(&mut self, caller: usize, waiting: usize, fate: Fate) {
            let part = self.callers[caller].waiting.remove(waiting);
            let slot = self.callers[caller].slot(part);
            let is_peek = self.callers[caller].is_refusing;
            let decided = (fate != Fate::NotExecuted).then(|| self.decide(slot, is_peek));
            let reply = match fate {
                Fate::Replied => decided.ok_or_else(ended),
                Fate::NotExecuted | Fate::ReplyLost => Err(ended()),
            };
            self.is_exact &= fate != Fate::ReplyLost;
            let caller = &mut self.callers[caller];
            let check = caller.check.as_mut().unwrap();
            if is_peek {
                check.refused(part, reply);
            } else {
                check.checked(part, reply);
            }
            // As the driver does, see `check_parts`.
            if part == 0 && !check.has_failed() {
                caller.is_refusing = check.is_denied();
                caller.waiting = (1..check.parts().len()).collect();
            }
            if caller.waiting.is_empty() {
                let (outcome, refunds) = caller.check.take().unwrap().end(COST, 0);
                caller.refunds = refunds.iter().map(|refund| slot_of(&refund.subjects)).collect();
                caller.outcome = Some(match outcome {
                    Ok(answers) if answers.iter().all(|one| !one.is_denied()) => Outcome::Allowed,
                    Ok(answers) => {
                        assert!(answers.iter().all(|one| one.cost == 0), "a denial says that it charged");
                        Outcome::Denied
                    }
                    Err(undecided) if undecided.denied.is_some() => Outcome::Denied,
                    Err(_) => Outcome::Failed,
                });
            }
        }

        /// One slot decides in one atomic step.
        fn decide(&mut self, slot: usize, is_peek: bool) -> Answers {
            let limit = self.limits[slot];
            let fits = self.used[slot] + COST <= limit;
            let cost = if fits && !is_peek { COST } else { 0 };
            self.used[slot] += cost;
            let decision = Decision {
                verdict: if fits { Verdict::Allow } else { Verdict::Deny },
                used: self.used[slot],
                remaining: limit - self.used[slot],
                cost,
                waits: Waits { retry_us: 0, reset_us: 60_000_000, frees_us: 0 },
                ..Decision::unused(limit, Timestamp::EPOCH)
            };
            smallvec![decision]
        }

        /// Invariants after every event.
        fn assert_sound(&self) {
            for (slot, (used, limit)) in self.used.iter().zip(&self.limits).enumerate() {
                assert!(used <= limit, "slot {slot}: {used} of {limit}: {self:?}");
            }
        }

        /// Invariants once nothing more can happen.
        fn assert_settled(&self) {
            let allowed =
                self.callers.iter().filter(|one| one.outcome == Some(Outcome::Allowed)).count() as u64;
            for used in &self.used {
                if self.is_exact {
                    assert_eq!(*used, allowed, "a request is charged everywhere or nowhere: {self:?}");
                } else {
                    assert!(*used >= allowed, "an admitted request was not charged: {self:?}");
                }
            }
        }

        fn key(&self) -> String {
            format!("{self:?}")
        }
    }

    /// Tries every order of events. Returns how many states there are and the outcomes at their ends.
    fn explore(world: World, faults: Faults) -> (usize, HashSet<String>) {
        let (mut seen, mut ends, mut left) = (HashSet::new(), HashSet::new(), vec![world]);
        while let Some(world) = left.pop() {
            if !seen.insert(world.key()) {
                continue;
            }
            world.assert_sound();
            let events = world.events(faults);
            if events.is_empty() {
                world.assert_settled();
                ends.insert(format!(
                    "{:?}",
                    world.callers.iter().map(|one| one.outcome.unwrap()).collect::<Vec<_>>()
                ));
            }
            left.extend(events.into_iter().map(|event| {
                let mut next = world.clone();
                next.happens(event);
                next
            }));
        }
        (seen.len(), ends)
    }

    /// Two requests for the last unit of two slots, called in the same order or crosswise: never both
    /// are admitted, and no charge of a denied one stays.
    #[test]
    fn requests_that_meet_in_two_slots_are_charged_in_both_or_in_none() {
        for orders in [[[0, 1], [0, 1]], [[0, 1], [1, 0]]] {
            let requests: Vec<&[usize]> = orders.iter().map(|order| &order[..]).collect();
            let (states, ends) = explore(World::new(&[1, 1], &requests), Faults::Absent);
            assert!(states > 10, "{states}");
            assert!(ends.contains("[Allowed, Denied]") && ends.contains("[Denied, Allowed]"), "{ends:?}");
            assert!(!ends.contains("[Allowed, Allowed]"), "{ends:?}");
        }
    }

    /// Where there is room for all, the charges of one must not deny the other.
    #[test]
    fn requests_for_which_there_is_room_are_all_admitted() {
        let (_, ends) = explore(World::new(&[2, 2], &[&[0, 1], &[1, 0]]), Faults::Absent);
        assert_eq!(ends.into_iter().collect::<Vec<_>>(), ["[Allowed, Allowed]"]);
    }

    /// Three requests and three slots: more orders than anybody would write down.
    #[test]
    fn three_requests_in_three_slots_leave_nothing_behind() {
        let (states, ends) =
            explore(World::new(&[1, 2, 1], &[&[0, 1, 2], &[2, 1, 0], &[1, 0, 2]]), Faults::Absent);
        assert!(states > 1000, "{states}");
        assert!(ends.iter().all(|end| end.matches("Allowed").count() <= 1), "{ends:?}");
    }

    /// Calls that fail, with or without effect: at most the failed request stays charged, and no limit
    /// is exceeded.
    #[test]
    fn failed_calls_never_admit_too_much() {
        for limits in [[1, 1], [1, 2], [2, 2]] {
            let (_, ends) = explore(World::new(&limits, &[&[0, 1], &[1, 0]]), Faults::OfCalls);
            assert!(ends.contains("[Failed, Failed]"), "{ends:?}");
        }
    }

    /// A process that ends leaves charges for their window, which deny others and admit nobody too
    /// often.
    #[test]
    fn processes_that_end_never_admit_too_much() {
        for limits in [[1, 1], [1, 2], [2, 2]] {
            let (_, ends) = explore(World::new(&limits, &[&[0, 1], &[1, 0]]), Faults::OfProcesses);
            assert!(ends.contains("[Gone, Gone]"), "{ends:?}");
        }
    }
}

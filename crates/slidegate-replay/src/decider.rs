//! The gate that decides the entries of a log, on a clock that follows them.
//!
//! Plain checks take a shorter path to the same states: their policies and keys are found for a
//! whole batch at a time, and no decision with all its waits is made of them. A check that needs
//! one, because a key is denied for the first time, goes through the gate like any other request.
//! `tests/replay/paths.rs` compares both paths on random policies and traffic.

use std::sync::Arc;

use slidegate::{Gate, PolicySet, Request, Role, Timestamp, Verb};

use crate::batch::{BatchEntry, EntryBatch};
use crate::compiled::CompiledPolicies;
use crate::store::keys::{KeyRecord, NOT_DENIED};
use crate::store::{NO_KEY, ReplayStore};

/// A gate whose clock follows a log.
#[derive(Debug)]
pub(crate) struct Decider {
    gate: Gate<ReplayStore>,
    compiled: Option<CompiledPolicies>,
    found: Vec<PolicyVerdict>,
    now: Timestamp,
}

/// Counts what is decided.
pub(crate) trait DecisionCounter {
    /// Whether the first denial of a key is counted by its decision, not by its verdict alone.
    const NEEDS_FIRST_DENIAL: bool;

    /// Decides a request through the gate, at its time, and counts it.
    fn decide(&mut self, gate: &Gate<ReplayStore>, now: Timestamp, entry: BatchEntry, request: &Request<'_>);

    /// Decides the requests of a call in one step, at its time, and counts it.
    fn decide_call(
        &mut self,
        gate: &Gate<ReplayStore>,
        now: Timestamp,
        entry: BatchEntry,
        call: &KnownRequests<'_>,
    );

    /// Counts the verdict on a plain check.
    fn count(&mut self, now: Timestamp, entry: BatchEntry, verdict: CheckVerdict<'_>);

    /// Counts the denial of a plain check by a policy.
    fn count_denied(&mut self, now: Timestamp, policy: usize, key: &mut KeyRecord);
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
    pub(crate) fn new(policies: PolicySet, max_keys: usize) -> Self {
        let compiled = CompiledPolicies::new(&policies);
        let store = ReplayStore::new(&policies, max_keys);
        let gate = Gate::with_store(policies, store).expect("a store in memory takes any limit");
        Self { gate, compiled, found: Vec::new(), now: Timestamp::EPOCH }
    }

    /// Decides the entries of a batch in their order.
    pub(crate) fn decide(&mut self, batch: &EntryBatch, counter: &mut impl DecisionCounter) {
        if self.compiled.is_none() {
            self.decide_ordinary(batch, counter);
        } else {
            self.decide_compiled(batch, counter);
        }
    }

    /// Decides all of them through the gate.
    pub(crate) fn decide_ordinary(&mut self, batch: &EntryBatch, counter: &mut impl DecisionCounter) {
        batch.for_each(|entry, requests| {
            let now = self.follow(entry.time_us);
            decide(counter, &self.gate, now, entry, requests);
        });
    }

    fn decide_compiled<C: DecisionCounter>(&mut self, batch: &EntryBatch, counter: &mut C) {
        let Self { gate, compiled: Some(compiled), found, now } = self else { return };
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
                batch.with_requests(at, |requests| decide(counter, gate, *now, *entry, requests));
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

/// Hands an entry to the counter: a request, or those of a call.
#[inline]
fn decide(
    counter: &mut impl DecisionCounter,
    gate: &Gate<ReplayStore>,
    now: Timestamp,
    entry: BatchEntry,
    requests: &[Request<'_>],
) {
    match requests {
        [request] if request.own_role() == Role::Deciding => counter.decide(gate, now, entry, request),
        _ => counter.decide_call(gate, now, entry, &KnownRequests::of(requests, &[gate])),
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

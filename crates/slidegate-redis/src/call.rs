//! A plan's charges as keys and arguments of a script, or of a command of the module.

use std::hash::{Hash, Hasher};

use redis_once::{ReplyBound, Script};
use slidegate::internal::{Holds, MAX_HOLDS, NewHold, Part, PerCharge, Setting};
use slidegate::store::Charge;
use slidegate::{
    Algorithm, Decision, Excess, Quota,
    verb::{Role, Verb},
};
use slidegate_stored::call::{
    CallPart, DecideCall, MAX_PARTS, MAX_REQUESTS, hold_bytes, linger_ms, mode_letters,
};
use slidegate_stored::{letter, lettered_quota, quota_bytes};
use smallvec::SmallVec;

use crate::names::Names;
use crate::native::NativeCommand;
use crate::scripts::{Scripts, position};

/// Largest limit and cost.
pub(crate) const MOST: u64 = Quota::MAX_COUNT;

/// Bytes of a number in other replies: its type, 16 digits and a line end.
pub(super) const WIDE_NUMBER_BYTES: usize = 19;
/// Numbers that are replied about a key, the runs of its log apart, before and after a refund.
pub(super) const KEY_NUMBERS: usize = 16;

/// Bytes of the largest table of holds, with the framing of its reply.
pub(super) const MOST_TABLE_BYTES: usize = Holds::HEADER_BYTES + MAX_HOLDS * Holds::HOLD_BYTES + 64;
/// One charge of a call: a key, its quota and how it takes part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    /// The key's name.
    pub(crate) name: Vec<u8>,
    pub(crate) quota: Quota,
    /// How the key takes part. Its cost is 0; see [`part`](Self::part).
    pub(crate) part: Part,
    /// Its cost if that differs from the cost of the request's first key.
    pub(crate) own_cost: Option<u64>,
    /// The position of the first subject with the same key; in most calls its own.
    pub(crate) key: usize,
    /// The hold to make instead of a charge, or to cancel instead of a refund.
    pub(crate) hold: Option<NewHold>,
    /// How long a slice of the key may be leased, in microseconds; 0 if it may not.
    pub(crate) lease_us: u64,
}

impl Subject {
    /// How the key takes part in a request of this cost.
    pub(crate) fn part(&self, cost: u64) -> Part {
        Part { cost: self.own_cost.unwrap_or(cost), ..self.part }
    }

    fn enforces(&self) -> bool {
        self.part.enforced
    }
}

/// The keys of a request, each with its quota. Requests with equal subjects can share one call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subjects(pub(crate) SmallVec<[Subject; 2]>);

/// Hashes as the subjects that a denial depends on.
struct DeniedSubjects<'s>(&'s Subjects);

impl Hash for DeniedSubjects<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for Subject { name, quota, part, own_cost, key, hold, lease_us: _ } in &self.0.0 {
            (name, quota, part, own_cost, key, hold.is_some()).hash(state);
        }
    }
}

/// The decisions on one request, in the order of its subjects.
pub(crate) type Answers = PerCharge<Decision>;

/// The terms of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTerms<'c> {
    /// One per request.
    pub(crate) costs: &'c [u64],
    /// Nothing is charged after this, in microseconds of the server's clock.
    pub(crate) latest: u64,
    /// Whether a key has or gets holds, which needs the script for holds.
    pub(crate) has_holds: bool,
    /// Whether the call has an idempotency key. The name of its reply is the last key.
    pub(crate) is_once: bool,
    /// By subject: the lease to settle and the one to ask for. Empty if the call has none.
    pub(crate) leases: &'c [Option<LeaseTerms>],
}

/// What a call does with the lease of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// The id of the lease that this instance has, and what was used of it. An unknown id does nothing.
    pub(crate) settled: Option<(u64, u64)>,
    /// The id of the lease asked for.
    pub(crate) id: u64,
    /// What this instance wants; 0 to ask for none.
    pub(crate) want: u64,
    /// The least amount that pays.
    pub(crate) least: u64,
    /// How long it may last, in microseconds.
    pub(crate) ttl_us: u64,
}

impl LeaseTerms {
    fn bytes(&self) -> impl Iterator<Item = u8> {
        let (id, used) = self.settled.unwrap_or_default();
        let least = self.least.max(1);
        let fields = [(id, 8), (used, 7), (self.id, 8), (self.want, 7), (least, 7), (self.ttl_us, 5)];
        fields.into_iter().flat_map(|(number, width)| number.to_le_bytes().into_iter().take(width))
    }
}

impl Subjects {
    pub(crate) fn of(charges: &[Charge<'_>], names: &Names) -> Self {
        let cost = charges.first().map(|charge| charge.part.cost);
        let mut subjects = SmallVec::<[Subject; 2]>::new();
        for (at, charge) in charges.iter().enumerate() {
            let name = names.name(&charge.key);
            let key = subjects.iter().position(|known| known.name == name).unwrap_or(at);
            subjects.push(Subject {
                name,
                quota: *charge.quota,
                part: Part { cost: 0, ..charge.part },
                own_cost: Some(charge.part.cost).filter(|own| Some(*own) != cost),
                key,
                hold: charge.new_hold(),
                lease_us: charge.key.space.lease.map_or(0, |lease| lease.us(charge.quota)),
            });
        }
        Self(subjects)
    }

    /// The verb of all subjects, if it is the same and none depends on another one.
    pub(crate) fn only_verb(&self) -> Option<Verb> {
        let verb = self.0.first()?.part.verb;
        let is_alike = |subject: &Subject| subject.part.verb == verb && subject.part.is_unconditional();
        self.0.iter().all(is_alike).then_some(verb)
    }

    /// Whether a check of them may share a call with other requests.
    pub(crate) fn may_be_batched(&self) -> bool {
        let verbs = || self.0.iter().map(|subject| subject.part.verb);
        verbs().any(|verb| verb == Verb::Check)
            && verbs().all(|verb| verb != Verb::Refund)
            && !self.need_holds()
    }

    /// Whether only the script for holds can decide them.
    pub(crate) fn need_holds(&self) -> bool {
        let needs =
            |subject: &Subject| subject.hold.is_some() || subject.quota.algorithm() == Algorithm::InFlight;
        self.0.iter().any(needs)
    }

    /// Whether a denial of them may be cached: it charges nothing, and stays true until the first
    /// denying key has capacity.
    pub(crate) fn may_be_cached(&self) -> bool {
        self.only_verb() == Some(Verb::Check)
            && self.0.iter().all(|subject| subject.part.excess != Excess::Count)
    }

    /// The part of the subjects that a denial depends on: all but the holds to be made.
    pub(crate) fn of_denial(&self) -> impl Hash {
        DeniedSubjects(self)
    }

    /// The subjects with another verb, each decided by its key alone.
    pub(crate) fn with_verb(&self, verb: Verb) -> Self {
        let part = |part: Part| Part { verb, role: Role::Deciding, over_limit: false, ..part };
        let subject = |subject: &Subject| Subject { part: part(subject.part), ..subject.clone() };
        Self(self.0.iter().map(subject).collect())
    }

    /// The subjects at these positions, in this order.
    pub(crate) fn at(&self, positions: &[usize]) -> Self {
        let mut subjects = SmallVec::<[Subject; 2]>::new();
        for (at, position) in positions.iter().enumerate() {
            let subject = self.0[*position].clone();
            let key = subjects.iter().position(|known| known.name == subject.name).unwrap_or(at);
            subjects.push(Subject { key, ..subject });
        }
        Self(subjects)
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(|subject| subject.name.clone()).collect()
    }

    /// The keys, then the keys of their usage while they have holds.
    pub(crate) fn keys_with_holds(&self) -> Vec<Vec<u8>> {
        let mut keys = self.keys();
        keys.extend(self.0.iter().map(|subject| Names::usage(&subject.name)));
        keys
    }

    /// The script to call, and its arguments.
    pub(crate) fn call<'s>(
        &self,
        scripts: &'s Scripts,
        CallTerms { costs, latest, has_holds, is_once, leases }: CallTerms<'_>,
    ) -> (&'s Script, Vec<Vec<u8>>) {
        let number = |number: u64| number.to_string().into_bytes();
        let mut args = vec![number(latest)];
        if let Some(subject) = self.alone().filter(|_| !has_holds && !is_once) {
            args.push(quota_bytes(&subject.quota.sent_at(latest)));
            for same in costs.chunk_by(|one, next| one == next) {
                args.push(number(subject.own_cost.unwrap_or(same[0])));
                args.push(number(same.len() as u64));
            }
            // Usually one request.
            args.pop_if(|requests| requests == b"1");
            return (&scripts.check[position(subject.quota.algorithm())], args);
        }
        args.push(if is_once { b"once".to_vec() } else { b"apply".to_vec() });
        args.push(number(costs.len() as u64));
        args.extend(costs.iter().map(|cost| number(*cost)));
        for (at, subject) in self.0.iter().enumerate() {
            args.push(if subject.key == at {
                letter(subject.quota.algorithm()).into()
            } else {
                number(subject.key as u64 + 1)
            });
            let lease = leases.get(at).copied().flatten();
            let mut mode = mode_letters(&subject.part, subject.hold.as_ref()).to_vec();
            mode.extend(lease.map(|_| b'l'));
            args.push(mode);
            args.push(if has_holds {
                packed_with_holds(&subject.quota.sent_at(latest), subject.hold.as_ref(), lease)
            } else {
                quota_bytes(&subject.quota.sent_at(latest))
            });
            args.push(subject.own_cost.map(number).unwrap_or_default());
        }
        if is_once {
            args.push(number(self.once_ms()));
        }
        if has_holds {
            return (&scripts.decide_with_holds, args);
        }
        (scripts.decide(self.0.iter().map(|subject| subject.quota.algorithm())), args)
    }

    /// Identifies a check with an idempotency key, beside its keys.
    pub(crate) fn what(&self, cost: u64) -> Vec<u8> {
        let mut what = cost.to_le_bytes().to_vec();
        for subject in &self.0 {
            // Usually absent.
            if let Some(own) = subject.own_cost {
                what.extend_from_slice(&own.to_le_bytes());
            }
            if subject.hold.is_some() {
                what.push(b'h');
            }
        }
        what
    }

    /// The only subject, if the script for one key can check it.
    pub(crate) fn alone(&self) -> Option<&Subject> {
        match self.0.as_slice() {
            [subject] if subject.part.verb == Verb::Check && subject.part.is_one_step() => Some(subject),
            _ => None,
        }
    }

    /// Maximum size of the script's reply: all runs of each log, and a few numbers of the others.
    /// With an id it may be a reply under earlier quotas, with longer logs.
    pub(crate) fn reply_bound(&self, is_once: bool, has_holds: bool) -> ReplyBound {
        let tables = if has_holds || is_once { self.0.len() * MOST_TABLE_BYTES } else { 0 };
        let numbers = self.0.iter().map(|subject| match most_runs(&subject.quota) {
            1.. if is_once => 2 * usize::from(u16::MAX) + KEY_NUMBERS,
            runs => 2 * runs + KEY_NUMBERS,
        });
        ReplyBound::of((2 + numbers.sum::<usize>()) * WIDE_NUMBER_BYTES + tables)
    }

    /// The module's command for this [`call`](Self::call). `None` if the module does not support
    /// such large numbers or so many parts.
    pub(crate) fn native_command(&self, terms: CallTerms<'_>) -> Option<NativeCommand> {
        let is_countable = |subject: &Subject| subject.quota.limit().max(subject.quota.burst()) <= MOST;
        let is_decided = self.0.len() <= MAX_PARTS && terms.costs.len() <= MAX_REQUESTS;
        let is_check = self.alone().is_some() && !terms.has_holds && !terms.is_once;
        let command = if is_check { NativeCommand::Check1 } else { NativeCommand::Decide };
        // Calls about leases are few, so only scripts know them.
        (is_decided && terms.leases.is_empty() && self.0.iter().all(is_countable)).then_some(command)
    }

    /// The call in the module's encoding; for a check of one key, the quota.
    pub(crate) fn native_argument(&self, command: NativeCommand, terms: CallTerms<'_>) -> Vec<u8> {
        if let (NativeCommand::Check1, Some(subject)) = (command, self.alone()) {
            return lettered_quota(&subject.quota.sent_at(terms.latest));
        }
        let CallTerms { costs, latest, has_holds, is_once, .. } = terms;
        let mut keys = 0;
        // By subject: the number of its key.
        let mut numbers = SmallVec::<[usize; 4]>::new();
        for (at, subject) in self.0.iter().enumerate() {
            numbers.push(numbers.get(subject.key).copied().unwrap_or(keys));
            keys += usize::from(subject.key == at);
        }
        let part = |(subject, key): (&Subject, &usize)| CallPart {
            key: *key,
            quota: subject.quota.sent_at(latest),
            part: subject.part,
            own_cost: subject.own_cost,
            hold: subject.hold,
        };
        let parts = self.0.iter().zip(&numbers).map(part).collect();
        let once_ms = is_once.then(|| self.once_ms());
        DecideCall { latest, has_holds, once_ms, costs: costs.into(), parts }.bytes()
    }

    /// How long the first reply to an idempotency key is stored: the longest window or hold.
    fn once_ms(&self) -> u64 {
        let lasts_us = |subject: &Subject| {
            let ttl_us = subject.hold.map_or(0, |hold| hold.ttl_us);
            subject.quota.window_us().max(ttl_us)
        };
        self.0.iter().map(lasts_us).max().unwrap_or(0).div_ceil(1000)
    }

    /// Whether an enforced policy denies the request.
    pub(crate) fn denies(&self, answers: &Answers) -> bool {
        self.0.iter().zip(answers).any(|(subject, decision)| subject.enforces() && decision.is_denied())
    }
}

/// Maximum number of runs of a log in a reply about a key.
pub(super) fn most_runs(quota: &Quota) -> usize {
    if quota.algorithm().setting() == Setting::Slots { quota.max_entries().into() } else { 0 }
}

/// A quota for a script that knows holds: with the hold that is made or cancelled, the lease that is settled or asked
/// for, and how long what is charged at the end of a hold is kept.
pub(super) fn packed_with_holds(quota: &Quota, hold: Option<&NewHold>, lease: Option<LeaseTerms>) -> Vec<u8> {
    let mut bytes = quota_bytes(quota);
    if let Some(hold) = hold {
        bytes.extend(hold_bytes(hold));
    }
    bytes.extend(lease.iter().flat_map(LeaseTerms::bytes));
    bytes.extend_from_slice(&linger_ms(quota).to_le_bytes()[..7]);
    bytes
}

/// A check of cost 0 under an enforced policy.
#[cfg(test)]
pub(crate) fn check_of_nothing() -> Part {
    let (verb, role, excess) = (Verb::Check, Role::Deciding, Excess::Refuse);
    Part { verb, role, cost: 0, enforced: true, excess, over_limit: false }
}

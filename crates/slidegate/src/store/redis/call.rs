//! Calls: a plan's charges as keys and arguments of a script, and its reply as decisions.
//!
//! A script replies the state of each key before it charged anything. The decisions are computed
//! here from that, by the code of the memory store, so both stores agree to the microsecond.

use redis::Value;
use std::hash::{Hash, Hasher};

use smallvec::SmallVec;

use super::key_reply::{KeyReply, items, unsigned};
use super::names::Names;
use super::scripts::Scripts;
use crate::charge::{Charge, Excess, Part, PerCharge};
use crate::decision::Decision;
use crate::hold::{Holds, MAX_HOLDS, NewHold};
use crate::quota::{Algorithm, Quota};
use crate::store::redis::transport::{ReplyBound, Script};
use crate::store::{Outcome, all_or_none};
use crate::stored::call::{hold_bytes, linger_ms, mode_letters};
use crate::stored::{compact, letter};
use crate::time::Timestamp;
use crate::verb::{Role, Verb};

/// Largest limit and cost.
pub(crate) const MOST: u64 = Quota::MAX_COUNT;

/// Bytes of each number in the reply of a script for one key.
pub(super) const NUMBER_BYTES: usize = 7;
/// Bytes of a number in other replies: its type, 16 digits and a line end.
pub(super) const WIDE_NUMBER_BYTES: usize = 19;
/// Numbers that are replied about a key, the runs of its log apart, before and after a refund.
pub(super) const KEY_NUMBERS: usize = 16;

/// Bytes of the largest table of holds, with the ends of its reply.
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
    /// The hold that it makes instead of charging, or cancels instead of refunding.
    pub(crate) hold: Option<NewHold>,
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

/// Subjects, to hash what a denial of them depends on.
struct DeniedSubjects<'s>(&'s Subjects);

impl Hash for DeniedSubjects<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for Subject { name, quota, part, own_cost, key, hold } in &self.0.0 {
            (name, quota, part, own_cost, key, hold.is_some()).hash(state);
        }
    }
}

/// The decisions on one request, in the order of its subjects.
pub(crate) type Answers = PerCharge<Decision>;

/// Which scripts a call may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldSupport {
    /// Those that refuse keys with holds.
    None,
    /// The one for a request on one key with holds, which leaves what is rare to `Full`.
    OneKey,
    /// The one for any call.
    Full,
}

/// The reply of a script.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The script for one key with holds has done nothing: the call needs
    /// [full support](HoldSupport::Full). The server's time.
    NeedsFullSupport(u64),
    /// The call came too late to charge anything; the server's time.
    Late(u64),
    /// The decisions on each request, and the server's time.
    Done(Vec<Answers>, u64),
}

/// A reply that no script sends: what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub(crate) String);

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

    /// Whether only the script that knows holds can decide them.
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

    /// What a denial of them depends on: not which hold would have been made.
    pub(crate) fn of_denial(&self) -> impl Hash {
        DeniedSubjects(self)
    }

    /// The same subjects with another verb, each decided by its own key alone.
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

    /// The keys, and then those of their usage while they have holds.
    pub(crate) fn keys_with_holds(&self) -> Vec<Vec<u8>> {
        let mut keys = self.keys();
        keys.extend(self.0.iter().map(|subject| Names::usage(&subject.name)));
        keys
    }

    /// The script to call for these requests, and its arguments. Nothing is charged after `latest`,
    /// in microseconds of the server's clock.
    pub(crate) fn call<'s>(
        &self,
        scripts: &'s Scripts,
        costs: &[u64],
        latest: u64,
        support: HoldSupport,
    ) -> (&'s Script, Vec<Vec<u8>>) {
        let number = |number: u64| number.to_string().into_bytes();
        let mut args = vec![number(latest)];
        if let (HoldSupport::OneKey, [subject]) = (support, self.0.as_slice()) {
            args.push(packed_with_holds(&subject.quota, None));
            args.push(number(subject.own_cost.unwrap_or(costs[0])));
            args.push(match (subject.part.verb, &subject.hold) {
                (Verb::Peek, _) => b"p".to_vec(),
                (_, None) => b"c".to_vec(),
                (_, Some(_)) => b"h".to_vec(),
            });
            args.extend(subject.hold.as_ref().map(hold_bytes));
            return (scripts.check_held(subject.quota.algorithm()), args);
        }
        let has_holds = support != HoldSupport::None;
        if let Some(subject) = self.alone().filter(|_| !has_holds) {
            args.push(packed(&subject.quota));
            for same in costs.chunk_by(|one, next| one == next) {
                args.push(number(subject.own_cost.unwrap_or(same[0])));
                args.push(number(same.len() as u64));
            }
            // Most calls carry one request.
            args.pop_if(|requests| requests == b"1");
            return (scripts.check(subject.quota.algorithm()), args);
        }
        args.push(b"apply".to_vec());
        args.push(number(costs.len() as u64));
        args.extend(costs.iter().map(|cost| number(*cost)));
        self.push_quotas(&mut args, has_holds);
        (self.decider(scripts, has_holds), args)
    }

    /// What a check with an idempotency key is, besides its keys.
    pub(crate) fn what(&self, cost: u64) -> Vec<u8> {
        let mut what = cost.to_le_bytes().to_vec();
        for subject in &self.0 {
            // Most have none of these.
            if let Some(own) = subject.own_cost {
                what.extend_from_slice(&own.to_le_bytes());
            }
            if subject.hold.is_some() {
                what.push(b'h');
            }
        }
        what
    }

    /// The same for a check that is charged once, however often it is sent: all keys, the script
    /// and its arguments. The reply is stored under the key `once`, in the slot of the other keys,
    /// for the longest of the windows and the times of the holds.
    pub(crate) fn call_once<'s>(
        &self,
        scripts: &'s Scripts,
        once: Vec<u8>,
        cost: u64,
        latest: u64,
        has_holds: bool,
    ) -> (Vec<Vec<u8>>, &'s Script, Vec<Vec<u8>>) {
        let mut keys = if has_holds { self.keys_with_holds() } else { self.keys() };
        keys.push(once);
        let mut args = vec![latest.to_string().into_bytes(), b"once".to_vec(), b"1".to_vec()];
        args.push(cost.to_string().into_bytes());
        self.push_quotas(&mut args, has_holds);
        args.push(self.once_ms().to_string().into_bytes());
        (keys, self.decider(scripts, has_holds), args)
    }

    /// The only subject, if the script for one key can check it.
    pub(crate) fn alone(&self) -> Option<&Subject> {
        match self.0.as_slice() {
            [subject] if subject.part.verb == Verb::Check && subject.part.is_one_step() => Some(subject),
            _ => None,
        }
    }

    /// What a call for so many requests needs if a key has holds.
    pub(crate) fn hold_support(&self, requests: usize) -> HoldSupport {
        let is_decided_alone = |Subject { part, hold, .. }: &Subject| {
            let has_verb = part.verb == Verb::Check || part.verb == Verb::Peek && hold.is_none();
            has_verb && part.is_unconditional() && part.excess == Excess::Refuse
        };
        match self.0.as_slice() {
            [subject] if requests == 1 && is_decided_alone(subject) => HoldSupport::OneKey,
            _ => HoldSupport::Full,
        }
    }

    /// The largest reply that the script can send: of each log all runs, and of the others a few
    /// numbers. With an id it may be a reply to earlier quotas, whose logs may have been longer.
    pub(crate) fn reply_bound(&self, is_once: bool, has_holds: bool) -> ReplyBound {
        let tables = if has_holds || is_once { self.0.len() * MOST_TABLE_BYTES } else { 0 };
        let numbers = self.0.iter().map(|subject| match subject.quota.algorithm() {
            Algorithm::SlidingLog if is_once => 2 * usize::from(u16::MAX) + KEY_NUMBERS,
            Algorithm::SlidingLog => 2 * usize::from(subject.quota.max_entries()) + KEY_NUMBERS,
            _ => KEY_NUMBERS,
        });
        ReplyBound::of((2 + numbers.sum::<usize>()) * WIDE_NUMBER_BYTES + tables)
    }

    fn push_quotas(&self, args: &mut Vec<Vec<u8>>, has_holds: bool) {
        for (at, subject) in self.0.iter().enumerate() {
            args.push(if subject.key == at {
                letter(subject.quota.algorithm()).into()
            } else {
                (subject.key + 1).to_string().into_bytes()
            });
            args.push(mode_letters(&subject.part, subject.hold.as_ref()).to_vec());
            args.push(if has_holds {
                packed_with_holds(&subject.quota, subject.hold.as_ref())
            } else {
                packed(&subject.quota)
            });
            args.push(subject.own_cost.map(|cost| cost.to_string().into_bytes()).unwrap_or_default());
        }
    }

    fn decider<'s>(&self, scripts: &'s Scripts, has_holds: bool) -> &'s Script {
        if has_holds {
            return scripts.decide_with_holds();
        }
        scripts.decide(self.0.iter().map(|subject| subject.quota.algorithm()))
    }

    /// Reads what the script of [`call`](Self::call) replied to the same costs.
    pub(crate) fn read(
        &self,
        costs: &[u64],
        reply: Value,
        support: HoldSupport,
    ) -> Result<Reply, Unreadable> {
        let form = match support {
            HoldSupport::None if self.alone().is_some() => ReplyForm::Bytes,
            // The module decides any call in one form.
            HoldSupport::OneKey if is_list(&reply) => ReplyForm::Lists,
            HoldSupport::OneKey => ReplyForm::BytesWithHolds,
            HoldSupport::None | HoldSupport::Full => ReplyForm::Lists,
        };
        self.read_as(costs, reply, form)
    }

    /// Reads what the script of [`call_once`](Self::call_once) replied.
    pub(crate) fn read_once(&self, cost: u64, reply: Value) -> Result<Reply, Unreadable> {
        self.read_as(&[cost], reply, ReplyForm::Lists)
    }

    fn read_as(&self, costs: &[u64], reply: Value, form: ReplyForm) -> Result<Reply, Unreadable> {
        let is_flat = form != ReplyForm::Lists;
        let mut items = match form {
            ReplyForm::Lists => items(reply)?,
            ReplyForm::Bytes => flat_items(reply)?,
            ReplyForm::BytesWithHolds => held_items(reply, &self.0[0].quota)?,
        };
        if items.len() < 2 {
            return Err(Unreadable(format!("{} items instead of 2 and more", items.len())));
        }
        let mut rest = items.split_off(2);
        let (Value::Int(passed), now) = (&items[0], unsigned(&items[1])?) else {
            return Err(Unreadable(format!("{:?} instead of how many pass", items[0])));
        };
        match passed {
            -1 => return Ok(Reply::Late(now)),
            -2 if form == ReplyForm::BytesWithHolds => return Ok(Reply::NeedsFullSupport(now)),
            _ if is_flat => rest = vec![Value::Array(rest)],
            _ => {}
        }
        let now = Timestamp::from_micros(now);
        let mut found = self.found(rest)?;
        let outcomes: Vec<_> = costs.iter().map(|cost| self.decide(&mut found, now, *cost)).collect();
        // Otherwise the script and its Rust twin disagree.
        let is_charged =
            |one: &&Outcome| if is_flat { one.decisions[0].is_allowed() } else { !one.is_denied };
        let ours = outcomes.iter().filter(is_charged).count() as u64;
        if u64::try_from(*passed) != Ok(ours) {
            return Err(Unreadable(format!("{passed} requests charged instead of {ours}")));
        }
        let answers = outcomes.into_iter().map(|outcome| outcome.decisions).collect();
        Ok(Reply::Done(answers, now.as_micros()))
    }

    /// For each subject, the state of its key before anything was charged, if it is the first with
    /// that key, and after its refund.
    fn found(&self, reply: Vec<Value>) -> Result<SmallVec<[FoundKey; 2]>, Unreadable> {
        let length = reply.len();
        let mut reply = reply.into_iter();
        let mut next = || {
            let missing = || Unreadable(format!("{length} keys, which are too few"));
            reply.next().ok_or_else(missing)
        };
        let mut found = SmallVec::<[FoundKey; 2]>::new();
        for (at, subject) in self.0.iter().enumerate() {
            let before = if subject.key == at {
                Some(KeyReply::read(&self.0[at].quota, false, next()?)?)
            } else {
                None
            };
            found.push(FoundKey { before, refunded: None });
        }
        for (subject, found) in self.0.iter().zip(&mut found) {
            if subject.part.verb == Verb::Refund {
                found.refunded = Some(KeyReply::read(&self.0[subject.key].quota, true, next()?)?);
            }
        }
        match reply.len() {
            0 => Ok(found),
            more => Err(Unreadable(format!("{length} keys instead of {}", length - more))),
        }
    }

    /// Whether an enforced policy denies the request.
    pub(crate) fn denies(&self, answers: &Answers) -> bool {
        self.0.iter().zip(answers).any(|(subject, decision)| subject.enforces() && decision.is_denied())
    }

    /// Decides one request as the memory store does.
    fn decide(&self, found: &mut [FoundKey], now: Timestamp, cost: u64) -> Outcome {
        let parts: SmallVec<[Part; 4]> = self.0.iter().map(|subject| subject.part(cost)).collect();
        all_or_none(&parts, |at, verb, cost| {
            let key = self.0[at].key;
            let is_refund = verb == Verb::Refund;
            let reply = if is_refund { &mut found[at].refunded } else { &mut found[key].before };
            let reply = reply.as_mut().expect("`found` has read each key");
            reply.decide(&self.0[key].quota, now, verb, cost, self.0[at].hold.as_ref())
        })
    }
}

/// The replies about one subject.
struct FoundKey {
    /// Its key before anything was charged, if it is the first with that key.
    before: Option<KeyReply>,
    /// Its key after its refund.
    refunded: Option<KeyReply>,
}

/// A quota for a script that knows holds: with the hold that is made or cancelled, and how long what
/// is charged at the end of a hold is kept.
pub(super) fn packed_with_holds(quota: &Quota, hold: Option<&NewHold>) -> Vec<u8> {
    let mut bytes = packed(quota);
    if let Some(hold) = hold {
        bytes.extend(hold_bytes(hold));
    }
    bytes.extend_from_slice(&linger_ms(quota).to_le_bytes()[..7]);
    bytes
}

/// A quota as the `quota` piece of its algorithm's script unpacks it: little-endian.
fn packed(quota: &Quota) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(25);
    let mut push = |number: u64, width: usize| bytes.extend_from_slice(&number.to_le_bytes()[..width]);
    push(quota.window_us(), 6);
    push(quota.capacity(), 7);
    match quota.algorithm() {
        Algorithm::SlidingWindow | Algorithm::FixedWindow => {
            push(compact::head(quota.algorithm(), quota.window_us()), 3);
        }
        Algorithm::TokenBucket => push(quota.limit(), 7),
        Algorithm::InFlight => {}
        Algorithm::SlidingLog => {
            let runs = u64::from(quota.max_entries());
            push(quota.step_us(), 6);
            push(u64::from(quota.step_bits()), 1);
            push(runs, 2);
            push(quota.limit().min(runs), 2);
        }
    }
    bytes
}

/// How a script replies about its keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyForm {
    /// A list for each key.
    Lists,
    /// The numbers of the only key as bytes.
    Bytes,
    /// The same with the header of its table of holds.
    BytesWithHolds,
}

/// The first two numbers of a reply about a key that may have holds, and then what the script for
/// any keys replies about one: its numbers, the header of its table, and its holds.
fn held_items(value: Value, quota: &Quota) -> Result<Vec<Value>, Unreadable> {
    let (bytes, list, runs) = match value {
        Value::BulkString(bytes) => (bytes, Value::BulkString(Vec::new()), Vec::new()),
        other => {
            let mut items = items(other)?;
            match items.as_mut_slice() {
                [Value::BulkString(bytes), list, ..] => {
                    let (bytes, list) = (std::mem::take(bytes), std::mem::replace(list, Value::Nil));
                    (bytes, list, items.split_off(2))
                }
                [Value::Int(-2 | -1), _] => return Ok(items),
                _ => return Err(Unreadable(format!("{items:?} instead of bytes and holds"))),
            }
        }
    };
    let has_table = bytes.len() % NUMBER_BYTES == Holds::HEADER_BYTES % NUMBER_BYTES;
    let (found, table) =
        bytes.split_at(bytes.len().saturating_sub(if has_table { Holds::HEADER_BYTES } else { 0 }));
    let mut found = numbers(found)?;
    found.extend(runs);
    let mut items: Vec<_> = found.drain(..found.len().min(2)).collect();
    let now = items.get(1).map(unsigned).transpose()?.unwrap_or_default();
    let header = Holds::header_at(table, now);
    items.extend([Value::Array(own_numbers(quota, found)), Value::BulkString(header), list]);
    Ok(items)
}

/// Whether a reply is one about any number of keys.
fn is_list(reply: &Value) -> bool {
    matches!(reply, Value::Array(items) if matches!(items.first(), Some(Value::Int(0..))))
}

/// How many holds a key had before a request on it alone.
pub(super) fn open_holds(reply: &Value) -> Option<usize> {
    let Value::BulkString(bytes) = reply else { return None };
    let has_table = bytes.len() % NUMBER_BYTES == Holds::HEADER_BYTES % NUMBER_BYTES;
    let [.., low, high, _] = bytes.as_slice() else { return None };
    Some(if has_table { u16::from_le_bytes([*low, *high]).into() } else { 0 })
}

/// The numbers of an algorithm, which a script for one key replies: of a limit on what is in flight
/// only the time.
pub(super) fn own_numbers(quota: &Quota, mut found: Vec<Value>) -> Vec<Value> {
    if quota.algorithm() == Algorithm::InFlight {
        found.clear();
    }
    found
}

/// The numbers of a flat reply: bytes, or a list that begins with bytes, or the two numbers of a
/// call that came too late.
fn flat_items(value: Value) -> Result<Vec<Value>, Unreadable> {
    if let Value::BulkString(bytes) = value {
        return numbers(&bytes);
    }
    let mut items = items(value)?;
    match items.first() {
        Some(Value::BulkString(bytes)) => {
            let numbers = numbers(bytes)?;
            items.splice(0..1, numbers);
        }
        Some(Value::Int(-1)) => {}
        _ => return Err(Unreadable(format!("{items:?} instead of bytes"))),
    }
    Ok(items)
}

pub(super) fn numbers(bytes: &[u8]) -> Result<Vec<Value>, Unreadable> {
    let (numbers, rest) = bytes.as_chunks::<NUMBER_BYTES>();
    if !rest.is_empty() {
        return Err(Unreadable(format!("{} bytes instead of {NUMBER_BYTES} for each number", bytes.len())));
    }
    let number = |bytes: &[u8; NUMBER_BYTES]| {
        bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte))
    };
    Ok(numbers.iter().map(|bytes| Value::Int(number(bytes))).collect())
}

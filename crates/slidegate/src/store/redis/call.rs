//! Calls: a plan's charges as keys and arguments of a script, and its reply as decisions.
//!
//! A script replies what it found before it charged anything. The decisions are computed here, by the very code that
//! computes them for the memory store, so that both stores say the same to the microsecond.

use redis::Value;
use smallvec::SmallVec;

use super::compact;
use super::names::Names;
use super::scripts::{Scripts, letter};
use crate::algorithm::{Done, FixedWindow, SlidingWindow, State, TokenBucket, ToldLog, decision, perform};
use crate::charge::{Charge, Excess, Part};
use crate::decision::Decision;
use crate::quota::{Algorithm, Quota};
use crate::store::all_or_none;
use crate::store::redis::transport::Script;
use crate::time::Timestamp;
use crate::verb::Verb;

/// Largest limit and cost.
pub(crate) const MOST: u64 = Quota::MAX_COUNT;

/// Bytes of each number in the reply of a script for one key.
const TOLD_BYTES: usize = 7;

/// What a script is told of one charge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    /// The key's name.
    pub(crate) name: Vec<u8>,
    pub(crate) quota: Quota,
    pub(crate) enforced: bool,
    pub(crate) excess: Excess,
    /// What it costs where that is not what the request's first key does.
    pub(crate) own_cost: Option<u64>,
}

impl Subject {
    /// How the key takes part in a request of this cost.
    pub(crate) fn part(&self, cost: u64) -> Part {
        Part { cost: self.own_cost.unwrap_or(cost), enforced: self.enforced, excess: self.excess }
    }
}

/// The keys of a request, each with its quota: requests with the same ones can be decided by one call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Subjects(pub(crate) SmallVec<[Subject; 2]>);

/// The decisions on one request, in the order of its subjects.
pub(crate) type Answers = SmallVec<[Decision; 4]>;

/// A script's answer.
#[derive(Debug)]
pub(crate) enum Reply {
    /// It came too late to charge anything; the server's time.
    Late(u64),
    /// The decisions on each request, and the server's time.
    Done(Vec<Answers>, u64),
}

/// A script cannot have replied this.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub(crate) String);

impl Subjects {
    pub(crate) fn of(charges: &[Charge<'_>], names: &Names) -> Self {
        let cost = charges.first().map(|charge| charge.part.cost);
        let subject = |charge: &Charge<'_>| Subject {
            name: names.name(charge.name, &charge.key),
            quota: *charge.quota,
            enforced: charge.part.enforced,
            excess: charge.part.excess,
            own_cost: Some(charge.part.cost).filter(|own| Some(*own) != cost),
        };
        Self(charges.iter().map(subject).collect())
    }

    pub(crate) fn keys(&self) -> Vec<Vec<u8>> {
        self.0.iter().map(|subject| subject.name.clone()).collect()
    }

    /// Whether a check charges something even where it is denied, so that every one has to reach the store.
    pub(crate) fn counts_denied(&self) -> bool {
        self.0.iter().any(|subject| subject.excess == Excess::Count)
    }

    /// The script to call for these requests, and its arguments. Nothing is charged after `latest`, in microseconds of
    /// the server's clock.
    pub(crate) fn call<'s>(
        &self,
        scripts: &'s Scripts,
        verb: Verb,
        costs: &[u64],
        latest: u64,
    ) -> (&'s Script, Vec<Vec<u8>>) {
        let number = |number: u64| number.to_string().into_bytes();
        let mut args = vec![number(latest)];
        if let Some(subject) = self.alone(verb) {
            args.push(packed(&subject.quota));
            for same in costs.chunk_by(|one, next| one == next) {
                args.push(number(same[0]));
                args.push(number(same.len() as u64));
            }
            // Most calls are one request's.
            args.pop_if(|requests| requests == b"1");
            return (scripts.check(subject.quota.algorithm()), args);
        }
        args.push(word(verb).into());
        args.push(number(costs.len() as u64));
        args.extend(costs.iter().map(|cost| number(*cost)));
        self.push_quotas(&mut args);
        (self.decider(scripts), args)
    }

    /// The same for a check that is to be charged once however often it is sent: all keys, the script and its arguments.
    /// The reply is kept under the key `once`, in the slot of the others, for the longest of the windows.
    pub(crate) fn call_once<'s>(
        &self,
        scripts: &'s Scripts,
        once: Vec<u8>,
        cost: u64,
        latest: u64,
    ) -> (Vec<Vec<u8>>, &'s Script, Vec<Vec<u8>>) {
        let mut keys = self.keys();
        keys.push(once);
        let mut args = vec![latest.to_string().into_bytes(), b"once".to_vec(), b"1".to_vec()];
        args.push(cost.to_string().into_bytes());
        self.push_quotas(&mut args);
        let longest_us = self.0.iter().map(|subject| subject.quota.window_us()).max().unwrap_or(0);
        args.push(longest_us.div_ceil(1000).to_string().into_bytes());
        (keys, self.decider(scripts), args)
    }

    /// The key that a script of its own checks: the only one, of plain excess.
    pub(crate) fn alone(&self, verb: Verb) -> Option<&Subject> {
        match self.0.as_slice() {
            [subject] if verb == Verb::Check && subject.excess == Excess::Refuse => Some(subject),
            _ => None,
        }
    }

    fn push_quotas(&self, args: &mut Vec<Vec<u8>>) {
        for subject in &self.0 {
            args.push(letter(subject.quota.algorithm()).into());
            let enforced = if subject.enforced { "enforced" } else { "shadow" };
            let excess = match subject.excess {
                Excess::Refuse => "",
                Excess::Charge => "+",
                Excess::Count => "!",
            };
            args.push([enforced, excess].concat().into_bytes());
            args.push(packed(&subject.quota));
            args.push(subject.own_cost.map(|cost| cost.to_string().into_bytes()).unwrap_or_default());
        }
    }

    fn decider<'s>(&self, scripts: &'s Scripts) -> &'s Script {
        scripts.decide(self.0.iter().map(|subject| subject.quota.algorithm()))
    }

    /// Reads what the script of [`call`](Self::call) replied to the same verb and costs.
    pub(crate) fn read(&self, verb: Verb, costs: &[u64], reply: Value) -> Result<Reply, Unreadable> {
        self.read_as(verb, costs, reply, self.alone(verb).is_some())
    }

    /// Reads what the script of [`call_once`](Self::call_once) replied.
    pub(crate) fn read_once(&self, cost: u64, reply: Value) -> Result<Reply, Unreadable> {
        self.read_as(Verb::Check, &[cost], reply, false)
    }

    /// `flat` is the reply of a script for one key, which tells it without a list of its own, and in bytes.
    fn read_as(&self, verb: Verb, costs: &[u64], reply: Value, flat: bool) -> Result<Reply, Unreadable> {
        let mut items = if flat { flat_items(reply)? } else { items(reply)? };
        if items.len() < 2 {
            return Err(Unreadable(format!("{} items instead of 2 and more", items.len())));
        }
        let mut rest = items.split_off(2);
        let (Value::Int(charged), now) = (&items[0], unsigned(&items[1])?) else {
            return Err(Unreadable(format!("{:?} instead of how many are charged", items[0])));
        };
        if *charged == -1 {
            return Ok(Reply::Late(now));
        }
        if flat {
            rest = vec![Value::Array(rest)];
        }
        if rest.len() != self.0.len() {
            return Err(Unreadable(format!("{} keys instead of {}", rest.len(), self.0.len())));
        }
        let now = Timestamp::from_micros(now);
        let mut told: SmallVec<[Told; 2]> = self
            .0
            .iter()
            .zip(rest)
            .map(|(subject, reply)| Told::read(subject, verb, reply))
            .collect::<Result<_, _>>()?;
        let answers: Vec<Answers> =
            costs.iter().map(|cost| self.decide(&mut told, now, verb, *cost)).collect();
        if verb == Verb::Check {
            // The twins agree, or one of them is wrong.
            let passed = answers
                .iter()
                .filter(|one| if flat { one[0].is_allowed() } else { !self.denies(one) })
                .count() as u64;
            if u64::try_from(*charged) != Ok(passed) {
                return Err(Unreadable(format!("{charged} requests charged instead of {passed}")));
            }
        }
        Ok(Reply::Done(answers, now.as_micros()))
    }

    /// Whether an enforced policy denies.
    pub(crate) fn denies(&self, answers: &Answers) -> bool {
        self.0.iter().zip(answers).any(|(subject, decision)| subject.enforced && decision.is_denied())
    }

    /// As the memory store does.
    fn decide(&self, told: &mut [Told], now: Timestamp, verb: Verb, cost: u64) -> Answers {
        all_or_none(verb, self.0.iter().map(|subject| subject.part(cost)), |key, verb, cost| {
            told[key].decide(&self.0[key].quota, now, verb, cost)
        })
    }
}

/// One key as a script found it, at the time it was settled to.
struct Told {
    settled: u64,
    state: ToldState,
    /// What a refund gave.
    given: u64,
}

enum ToldState {
    Log(ToldLog),
    Window(SlidingWindow),
    Fixed(FixedWindow),
    Bucket(TokenBucket),
}

impl Told {
    fn read(subject: &Subject, verb: Verb, reply: Value) -> Result<Self, Unreadable> {
        let mut numbers: SmallVec<[u64; 8]> = items(reply)?.iter().map(unsigned).collect::<Result<_, _>>()?;
        let wrong = || {
            Unreadable(format!("a key told in another number of numbers under {}", subject.quota.algorithm()))
        };
        let given = if verb == Verb::Refund { numbers.pop().ok_or_else(wrong)? } else { 0 };
        let state = match (subject.quota.algorithm(), numbers.as_slice()) {
            (Algorithm::SlidingLog, [_, used, newest, oldest, runs @ ..]) if runs.len().is_multiple_of(2) => {
                let runs = runs.chunks_exact(2).map(|run| (run[0], run[1])).collect();
                ToldState::Log(ToldLog::new(*used, *newest, *oldest, runs))
            }
            (Algorithm::SlidingWindow, [_, end, previous, current]) => {
                ToldState::Window(SlidingWindow::told(*end, *previous, *current))
            }
            (Algorithm::FixedWindow, [_, end, used]) => ToldState::Fixed(FixedWindow::told(*end, *used)),
            (Algorithm::TokenBucket, [settled, level, fraction]) => {
                ToldState::Bucket(TokenBucket::told(*settled, *level, *fraction))
            }
            _ => return Err(wrong()),
        };
        Ok(Self { settled: numbers[0], state, given })
    }

    fn decide(&mut self, quota: &Quota, now: Timestamp, verb: Verb, cost: u64) -> Decision {
        let (settled, given) = (self.settled, self.given);
        match &mut self.state {
            ToldState::Log(state) => decide(state, quota, now, settled, verb, cost, given),
            ToldState::Window(state) => decide(state, quota, now, settled, verb, cost, given),
            ToldState::Fixed(state) => decide(state, quota, now, settled, verb, cost, given),
            ToldState::Bucket(state) => decide(state, quota, now, settled, verb, cost, given),
        }
    }
}

fn decide<S: State>(
    state: &mut S,
    quota: &Quota,
    now: Timestamp,
    settled: u64,
    verb: Verb,
    cost: u64,
    given: u64,
) -> Decision {
    let done = match verb {
        // The script has refunded, and tells what is left.
        Verb::Refund => Done::Moved(given),
        verb => perform(state, quota, settled, verb, cost),
    };
    decision(state, quota, now, settled, done)
}

fn word(verb: Verb) -> &'static str {
    match verb {
        Verb::Check => "check",
        Verb::Peek => "peek",
        Verb::Refund => "refund",
        Verb::Penalize => "penalize",
    }
}

/// A quota as the `quota` piece of its algorithm's script unpacks it: little-endian, as wide as the numbers can be.
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

fn items(value: Value) -> Result<Vec<Value>, Unreadable> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Unreadable(format!("{other:?} instead of a list"))),
    }
}

/// The numbers of a flat reply: bytes, or a list that begins with them, or the two numbers of a call that came too late.
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

fn numbers(bytes: &[u8]) -> Result<Vec<Value>, Unreadable> {
    let (numbers, rest) = bytes.as_chunks::<TOLD_BYTES>();
    if !rest.is_empty() {
        return Err(Unreadable(format!("{} bytes instead of {TOLD_BYTES} for each number", bytes.len())));
    }
    let number =
        |bytes: &[u8; TOLD_BYTES]| bytes.iter().rev().fold(0, |number, byte| number << 8 | i64::from(*byte));
    Ok(numbers.iter().map(|bytes| Value::Int(number(bytes))).collect())
}

fn unsigned(value: &Value) -> Result<u64, Unreadable> {
    match value {
        // Past what a script can count, sums would overflow.
        Value::Int(number) => u64::try_from(*number)
            .ok()
            .filter(|number| *number <= MOST)
            .ok_or_else(|| Unreadable(format!("{number} instead of a count"))),
        other => Err(Unreadable(format!("{other:?} instead of a number"))),
    }
}

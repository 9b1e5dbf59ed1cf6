//! Decodes replies of scripts into decisions.
//!
//! A script replies the state of each key before its charges. The decisions are computed from it by
//! the code of the memory store, so both stores agree to the microsecond.

use redis::Value;
use slidegate::internal::{
    HeldKey, Holds, NewHold, Part, State, VerbEffect, all_or_none, decision, for_algorithm, perform,
};
use slidegate::reserve::Unsettled;
use slidegate::{Algorithm, Decision, Quota, clock::Timestamp, verb::Verb};
use slidegate_stored::WireForm;
use smallvec::SmallVec;

use crate::call::{
    Answers, CallTerms, KEY_NUMBERS, LeaseTerms, MOST, MOST_TABLE_BYTES, Subjects, WIDE_NUMBER_BYTES,
    most_runs,
};

/// Bytes of each number in the reply of a script for one key.
pub(super) const NUMBER_BYTES: usize = 7;

/// The reply of a script.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The call came too late to charge anything; the server's time.
    Late(u64),
    /// The decisions on each request, the server's time, and the leases that were granted.
    Done(Vec<Answers>, u64, Vec<Grant>),
}

/// A lease that a script has granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    /// The position of the subject that asked for it.
    pub(crate) subject: usize,
    pub(crate) amount: u64,
    /// Its length, in microseconds.
    pub(crate) ttl_us: u64,
    /// The key with the lease.
    pub(crate) decision: Decision,
}

/// Why no script sends this reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable(pub(crate) String);

/// Reads the reply to the script of a [call](Subjects::call).
pub(super) fn read(
    subjects: &Subjects,
    CallTerms { costs, has_holds, is_once, leases, .. }: CallTerms<'_>,
    reply: Value,
) -> Result<Reply, Unreadable> {
    // Bytes for a single key, or a list for each.
    let is_flat = !is_once && !has_holds && subjects.alone().is_some();
    let mut items = if is_flat { flat_items(reply)? } else { items(reply)? };
    if items.len() < 2 {
        return Err(Unreadable(format!("{} items instead of 2 and more", items.len())));
    }
    let mut rest = items.split_off(2);
    let (Value::Int(passed), now) = (&items[0], unsigned(&items[1])?) else {
        return Err(Unreadable(format!("{:?} instead of how many pass", items[0])));
    };
    match passed {
        -1 => return Ok(Reply::Late(now)),
        _ if is_flat => rest = vec![Value::Array(rest)],
        _ => {}
    }
    let now = Timestamp::from_micros(now);
    let asked = leases.iter().zip(0..).filter_map(|(lease, at)| lease.map(|lease| (at, lease)));
    let replied = rest.len().checked_sub(asked.clone().count());
    let replied = replied.ok_or_else(|| Unreadable("no answers about leases".to_owned()))?;
    let granted = rest.split_off(replied);
    let mut found = found(subjects, rest)?;
    let mut ours = 0;
    let mut answers = Vec::with_capacity(costs.len());
    for cost in costs {
        let mut decisions = Answers::new();
        let is_denied = decide(subjects, &mut found, now, *cost, &mut decisions);
        ours += u64::from(if is_flat { decisions[0].is_allowed() } else { !is_denied });
        answers.push(decisions);
    }
    // Otherwise the script and its Rust twin disagree.
    if u64::try_from(*passed) != Ok(ours) {
        return Err(Unreadable(format!("{passed} requests charged instead of {ours}")));
    }
    let mut grants = Vec::new();
    for ((subject, LeaseTerms { id, .. }), grant) in asked.zip(granted) {
        let Value::Array(grant) = grant else {
            return Err(Unreadable(format!("{grant:?} instead of a lease")));
        };
        let Ok([amount, ttl_us]) = <[Value; 2]>::try_from(grant) else {
            return Err(Unreadable("a wrong number of parts for a lease".to_owned()));
        };
        let (amount, ttl_us) = (unsigned(&amount)?, unsigned(&ttl_us).unwrap_or(0));
        let Some(reply) = found[subject].before.as_mut().filter(|_| amount > 0) else { continue };
        let (quota, hold) =
            (&subjects.0[subject].quota, NewHold { id, ttl_us, unsettled: Unsettled::Charge });
        let decision = reply.decide(quota, now, Verb::Check, amount, Some(&hold));
        if decision.is_denied() {
            return Err(Unreadable(format!("a lease of {amount} that does not fit")));
        }
        grants.push(Grant { subject, amount, ttl_us, decision });
    }
    Ok(Reply::Done(answers, now.as_micros(), grants))
}

/// For each subject, the state of its key before anything was charged, if it is the first with
/// that key, and after its refund.
fn found(subjects: &Subjects, reply: Vec<Value>) -> Result<SmallVec<[FoundKey; 2]>, Unreadable> {
    let length = reply.len();
    let mut reply = reply.into_iter();
    let mut next = || {
        let missing = || Unreadable(format!("{length} keys, which are too few"));
        reply.next().ok_or_else(missing)
    };
    let mut found = SmallVec::<[FoundKey; 2]>::new();
    for (at, subject) in subjects.0.iter().enumerate() {
        let before = if subject.key == at {
            Some(KeyReply::read(&subjects.0[at].quota, false, next()?)?)
        } else {
            None
        };
        found.push(FoundKey { before, refunded: None });
    }
    for (subject, found) in subjects.0.iter().zip(&mut found) {
        if subject.part.verb == Verb::Refund {
            found.refunded = Some(KeyReply::read(&subjects.0[subject.key].quota, true, next()?)?);
        }
    }
    match reply.len() {
        0 => Ok(found),
        more => Err(Unreadable(format!("{length} keys instead of {}", length - more))),
    }
}

/// Decides one request as the memory store does. Returns whether it is denied.
fn decide(
    subjects: &Subjects,
    found: &mut [FoundKey],
    now: Timestamp,
    cost: u64,
    decisions: &mut Answers,
) -> bool {
    let parts: SmallVec<[Part; 4]> = subjects.0.iter().map(|subject| subject.part(cost)).collect();
    let apply = |at: usize, verb, cost| {
        let key = subjects.0[at].key;
        let is_refund = verb == Verb::Refund;
        let reply = if is_refund { &mut found[at].refunded } else { &mut found[key].before };
        let reply = reply.as_mut().expect("`found` has read each key");
        reply.decide(&subjects.0[key].quota, now, verb, cost, subjects.0[at].hold.as_ref())
    };
    all_or_none(&parts, apply, decisions)
}

/// The replies about one subject.
struct FoundKey {
    /// Its key before anything was charged, if it is the first with that key.
    before: Option<KeyReply>,
    /// Its key after its refund.
    refunded: Option<KeyReply>,
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

pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// The state of one key that a script has replied.
pub(super) struct KeyReply {
    /// The time that the key was settled to, in microseconds.
    settled: u64,
    state: Box<dyn StateReply + Send>,
    /// The cost that was refunded.
    refunded: u64,
    /// From the script for holds.
    holds: Option<Holds>,
}

/// The state of a key under any algorithm.
trait StateReply {
    /// The decision after `done`, or else after this verb is applied.
    fn decide(
        &mut self,
        on: (&Quota, Timestamp, u64, Option<&mut Holds>),
        done: Option<VerbEffect>,
        applied: (Verb, u64, Option<&NewHold>),
    ) -> Decision;
}

impl<S: State> StateReply for S {
    fn decide(
        &mut self,
        (quota, now, settled, holds): (&Quota, Timestamp, u64, Option<&mut Holds>),
        done: Option<VerbEffect>,
        (verb, cost, new): (Verb, u64, Option<&NewHold>),
    ) -> Decision {
        let Some(holds) = holds else {
            let done = done.unwrap_or_else(|| perform(self, quota, settled, verb, cost));
            return decision(self, quota, now, settled, done);
        };
        let mut key = HeldKey::settled(self, holds, quota, now, settled);
        let done = done.unwrap_or_else(|| key.perform(verb, cost, new, usize::MAX));
        key.decision(done)
    }
}

impl KeyReply {
    /// Maximum size of a reply about a key from the script for holds.
    pub(super) fn most_bytes(quota: &Quota) -> usize {
        (2 * most_runs(quota) + KEY_NUMBERS) * WIDE_NUMBER_BYTES + MOST_TABLE_BYTES
    }

    /// Reads a key's reply from the script for holds: its numbers, the header of its table, its
    /// holds if needed, and the refunded cost.
    pub(super) fn read_with_holds(
        quota: &Quota,
        is_refunded: bool,
        reply: Value,
    ) -> Result<Self, Unreadable> {
        let mut parts = items(reply)?;
        let refunded = if is_refunded { parts.pop() } else { None };
        let (Some(Value::BulkString(list)), Some(Value::BulkString(header)), Some(Value::Array(mut numbers))) =
            (parts.pop(), parts.pop(), parts.pop())
        else {
            return Err(Unreadable("no holds for a key".to_owned()));
        };
        numbers.extend(refunded);
        let holds = Holds::read(&header, &list);
        let holds = holds.ok_or_else(|| Unreadable(format!("{header:?} instead of a table of holds")))?;
        let settled = holds.seen();
        let mut found = Self::read_numbers(quota, is_refunded, Value::Array(numbers))?;
        if quota.algorithm() == Algorithm::InFlight {
            found.settled = settled;
        }
        Ok(Self { holds: Some(holds), ..found })
    }

    pub(super) fn read(quota: &Quota, is_refunded: bool, reply: Value) -> Result<Self, Unreadable> {
        // Also of a first reply that was stored before the key had holds, or while it had some.
        let is_list = |part: &Value| matches!(part, Value::Array(_));
        if matches!(&reply, Value::Array(parts) if parts.first().is_some_and(is_list)) {
            return Self::read_with_holds(quota, is_refunded, reply);
        }
        Self::read_numbers(quota, is_refunded, reply)
    }

    fn read_numbers(quota: &Quota, is_refunded: bool, reply: Value) -> Result<Self, Unreadable> {
        let mut numbers: SmallVec<[u64; 8]> = items(reply)?.iter().map(unsigned).collect::<Result<_, _>>()?;
        let wrong = || Unreadable("no refunded cost for a key".to_owned());
        let refunded = if is_refunded { numbers.pop().ok_or_else(wrong)? } else { 0 };
        // A limit on requests in flight has no numbers.
        let (settled, numbers) = numbers.split_first().unwrap_or((&0, &[]));
        let state = for_algorithm!(quota.algorithm(), S => {
            Box::new(S::of_numbers(quota, *settled, numbers).map_err(Unreadable)?) as Box<dyn StateReply + Send>
        });
        Ok(Self { settled: *settled, state, refunded, holds: None })
    }

    pub(super) fn decide(
        &mut self,
        quota: &Quota,
        now: Timestamp,
        verb: Verb,
        cost: u64,
        new: Option<&NewHold>,
    ) -> Decision {
        let done = match verb {
            // The script has refunded, and replied the state afterwards.
            Verb::Refund => Some(VerbEffect::Moved(self.refunded)),
            _ => None,
        };
        self.state.decide((quota, now, self.settled, self.holds.as_mut()), done, (verb, cost, new))
    }

    /// The decision after this was done by a script.
    pub(super) fn after(&mut self, quota: &Quota, now: Timestamp, done: VerbEffect) -> Decision {
        let on = (quota, now, self.settled, self.holds.as_mut());
        self.state.decide(on, Some(done), (Verb::Peek, 0, None))
    }
}

pub(super) fn items(value: Value) -> Result<Vec<Value>, Unreadable> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(Unreadable(format!("{other:?} instead of a list"))),
    }
}

pub(super) fn unsigned(value: &Value) -> Result<u64, Unreadable> {
    match value {
        // Above what a script can count, sums would overflow.
        Value::Int(number) => u64::try_from(*number)
            .ok()
            .filter(|number| *number <= MOST)
            .ok_or_else(|| Unreadable(format!("{number} instead of a count"))),
        other => Err(Unreadable(format!("{other:?} instead of a number"))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_window_contains_the_time_of_its_key() {
        let second = Duration::from_secs(1);
        for (algorithm, counters) in [(Algorithm::FixedWindow, 1), (Algorithm::SlidingWindow, 2)] {
            let quota = Quota::new(10, second).unwrap().with_algorithm(algorithm);
            let read = |settled: i64, end: i64| {
                let mut numbers = vec![Value::Int(settled), Value::Int(end)];
                numbers.extend(vec![Value::Int(20); counters]);
                let mut key = KeyReply::read(&quota, false, Value::Array(numbers))?;
                Ok::<_, Unreadable>(key.decide(
                    &quota,
                    Timestamp::from_micros(settled.cast_unsigned()),
                    Verb::Check,
                    1,
                    None,
                ))
            };
            for end in [5_000_000, 5_500_000, 6_000_000] {
                assert!(read(5_000_000, end).is_ok_and(|decision| decision.is_denied()), "{algorithm} {end}");
            }
            for end in [0, 4_999_999, 6_000_001] {
                let why = read(5_000_000, end).expect_err("not within the window").0;
                assert_eq!(why, format!("a window that ends at {end} for a key at 5000000"));
            }
        }
    }
}

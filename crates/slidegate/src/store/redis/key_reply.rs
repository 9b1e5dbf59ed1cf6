//! Replies about one key: what a script has found there, and the decisions that follow from it.

use redis::Value;
use smallvec::SmallVec;

use super::call::{KEY_NUMBERS, MOST, MOST_TABLE_BYTES, Unreadable, WIDE_NUMBER_BYTES};
use crate::algorithm::{
    Done, FixedWindow, HeldKey, InFlight, LogReply, SlidingWindow, TokenBucket, decision, perform,
};
use crate::decision::Decision;
use crate::hold::{Holds, NewHold};
use crate::quota::{Algorithm, Quota};
use crate::time::Timestamp;
use crate::verb::Verb;

/// The state of one key that a script has replied.
pub(super) struct KeyReply {
    /// The time that the key was settled to, in microseconds.
    settled: u64,
    state: StateReply,
    /// The cost that was refunded.
    refunded: u64,
    /// From a script that knows holds.
    holds: Option<Holds>,
}

enum StateReply {
    Log(LogReply),
    Window(SlidingWindow),
    Fixed(FixedWindow),
    Bucket(TokenBucket),
    InFlight(InFlight),
}

impl KeyReply {
    /// The largest reply about a key of a script that knows holds.
    pub(super) fn most_bytes(quota: &Quota) -> usize {
        let runs = match quota.algorithm() {
            Algorithm::SlidingLog => 2 * usize::from(quota.max_entries()),
            _ => 0,
        };
        (runs + KEY_NUMBERS) * WIDE_NUMBER_BYTES + MOST_TABLE_BYTES
    }

    /// Reads what a script that knows holds replied about a key: its numbers, the header of its
    /// table, and its holds if they are needed; last what was refunded.
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

    /// How many holds the key has.
    pub(super) fn open_holds(&self) -> usize {
        self.holds.as_ref().map_or(0, Holds::count)
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
        let wrong = || Unreadable(format!("wrong number of fields for a key under {}", quota.algorithm()));
        let refunded = if is_refunded { numbers.pop().ok_or_else(wrong)? } else { 0 };
        let state = match (quota.algorithm(), numbers.as_slice()) {
            (Algorithm::SlidingLog, [_, used, newest, oldest, runs @ ..]) if runs.len().is_multiple_of(2) => {
                let runs = runs.chunks_exact(2).map(|run| (run[0], run[1])).collect();
                StateReply::Log(LogReply::new(*used, *newest, *oldest, runs))
            }
            (Algorithm::SlidingWindow, [settled, end, previous, current]) => {
                within_window(quota, *settled, *end)?;
                StateReply::Window(SlidingWindow::from_parts(*end, *previous, *current))
            }
            (Algorithm::FixedWindow, [settled, end, used]) => {
                within_window(quota, *settled, *end)?;
                StateReply::Fixed(FixedWindow::from_parts(*end, *used))
            }
            (Algorithm::TokenBucket, [settled, level, fraction]) => {
                StateReply::Bucket(TokenBucket::from_parts(*settled, *level, *fraction))
            }
            (Algorithm::InFlight, []) => StateReply::InFlight(InFlight),
            _ => return Err(wrong()),
        };
        let settled = numbers.first().copied().unwrap_or(0);
        Ok(Self { settled, state, refunded, holds: None })
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
            Verb::Refund => Some(Done::Moved(self.refunded)),
            _ => None,
        };
        self.decide_as(quota, now, done, verb, cost, new)
    }

    /// The decision after this was done by a script.
    pub(super) fn after(&mut self, quota: &Quota, now: Timestamp, done: Done) -> Decision {
        self.decide_as(quota, now, Some(done), Verb::Peek, 0, None)
    }

    fn decide_as(
        &mut self,
        quota: &Quota,
        now: Timestamp,
        done: Option<Done>,
        verb: Verb,
        cost: u64,
        new: Option<&NewHold>,
    ) -> Decision {
        let Self { settled, holds, .. } = self;
        macro_rules! on {
            ($state:expr) => {
                match holds {
                    None => {
                        let done = done.unwrap_or_else(|| perform($state, quota, *settled, verb, cost));
                        decision($state, quota, now, *settled, done)
                    }
                    Some(holds) => {
                        let mut key = HeldKey::settled($state, holds, quota, now, *settled);
                        let done = done.unwrap_or_else(|| key.perform(verb, cost, new, usize::MAX));
                        key.decision(done)
                    }
                }
            };
        }
        match &mut self.state {
            StateReply::Log(state) => on!(state),
            StateReply::Window(state) => on!(state),
            StateReply::Fixed(state) => on!(state),
            StateReply::Bucket(state) => on!(state),
            StateReply::InFlight(state) => on!(state),
        }
    }
}

/// A script has settled the key, so its time is in the window that ends at `end`.
fn within_window(quota: &Quota, settled: u64, end: u64) -> Result<(), Unreadable> {
    match end.checked_sub(settled) {
        Some(left) if left <= quota.window_us() => Ok(()),
        _ => Err(Unreadable(format!("a window that ends at {end} for a key at {settled}"))),
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

//! Judges a history of calls by the times around them.
//!
//! A limiter decides at some time between the sending of a call and its answer. What is found here is certain: true
//! wherever in that interval each decision was made. So an excess of a few calls may be missed, and none is invented.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A limiter may count in whole milliseconds, and the clock of its machine may be adjusted while it does.
const SLACK: Duration = Duration::from_millis(2);

/// What a key may use within each interval of `window`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limit {
    pub(crate) cost: u64,
    pub(crate) window: Duration,
}

/// What the limiter answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Admitted,
    /// The same call would be admitted after that time, if it says so.
    Denied(Option<Duration>),
    /// It reported an error, or did not answer.
    Failed(String),
}

/// One call. Times are since the start of the history.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) sent: Duration,
    pub(crate) answered: Duration,
    pub(crate) cost: u64,
    pub(crate) answer: Answer,
}

impl Call {
    fn is_admitted(&self) -> bool {
        self.answer == Answer::Admitted
    }
}

/// The greatest cost certainly admitted within one interval of one window. O(n log n).
pub(crate) fn most_admitted(calls: &[Call], limit: Limit) -> u64 {
    // An interval that begins at the sending of a call holds those that were sent later and answered before its end. The
    // greatest begins at such a time. Both sides of the interval only move forwards.
    let window = limit.window.saturating_sub(SLACK);
    let mut admitted: Vec<&Call> = calls.iter().filter(|call| call.is_admitted()).collect();
    admitted.sort_by_key(|call| call.answered);
    let mut by_sent: Vec<usize> = (0..admitted.len()).collect();
    by_sent.sort_by_key(|&at| admitted[at].sent);
    let (mut within, mut next, mut most) = (vec![false; admitted.len()], 0, 0);
    let mut sum = 0;
    for &first in &by_sent {
        while next < admitted.len() && admitted[next].answered < admitted[first].sent + window {
            // One that was answered before the interval began was sent before it, too.
            within[next] = admitted[next].sent >= admitted[first].sent;
            sum += if within[next] { admitted[next].cost } else { 0 };
            next += 1;
        }
        most = most.max(sum);
        if within[first] {
            sum -= admitted[first].cost;
            within[first] = false;
        }
    }
    most
}

/// The number of denials of calls for which there certainly was room under all limits. O(n m), where m is the number of
/// calls in one window.
pub(crate) fn wrong_denials(calls: &[Call], limits: &[Limit]) -> u64 {
    let mut admitted: Vec<&Call> = calls.iter().filter(|call| call.is_admitted()).collect();
    admitted.sort_by_key(|call| call.sent);
    // No call takes longer than the longest.
    let longest = calls.iter().map(|call| call.answered - call.sent).max().unwrap_or_default();
    let has_room = |denied: &Call, limit: &Limit| {
        let from = denied.sent.saturating_sub(limit.window + SLACK);
        let first = admitted.partition_point(|call| call.sent + longest < from);
        let before = admitted[first..].iter().take_while(|call| call.sent < denied.answered);
        let used: u64 = before.filter(|call| call.answered > from).map(|call| call.cost).sum();
        used + denied.cost <= limit.cost
    };
    let denied = calls.iter().filter(|call| matches!(call.answer, Answer::Denied(_)));
    denied.filter(|denied| limits.iter().all(|limit| has_room(denied, limit))).count() as u64
}

/// What was admitted in the window that ends at each multiple of `step`, as far as it is certain.
pub(crate) fn admitted_over_time(calls: &[Call], limit: Limit, step: Duration) -> Vec<u64> {
    let last = calls.iter().map(|call| call.answered).max().unwrap_or_default();
    let steps = u32::try_from(last.as_nanos() / step.as_nanos()).unwrap_or(u32::MAX).saturating_add(2);
    let within = |end: Duration| {
        let begin = end.checked_sub(limit.window);
        let is_within = |call: &&Call| {
            call.is_admitted() && call.answered <= end && begin.is_none_or(|begin| call.sent > begin)
        };
        calls.iter().filter(is_within).map(|call| call.cost).sum()
    };
    (0..steps).map(|at| within(step * at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Limit = Limit { cost: 10, window: Duration::from_millis(100) };

    fn call(sent: u64, answered: u64, cost: u64, answer: Answer) -> Call {
        let ms = Duration::from_millis;
        Call { sent: ms(sent), answered: ms(answered), cost, answer }
    }

    fn admitted(sent: u64, answered: u64, cost: u64) -> Call {
        call(sent, answered, cost, Answer::Admitted)
    }

    #[test]
    fn the_most_in_any_interval_is_found_and_only_what_is_certain() {
        let cases = [
            (vec![], 0),
            (vec![admitted(0, 1, 3), admitted(90, 95, 4)], 7),
            (vec![admitted(0, 1, 3), admitted(99, 101, 4)], 4),
            (vec![admitted(0, 500, 9), admitted(50, 60, 4)], 4),
            (vec![admitted(0, 60, 9), admitted(50, 60, 4), admitted(55, 57, 1)], 14),
            (vec![admitted(0, 50, 1), admitted(10, 20, 2), admitted(100, 105, 4)], 6),
            (
                (0..10)
                    .map(|at| admitted(90 + at, 90 + at, 1))
                    .chain((0..10).map(|at| admitted(100 + at, 101 + at, 1)))
                    .collect(),
                20,
            ),
        ];
        for (calls, expected) in cases {
            assert_eq!(most_admitted(&calls, LIMIT), expected, "{calls:?}");
        }
    }

    /// The interval that moves forwards is compared with one that is summed anew for each call.
    #[test]
    fn random_histories_are_judged_as_by_definition() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let calls: Vec<Call> = (0..random.u64(1..40))
                .map(|_| {
                    let sent = random.u64(0..300);
                    admitted(sent, sent + random.u64(0..150), random.u64(1..4))
                })
                .collect();
            let by_definition = calls.iter().map(|first| {
                let end = first.sent + LIMIT.window - SLACK;
                let within = calls.iter().filter(|call| call.sent >= first.sent && call.answered < end);
                within.map(|call| call.cost).sum::<u64>()
            });
            assert_eq!(most_admitted(&calls, LIMIT), by_definition.max().unwrap(), "{calls:?}");
        }
    }

    #[test]
    fn a_denial_is_wrong_only_where_there_was_room_whenever_it_was_decided() {
        let denied = |sent, answered, cost| call(sent, answered, cost, Answer::Denied(None));
        let cases = [
            (vec![denied(0, 1, 1)], 1),
            (vec![denied(0, 1, 11)], 0),
            (vec![admitted(0, 1, 10), denied(50, 51, 1)], 0),
            (vec![admitted(0, 1, 10), denied(102, 103, 1)], 0),
            (vec![admitted(0, 1, 10), denied(104, 105, 1)], 1),
            (vec![admitted(0, 50, 10), denied(104, 105, 1)], 0),
            (vec![denied(0, 9, 1), admitted(8, 12, 10)], 0),
            (vec![denied(0, 7, 1), admitted(8, 12, 10)], 1),
        ];
        for (calls, expected) in cases {
            assert_eq!(wrong_denials(&calls, &[LIMIT]), expected, "{calls:?}");
        }
        let two = [LIMIT, Limit { cost: 2, window: Duration::from_millis(200) }];
        assert_eq!(wrong_denials(&[admitted(0, 1, 2), denied(150, 151, 1)], &two), 0);
        assert_eq!(wrong_denials(&[admitted(0, 1, 2), denied(204, 205, 1)], &two), 1);
    }

    #[test]
    fn what_was_admitted_over_time_is_that_of_the_window_before() {
        let calls = [admitted(0, 1, 3), admitted(60, 61, 4)];
        let over_time = admitted_over_time(&calls, LIMIT, Duration::from_millis(50));
        assert_eq!(over_time, [0, 3, 4]);
        assert_eq!(admitted_over_time(&calls, LIMIT, Duration::from_millis(25)), [0, 3, 3, 7]);
    }
}

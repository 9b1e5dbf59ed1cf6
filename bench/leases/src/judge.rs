//! What was admitted within one window, from the times at which requests were sent and decided. Shares no code with a
//! limiter.

use std::collections::VecDeque;

use crate::record::{Outcome, Record};

/// What windows contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Windows {
    /// The greatest cost that was certainly admitted within one.
    pub(crate) most: u64,
    /// For how many nanoseconds, windows that begin then contain more than the limit.
    pub(crate) over_ns: u64,
}

/// Judges every window. A request lies in the window that begins at x if it was sent at x or later and decided before
/// x + W, wherever in between it was charged; so it lies in those that begin after its decision minus W, until it was
/// sent. The most such spans that overlap are the fullest window.
pub(crate) fn windows(records: &[Record], limit: u64, window_ns: u64) -> Windows {
    let mut steps = Vec::new();
    for one in records.iter().filter(|one| one.outcome == Outcome::Allowed) {
        let first = (one.received + 1).saturating_sub(window_ns);
        if first <= one.sent {
            steps.extend([(first, true, one.cost), (one.sent + 1, false, one.cost)]);
        }
    }
    steps.sort_unstable();
    let (mut within, mut since) = (0, 0);
    let mut windows = Windows { most: 0, over_ns: 0 };
    for (at, begins, cost) in steps {
        windows.over_ns += if within > limit { at - since } else { 0 };
        since = at;
        within = if begins { within + cost } else { within - cost };
        windows.most = windows.most.max(within);
    }
    windows
}

/// The cost that an exact log would admit of requests sent from a moment on, if it decided all of them as they were sent.
pub(crate) fn ideal(by_sent: &[Record], limit: u64, window_ns: u64, from: u64) -> u64 {
    let (mut within, mut used, mut admitted) = (VecDeque::new(), 0, 0);
    for one in by_sent {
        while within.front().is_some_and(|&(sent, _)| sent + window_ns <= one.sent) {
            used -= within.pop_front().map_or(0, |(_, cost)| cost);
        }
        if used + one.cost <= limit {
            used += one.cost;
            within.push_back((one.sent, one.cost));
            admitted += if one.sent >= from { one.cost } else { 0 };
        }
    }
    admitted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(of: &[(u64, u64, u64)]) -> Vec<Record> {
        let one = |&(sent, received, cost)| Record { sent, received, cost, outcome: Outcome::Allowed };
        of.iter().map(one).collect()
    }

    fn most(of: &[(u64, u64, u64)]) -> u64 {
        windows(&records(of), 10, 100).most
    }

    /// A judge who accepts everything proves nothing.
    #[test]
    fn an_excess_is_found_wherever_the_window_begins() {
        let two_full = [(90, 91, 10), (101, 105, 10)];
        assert_eq!(windows(&records(&two_full), 10, 100), Windows { most: 20, over_ns: 85 });
        assert_eq!(most(&[(1000, 1001, 3), (1099, 1099, 4)]), 7);
        // Late decisions hide in no window but their own.
        assert_eq!(most(&[(1000, 1090, 1), (1001, 1010, 2), (1050, 1099, 4)]), 7);
    }

    #[test]
    fn what_may_have_been_charged_outside_of_the_window_does_not_count() {
        assert_eq!(most(&[(1000, 1001, 3), (1100, 1101, 4)]), 4);
        assert_eq!(most(&[(1000, 1001, 3), (1050, 1100, 4)]), 4);
        assert_eq!(most(&[(1000, 1500, 9), (1050, 1060, 4)]), 4);
        let denied = Record { sent: 1, received: 2, cost: 5, outcome: Outcome::Denied };
        assert_eq!(windows(&[denied], 10, 100), Windows { most: 0, over_ns: 0 });
    }

    #[test]
    fn the_ideal_log_admits_all_that_fits() {
        let offered =
            records(&[(0, 0, 6), (10, 10, 5), (20, 20, 4), (99, 99, 1), (100, 100, 7), (101, 101, 6)]);
        assert_eq!(ideal(&offered, 10, 100, 0), 6 + 4 + 6);
        assert_eq!(ideal(&offered, 10, 100, 20), 4 + 6);
    }
}

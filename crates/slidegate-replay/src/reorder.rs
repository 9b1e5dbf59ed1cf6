//! Sorts a nearly sorted stream: a line waits until nothing older can still come.
//!
//! Servers write a line when the response is sent, and Apache stamps it with the time the request arrived, so
//! a slow download is logged after younger requests. A single line from the far future only waits for the
//! end: it does not hold back the lines after it, so at worst it is returned in its original position.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A waiting line. The field order is the release order; numbers are unique, so later fields are never
/// compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingLine {
    /// Microseconds since the Unix epoch, like all times here.
    pub(crate) time_us: u64,
    /// The line's number in the log, which keeps equal times in log order.
    pub(crate) number: u64,
    /// The number of its block, and of its record there.
    pub(crate) block: usize,
    pub(crate) record: usize,
}

/// The waiting lines, and the two times that determine which may be released.
#[derive(Debug)]
pub(crate) struct Reorder {
    /// Lines that came in order.
    queue: VecDeque<PendingLine>,
    /// Lines that came after a younger one.
    late: BinaryHeap<Reverse<PendingLine>>,
    slack_us: u64,
    newest_seen_us: u64,
    newest_released_us: u64,
}

impl Reorder {
    /// Starts empty. A line waits until a line younger by the slack has been seen.
    pub(crate) fn new(slack_us: u64) -> Self {
        let (queue, late) = (VecDeque::new(), BinaryHeap::new());
        Self { queue, late, slack_us, newest_seen_us: 0, newest_released_us: 0 }
    }

    /// Adds a line. Release due lines first: the line is late if it is older than a released one.
    pub(crate) fn hold(&mut self, line: PendingLine) {
        self.newest_seen_us = self.newest_seen_us.max(line.time_us);
        match self.queue.back() {
            Some(last) if *last > line => self.late.push(Reverse(line)),
            _ => self.queue.push_back(line),
        }
    }

    /// Number of waiting lines.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.late.len()
    }

    /// The oldest line, if nothing older can still come.
    pub(crate) fn release_due(&mut self) -> Option<PendingLine> {
        let due_us = self.newest_seen_us.saturating_sub(self.slack_us).max(self.newest_released_us);
        self.release_if(|oldest| oldest.time_us <= due_us)
    }

    /// The oldest line, due or not: the log has ended, or too many wait.
    pub(crate) fn release(&mut self) -> Option<PendingLine> {
        self.release_if(|_| true)
    }

    fn release_if(&mut self, may: impl Fn(&PendingLine) -> bool) -> Option<PendingLine> {
        let late = self.late.peek().map(|Reverse(line)| line);
        let is_late = late.is_some_and(|late| self.queue.front().is_none_or(|front| late < front));
        let oldest = if is_late { late } else { self.queue.front() }.copied().filter(may)?;
        if is_late {
            self.late.pop();
        } else {
            self.queue.pop_front();
        }
        self.newest_released_us = self.newest_released_us.max(oldest.time_us);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds lines with these times, of which at most `most` may wait; returns (time, number) as released,
    /// and how many came after a younger one.
    fn reorder(times: &[u64], slack_us: u64, most: usize) -> (Vec<(u64, u64)>, usize) {
        let mut reorder = Reorder::new(slack_us);
        let mut released = Vec::new();
        for (time_us, number) in times.iter().zip(0..) {
            reorder.hold(PendingLine { time_us: *time_us, number, block: 0, record: 0 });
            while let Some(line) = reorder.release_due() {
                released.push(line);
            }
            while reorder.len() > most {
                released.extend(reorder.release());
            }
        }
        while let Some(line) = reorder.release() {
            released.push(line);
        }
        let released: Vec<_> = released.iter().map(|held| (held.time_us, held.number)).collect();
        let mut newest = 0;
        let mut late = 0;
        for (time_us, _) in &released {
            late += usize::from(*time_us < newest);
            newest = newest.max(*time_us);
        }
        (released, late)
    }

    /// Replay must charge requests in the order they happened, or it invents denials.
    #[test]
    fn shuffle_within_the_slack_comes_out_as_a_stable_sort() {
        let mut state = 1_u64;
        for slack_us in [0, 1, 7, 100, 5_000] {
            let times: Vec<u64> = (0..2_000)
                .map(|number| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    10_000 + number / 3 - (state >> 33) % (slack_us + 1)
                })
                .collect();
            let mut sorted: Vec<(u64, u64)> = times.iter().copied().zip(0..).collect();
            sorted.sort_unstable();
            assert_eq!(reorder(&times, slack_us, usize::MAX), (sorted, 0), "slack {slack_us}");
        }
    }

    /// A line beyond the slack is still a request: it is released at once and counted in the report.
    #[test]
    fn line_older_than_one_released_is_late_and_due_at_once() {
        let (released, late) = reorder(&[100, 115, 99, 116], 10, usize::MAX);
        assert_eq!(released, [(100, 0), (99, 2), (115, 1), (116, 3)]);
        assert_eq!(late, 1);
    }

    /// After a quiet hour, an old line that nothing has overtaken is still in order.
    #[test]
    fn line_past_the_slack_but_in_order_is_not_late() {
        assert_eq!(reorder(&[100, 900, 500], 10, usize::MAX), (vec![(100, 0), (500, 2), (900, 1)], 0));
    }

    /// One broken clock must not make a whole log late.
    #[test]
    fn far_future_line_waits_for_the_end() {
        let (released, late) = reorder(&[100, 9_999_999, 101, 102, 103], 10, usize::MAX);
        assert_eq!(released, [(100, 0), (101, 2), (102, 3), (103, 4), (9_999_999, 1)]);
        assert_eq!(late, 0);
    }

    /// A log whose lines all share a time must not fill the memory.
    #[test]
    fn full_buffer_releases_the_oldest_early() {
        let (released, late) = reorder(&[5, 3, 4, 2, 6], 1_000, 2);
        assert_eq!(released, [(3, 1), (2, 3), (4, 2), (5, 0), (6, 4)]);
        assert_eq!(late, 1);
    }
}

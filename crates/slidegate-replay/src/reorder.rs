//! Sorts a stream that is nearly sorted: a line waits until nothing older can still come.
//!
//! Servers write a line when the answer is sent, and Apache stamps it with the time the request
//! came, so a slow download is logged behind younger requests. One line from the far future only
//! waits for the end: what follows it is not held back, so at worst it goes out in the order it
//! came in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A line that waits. The order of the fields is the order of release; numbers are unique, so lines
/// never compare.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingLine {
    /// Microseconds since the Unix epoch, as all times here.
    pub(crate) time_us: u64,
    /// The line's number in the log, which keeps equal times in the order they came in.
    pub(crate) number: u64,
    /// The line's text, without its line end.
    pub(crate) line: Box<[u8]>,
}

/// What may wait at once. Past either limit the oldest line goes early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferLimits {
    /// Number of lines.
    pub(crate) lines: usize,
    /// Bytes of the lines alone; a line costs some 50 more.
    pub(crate) bytes: usize,
}

/// The lines that wait, and the two times that say which of them may go.
#[derive(Debug)]
pub(crate) struct Reorder {
    held: BinaryHeap<Reverse<PendingLine>>,
    held_bytes: usize,
    limits: BufferLimits,
    slack_us: u64,
    newest_seen_us: u64,
    newest_released_us: u64,
}

impl Reorder {
    /// Nothing waits yet. A line waits until one that is younger by the slack has been seen.
    pub(crate) fn new(slack_us: u64, limits: BufferLimits) -> Self {
        let held = BinaryHeap::new();
        Self { held, held_bytes: 0, limits, slack_us, newest_seen_us: 0, newest_released_us: 0 }
    }

    /// Whether a line of this time can no longer go out in order. It is then due at once.
    pub(crate) fn is_late(&self, time_us: u64) -> bool {
        time_us < self.newest_released_us
    }

    /// Takes a line in. `release_due` is to be called until it has none before the next comes.
    pub(crate) fn hold(&mut self, held: PendingLine) {
        self.newest_seen_us = self.newest_seen_us.max(held.time_us);
        self.held_bytes += held.line.len();
        self.held.push(Reverse(held));
    }

    /// The oldest line, if it need not or cannot wait any longer.
    pub(crate) fn release_due(&mut self) -> Option<PendingLine> {
        let Reverse(oldest) = self.held.peek()?;
        let due_us = self.newest_seen_us.saturating_sub(self.slack_us).max(self.newest_released_us);
        let is_full = self.held.len() > self.limits.lines || self.held_bytes > self.limits.bytes;
        if oldest.time_us <= due_us || is_full { self.release() } else { None }
    }

    /// The oldest line, due or not: the log has ended.
    pub(crate) fn release(&mut self) -> Option<PendingLine> {
        let Reverse(oldest) = self.held.pop()?;
        self.held_bytes -= oldest.line.len();
        self.newest_released_us = self.newest_released_us.max(oldest.time_us);
        Some(oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOMY: BufferLimits = BufferLimits { lines: 1_000_000, bytes: 1_000_000 };

    /// Feeds lines of 10 bytes with these times; returns (time, number) as released, and how many
    /// were late.
    fn reorder(times: &[u64], slack_us: u64, limits: BufferLimits) -> (Vec<(u64, u64)>, usize) {
        let mut reorder = Reorder::new(slack_us, limits);
        let mut released = Vec::new();
        let mut late = 0;
        for (number, &time_us) in (0..).zip(times) {
            late += usize::from(reorder.is_late(time_us));
            reorder.hold(PendingLine { time_us, number, line: Box::new([0; 10]) });
            released.extend(std::iter::from_fn(|| reorder.release_due()));
            assert!(reorder.held.len() <= limits.lines && reorder.held_bytes <= limits.bytes);
        }
        released.extend(std::iter::from_fn(|| reorder.release()));
        assert_eq!(reorder.held_bytes, 0);
        (released.iter().map(|held| (held.time_us, held.number)).collect(), late)
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
            assert_eq!(reorder(&times, slack_us, ROOMY), (sorted, 0), "slack {slack_us}");
        }
    }

    /// A line past the slack still was a request: it goes out at once, and the report can say how
    /// many there were.
    #[test]
    fn line_older_than_one_released_is_late_and_due_at_once() {
        let (released, late) = reorder(&[100, 115, 99, 116], 10, ROOMY);
        assert_eq!(released, [(100, 0), (99, 2), (115, 1), (116, 3)]);
        assert_eq!(late, 1);
    }

    /// After a quiet hour an old line that nothing has overtaken is still in order.
    #[test]
    fn line_past_the_slack_but_in_order_is_not_late() {
        assert_eq!(reorder(&[100, 900, 500], 10, ROOMY), (vec![(100, 0), (500, 2), (900, 1)], 0));
    }

    /// One broken clock must not make a whole log late.
    #[test]
    fn far_future_line_waits_for_the_end() {
        let (released, late) = reorder(&[100, 9_999_999, 101, 102, 103], 10, ROOMY);
        assert_eq!(released, [(100, 0), (101, 2), (102, 3), (103, 4), (9_999_999, 1)]);
        assert_eq!(late, 0);
    }

    /// A log whose lines all share a time must not fill the memory.
    #[test]
    fn full_buffer_releases_the_oldest_early() {
        let (released, late) = reorder(&[5, 3, 4, 2, 6], 1_000, BufferLimits { lines: 2, ..ROOMY });
        assert_eq!(released, [(3, 1), (2, 3), (4, 2), (5, 0), (6, 4)]);
        assert_eq!(late, 1);
        assert_eq!(reorder(&[5, 3, 4, 2, 6], 1_000, BufferLimits { bytes: 29, ..ROOMY }), (released, late));
    }
}

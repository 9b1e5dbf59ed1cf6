//! Sorts a stream that is nearly sorted: a line waits until nothing older can still come.
//!
//! Servers write a line when the answer is sent, and Apache stamps it with the time the request
//! came, so a slow download is logged behind younger requests. One line from the far future only
//! waits for the end: what follows it is not held back, so at worst it goes out in the order it
//! came in.
//!
//! Lines in order wait in a queue, as runs of records that follow one another in their block; only
//! the others wait one by one, in a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A line that waits. The order of the fields is the order of release; numbers are unique, so
/// handles never compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PendingLine {
    /// Microseconds since the Unix epoch, as all times here.
    pub(crate) time_us: u64,
    /// The line's number in the log, which keeps equal times in the order they came in.
    pub(crate) number: u64,
    /// Where its record is.
    pub(crate) handle: RecordHandle,
}

/// Which record of which block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordHandle {
    pub(crate) block: u32,
    pub(crate) record: u32,
}

/// What is known of the lines that wait, by their handles.
pub(crate) trait PendingLines {
    fn line(&self, handle: RecordHandle) -> PendingLine;
}

/// Records of one block that follow one another in the log and in time; at least one.
#[derive(Clone, Copy, Debug)]
struct Run {
    block: u32,
    start: u32,
    end: u32,
    /// The time of the last of them.
    last_us: u64,
}

impl Run {
    fn first(self) -> RecordHandle {
        RecordHandle { block: self.block, record: self.start }
    }

    fn last(self) -> RecordHandle {
        RecordHandle { block: self.block, record: self.end - 1 }
    }
}

/// How far the lines after a released one may be released together with it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FollowLimit {
    /// Most of them.
    pub(crate) most: usize,
    /// All are before this time.
    pub(crate) before_us: u64,
    /// No two neighbours are further apart.
    pub(crate) gap_us: u64,
    /// Whether only lines are released that need not wait any longer.
    pub(crate) is_due_only: bool,
}

/// The lines that wait, and the two times that say which of them may go.
#[derive(Debug)]
pub(crate) struct Reorder {
    /// Those that came in order.
    queue: VecDeque<Run>,
    /// Those that came after a younger one.
    heap: BinaryHeap<Reverse<PendingLine>>,
    /// How many lines wait.
    len: usize,
    slack_us: u64,
    newest_seen_us: u64,
    newest_released_us: u64,
}

impl Reorder {
    /// Nothing waits yet. A line waits until one that is younger by the slack has been seen.
    pub(crate) fn new(slack_us: u64) -> Self {
        let (queue, heap) = (VecDeque::new(), BinaryHeap::new());
        Self { queue, heap, len: 0, slack_us, newest_seen_us: 0, newest_released_us: 0 }
    }

    /// Takes in a line and those after it that are in order, up to so many. Returns how many. Their
    /// numbers are greater than those before, and `times` are theirs.
    ///
    /// Before a line out of order is taken in, those that are due must be released: it is late if
    /// it comes after one of them.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        first: RecordHandle,
        times: impl IntoIterator<Item = u64>,
        most: usize,
        lines: &impl PendingLines,
    ) -> usize {
        let mut times = times.into_iter();
        let Some(first_us) = times.next() else { return 0 };
        self.newest_seen_us = self.newest_seen_us.max(first_us);
        let last = self.queue.back().copied();
        if let Some(last) = last
            && last.last_us > first_us
        {
            self.hold_late(first, first_us, last, lines);
            return 1;
        }
        let (mut last_us, mut count) = (first_us, 1);
        for time_us in times.take(most.saturating_sub(1)) {
            if time_us < last_us {
                break;
            }
            last_us = time_us;
            count += 1;
        }
        self.newest_seen_us = self.newest_seen_us.max(last_us);
        self.len += count;
        #[allow(clippy::cast_possible_truncation)] // fewer records than bytes in a block
        let end = first.record + count as u32;
        match self.queue.back_mut() {
            Some(last) if last.block == first.block && last.end == first.record => {
                (last.end, last.last_us) = (end, last_us);
            }
            _ => self.queue.push_back(Run { block: first.block, start: first.record, end, last_us }),
        }
        count
    }

    /// Takes in a line that is older than the last one of the queue.
    fn hold_late(&mut self, handle: RecordHandle, time_us: u64, last: Run, lines: &impl PendingLines) {
        self.len += 1;
        // If only the last one is too young, it goes to the heap: a broken clock must not send all
        // lines after it there.
        let before = if last.end - last.start > 1 {
            let before = RecordHandle { record: last.end - 2, ..last.last() };
            Some(lines.line(before).time_us)
        } else {
            self.queue.len().checked_sub(2).map(|at| self.queue[at].last_us)
        };
        if before.unwrap_or(0) > time_us {
            self.heap.push(Reverse(lines.line(handle)));
            return;
        }
        self.heap.push(Reverse(lines.line(last.last())));
        self.queue.pop_back();
        if last.end - last.start > 1 {
            self.queue.push_back(Run { end: last.end - 1, last_us: before.unwrap_or(0), ..last });
        }
        let RecordHandle { block, record } = handle;
        self.queue.push_back(Run { block, start: record, end: record + 1, last_us: time_us });
    }

    /// How many lines wait.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The oldest line, if it need not wait any longer.
    #[inline]
    pub(crate) fn release_due(&mut self, lines: &impl PendingLines) -> Option<PendingLine> {
        let oldest = self.oldest(lines)?;
        let due_us = self.due_us().max(self.newest_released_us);
        if oldest.time_us <= due_us { self.release(lines) } else { None }
    }

    /// Nothing that is older can come any more.
    fn due_us(&self) -> u64 {
        self.newest_seen_us.saturating_sub(self.slack_us)
    }

    /// The oldest line, due or not: the log has ended, or no more may wait.
    #[inline]
    pub(crate) fn release(&mut self, lines: &impl PendingLines) -> Option<PendingLine> {
        let oldest = self.oldest(lines)?;
        match self.queue.front_mut() {
            Some(run) if run.first() == oldest.handle => {
                run.start += 1;
                if run.start == run.end {
                    self.queue.pop_front();
                }
            }
            _ => {
                self.heap.pop();
            }
        }
        self.len -= 1;
        self.newest_released_us = self.newest_released_us.max(oldest.time_us);
        Some(oldest)
    }

    /// Releases the lines that [`release`](Self::release) would return next, if they follow the one
    /// that it returned last in its block, as far as the limit allows. Returns how many.
    #[inline]
    pub(crate) fn release_following(
        &mut self,
        after: PendingLine,
        limit: FollowLimit,
        times: impl IntoIterator<Item = u64>,
    ) -> usize {
        let due_us = if limit.is_due_only { self.due_us() } else { u64::MAX };
        // Of the heap, one of the same time is left to `release`.
        let before_us =
            self.heap.peek().map_or(limit.before_us, |least| least.0.time_us.min(limit.before_us));
        let Some(run) = self.queue.front_mut() else { return 0 };
        if run.block != after.handle.block || run.start != after.handle.record + 1 {
            return 0;
        }
        let (mut last_us, mut count) = (after.time_us, 0);
        for time_us in times.into_iter().take(limit.most.min((run.end - run.start) as usize)) {
            let is_due = time_us <= due_us || time_us <= self.newest_released_us;
            if time_us >= before_us || !is_due || time_us - last_us > limit.gap_us {
                break;
            }
            last_us = time_us;
            count += 1;
        }
        self.newest_released_us = self.newest_released_us.max(last_us);
        self.len -= count;
        #[allow(clippy::cast_possible_truncation)] // at most the length of the run
        let taken = count as u32;
        run.start += taken;
        if run.start == run.end {
            self.queue.pop_front();
        }
        count
    }

    #[inline]
    fn oldest(&self, lines: &impl PendingLines) -> Option<PendingLine> {
        match (self.queue.front(), self.heap.peek()) {
            (Some(run), Some(Reverse(other))) => Some(lines.line(run.first()).min(*other)),
            (Some(run), None) => Some(lines.line(run.first())),
            (None, Some(Reverse(one))) => Some(*one),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of blocks with this many records each.
    struct Lines<'t> {
        times: &'t [u64],
        block_len: usize,
    }

    impl Lines<'_> {
        fn handle(&self, number: usize) -> RecordHandle {
            let [block, record] = [number / self.block_len, number % self.block_len];
            RecordHandle { block: u32::try_from(block).unwrap(), record: u32::try_from(record).unwrap() }
        }

        fn number(&self, handle: RecordHandle) -> usize {
            handle.block as usize * self.block_len + handle.record as usize
        }

        /// The times of the rest of a block.
        fn rest(&self, number: usize) -> impl Iterator<Item = u64> {
            let end = (number / self.block_len + 1) * self.block_len;
            self.times[number..end.min(self.times.len())].iter().copied()
        }
    }

    impl PendingLines for Lines<'_> {
        fn line(&self, handle: RecordHandle) -> PendingLine {
            let number = self.number(handle);
            PendingLine { time_us: self.times[number], number: number as u64, handle }
        }
    }

    /// Feeds lines with these times, of which so many may wait; returns (time, number) as released,
    /// and how many came after a younger one. One by one and in runs, it must be the same.
    fn reorder(times: &[u64], slack_us: u64, most: usize) -> (Vec<(u64, u64)>, usize) {
        let one_by_one = reorder_in(times, slack_us, most, 1);
        if most == usize::MAX {
            for run in [2, 3, 100] {
                assert_eq!(reorder_in(times, slack_us, most, run), one_by_one, "runs of {run}");
            }
        }
        one_by_one
    }

    fn reorder_in(times: &[u64], slack_us: u64, most: usize, run: usize) -> (Vec<(u64, u64)>, usize) {
        let mut reorder = Reorder::new(slack_us);
        let mut released = Vec::new();
        let lines = Lines { times, block_len: run.max(7) };
        let mut taken = 0;
        let follow =
            |reorder: &mut Reorder, line: PendingLine, released: &mut Vec<PendingLine>, is_due_only| {
                released.push(line);
                let limit = FollowLimit { most: run - 1, before_us: u64::MAX, gap_us: u64::MAX, is_due_only };
                let next = lines.number(line.handle) + 1;
                let rest = if next.is_multiple_of(lines.block_len) { next..next } else { next..times.len() };
                let following = reorder.release_following(line, limit, rest.map(|at| times[at]));
                released.extend((next..next + following).map(|at| lines.line(lines.handle(at))));
            };
        while taken < times.len() {
            taken += reorder.hold(lines.handle(taken), lines.rest(taken), run, &lines);
            while let Some(line) = reorder.release_due(&lines) {
                follow(&mut reorder, line, &mut released, true);
            }
            while reorder.len() > most {
                released.extend(reorder.release(&lines));
            }
        }
        while let Some(line) = reorder.release(&lines) {
            follow(&mut reorder, line, &mut released, false);
        }
        assert_eq!(reorder.len(), 0);
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

    /// A line past the slack still was a request: it goes out at once, and the report can say how
    /// many there were.
    #[test]
    fn line_older_than_one_released_is_late_and_due_at_once() {
        let (released, late) = reorder(&[100, 115, 99, 116], 10, usize::MAX);
        assert_eq!(released, [(100, 0), (99, 2), (115, 1), (116, 3)]);
        assert_eq!(late, 1);
    }

    /// After a quiet hour an old line that nothing has overtaken is still in order.
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

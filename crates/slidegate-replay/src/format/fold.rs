//! Which of its two occurrences a local time means, where the clock was set back.
//!
//! The order of the lines tells: a log is nearly in the order in which its requests ended, so a line
//! that would lie far before its neighbours is of the second occurrence. Kept for each log, whose
//! lines are parsed in order, so the result is the same on any number of threads.

use crate::block::Record;
use crate::clock_changes::ClockChanges;
use crate::format::time::Clock;

/// Lines further apart than this say nothing of each other.
const NEAR_US: u64 = 3600 * 1_000_000;

/// Tells the first occurrence from the second.
#[derive(Clone, Debug)]
pub(crate) struct FoldOrder {
    slack_us: u64,
    /// When the newest line was written.
    newest_us: u64,
    /// When the last line was written that was far from the newest. Two lines in a row make a new
    /// newest one, so that a single broken clock, or a request that took hours, changes nothing.
    outlier_us: u64,
    assumption: Option<Assumption>,
    /// How much later than assumed the log begins, if that is known.
    opening_us: Option<u64>,
}

/// Lines that were taken for the first occurrence, as none near them came before.
#[derive(Clone, Copy, Debug)]
struct Assumption {
    /// Whether the log begins with them.
    is_opening: bool,
    lines: u64,
    newest_us: u64,
    shift_us: u64,
}

impl FoldOrder {
    /// Lines may come late by `slack_us`. The log begins at `start_us`, if that is known.
    pub(crate) fn new(slack_us: u64, start_us: Option<u64>) -> Self {
        let newest_us = start_us.unwrap_or(0);
        Self { slack_us, newest_us, outlier_us: 0, assumption: None, opening_us: None }
    }

    /// How much later than assumed the log begins: 0, or the shift of the clock. `None` while the
    /// lines do not tell.
    pub(crate) fn opening_us(&self) -> Option<u64> {
        self.opening_us
    }

    /// Whether the lines do not tell yet when the log begins.
    pub(crate) fn is_opening(&self) -> bool {
        self.assumption.is_some_and(|assumption| assumption.is_opening)
    }

    /// Moves a record to the second occurrence if it is of that one. `open_us` is how long after its
    /// time its line was written.
    pub(crate) fn place(
        &mut self,
        clock: Clock,
        open_us: u64,
        record: &mut Record,
        counts: &mut ClockChanges,
    ) {
        let written_us = record.time_us.saturating_add(open_us);
        let Clock::Repeated { shift_us } = clock else {
            counts.skipped += u64::from(clock == Clock::Skipped);
            self.check_assumption(written_us, counts);
            self.note(written_us);
            return;
        };
        // Up to half the shift, a line is late. More slack leaves less of the hour to see the jump in.
        let late_us = self.slack_us.clamp(shift_us / 2, shift_us - shift_us / 8);
        let latest_us = written_us.saturating_add(shift_us + shift_us / 2);
        let is_near = |known: &u64| known.saturating_add(NEAR_US) >= written_us && *known <= latest_us;
        let near_us = [self.newest_us, self.outlier_us].into_iter().find(is_near);
        if near_us.is_some_and(|known| known > written_us.saturating_add(late_us)) {
            self.confirm_first(counts);
            record.time_us += shift_us;
            counts.second += 1;
            self.note(written_us.saturating_add(shift_us));
            return;
        }
        if near_us.is_none() {
            let is_opening = self.newest_us.max(self.outlier_us) == 0;
            self.assumption = Some(Assumption { is_opening, lines: 0, newest_us: 0, shift_us });
        }
        match &mut self.assumption {
            Some(assumption) => {
                assumption.lines += 1;
                assumption.newest_us = assumption.newest_us.max(written_us);
                counts.assumed_first += 1;
            }
            None => counts.first += 1,
        }
        self.note(written_us);
    }

    /// Lines that were assumed to be of the first occurrence are so: the second follows.
    fn confirm_first(&mut self, counts: &mut ClockChanges) {
        if let Some(Assumption { lines, is_opening, .. }) = self.assumption.take() {
            counts.first += lines;
            counts.assumed_first -= lines;
            self.opening_us = self.opening_us.or(is_opening.then_some(0));
        }
    }

    /// A time that occurs once tells what the lines before it were: without a second occurrence after
    /// them, they are it.
    fn check_assumption(&mut self, written_us: u64, counts: &mut ClockChanges) {
        let Some(Assumption { newest_us, shift_us, is_opening, .. }) = self.assumption else { return };
        match written_us.checked_sub(newest_us) {
            None => {}
            Some(ahead_us) if ahead_us < shift_us => self.confirm_first(counts),
            Some(ahead_us) => {
                self.assumption = None;
                if is_opening && ahead_us - shift_us <= NEAR_US {
                    self.opening_us = Some(shift_us);
                }
            }
        }
    }

    fn note(&mut self, written_us: u64) {
        if written_us.abs_diff(self.newest_us) <= NEAR_US {
            self.newest_us = self.newest_us.max(written_us);
        } else if written_us.abs_diff(self.outlier_us) <= NEAR_US {
            self.outlier_us = self.newest_us;
            self.newest_us = written_us;
        } else {
            self.outlier_us = written_us;
        }
    }
}

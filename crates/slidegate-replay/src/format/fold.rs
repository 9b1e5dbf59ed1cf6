//! Decides which occurrence of a repeated local time a line means, after the clock was set back.
//!
//! The order of lines tells: a log is nearly in the order in which requests ended, so a line that would lie
//! far before its neighbours is of the second occurrence. Tracked per log, whose lines are parsed in order,
//! so the result does not depend on the number of threads.

use crate::block::Record;
use crate::clock_changes::ClockChanges;
use crate::format::time::Clock;

/// Lines further apart than this say nothing about each other.
const NEAR_US: u64 = 3600 * 1_000_000;

/// Tells the first occurrence from the second.
#[derive(Clone, Debug)]
pub(crate) struct FoldOrder {
    slack_us: u64,
    /// When the newest line was written.
    newest_us: u64,
    /// When the last line far from the newest was written. Only two such lines in a row become the newest, so
    /// a single broken clock, or a request that took hours, changes nothing.
    outlier_us: u64,
    assumption: Option<Assumption>,
    /// How much later than assumed the log begins, if known.
    opening_us: Option<u64>,
}

/// Lines assumed to be of the first occurrence, because no nearby line came before.
#[derive(Clone, Copy, Debug)]
struct Assumption {
    /// Whether the log begins with them.
    is_opening: bool,
    lines: u64,
    newest_us: u64,
    shift_us: u64,
}

impl FoldOrder {
    /// Lines may be late by `slack_us`. The log begins at `start_us`, if known.
    pub(crate) fn new(slack_us: u64, start_us: Option<u64>) -> Self {
        let newest_us = start_us.unwrap_or(0);
        Self { slack_us, newest_us, outlier_us: 0, assumption: None, opening_us: None }
    }

    /// How much later than assumed the log begins: 0, or the clock shift. `None` until the lines tell.
    pub(crate) fn opening_us(&self) -> Option<u64> {
        self.opening_us
    }

    /// Whether it is still unknown when the log begins.
    pub(crate) fn is_opening(&self) -> bool {
        self.assumption.is_some_and(|assumption| assumption.is_opening)
    }

    /// Moves a record to the second occurrence if it belongs there. `open_us` is the time between its
    /// timestamp and the writing of its line.
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
        // A line may be late by up to half the shift. More slack leaves less of the hour in which to see the
        // jump.
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

    /// Confirms lines assumed to be of the first occurrence: the second follows.
    fn confirm_first(&mut self, counts: &mut ClockChanges) {
        if let Some(Assumption { lines, is_opening, .. }) = self.assumption.take() {
            counts.first += lines;
            counts.assumed_first -= lines;
            self.opening_us = self.opening_us.or(is_opening.then_some(0));
        }
    }

    /// Checks the assumption at a time that occurs once: if no second occurrence came in between, the lines
    /// before were the second.
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

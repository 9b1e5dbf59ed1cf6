//! Counts ambiguous or skipped local times, where the clock was set back or forward.

use crate::wording::count_of;

/// Requests with a local time that the clock repeated or skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockChanges {
    /// In the first occurrence of a repeated time, by the order of the lines.
    pub first: u64,
    /// In the second occurrence.
    pub second: u64,
    /// In an unknown occurrence: their log begins there, so the first is assumed.
    pub assumed_first: u64,
    /// At a skipped time: read as if the clock had not been set forward.
    pub skipped: u64,
}

impl ClockChanges {
    /// Notes for readers of results, one sentence each.
    pub(crate) fn notes(self) -> Vec<String> {
        let Self { first, second, assumed_first, skipped } = self;
        let has_time = |count| count_of(count, "request has a local time", "requests have local times");
        let mut notes = Vec::new();
        if first + second > 0 {
            notes.push(format!(
                "{} that the clock repeated: {first} the first time, {second} the second, by the order of the lines",
                has_time(first + second)
            ));
        }
        if assumed_first > 0 {
            notes.push(format!(
                "{} that the clock repeated, without lines before that tell which time: the first is \
                 assumed; pipe rotated logs in their order, `cat OLD NEW | slidegate replay -`",
                has_time(assumed_first)
            ));
        }
        if skipped > 0 {
            notes.push(format!(
                "{} read as if it had not been set yet: check `--time-zone`",
                count_of(
                    skipped,
                    "request has a local time that the clock skipped, and is",
                    "requests have local times that the clock skipped, and are"
                )
            ));
        }
        notes
    }

    /// Adds the counts of one log since `before`.
    pub(crate) fn add_since(&mut self, now: Self, before: Self) {
        self.first = self.first + now.first - before.first;
        self.second = self.second + now.second - before.second;
        self.assumed_first = self.assumed_first + now.assumed_first - before.assumed_first;
        self.skipped = self.skipped + now.skipped - before.skipped;
    }
}

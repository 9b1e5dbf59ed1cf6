//! Told log: what a script tells of a sliding log, enough to decide every request of one call.
//!
//! The runs stay with the store; told are their sum, the oldest and the newest stamp, and for denials of more than the
//! oldest run frees, the runs from the oldest until the cost fits.

use super::State;
use crate::quota::Quota;
use crate::time::Timestamp;
use crate::usage::Run;

/// A log after the script let time pass, before it charged anything.
#[derive(Debug, Default)]
pub(crate) struct ToldLog {
    used: u64,
    newest: u64,
    oldest: u64,
    /// Stamp and cost, from the oldest.
    runs: Vec<(u64, u64)>,
}

impl ToldLog {
    pub(crate) fn new(used: u64, newest: u64, oldest: u64, runs: Vec<(u64, u64)>) -> Self {
        Self { used, newest, oldest, runs }
    }
}

impl State for ToldLog {
    /// The script has done it.
    fn settle(&mut self, _quota: &Quota, now: u64) -> u64 {
        now
    }

    /// Stamps are times, so they mean the same under any window.
    fn adopt(&mut self, _quota: &Quota, _now: u64) {}

    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    fn sinks_us(&self, quota: &Quota, now: u64, room: u64) -> u64 {
        let needed = self.used - room;
        let mut freed = 0;
        let fits = |&(_, cost): &(u64, u64)| {
            freed += cost;
            freed >= needed
        };
        let stamp = match needed {
            _ if room == 0 => self.newest,
            1 => self.oldest,
            _ => self.runs.iter().copied().find(fits).map_or(self.newest, |(stamp, _)| stamp),
        };
        (stamp + quota.window_us()).saturating_sub(now)
    }

    fn charge(&mut self, quota: &Quota, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        if self.used == 0 || now > self.newest {
            self.newest = quota.by_step().ceil(now) * quota.step_us();
        }
        if self.used == 0 {
            self.oldest = self.newest;
        }
        self.used = self.used.saturating_add(cost);
    }

    /// What is left of a log after a refund, the script tells.
    fn refund(&mut self, _quota: &Quota, _now: u64, _cost: u64) -> u64 {
        unreachable!("a script refunds, and tells the log as it is then")
    }

    fn charges(&self, _quota: &Quota) -> Vec<Run> {
        let run = |(stamp, cost): &(u64, u64)| Run { at: Timestamp::from_micros(*stamp), cost: *cost };
        self.runs.iter().map(run).collect()
    }
}

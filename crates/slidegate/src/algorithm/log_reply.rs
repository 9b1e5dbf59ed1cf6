//! Log reply: the part of a sliding log that a script replies, enough to decide all requests of a
//! call.
//!
//! The log stays in the store. The reply has the sum, the oldest and the newest timestamp. For a
//! denial that the oldest entry's expiry does not resolve, it also has the oldest entries until the
//! cost fits.

use super::state::State;
use crate::quota::Quota;
use crate::time::Timestamp;
use crate::usage::RecordedCharge;

/// A log after the script dropped expired entries and before it charged anything.
#[derive(Debug, Default)]
pub(crate) struct LogReply {
    used: u64,
    newest: u64,
    oldest: u64,
    /// Timestamp and cost of each entry, oldest first.
    entries: Vec<(u64, u64)>,
}

impl LogReply {
    pub(crate) fn new(used: u64, newest: u64, oldest: u64, entries: Vec<(u64, u64)>) -> Self {
        Self { used, newest, oldest, entries }
    }
}

impl State for LogReply {
    /// The script has done this.
    fn settle(&mut self, _quota: &Quota, now: u64) -> u64 {
        now
    }

    /// Timestamps do not depend on the window.
    fn adopt(&mut self, _quota: &Quota, _now: u64) {}

    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    fn wait_us(&self, quota: &Quota, now: u64, target: u64) -> u64 {
        let needed = self.used - target;
        let mut freed = 0;
        let fits = |&(_, cost): &(u64, u64)| {
            freed += cost;
            freed >= needed
        };
        let timestamp = match needed {
            _ if target == 0 => self.newest,
            1 => self.oldest,
            _ => self.entries.iter().copied().find(fits).map_or(self.newest, |(timestamp, _)| timestamp),
        };
        (timestamp + quota.window_us()).saturating_sub(now)
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

    /// The script refunds and replies the log after it.
    fn refund(&mut self, _quota: &Quota, _now: u64, _cost: u64) -> u64 {
        unreachable!("a script refunds, and tells the log as it is then")
    }

    fn charges(&self, _quota: &Quota) -> Vec<RecordedCharge> {
        let entry = |(timestamp, cost): &(u64, u64)| RecordedCharge {
            at: Timestamp::from_micros(*timestamp),
            cost: *cost,
        };
        self.entries.iter().map(entry).collect()
    }
}

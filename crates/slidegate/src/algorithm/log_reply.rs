//! Log reply: the part of a sliding log that a script replies, enough to decide all requests of a
//! call.
//!
//! The log stays in the store. The reply has the sum, the oldest and the newest timestamp. For a
//! denial that the oldest entry's expiry does not resolve, it also has the oldest entries until the
//! cost fits.

use super::sliding_log::SlidingLog;
use super::state::State;
use crate::quota::Quota;
use crate::time::Timestamp;
use crate::usage::RecordedCharge;

/// A log after the script dropped expired entries and before it charged anything.
#[derive(Debug, Clone, Default)]
pub struct LogReply {
    used: u64,
    newest: u64,
    oldest: u64,
    /// Timestamp and cost of each entry, oldest first.
    entries: Vec<(u64, u64)>,
}

impl LogReply {
    /// From what a script replies.
    pub fn new(used: u64, newest: u64, oldest: u64, entries: Vec<(u64, u64)>) -> Self {
        Self { used, newest, oldest, entries }
    }
}

impl State for LogReply {
    type Forecast = SlidingLog;

    /// The script has done this.
    fn settle(&mut self, _quota: &Quota, now: u64) -> u64 {
        now
    }

    /// Timestamps do not depend on the window.
    fn adopt(&mut self, _old: &Quota, _quota: &Quota, _now: u64) {}

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
            1 => self.oldest,
            // Without an entry that frees enough, the newest does.
            _ => self.entries.iter().copied().find(fits).map_or(self.newest, |(timestamp, _)| timestamp),
        };
        (timestamp + quota.window_us()).saturating_sub(now)
    }

    fn charge(&mut self, quota: &Quota, now: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        let mut is_alone = self.used == 0;
        if self.used == 0 || now > self.newest {
            // A log of one entry has no room for another, which joins it.
            is_alone |= quota.max_entries() == 1 && self.oldest == self.newest;
            self.newest = quota.by_step().ceil(now) * quota.step_us();
        }
        if is_alone {
            self.oldest = self.newest;
        }
        self.used = self.used.saturating_add(cost);
    }

    /// The script refunds and replies the log after it.
    fn refund(&mut self, _quota: &Quota, _now: u64, _cost: u64) -> u64 {
        unreachable!("a script refunds, and tells the log as it is then")
    }

    fn forecast(&self) -> SlidingLog {
        SlidingLog::default()
    }

    fn left_out_us(&self, quota: &Quota, now: u64, target: u64) -> u64 {
        if self.used > target { self.wait_us(quota, now, target) } else { 0 }
    }

    fn charges(&self, _quota: &Quota) -> Vec<RecordedCharge> {
        let entry = |(timestamp, cost): &(u64, u64)| RecordedCharge {
            at: Timestamp::from_micros(*timestamp),
            cost: *cost,
        };
        self.entries.iter().map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{SlidingLog, VerbEffect, decision, perform};
    use crate::verb::Verb;

    /// The reply of a script about this log.
    fn reply(log: &SlidingLog, quota: &Quota) -> LogReply {
        let entries: Vec<_> =
            log.charges(quota).iter().map(|charge| (charge.at.as_micros(), charge.cost)).collect();
        let [oldest, newest] =
            [entries.first(), entries.last()].map(|entry| entry.map_or(0, |entry| entry.0));
        LogReply::new(log.used(quota, 0), newest, oldest, entries)
    }

    /// Replies to most checks have no entries.
    #[test]
    fn without_entries_the_oldest_frees_some_and_the_newest_all() {
        let (quota, now) = (Quota::per_minute(10), 10);
        let reply = LogReply::new(3, 9, 5, Vec::new());
        assert_eq!((reply.frees_us(&quota, now), reply.wait_us(&quota, now, 0)), (59_999_995, 59_999_999));
    }

    /// A penalty joins the only entry, which counts from then on.
    #[test]
    fn a_log_of_one_entry_has_no_room_for_another() {
        let quota = Quota::per_minute(1).with_slots(1);
        let mut log = SlidingLog::default();
        log.charge(&quota, 100_000_000, 1);
        let mut reply = reply(&log, &quota);
        for now in [100_000_000, 100_000_001] {
            let done = perform(&mut log, &quota, now, Verb::Penalize, 1);
            assert_eq!(perform(&mut reply, &quota, now, Verb::Penalize, 1), done);
            let at = Timestamp::from_micros(now);
            assert_eq!(decision(&reply, &quota, at, now, done), decision(&log, &quota, at, now, done));
        }
    }

    proptest! {
        /// Users of Redis get the decisions of the memory store, to the microsecond.
        #[test]
        fn a_reply_decides_as_its_log_does(
            charges in proptest::collection::vec((0u64..20_000_000, 1u64..5), 0..12),
            wait in prop_oneof![Just(0), 0u64..70_000_000],
            requests in proptest::collection::vec((0u64..9, 0usize..3), 1..4),
            slots in [prop_oneof![Just(1024u16), 1u16..4], prop_oneof![Just(1024u16), 1u16..4]],
        ) {
            let [before, quota] = slots.map(|slots| Quota::per_minute(10).with_slots(slots));
            let (mut log, mut now) = (SlidingLog::default(), 100_000_000);
            for (after, cost) in charges {
                now += after;
                let settled = log.settle(&before, now);
                log.charge(&before, settled, cost);
            }
            now = log.settle(&quota, now + wait);
            let mut reply = reply(&log, &quota);
            prop_assert_eq!(reply.settle(&quota, now), now);
            prop_assert_eq!(State::charges(&reply, &quota), log.charges(&quota));
            for (cost, verb) in requests {
                let verb = [Verb::Check, Verb::Peek, Verb::Penalize][verb];
                let at = Timestamp::from_micros(now);
                let done = perform(&mut log, &quota, now, verb, cost);
                prop_assert_eq!(perform(&mut reply, &quota, now, verb, cost), done);
                let of_reply = decision(&reply, &quota, at, now, done);
                prop_assert_eq!(of_reply, decision(&log, &quota, at, now, done));
                if done != VerbEffect::Moved(0) && matches!(done, VerbEffect::Moved(_)) {
                    // A script replies the entries from before its charges.
                    break;
                }
            }
        }
    }
}

//! Sliding log: every charge with its time, exact to the microsecond.
//!
//! A log has at most `slots` entries of (timestamp, cost), and one more while a step is being
//! filled. If the limit is above `slots`, timestamps are rounded up to steps of window / slots, so a
//! charge may count up to one step too long but never too short. `lua/sliding_log.lua` is its twin;
//! change both or neither.
//!
//! Where the entries are kept is the business of [`Entries`]: in memory they are [`PackedEntries`],
//! and the module for Redis reads those of a stored value.

use super::saved::{Ages, SavedState};
use super::state::{State, small_step_us};
use crate::quota::{Quota, format_window};
use crate::time::Timestamp;
use crate::usage::RecordedCharge;

mod entries;
mod ring;

pub use entries::Entries;
pub(crate) use entries::PackedEntries;

/// The log of the memory store: 56 bytes, plus the ring if it is larger than 23 bytes.
pub type SlidingLog = Log<PackedEntries>;

/// A log, wherever its entries are.
#[derive(Debug, Clone, Default)]
pub struct Log<E> {
    /// Timestamp of the oldest entry in microseconds since the epoch. Like `newest`, meaningless
    /// while `used` is 0.
    oldest: u64,
    /// Timestamp of the newest entry.
    newest: u64,
    /// Sum of all costs.
    used: u64,
    entries: E,
}

impl<E: Entries> State for Log<E> {
    type Forecast = SlidingLog;

    #[inline(always)]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        if self.used == 0 {
            return now;
        }
        let is_ahead = now < self.newest && now + (quota.step_us() - 1) < self.newest;
        let now = if is_ahead { self.draw_near(quota, now) } else { now };
        if self.oldest + quota.window_us() <= now {
            self.expire(quota, now);
        }
        now
    }

    /// Timestamps do not depend on the window.
    fn adopt(&mut self, _old: &Quota, _quota: &Quota, _now: u64) {}

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    #[inline(always)]
    fn wait_us(&self, quota: &Quota, now: u64, target: u64) -> u64 {
        let timestamp = if target == 0 { self.newest } else { self.frees(self.used - target) };
        (timestamp + quota.window_us()).saturating_sub(now)
    }

    #[inline(always)]
    fn frees_us(&self, quota: &Quota, now: u64) -> u64 {
        (self.oldest + quota.window_us()).saturating_sub(now)
    }

    #[inline(always)]
    fn charge(&mut self, quota: &Quota, now: u64, cost: u64) {
        let cost = cost.min(u64::MAX - self.used);
        if cost == 0 {
            return;
        }
        if self.used > 0 && now <= self.newest {
            // In the same step: no division needed.
            self.entries.add_to_newest(self.newest, cost);
        } else {
            self.start_entry(quota, now, cost);
        }
        self.used += cost;
    }

    /// Removes the oldest charges first. What remains counts at least as long as the charges that
    /// were really last, so a refund never lets a window exceed the limit.
    fn refund(&mut self, _quota: &Quota, _now: u64, cost: u64) -> u64 {
        let given = cost.min(self.used);
        if given == self.used {
            self.clear();
            return given;
        }
        // Some cost stays, so the loop ends at an entry of which some stays: in a damaged stored value
        // at the newest.
        let mut rest = given;
        loop {
            let oldest = self.entries.cost(0);
            if oldest > rest || self.entries.len() <= 1 {
                self.entries.reduce_oldest(oldest.saturating_sub(rest));
                self.used -= rest;
                return given;
            }
            rest -= oldest;
            self.drop_oldest(oldest);
        }
    }

    fn forecast(&self) -> SlidingLog {
        SlidingLog::default()
    }

    fn left_out_us(&self, quota: &Quota, now: u64, target: u64) -> u64 {
        if self.used > target { self.wait_us(quota, now, target) } else { 0 }
    }

    /// The last entry expires last, whatever is before it.
    fn wait_after_charge(self, quota: &Quota, now: u64, cost: u64) -> u64 {
        debug_assert!(self.entries.len() == 0, "a forecast leaves out the entries");
        if cost.min(quota.max_used()) == 0 {
            return 0;
        }
        quota.by_step().ceil(now) * quota.step_us() + quota.window_us() - now
    }

    fn charges(&self, _quota: &Quota) -> Vec<RecordedCharge> {
        let charge = |(at, cost)| RecordedCharge { at: Timestamp::from_micros(at), cost };
        self.entries().map(charge).collect()
    }

    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
    }

    fn most_heap_bytes(quota: &Quota, entries: u64, cost: u64) -> usize {
        E::most_heap_bytes(quota, entries, cost)
    }
}

impl SavedState for SlidingLog {
    /// The age of the newest entry, the bits of the step to which it was rounded up, and the entries,
    /// oldest first: how much later than the one before, and the cost.
    type Saved = (i64, u8, Vec<(u64, u64)>);

    fn save(&self, ages: Ages) -> Self::Saved {
        let mut before = self.oldest;
        let gap = |(at, cost): (u64, u64)| (at.saturating_sub(std::mem::replace(&mut before, at)), cost);
        (ages.of(self.newest), self.entries.ahead_bits(), self.entries().map(gap).collect())
    }

    fn load((newest, ahead_bits, saved): Self::Saved, ages: Ages, quota: &Quota, _now: u64) -> Option<Self> {
        if saved.is_empty() {
            return Some(Self::default());
        }
        let (newest, sum) = (ages.at(newest), |sum: u64, part| sum.checked_add(part));
        let used = saved.iter().map(|(_, cost)| *cost).try_fold(0, sum)?;
        let span = saved.iter().map(|(gap, _)| *gap).try_fold(0, sum)?;
        if used == 0 || ahead_bits >= 64 {
            return None;
        }
        let (mut entries, mut distance) = (PackedEntries::with_room(quota, span, &saved)?, span);
        for (gap, cost) in saved {
            distance -= gap;
            entries.push(quota, newest, newest.saturating_sub(distance), cost);
        }
        entries.set_ahead_bits(ahead_bits);
        Some(Self { oldest: entries.timestamp(0, newest), newest, used, entries })
    }

    fn most_used(&self) -> u64 {
        self.used
    }

    fn charged_by(quota: &Quota, _cost: u64, after: u64, by: u64, now: u64) -> u64 {
        by.saturating_sub(quota.window_us()).min(now + (by - after))
    }

    fn counts_still(quota: &Quota, cost: u64, made: u64, now: u64) -> u64 {
        if now.saturating_sub(made) < quota.window_us() { cost } else { 0 }
    }

    fn describe(quota: &Quota) -> String {
        if quota.step_us() == 1 {
            return "exact sliding log".to_owned();
        }
        let step = format_window(quota.window() / u32::from(quota.slots()));
        format!("sliding log of {} steps: a charge may count {step} too long", quota.slots())
    }
}

/// The fields stored in Redis.
impl<E: Entries> Log<E> {
    /// A log of these entries, of which the oldest and the newest have these timestamps, and all
    /// together this cost.
    pub fn from_parts(used: u64, newest: u64, oldest: u64, entries: E) -> Self {
        Self { oldest, newest, used, entries }
    }

    /// Cost of all entries, and the timestamps of the newest and the oldest.
    pub fn parts(&self) -> (u64, u64, u64, &E) {
        (self.used, self.newest, self.oldest, &self.entries)
    }
}

impl<E: Entries> Log<E> {
    /// Timestamp and cost of each entry, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.entries.len()).map(|at| (self.entries.timestamp(at, self.newest), self.entries.cost(at)))
    }

    /// Removes all entries but keeps their memory for later charges.
    pub fn clear(&mut self) {
        self.used = 0;
        self.entries.clear();
    }

    /// Removes expired entries. The oldest is expired.
    fn expire(&mut self, quota: &Quota, now: u64) {
        if self.newest + quota.window_us() <= now {
            self.clear();
            return;
        }
        while self.oldest + quota.window_us() <= now {
            self.drop_oldest(self.entries.cost(0));
        }
    }

    /// Starts an entry at `now`, rounded up to a step. `now` is later than the newest entry.
    #[inline]
    fn start_entry(&mut self, quota: &Quota, now: u64, cost: u64) {
        let timestamp = quota.by_step().ceil(now) * quota.step_us();
        if self.entries.len() < quota.max_entries() {
            self.entries.push(quota, self.newest, timestamp, cost);
        } else {
            // Only penalties or a lowered number of slots fill the log. The newest entry then
            // counts a little longer.
            self.entries.move_newest(quota, self.newest, timestamp, cost);
        }
        self.newest = timestamp;
        if self.entries.len() == 1 {
            self.oldest = timestamp;
        }
        self.entries.set_ahead_bits(quota.step_bits());
    }

    /// Removes the oldest entry, which has this cost and is not the only one.
    fn drop_oldest(&mut self, cost: u64) {
        // The sum in a damaged stored value may be less than its parts.
        self.used = self.used.saturating_sub(cost);
        self.entries.drop_oldest();
        self.oldest = self.entries.timestamp(0, self.newest);
    }

    /// The timestamp of the entry whose expiry frees at least `needed` cost in total.
    #[inline(never)]
    fn frees(&self, needed: u64) -> u64 {
        let mut freed = 0u64;
        for at in 0..self.entries.len() {
            freed = freed.saturating_add(self.entries.cost(at));
            if freed >= needed {
                return self.entries.timestamp(at, self.newest);
            }
        }
        self.newest
    }

    /// `newest` is further ahead than the quota's step: the quota had a longer one when the entry was
    /// made, or the clock stepped back. Returns the time to decide at.
    #[cold]
    fn draw_near(&mut self, quota: &Quota, now: u64) -> u64 {
        // The earliest time at which the entry can have been charged last.
        let earliest = self.newest.saturating_sub((1 << self.entries.ahead_bits()) - 1);
        let by = earliest.saturating_sub(now);
        let now = if by <= small_step_us(quota.window_us()) {
            // A small step back of the clock is waited out.
            now.max(earliest)
        } else {
            // A large one moves the history back, as if no time had passed since the newest charge.
            self.entries.move_back(self.newest, by);
            self.newest -= by;
            self.oldest = self.oldest.saturating_sub(by);
            now
        };
        // All charges of the entry were made before now. Later ones join it, so it must not count
        // longer than they do.
        let last = self.entries.len() - 1;
        let before = if last > 0 { self.entries.timestamp(last - 1, self.newest) } else { 0 };
        let timestamp = before.max(quota.by_step().ceil(now) * quota.step_us());
        if timestamp < self.newest {
            self.entries.move_newest(quota, self.newest, timestamp, 0);
            self.newest = timestamp;
            if last == 0 {
                self.oldest = timestamp;
            }
            self.entries.set_ahead_bits(quota.step_bits());
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::ring::Widths;
    use super::*;

    fn charged(quota: &Quota, charges: &[(u64, u64)]) -> SlidingLog {
        let mut log = SlidingLog::default();
        for &(now, cost) in charges {
            let now = log.settle(quota, now);
            log.charge(quota, now, cost);
        }
        log
    }

    /// A window of a month and costs of gigabytes widen the fields while a key is in use.
    #[test]
    fn fields_widen_without_losing_a_run() {
        let minute = Quota::new(u64::MAX, Duration::from_secs(60)).unwrap().with_slots(8);
        let month = Quota::new(u64::MAX, Duration::from_secs(30 * 86_400)).unwrap().with_slots(8);
        let mut log = charged(&minute, &[(1, 1), (8_000_000, 300), (16_000_000, 70_000)]);
        let costs =
            |log: &SlidingLog| (0..log.entries.len()).map(|at| log.entries.cost(at)).collect::<Vec<_>>();
        assert_eq!((costs(&log), log.entries.widths), (vec![1, 300, 70_000], Widths::new(4, 4)));
        let now = log.settle(&month, 50_000_000);
        log.charge(&month, now, 1 << 40);
        assert_eq!((costs(&log), log.entries.widths), (vec![1, 300, 70_000, 1 << 40], Widths::new(6, 8)));
        assert_eq!(log.used, 70_301 + (1 << 40));
    }

    /// A timestamp that is ahead by a coarse step must not look like a backward step: moving the
    /// history would expire charges early.
    #[test]
    fn a_step_made_finer_moves_no_history() {
        let day = Duration::from_secs(86_400);
        let (coarse, fine) = (Quota::new(2000, day).unwrap(), Quota::new(1000, day).unwrap());
        let border = 100 * 86_400_000_000;
        let step = coarse.step_us();
        let mut log = charged(&coarse, &[(border, 999), (border + 10 * step + 1, 1)]);
        let settled = log.settle(&fine, border + 10 * step + 2);
        assert_eq!(settled, border + 10 * step + 2);
        // What was stamped with the end of the coarse step is stamped again, and nothing else moves.
        assert_eq!((log.oldest, log.newest), (border, border + 10 * step + 2));
    }

    /// A full log under a longer window must not misread its older timestamps.
    #[test]
    fn stamps_widen_also_when_a_full_log_is_restamped() {
        let minute = Quota::per_minute(2).with_slots(2);
        let month = Quota::new(2, Duration::from_secs(30 * 86_400)).unwrap().with_slots(2);
        let mut log = charged(&minute, &[(0, 1), (1, 1)]);
        let now = log.settle(&month, 7_200_000_000);
        log.charge(&month, now, 1);
        assert_eq!((log.oldest, log.newest, log.used), (0, now, 3));
    }

    /// Penalties charge beyond the limit, and must not take memory beyond it.
    #[test]
    fn charges_of_a_full_log_join_its_newest_entry() {
        let quota = Quota::per_minute(3).with_slots(3);
        let log = charged(&quota, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]);
        let entries: Vec<_> = (0..log.entries.len())
            .map(|at| (log.entries.timestamp(at, log.newest), log.entries.cost(at)))
            .collect();
        assert_eq!(entries, [(1, 1), (2, 1), (5, 4)]);
    }

    /// A stream of large responses charges the same moment again and again.
    #[test]
    fn a_cost_widens_while_its_entry_grows() {
        let quota = Quota::per_minute(u64::MAX);
        let grown = |first, more| {
            let log = charged(&quota, &[(100_000, 1), (200_000, first), (200_000, more)]);
            (log.used, log.entries.cost(0), log.entries.cost(1))
        };
        for most in [0xFF, 0xFFFF, 0xFFFF_FFFF] {
            assert_eq!(grown(most, 1), (most + 2, 1, most + 1));
            assert_eq!(grown(most - 1, 1), (most + 1, 1, most));
        }
        assert_eq!(grown(u64::MAX - 2, 1), (u64::MAX, 1, u64::MAX - 1));
    }

    /// Copying all entries for every few charges would make a long log slow.
    #[test]
    fn a_log_that_grows_is_copied_a_few_times() {
        let quota = Quota::per_minute(1000);
        let mut log = SlidingLog::default();
        let mut copies = 0;
        for now in 1..=1000 {
            let before = log.entries.capacity;
            log.charge(&quota, now, 1);
            copies += usize::from(log.entries.capacity != before);
        }
        assert!(copies <= 9, "{copies}");
    }

    /// `max_bytes` and what `validate` says of a configuration count these bytes.
    #[test]
    fn bytes_on_the_heap_are_those_of_the_entries_that_do_not_fit_beside_the_key() {
        let quota = Quota::per_minute(100);
        let most = |entries, cost| SlidingLog::most_heap_bytes(&quota, entries, cost);
        assert_eq!((most(5, 1), most(6, 1), most(100, 1), most(u64::MAX, 1)), (0, 24, 400, 4096));
        assert_eq!((most(4, 300), most(100, 300)), (24, 600));
        let of = |charges: u64| charged(&quota, &(1..=charges).map(|at| (at, 1)).collect::<Vec<_>>());
        assert_eq!((of(5).heap_bytes(), of(100).heap_bytes()), (0, 400));
    }

    mod saved {
        use super::*;

        const AGES: Ages = Ages { at_us: 70_000_000 };

        fn load(saved: <SlidingLog as SavedState>::Saved) -> Option<SlidingLog> {
            SlidingLog::load(saved, AGES, &Quota::per_minute(100), AGES.at_us)
        }

        /// Most keys have a few charges, and must not need more memory after a restart.
        #[test]
        fn a_short_log_lies_beside_its_key_again() {
            let log = charged(&Quota::per_minute(100), &[(60_000_000, 1), (61_000_000, 1)]);
            let loaded = load(log.save(AGES)).unwrap();
            assert_eq!((loaded.entries.capacity, loaded.heap_bytes()), (5, 0));
            assert_eq!((loaded.oldest, loaded.newest, loaded.used), (60_000_000, 61_000_000, 2));
        }

        /// A damaged file with a valid checksum comes from a bug, and must not become another one.
        #[test]
        fn what_no_log_can_be_is_refused() {
            let saved = charged(&Quota::per_minute(100), &[(60_000_000, 3), (61_000_000, 4)]).save(AGES);
            assert_eq!(saved, (9_000_000, 0, vec![(0, 3), (1_000_000, 4)]));
            let log = load(saved).unwrap();
            assert_eq!((log.used, log.entries.widths), (7, Widths::new(4, 1)));
            let of = |ahead_bits, entries: &[(u64, u64)]| load((0, ahead_bits, entries.to_vec()));
            assert!(of(63, &[(0, 1)]).is_some());
            assert!(of(64, &[(0, 1)]).is_none(), "a step of 2^64 microseconds");
            assert!(of(0, &[(0, 0), (9, 1)]).is_some());
            assert!(of(0, &[(0, 0), (9, 0)]).is_none(), "entries without any cost");
            assert!(of(0, &[(0, 1), ((1 << 48) - 1, 1)]).is_some());
            assert!(of(0, &[(0, 1), (1 << 48, 1)]).is_none(), "entries of nine years");
            assert!(of(0, &[(u64::MAX, 1), (1, 1)]).is_none(), "a time of more than 64 bits");
            assert!(of(0, &[(0, u64::MAX), (1, 1)]).is_none(), "a cost of more than 64 bits");
            assert!(of(0, &[(1, 1); 0x1_0000]).is_none(), "more entries than any log has");
        }

        /// The limit was lowered to a shorter window, and the entries of the longer one are still there.
        #[test]
        fn entries_of_a_longer_window_keep_their_times() {
            let month = Quota::new(9, Duration::from_secs(30 * 86_400)).unwrap();
            let begin = 100 * 86_400_000_000;
            let log = charged(&month, &[(begin, 1), (begin + (1 << 32), 200)]);
            let ages = Ages { at_us: begin + (1 << 33) };
            let loaded = SlidingLog::load(log.save(ages), ages, &Quota::per_minute(9), 0).unwrap();
            assert!(loaded.entries().eq(log.entries()));
        }

        /// After the clock stepped back to the epoch, entries from before it have one time.
        #[test]
        fn entries_of_one_time_are_loaded() {
            let quota = Quota::per_minute(100);
            let mut log = charged(&quota, &[(8_000_000, 1), (10_000_000, 1), (12_000_000, 1)]);
            assert_eq!(log.settle(&quota, 1), 1);
            let times: Vec<_> = (0..3).map(|at| log.entries.timestamp(at, log.newest)).collect();
            assert_eq!(times, [0, 0, 1]);
            assert_eq!(load(log.save(AGES)).unwrap().used, 3);
        }
    }
}

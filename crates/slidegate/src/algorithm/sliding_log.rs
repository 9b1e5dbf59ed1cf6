//! Sliding log: every charge with its time, exact to the microsecond.
//!
//! Entries of (timestamp, cost) are packed in a ring whose fields are as narrow as the window and
//! the largest cost allow: 4 to 14 bytes per charge, usually 4. The first five are stored next to
//! the key. A log has at most `slots` entries, and one more while a step is being filled. If the
//! limit is above `slots`, timestamps are rounded up to steps of window / slots, so a charge may
//! count up to one step too long but never too short. `lua/sliding_log.lua` is its twin; change
//! both or neither.

#[cfg(feature = "snapshot")]
use super::saved::{Ages, Input, SavedState};
use super::state::{State, small_step_us};
use crate::quota::Quota;
use crate::time::Timestamp;
use crate::usage::RecordedCharge;

mod ring;

use ring::{Ring, Widths, add, array, cost_bytes, timestamp_bytes};

/// 56 bytes, plus the ring if it is larger than 23 bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlidingLog {
    /// Timestamp of the oldest entry in microseconds since the epoch. Like `newest`, meaningless
    /// while `used` is 0.
    oldest: u64,
    /// Timestamp of the newest entry.
    newest: u64,
    /// Sum of all costs.
    used: u64,
    /// The entries, oldest at `head`: timestamp, then cost, little-endian.
    ring: Ring,
    head: u16,
    /// Number of entries.
    len: u16,
    /// Number of entries that fit in the ring.
    capacity: u16,
    widths: Widths,
    /// Bits of the step to which `newest` was rounded up. `newest` may be that far ahead of the
    /// time of its charge.
    ahead_bits: u8,
}

impl State for SlidingLog {
    type Forecast = Self;

    #[inline(always)]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        if self.used == 0 {
            return now;
        }
        let steps_back = now < self.newest && now + self.ahead_us(quota) < self.newest;
        let now = if steps_back { self.step_back(quota, now) } else { now };
        if self.oldest + quota.window_us() <= now {
            self.expire(quota, now);
        }
        now
    }

    /// Timestamps do not depend on the window.
    fn adopt(&mut self, _quota: &Quota, _now: u64) {}

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
            self.add_to_newest(cost);
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
        // Some cost stays, so the loop ends at an entry of which some stays.
        let mut rest = given;
        loop {
            let oldest = self.cost(0);
            if oldest > rest {
                self.write_cost(0, oldest - rest);
                self.used -= rest;
                return given;
            }
            rest -= oldest;
            self.drop_oldest(oldest);
        }
    }

    fn forecast(&self, quota: &Quota, now: u64) -> (Self, u64) {
        let left_out_us = if self.used > 0 { self.wait_us(quota, now, 0) } else { 0 };
        (Self::default(), left_out_us)
    }

    fn charges(&self, _quota: &Quota) -> Vec<RecordedCharge> {
        let entry =
            |at| RecordedCharge { at: Timestamp::from_micros(self.timestamp(at)), cost: self.cost(at) };
        (0..self.len).map(entry).collect()
    }

    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        match &self.ring {
            Ring::Inline(_) => 0,
            Ring::Heap(bytes) => bytes.len(),
        }
    }

    fn most_heap_bytes(quota: &Quota, entries: u64, cost: u64) -> usize {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX).min(quota.max_entries().into());
        let bytes = entries * Widths::new(timestamp_bytes(quota), cost_bytes(cost.max(1))).entry();
        if bytes <= Ring::INLINE_BYTES { 0 } else { bytes }
    }
}

#[cfg(feature = "snapshot")]
impl SavedState for SlidingLog {
    /// The entries with their distances to the newest, oldest first.
    fn save(&self, ages: Ages, out: &mut Vec<u8>) {
        out.extend_from_slice(&ages.of(self.newest).to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        out.extend_from_slice(&[self.widths.0, self.ahead_bits]);
        let [timestamp_bytes, cost_bytes] = [self.widths.timestamp(), self.widths.cost()].map(usize::from);
        for at in 0..self.len {
            let distance = self.newest - self.timestamp(at);
            out.extend_from_slice(&distance.to_le_bytes()[..timestamp_bytes]);
            out.extend_from_slice(&self.cost(at).to_le_bytes()[..cost_bytes]);
        }
    }

    fn load(input: &mut Input<'_>, ages: Ages, _quota: &Quota, _now: u64) -> Option<Self> {
        let (newest, len) = (ages.at(input.i64()?), input.u16()?);
        let (widths, ahead_bits) = (Widths(input.u8()?), input.u8()?);
        let are_widths = matches!(widths.timestamp(), 4 | 6) && matches!(widths.cost(), 0 | 1 | 2 | 4 | 8);
        if len == 0 {
            return Some(Self::default());
        }
        if !are_widths || ahead_bits >= 64 {
            return None;
        }
        #[allow(clippy::cast_possible_truncation)] // at most 23
        let capacity = len.max((Ring::INLINE_BYTES / widths.entry()) as u16);
        let ring = Ring::new(usize::from(capacity) * widths.entry());
        let mut log =
            Self { oldest: newest, newest, used: 0, ring, head: 0, len, capacity, widths, ahead_bits };
        let mut before = u64::MAX;
        for at in 0..len {
            let mut field = |bytes: u8| {
                let mut number = [0; 8];
                number[..usize::from(bytes)].copy_from_slice(input.bytes(bytes.into())?);
                Some(u64::from_le_bytes(number))
            };
            let (distance, cost) = (field(widths.timestamp())?, field(widths.cost())?);
            let cost = if widths.cost() == 0 { 1 } else { cost };
            if distance > before {
                return None;
            }
            before = distance;
            log.used = log.used.checked_add(cost)?;
            log.write_timestamp(at, newest.wrapping_sub(distance));
            log.write_cost(at, cost);
        }
        log.oldest = log.timestamp(0);
        (log.used > 0).then_some(log)
    }
}

impl SlidingLog {
    /// Removes all entries but keeps the ring for later charges.
    fn clear(&mut self) {
        self.used = 0;
        self.head = 0;
        self.len = 0;
    }

    /// How far `newest` may be ahead of the latest time seen, in microseconds: less than the step
    /// it was rounded to.
    #[inline]
    fn ahead_us(&self, quota: &Quota) -> u64 {
        match self.ahead_bits {
            0 => 0,
            same if same == quota.step_bits() => quota.step_us() - 1,
            // The quota had another step when the entry was made.
            other => (1 << other) - 1,
        }
    }

    /// Removes expired entries. The oldest is expired.
    fn expire(&mut self, quota: &Quota, now: u64) {
        if self.newest + quota.window_us() <= now {
            self.clear();
            return;
        }
        while self.oldest + quota.window_us() <= now {
            self.drop_oldest(self.cost(0));
        }
    }

    /// Starts an entry at `now`, rounded up to a step. `now` is later than the newest entry.
    #[inline]
    fn start_entry(&mut self, quota: &Quota, now: u64, cost: u64) {
        let timestamp = quota.by_step().ceil(now) * quota.step_us();
        if self.len < quota.max_entries() {
            self.push(quota, timestamp, cost);
        } else {
            // Only penalties or a lowered number of slots fill the log. The newest entry then
            // counts a little longer.
            self.move_newest(quota, timestamp);
            self.add_to_newest(cost);
        }
        self.ahead_bits = quota.step_bits();
    }

    /// Removes the oldest entry, which has this cost and is not the only one.
    fn drop_oldest(&mut self, cost: u64) {
        self.used -= cost;
        self.head = if self.head + 1 == self.capacity { 0 } else { self.head + 1 };
        self.len -= 1;
        self.oldest = self.timestamp(0);
    }

    /// The timestamp of the entry whose expiry frees at least `needed` cost in total.
    #[inline(never)]
    fn frees(&self, needed: u64) -> u64 {
        let mut freed = 0;
        for at in 0..self.len {
            freed += self.cost(at);
            if freed >= needed {
                return self.timestamp(at);
            }
        }
        self.newest
    }

    /// The clock stepped back. A small step is waited out. A large one moves the history back, as
    /// if no time had passed since the newest charge. Returns the time to decide at.
    #[cold]
    fn step_back(&mut self, quota: &Quota, now: u64) -> u64 {
        let earliest = self.newest - self.ahead_us(quota);
        let by = earliest - now;
        if by <= small_step_us(quota.window_us()) {
            return earliest;
        }
        for at in 0..self.len {
            self.write_timestamp(at, self.timestamp(at).wrapping_sub(by));
        }
        self.newest -= by;
        self.oldest = self.timestamp(0);
        now
    }

    #[inline(always)]
    fn add_to_newest(&mut self, cost: u64) {
        let offset = self.offset(self.len - 1) + usize::from(self.widths.timestamp());
        let field = &mut self.ring.bytes_mut()[offset..];
        let fitted = match self.widths.cost() {
            0 => false,
            1 => add::<1>(field, cost),
            2 => add::<2>(field, cost),
            4 => add::<4>(field, cost),
            _ => add::<8>(field, cost),
        };
        if !fitted {
            self.add_and_widen(cost);
        }
    }

    #[cold]
    fn add_and_widen(&mut self, cost: u64) {
        let cost = self.cost(self.len - 1) + cost;
        self.rebuild(self.capacity, Widths::new(self.widths.timestamp(), cost_bytes(cost)));
        self.write_cost(self.len - 1, cost);
    }

    fn move_newest(&mut self, quota: &Quota, timestamp: u64) {
        let timestamp_bytes = timestamp_bytes(quota).max(self.widths.timestamp());
        let widths = Widths::new(timestamp_bytes, self.widths.cost());
        if widths != self.widths {
            self.rebuild(self.capacity, widths);
        }
        self.write_timestamp(self.len - 1, timestamp);
        self.newest = timestamp;
        if self.len == 1 {
            self.oldest = timestamp;
        }
    }

    #[inline]
    fn push(&mut self, quota: &Quota, timestamp: u64, cost: u64) {
        let timestamp_bytes = timestamp_bytes(quota).max(self.widths.timestamp());
        let cost_bytes = cost_bytes(cost).max(self.widths.cost());
        let widths = Widths::new(timestamp_bytes, cost_bytes);
        if self.len == self.capacity || widths != self.widths {
            self.grow(quota, widths);
        }
        self.newest = timestamp;
        if self.len == 0 {
            self.oldest = timestamp;
        }
        self.write_timestamp(self.len, timestamp);
        self.write_cost(self.len, cost);
        self.len += 1;
    }

    /// Makes room for one more entry of these widths. The ring starts with what fits next to the
    /// key, then doubles, up to the number of entries that the limit can fill.
    #[cold]
    fn grow(&mut self, quota: &Quota, widths: Widths) {
        let most = quota.max_entries();
        let fillable = u16::try_from(quota.limit()).unwrap_or(most).min(most);
        let inline = Ring::INLINE_BYTES / widths.entry();
        #[allow(clippy::cast_possible_truncation)] // at most 23
        let inline = inline as u16;
        let needed = self.len + 1;
        let capacity = if needed <= inline {
            inline
        } else if needed <= self.capacity {
            self.capacity
        } else if needed <= fillable {
            (self.capacity * 2).clamp(needed, fillable)
        } else {
            self.capacity.saturating_mul(2).min(most).max(needed)
        };
        self.rebuild(capacity, widths);
    }

    /// Copies the entries to a ring of another size or other widths.
    #[cold]
    fn rebuild(&mut self, capacity: u16, widths: Widths) {
        let ring = Ring::new(usize::from(capacity) * widths.entry());
        let Self { oldest, newest, used, len, ahead_bits, .. } = *self;
        let mut next = Self { oldest, newest, used, ring, head: 0, len, capacity, widths, ahead_bits };
        for at in 0..self.len {
            next.write_timestamp(at, self.timestamp(at));
            next.write_cost(at, self.cost(at));
        }
        *self = next;
    }

    /// Offset in the ring of an entry, counted from the oldest.
    #[inline]
    fn offset(&self, at: u16) -> usize {
        let at = u32::from(self.head) + u32::from(at);
        let capacity = u32::from(self.capacity);
        let at = if at >= capacity { at - capacity } else { at };
        at as usize * self.widths.entry()
    }

    /// The timestamp of an entry, counted from the oldest.
    fn timestamp(&self, at: u16) -> u64 {
        let bytes = &self.ring.bytes()[self.offset(at)..];
        let low = u64::from(u32::from_le_bytes(array(bytes)));
        let (low, mask) = if self.widths.timestamp() == 4 {
            (low, u64::from(u32::MAX))
        } else {
            (low | u64::from(u16::from_le_bytes(array(&bytes[4..]))) << 32, (1 << 48) - 1)
        };
        // A clock that stepped back to the epoch would put old entries before it.
        self.newest.saturating_sub(self.newest.wrapping_sub(low) & mask)
    }

    #[inline]
    fn write_timestamp(&mut self, at: u16, timestamp: u64) {
        let (offset, timestamp_bytes) = (self.offset(at), self.widths.timestamp());
        let bytes = &mut self.ring.bytes_mut()[offset..];
        let timestamp = timestamp.to_le_bytes();
        // By width, because a copy of variable length is a function call.
        match timestamp_bytes {
            4 => bytes[..4].copy_from_slice(&timestamp[..4]),
            _ => bytes[..6].copy_from_slice(&timestamp[..6]),
        }
    }

    /// The cost of an entry, counted from the oldest.
    #[inline]
    fn cost(&self, at: u16) -> u64 {
        let cost_bytes = self.widths.cost();
        if cost_bytes == 0 {
            return 1;
        }
        let bytes = &self.ring.bytes()[self.offset(at) + usize::from(self.widths.timestamp())..];
        match cost_bytes {
            1 => u64::from(bytes[0]),
            2 => u64::from(u16::from_le_bytes(array(bytes))),
            4 => u64::from(u32::from_le_bytes(array(bytes))),
            _ => u64::from_le_bytes(array(bytes)),
        }
    }

    /// Writes a cost. The field must be wide enough.
    #[inline]
    fn write_cost(&mut self, at: u16, cost: u64) {
        let cost_bytes = self.widths.cost();
        debug_assert!(ring::cost_bytes(cost) <= cost_bytes, "a cost is cut");
        let offset = self.offset(at) + usize::from(self.widths.timestamp());
        let bytes = &mut self.ring.bytes_mut()[offset..];
        let cost = cost.to_le_bytes();
        match cost_bytes {
            0 => {}
            1 => bytes[0] = cost[0],
            2 => bytes[..2].copy_from_slice(&cost[..2]),
            4 => bytes[..4].copy_from_slice(&cost[..4]),
            _ => bytes[..8].copy_from_slice(&cost),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn charged(quota: &Quota, charges: &[(u64, u64)]) -> SlidingLog {
        let mut log = SlidingLog::default();
        for &(now, cost) in charges {
            let now = log.settle(quota, now);
            log.charge(quota, now, cost);
        }
        log
    }

    /// Users switch from sorted sets because of memory. Every entry of every key pays for a field
    /// that is too wide.
    #[test]
    fn a_full_log_of_single_requests_takes_four_bytes_an_entry() {
        let quota = Quota::per_minute(100);
        let charges: Vec<_> = (0..100).map(|i| (1_000_000 + i, 1)).collect();
        let log = charged(&quota, &charges);
        assert_eq!(log.used, 100);
        assert_eq!(log.ring.bytes().len(), 400);
    }

    /// Most keys of a real service are seen a few times and must not need memory outside the table.
    #[test]
    fn five_runs_lie_beside_the_key_and_one_of_any_cost() {
        let quota = Quota::per_minute(100);
        let few = charged(&quota, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
        assert!(matches!(few.ring, Ring::Inline(_)));
        assert!(matches!(
            charged(&quota, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]).ring,
            Ring::Heap(_)
        ));
        let large = Quota::new(u64::MAX, Duration::from_secs(30 * 86_400)).unwrap();
        assert!(matches!(charged(&large, &[(1, u64::MAX)]).ring, Ring::Inline(_)));
        assert_eq!(std::mem::size_of::<SlidingLog>(), 56);
    }

    /// A window of a month and costs of gigabytes widen the fields while a key is in use.
    #[test]
    fn fields_widen_without_losing_a_run() {
        let minute = Quota::new(u64::MAX, Duration::from_secs(60)).unwrap().with_slots(8);
        let month = Quota::new(u64::MAX, Duration::from_secs(30 * 86_400)).unwrap().with_slots(8);
        let mut log = charged(&minute, &[(1, 1), (8_000_000, 300), (16_000_000, 70_000)]);
        let costs = |log: &SlidingLog| (0..log.len).map(|at| log.cost(at)).collect::<Vec<_>>();
        assert_eq!((costs(&log), log.widths), (vec![1, 300, 70_000], Widths::new(4, 4)));
        let now = log.settle(&month, 50_000_000);
        log.charge(&month, now, 1 << 40);
        assert_eq!((costs(&log), log.widths), (vec![1, 300, 70_000, 1 << 40], Widths::new(6, 8)));
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
        assert_eq!((log.oldest, log.newest), (border, border + 11 * step));
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

    /// Memory is bounded: whatever the limit, a key has at most `slots` + 1 entries.
    #[test]
    fn a_limit_of_millions_keeps_to_its_slots() {
        let quota = Quota::per_minute(1_000_000).with_slots(10);
        let charges: Vec<_> = (0..100_000).map(|i| (60_000_000 + i * 1000, 3)).collect();
        let log = charged(&quota, &charges);
        assert!(log.len <= 11 && log.len >= 10, "{}", log.len);
        assert!(log.used >= 3 * 60_000 && log.used <= 3 * 66_000, "{}", log.used);
    }

    /// An entry without cost would keep its time, and waits would end when nothing is freed.
    #[test]
    fn a_refund_of_the_whole_oldest_charge_drops_its_entry() {
        let quota = Quota::per_minute(100);
        let mut log = charged(&quota, &[(1, 3), (2, 4)]);
        assert_eq!(log.refund(&quota, 3, 3), 3);
        assert_eq!((log.len, log.oldest, log.used), (1, 2, 4));
    }

    /// Penalties charge beyond the limit, and must not take memory beyond it.
    #[test]
    fn charges_of_a_full_log_join_its_newest_entry() {
        let quota = Quota::per_minute(3).with_slots(3);
        let log = charged(&quota, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]);
        let entries: Vec<_> = (0..log.len).map(|at| (log.timestamp(at), log.cost(at))).collect();
        assert_eq!(entries, [(1, 1), (2, 1), (5, 4)]);
    }

    /// A stream of large responses charges the same moment again and again.
    #[test]
    fn a_cost_widens_while_its_entry_grows() {
        let quota = Quota::per_minute(u64::MAX);
        let grown = |first, more| {
            let log = charged(&quota, &[(100_000, 1), (200_000, first), (200_000, more)]);
            (log.used, log.cost(0), log.cost(1))
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
            let before = log.capacity;
            log.charge(&quota, now, 1);
            copies += usize::from(log.capacity != before);
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

    #[cfg(feature = "snapshot")]
    mod saved {
        use super::*;

        const AGES: Ages = Ages { at_us: 70_000_000 };

        fn saved(log: &SlidingLog) -> Vec<u8> {
            let mut bytes = Vec::new();
            log.save(AGES, &mut bytes);
            bytes
        }

        fn load(bytes: &[u8]) -> Option<SlidingLog> {
            SlidingLog::load(&mut Input(bytes), AGES, &Quota::per_minute(100), AGES.at_us)
        }

        /// Most keys have a few charges, and must not need more memory after a restart.
        #[test]
        fn a_short_log_lies_beside_its_key_again() {
            let log = charged(&Quota::per_minute(100), &[(60_000_000, 1), (61_000_000, 1)]);
            let loaded = load(&saved(&log)).unwrap();
            assert_eq!((loaded.capacity, loaded.heap_bytes()), (5, 0));
            assert_eq!((loaded.oldest, loaded.newest, loaded.used), (60_000_000, 61_000_000, 2));
        }

        /// A damaged file with a valid checksum comes from a bug, and must not become another one.
        #[test]
        fn what_no_log_can_be_is_refused() {
            let valid = saved(&charged(&Quota::per_minute(100), &[(60_000_000, 3), (61_000_000, 4)]));
            let log = load(&valid).unwrap();
            assert_eq!((log.used, log.widths), (7, Widths::new(4, 1)));
            let with = |at: usize, byte: u8| {
                let mut bytes = valid.clone();
                bytes[at] = byte;
                load(&bytes)
            };
            let (widths, ahead, first_cost, second_distance) = (10, 11, 16, 17);
            for after in [0, 1] {
                for wrong in [0x43, 0x51] {
                    let mut bytes = [valid.clone(), vec![after; 16]].concat();
                    bytes[widths] = wrong;
                    assert!(load(&bytes).is_none(), "costs of 3 bytes, or timestamps of 5");
                }
            }
            assert!(with(ahead, 64).is_none(), "a step of 2^64 microseconds");
            assert!(with(second_distance + 3, 1).is_none(), "a later entry that is older");
            assert!(with(first_cost, 0).is_some());
            let mut bytes = valid.clone();
            (bytes[first_cost], bytes[first_cost + 5]) = (0, 0);
            assert!(load(&bytes).is_none(), "entries without any cost");
        }

        /// After the clock stepped back to the epoch, entries from before it have one time.
        #[test]
        fn entries_of_one_time_are_loaded() {
            let quota = Quota::per_minute(100);
            let mut log = charged(&quota, &[(8_000_000, 1), (10_000_000, 1), (12_000_000, 1)]);
            assert_eq!(log.settle(&quota, 1), 1);
            let times: Vec<_> = (0..3).map(|at| log.timestamp(at)).collect();
            assert_eq!(times, [0, 0, 1]);
            assert_eq!(load(&saved(&log)).unwrap().used, 3);
        }
    }
}

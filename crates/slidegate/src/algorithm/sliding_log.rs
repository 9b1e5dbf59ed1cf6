//! Sliding log: every charge with its time, exact to the microsecond.
//!
//! A charge costs 4 to 14 bytes, most often 4: runs of (stamp, cost) lie packed in a ring whose fields are as narrow
//! as the window and the largest cost allow. The first five lie beside the key itself. At most `slots` runs are held, one
//! more while a step is being filled; a limit above `slots` rounds stamps up to steps of window / slots, so a charge
//! may count that much too long and never too short. `lua/sliding_log.lua` will be its twin.

use super::{State, small_step_us};
use crate::quota::Quota;
use crate::time::Timestamp;
use crate::usage::Run;

/// 56 bytes, and the ring where it is longer than 23.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlidingLog {
    /// Stamp of the oldest run, in microseconds since the epoch. Meaningless while `used` is 0, as the next.
    oldest: u64,
    /// Stamp of the newest run.
    newest: u64,
    /// Sum of the runs' costs.
    used: u64,
    /// The runs, oldest at `head`: stamp, then cost, little-endian.
    ring: Ring,
    head: u16,
    /// Runs in the ring.
    len: u16,
    /// Runs that the ring has room for.
    room: u16,
    widths: Widths,
    /// Bits of the step that `newest` was rounded up to: it may lie that far ahead of the time that it was made.
    ahead_bits: u8,
}

/// The bytes of the runs. Few lie in the table's own slot, so that a key with few charges is one place in memory.
#[derive(Debug, Clone)]
enum Ring {
    Here([u8; Self::HERE]),
    Elsewhere(Box<[u8]>),
}

impl Ring {
    /// As many as fit without growing the slot for the tag's sake.
    const HERE: usize = 23;

    fn new(bytes: usize) -> Self {
        if bytes <= Self::HERE { Self::default() } else { Self::Elsewhere(vec![0; bytes].into_boxed_slice()) }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Elsewhere(bytes) => bytes,
        }
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Elsewhere(bytes) => bytes,
        }
    }
}

impl Default for Ring {
    fn default() -> Self {
        Self::Here([0; Self::HERE])
    }
}

/// How wide the fields in the ring are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Widths(u8);

impl Widths {
    fn new(stamp: u8, cost: u8) -> Self {
        Self(stamp << 4 | cost)
    }

    /// Bytes of a stamp: its low 4 or 6. The whole stamp follows from `newest`, as all the runs lie within one window of
    /// it.
    #[inline]
    fn stamp(self) -> u8 {
        self.0 >> 4
    }

    /// Bytes of a cost: 0 (every cost is 1), 1, 2, 4 or 8.
    #[inline]
    fn cost(self) -> u8 {
        self.0 & 0xF
    }

    /// Bytes of a run.
    #[inline]
    fn run(self) -> usize {
        usize::from(self.stamp() + self.cost())
    }
}

impl State for SlidingLog {
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

    /// Stamps are times, so they mean the same under any window.
    fn adopt(&mut self, _quota: &Quota, _now: u64) {}

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    #[inline(always)]
    fn sinks_us(&self, quota: &Quota, now: u64, room: u64) -> u64 {
        let stamp = if room == 0 { self.newest } else { self.frees(self.used - room) };
        (stamp + quota.window_us()).saturating_sub(now)
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
            // The same step, without a division.
            self.add_to_newest(cost);
        } else {
            self.start_run(quota, now, cost);
        }
        self.used += cost;
    }

    /// Takes the oldest charges away first: what stays counts at least as long as what was really charged last, so a
    /// refund never lets a window hold more than the limit.
    fn refund(&mut self, _quota: &Quota, _now: u64, cost: u64) -> u64 {
        let given = cost.min(self.used);
        if given == self.used {
            self.clear();
            return given;
        }
        let mut rest = given;
        while rest > 0 {
            let oldest = self.cost(0);
            if oldest > rest {
                self.write_cost(0, oldest - rest);
                self.used -= rest;
                return given;
            }
            rest -= oldest;
            self.drop_oldest(oldest);
        }
        given
    }

    fn charges(&self, _quota: &Quota) -> Vec<Run> {
        let run = |at| Run { at: Timestamp::from_micros(self.stamp(at)), cost: self.cost(at) };
        (0..self.len).map(run).collect()
    }
}

/// Bytes that tell apart all stamps in a log: those of one window and one step.
fn stamp_bytes(quota: &Quota) -> u8 {
    if quota.window_us() + quota.step_us() < 1 << 32 { 4 } else { 6 }
}

/// Bytes that hold a cost in the ring.
fn cost_bytes(cost: u64) -> u8 {
    match cost {
        1 => 0,
        0..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x1_0000_0000 => 4,
        _ => 8,
    }
}

impl SlidingLog {
    /// Forgets every run and keeps the ring: a key that is charged again will fill it again.
    fn clear(&mut self) {
        self.used = 0;
        self.head = 0;
        self.len = 0;
    }

    /// How far `newest` may lie ahead of the latest time seen, in microseconds: less than the step it was rounded to.
    #[inline]
    fn ahead_us(&self, quota: &Quota) -> u64 {
        match self.ahead_bits {
            0 => 0,
            same if same == quota.step_bits() => quota.step_us() - 1,
            // The step was another when it was made.
            other => (1 << other) - 1,
        }
    }

    /// Drops the runs that count no more, of which there is one.
    fn expire(&mut self, quota: &Quota, now: u64) {
        if self.newest + quota.window_us() <= now {
            self.clear();
            return;
        }
        while self.oldest + quota.window_us() <= now {
            self.drop_oldest(self.cost(0));
        }
    }

    /// Begins a run at `now`, which is later than the newest, rounded up to a step.
    #[inline]
    fn start_run(&mut self, quota: &Quota, now: u64, cost: u64) {
        let stamp = quota.by_step().ceil(now) * quota.step_us();
        if self.len < quota.most_runs() {
            self.push(quota, stamp, cost);
        } else {
            // Penalties alone, or fewer slots than there were, fill the log: count the newest run a little longer.
            self.restamp_newest(quota, stamp);
            self.add_to_newest(cost);
        }
        self.ahead_bits = quota.step_bits();
    }

    /// Drops the oldest run, whose cost this is and which is not the only one.
    fn drop_oldest(&mut self, cost: u64) {
        self.used -= cost;
        self.head = if self.head + 1 == self.room { 0 } else { self.head + 1 };
        self.len -= 1;
        self.oldest = self.stamp(0);
    }

    /// The stamp of the run with whose end at least `needed` cost is free.
    #[inline(never)]
    fn frees(&self, needed: u64) -> u64 {
        let mut freed = 0;
        for at in 0..self.len {
            freed += self.cost(at);
            if freed >= needed {
                return self.stamp(at);
            }
        }
        self.newest
    }

    /// The clock went back. By little, that is waited out; otherwise the history moves along, as if no time had passed
    /// since the newest charge. Returns the time to decide at.
    #[cold]
    fn step_back(&mut self, quota: &Quota, now: u64) -> u64 {
        let earliest = self.newest - self.ahead_us(quota);
        let by = earliest - now;
        if by <= small_step_us(quota.window_us()) {
            return earliest;
        }
        for at in 0..self.len {
            self.write_stamp(at, self.stamp(at).wrapping_sub(by));
        }
        self.newest -= by;
        self.oldest = self.stamp(0);
        now
    }

    #[inline(always)]
    fn add_to_newest(&mut self, cost: u64) {
        let offset = self.offset(self.len - 1) + usize::from(self.widths.stamp());
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
        self.rebuild(self.room, Widths::new(self.widths.stamp(), cost_bytes(cost)));
        self.write_cost(self.len - 1, cost);
    }

    fn restamp_newest(&mut self, quota: &Quota, stamp: u64) {
        let needed = stamp_bytes(quota);
        if needed > self.widths.stamp() {
            self.rebuild(self.room, Widths::new(needed, self.widths.cost()));
        }
        self.write_stamp(self.len - 1, stamp);
        self.newest = stamp;
        if self.len == 1 {
            self.oldest = stamp;
        }
    }

    #[inline]
    fn push(&mut self, quota: &Quota, stamp: u64, cost: u64) {
        let stamp_bytes = stamp_bytes(quota).max(self.widths.stamp());
        let cost_bytes = cost_bytes(cost).max(self.widths.cost());
        let widths = Widths::new(stamp_bytes, cost_bytes);
        if self.len == self.room || widths != self.widths {
            self.make_room(quota, widths);
        }
        self.newest = stamp;
        if self.len == 0 {
            self.oldest = stamp;
        }
        self.write_stamp(self.len, stamp);
        self.write_cost(self.len, cost);
        self.len += 1;
    }

    /// Room for one more run of these widths: what fits beside the key, then twice as much as before, but no more than
    /// the limit can fill.
    #[cold]
    fn make_room(&mut self, quota: &Quota, widths: Widths) {
        let most = quota.most_runs();
        let fillable = u16::try_from(quota.limit()).unwrap_or(most).min(most);
        let here = Ring::HERE / widths.run();
        #[allow(clippy::cast_possible_truncation)] // at most 23
        let here = here as u16;
        let needed = self.len + 1;
        let room = if needed <= here {
            here
        } else if needed <= self.room {
            self.room
        } else if needed <= fillable {
            (self.room * 2).clamp(needed, fillable)
        } else {
            self.room.saturating_mul(2).min(most).max(needed)
        };
        self.rebuild(room, widths);
    }

    /// Moves the runs to a ring of other measures.
    #[cold]
    fn rebuild(&mut self, room: u16, widths: Widths) {
        let ring = Ring::new(usize::from(room) * widths.run());
        let Self { oldest, newest, used, len, ahead_bits, .. } = *self;
        let mut next = Self { oldest, newest, used, ring, head: 0, len, room, widths, ahead_bits };
        for at in 0..self.len {
            next.write_stamp(at, self.stamp(at));
            next.write_cost(at, self.cost(at));
        }
        *self = next;
    }

    /// Where the run that is `at`-th from the oldest lies in the ring.
    #[inline]
    fn offset(&self, at: u16) -> usize {
        let at = u32::from(self.head) + u32::from(at);
        let room = u32::from(self.room);
        let at = if at >= room { at - room } else { at };
        at as usize * self.widths.run()
    }

    /// The stamp of the run that is `at`-th from the oldest.
    fn stamp(&self, at: u16) -> u64 {
        let bytes = &self.ring.bytes()[self.offset(at)..];
        let low = u64::from(u32::from_le_bytes(array(bytes)));
        let (low, mask) = if self.widths.stamp() == 4 {
            (low, u64::from(u32::MAX))
        } else {
            (low | u64::from(u16::from_le_bytes(array(&bytes[4..]))) << 32, (1 << 48) - 1)
        };
        // A clock that went back to the epoch would put old runs before it.
        self.newest.saturating_sub(self.newest.wrapping_sub(low) & mask)
    }

    #[inline]
    fn write_stamp(&mut self, at: u16, stamp: u64) {
        let (offset, stamp_bytes) = (self.offset(at), self.widths.stamp());
        let bytes = &mut self.ring.bytes_mut()[offset..];
        let stamp = stamp.to_le_bytes();
        // By width, as a copy of unknown length is a call.
        match stamp_bytes {
            4 => bytes[..4].copy_from_slice(&stamp[..4]),
            _ => bytes[..6].copy_from_slice(&stamp[..6]),
        }
    }

    /// The cost of the run that is `at`-th from the oldest.
    #[inline]
    fn cost(&self, at: u16) -> u64 {
        let cost_bytes = self.widths.cost();
        if cost_bytes == 0 {
            return 1;
        }
        let bytes = &self.ring.bytes()[self.offset(at) + usize::from(self.widths.stamp())..];
        match cost_bytes {
            1 => u64::from(bytes[0]),
            2 => u64::from(u16::from_le_bytes(array(bytes))),
            4 => u64::from(u32::from_le_bytes(array(bytes))),
            _ => u64::from_le_bytes(array(bytes)),
        }
    }

    /// Writes a cost that the field is wide enough for.
    #[inline]
    fn write_cost(&mut self, at: u16, cost: u64) {
        let cost_bytes = self.widths.cost();
        debug_assert!(self::cost_bytes(cost) <= cost_bytes, "a cost is cut");
        let offset = self.offset(at) + usize::from(self.widths.stamp());
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

/// Adds to a field of so many bytes; says whether the sum fits.
#[inline]
fn add<const BYTES: usize>(field: &mut [u8], cost: u64) -> bool {
    let field = field.first_chunk_mut::<BYTES>().expect("a run has all its bytes");
    let mut sum = [0; 8];
    sum[..BYTES].copy_from_slice(field);
    let sum = u64::from_le_bytes(sum) + cost;
    let fits = BYTES == 8 || sum >> (8 * BYTES) == 0;
    if fits {
        field.copy_from_slice(&sum.to_le_bytes()[..BYTES]);
    }
    fits
}

/// The first bytes of a field.
#[inline]
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("a run has all its bytes")
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

    /// Memory is why people leave sorted sets; a field wider than it must be is paid by every entry of every key.
    #[test]
    fn a_full_log_of_single_requests_takes_four_bytes_an_entry() {
        let quota = Quota::per_minute(100);
        let charges: Vec<_> = (0..100).map(|i| (1_000_000 + i, 1)).collect();
        let log = charged(&quota, &charges);
        assert_eq!(log.used, 100);
        assert_eq!(log.ring.bytes().len(), 400);
    }

    /// Most keys of a real service are seen a few times; they must not pay for memory elsewhere.
    #[test]
    fn five_runs_lie_beside_the_key_and_one_of_any_cost() {
        let quota = Quota::per_minute(100);
        let few = charged(&quota, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
        assert!(matches!(few.ring, Ring::Here(_)));
        assert!(matches!(
            charged(&quota, &[(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]).ring,
            Ring::Elsewhere(_)
        ));
        let large = Quota::new(u64::MAX, Duration::from_secs(30 * 86_400)).unwrap();
        assert!(matches!(charged(&large, &[(1, u64::MAX)]).ring, Ring::Here(_)));
        assert_eq!(std::mem::size_of::<SlidingLog>(), 56);
    }

    /// A month's window and costs of gigabytes widen the fields in the middle of a key's life.
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

    /// A stamp that is ahead of time by a coarse step is no clock that went back: moving the history along would let old
    /// charges expire early.
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

    /// A full log under a longer window must not misread its older stamps.
    #[test]
    fn stamps_widen_also_when_a_full_log_is_restamped() {
        let minute = Quota::per_minute(2).with_slots(2);
        let month = Quota::new(2, Duration::from_secs(30 * 86_400)).unwrap().with_slots(2);
        let mut log = charged(&minute, &[(0, 1), (1, 1)]);
        let now = log.settle(&month, 7_200_000_000);
        log.charge(&month, now, 1);
        assert_eq!((log.oldest, log.newest, log.used), (0, now, 3));
    }

    /// The bound on memory is a promise: whatever the limit, a key holds no more than `slots` runs and one.
    #[test]
    fn a_limit_of_millions_keeps_to_its_slots() {
        let quota = Quota::per_minute(1_000_000).with_slots(10);
        let charges: Vec<_> = (0..100_000).map(|i| (60_000_000 + i * 1000, 3)).collect();
        let log = charged(&quota, &charges);
        assert!(log.len <= 11 && log.len >= 10, "{}", log.len);
        assert!(log.used >= 3 * 60_000 && log.used <= 3 * 66_000, "{}", log.used);
    }
}

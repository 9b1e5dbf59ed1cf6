//! Sliding log: every charge with its time, exact to the microsecond.
//!
//! A charge costs 4 to 14 bytes, most often 4: runs of (stamp, cost) lie packed in a ring whose fields are as narrow
//! as the window and the largest cost allow. The first five lie beside the key itself. At most `slots` runs are held, one
//! more while a step is being filled; a limit above `slots` rounds stamps up to steps of window / slots, so a charge
//! may count that much too long and never too short. `lua/sliding_log.lua` will be its twin.

use super::{State, small_step_us};
use crate::quota::Quota;

/// 48 bytes, and the ring where it is longer than 23.
#[derive(Debug, Default)]
pub(crate) struct SlidingLog {
    /// Stamp of the newest run, in microseconds since the epoch. Meaningless while `used` is 0.
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
#[derive(Debug)]
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    stamp: u64,
    cost: u64,
}

impl State for SlidingLog {
    #[inline]
    fn settle(&mut self, quota: &Quota, now: u64) -> u64 {
        if self.used == 0 {
            return now;
        }
        let earliest = self.newest.saturating_sub(self.ahead_us(quota));
        let now = if now >= earliest {
            now
        } else if earliest - now <= small_step_us(quota.window_us()) {
            earliest
        } else {
            self.move_back(earliest - now);
            now
        };
        let Some(horizon) = now.checked_sub(quota.window_us()) else { return now };
        if self.newest <= horizon {
            self.clear();
            return now;
        }
        loop {
            let oldest = self.oldest();
            if oldest.stamp > horizon {
                return now;
            }
            self.drop_oldest(oldest);
        }
    }

    /// Stamps are times, so they mean the same under any window.
    fn adopt(&mut self, _quota: &Quota, _now: u64) {}

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    #[inline]
    fn sinks_us(&self, quota: &Quota, now: u64, room: u64) -> u64 {
        let stamp = match self.used - room {
            1 => self.oldest().stamp,
            _ if room == 0 => self.newest,
            needed => self.frees(needed),
        };
        (stamp + quota.window_us()).saturating_sub(now)
    }

    #[inline]
    fn charge(&mut self, quota: &Quota, now: u64, cost: u64) {
        let cost = cost.min(u64::MAX - self.used);
        if cost == 0 {
            return;
        }
        let stamp = match quota.step_us() {
            1 => now,
            step => quota.by_step().ceil(now) * step,
        };
        if self.used > 0 && stamp <= self.newest {
            self.add_to_newest(cost);
        } else if self.len >= most_runs(quota) {
            // Penalties alone, or fewer slots than there were, fill the log: count the newest run a little longer.
            self.restamp_newest(quota, stamp);
            self.add_to_newest(cost);
        } else {
            self.push(quota, Run { stamp, cost });
        }
        self.used += cost;
        if self.newest == stamp {
            self.ahead_bits = bits(quota.step_us());
        }
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
            let oldest = self.oldest();
            if oldest.cost > rest {
                self.write(0, Run { cost: oldest.cost - rest, ..oldest });
                self.used -= rest;
                return given;
            }
            rest -= oldest.cost;
            self.drop_oldest(oldest);
        }
        given
    }
}

/// Most runs of a log: the steps of a window that are over, and above the exact limit the one that is being filled.
fn most_runs(quota: &Quota) -> u16 {
    quota.slots() + u16::from(quota.step_us() > 1)
}

/// Bits of a step, 0 for the exact one.
fn bits(step_us: u64) -> u8 {
    #[allow(clippy::cast_possible_truncation)] // at most 64
    let bits = (64 - (step_us - 1).leading_zeros()) as u8;
    bits
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
            same if same == bits(quota.step_us()) => quota.step_us() - 1,
            // The step was another when it was made.
            other => (1 << other) - 1,
        }
    }

    /// The oldest run. There is one.
    #[inline]
    fn oldest(&self) -> Run {
        self.read(0)
    }

    /// Drops the oldest run, which this is.
    #[inline]
    fn drop_oldest(&mut self, oldest: Run) {
        self.used -= oldest.cost;
        self.head = if self.head + 1 == self.room { 0 } else { self.head + 1 };
        self.len -= 1;
    }

    /// The stamp of the run with whose end at least `needed` cost is free.
    #[inline]
    fn frees(&self, needed: u64) -> u64 {
        let mut freed = 0;
        for at in 0..self.len {
            let run = self.read(at);
            freed += run.cost;
            if freed >= needed {
                return run.stamp;
            }
        }
        self.newest
    }

    /// The clock went back: so does the history, as if no time had passed since the newest charge.
    #[cold]
    fn move_back(&mut self, by: u64) {
        for at in 0..self.len {
            let run = self.read(at);
            self.write(at, Run { stamp: run.stamp.wrapping_sub(by), ..run });
        }
        self.newest -= by;
    }

    fn add_to_newest(&mut self, cost: u64) {
        let cost = self.read(self.len - 1).cost + cost;
        let needed = cost_bytes(cost);
        if needed > self.widths.cost() {
            self.rebuild(self.room, Widths::new(self.widths.stamp(), needed));
        }
        self.write(self.len - 1, Run { stamp: self.newest, cost });
    }

    fn restamp_newest(&mut self, quota: &Quota, stamp: u64) {
        let needed = stamp_bytes(quota);
        if needed > self.widths.stamp() {
            self.rebuild(self.room, Widths::new(needed, self.widths.cost()));
        }
        let newest = self.read(self.len - 1);
        self.write(self.len - 1, Run { stamp, ..newest });
        self.newest = stamp;
    }

    #[inline]
    fn push(&mut self, quota: &Quota, run: Run) {
        let stamp_bytes = stamp_bytes(quota).max(self.widths.stamp());
        let cost_bytes = cost_bytes(run.cost).max(self.widths.cost());
        let widths = Widths::new(stamp_bytes, cost_bytes);
        if self.len == self.room || widths != self.widths {
            self.make_room(quota, widths);
        }
        self.newest = run.stamp;
        self.len += 1;
        self.write(self.len - 1, run);
    }

    /// Room for one more run of these widths: what fits beside the key, then twice as much as before, but no more than
    /// the limit can fill.
    #[cold]
    fn make_room(&mut self, quota: &Quota, widths: Widths) {
        let most = most_runs(quota);
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
        let Self { newest, used, len, ahead_bits, .. } = *self;
        let mut next = Self { newest, used, ring, head: 0, len, room, widths, ahead_bits };
        for at in 0..self.len {
            next.write(at, self.read(at));
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

    #[inline]
    fn read(&self, at: u16) -> Run {
        let offset = self.offset(at);
        let run = &self.ring.bytes()[offset..offset + self.widths.run()];
        let (low, mask, cost) = if self.widths.stamp() == 4 {
            let (stamp, cost) = run.split_at(4);
            (read_uint(stamp), u64::from(u32::MAX), cost)
        } else {
            let (stamp, cost) = run.split_at(6);
            (read_uint(stamp), (1 << 48) - 1, cost)
        };
        // A clock that went back to the epoch would put old runs before it.
        let stamp = self.newest.saturating_sub(self.newest.wrapping_sub(low) & mask);
        Run { stamp, cost: if cost.is_empty() { 1 } else { read_uint(cost) } }
    }

    #[inline]
    fn write(&mut self, at: u16, run: Run) {
        debug_assert!(cost_bytes(run.cost) <= self.widths.cost(), "a cost is cut");
        let offset = self.offset(at);
        let stamp = if self.widths.stamp() == 4 { 4 } else { 6 };
        let bytes = &mut self.ring.bytes_mut()[offset..offset + self.widths.run()];
        let (stamp, cost) = bytes.split_at_mut(stamp);
        write_uint(stamp, run.stamp);
        write_uint(cost, run.cost);
    }
}

/// A little-endian number of 1, 2, 4, 6 or 8 bytes.
#[inline(always)]
fn read_uint(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f] => u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("a log's fields are 1, 2, 4, 6 or 8 bytes"),
    }
}

/// Writes the low bytes of a number, as many as there are places. By width, since a copy of unknown length is a call.
#[inline(always)]
fn write_uint(bytes: &mut [u8], value: u64) {
    let value = value.to_le_bytes();
    match bytes.len() {
        0 => {}
        1 => bytes[0] = value[0],
        2 => bytes.copy_from_slice(&value[..2]),
        4 => bytes.copy_from_slice(&value[..4]),
        6 => bytes.copy_from_slice(&value[..6]),
        _ => bytes.copy_from_slice(&value),
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
        assert_eq!(std::mem::size_of::<SlidingLog>(), 48);
    }

    /// A month's window and costs of gigabytes widen the fields in the middle of a key's life.
    #[test]
    fn fields_widen_without_losing_a_run() {
        let minute = Quota::new(u64::MAX, Duration::from_secs(60)).unwrap().with_slots(8);
        let month = Quota::new(u64::MAX, Duration::from_secs(30 * 86_400)).unwrap().with_slots(8);
        let mut log = charged(&minute, &[(1, 1), (8_000_000, 300), (16_000_000, 70_000)]);
        let costs = |log: &SlidingLog| (0..log.len).map(|at| log.read(at).cost).collect::<Vec<_>>();
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
        assert_eq!((log.oldest().stamp, log.newest), (border, border + 11 * step));
    }

    /// A full log under a longer window must not misread its older stamps.
    #[test]
    fn stamps_widen_also_when_a_full_log_is_restamped() {
        let minute = Quota::per_minute(2).with_slots(2);
        let month = Quota::new(2, Duration::from_secs(30 * 86_400)).unwrap().with_slots(2);
        let mut log = charged(&minute, &[(0, 1), (1, 1)]);
        let now = log.settle(&month, 7_200_000_000);
        log.charge(&month, now, 1);
        assert_eq!((log.oldest().stamp, log.newest, log.used), (0, now, 3));
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

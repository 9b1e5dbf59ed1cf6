//! Sliding log: every charge with its time, exact to the microsecond.
//!
//! A charge costs 4 to 14 bytes, most often 4: runs of (stamp, cost) lie packed in a ring whose fields are as narrow
//! as the window and the largest cost allow, and a lone run needs no ring at all. At most `slots` runs are held, one
//! more while a step is being filled; a limit above `slots` rounds stamps up to steps of window / slots, so a charge
//! may count that much too long and never too short. `lua/sliding_log.lua` will be its twin.

use super::{State, small_step_us};
use crate::quota::Quota;

/// 40 bytes, and the ring.
#[derive(Debug, Clone, Default)]
pub(crate) struct SlidingLog {
    /// Stamp of the newest run, in microseconds since the epoch. Meaningless while `used` is 0.
    newest: u64,
    /// Sum of the runs' costs.
    used: u64,
    /// The runs, oldest at `head`: stamp, then cost, little-endian. Empty while there was never more than one run.
    ring: Box<[u8]>,
    head: u16,
    /// Runs in the ring.
    len: u16,
    /// Runs that the ring has room for.
    room: u16,
    widths: Widths,
    /// Bits of the step that `newest` was rounded up to: it may lie that far ahead of the time that it was made.
    ahead_bits: u8,
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

/// Runs of the first ring. A key that comes twice often comes four times.
const FIRST_ROOM: u16 = 4;

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
        while self.oldest().stamp <= horizon {
            self.pop();
        }
        now
    }

    /// Stamps are times, so they mean the same under any window.
    fn adopt(&mut self, _quota: &Quota, _now: u64) {}

    #[inline]
    fn used(&self, _quota: &Quota, _now: u64) -> u64 {
        self.used
    }

    #[inline]
    fn sinks_us(&self, quota: &Quota, now: u64, room: u64) -> u64 {
        let stamp = if room == 0 { self.newest } else { self.frees(self.used - room) };
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
        if self.used == 0 && self.room == 0 {
            self.newest = stamp;
        } else if self.used > 0 && stamp <= self.newest {
            self.add_to_newest(cost);
        } else if self.runs() >= most_runs(quota) {
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
        while self.room > 0 && rest > 0 {
            let oldest = self.oldest();
            if oldest.cost > rest {
                self.write(0, Run { cost: oldest.cost - rest, ..oldest });
                self.used -= rest;
                return given;
            }
            rest -= oldest.cost;
            self.pop();
        }
        self.used -= rest;
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
    /// Bytes that the log holds outside the value itself.
    #[cfg(test)]
    pub(crate) fn heap_bytes(&self) -> usize {
        self.ring.len()
    }

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

    fn runs(&self) -> u16 {
        if self.room == 0 { u16::from(self.used > 0) } else { self.len }
    }

    /// The oldest run. There is one.
    #[inline]
    fn oldest(&self) -> Run {
        if self.room == 0 { Run { stamp: self.newest, cost: self.used } } else { self.read(0) }
    }

    /// Drops the oldest run. It is in the ring: a lone run goes by [`clear`](Self::clear).
    #[inline]
    fn pop(&mut self) {
        self.used -= self.read(0).cost;
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
        if self.room == 0 {
            return;
        }
        let newest = self.read(self.len - 1);
        let run = Run { cost: newest.cost + cost, ..newest };
        let needed = cost_bytes(run.cost);
        if needed > self.widths.cost() {
            self.rebuild(self.room, Widths::new(self.widths.stamp(), needed));
        }
        self.write(self.len - 1, run);
    }

    fn restamp_newest(&mut self, quota: &Quota, stamp: u64) {
        if self.room > 0 {
            let needed = stamp_bytes(quota);
            if needed > self.widths.stamp() {
                self.rebuild(self.room, Widths::new(needed, self.widths.cost()));
            }
            let newest = self.read(self.len - 1);
            self.write(self.len - 1, Run { stamp, ..newest });
        }
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

    /// Room for one more run: twice as much as before, but no more than the limit can fill.
    #[cold]
    fn make_room(&mut self, quota: &Quota, mut widths: Widths) {
        let lone = (self.room == 0 && self.used > 0).then_some(Run { stamp: self.newest, cost: self.used });
        if let Some(run) = lone {
            widths = Widths::new(widths.stamp(), widths.cost().max(cost_bytes(run.cost)));
        }
        let most = most_runs(quota);
        let fillable = u16::try_from(quota.limit()).unwrap_or(most).min(most);
        let needed = self.runs() + 1;
        let doubled = self.room.saturating_mul(2).max(FIRST_ROOM);
        let room = if needed <= self.room {
            self.room
        } else if needed <= fillable {
            doubled.min(fillable)
        } else {
            doubled.min(most).max(needed)
        };
        self.rebuild(room, widths);
        if let Some(run) = lone {
            self.len = 1;
            self.write(0, run);
        }
    }

    /// Moves the runs to a ring of other measures.
    #[cold]
    fn rebuild(&mut self, room: u16, widths: Widths) {
        let mut next = Self {
            ring: vec![0; usize::from(room) * widths.run()].into_boxed_slice(),
            head: 0,
            room,
            widths,
            ..*self
        };
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
        let stamp_bytes = usize::from(self.widths.stamp());
        let low = read_uint(&self.ring[offset..offset + stamp_bytes]);
        let mask = u64::MAX >> (64 - 8 * stamp_bytes);
        // A clock that went back to the epoch would put old runs before it.
        let stamp = self.newest.saturating_sub(self.newest.wrapping_sub(low) & mask);
        let cost = match usize::from(self.widths.cost()) {
            0 => 1,
            bytes => read_uint(&self.ring[offset + stamp_bytes..offset + stamp_bytes + bytes]),
        };
        Run { stamp, cost }
    }

    #[inline]
    fn write(&mut self, at: u16, run: Run) {
        debug_assert!(cost_bytes(run.cost) <= self.widths.cost(), "a cost is cut");
        let offset = self.offset(at);
        let stamp_bytes = usize::from(self.widths.stamp());
        write_uint(&mut self.ring[offset..offset + stamp_bytes], run.stamp);
        if self.widths.cost() > 0 {
            let cost = offset + stamp_bytes;
            write_uint(&mut self.ring[cost..cost + usize::from(self.widths.cost())], run.cost);
        }
    }
}

/// A little-endian number of 1, 2, 4, 6 or 8 bytes.
#[inline]
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

#[inline]
fn write_uint(bytes: &mut [u8], value: u64) {
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
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
        assert_eq!(log.heap_bytes(), 400);
        assert_eq!(std::mem::size_of::<SlidingLog>(), 40);
    }

    /// Most keys of a real service are seen once; they must not pay for a ring.
    #[test]
    fn a_lone_run_needs_no_ring_whatever_its_cost() {
        let quota = Quota::per_minute(1_000_000);
        let log = charged(&quota, &[(120_000_000, 70_000), (120_000_000, 5)]);
        assert_eq!((log.used, log.heap_bytes()), (70_005, 0));
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

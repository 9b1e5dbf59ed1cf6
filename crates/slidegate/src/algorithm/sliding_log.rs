//! Sliding log: every charge with its time, exact to the microsecond.
//!
//! A charge costs 4 to 14 bytes, most often 4: runs of (stamp, cost) lie packed in a ring whose fields are as narrow
//! as the window and the largest cost allow, and a lone run needs no ring at all. At most `slots` runs are held, one
//! more while a step is being filled; a limit above `slots` rounds stamps up to steps of window / slots, so a charge
//! may count that much too long and never too short. `lua/sliding_log.lua` will be its twin.

use super::{State, small_step_us};
use crate::quota::Quota;

/// 40 bytes, and the ring.
#[derive(Debug, Default)]
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
    /// Bytes of a stamp in the ring: its low 4 or 6. The whole stamp follows from `newest`, as all the runs lie within
    /// one window of it.
    stamp_bytes: u8,
    /// Bytes of a cost in the ring: 0 (every cost is 1), 1, 2, 4 or 8.
    cost_bytes: u8,
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
        // A stamp lies less than a step ahead of the time that it was made.
        let earliest = self.newest.saturating_sub(quota.step_us() - 1);
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
            self.restamp_newest(stamp);
            self.add_to_newest(cost);
        } else {
            self.push(quota, Run { stamp, cost });
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
        if cost_bytes(run.cost) > self.cost_bytes {
            self.rebuild(self.room, self.stamp_bytes, cost_bytes(run.cost));
        }
        self.write(self.len - 1, run);
    }

    fn restamp_newest(&mut self, stamp: u64) {
        if self.room > 0 {
            let newest = self.read(self.len - 1);
            self.write(self.len - 1, Run { stamp, ..newest });
        }
        self.newest = stamp;
    }

    #[inline]
    fn push(&mut self, quota: &Quota, run: Run) {
        let stamp_bytes = stamp_bytes(quota).max(self.stamp_bytes);
        let cost_bytes = cost_bytes(run.cost).max(self.cost_bytes);
        if self.len == self.room || stamp_bytes != self.stamp_bytes || cost_bytes != self.cost_bytes {
            self.make_room(quota, stamp_bytes, cost_bytes);
        }
        self.newest = run.stamp;
        self.len += 1;
        self.write(self.len - 1, run);
    }

    /// Room for one more run: twice as much as before, but no more than the limit can fill.
    #[cold]
    fn make_room(&mut self, quota: &Quota, stamp_bytes: u8, mut cost_bytes: u8) {
        let lone = (self.room == 0 && self.used > 0).then_some(Run { stamp: self.newest, cost: self.used });
        if let Some(run) = lone {
            cost_bytes = cost_bytes.max(self::cost_bytes(run.cost));
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
        self.rebuild(room, stamp_bytes, cost_bytes);
        if let Some(run) = lone {
            self.len = 1;
            self.write(0, run);
        }
    }

    /// Moves the runs to a ring of other measures.
    #[cold]
    fn rebuild(&mut self, room: u16, stamp_bytes: u8, cost_bytes: u8) {
        let bytes = usize::from(room) * usize::from(stamp_bytes + cost_bytes);
        let mut next = Self {
            newest: self.newest,
            used: self.used,
            ring: vec![0; bytes].into_boxed_slice(),
            head: 0,
            len: self.len,
            room,
            stamp_bytes,
            cost_bytes,
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
        at as usize * usize::from(self.stamp_bytes + self.cost_bytes)
    }

    #[inline]
    fn read(&self, at: u16) -> Run {
        let offset = self.offset(at);
        let stamp_bytes = usize::from(self.stamp_bytes);
        let low = read_uint(&self.ring[offset..offset + stamp_bytes]);
        let mask = u64::MAX >> (64 - 8 * stamp_bytes);
        let stamp = self.newest.wrapping_sub(self.newest.wrapping_sub(low) & mask);
        let cost = match usize::from(self.cost_bytes) {
            0 => 1,
            bytes => read_uint(&self.ring[offset + stamp_bytes..offset + stamp_bytes + bytes]),
        };
        Run { stamp, cost }
    }

    #[inline]
    fn write(&mut self, at: u16, run: Run) {
        debug_assert!(cost_bytes(run.cost) <= self.cost_bytes, "a cost is cut");
        let offset = self.offset(at);
        let stamp_bytes = usize::from(self.stamp_bytes);
        write_uint(&mut self.ring[offset..offset + stamp_bytes], run.stamp);
        if self.cost_bytes > 0 {
            let cost = offset + stamp_bytes;
            write_uint(&mut self.ring[cost..cost + usize::from(self.cost_bytes)], run.cost);
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
        assert_eq!((costs(&log), log.cost_bytes, log.stamp_bytes), (vec![1, 300, 70_000], 4, 4));
        let now = log.settle(&month, 50_000_000);
        log.charge(&month, now, 1 << 40);
        assert_eq!((costs(&log), log.cost_bytes, log.stamp_bytes), (vec![1, 300, 70_000, 1 << 40], 8, 6));
        assert_eq!(log.used, 70_301 + (1 << 40));
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

//! Server time: estimates a server's clock, so that a call can carry its deadline in server time,
//! and detects clock jumps.
//!
//! A reply carries the server's time at some moment between sending the call and receiving the
//! reply. That bounds the difference of both clocks from both sides, however slow the network. If
//! the bounds of two replies differ by more than clocks drift, the server's clock jumped, or
//! another server with another clock replied.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slidegate::clock::Timestamp;
use slidegate::store::ClockJumps;

/// The servers' clocks by slot.
#[derive(Debug)]
pub(crate) struct ServerTimes {
    /// One per slot. Calls for different slots do not wait for each other.
    clocks: Box<[Mutex<Option<Clock>>]>,
    jumps: Mutex<Jumps>,
}

/// The difference between a server's clock and ours.
#[derive(Debug, Clone, Copy)]
struct Clock {
    /// Server time minus ours in microseconds: the lower bound,
    least: i64,
    /// and the upper bound.
    most: i64,
    /// When the bounds were last confirmed, by our clock.
    at: i64,
    /// When a jump was last detected. Calls sent before may report the time before it.
    since: i64,
    /// Whether to ask the server for its time, because a reply was inconsistent.
    is_doubted: bool,
}

/// History of clock jumps.
#[derive(Debug, Default)]
struct Jumps {
    counts: ClockJumps,
    /// The last jump in each direction: its size in microseconds, and the server. Backward, then
    /// forward.
    last: [Option<(i64, String)>; 2],
    /// The last jumps and when they were noticed, by our clock. A server holds many slots, each of
    /// which shows the jump.
    recent: VecDeque<(i64, i64)>,
}

/// A smaller change of the difference, in microseconds, is not a jump: NTP rarely steps a clock by
/// less.
const TOLERANCE_US: i64 = 50_000;
/// How far two clocks may drift apart, in millionths: what a daemon that corrects a clock by
/// slewing usually keeps to.
const DRIFT_PPM: i64 = 500;
/// Time for a reply to arrive before the deadline, in microseconds: no call may charge after the
/// deadline minus this.
const WAY_BACK_US: i64 = 1000;
/// Number of remembered jumps, so that the slots of one server count a jump once.
const MOST_RECENT: usize = 16;

impl ServerTimes {
    /// `slots`: the total of all servers.
    pub(crate) fn new(slots: usize) -> Self {
        Self { clocks: (0..slots).map(|_| Mutex::default()).collect(), jumps: Mutex::default() }
    }

    /// The latest time of this slot's server that surely is not past `deadline` here; `None` before
    /// its first reply, and while its clock is in doubt.
    pub(crate) fn latest(&self, slot: u16, deadline: Timestamp) -> Option<u64> {
        let least = self.clock(slot).filter(|known| !known.is_doubted)?.least;
        let latest = signed(deadline).saturating_add(least).saturating_sub(WAY_BACK_US);
        Some(u64::try_from(latest).unwrap_or(0))
    }

    /// Records the server time in a reply to a call sent no earlier than `sent`. `node` is the
    /// server.
    pub(crate) fn observe_time(
        &self,
        slot: u16,
        server_us: u64,
        (sent, arrived): (Timestamp, Timestamp),
        node: impl FnOnce() -> String,
    ) {
        let server = i64::try_from(server_us).unwrap_or(i64::MAX);
        let (sent, arrived) = (signed(sent), signed(arrived));
        let (least, most) = (server.saturating_sub(arrived), server.saturating_sub(sent));
        let mut clock = self.clock(slot);
        let Some(known) = *clock else {
            *clock = Some(Clock { least, most, at: arrived, since: arrived, is_doubted: false });
            return;
        };
        if sent < known.since {
            return;
        }
        let drift = drift(arrived - known.at);
        // The known bounds, widened by drift.
        let (low, high) = (known.least - drift, known.most + drift);
        let at = arrived.max(known.at);
        if least <= high && most >= low {
            let (least, most, since) = (least.max(low), most.min(high), known.since);
            *clock = Some(Clock { least, most, at, since, is_doubted: false });
            return;
        }
        let has_jumped = least > high + TOLERANCE_US || most < low - TOLERANCE_US;
        let since = if has_jumped { arrived } else { known.since };
        *clock = Some(Clock { least, most, at, since, is_doubted: false });
        if has_jumped {
            let uncertainty = TOLERANCE_US + drift + (arrived - sent) + (known.most - known.least);
            self.jumps().count(least - known.least, arrived, (known.at, uncertainty), node);
        }
    }

    /// A reply could not be read: if the clock was set back, the call had the calendar of another time.
    pub(crate) fn doubt(&self, slot: u16) {
        if let Some(known) = &mut *self.clock(slot) {
            known.is_doubted = true;
        }
    }

    /// The jumps that were seen so far.
    pub(crate) fn counts(&self) -> ClockJumps {
        self.jumps().counts
    }

    /// The last jump ahead or back: its size in microseconds, and the server.
    pub(crate) fn last(&self, forward: bool) -> Option<(i64, String)> {
        self.jumps().last[usize::from(forward)].clone()
    }

    fn clock(&self, slot: u16) -> MutexGuard<'_, Option<Clock>> {
        self.clocks[usize::from(slot)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jumps(&self) -> MutexGuard<'_, Jumps> {
        self.jumps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Our clock at a time, in microseconds.
fn signed(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

impl Jumps {
    /// A slot that was last heard of at `heard` shows a jump now, whose size is known but for the
    /// uncertainty. It is the one that another slot has shown since then, if both are of one size.
    fn count(&mut self, us: i64, now: i64, (heard, uncertainty): (i64, i64), node: impl FnOnce() -> String) {
        let is_known = |(size, noticed): &(i64, i64)| *noticed >= heard && (us - size).abs() <= uncertainty;
        if self.recent.iter().any(is_known) {
            return;
        }
        self.recent.truncate(MOST_RECENT - 1);
        self.recent.push_front((us, now));
        let forward = us > 0;
        let count = if forward { &mut self.counts.forward } else { &mut self.counts.backward };
        *count += 1;
        self.counts.last_us = us;
        self.last[usize::from(forward)] = Some((us, node()));
    }
}

/// Maximum drift of clocks in this time; 0 if replies overtook each other.
fn drift(elapsed_us: i64) -> i64 {
    elapsed_us.max(0) / 1_000_000 * DRIFT_PPM + DRIFT_PPM
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The clock of a server that is a second ahead of ours, unless it is moved.
    struct Server {
        times: ServerTimes,
        ahead_ms: i64,
    }

    impl Server {
        fn new(slots: usize) -> Self {
            Self { times: ServerTimes::new(slots), ahead_ms: 1000 }
        }

        fn at(&self, ms: u64) -> Timestamp {
            Timestamp::EPOCH + Duration::from_millis(ms)
        }

        /// A call of slot 0 whose script ran half-way between.
        fn call(&self, sent: u64, arrived: u64) {
            self.call_for(0, sent, arrived);
        }

        fn call_for(&self, slot: u16, sent: u64, arrived: u64) {
            let ran = i64::try_from(u64::midpoint(sent, arrived)).unwrap();
            let server_us = u64::try_from((ran + self.ahead_ms) * 1000).unwrap();
            self.times
                .observe_time(slot, server_us, (self.at(sent), self.at(arrived)), || "10.0.0.5:6379".into());
        }

        fn counts(&self) -> (u64, u64) {
            let ClockJumps { forward, backward, .. } = self.times.counts();
            (forward, backward)
        }
    }

    /// A call that is carried out after its caller gave up has charged somebody for nothing.
    #[test]
    fn a_deadline_is_never_later_on_the_servers_clock_than_on_ours() {
        let mut server = Server::new(1);
        assert_eq!(server.times.latest(0, server.at(50)), None);
        for (sent, arrived) in [(10, 16), (20, 22), (30, 48)] {
            server.call(sent, arrived);
        }
        let latest = server.times.latest(0, server.at(100)).unwrap();
        // The best reply took a millisecond back.
        assert!((1_097_000..=1_099_000).contains(&latest), "{latest}");
        // Set back by half a second: believed at once.
        server.ahead_ms = 500;
        server.call(50, 52);
        assert_eq!(server.times.latest(0, server.at(100)), Some(598_000));
        assert_eq!(server.counts(), (0, 1));
    }

    /// A forward jump frees whole limits at once; an operator without a warning looks for the cause
    /// in their traffic.
    #[test]
    fn jumps_ahead_and_back_are_counted_once_each_with_their_size() {
        let mut server = Server::new(1);
        server.call(0, 2);
        server.ahead_ms += 70_000;
        server.call(10, 12);
        server.call(20, 22);
        assert_eq!(server.counts(), (1, 0));
        assert_eq!(server.times.counts().last_us, 70_000_000);
        assert_eq!(server.times.last(true), Some((70_000_000, "10.0.0.5:6379".to_owned())));
        server.ahead_ms -= 60;
        server.call(30, 32);
        assert_eq!(server.counts(), (1, 1));
        assert_eq!(server.times.counts().last_us, -60_000);
        // Ten seconds of silence do not hide one of 70 ms.
        server.ahead_ms += 70;
        server.call(10_000, 10_002);
        assert_eq!(server.counts(), (2, 1));
    }

    /// An alarm at every slow reply would be switched off, and with it the one that matters.
    #[test]
    fn slow_replies_drift_and_corrections_by_slewing_are_no_jumps() {
        let mut server = Server::new(1);
        let mut now = 0;
        for (round, takes) in [1, 200, 1, 3_000, 2, 60, 500, 1].into_iter().cycle().take(400).enumerate() {
            server.call(now, now + takes);
            now += takes + 10;
            // A millisecond in four seconds, as while a daemon corrects the clock.
            server.ahead_ms += i64::from(round % 8 == 7);
        }
        // An hour of silence, and clocks that are 100 millionths apart.
        server.ahead_ms += 360;
        server.call(now + 3_600_000, now + 3_600_001);
        assert_eq!(server.counts(), (0, 0));
    }

    /// Calls are in flight when a clock jumps: their replies tell the time of before, and are no
    /// jump back.
    #[test]
    fn replies_that_were_overtaken_by_a_jump_are_not_jumps() {
        let mut server = Server::new(1);
        server.call(0, 2);
        server.ahead_ms += 10_000;
        server.call(10, 12);
        server.ahead_ms -= 10_000;
        server.call(9, 14);
        server.ahead_ms += 10_000;
        server.call(15, 17);
        assert_eq!(server.counts(), (1, 0));
    }

    /// A cluster's node holds thousands of slots; one jump of its clock is one.
    #[test]
    fn all_slots_of_a_server_show_one_jump() {
        let mut server = Server::new(100);
        (0..100).for_each(|slot| server.call_for(slot, u64::from(slot), u64::from(slot) + 1));
        for jumps in 1..=3 {
            server.ahead_ms += 5_000;
            let now = jumps * 1_000;
            (0..100).for_each(|slot| server.call_for(slot, now + u64::from(slot), now + u64::from(slot) + 1));
            assert_eq!(server.counts(), (jumps, 0));
        }
    }
}

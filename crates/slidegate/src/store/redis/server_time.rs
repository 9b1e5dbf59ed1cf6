//! Server time: what a server's clock surely shows at an instant of ours, so that a call can say until when it is wanted.
//!
//! A reply carries the server's time at some moment before it arrived. So its difference to our clock at arrival is never
//! more than the true one, and a deadline computed from it is never later than meant.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use tokio::time::Instant;

/// The clocks of the servers, by the slots that they hold.
#[derive(Debug)]
pub(crate) struct ServerTimes {
    start: Instant,
    /// Server time less ours in microseconds; [`UNKNOWN`] before the first reply.
    offsets: Box<[AtomicI64]>,
    set_back: AtomicU64,
}

const UNKNOWN: i64 = i64::MIN;
/// A reply whose difference is this much smaller than those before it, in microseconds, comes from a clock that was set
/// back, not from a slow network.
const SET_BACK_US: i64 = 50_000;
/// How much of the way the known difference moves with each reply that shows a smaller one: clocks drift apart slowly.
const DRIFT: i64 = 1024;
/// A call is wanted for so much less than its deadline, in microseconds: an answer on the way back is of no use later.
const WAY_BACK_US: i64 = 1000;

impl ServerTimes {
    /// For servers that hold so many slots in all.
    pub(crate) fn new(slots: usize, start: Instant) -> Self {
        Self {
            start,
            offsets: (0..slots).map(|_| AtomicI64::new(UNKNOWN)).collect(),
            set_back: AtomicU64::new(0),
        }
    }

    /// The latest time of the server of this slot at which it surely is not past `deadline` here; `None` before it was heard.
    pub(crate) fn latest(&self, slot: u16, deadline: Instant) -> Option<u64> {
        let offset = self.offsets[usize::from(slot)].load(Ordering::Relaxed);
        let latest = self.ours(deadline).saturating_add(offset).saturating_sub(WAY_BACK_US);
        (offset != UNKNOWN).then(|| u64::try_from(latest).unwrap_or(0))
    }

    /// A reply with this server time has arrived.
    pub(crate) fn heard(&self, slot: u16, server_us: u64, arrived: Instant) {
        let seen = i64::try_from(server_us).unwrap_or(i64::MAX) - self.ours(arrived);
        let offset = &self.offsets[usize::from(slot)];
        let known = offset.load(Ordering::Relaxed);
        let next = if known == UNKNOWN || seen >= known {
            seen
        } else if known.saturating_sub(seen) > SET_BACK_US {
            self.set_back.fetch_add(1, Ordering::Relaxed);
            seen
        } else {
            known - (known - seen) / DRIFT
        };
        offset.store(next, Ordering::Relaxed);
    }

    /// How often a clock was seen to have been set back.
    pub(crate) fn set_back(&self) -> u64 {
        self.set_back.load(Ordering::Relaxed)
    }

    /// Our clock at an instant, in microseconds.
    fn ours(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.start).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A call that is carried out after its caller gave up has charged somebody for nothing.
    #[tokio::test(start_paused = true)]
    async fn a_deadline_is_never_later_on_the_servers_clock_than_on_ours() {
        let start = crate::time::instant();
        let times = ServerTimes::new(1, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(times.latest(0, at(50)), None);
        // The server's clock runs a second ahead; replies took 3, 1 and 9 ms to arrive.
        for (sent, arrived) in [(10, 13), (20, 21), (30, 39)] {
            times.heard(0, (1000 + sent) * 1000, at(arrived));
        }
        let latest = times.latest(0, at(100)).unwrap();
        assert!((1_098_000 - 20..=1_099_000).contains(&latest), "{latest}");
        // Set back by half a second: believed at once.
        times.heard(0, 540_000, at(41));
        assert_eq!(times.latest(0, at(100)), Some(598_000));
    }
}

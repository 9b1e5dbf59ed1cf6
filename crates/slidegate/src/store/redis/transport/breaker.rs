//! The breaker: stops calling a node that fails or is slow, and finds out when it is well again.
//!
//! Closed, every call passes. Open, one probe passes each [`PROBE_US`]; three successes in a row close it. It holds no
//! clock: times are passed in, in microseconds of any clock that does not run back.

/// Failures in a row that open it.
const STREAK: u32 = 5;
/// Calls within [`SECONDS`] that say enough for a share to be taken of them.
const ENOUGH_CALLS: u32 = 20;
/// The seconds looked back on.
const SECONDS: usize = 5;
/// Time between probes.
const PROBE_US: u64 = 100_000;
/// Successes in a row that close it.
const CLOSING: u8 = 3;
const SECOND_US: u64 = 1_000_000;

/// A node's breaker.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    open: Option<Open>,
    /// Failures since the last success.
    streak: u32,
    /// The last seconds' calls, by second modulo [`SECONDS`].
    seconds: [Second; SECONDS],
}

#[derive(Debug)]
struct Open {
    /// From when the next probe may pass.
    probe_us: u64,
    /// Whether one has passed.
    probed: bool,
    /// Successes since it opened or since the last failure.
    successes: u8,
}

#[derive(Debug, Default, Clone, Copy)]
struct Second {
    /// Which second this is; others are forgotten.
    number: u64,
    calls: u32,
    failures: u32,
}

/// What a breaker does with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open,
    /// Calls are refused but for probes.
    HalfOpen,
}

impl Breaker {
    /// Whether a call may pass at `now_us`; `jitter_us` is added to the wait for the next probe.
    pub(super) fn admit(&mut self, now_us: u64, jitter_us: u64) -> bool {
        let Some(open) = &mut self.open else { return true };
        if now_us < open.probe_us {
            return false;
        }
        open.probe_us = now_us + PROBE_US + jitter_us;
        open.probed = true;
        true
    }

    /// A call was answered within its deadline.
    pub(super) fn success(&mut self, now_us: u64) {
        self.streak = 0;
        match &mut self.open {
            None => self.second(now_us).calls += 1,
            Some(open) => {
                open.successes += 1;
                if open.successes >= CLOSING {
                    *self = Self::default();
                }
            }
        }
    }

    /// A call failed or was not answered within its deadline; `jitter_us` is added to the wait for the first probe.
    pub(super) fn failure(&mut self, now_us: u64, jitter_us: u64) {
        if let Some(open) = &mut self.open {
            open.successes = 0;
            return;
        }
        self.streak += 1;
        let second = self.second(now_us);
        second.calls += 1;
        second.failures += 1;
        let (calls, failures) = self.recent(now_us);
        if self.streak >= STREAK || calls >= ENOUGH_CALLS && failures * 2 >= calls {
            let probe_us = now_us + PROBE_US + jitter_us;
            self.open = Some(Open { probe_us, probed: false, successes: 0 });
        }
    }

    pub(super) fn state(&self) -> BreakerState {
        match &self.open {
            None => BreakerState::Closed,
            Some(open) if open.probed => BreakerState::HalfOpen,
            Some(_) => BreakerState::Open,
        }
    }

    fn second(&mut self, now_us: u64) -> &mut Second {
        let number = now_us / SECOND_US;
        #[allow(clippy::cast_possible_truncation)] // below `SECONDS`
        let second = &mut self.seconds[(number % SECONDS as u64) as usize];
        if second.number != number {
            *second = Second { number, ..Second::default() };
        }
        second
    }

    /// Calls and failures of the last [`SECONDS`], the present one included.
    fn recent(&self, now_us: u64) -> (u32, u32) {
        let number = now_us / SECOND_US;
        let recent = self.seconds.iter().filter(|second| second.number + SECONDS as u64 > number);
        recent.fold((0, 0), |(calls, failures), second| {
            (calls.saturating_add(second.calls), failures.saturating_add(second.failures))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now_us: u64) -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..STREAK {
            assert!(breaker.admit(now_us, 0));
            breaker.failure(now_us, 0);
        }
        breaker
    }

    /// A dead node must cost its callers a few deadlines, not one each.
    #[test]
    fn five_failures_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        for _ in 0..4 {
            breaker.failure(0, 0);
        }
        breaker.success(0);
        for _ in 0..4 {
            breaker.failure(0, 0);
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.failure(0, 0);
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.admit(0, 0));
    }

    /// A node that fails every other call never fails five in a row.
    #[test]
    fn half_of_twenty_calls_within_five_seconds_open_it() {
        let mut breaker = Breaker::default();
        for call in 0..19 {
            if call % 2 == 0 { breaker.success(call * 200_000) } else { breaker.failure(call * 200_000, 0) }
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        breaker.failure(19 * 200_000, 0);
        assert_eq!(breaker.state(), BreakerState::Open);
    }

    /// Failures of the past say nothing about the node now.
    #[test]
    fn failures_older_than_five_seconds_are_forgotten() {
        let mut breaker = Breaker::default();
        for call in 0..19 {
            if call % 2 == 0 { breaker.failure(0, 0) } else { breaker.success(0) }
        }
        breaker.failure(5_000_000, 0);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    /// Without probes nothing would notice that the node is back; with many, they are the load again.
    #[test]
    fn one_probe_passes_every_hundred_milliseconds() {
        let mut breaker = opened(0);
        assert!(!breaker.admit(99_999, 0));
        assert!(breaker.admit(100_000, 7));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(!breaker.admit(200_006, 0));
        assert!(breaker.admit(200_007, 0));
    }

    /// One lucky answer of a struggling node must not send it everything again.
    #[test]
    fn three_successes_in_a_row_close_it() {
        let mut breaker = opened(0);
        breaker.success(100_000);
        breaker.success(200_000);
        breaker.failure(300_000, 0);
        breaker.success(400_000);
        breaker.success(500_000);
        assert_ne!(breaker.state(), BreakerState::Closed);
        breaker.success(600_000);
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.admit(600_000, 0));
        // Nothing of the bad time is left to open it again.
        breaker.failure(600_001, 0);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}

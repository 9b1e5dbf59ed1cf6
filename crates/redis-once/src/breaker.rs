//! Circuit breaker: stops calls to a node that fails or is slow, and probes whether it has
//! recovered.
//!
//! Closed: every call passes. Open: one probe passes every [`PROBE_US`], and three consecutive
//! successes close it. It reads no clock: callers pass times in microseconds of any monotonic
//! clock.

/// Consecutive failures that open it.
const STREAK: u32 = 5;
/// Minimum calls within [`SECONDS`] for the failure rate to count.
const ENOUGH_CALLS: u32 = 20;
/// Failure-rate window, in seconds.
const SECONDS: usize = 5;
/// Time between probes.
const PROBE_US: u64 = 100_000;
/// Consecutive successes that close it.
const CLOSING: u8 = 3;
const SECOND_US: u64 = 1_000_000;

/// The circuit breaker of one node.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    open: Option<Open>,
    /// Failures since the last success.
    streak: u32,
    /// Calls of the last seconds, indexed by second modulo [`SECONDS`].
    seconds: [Second; SECONDS],
}

#[derive(Debug)]
struct Open {
    /// Earliest time of the next probe.
    probe_us: u64,
    /// Whether a probe has passed.
    probed: bool,
    /// Successes since it opened, or since the last failure.
    successes: u8,
}

#[derive(Debug, Default, Clone, Copy)]
struct Second {
    /// The second counted here; older ones are discarded.
    number: u64,
    calls: u32,
    failures: u32,
}

/// State of a circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// All calls pass.
    Closed,
    /// Calls are rejected.
    Open,
    /// Only probes pass.
    HalfOpen,
}

impl Breaker {
    /// Whether a call may pass at `now_us`. `jitter_us` delays the next probe.
    pub(crate) fn admit(&mut self, now_us: u64, jitter_us: u64) -> bool {
        let Some(open) = &mut self.open else { return true };
        if now_us < open.probe_us {
            return false;
        }
        open.probe_us = now_us + PROBE_US + jitter_us;
        open.probed = true;
        true
    }

    /// Records a reply within the deadline.
    pub(crate) fn success(&mut self, now_us: u64) {
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

    /// Records a failure or timeout. `jitter_us` delays the first probe.
    pub(crate) fn failure(&mut self, now_us: u64, jitter_us: u64) {
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

    pub(crate) fn state(&self) -> BreakerState {
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

    /// Calls and failures of the last [`SECONDS`], including the current second.
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

    /// A dead node must cost a few deadlines in total, not one per call.
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

    /// A node that fails every other call never has five failures in a row.
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

    /// Old failures say nothing about the node's current state.
    #[test]
    fn failures_older_than_five_seconds_are_forgotten() {
        let mut breaker = Breaker::default();
        for call in 0..19 {
            if call % 2 == 0 { breaker.failure(0, 0) } else { breaker.success(0) }
        }
        breaker.failure(5_000_000, 0);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }

    /// Without probes the node would never be used again; too many probes would overload it.
    #[test]
    fn one_probe_passes_every_hundred_milliseconds() {
        let mut breaker = opened(0);
        assert!(!breaker.admit(99_999, 0));
        assert!(breaker.admit(100_000, 7));
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(!breaker.admit(200_006, 0));
        assert!(breaker.admit(200_007, 0));
    }

    /// One success of an overloaded node must not give it all traffic again.
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
        // Failures from before are discarded and cannot open it again.
        breaker.failure(600_001, 0);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}

//! Jitter: small random spans that keep many callers and instances from acting in step.
//!
//! The randomness is that of the standard library's hash keys: good enough to spread waits, and for nothing else.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// A number from 0 up to, not including, `bound`; 0 where that is 0.
pub(crate) fn below(bound: u64) -> u64 {
    KEYS.hash_one(DRAWN.fetch_add(1, Ordering::Relaxed)).checked_rem(bound).unwrap_or(0)
}

/// A span from `least` to `most`, both at most some minutes.
pub(crate) fn between(least: Duration, most: Duration) -> Duration {
    let width_us = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
    least + Duration::from_micros(below(width_us.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause outside its range would outlive a deadline or hammer a server.
    #[test]
    fn spans_stay_in_their_range_and_differ() {
        let (least, most) = (Duration::from_millis(5), Duration::from_millis(20));
        let spans: Vec<_> = (0..100).map(|_| between(least, most)).collect();
        assert!(spans.iter().all(|span| (least..=most).contains(span)));
        assert!(spans.iter().any(|span| *span != spans[0]));
        assert_eq!(between(least, least), least);
        assert_eq!(below(0), 0);
    }
}

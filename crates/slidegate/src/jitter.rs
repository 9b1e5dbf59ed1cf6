//! Jitter: small random durations that keep callers and instances from acting in step.
//!
//! Randomness comes from the standard library's hash keys. It is not suitable for secrets.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// A random number from 0 to `bound`, exclusive; 0 if `bound` is 0.
pub(crate) fn below(bound: u64) -> u64 {
    KEYS.hash_one(DRAWN.fetch_add(1, Ordering::Relaxed)).checked_rem(bound).unwrap_or(0)
}

/// A random duration from `least` to `most`, both at most some minutes.
pub(crate) fn between(least: Duration, most: Duration) -> Duration {
    let width_us = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
    least + Duration::from_micros(below(width_us.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pause out of range would exceed a deadline or overload a server.
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

//! Sampling: every decision at low rates, one in [`SPARSE`] above.
//!
//! Gaps between samples are random, so periodic traffic cannot evade sampling. Samples have weights
//! whose sum is correct on average. Racing threads may take one sample too many or too few, which
//! does not matter.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use slidegate::clock::Timestamp;

/// Maximum rate at which a thread samples every decision, per second: a sample costs under a
/// microsecond.
pub(super) const ALL_OF: u32 = 1000;
/// Above that rate, it samples one in this many.
pub(super) const SPARSE: u32 = 64;

#[derive(Debug, Default)]
pub(crate) struct Sampler {
    /// Decisions to skip before the next sample.
    gap: AtomicU32,
    /// Whether the next sample has the weight [`SPARSE`] instead of 1.
    sparse: AtomicU32,
    second: AtomicU64,
    /// Samples taken in that second.
    taken: AtomicU32,
    random: AtomicU64,
}

impl Sampler {
    /// The weight of this decision; 0 to skip it.
    #[inline]
    pub(crate) fn weigh(&self, at: Timestamp) -> u64 {
        let gap = self.gap.load(Relaxed);
        if gap > 0 {
            self.gap.store(gap - 1, Relaxed);
            return 0;
        }
        self.take(at)
    }

    fn take(&self, at: Timestamp) -> u64 {
        let weight = if self.sparse.load(Relaxed) == 0 { 1 } else { u64::from(SPARSE) };
        let second = at.as_micros() / 1_000_000;
        let taken =
            if self.second.swap(second, Relaxed) == second { self.taken.load(Relaxed) + 1 } else { 1 };
        self.taken.store(taken, Relaxed);
        let is_sparse = taken >= ALL_OF;
        self.sparse.store(is_sparse.into(), Relaxed);
        // Uniform from 0 to twice the mean.
        self.gap.store(if is_sparse { self.draw() % (2 * SPARSE - 1) } else { 0 }, Relaxed);
        weight
    }

    /// The upper half of a linear congruential generator (Knuth's MMIX).
    fn draw(&self) -> u32 {
        let next = self
            .random
            .load(Relaxed)
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random.store(next, Relaxed);
        u32::try_from(next >> 32).expect("half of the bits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Low traffic must be recorded in full: a sample of ten denials is useless.
    #[test]
    fn few_are_all_taken() {
        let sampler = Sampler::default();
        for second in 0..5 {
            for _ in 1..ALL_OF {
                assert_eq!(sampler.weigh(Timestamp::from_secs(second)), 1);
            }
        }
    }

    /// A busy server must not record every decision, and the totals must still be right.
    #[test]
    fn many_are_sampled_and_their_weights_add_up() {
        let sampler = Sampler::default();
        let weights: Vec<u64> = (0..1_000_000).map(|_| sampler.weigh(Timestamp::from_secs(7))).collect();
        let taken = weights.iter().filter(|weight| **weight > 0).count();
        assert!((15_000..18_500).contains(&taken), "{taken}");
        let sum: u64 = weights.iter().sum();
        assert!((970_000..1_030_000).contains(&sum), "{sum}");
        // Sampling restarts in the next second, after the gap.
        let next: u64 = (0..ALL_OF / 2).map(|_| sampler.weigh(Timestamp::from_secs(8))).sum();
        assert!((u64::from(ALL_OF / 2 - 2 * SPARSE)..u64::from(ALL_OF)).contains(&next), "{next}");
    }
}

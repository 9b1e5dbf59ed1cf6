//! Which decisions are looked at closely: all while there are few, one in [`SPARSE`] of those beyond.
//!
//! A gap between two that are taken is drawn at random, so that traffic in a rhythm cannot hide in it. What is taken
//! weighs as much as it stands for, so sums of weights are right on average. Two threads that meet may take one too many
//! or too few, which is the same.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use slidegate::Timestamp;

/// All are taken by a thread that has fewer than so many in a second: looking closely takes under a microsecond.
pub(super) const ALL_OF: u32 = 1000;
/// One of so many is taken beyond that.
pub(super) const SPARSE: u32 = 64;

#[derive(Debug, Default)]
pub(super) struct Sampler {
    /// How many are passed over before the next one.
    gap: AtomicU32,
    /// Whether the next one stands for [`SPARSE`], and not for itself.
    sparse: AtomicU32,
    second: AtomicU64,
    /// Taken in that second.
    taken: AtomicU32,
    random: AtomicU64,
}

impl Sampler {
    /// How many decisions this one stands for; 0 if it is passed over.
    #[inline]
    pub(super) fn weigh(&self, at: Timestamp) -> u64 {
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
        // From 0 to twice the mean.
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

    /// Who asks little must be seen in full: a sample of ten denials is none.
    #[test]
    fn few_are_all_taken() {
        let sampler = Sampler::default();
        for second in 0..5 {
            for _ in 1..ALL_OF {
                assert_eq!(sampler.weigh(Timestamp::from_secs(second)), 1);
            }
        }
    }

    /// A busy server must not look at every decision, and what it sees must still add up.
    #[test]
    fn many_are_sampled_and_their_weights_add_up() {
        let sampler = Sampler::default();
        let weights: Vec<u64> = (0..1_000_000).map(|_| sampler.weigh(Timestamp::from_secs(7))).collect();
        let taken = weights.iter().filter(|weight| **weight > 0).count();
        assert!((15_000..18_500).contains(&taken), "{taken}");
        let sum: u64 = weights.iter().sum();
        assert!((970_000..1_030_000).contains(&sum), "{sum}");
        // The next second begins anew, after the gap.
        let next: u64 = (0..ALL_OF / 2).map(|_| sampler.weigh(Timestamp::from_secs(8))).sum();
        assert!((u64::from(ALL_OF / 2 - 2 * SPARSE)..u64::from(ALL_OF)).contains(&next), "{next}");
    }
}

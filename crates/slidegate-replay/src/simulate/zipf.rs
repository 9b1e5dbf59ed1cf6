//! Zipf's law: the client of rank `k` sends in proportion to `1 / k^s`.
//!
//! Rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
//! monotone discrete distributions", 1996): constant time and memory for any number of clients.

use rand_chacha::ChaCha8Rng;

use super::random::{below, unit};

/// A distribution over the ranks from 1.
#[derive(Debug, Clone)]
pub(super) struct Zipf {
    keys: u64,
    exponent: f64,
    /// The integral at 1.5, less 1, and at the last rank and a half.
    first: f64,
    last: f64,
    /// Ranks this near to the inverse are accepted at once.
    sure: f64,
}

impl Zipf {
    /// `keys` is at least 1. An exponent of 0 is uniform.
    pub(super) fn new(keys: u64, exponent: f64) -> Self {
        let mut zipf = Self { keys, exponent, first: 0.0, last: 0.0, sure: 0.0 };
        #[allow(clippy::cast_precision_loss)] // at most ten million
        let keys = keys as f64;
        zipf.first = zipf.integral(1.5) - 1.0;
        zipf.last = zipf.integral(keys + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    pub(super) fn sample(&self, random: &mut ChaCha8Rng) -> u64 {
        if self.exponent == 0.0 {
            return 1 + below(random, self.keys);
        }
        loop {
            let area = self.last + unit(random) * (self.first - self.last);
            let at = self.inverse(area);
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // clamped
            let rank = ((at + 0.5) as u64).clamp(1, self.keys);
            #[allow(clippy::cast_precision_loss)] // at most ten million
            let near = rank as f64;
            if near - at <= self.sure || area >= self.integral(near + 0.5) - self.density(near) {
                return rank;
            }
        }
    }

    /// `x^-s`
    fn density(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// The integral of the density from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let power = (1.0 - self.exponent) * log;
        let ratio = if power.abs() > 1e-8 { libm::expm1(power) / power } else { 1.0 + power / 2.0 };
        ratio * log
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = (area * (1.0 - self.exponent)).max(-1.0);
        let ratio = if power.abs() > 1e-8 { libm::log1p(power) / power } else { 1.0 - power / 2.0 };
        libm::exp(ratio * area)
    }
}

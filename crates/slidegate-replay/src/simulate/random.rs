//! Random numbers in the forms that traffic needs.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

/// A number from 0 up to 1, in steps of 2^-53.
pub(super) fn unit(random: &mut ChaCha8Rng) -> f64 {
    #[allow(clippy::cast_precision_loss)] // 53 bits are exact
    let number = (random.next_u64() >> 11) as f64;
    number / (1_u64 << 53) as f64
}

/// A number below this one. The error of the multiplication is below 2^-40 for the numbers used
/// here.
pub(super) fn below(random: &mut ChaCha8Rng, most: u64) -> u64 {
    let product = u128::from(random.next_u64()) * u128::from(most);
    u64::try_from(product >> 64).unwrap_or(u64::MAX)
}

/// The wait for a random event that comes once per unit of time, on average.
pub(super) fn exponential(random: &mut ChaCha8Rng) -> f64 {
    -libm::log(1.0 - unit(random))
}

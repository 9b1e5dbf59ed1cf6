//! Division by a number known in advance: two multiplications instead of a division.
//!
//! Lemire, Kaser, Kurz, "Faster remainder by direct computation" (2019), theorem 1 with N = 64 and F = 128: with
//! c = ceil(2^128 / d), floor(c * n / 2^128) is floor(n / d) for every 64-bit n and d.

/// A divisor of at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Divisor {
    value: u64,
    /// ceil(2^128 / value), or 0 for a value of one, where it would not fit.
    inverse: u128,
}

impl Divisor {
    pub(crate) fn new(value: u64) -> Self {
        assert!(value > 0, "a quota divides by its window or its limit, never by zero");
        let inverse = if value == 1 { 0 } else { u128::MAX / u128::from(value) + 1 };
        Self { value, inverse }
    }

    /// floor(n / value).
    #[inline]
    pub(crate) fn floor(&self, n: u64) -> u64 {
        if self.inverse == 0 {
            return n;
        }
        let n = u128::from(n);
        let low = ((self.inverse & u128::from(u64::MAX)) * n) >> 64;
        let high = (self.inverse >> 64) * n;
        #[allow(clippy::cast_possible_truncation)] // at most n
        let quotient = ((low + high) >> 64) as u64;
        quotient
    }

    /// ceil(n / value).
    #[inline]
    pub(crate) fn ceil(&self, n: u64) -> u64 {
        let floor = self.floor(n);
        floor + u64::from(floor * self.value != n)
    }

    /// ceil(n / value) for wider numbers, at most `u64::MAX`.
    #[inline]
    pub(crate) fn ceil_wide(&self, n: u128) -> u64 {
        match u64::try_from(n) {
            Ok(n) => self.ceil(n),
            Err(_) => u64::try_from(n.div_ceil(u128::from(self.value))).unwrap_or(u64::MAX),
        }
    }

    /// The quotient and the remainder of a wider number; a quotient past `u64::MAX` is an error of the caller.
    #[inline]
    pub(crate) fn div_rem_wide(&self, n: u128) -> (u64, u64) {
        match u64::try_from(n) {
            Ok(n) => {
                let quotient = self.floor(n);
                (quotient, n - quotient * self.value)
            }
            Err(_) => {
                let value = u128::from(self.value);
                let quotient = u64::try_from(n / value).unwrap_or(u64::MAX);
                #[allow(clippy::cast_possible_truncation)] // less than the 64-bit divisor
                (quotient, (n % value) as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn edges() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            any::<u64>().prop_map(|n| n >> 33),
            (0u32..64, -2i64..3).prop_map(|(bits, off)| (1u64 << bits).wrapping_add_signed(off)),
            Just(u64::MAX)
        ]
    }

    proptest! {
        /// Every wait and every share of a window goes through this; one off is one request too many.
        #[test]
        fn it_divides_as_the_processor_does(n in edges(), d in edges()) {
            prop_assume!(d > 0);
            let divisor = Divisor::new(d);
            prop_assert_eq!(divisor.floor(n), n / d);
            prop_assert_eq!(divisor.ceil(n), n.div_ceil(d));
            prop_assert_eq!(divisor.ceil_wide(u128::from(n)), n.div_ceil(d));
            prop_assert_eq!(divisor.div_rem_wide(u128::from(n)), (n / d, n % d));
        }

        /// A burst of 2^64 over a long window does not fit 64 bits on the way.
        #[test]
        fn wide_numbers_divide_too(n in edges(), m in edges(), d in edges()) {
            prop_assume!(d > 0 && m <= d);
            let wide = u128::from(n) * u128::from(m);
            let divisor = Divisor::new(d);
            prop_assert_eq!(u128::from(divisor.ceil_wide(wide)), wide.div_ceil(u128::from(d)));
            let (quotient, rest) = divisor.div_rem_wide(wide);
            prop_assert_eq!(u128::from(quotient) * u128::from(d) + u128::from(rest), wide);
        }
    }
}

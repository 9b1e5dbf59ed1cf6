//! Division by an invariant number, as a multiplication.
//!
//! Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), figure
//! 4.1 with N = 64. Exact for every 64-bit number and divisor.

/// A divisor of at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Divisor {
    value: u64,
    /// floor(2^64 * (2^bits - value) / value) + 1, where bits = ceil(log2(value)).
    inverse: u64,
    /// 1, or 0 for a divisor of 1.
    first_shift: u8,
    /// bits - 1, or 0 for a divisor of 1.
    last_shift: u8,
}

impl Divisor {
    pub(crate) fn new(value: u64) -> Self {
        assert!(value > 0, "a quota divides by its window or its limit, never by zero");
        #[allow(clippy::cast_possible_truncation)] // at most 64
        let bits = (64 - (value - 1).leading_zeros()) as u8;
        let above = (1u128 << bits) - u128::from(value);
        #[allow(clippy::cast_possible_truncation)] // above is less than the value
        let inverse = ((above << 64) / u128::from(value)) as u64 + 1;
        Self { value, inverse, first_shift: bits.min(1), last_shift: bits.saturating_sub(1) }
    }

    /// floor(n / value).
    #[inline]
    pub(crate) fn floor(&self, n: u64) -> u64 {
        #[allow(clippy::cast_possible_truncation)] // the upper half
        let estimate = ((u128::from(self.inverse) * u128::from(n)) >> 64) as u64;
        (estimate + ((n - estimate) >> self.first_shift)) >> self.last_shift
    }

    /// ceil(n / value).
    #[inline]
    pub(crate) fn ceil(&self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.floor(n - 1) + 1 }
    }

    /// ceil(n / value) for 128-bit numbers, at most `u64::MAX`.
    #[inline]
    pub(crate) fn ceil_wide(&self, n: u128) -> u64 {
        match u64::try_from(n) {
            Ok(n) => self.ceil(n),
            Err(_) => u64::try_from(n.div_ceil(u128::from(self.value))).unwrap_or(u64::MAX),
        }
    }

    /// The quotient and the remainder.
    #[inline]
    pub(crate) fn div_rem(&self, n: u64) -> (u64, u64) {
        let quotient = self.floor(n);
        (quotient, n - quotient * self.value)
    }

    /// The quotient and the remainder of a 128-bit number. The quotient must fit in 64 bits.
    #[inline]
    pub(crate) fn div_rem_wide(&self, n: u128) -> (u64, u64) {
        match u64::try_from(n) {
            Ok(n) => self.div_rem(n),
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
        /// Every wait and every weighted counter uses this; an error of one admits one request too
        /// many.
        #[test]
        fn it_divides_as_the_processor_does(n in edges(), d in edges()) {
            prop_assume!(d > 0);
            let divisor = Divisor::new(d);
            prop_assert_eq!(divisor.floor(n), n / d);
            prop_assert_eq!(divisor.ceil(n), n.div_ceil(d));
            prop_assert_eq!(divisor.div_rem(n), (n / d, n % d));
            prop_assert_eq!(divisor.ceil_wide(u128::from(n)), n.div_ceil(d));
            prop_assert_eq!(divisor.div_rem_wide(u128::from(n)), (n / d, n % d));
        }

        /// A burst of 2^64 times a long window does not fit in 64 bits.
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

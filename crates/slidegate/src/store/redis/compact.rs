//! Compact values: what a counter under a usual window takes, in 12 bytes.
//!
//! Redis keeps a value of up to 12 bytes in an allocation of 32, and of up to 28 in one of 48. What does not fit,
//! stands in the wide form of layout 1. The scripts read and write it as well: docs/redis-layout.md says every byte.

use crate::quota::Algorithm;

/// Bytes of a compact value.
pub(crate) const BYTES: usize = 12;
/// The window's units, in microseconds: a second, a minute, an hour, a day. The first that counts the window wins.
const UNITS_US: [u64; 4] = [1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
/// Most units: 14 bits, beside the two for the unit.
const MOST_UNITS: u64 = (1 << 14) - 1;

/// The first byte of an algorithm's compact values: layout 2, and the algorithm's number.
pub(crate) fn tag(algorithm: Algorithm) -> Option<u8> {
    match algorithm {
        Algorithm::FixedWindow => Some(0x21),
        Algorithm::SlidingWindow => Some(0x22),
        Algorithm::TokenBucket | Algorithm::SlidingLog => None,
    }
}

/// What stands for a window: four times the count of its units, and the unit. None for a window that is no such count.
pub(crate) fn code(window_us: u64) -> Option<u64> {
    (0u64..).zip(UNITS_US).find_map(|(unit, us)| {
        let count = window_us / us;
        (window_us.is_multiple_of(us) && count <= MOST_UNITS).then_some(count * 4 + unit)
    })
}

/// The window that a code stands for, in microseconds; 0 for a code that stands for none.
pub(crate) fn window_us(code: u64) -> u64 {
    UNITS_US.iter().zip(0..).filter(|(_, unit)| code % 4 == *unit).map(|(us, _)| code / 4 * us).sum()
}

/// The first three bytes of a compact value under this window as a number; 0 where there is none.
pub(crate) fn head(algorithm: Algorithm, window: u64) -> u64 {
    match (tag(algorithm), code(window)) {
        (Some(tag), Some(code)) => u64::from(tag) | code << 8,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;

    /// A window that is read as another one forgets or keeps what it must not.
    #[test]
    fn a_code_stands_for_one_window_and_unusual_ones_have_none() {
        for (secs, stands) in [
            (1, Some(4)),
            (60, Some(240)),
            (3_600, Some(14_400)),
            (16_383, Some(65_532)),
            (16_384, None),
            (16_440, Some(274 * 4 + 1)),
            (86_400, Some(1_440 * 4 + 1)),
            (30 * 86_400, Some(720 * 4 + 2)),
            (366 * 86_400, Some(8_784 * 4 + 2)),
        ] {
            assert_eq!(code(secs * 1_000_000), stands, "{secs} s");
            assert_eq!(stands.map(window_us), stands.map(|_| secs * 1_000_000));
        }
        assert_eq!((code(1_000), code(1_000_001), code(1_500_000)), (None, None, None));
        assert!((0..4).all(|nothing| window_us(nothing) == 0));
        let longest = u64::try_from(Quota::MAX_WINDOW.as_micros()).unwrap();
        assert_eq!(head(Algorithm::SlidingWindow, longest), 0x22 | (8_784 * 4 + 2) << 8);
        assert_eq!(head(Algorithm::FixedWindow, 1_000), 0);
        assert_eq!(head(Algorithm::TokenBucket, longest), 0);
    }
}

//! Compact values: counters of a common window in 12 bytes.
//!
//! Redis stores a value of up to 12 bytes in an allocation of 32 bytes, and one of up to 28 in an
//! allocation of 48. Counters that do not fit are stored in the wide form of layout 1. The scripts
//! read and write the same form; docs/redis-layout.md documents every byte.

use slidegate::Calendar;

/// Bytes of a compact value.
pub(super) const BYTES: usize = 12;
/// Units of the window, in microseconds: second, minute, hour, day. The first one that divides the
/// window is used.
const UNITS_US: [u64; 4] = [1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
/// The maximum number of units: 14 bits, besides the two for the unit.
const MAX_UNITS: u64 = (1 << 14) - 1;

/// The code of a window: four times the number of its units, plus the unit. `None` if the window
/// has none.
pub(super) fn code(window_us: u64) -> Option<u64> {
    if window_us >= Calendar::LEAST_CODE {
        return None;
    }
    (0u64..).zip(UNITS_US).find_map(|(unit, us)| {
        let count = window_us / us;
        (window_us.is_multiple_of(us) && count <= MAX_UNITS).then_some(count * 4 + unit)
    })
}

/// The window of a code, in microseconds; 0 for an unused code.
pub(super) fn window_us(code: u64) -> u64 {
    UNITS_US.iter().zip(0..).filter(|(_, unit)| code % 4 == *unit).map(|(us, _)| code / 4 * us).sum()
}

/// The first three bytes of a compact value with this tag and window, as a number; 0 if there is no compact
/// form.
pub(super) fn head(tag: u8, window: u64) -> u64 {
    code(window).map_or(0, |code| u64::from(tag) | code << 8)
}

#[cfg(test)]
mod tests {
    use slidegate::Quota;

    use super::*;

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
        assert_eq!(head(0x22, longest), 0x22 | (8_784 * 4 + 2) << 8);
        assert_eq!(head(0x21, 1_000), 0);
    }
}

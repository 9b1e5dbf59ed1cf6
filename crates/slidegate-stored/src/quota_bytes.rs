//! Encoding of quotas in calls of the module's commands.
//!
//! 1 byte: the algorithm's letter in scripts; 6: window in microseconds; 7: limit; then for a log 2:
//! slots, and for a token bucket 7: burst. Little-endian.
//!
//! Calendar windows have the letter C, their code instead of the window, and after the limit 4
//! times 7: when a window begins, and when it and the next two end.

use slidegate::internal::QuotaFields;
use slidegate::{Algorithm, Calendar, Quota};

/// Bytes of the letter, the window and the limit.
const COMMON: usize = 14;

/// The letter of fixed windows by a calendar.
const CALENDAR: &[u8] = b"C";

/// The algorithm's letter in scripts and in the module's commands.
pub fn letter(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::SlidingLog => "L",
        Algorithm::SlidingWindow => "W",
        Algorithm::FixedWindow => "F",
        Algorithm::TokenBucket => "B",
        Algorithm::InFlight => "P",
    }
}

/// A quota, as the module decodes it.
pub fn quota_bytes(quota: &Quota) -> Vec<u8> {
    let QuotaFields { limit, slots, algorithm, .. } = quota.fields();
    let borders = quota.borders();
    let mut bytes = borders.map_or(letter(algorithm).as_bytes(), |_| CALENDAR).to_vec();
    bytes.extend_from_slice(&quota.window_code().to_le_bytes()[..6]);
    bytes.extend_from_slice(&limit.to_le_bytes()[..7]);
    match algorithm {
        Algorithm::SlidingLog => bytes.extend_from_slice(&slots.to_le_bytes()),
        Algorithm::TokenBucket => bytes.extend_from_slice(&quota.burst().to_le_bytes()[..7]),
        Algorithm::SlidingWindow | Algorithm::FixedWindow | Algorithm::InFlight => {}
    }
    for border in borders.into_iter().flatten() {
        bytes.extend_from_slice(&border.to_le_bytes()[..7]);
    }
    bytes
}

/// Bytes of a quota that begins with this letter.
pub(super) fn quota_length(first: u8) -> Option<usize> {
    let own = match first {
        b'L' => 2,
        b'B' => 7,
        b'W' | b'F' | b'P' => 0,
        b'C' => 28,
        _ => return None,
    };
    Some(COMMON + own)
}

/// Reads the quota of a rate. `None` if it is invalid, or its counts are above 2^53 - 1, the
/// maximum for scripts.
#[must_use]
pub fn quota_of(bytes: &[u8]) -> Option<Quota> {
    read_quota(bytes).filter(|quota| quota.algorithm() != Algorithm::InFlight)
}

/// Reads the quota of a rate, or a limit on requests in flight.
pub(super) fn read_quota(bytes: &[u8]) -> Option<Quota> {
    let number = |from: usize, to: usize| crate::write::number(&bytes[from..to]);
    if bytes.len() != quota_length(*bytes.first()?)? {
        return None;
    }
    let (window_us, limit) = (number(1, 7), number(7, COMMON));
    if bytes.starts_with(CALENDAR) {
        let borders = [number(14, 21), number(21, 28), number(28, 35), number(35, 42)];
        let is_valid = window_us >= Calendar::LEAST_CODE && borders.is_sorted_by(|one, next| one < next);
        let quota = Quota::new(limit, Quota::MAX_WINDOW).ok().filter(|_| limit <= Quota::MAX_COUNT)?;
        let quota = quota.with_algorithm(Algorithm::FixedWindow);
        return is_valid.then(|| quota.with_borders(window_us, borders));
    }
    let is_of = |one: &Algorithm| bytes.starts_with(letter(*one).as_bytes());
    let algorithm = Algorithm::ALL.into_iter().chain([Algorithm::InFlight]).find(is_of)?;
    let last = number(COMMON, bytes.len());
    let is_bucket = algorithm == Algorithm::TokenBucket;
    let burst = is_bucket.then_some(last);
    let slots = match algorithm {
        Algorithm::SlidingLog => u16::try_from(last).ok().filter(|slots| *slots < u16::MAX)?,
        _ => Quota::DEFAULT_SLOTS,
    };
    let is_countable = limit.max(burst.unwrap_or(0)) <= Quota::MAX_COUNT;
    let fields = QuotaFields { limit, window_us, burst, algorithm, slots, calendar: None };
    fields.quota().filter(|_| is_countable)
}

#[cfg(test)]
mod tests {

    use super::*;

    /// Anybody who may call the command may send anything.
    #[test]
    fn what_is_no_quota_is_refused() {
        let valid = quota_bytes(&Quota::per_minute(100));
        assert!(quota_of(&valid).is_some());
        for length in (0..valid.len()).chain([valid.len() + 1]) {
            let mut bytes = valid.clone();
            bytes.resize(length, 0);
            assert_eq!(quota_of(&bytes), None, "{length} bytes");
        }
        let with = |from: usize, part: &[u8]| {
            let mut bytes = valid.clone();
            bytes[from..from + part.len()].copy_from_slice(part);
            quota_of(&bytes)
        };
        assert_eq!(with(0, b"P"), None, "what is in flight has no usage");
        assert_eq!(with(1, &[0; 6]), None, "a window of 0");
        assert_eq!(with(1, &[0xFF; 6]), None, "a window above 366 days");
        assert_eq!(with(7, &[0xFF; 7]), None, "a limit that scripts cannot count");
        assert_eq!(with(14, &[0; 2]), None, "no slots");
        assert_eq!(with(14, &[0xFF; 2]), None, "too many slots");
    }
}

//! Encoding of quotas in calls of scripts and, after the algorithm's letter, of the module's commands.
//!
//! 6: window in microseconds, or the code of a calendar; 7: limit; then the algorithm's own
//! [fields](WireForm::own_fields). Little-endian. Lua unpacks them in the piece `quota` of the algorithm.

use slidegate::internal::{QuotaFields, State, for_algorithm};
use slidegate::{Algorithm, Quota};

use crate::write::{Bytes, Reader};

/// An algorithm in calls and replies.
pub trait WireForm: State {
    /// The algorithm's letter. Tickets use `C` and `Q` for something else.
    const LETTER: &'static str;
    /// The state as read from a reply.
    type Reply: State + Send + 'static;

    /// The fields of a quota after its limit.
    fn own_fields(quota: &Quota) -> Bytes;

    /// Reads the [own fields](Self::own_fields) of a quota. `None` if it is invalid.
    fn read_own_fields(common: QuotaFields, own: &mut Reader<'_>) -> Option<Quota>;

    /// The state of a key at this time from the numbers that a script replies.
    ///
    /// # Errors
    /// If no script replies them.
    fn of_numbers(quota: &Quota, settled: u64, numbers: &[u64]) -> Result<Self::Reply, String>;
}

/// The algorithm's letter in scripts and in the module's commands.
pub fn letter(algorithm: Algorithm) -> &'static str {
    for_algorithm!(algorithm, S => S::LETTER)
}

/// The algorithm with this letter.
pub fn algorithm_of(first: u8) -> Option<Algorithm> {
    let mut all = Algorithm::ALL.into_iter().chain([Algorithm::InFlight]);
    all.find(|one| letter(*one).as_bytes() == [first])
}

/// A quota, as scripts unpack it.
pub fn quota_bytes(quota: &Quota) -> Vec<u8> {
    let common = Bytes::default().with(quota.window_code(), 6).with(quota.limit(), 7);
    let own = for_algorithm!(quota.algorithm(), S => S::own_fields(quota));
    [&*common, &*own].concat()
}

/// A quota, as the module reads it.
pub fn lettered_quota(quota: &Quota) -> Vec<u8> {
    [letter(quota.algorithm()).as_bytes(), &quota_bytes(quota)].concat()
}

/// Reads the [lettered](lettered_quota) quota of a rate. `None` if it is invalid, or its counts are above
/// 2^53 - 1, the maximum for scripts.
#[must_use]
pub fn quota_of(bytes: &[u8]) -> Option<Quota> {
    let mut fields = Reader(bytes);
    let quota = read_quota(&mut fields)?;
    (fields.0.is_empty() && quota.algorithm() != Algorithm::InFlight).then_some(quota)
}

/// Reads the quota of a rate, or a limit on requests in flight.
pub(super) fn read_quota(fields: &mut Reader<'_>) -> Option<Quota> {
    let algorithm = algorithm_of(fields.byte()?)?;
    let (window_us, limit) = (fields.number(6)?, fields.count()?);
    let slots = Quota::DEFAULT_SLOTS;
    let common = QuotaFields { limit, window_us, algorithm, slots, ..QuotaFields::default() };
    for_algorithm!(algorithm, S => S::read_own_fields(common, fields))
}

#[cfg(test)]
mod tests {

    use super::*;

    /// Anybody who may call the command may send anything.
    #[test]
    fn what_is_no_quota_is_refused() {
        let valid = lettered_quota(&Quota::per_minute(100));
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
        assert_eq!(with(21, &[0; 2]), None, "no slots");
        assert_eq!(with(21, &[0xFF; 2]), None, "too many slots");
        assert_eq!(with(14, &[2]), None, "a step of other slots");
    }
}

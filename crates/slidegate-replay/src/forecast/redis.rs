//! What a key takes in Redis 7: its name, its value, and its entries in two hash tables.
//!
//! Sizes are those of a 64-bit build with jemalloc in classes of 16 bytes, as Debian and most
//! distributions have it. Redis' own jemalloc has classes of 8 bytes up to 128, so official images
//! take up to 24 bytes less for each key.

use slidegate::{Algorithm, Quota};

use super::charges::Charges;

/// `sg1:` before the name of the policy and a colon after it (docs/redis-layout.md).
const NAME_BYTES: u64 = 5;
/// The longest id that is stored as it is. A longer one is a `#` and 22 characters
/// (docs/redis-layout.md).
const MAX_PLAIN_BYTES: u64 = 64;
const HASHED_ID_BYTES: u64 = 23;
/// Bytes of the name of a policy and an id together, where they are not known.
const USUAL_NAME_BYTES: u64 = 28;
/// `robj` (server.h).
const OBJECT_BYTES: u64 = 16;
/// The longest value that is in one allocation with its object: `OBJ_ENCODING_EMBSTR_SIZE_LIMIT`
/// (object.c).
const MAX_EMBEDDED_BYTES: u64 = 44;
/// `sdshdr8`, which embedded values of any length have.
const EMBEDDED_HEADER_BYTES: u64 = 3;
/// `dictEntry` (dict.h): key, value, next. The table of expiry times has another, which shares the
/// name.
const ENTRY_BYTES: u64 = 24;
/// The links to the neighbours among the keys of a slot, in a cluster (`clusterDictEntryMetadata`,
/// cluster.h).
const CLUSTER_ENTRY_BYTES: u64 = 16;
/// A pointer in a hash table.
const BUCKET_BYTES: u64 = 8;
/// The smallest hash table: `DICT_HT_INITIAL_SIZE` (dict.h).
const MIN_BUCKETS: u64 = 4;

/// Bytes of values (docs/redis-layout.md).
const COMPACT_BYTES: u64 = 12;
const WIDE_FIXED_BYTES: u64 = 21;
const WIDE_SLIDING_BYTES: u64 = 28;
const BUCKET_VALUE_BYTES: u64 = 27;
const LOG_HEADER_BYTES: u64 = 48;
const HOLDS_HEADER_BYTES: u64 = 32;
const HOLD_BYTES: u64 = 30;
/// The units of windows that compact values have, in microseconds, and how many of one.
const UNITS_US: [u64; 4] = [1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
const MAX_UNITS: u64 = (1 << 14) - 1;
/// The usage that compact values hold.
const MAX_COMPACT_FIXED: u64 = 1 << 40;
const MAX_COMPACT_SLIDING: u64 = 1 << 20;

/// CPU time of Redis for one charged decision in a call of its own, in microseconds: the column
/// `CPU us` of bench/RESULTS.md, `Redis`, `Scripts`, limit 100 (Redis 7.0.15, AMD EPYC).
pub(super) fn cpu_us(algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::SlidingWindow => 5.60,
        Algorithm::FixedWindow => 5.44,
        Algorithm::TokenBucket => 7.17,
        // The log, and the most expensive for what is to come.
        _ => 8.42,
    }
}

/// The sizes of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct RedisKey {
    name_bytes: u64,
    value_bytes: u64,
}

impl RedisKey {
    /// `policy_bytes` and `id_bytes` are the lengths of the policy's name and the key's id.
    pub(super) fn new(quota: &Quota, policy_bytes: u64, id_bytes: u64, charges: Charges) -> Self {
        let id_bytes = if id_bytes > MAX_PLAIN_BYTES { HASHED_ID_BYTES } else { id_bytes };
        let used = charges.charges.saturating_mul(charges.cost);
        let value_bytes = value_bytes(quota, used, charges.entries(quota));
        Self { name_bytes: NAME_BYTES + policy_bytes + id_bytes, value_bytes }
    }

    /// Bytes as allocated, without the hash tables themselves.
    pub(super) fn bytes(self, is_cluster: bool) -> u64 {
        let entry = ENTRY_BYTES + if is_cluster { CLUSTER_ENTRY_BYTES } else { 0 };
        self.memory_usage() - ENTRY_BYTES + allocated(entry) + allocated(ENTRY_BYTES)
    }

    /// What `MEMORY USAGE` reports: the entry of the key as it is, and none for its expiry.
    fn memory_usage(self) -> u64 {
        let value = if self.value_bytes <= MAX_EMBEDDED_BYTES {
            allocated(OBJECT_BYTES + EMBEDDED_HEADER_BYTES + self.value_bytes + 1)
        } else {
            allocated(OBJECT_BYTES) + allocated(sds(self.value_bytes))
        };
        allocated(sds(self.name_bytes)) + value + ENTRY_BYTES
    }
}

/// Bytes of a full key in Redis, as `MEMORY USAGE` reports them, if its names have usual lengths and
/// no single cost is above the limit.
pub fn redis_bytes_at_most(quota: &Quota) -> u64 {
    let entries = log_entries_at_most(quota).max(1);
    let value_bytes = value_bytes(quota, quota.limit(), (entries, quota.limit()));
    RedisKey { name_bytes: NAME_BYTES + USUAL_NAME_BYTES, value_bytes }.memory_usage()
}

/// The same of the table of so many holds: its usage is another key meanwhile.
pub fn redis_holds_bytes(holds: usize) -> u64 {
    // A value that is appended to gets twice the room that it needs.
    let (mut value, mut room) = (HOLDS_HEADER_BYTES, 0);
    for _ in 0..holds {
        value += HOLD_BYTES;
        if sds(value) > room {
            room = allocated(sds(2 * value));
        }
    }
    allocated(sds(NAME_BYTES + USUAL_NAME_BYTES)) + allocated(OBJECT_BYTES) + ENTRY_BYTES + room
}

/// `entries` is how many entries a log has, and the cost of each.
fn value_bytes(quota: &Quota, used: u64, entries: (u64, u64)) -> u64 {
    let is_compact = |most| has_window_code(quota) && used < most;
    match quota.algorithm() {
        Algorithm::FixedWindow if is_compact(MAX_COMPACT_FIXED) => COMPACT_BYTES,
        Algorithm::FixedWindow => WIDE_FIXED_BYTES,
        Algorithm::SlidingWindow if is_compact(MAX_COMPACT_SLIDING) => COMPACT_BYTES,
        Algorithm::SlidingWindow => WIDE_SLIDING_BYTES,
        Algorithm::TokenBucket => BUCKET_VALUE_BYTES,
        _ => log_value_bytes(quota, entries),
    }
}

/// Bytes of the hash tables of this many keys and their expiry times.
pub(super) fn table_bytes(keys: u64) -> u64 {
    2 * BUCKET_BYTES * keys.clamp(MIN_BUCKETS, 1 << 62).next_power_of_two()
}

/// A string with its header and the final zero (sds.h).
fn sds(bytes: u64) -> u64 {
    let header = match bytes {
        0..32 => 1,
        32..256 => 3,
        256..65_536 => 5,
        _ => 9,
    };
    header + bytes + 1
}

/// What jemalloc takes for an allocation: multiples of 16 up to 128, then four classes up to each
/// power of two (its manual, "Size classes").
fn allocated(bytes: u64) -> u64 {
    match bytes {
        0..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

fn has_window_code(quota: &Quota) -> bool {
    let us = u64::try_from(quota.window().as_micros()).unwrap_or(u64::MAX);
    quota.calendar_window().is_none()
        && UNITS_US.iter().any(|unit| us.is_multiple_of(*unit) && us / unit <= MAX_UNITS)
}

/// The header and the ring: the newest entry is in the header. A full ring gets room for twice as
/// many entries plus three, at most what the limit can fill (docs/redis-layout.md).
fn log_value_bytes(quota: &Quota, (entries, cost): (u64, u64)) -> u64 {
    let slots = u64::from(quota.slots());
    let in_ring = entries - 1;
    let window_us = quota.window().as_micros();
    let step_us = if quota.limit() <= slots { 1 } else { window_us.div_ceil(u128::from(slots)) };
    let stamp_bytes = if window_us + step_us < 1 << 32 { 4 } else { 6 };
    let cost_bytes = match cost {
        // Without a cost in the ring, all are 1. So they are while it is empty.
        _ if in_ring == 0 => 0,
        0..=1 => 0,
        2..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x1_0000_0000 => 4,
        _ => 7,
    };
    // The first cost that is not 1 widens the ring, which is then rewritten with one entry.
    let entries_at_first = u64::from(cost_bytes > 0);
    let most_room = log_entries_at_most(quota).saturating_sub(1);
    let mut room = (entries_at_first * 2 + 3).min(most_room);
    while room < in_ring {
        room = ((room + 1) * 2 + 3).min(most_room).max(room + 1);
    }
    LOG_HEADER_BYTES + room * (stamp_bytes + cost_bytes)
}

fn log_entries_at_most(quota: &Quota) -> u64 {
    let slots = u64::from(quota.slots());
    if quota.limit() <= slots { quota.limit() } else { slots + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `MEMORY USAGE` reported in bench/RESULTS.md, for names of 22 bytes: they
    /// contain the entry of the key as 24 bytes, and none for its expiry.
    #[test]
    fn keys_are_as_large_as_in_the_published_measurements() {
        for (limit, algorithm, expected) in [
            (10, Algorithm::SlidingLog, 168),
            (100, Algorithm::SlidingLog, 584),
            (1000, Algorithm::SlidingLog, 4168),
            (100, Algorithm::SlidingWindow, 88),
            (100, Algorithm::FixedWindow, 88),
            (100, Algorithm::TokenBucket, 104),
        ] {
            let quota = Quota::per_minute(limit).with_algorithm(algorithm);
            let key = RedisKey::new(&quota, 5, 12, Charges { charges: limit, cost: 1 });
            assert_eq!(key.memory_usage(), expected, "{algorithm} {limit}");
        }
    }

    /// An operator who sizes a Redis server must not read too little: `MEMORY USAGE` of Redis 7.0 for
    /// a table that grew by one hold after the other, where the key's name has 33 bytes.
    #[test]
    fn tables_of_holds_take_what_the_server_reports() {
        for (holds, bytes) in
            [(1, 216), (3, 216), (4, 408), (8, 408), (10, 856), (20, 856), (50, 1880), (100, 4184)]
        {
            assert_eq!(redis_holds_bytes(holds), bytes, "{holds}");
        }
    }

    /// A window or a count that has no compact form takes the wide one.
    #[test]
    fn unusual_windows_and_large_counts_take_wide_values() {
        let value = |window_ms, algorithm, used| {
            let window = std::time::Duration::from_millis(window_ms);
            let quota = Quota::new(1 << 50, window).unwrap().with_algorithm(algorithm);
            RedisKey::new(&quota, 1, 1, Charges { charges: 1, cost: used }).value_bytes
        };
        assert_eq!(value(60_000, Algorithm::SlidingWindow, (1 << 20) - 1), 12);
        assert_eq!(value(60_000, Algorithm::SlidingWindow, 1 << 20), 28);
        assert_eq!(value(60_000, Algorithm::FixedWindow, 1 << 20), 12);
        assert_eq!(value(60_000, Algorithm::FixedWindow, 1 << 40), 21);
        assert_eq!(value(1_500, Algorithm::FixedWindow, 1), 21);
    }

    /// The classes of jemalloc's manual.
    #[test]
    fn allocations_are_rounded_to_their_classes() {
        for (bytes, class) in [
            (1, 8),
            (9, 16),
            (24, 32),
            (128, 128),
            (129, 160),
            (257, 320),
            (450, 512),
            (4050, 4096),
            (4097, 5120),
        ] {
            assert_eq!(allocated(bytes), class, "{bytes}");
        }
    }
}

//! Sizes of keys in bytes: in memory, and in Redis 7 with name, value, and entries in two hash tables.
//!
//! Sizes in Redis are for a 64-bit build with jemalloc in classes of 16 bytes, as in Debian and most
//! distributions. Redis' own jemalloc has classes of 8 bytes up to 128, so official images take up to 24
//! bytes less per key. Later releases take less.

use slidegate::internal::Setting;
use slidegate::{Excess, MemoryStore, Quota};

/// `sg1:` before the policy's name and a colon after it (docs/redis-layout.md).
const NAME_BYTES: u64 = 5;
/// Bytes of a policy name and an id together. A longer one adds its excess, with at most 64 bytes for the id.
const USUAL_NAME_BYTES: u64 = 28;
/// `robj` (server.h).
const OBJECT_BYTES: u64 = 16;
/// Maximum value in one allocation with its object: `OBJ_ENCODING_EMBSTR_SIZE_LIMIT` (object.c).
const MAX_EMBEDDED_BYTES: u64 = 44;
/// `sdshdr8`, the header of embedded values of any length.
const EMBEDDED_HEADER_BYTES: u64 = 3;
/// `dictEntry` (dict.h): key, value, next. The table of expiry times has another one, which shares the name.
const ENTRY_BYTES: u64 = 24;
/// A pointer in a hash table.
const BUCKET_BYTES: u64 = 8;
/// The smallest hash table: `DICT_HT_INITIAL_SIZE` (dict.h).
const MIN_BUCKETS: u64 = 4;

/// Bytes of values (docs/redis-layout.md).
const LOG_HEADER_BYTES: u64 = 48;
const HOLDS_HEADER_BYTES: u64 = 32;
const HOLD_BYTES: u64 = 30;

/// Sizes of the keys of one quota.
#[derive(Debug)]
pub(crate) struct KeySizes {
    quota: Quota,
    /// Bytes in memory without a log, and those of a full one.
    without_log: u64,
    full_log: u64,
}

impl KeySizes {
    pub(crate) fn new(quota: Quota) -> Self {
        let memory = |quota: &Quota| MemoryStore::bytes_per_key(quota, Excess::Refuse) as u64;
        let without_log = memory(&quota.with_limit(1));
        Self { quota, without_log, full_log: memory(&quota).saturating_sub(without_log) }
    }

    /// Bytes of a key with this many counted requests of this cost: in memory and in Redis.
    pub(crate) fn bytes(&self, charges: u64, cost: u64) -> [u64; 2] {
        // Charges of one step share an entry.
        let most = u64::from(self.quota.slots());
        let entries = charges.clamp(1, most);
        let used = charges.saturating_mul(cost);
        // A full log doubles its space. One entry lies beside the key.
        let fillable = self.quota.capacity().clamp(entries, most);
        let room = if entries == 1 { 0 } else { (2 * entries).min(fillable) };
        let log = self.full_log * room / fillable;
        let value_bytes = value_bytes(&self.quota, used, (entries, used.div_ceil(entries)));
        [self.without_log + log, redis_key(value_bytes)]
    }
}

/// Bytes of a full key in Redis, as counted by `used_memory`, for names of usual length and no single cost
/// above the limit.
pub fn redis_bytes_at_most(quota: &Quota) -> u64 {
    let entries = log_entries_at_most(quota).max(1);
    redis_key(value_bytes(quota, quota.limit(), (entries, quota.limit())))
}

/// Allocated bytes of a key with its expiry, without the hash tables themselves.
fn redis_key(value_bytes: u64) -> u64 {
    let value = if value_bytes <= MAX_EMBEDDED_BYTES {
        allocated(OBJECT_BYTES + EMBEDDED_HEADER_BYTES + value_bytes + 1)
    } else {
        allocated(OBJECT_BYTES) + allocated(sds(value_bytes))
    };
    redis_key_without_value() + value
}

fn redis_key_without_value() -> u64 {
    allocated(sds(NAME_BYTES + USUAL_NAME_BYTES)) + 2 * allocated(ENTRY_BYTES)
}

/// Bytes in Redis of a key's table of this many holds, which is a key besides that of its usage.
pub fn redis_holds_bytes(holds: usize) -> u64 {
    // A value that is appended to gets twice the space it needs.
    let (mut value, mut room) = (HOLDS_HEADER_BYTES, 0);
    for _ in 0..holds {
        value += HOLD_BYTES;
        if sds(value) > room {
            room = allocated(sds(2 * value));
        }
    }
    redis_key_without_value() + allocated(OBJECT_BYTES) + room
}

/// `entries`: number and cost of a log's entries.
fn value_bytes(quota: &Quota, used: u64, entries: (u64, u64)) -> u64 {
    if quota.algorithm().setting() == Setting::Slots {
        return log_value_bytes(quota, entries);
    }
    slidegate_stored::value_bytes(quota, used.max(1)) as u64
}

/// Bytes of the hash tables for this many keys and their expiry times.
pub fn redis_table_bytes(keys: u64) -> u64 {
    2 * BUCKET_BYTES * keys.clamp(MIN_BUCKETS, 1 << 62).next_power_of_two()
}

/// A string with header and terminating zero (sds.h).
fn sds(bytes: u64) -> u64 {
    let header = match bytes {
        0..32 => 1,
        32..256 => 3,
        256..65_536 => 5,
        _ => 9,
    };
    header + bytes + 1
}

/// Bytes that jemalloc allocates: multiples of 16 up to 128, then four classes up to each power of two (its
/// manual, "Size classes").
fn allocated(bytes: u64) -> u64 {
    match bytes {
        0..=8 => 8,
        9..=128 => bytes.next_multiple_of(16),
        _ => bytes.next_multiple_of(bytes.next_power_of_two() / 8),
    }
}

/// The header, which has the newest entry, and the ring. A full ring gets space for twice as many entries
/// plus three, at most what the limit can fill (docs/redis-layout.md).
fn log_value_bytes(quota: &Quota, (entries, cost): (u64, u64)) -> u64 {
    let slots = u64::from(quota.slots());
    let in_ring = entries - 1;
    let window_us = quota.window().as_micros();
    let step_us = if quota.limit() <= slots { 1 } else { window_us.div_ceil(u128::from(slots)) };
    let stamp_bytes = if window_us + step_us < 1 << 32 { 4 } else { 6 };
    let cost_bytes = match cost {
        // Without a cost in the ring, as in an empty one, all costs are 1.
        _ if in_ring == 0 => 0,
        0..=1 => 0,
        2..0x100 => 1,
        0x100..0x1_0000 => 2,
        0x1_0000..0x1_0000_0000 => 4,
        _ => 7,
    };
    // The first cost other than 1 widens the ring, which is then rewritten with one entry.
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
    use std::time::Duration;

    use slidegate::{
        Algorithm, Gate, Policy, PolicySet, Request,
        clock::{ManualClock, Timestamp},
    };

    use super::*;

    /// Bytes that `MEMORY USAGE` does not report: the space of the key's entry, 8, and the entry of its
    /// expiry, 32.
    const NOT_REPORTED: u64 = 40;

    /// The bytes that `MEMORY USAGE` reported in bench/RESULTS.md, for names of 22 bytes, which take 16 bytes
    /// less than usual ones.
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
            let [_, bytes] = KeySizes::new(quota).bytes(limit, 1);
            assert_eq!(bytes, expected + 16 + NOT_REPORTED, "{algorithm} {limit}");
        }
    }

    /// An operator who sizes a Redis server must not get too small a figure: `MEMORY USAGE` of Redis 7.0 for
    /// a table that grew hold by hold, with a key name of 33 bytes.
    #[test]
    fn tables_of_holds_take_what_the_server_reports() {
        for (holds, bytes) in
            [(1, 216), (3, 216), (4, 408), (8, 408), (10, 856), (20, 856), (50, 1880), (100, 4184)]
        {
            assert_eq!(redis_holds_bytes(holds), bytes + NOT_REPORTED, "{holds}");
        }
    }

    /// An operator who sizes a machine must get neither too small a figure nor more than twice the truth:
    /// measured on a store with many keys of each kind.
    #[test]
    fn keys_in_memory_take_at_most_what_is_said_and_not_much_less() {
        let per_minute = Quota::per_minute;
        for (quota, charges, cost) in [
            (per_minute(100), 1, 1),
            (per_minute(100), 30, 1),
            (per_minute(100), 100, 1),
            (per_minute(10_000), 60, 150),
            (per_minute(100).with_algorithm(Algorithm::TokenBucket), 100, 1),
            (per_minute(100).with_algorithm(Algorithm::FixedWindow), 100, 1),
            (per_minute(100).with_algorithm(Algorithm::SlidingWindow), 100, 1),
        ] {
            let clock = ManualClock::at(Timestamp::from_micros(1_699_999_980_000_000));
            let store = MemoryStore::builder().max_keys(2_000).clock(clock.clone()).build();
            let empty = store.stats().bytes;
            let policy = Policy::new("per-user", quota).unwrap().with_scope(["user"]);
            let gate = Gate::with_memory(PolicySet::new([policy]).unwrap(), store);
            for _ in 0..charges {
                clock.advance(Duration::from_micros(30_000_000 / charges));
                for user in 0..2_000 {
                    let user = user.to_string();
                    assert!(gate.check(&Request::new().with("user", &user).with_cost(cost)).is_allowed());
                }
            }
            let found = (gate.store().stats().bytes - empty) as u64 / 2_000;
            let [said, _] = KeySizes::new(quota).bytes(charges, cost);
            assert!(found <= said && said <= found * 2, "{quota} {charges}: {found}, said {said}");
        }
    }

    /// A window or count without a compact form takes the wide one.
    #[test]
    fn unusual_windows_and_large_counts_take_wide_values() {
        let value = |window_ms, algorithm, used| {
            let window = std::time::Duration::from_millis(window_ms);
            let quota = Quota::new(1 << 50, window).unwrap().with_algorithm(algorithm);
            value_bytes(&quota, used, (1, used))
        };
        assert_eq!(value(60_000, Algorithm::SlidingWindow, (1 << 20) - 1), 12);
        assert_eq!(value(60_000, Algorithm::SlidingWindow, 1 << 20), 28);
        assert_eq!(value(60_000, Algorithm::FixedWindow, 1 << 20), 12);
        assert_eq!(value(60_000, Algorithm::FixedWindow, 1 << 40), 21);
        assert_eq!(value(1_500, Algorithm::FixedWindow, 1), 21);
    }

    /// The classes in jemalloc's manual.
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

//! How much memory keys take at most, known before there are any.
//!
//! `slidegate validate` prints it, and the test below compares it with what a full store holds.

use super::accounting::allocated;
use super::debts::Debts;
use super::held_keys::KeyHolds;
use super::inline_quotas::InlineQuota;
use super::table::most_bytes_per_key;
use super::{MemoryStore, MemoryStoreBuilder, PaddedShard};
use crate::algorithm::{State, for_algorithm};
use crate::charge::Excess;
use crate::hold::Hold;
use crate::quota::Quota;

/// The most memory that a store takes under some quotas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryEstimate {
    /// Maximum number of keys.
    pub keys: usize,
    /// Maximum bytes of the largest kind of key.
    pub bytes_per_key: usize,
    /// Maximum bytes of the store without a byte bound: all keys of the largest kind.
    pub unbounded_bytes: usize,
    /// Maximum bytes of the store: at most its byte bound, if set.
    pub bytes: usize,
    /// The part of `bytes` for debts, once keys were evicted.
    pub evicted_bytes: usize,
}

impl MemoryStore {
    /// Maximum bytes of a key under this quota, after any checks: its slot, with the empty slots of
    /// a table that has just grown, and a full log.
    ///
    /// A penalty charges more than the limit: a log may then have [`Quota::slots`] entries. So do
    /// refused checks that are [counted](Excess::Count), for which this allows.
    #[must_use]
    pub fn bytes_per_key(quota: &Quota, excess: Excess) -> usize {
        let (entries, cost) = match excess {
            Excess::Refuse => (quota.capacity(), quota.capacity()),
            Excess::Charge => (quota.capacity(), quota.max_used()),
            Excess::Count => (quota.max_used(), quota.max_used()),
        };
        for_algorithm!(quota.algorithm(), S => {
            most_bytes_per_key::<S>() + allocated(S::most_heap_bytes(quota, entries, cost))
        })
    }

    /// Maximum bytes of this many open holds of a key, beside [its usage](Self::bytes_per_key): its
    /// slot in the table of holds, and a list that has just doubled. A key that only limits
    /// requests in flight has no usage.
    ///
    /// ```
    /// use slidegate::MemoryStore;
    ///
    /// assert_eq!(MemoryStore::bytes_per_holds(0), 0);
    /// assert!(MemoryStore::bytes_per_holds(100) < 100 * MemoryStore::bytes_per_holds(1));
    /// ```
    #[must_use]
    pub fn bytes_per_holds(holds: usize) -> usize {
        if holds == 0 {
            return 0;
        }
        // The first is in the slot itself.
        let room = if holds == 1 { 0 } else { holds.next_power_of_two() };
        most_bytes_per_key::<KeyHolds>() + allocated(room * size_of::<Hold>())
    }

    /// Maximum bytes of an inline quota, beside its key.
    #[must_use]
    pub const fn bytes_per_inline_quota() -> usize {
        // Quotas of removed keys are dropped once they outnumber live ones.
        2 * most_bytes_per_key::<InlineQuota>()
    }
}

impl MemoryStoreBuilder {
    /// The most memory that the store takes if its largest keys take this many bytes each, see
    /// [`MemoryStore::bytes_per_key`]. Without what checks with an idempotency key take.
    ///
    /// ```
    /// use slidegate::{Algorithm, MemoryStore, Quota};
    ///
    /// let quota = Quota::per_minute(100).with_algorithm(Algorithm::TokenBucket);
    /// let bytes_per_key = MemoryStore::bytes_per_key(&quota, slidegate::Excess::Refuse);
    /// let estimate = MemoryStore::builder().max_keys(1_000_000).estimate(bytes_per_key);
    /// assert_eq!(estimate.bytes / 1_000_000, 95);
    /// assert_eq!(MemoryStore::builder().max_bytes(16 << 20).estimate(bytes_per_key).bytes, 16 << 20);
    /// ```
    #[must_use]
    pub fn estimate(&self, bytes_per_key: usize) -> MemoryEstimate {
        let keys = self.key_bound();
        let shards = 1usize << self.shards().ilog2();
        let evicted_bytes = shards * Debts::bytes_of(self.debt_buckets());
        let store_bytes = shards * size_of::<PaddedShard>() + evicted_bytes;
        let unbounded_bytes = keys.saturating_mul(bytes_per_key).saturating_add(store_bytes);
        let bytes = self.max_bytes.map_or(unbounded_bytes, |max_bytes| max_bytes.min(unbounded_bytes));
        MemoryEstimate { keys, bytes_per_key, unbounded_bytes, bytes, evicted_bytes }
    }
}

//! Accounting of keys and bytes over all shards, and their bounds.
//!
//! Each shard has guaranteed bytes of its own. What it takes beyond them comes from a common part,
//! so that a shard with large logs can use what others leave. The counters here change only when
//! memory is allocated or freed, not with every decision.

use std::sync::OnceLock;

use crate::shares;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// Numbers of keys and bytes over all shards.
#[derive(Debug)]
pub(super) struct Accounting {
    pub(super) held: AtomicUsize,
    pub(super) max_keys: usize,
    pub(super) dropped: AtomicU64,
    /// Holds of all keys.
    holds: AtomicUsize,
    pub(super) max_holds: usize,
    /// Holds per policy, by its number modulo the length. Allocated by the first hold.
    policy_holds: OnceLock<Box<[AtomicUsize]>>,
    /// Buckets for what a shard's evicted keys owe.
    pub(super) debt_buckets: usize,
    /// Bytes of all shards, as allocated.
    bytes: AtomicUsize,
    /// Bytes held by shards beyond their guarantees.
    common: AtomicUsize,
    bound: Option<ByteBound>,
}

/// How the bytes of a bounded store are divided.
#[derive(Debug, Clone, Copy)]
struct ByteBound {
    max_bytes: usize,
    /// Bytes that each shard may always hold.
    guaranteed: usize,
    /// Bytes that all shards together may hold beyond that.
    common: usize,
}

/// The part of its share that is guaranteed to a shard. Shares differ little, because keys are
/// spread by a hash; the common quarter is for logs and for chance.
const GUARANTEED: (usize, usize) = (3, 4);

/// Bytes of the bound for each hold: a hold alone on its key takes some 250 with its slot, many on
/// one key 40 each.
const BYTES_PER_HOLD: usize = 512;

/// Policies whose holds are counted apart, in 32 kB. With more of them, some share a count,
/// and with it their part of the room.
const POLICIES: usize = if cfg!(loom) { 4 } else { 1 << 12 };

impl Accounting {
    /// `shard_bytes` is the size of an empty shard, which counts as held, and `reserved` what each
    /// shard may take although the store is full.
    pub(super) fn new(
        max_keys: usize,
        max_bytes: Option<usize>,
        shards: usize,
        shard_bytes: usize,
        reserved: usize,
        debt_buckets: usize,
    ) -> Self {
        let empty = shards * shard_bytes;
        let bound = max_bytes.map(|max_bytes| {
            let rest = max_bytes.saturating_sub(empty + shards * reserved);
            let guaranteed = rest / shards / GUARANTEED.1 * GUARANTEED.0;
            ByteBound { max_bytes, guaranteed, common: rest - shards * guaranteed }
        });
        let count = AtomicUsize::new;
        let max_holds = max_bytes.map_or(max_keys, |bytes| max_keys.min(bytes / BYTES_PER_HOLD));
        let (held, dropped, bytes, common) = (count(0), AtomicU64::new(0), count(empty), count(0));
        let (holds, policy_holds) = (count(0), OnceLock::new());
        Self { held, max_keys, dropped, holds, max_holds, policy_holds, debt_buckets, bytes, common, bound }
    }

    /// Holds of all keys.
    pub(super) fn holds(&self) -> usize {
        self.holds.load(Ordering::Relaxed)
    }

    /// Counts a key's holds: how many it had, and how many it has.
    pub(super) fn count_holds(&self, policy: u32, before: usize, after: usize) {
        if before == after {
            return;
        }
        for count in [&self.holds, self.holds_of(policy)] {
            if after > before {
                count.fetch_add(after - before, Ordering::Relaxed);
            } else {
                count.fetch_sub(before - after, Ordering::Relaxed);
            }
        }
    }

    /// How many more holds are free than a policy has: the bound of its [share](crate::shares).
    pub(super) fn room_for_holds(&self, policy: u32) -> usize {
        shares::left(self.max_holds, self.holds(), self.holds_of(policy).load(Ordering::Relaxed))
    }

    fn holds_of(&self, policy: u32) -> &AtomicUsize {
        let counts = || (0..POLICIES).map(|_| AtomicUsize::new(0)).collect();
        &self.policy_holds.get_or_init(counts)[policy as usize % POLICIES]
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn max_bytes(&self) -> Option<usize> {
        self.bound.map(|bound| bound.max_bytes)
    }

    /// Lets a shard hold `to` bytes instead of `from`. Returns false if it may not; it may always
    /// shrink.
    pub(super) fn admit(&self, from: usize, to: usize) -> bool {
        let more = self.beyond(to).saturating_sub(self.beyond(from));
        if let Some(bound) = self.bound.filter(|_| more > 0)
            && self.common.fetch_add(more, Ordering::Relaxed) + more > bound.common
        {
            self.common.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        let less = self.beyond(from).saturating_sub(self.beyond(to));
        if less > 0 {
            self.common.fetch_sub(less, Ordering::Relaxed);
        }
        self.count(from, to);
        true
    }

    /// Records that a shard holds `to` bytes instead of `from`, whether or not it may.
    pub(super) fn force(&self, from: usize, to: usize) {
        let more = self.beyond(to).saturating_sub(self.beyond(from));
        self.common.fetch_add(more, Ordering::Relaxed);
        self.count(from, to);
    }

    /// Whether a shard with this many bytes has to evict keys.
    pub(super) fn is_short(&self, bytes: usize) -> bool {
        self.bound.is_some_and(|bound| {
            bytes > bound.guaranteed && self.common.load(Ordering::Relaxed) > bound.common
        })
    }

    pub(super) fn has_byte_bound(&self) -> bool {
        self.bound.is_some()
    }

    /// The bytes that a shard takes of the common part.
    fn beyond(&self, bytes: usize) -> usize {
        self.bound.map_or(0, |bound| bytes.saturating_sub(bound.guaranteed))
    }

    /// Counts bytes without a check: a bound reserves those of debts.
    pub(super) fn count(&self, from: usize, to: usize) {
        if to > from {
            self.bytes.fetch_add(to - from, Ordering::Relaxed);
        } else {
            self.bytes.fetch_sub(from - to, Ordering::Relaxed);
        }
    }
}

/// The size of an allocation: the usual allocators add a word and round up to 16.
pub(super) const fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=24 => 32,
        _ => (bytes + 8).next_multiple_of(16),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A shard that is hit first must not take everything: others would evict their only key.
    #[test]
    fn a_shard_gets_what_is_guaranteed_to_it_whatever_the_others_took() {
        let accounting = Accounting::new(1000, Some(10_000), 4, 100, 0, 1);
        // 2400 for each shard, 1800 of them guaranteed: 2400 are common.
        assert!(accounting.admit(0, 4200));
        assert!(!accounting.admit(0, 1801), "all that is common is taken");
        for shard in 1..4 {
            assert!(accounting.admit(0, 1800), "shard {shard}");
        }
        assert_eq!((accounting.bytes(), accounting.max_bytes()), (10_000, Some(10_000)));
        assert!(accounting.admit(4200, 1000) && accounting.admit(1800, 1900));
        assert_eq!(accounting.bytes(), 10_000 - 3200 + 100);
    }

    /// What was taken beyond the bound has to be given back before anybody takes more.
    #[test]
    fn a_forced_excess_is_short_until_it_is_given_back() {
        let accounting = Accounting::new(1000, Some(10_000), 4, 100, 0, 1);
        accounting.force(0, 5000);
        assert!(accounting.is_short(5000) && !accounting.is_short(1800));
        assert!(accounting.admit(5000, 4200) && !accounting.is_short(4200));
    }

    /// Without a bound, bytes are only counted.
    #[test]
    fn a_store_without_a_byte_bound_is_never_short() {
        let accounting = Accounting::new(1000, None, 4, 100, 0, 1);
        assert!(accounting.admit(0, usize::MAX / 2) && !accounting.is_short(usize::MAX / 2));
    }
}

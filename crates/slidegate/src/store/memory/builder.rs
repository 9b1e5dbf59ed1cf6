//! Builds a memory store: its bounds, its clock, and the secret that identifies its keys.

use std::sync::{Arc, OnceLock};

use super::accounting::Accounting;
use super::debts::Debts;
use super::inline_quotas::InlineQuotas;
use super::shard::Shard;
use super::snapshot;
use super::{MemoryStore, PaddedShard, ShardData};
use crate::key::HashSeed;
use crate::quota::Quota;
use crate::sync::{AtomicUsize, Mutex};
use crate::time::{Clock, SystemClock, TimeSource};

/// Builds a [`MemoryStore`]: `MemoryStore::builder().max_keys(10_000).build()`.
#[derive(Debug, Clone)]
pub struct MemoryStoreBuilder {
    clock: TimeSource,
    max_keys: Option<usize>,
    pub(super) max_bytes: Option<usize>,
    /// The seed of key identities.
    identity_seed: Option<[u8; 16]>,
    forgets_evicted: bool,
}

impl MemoryStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            clock: TimeSource::System(SystemClock::new()),
            max_keys: None,
            max_bytes: None,
            identity_seed: None,
            forgets_evicted: false,
        }
    }

    /// Sets the maximum number of keys, at least 1. [`MemoryStore`] documents their memory.
    /// Default: [`DEFAULT_MAX_KEYS`](MemoryStore::DEFAULT_MAX_KEYS), or with
    /// [`max_bytes`](Self::max_bytes) as many as fit.
    #[must_use]
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.max_keys = Some(max_keys.max(1));
        self
    }

    /// Bounds the bytes that the store takes, at least
    /// [`MIN_MAX_BYTES`](MemoryStore::MIN_MAX_BYTES). By default they are not bounded.
    ///
    /// They count as allocated: the tables with their empty slots, logs, quotas that came with
    /// requests, and the store itself. Beside them, checks with an idempotency key take up to
    /// [`IDEMPOTENCY_BYTES`](MemoryStore::IDEMPOTENCY_BYTES), and a table of about 1000 keys exists
    /// twice while it grows. An eighth of them at most is set aside for what evicted keys
    /// owe. If there are no bytes for a new key or a longer log, the store evicts
    /// keys as if it had too many; see [`MemoryStore`].
    ///
    /// ```
    /// use slidegate::{Limiter, MemoryStore, Quota};
    ///
    /// let store = MemoryStore::builder().max_bytes(4 << 20).build();
    /// let limiter = Limiter::with_store(Quota::per_hour(100), store);
    /// for n in 0..100_000 {
    ///     limiter.check(format!("key-{n}"));
    /// }
    /// let stats = limiter.stats();
    /// assert!(stats.bytes <= 4 << 20 && stats.dropped > 0, "{stats:?}");
    /// ```
    #[must_use]
    pub fn max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = Some(max_bytes.max(MemoryStore::MIN_MAX_BYTES));
        self
    }

    /// Sets the clock. Default: [`SystemClock`].
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = TimeSource::Other(Arc::new(clock));
        self
    }

    /// Lets an evicted key start afresh. By default its usage is kept as a debt, so an unused key
    /// may be denied for the debts of others. For counts that limit nobody.
    #[must_use]
    pub fn forget_evicted(mut self) -> Self {
        self.forgets_evicted = true;
        self
    }

    /// Creates the store.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let (max_keys, debt_buckets) = (self.key_bound(), self.debt_buckets());
        let bits = self.shards().ilog2();
        let shards = 1usize << bits;
        let none = Arc::new(Quota::per_second(0));
        let kept = || ShardData {
            shard: Shard::default(),
            quota: Arc::clone(&none),
            inline_quotas: InlineQuotas::default(),
        };
        let secret = self.seed();
        MemoryStore {
            clock: self.clock,
            secret,
            shards: (0..shards).map(|_| PaddedShard(Mutex::new(kept()))).collect(),
            shift: 64 - bits,
            accounting: Accounting::new(
                max_keys,
                self.max_bytes,
                shards,
                size_of::<PaddedShard>(),
                Shard::first_tables_bytes() + Debts::bytes_of(debt_buckets),
                debt_buckets,
            ),
            next_swept: AtomicUsize::new(0),
            next_ended: AtomicUsize::new(0),
            idempotent: OnceLock::new(),
            saved_to: std::sync::Mutex::default(),
        }
    }

    /// Makes the store identify keys as in the snapshot that was [read](snapshot::SnapshotFile::read),
    /// so that it can be [restored](crate::Gate::restore).
    #[must_use]
    pub fn for_snapshot(mut self, file: &snapshot::SnapshotFile) -> Self {
        self.identity_seed = file.identity_seed();
        self
    }

    fn seed(&self) -> HashSeed {
        if let Some(seed) = self.identity_seed {
            return HashSeed::with_identity_seed(seed);
        }
        HashSeed::random()
    }

    pub(super) fn key_bound(&self) -> usize {
        let fitting = self.max_bytes.map(|bytes| (bytes / SMALLEST_KEY_BYTES).max(1));
        self.max_keys.or(fitting).unwrap_or(MemoryStore::DEFAULT_MAX_KEYS)
    }

    /// Buckets for what the evicted keys of a shard owe.
    pub(super) fn debt_buckets(&self) -> usize {
        if self.forgets_evicted {
            return 0;
        }
        let shards = 1 << self.shards().ilog2();
        let by_bytes = self.max_bytes.map_or(usize::MAX, |bytes| bytes / shards / DEBT_PART / DEBT_BYTES);
        Debts::buckets_for(self.key_bound().div_ceil(shards).saturating_mul(DEBTS_PER_KEY).min(by_bytes))
    }

    /// Number of shards, not yet rounded down to a power of two.
    pub(super) fn shards(&self) -> usize {
        let by_bytes = self.max_bytes.map_or(usize::MAX, |bytes| bytes / BYTES_PER_SHARD);
        (self.key_bound() / KEYS_PER_SHARD).min(by_bytes).clamp(1, MAX_SHARDS)
    }
}

/// Keys per shard when the store is full. Growing a shard moves all its keys under its lock, so few
/// keys keep that short; enough keys let the shards themselves stay in the processor's cache.
pub(super) const KEYS_PER_SHARD: usize = 1024;
/// Least bytes per shard of a store with a byte bound: four times a full log of 1024 entries of
/// the widest kind, so that what is guaranteed to a shard holds any key.
const BYTES_PER_SHARD: usize = 64 << 10;
/// Debts that a full store has room for, per key. With four, 6 keys of 100 that are new are taken for
/// one that owes after four times as many keys as fit were evicted; with two, 38.
const DEBTS_PER_KEY: usize = 4;
/// Bytes of a debt, and the part of a byte bound that is for all of them.
const DEBT_BYTES: usize = 8;
const DEBT_PART: usize = 8;
/// Size of the smallest key without empty slots; bounds the number of keys that fit.
const SMALLEST_KEY_BYTES: usize = 41;
/// 65,536 shards take 16 MiB. A store for more than 67 million keys has larger shards instead of
/// more.
const MAX_SHARDS: usize = 1 << 16;

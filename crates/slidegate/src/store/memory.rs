//! The memory store: a bounded number of keys in sharded hash tables, in process.
//!
//! A decision reads the clock and then locks the one shard of its key. A request under several
//! policies locks its shards in ascending order, so that requests cannot deadlock.

use std::sync::{Arc, OnceLock};

use crate::charge::{Charge, PerCharge};
use crate::decision::Decision;
use crate::error::Error;
use crate::hold::MAX_HOLDS;
use crate::key::{HashSeed, KeyId};
use crate::policy_reset::{PolicyKeys, PolicyReset, ResetCursor, ScannedKeys};
use crate::quota::{ChangedPolicy, Quota};
use crate::store::{IdempotencyCache, LocalStore, QuotaChanges, StoreDecisions, StoredPolicy, decide};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use crate::time::{Moment, TimeSource, Timestamp};
use crate::usage::KeyInspection;
use crate::verb::Verb;

mod accounting;
mod builder;
mod debts;
mod estimate;
mod held_keys;
mod holds;
mod inline_quotas;
mod shard;
pub(crate) mod snapshot;
mod table;

use accounting::Accounting;
use builder::KEYS_PER_SHARD;
pub use builder::MemoryStoreBuilder;
use debts::ChangedDebts;
pub use estimate::MemoryEstimate;
use inline_quotas::InlineQuotas;
use shard::{Address, Call, Shard};

/// Stores keys of all policies in the memory of this process.
///
/// Holds at most `max_keys` keys, by default [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS). A key
/// takes 47 to 63 bytes under `fixed-window`, `sliding-window` and `token-bucket`. Under
/// `sliding-log` it takes 93 to 104 bytes, plus 4 bytes per log entry if there are more than five
/// (up to 14 for large costs or long windows). A million keys of counters take at most 63 MB, a
/// million full logs of 100 entries 505 MB. The store itself takes 256 bytes per 1024 of
/// `max_keys`, and 33 bytes per key of `max_keys` more from when it evicts a key until nothing of those that
/// were evicted counts. Memory grows and shrinks with the number of keys.
/// [`max_bytes`](MemoryStoreBuilder::max_bytes) bounds it for any mix of algorithms.
///
/// A key is removed once nothing of it counts: when it is accessed, or by the sweeps of other
/// decisions. If the store is full, a new key evicts the weakest of a few: an expired one, else one
/// used only once, else the one that used the smallest share of its limit.
///
/// The usage of evicted keys is kept as debts, in bounded memory, until it no longer counts. So no
/// key starts afresh: an evicted key may be denied too long, never too short. If far more keys are
/// evicted than the store holds, they share debts: a new key may then be denied like an evicted
/// one, at most for as long as usage counts under their policies. [`stats`](Self::stats) counts
/// keys that were evicted while they still counted: monitor it and configure spare capacity. A
/// [snapshot](crate::Gate::save) does not contain debts.
///
/// ```
/// use std::sync::Arc;
/// use slidegate::{Gate, MemoryStore, Policy, PolicySet, Quota, Request};
///
/// let store = MemoryStore::builder().max_keys(10_000).build();
/// let per_user = Policy::new("per-user", Quota::per_minute(100))?.with_scope(["user"]);
/// let gate = Gate::with_memory(PolicySet::new([per_user])?, store);
/// assert!(gate.check(&Request::new().with("user", "alice")).is_allowed());
/// assert_eq!(gate.store().stats().keys, 1);
/// # Ok::<(), slidegate::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    clock: TimeSource,
    secret: HashSeed,
    shards: Box<[PaddedShard]>,
    /// Number of bits by which a key's hash is shifted to get its shard.
    shift: u32,
    accounting: Accounting,
    /// The shard at which [`sweep`](Self::sweep) continues.
    next_swept: AtomicUsize,
    /// The shard at which the next search for expired holds starts.
    next_ended: AtomicUsize,
    /// Created by the first check with an idempotency key.
    pub(super) idempotent: OnceLock<IdempotencyCache>,
    /// The file that a gate was last saved to, which stays locked.
    saved_to: std::sync::Mutex<Option<snapshot::SnapshotFile>>,
}

/// A shard with its lock. The alignment prevents false sharing, also of cache lines that are
/// prefetched in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedShard(Mutex<ShardData>);

/// The data of a lock. `repr(C)` keeps the order of the fields, that of [`Shard`]'s.
#[derive(Debug)]
#[repr(C)]
struct ShardData {
    inline_quotas: InlineQuotas,
    /// The quota of keys without a policy. Each shard points to it, so that a decision reads it
    /// under its lock, without another atomic operation.
    quota: Arc<Quota>,
    shard: Shard,
}

/// How full a [`MemoryStore`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Number of keys held now, including expired keys that were not removed yet.
    pub keys: usize,
    /// Most keys that the store holds.
    pub max_keys: usize,
    /// Keys evicted while they still counted, since the store was created. If above zero,
    /// `max_keys` or `max_bytes` is too small: those keys may be denied too long, and, if they far
    /// outnumber those the store holds, new keys too.
    pub dropped: u64,
    /// Open holds of all keys, including expired ones whose keys were not accessed since; these end
    /// before room is short. Above half of `max_holds`, a policy may have no more than the others
    /// leave free, and a key no more than its policy may still have.
    pub holds: usize,
    /// Most open holds.
    pub max_holds: usize,
    /// Bytes that the shards and their keys take now, as allocated.
    pub bytes: usize,
    /// Most bytes that they may take, if bounded.
    pub max_bytes: Option<usize>,
}

/// Maximum number of shards that a reservation searches for expired holds: up to 100 µs if none is
/// found, and some 20 µs for each shard whose keys are searched.
const MOST_LOOKED_AT: usize = 1024;
const MOST_SEARCHED: usize = 4;

/// The policy number of keys without a policy.
const OWN_POLICY: u32 = 0;

impl LocalStore for MemoryStore {
    fn apply(&self, charges: &[Charge<'_>], decided: &mut StoreDecisions) {
        self.end_due_holds(charges);
        let mut locked = LockedKeys::new(self);
        locked.lock_charges(charges);
        if charges.iter().any(|charge| charge.instead_of.is_some())
            || locked.shards.iter().any(|data| !data.inline_quotas.is_empty())
        {
            return locked.apply_beside_inline_quotas(charges, decided);
        }
        decide(charges, decided, |at, verb, cost| locked.apply(at, &charges[at], verb, cost));
    }

    fn check_once(&self, charges: &[Charge<'_>], id: &str, decided: &mut StoreDecisions) {
        let cache = self.idempotent.get_or_init(IdempotencyCache::default);
        cache.check(charges, id, self.now(), decided, |decided| self.apply(charges, decided));
    }

    fn reset(&self, charges: &[Charge<'_>]) -> bool {
        let mut locked = LockedKeys::new(self);
        locked.lock_charges(charges);
        charges.iter().enumerate().fold(false, |counted, (at, charge)| {
            let (data, call) = locked.key(at, charge.quota);
            data.on_key(&call, Shard::forget) || counted
        })
    }

    fn wall_time(&self) -> Timestamp {
        self.wall_time()
    }

    fn quotas_changed(&self, changes: &QuotaChanges<'_>) {
        let (requote, changed) = (changes.0)(&self.secret);
        self.requote(&*requote, &changed);
    }

    fn inspect(&self, charges: &[Charge<'_>]) -> Result<Vec<KeyInspection>, Error> {
        let mut locked = LockedKeys::new(self);
        locked.lock_charges(charges);
        let found = charges.iter().enumerate().map(|(at, charge)| {
            let (data, call) = locked.key(at, charge.quota);
            data.on_key(&Call { cost: charge.part.cost, ..call }, Shard::inspect)
        });
        Ok(found.collect())
    }

    fn reset_policy_step(
        &self,
        policy: &StoredPolicy<'_>,
        from: Option<&ResetCursor>,
        keys: u64,
    ) -> Result<PolicyReset, Error> {
        let held = self.stats().keys as u64;
        PolicyReset::step(from, held, |shard| self.forget_policies(policy.numbers, shard, keys))
    }
}

impl snapshot::InMemory for MemoryStore {
    fn in_memory(&self) -> &MemoryStore {
        self
    }
}

impl MemoryStore {
    /// Default maximum of keys: a million, which takes at most 63 MB for counters or 105 MB for
    /// logs with few entries, and 35 MB more once the store is full.
    pub const DEFAULT_MAX_KEYS: usize = 1 << 20;
    /// The least bound of bytes: 1 MiB.
    pub const MIN_MAX_BYTES: usize = 1 << 20;
    /// Maximum bytes of stored decisions on checks with an idempotency key: 20 MiB if each is under
    /// one policy.
    pub const IDEMPOTENCY_BYTES: usize = 20 << 20;

    /// A store with the system clock and at most [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS) keys.
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Starts to build a store with other settings.
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// How full the store is. Reads four counters without a lock.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        MemoryStats {
            keys: self.accounting.held.load(Ordering::Relaxed),
            max_keys: self.accounting.max_keys,
            dropped: self.accounting.dropped.load(Ordering::Relaxed),
            holds: self.accounting.holds(),
            max_holds: self.accounting.max_holds,
            bytes: self.accounting.bytes(),
            max_bytes: self.accounting.max_bytes(),
        }
    }

    /// Examines about `slots` slots from where the last sweep ended, and removes expired keys.
    /// Returns how many were removed.
    ///
    /// Decisions also sweep. A mostly idle program can call this from a timer to free memory. Each
    /// shard is locked for at most 1024 slots at a time.
    pub fn sweep(&self, slots: usize) -> usize {
        let now = self.clock.now();
        let mut removed = 0;
        for _ in 0..slots.div_ceil(KEYS_PER_SHARD) {
            let at = self.next_swept.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
            removed += self.lock(at).shard.sweep(now, KEYS_PER_SHARD, &self.accounting, &self.secret);
        }
        removed
    }

    /// The store's time. Decisions report the clock's
    /// [`Clock::wall_time`](crate::clock::Clock::wall_time), which changes when the machine's wall clock
    /// is corrected.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The date, as reported by decisions.
    pub(crate) fn wall_time(&self) -> Timestamp {
        self.clock.moment(self.clock.now()).wall
    }

    /// Decides one key without a policy, under the store's own quota, for a `Limiter`.
    #[inline]
    pub(crate) fn apply_one(&self, verb: Verb, key: &[u8], cost: u64) -> Decision {
        self.on_one(verb, key, cost, Shard::apply)
    }

    /// Removes a key without a policy. Returns whether anything still counted.
    pub(crate) fn reset_one(&self, key: &[u8]) -> bool {
        self.on_one(Verb::Peek, key, 0, Shard::forget)
    }

    #[inline]
    fn on_one<T>(&self, verb: Verb, key: &[u8], cost: u64, run: impl Fn(&mut Shard, &Call<'_>) -> T) -> T {
        let now = self.clock.now();
        let address = self.address(self.secret.id_of(key), OWN_POLICY);
        let mut guard = self.lock(self.shard_of(address.place));
        let ShardData { shard, quota, .. } = &mut *guard;
        let now = shard.arrive(now, &self.clock);
        let call = Call::peek(address, quota, now, &self.accounting, &self.secret);
        run(shard, &Call { verb, cost, ..call })
    }

    /// The quota of keys without a policy.
    pub(crate) fn quota(&self) -> Quota {
        *self.lock(0).quota
    }

    /// Sets the quota of keys without a policy, shard by shard, and converts the keys to it; see
    /// [`requote`](Self::requote).
    pub(crate) fn set_quota(&self, quota: Quota) {
        let quota = Arc::new(quota);
        let changed = |old: Quota| ChangedPolicy { number: OWN_POLICY, old: vec![old], new: vec![*quota] };
        let debts = [self.changed_debts(&changed(self.quota()))];
        for at in 0..self.shards.len() {
            let mut guard = self.lock(at);
            let old = std::mem::replace(&mut guard.quota, Arc::clone(&quota));
            if old != quota {
                self.requote_locked(&mut guard.shard, &|_, _| Some((*old, *quota)), &debts);
            }
        }
    }

    /// Ends expired holds of any keys if these charges may lack room for theirs.
    fn end_due_holds(&self, charges: &[Charge<'_>]) {
        let is_short = |one: &Charge<'_>| {
            one.reserve.is_some() && self.accounting.room_for_holds(one.number) < MAX_HOLDS
        };
        if !charges.iter().any(is_short) {
            return;
        }
        let mut searches = 0;
        for _ in 0..self.shards.len().min(MOST_LOOKED_AT) {
            let at = self.next_ended.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
            let shard = &mut self.lock(at).shard;
            let now = shard.arrive(self.clock.now(), &self.clock);
            let ended = shard.end_due_holds(now, &self.accounting, &self.secret);
            searches += usize::from(ended.is_some());
            if ended > Some(0) || searches == MOST_SEARCHED {
                return;
            }
        }
    }

    /// Removes the keys of these policies, given by number, in the shards from `from` on, until at
    /// least `keys` keys were examined. Returns the shard to continue with, or `None` after the
    /// last. A shard is locked for about 1024 keys at a time.
    pub(crate) fn forget_policies(
        &self,
        policies: &[u32],
        from: u64,
        keys: u64,
    ) -> (ScannedKeys, Option<u64>) {
        self.scan(from, keys, |shard| shard.forget_policies(policies, &self.accounting, &self.secret))
    }

    /// Adds the keys of these policies, in about this many keys from a shard on. Returns the next shard.
    pub(crate) fn list_keys(
        &self,
        policies: &[u32],
        from: u64,
        keys: u64,
        list: &mut PolicyKeys,
    ) -> (ScannedKeys, Option<u64>) {
        self.scan(from, keys, |shard| {
            let (ids, scanned) = shard.ids_of(policies, &self.secret);
            for id in ids {
                match id.text() {
                    Some(text) => list.keys.push(text),
                    None => list.unnamed += 1,
                }
            }
            ScannedKeys { scanned, ..ScannedKeys::default() }
        })
    }

    /// Scans whole shards, from this one on, until about this many keys are scanned.
    fn scan(
        &self,
        from: u64,
        keys: u64,
        mut scan: impl FnMut(&mut Shard) -> ScannedKeys,
    ) -> (ScannedKeys, Option<u64>) {
        let mut all = ScannedKeys::default();
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for at in from..self.shards.len() {
            let found = scan(&mut self.lock(at).shard);
            all.forgotten += found.forgotten;
            all.scanned += found.scanned;
            if all.scanned >= keys && at + 1 < self.shards.len() {
                return (all, Some(at as u64 + 1));
            }
        }
        (all, None)
    }

    /// Converts every key to its new quota, after that quota became active.
    ///
    /// Usage counts by the old quota until now and by the new one from now on. Without this, the
    /// time since a key's last use would count by the new quota, and a key could expire by the old
    /// one. Scans all keys and locks one shard at a time.
    pub(crate) fn requote(&self, requote: Requote<'_>, changed: &[ChangedPolicy]) {
        let debts: Vec<_> = changed.iter().map(|policy| self.changed_debts(policy)).collect();
        for at in 0..self.shards.len() {
            let ShardData { shard, inline_quotas, .. } = &mut *self.lock(at);
            self.requote_locked(
                shard,
                &|policy, key| {
                    let changed = requote(policy, key)?;
                    let is_inline = !inline_quotas.is_empty()
                        && inline_quotas.has_inline(&self.address(key, policy), &changed.0);
                    (!is_inline).then_some(changed)
                },
                &debts,
            );
            inline_quotas.requote(requote, &self.secret);
        }
    }

    fn requote_locked(&self, shard: &mut Shard, requote: Requote<'_>, debts: &[ChangedDebts]) {
        let now = shard.arrive(self.clock.now(), &self.clock);
        shard.requote(now, requote, debts, &self.accounting, &self.secret);
    }

    fn changed_debts(&self, policy: &ChangedPolicy) -> ChangedDebts {
        let now = self.clock.moment(self.clock.now());
        let lasts_us = |quota: &Quota| shard::longest_us(quota, now);
        let keeps = |quota: &Quota| policy.old.iter().any(|old| old.algorithm() == quota.algorithm());
        ChangedDebts {
            policy: policy.number,
            lasts_us: policy.new.iter().map(lasts_us).max().unwrap_or(0),
            is_fresh: !policy.new.iter().any(keeps),
        }
    }

    /// The seed of the keys' hashes.
    pub(crate) fn secret(&self) -> &HashSeed {
        &self.secret
    }

    #[inline]
    fn address(&self, id: KeyId, policy: u32) -> Address {
        Address { id, policy, place: self.secret.place_of(id, policy) }
    }

    #[inline]
    fn shard_of(&self, place: u64) -> usize {
        // With a single shard, the shift is 64 bits.
        #[allow(clippy::cast_possible_truncation)] // at most 16 bits are left
        let at = place.checked_shr(self.shift).unwrap_or(0) as usize;
        at
    }

    #[inline]
    fn lock(&self, at: usize) -> MutexGuard<'_, ShardData> {
        self.shards[at].0.lock()
    }
}

/// Keys whose shards are locked.
struct LockedKeys<'s> {
    store: &'s MemoryStore,
    /// Each key, and which of the locked shards it is in.
    keys: PerCharge<(Address, usize)>,
    shards: PerCharge<MutexGuard<'s, ShardData>>,
    now: Moment,
}

impl<'s> LockedKeys<'s> {
    /// No keys yet, at the store's time.
    #[inline]
    fn new(store: &'s MemoryStore) -> Self {
        let now = store.clock.now();
        let now = Moment { at: now, wall: now };
        Self { store, keys: PerCharge::new(), shards: PerCharge::new(), now }
    }

    #[inline]
    fn lock_charges(&mut self, charges: &[Charge<'_>]) {
        let secret = &self.store.secret;
        self.lock(charges.iter().map(|charge| (charge.key.id(secret), charge.number)));
    }

    /// Locks the shards of these keys once each, in ascending order, and sets the time of the
    /// decision.
    #[inline]
    fn lock(&mut self, keys: impl ExactSizeIterator<Item = (KeyId, u32)>) {
        let store = self.store;
        let mut shards = PerCharge::<usize>::with_capacity(keys.len());
        self.keys.reserve_exact(keys.len());
        for (id, policy) in keys {
            let address = store.address(id, policy);
            let shard = store.shard_of(address.place);
            self.keys.push((address, shard));
            shards.push(shard);
        }
        shards.sort_unstable();
        shards.dedup();
        self.shards.reserve_exact(shards.len());
        for at in &shards {
            let mut data = store.lock(*at);
            self.now = data.shard.arrive(self.now.at, &store.clock);
            self.shards.push(data);
        }
        for (_, shard) in &mut self.keys {
            *shard = shards.binary_search(shard).expect("the shard of every key is locked");
        }
    }

    /// The shard of a key, and a peek at it that costs nothing.
    #[inline]
    fn key<'q>(&mut self, at: usize, quota: &'q Quota) -> (&mut ShardData, Call<'q>)
    where
        's: 'q,
    {
        let (address, shard) = self.keys[at];
        let call = Call::peek(address, quota, self.now, &self.store.accounting, &self.store.secret);
        (&mut self.shards[shard], call)
    }

    #[inline]
    fn apply(&mut self, at: usize, charge: &Charge<'_>, verb: Verb, cost: u64) -> Decision {
        let hold = charge.new_hold();
        let (data, call) = self.key(at, charge.quota);
        data.shard.apply(&Call { verb, cost, reserve: hold.as_ref(), ..call })
    }

    /// Decides charges, some of which have an inline quota or share a shard with a key that has one.
    #[cold]
    fn apply_beside_inline_quotas(&mut self, charges: &[Charge<'_>], decided: &mut StoreDecisions) {
        if charges.iter().all(|charge| charge.part.verb == Verb::Refund) {
            return decide(charges, decided, |at, verb, cost| {
                let (data, call) = self.key(at, charges[at].quota);
                data.refund_in_own_window(&Call { verb, cost, ..call }, charges[at].instead_of)
            });
        }
        let mut converted = Vec::new();
        for (at, charge) in charges.iter().enumerate() {
            let (ShardData { shard, inline_quotas, .. }, call) = self.key(at, charge.quota);
            converted.extend(inline_quotas.before(&call, charge.instead_of, shard).map(|one| (at, one)));
        }
        decide(charges, decided, |at, verb, cost| self.apply(at, &charges[at], verb, cost));
        for (at, charge) in charges.iter().enumerate() {
            let (ShardData { shard, inline_quotas, .. }, call) = self.key(at, charge.quota);
            inline_quotas.after(&call, charge.instead_of.is_some(), shard);
        }
        // A charge of nothing leaves its key unchanged.
        for (at, one) in converted.into_iter().rev() {
            let (ShardData { shard, inline_quotas, .. }, call) = self.key(at, charges[at].quota);
            let is_moved = |(charge, after): (&Charge<'_>, &Decision)| {
                after.cost > 0
                    && charge.reserve.is_none()
                    && (charge.number, &charge.key) == (charges[at].number, &charges[at].key)
            };
            if !charges.iter().zip(&decided.decisions).any(is_moved) {
                inline_quotas.undo(&call, one, shard);
            }
        }
    }
}

impl ShardData {
    /// Refunds in the key's current window, and decides under the quota of the call.
    fn refund_in_own_window(&mut self, call: &Call<'_>, instead_of: Option<&Quota>) -> Decision {
        let Self { shard, inline_quotas, .. } = self;
        let own = inline_quotas.quota(&call.address).or(instead_of.copied());
        let Some(own) = own.filter(|own| own.window_code() != call.quota.window_code()) else {
            let converted = inline_quotas.before(call, instead_of, shard);
            let decision = shard.apply(call);
            match converted {
                Some(converted) if decision.cost == 0 => inline_quotas.undo(call, converted, shard),
                Some(converted) => inline_quotas.convert_back(call, &converted, shard),
                None => inline_quotas.after(call, instead_of.is_some(), shard),
            }
            return decision;
        };
        let mut peek = |shard: &mut Shard| {
            let call = Call { verb: Verb::Peek, cost: 0, ..*call };
            let converted = inline_quotas.before(&call, instead_of, shard);
            let decision = shard.apply(&call);
            if let Some(converted) = converted {
                inline_quotas.undo(&call, converted, shard);
            }
            decision
        };
        // At most what counts under the quota of the call.
        let cost = call.cost.min(peek(shard).used);
        let refunded = shard.apply(&Call { quota: &own, cost, ..*call }).cost;
        Decision { cost: refunded, ..peek(shard) }
    }

    /// Runs `run` on a key, under the inline quota that it has.
    fn on_key<T>(&mut self, call: &Call<'_>, run: impl FnOnce(&mut Shard, &Call<'_>) -> T) -> T {
        match self.inline_quotas.quota(&call.address) {
            Some(quota) => run(&mut self.shard, &Call { quota: &quota, ..*call }),
            None => run(&mut self.shard, call),
        }
    }
}

/// The old and the new quota of a policy's key; `None` if its quota did not change.
pub(crate) type Requote<'q> = &'q dyn Fn(u32, KeyId) -> Option<(Quota, Quota)>;

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

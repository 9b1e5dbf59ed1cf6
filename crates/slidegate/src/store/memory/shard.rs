//! A shard: one table per algorithm, under one lock.

mod eviction;
mod held;
mod listed;
mod saved;

use super::Requote;
use super::accounting::{Accounting, allocated};
use super::debts::{ChangedDebts, Debts};
use super::held_keys::{HeldKeys, KeyHolds};
use super::table::{Removed, Slot, Table, Tick, Value, first_table_bytes};
use crate::algorithm::{
    self, InFlight, SavedState, State, VerbEffect, decision, for_algorithm, for_each_rate,
    inspect_with_holds, perform,
};
use crate::decision::Decision;
use crate::hold::NewHold;
use crate::key::{HashSeed, KeyId};
use crate::policy_reset::ScannedKeys;
use crate::quota::{Algorithm, Quota};
use crate::sync::Ordering;
use crate::time::{Moment, TimeSource, Timestamp};
use crate::usage::KeyInspection;
use crate::verb::Verb;
use held::open_hold;

pub(super) use saved::{Copy, Restored};

/// The identity of a policy's key, with its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) id: KeyId,
    pub(super) policy: u32,
    pub(super) place: u64,
}

/// The keys of a shard.
///
/// The fields that every decision reads share a cache line with the lock; those of a table take one
/// more, except for fixed windows.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Shard {
    /// Holds, if a key of this shard ever had one.
    held: Option<Box<HeldKeys>>,
    /// Time of the last decision in this shard.
    latest: Timestamp,
    /// Work since the start, wrapping: 1 per decision, [`NEW_KEY`] per new key. It triggers sweeps.
    done: u32,
    /// Whether the quota of a key may differ from call to call.
    pub(super) has_inline_quotas: bool,
    /// Bytes of the tables and of what their keys have on the heap, as allocated.
    bytes: usize,
    /// Debts of evicted keys, if any.
    debts: Option<Box<Debts>>,
    /// Aligns the tables.
    _padding: [u64; 3],
    tables: Tables,
}

/// A table is found by its first 32 bytes. The lock and two pointers precede the shard.
#[cfg(all(target_pointer_width = "64", not(loom)))]
const _: () = {
    use std::mem::offset_of;
    let tables = 24 + offset_of!(Shard, tables);
    assert!((tables + offset_of!(Tables, sliding_log)) % 64 <= 32);
    assert!((tables + offset_of!(Tables, sliding_window)) % 64 <= 32);
    assert!((tables + offset_of!(Tables, token_bucket)) % 64 <= 32);
};

/// Slots per sweep. They are consecutive, because each separate slot would be a cache miss.
const SWEEP_SLOTS: usize = 64;
/// Work between sweeps: one slot is swept per eight decisions,
const SWEEP_EVERY: u32 = 512;
/// and eight slots per new key, so that sweeping is faster than the growth of the table.
const NEW_KEY: u32 = 64;
/// A state that has a table in a shard.
pub(super) trait Stored: SavedState + Clone + Value {
    fn table(shard: &mut Shard) -> &mut Table<Self>;

    /// The table of the state, with that of the holds.
    fn beside_holds(shard: &mut Shard) -> (&mut Table<Self>, &mut Table<KeyHolds>);
}

macro_rules! tables {
    ($($state:ident $table:ident),*) => {
        /// One table per algorithm.
        #[derive(Debug, Default)]
        #[repr(C)]
        struct Tables {
            $($table: Table<algorithm::$state>),*
        }

        impl Tables {
            fn sweep(&mut self, now: Tick, slots: usize, seed: &HashSeed) -> Removed {
                let mut all = Removed::default();
                $(
                    let removed = self.$table.sweep(now, slots, seed, |_, _| {});
                    all.keys += removed.keys;
                    all.heap_bytes += removed.heap_bytes;
                )*
                all
            }

            /// Bytes of the tables themselves.
            fn bytes(&self) -> usize {
                0 $(+ self.$table.bytes())*
            }

            /// Undoes the growth of tables that need less by now.
            fn shrink(&mut self, seed: &HashSeed) {
                $(if let Some(slots) = self.$table.shrinks_to() {
                    self.$table.resize(slots, seed);
                })*
            }
        }

        $(impl Value for algorithm::$state {
            #[inline(always)]
            fn heap_bytes(&self) -> usize {
                State::heap_bytes(self)
            }
        }

        impl Stored for algorithm::$state {
            #[inline]
            fn table(shard: &mut Shard) -> &mut Table<Self> {
                &mut shard.tables.$table
            }

            fn beside_holds(shard: &mut Shard) -> (&mut Table<Self>, &mut Table<KeyHolds>) {
                (&mut shard.tables.$table, &mut shard.held.get_or_insert_default().holds)
            }
        })*
    };
}
for_each_rate!(tables);

impl Value for InFlight {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl Stored for InFlight {
    fn table(shard: &mut Shard) -> &mut Table<Self> {
        &mut shard.held.get_or_insert_default().in_flight
    }

    fn beside_holds(shard: &mut Shard) -> (&mut Table<Self>, &mut Table<KeyHolds>) {
        let HeldKeys { in_flight, holds, .. } = &mut **shard.held.get_or_insert_default();
        (in_flight, holds)
    }
}

/// One operation on one key.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) verb: Verb,
    pub(super) address: Address,
    pub(super) quota: &'a Quota,
    pub(super) cost: u64,
    /// The hold that a check makes instead of charging.
    pub(super) reserve: Option<&'a NewHold>,
    pub(super) now: Moment,
    pub(super) accounting: &'a Accounting,
    pub(super) secret: &'a HashSeed,
}

/// Puts a key back as it was before it was converted, under the quota of the call.
pub(super) type PutBack = Box<dyn FnOnce(&mut Shard, &Call<'_>)>;

impl<'a> Call<'a> {
    /// A peek that costs nothing.
    #[inline]
    pub(super) fn peek(
        address: Address,
        quota: &'a Quota,
        now: Moment,
        accounting: &'a Accounting,
        secret: &'a HashSeed,
    ) -> Self {
        Self { verb: Verb::Peek, address, quota, cost: 0, reserve: None, now, accounting, secret }
    }
}

impl Shard {
    /// The time to decide at, for a thread that read `now` before it got the lock.
    ///
    /// The thread may have waited while others decided. Its reading is then too old and must not
    /// look like a backward step, so the clock is read again.
    #[inline]
    pub(super) fn arrive(&mut self, now: Timestamp, clock: &TimeSource) -> Moment {
        self.latest = if now < self.latest { clock.now() } else { now };
        clock.moment(self.latest)
    }

    /// Applies the verb to one key.
    #[inline]
    pub(super) fn apply(&mut self, call: &Call<'_>) -> Decision {
        self.work(1, call);
        if self.held.is_some() || call.reserve.is_some() {
            return self.apply_beside_holds(call);
        }
        for_algorithm!(call.quota.algorithm(), S => self.apply_to::<S>(call))
    }

    #[inline(always)] // as `decision`
    fn apply_to<S: Stored>(&mut self, call: &Call<'_>) -> Decision {
        let Call { verb, quota, cost, now, .. } = *call;
        let table = S::table(self);
        let Some(at) = table.find(&call.address) else { return self.apply_to_missing::<S>(*call) };
        let slot = table.slot(at);
        let time = time_for::<S>(now);
        let heap_bytes = State::heap_bytes(&slot.state);
        let settled = slot.state.settle(quota, time.as_micros());
        let done = perform(&mut slot.state, quota, settled, verb, cost);
        let decision = decision(&slot.state, quota, time, settled, done);
        slot.note(quota.share_of(decision.used), expiry(now, decision.waits.reset_us));
        let heap_bytes_now = State::heap_bytes(&slot.state);
        if heap_bytes_now != heap_bytes {
            self.resized(heap_bytes, heap_bytes_now, call);
        }
        if decision.used == 0 {
            self.keep_forgiven::<S>(call);
        }
        Decision { at: now.wall, ..decision }
    }

    /// Applies the verb to a key that is not stored, and may owe something.
    ///
    /// Takes the call by value, so that it is on the stack only here.
    #[inline(never)]
    fn apply_to_missing<S: Stored>(&mut self, call: Call<'_>) -> Decision {
        match self.owed::<S>(&call) {
            Some((state, until)) => self.apply_to_new(&call, state, Some(until)),
            None => self.apply_to_new(&call, S::default(), None),
        }
    }

    /// Applies the verb to a key that is not stored, in this state. It is stored only if something counts,
    /// and a key that owes only if something was charged or refunded.
    fn apply_to_new<S: Stored>(
        &mut self,
        call: &Call<'_>,
        mut state: S,
        owes_until: Option<Tick>,
    ) -> Decision {
        let Call { verb, quota, cost, now, .. } = *call;
        let time = time_for::<S>(now);
        let settled = state.settle(quota, time.as_micros());
        let done = perform(&mut state, quota, settled, verb, cost);
        let decision = decision(&state, quota, time, settled, done);
        let (share, expires) = (quota.share_of(decision.used), expiry(now, decision.waits.reset_us));
        match owes_until {
            None if decision.used > 0 => self.add(call, state, share, expires),
            // The debt may be another key's, so it is no evidence of a second use.
            Some(until) if done.has_moved() => self.add(call, state, share, expires.later(until, tick(now))),
            _ => {}
        }
        Decision { at: now.wall, ..decision }
    }

    /// Stores a new key.
    fn add<S: Stored>(&mut self, call: &Call<'_>, state: S, rank: u8, expires: Tick) {
        self.admit::<S>(call);
        let heap_bytes = State::heap_bytes(&state);
        S::table(self).insert(&call.address, state, rank, expires, call.secret);
        if heap_bytes > 0 {
            self.resized(0, heap_bytes, call);
        }
    }

    /// Counts work and sweeps when enough was done.
    #[inline]
    fn work(&mut self, units: u32, call: &Call<'_>) {
        let before = self.done / SWEEP_EVERY;
        self.done = self.done.wrapping_add(units);
        if self.done / SWEEP_EVERY != before {
            self.sweep(call.now.at, SWEEP_SLOTS, call.accounting, call.secret);
        }
    }

    /// Counts a new key and makes room for it: evicts a key if the store is full.
    fn admit<S: Stored>(&mut self, call: &Call<'_>) {
        self.work(NEW_KEY, call);
        if call.accounting.held.fetch_add(1, Ordering::Relaxed) >= call.accounting.max_keys {
            self.drop_weakest(call);
        }
        if S::table(self).grows_to().is_some() {
            self.grow::<S>(call);
        }
    }

    /// Counts bytes that a key's state takes on the heap now, and evicts other keys if they are more
    /// than there are.
    #[cold]
    fn resized(&mut self, from: usize, to: usize, call: &Call<'_>) {
        self.changed_bytes(allocated(from), allocated(to), call);
    }

    /// Counts bytes as allocated, and evicts keys if they are more than there are.
    pub(super) fn changed_bytes(&mut self, from: usize, to: usize, call: &Call<'_>) {
        if to <= from {
            return self.give(from - to, call.accounting);
        }
        if !self.take(to - from, call.accounting) {
            self.force(to - from, call.accounting);
            self.make_room(call);
        }
    }

    /// Bytes of the first table of each algorithm. A new key may have them although the store is
    /// full and there is no other key in its shard to evict.
    pub(super) fn first_tables_bytes() -> usize {
        Algorithm::ALL
            .into_iter()
            .map(|algorithm| for_algorithm!(algorithm, S => first_table_bytes::<S>()))
            .sum()
    }

    /// Removes a key.
    fn remove<S: Stored>(&mut self, at: usize, call: &Call<'_>) -> S {
        let state = S::table(self).remove(at, call.secret);
        let heap_bytes = allocated(State::heap_bytes(&state));
        self.removed(Removed { keys: 1, heap_bytes }, call.accounting);
        state
    }

    /// Counts keys that are gone.
    fn removed(&mut self, removed: Removed, accounting: &Accounting) {
        if removed.keys > 0 {
            accounting.held.fetch_sub(removed.keys, Ordering::Relaxed);
            self.give(removed.heap_bytes, accounting);
        }
    }

    /// Runs what may shrink the tables, and counts their bytes.
    fn track<T>(&mut self, accounting: &Accounting, run: impl FnOnce(&mut Tables) -> T) -> T {
        let before = self.tables.bytes();
        let done = run(&mut self.tables);
        self.give(before - self.tables.bytes(), accounting);
        done
    }

    /// Takes bytes that are about to be allocated. Returns false if the store has no more.
    pub(super) fn take(&mut self, more: usize, accounting: &Accounting) -> bool {
        let is_admitted = accounting.admit(self.bytes, self.bytes + more);
        if is_admitted {
            self.bytes += more;
        }
        is_admitted
    }

    /// Takes bytes that have to be allocated.
    pub(super) fn force(&mut self, more: usize, accounting: &Accounting) {
        accounting.force(self.bytes, self.bytes + more);
        self.bytes += more;
    }

    /// Gives bytes back.
    pub(super) fn give(&mut self, less: usize, accounting: &Accounting) {
        if less > 0 {
            accounting.admit(self.bytes, self.bytes - less);
            self.bytes -= less;
        }
    }

    /// Removes expired keys from the next `slots` slots of each table. Returns how many.
    pub(super) fn sweep(
        &mut self,
        now: Timestamp,
        slots: usize,
        accounting: &Accounting,
        secret: &HashSeed,
    ) -> usize {
        let now = Tick::at(now.as_micros());
        let removed = self.track(accounting, |tables| tables.sweep(now, slots, secret));
        self.removed(removed, accounting);
        if self.debts.as_ref().is_some_and(|debts| debts.is_over(now)) {
            self.debts = None;
            accounting.count(Debts::bytes_of(accounting.debt_buckets), 0);
        }
        if let Some(held) = &mut self.held {
            let before = held.bytes();
            let swept = held.sweep(now, slots, accounting, secret);
            let less = before - held.bytes();
            self.give(swept.heap_bytes + less, accounting);
        }
        removed.keys
    }

    /// Converts every key to its new quota; see [`Requote`].
    pub(super) fn requote(
        &mut self,
        now: Moment,
        requote: Requote<'_>,
        changed: &[ChangedDebts],
        accounting: &Accounting,
        secret: &HashSeed,
    ) {
        self.settle_holds_before(now, requote, accounting, secret);
        if let Some(debts) = &mut self.debts {
            debts.requote(changed, now.at.as_micros());
        }
        for algorithm in Algorithm::ALL {
            let removed = for_algorithm!(algorithm, S => {
                S::table(self).retain(secret, |policy, id, slot| match requote(policy, id) {
                    None => true,
                    // A key under another algorithm starts afresh.
                    Some((old, new)) if (old.algorithm(), new.algorithm()) != (algorithm, algorithm) => false,
                    Some((old, new)) => refit(slot, &old, &new, now),
                })
            });
            self.removed(removed, accounting);
        }
    }

    /// Converts one key from its old quota to the call's. Returns what puts it back.
    #[allow(clippy::clone_on_copy)] // a log is no copy
    pub(super) fn requote_one(&mut self, call: &Call<'_>, old: &Quota) -> Option<PutBack> {
        let by_old = Call { quota: old, ..*call };
        if self.holds_of(&call.address).is_some() {
            self.settle_holds(&by_old);
        }
        for_algorithm!(old.algorithm(), S => {
            let table = S::table(self);
            let at = table.find(&call.address)?;
            let state = table.slot(at).state.clone();
            // Usage under one algorithm means nothing to another.
            let is_kept = old.algorithm() == call.quota.algorithm()
                && refit(table.slot(at), old, call.quota, call.now);
            if !is_kept {
                self.remove::<S>(at, call);
            }
            Some(Box::new(move |shard, call| {
                if let Some(at) = S::table(shard).find(&call.address) {
                    shard.remove::<S>(at, call);
                }
                shard.apply_to_new(&Call { verb: Verb::Peek, cost: 0, ..*call }, state, None);
            }))
        })
    }

    /// The full usage of a key.
    #[allow(clippy::clone_on_copy)] // a log is no copy
    pub(super) fn inspect(&mut self, call: &Call<'_>) -> KeyInspection {
        let holds = self.holds_of(&call.address).cloned().unwrap_or_default();
        for_algorithm!(call.quota.algorithm(), S => {
            let table = S::table(self);
            let state = table.find(&call.address).map(|at| table.slot(at).state.clone());
            let state = state.or_else(|| self.owed::<S>(call).map(|(state, _)| state));
            let times = (time_for::<S>(call.now), call.now.at);
            let (mut found, holds) =
                inspect_with_holds(state.unwrap_or_default(), holds, call.quota, times, call.cost);
            found.holds =
                holds.iter().filter(|hold| !hold.has_ended).map(|hold| open_hold(&hold, call.now)).collect();
            found.holds.sort_by_key(|hold| hold.until);
            found.decision.at = call.now.wall;
            if !S::ALIGNS_TO_DATE {
                for run in &mut found.charges {
                    run.at = call.now.wall_time_of(run.at);
                }
            }
            found
        })
    }

    /// Removes all keys of these policies.
    pub(super) fn forget_policies(
        &mut self,
        policies: &[u32],
        accounting: &Accounting,
        secret: &HashSeed,
    ) -> ScannedKeys {
        let mut forgot = ScannedKeys::default();
        for algorithm in Algorithm::ALL {
            let removed = for_algorithm!(algorithm, S => {
                S::table(self).retain(secret, |policy, _, _| {
                    forgot.scanned += 1;
                    !policies.contains(&policy)
                })
            });
            self.removed(removed, accounting);
            forgot.forgotten += removed.keys as u64;
        }
        if let Some(debts) = &mut self.debts {
            policies.iter().for_each(|policy| debts.forget_policy(*policy));
        }
        if let Some(held) = &mut self.held {
            let removed = held.forget_policies(policies, accounting, secret);
            forgot.scanned += removed.keys as u64;
            forgot.forgotten += removed.keys as u64;
            self.give(removed.heap_bytes, accounting);
        }
        forgot
    }

    /// Whether a key is stored under this algorithm, or has holds.
    pub(super) fn holds(&mut self, address: &Address, algorithm: Algorithm) -> bool {
        for_algorithm!(algorithm, S => S::table(self).find(address).is_some())
            || self.holds_of(address).is_some()
    }

    /// Whether other keys of the same policy are stored. Examines each slot.
    pub(super) fn has_others(&mut self, than: &Address) -> bool {
        Algorithm::ALL
            .into_iter()
            .any(|algorithm| for_algorithm!(algorithm, S => S::table(self).has_others(than)))
            || self.held.as_ref().is_some_and(|held| held.holds.has_others(than))
    }

    /// Removes a key with its holds. Returns whether anything still counted.
    pub(super) fn forget(&mut self, call: &Call<'_>) -> bool {
        let mut is_held = false;
        if self.holds_of(&call.address).is_some() {
            self.settle_holds(call);
            if let Some(held) = &mut self.held {
                let removed = held.remove(call);
                is_held = removed.keys > 0;
                self.give(removed.heap_bytes, call.accounting);
            }
        }
        let is_used = self.forget_usage(call);
        let is_owed = for_algorithm!(call.quota.algorithm(), S => self.forgive::<S>(call));
        is_used || is_owed || is_held
    }

    /// Removes the usage of a key under every algorithm. Returns whether anything still counted.
    fn forget_usage(&mut self, call: &Call<'_>) -> bool {
        let mut counted = false;
        for algorithm in Algorithm::ALL {
            counted |= for_algorithm!(algorithm, S => {
                let table = S::table(self);
                match table.find(&call.address) {
                    None => false,
                    Some(at) => {
                        let mut state = self.remove::<S>(at, call);
                        let settled = state.settle(call.quota, time_for::<S>(call.now).as_micros());
                        state.used(call.quota, settled) > 0
                    }
                }
            });
        }
        counted
    }
}

/// The time by which the algorithm counts.
#[inline]
fn time_for<S: State>(now: Moment) -> Timestamp {
    if S::ALIGNS_TO_DATE { now.wall } else { now.at }
}

/// Settles the state under the old quota and continues under the new one. Returns whether anything
/// still counts.
fn refit<S: State>(slot: &mut Slot<S>, old: &Quota, new: &Quota, now: Moment) -> bool {
    let time = time_for::<S>(now);
    let settled = slot.state.settle(old, time.as_micros());
    if old.window_code() != new.window_code() {
        slot.state.adopt(old, new, settled);
    }
    let settled = slot.state.settle(new, time.as_micros());
    let decision = decision(&slot.state, new, time, settled, VerbEffect::Moved(0));
    slot.note_again(new.share_of(decision.used), expiry(now, decision.waits.reset_us));
    decision.used > 0
}

/// The longest that any usage of a key can count from now on.
pub(super) fn longest_us(quota: &Quota, now: Moment) -> u64 {
    for_algorithm!(quota.algorithm(), S => {
        S::default().wait_after_charge(quota, time_for::<S>(now).as_micros(), quota.max_used())
    })
}

/// The time by which keys expire.
fn tick(now: Moment) -> Tick {
    Tick::at(now.at.as_micros())
}

/// When nothing counts, by elapsed time, which wall clock corrections do not change.
#[inline]
fn expiry(now: Moment, reset_us: u64) -> Tick {
    Tick::after(now.at.as_micros(), reset_us)
}

//! A shard: one table per algorithm, under one lock.

use super::table::{Slot, Table, Tick};
use super::{KeyCount, Requote};
use crate::algorithm::{self, Done, State, decision, for_algorithm, for_each_algorithm, inspect, perform};
use crate::decision::Decision;
use crate::key::{HashSeed, KeyId};
use crate::policy_reset::ScannedKeys;
use crate::quota::{Algorithm, Quota};
use crate::sync::Ordering;
use crate::time::{Moment, TimeSource, Timestamp};
use crate::usage::KeyInspection;
use crate::verb::Verb;

/// The identity of a policy's key, with its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) id: KeyId,
    pub(super) policy: u32,
    pub(super) place: u64,
}

/// The keys of a shard.
#[derive(Debug, Default)]
pub(super) struct Shard {
    tables: Tables,
    /// Time of the last decision in this shard.
    latest: Timestamp,
    /// Work since the start, wrapping: 1 per decision, [`NEW_KEY`] per new key. It triggers sweeps.
    done: u32,
}

/// Slots per sweep. They are consecutive, because each separate slot would be a cache miss.
const SWEEP_SLOTS: usize = 64;
/// Work between sweeps: one slot is swept per eight decisions,
const SWEEP_EVERY: u32 = 512;
/// and eight slots per new key, so that sweeping is faster than the growth of the table.
const NEW_KEY: u32 = 64;
/// Slots among which the weakest key is searched when the store is full.
const FEW: usize = 16;
/// Most slots that are searched if all keys so far were used more than once. Linear probing forms
/// clusters whose last keys are the newest, so several clusters are needed to find a key of a flood
/// among ten times as many busy keys. The slots are read in order.
const MANY: usize = 256;

/// A state that has a table in a shard.
trait Stored: State + Clone {
    fn table(shard: &mut Shard) -> &mut Table<Self>;
}

macro_rules! tables {
    ($($state:ident $table:ident),*) => {
        /// One table per algorithm.
        #[derive(Debug, Default)]
        struct Tables {
            $($table: Table<algorithm::$state>),*
        }

        impl Tables {
            fn sweep(&mut self, now: Tick, slots: usize, seed: &HashSeed) -> usize {
                0 $(+ self.$table.sweep(now, slots, seed))*
            }
        }

        $(impl Stored for algorithm::$state {
            #[inline]
            fn table(shard: &mut Shard) -> &mut Table<Self> {
                &mut shard.tables.$table
            }
        })*
    };
}
for_each_algorithm!(tables);

/// One operation on one key.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) verb: Verb,
    pub(super) address: Address,
    pub(super) quota: &'a Quota,
    pub(super) cost: u64,
    pub(super) now: Moment,
    pub(super) key_count: &'a KeyCount,
    pub(super) secret: &'a HashSeed,
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
        for_algorithm!(call.quota.algorithm(), S => self.apply_to::<S>(call))
    }

    #[inline(always)] // as `decision`
    fn apply_to<S: Stored>(&mut self, call: &Call<'_>) -> Decision {
        let Call { verb, quota, cost, now, .. } = *call;
        let table = S::table(self);
        let Some(at) = table.find(&call.address) else { return self.apply_to_new::<S>(*call) };
        let slot = table.slot(at);
        let time = time_for::<S>(now);
        let settled = slot.state.settle(quota, time.as_micros());
        let done = perform(&mut slot.state, quota, settled, verb, cost);
        let decision = decision(&slot.state, quota, time, settled, done);
        slot.note(quota.share_of(decision.used), expiry(now, &decision));
        Decision { at: now.wall, ..decision }
    }

    /// Applies the verb to a key that is not stored. It is stored only if something is charged.
    ///
    /// Takes the call by value, so that it is on the stack only here.
    #[inline(never)]
    fn apply_to_new<S: Stored>(&mut self, call: Call<'_>) -> Decision {
        let Call { verb, quota, cost, now, .. } = call;
        let mut state = S::default();
        let time = time_for::<S>(now);
        let settled = state.settle(quota, time.as_micros());
        let done = perform(&mut state, quota, settled, verb, cost);
        let decision = decision(&state, quota, time, settled, done);
        if decision.used > 0 {
            self.admit(&call);
            let share = quota.share_of(decision.used);
            S::table(self).insert(&call.address, state, share, expiry(now, &decision), call.secret);
        }
        Decision { at: now.wall, ..decision }
    }

    /// Counts work and sweeps when enough was done.
    #[inline]
    fn work(&mut self, units: u32, call: &Call<'_>) {
        let before = self.done / SWEEP_EVERY;
        self.done = self.done.wrapping_add(units);
        if self.done / SWEEP_EVERY != before {
            self.sweep(call.now.at, SWEEP_SLOTS, call.key_count, call.secret);
        }
    }

    /// Counts a new key, and evicts one if the store is full.
    fn admit(&mut self, call: &Call<'_>) {
        self.work(NEW_KEY, call);
        if call.key_count.held.fetch_add(1, Ordering::Relaxed) >= call.key_count.max_keys {
            self.drop_weakest(call);
        }
    }

    /// Evicts the weakest of some keys of this shard. If the shard has no keys, the store
    /// temporarily holds one more than its maximum.
    #[cold]
    fn drop_weakest(&mut self, call: &Call<'_>) {
        let now = tick(call.now.at.as_micros());
        let found = Algorithm::ALL.into_iter().filter_map(|algorithm| {
            let weakest = for_algorithm!(algorithm, S => S::table(self).weakest(now, FEW, MANY));
            weakest.map(|weakest| (weakest, algorithm))
        });
        let Some((weakest, algorithm)) = found.min_by_key(|(weakest, _)| *weakest) else { return };
        for_algorithm!(algorithm, S => {
            S::table(self).remove(weakest.at, call.secret);
        });
        call.key_count.held.fetch_sub(1, Ordering::Relaxed);
        if weakest.counts {
            call.key_count.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes expired keys from the next `slots` slots of each table. Returns how many.
    pub(super) fn sweep(
        &mut self,
        now: Timestamp,
        slots: usize,
        key_count: &KeyCount,
        secret: &HashSeed,
    ) -> usize {
        let now = tick(now.as_micros());
        let removed = self.tables.sweep(now, slots, secret);
        if removed > 0 {
            key_count.held.fetch_sub(removed, Ordering::Relaxed);
        }
        removed
    }

    /// Converts every key to its new quota; see [`Requote`].
    pub(super) fn requote(
        &mut self,
        now: Moment,
        requote: Requote<'_>,
        key_count: &KeyCount,
        secret: &HashSeed,
    ) {
        let mut removed = 0;
        for algorithm in Algorithm::ALL {
            removed += for_algorithm!(algorithm, S => {
                S::table(self).retain(secret, |policy, id, slot| match requote(policy, id) {
                    None => true,
                    // A key under another algorithm starts afresh.
                    Some((old, new)) if (old.algorithm(), new.algorithm()) != (algorithm, algorithm) => false,
                    Some((old, new)) => refit(slot, &old, &new, now),
                })
            });
        }
        key_count.held.fetch_sub(removed, Ordering::Relaxed);
    }

    /// Converts one key from its old quota to the call's.
    pub(super) fn requote_one(&mut self, call: &Call<'_>, old: &Quota) {
        if old.algorithm() != call.quota.algorithm() {
            self.forget(&Call { quota: old, ..*call });
            return;
        }
        for_algorithm!(old.algorithm(), S => {
            let table = S::table(self);
            if let Some(at) = table.find(&call.address)
                && !refit(table.slot(at), old, call.quota, call.now)
            {
                table.remove(at, call.secret);
                call.key_count.held.fetch_sub(1, Ordering::Relaxed);
            }
        });
    }

    /// The full usage of a key.
    #[allow(clippy::clone_on_copy)] // a log is no copy
    pub(super) fn inspect(&mut self, call: &Call<'_>) -> KeyInspection {
        for_algorithm!(call.quota.algorithm(), S => {
            let table = S::table(self);
            let state = table.find(&call.address).map(|at| table.slot(at).state.clone());
            let mut found = inspect(state.unwrap_or_default(), call.quota, time_for::<S>(call.now), call.cost);
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
        key_count: &KeyCount,
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
            key_count.held.fetch_sub(removed, Ordering::Relaxed);
            forgot.forgotten += removed as u64;
        }
        forgot
    }

    /// Whether a key is stored under this algorithm.
    pub(super) fn holds(&mut self, address: &Address, algorithm: Algorithm) -> bool {
        for_algorithm!(algorithm, S => S::table(self).find(address).is_some())
    }

    /// Removes a key under every algorithm. Returns whether anything still counted.
    pub(super) fn forget(&mut self, call: &Call<'_>) -> bool {
        let mut counted = false;
        for algorithm in Algorithm::ALL {
            counted |= for_algorithm!(algorithm, S => {
                let table = S::table(self);
                match table.find(&call.address) {
                    None => false,
                    Some(at) => {
                        let mut state = table.remove(at, call.secret);
                        call.key_count.held.fetch_sub(1, Ordering::Relaxed);
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
    if old.window_us() != new.window_us() {
        slot.state.adopt(new, settled);
    }
    let decision = decision(&slot.state, new, time, settled, Done::Moved(0));
    slot.note_again(new.share_of(decision.used), expiry(now, &decision));
    decision.used > 0
}

/// The first second at which nothing counts any more, by elapsed time, which wall clock corrections
/// do not change.
#[inline]
fn expiry(now: Moment, decision: &Decision) -> Tick {
    tick(now.at.as_micros().saturating_add(decision.waits.reset_us)) + 1
}

/// The last value is never reached, so keys that expire then are kept.
#[inline]
fn tick(us: u64) -> Tick {
    Tick::try_from(us >> 20).unwrap_or(Tick::MAX).min(Tick::MAX - 1)
}

//! Eviction: room for new keys and longer logs in a full store, and what evicted keys owe.

use super::{Address, Call, Shard, Stored, Tick, tick, time_for};
use crate::algorithm::{charge, for_algorithm};
use crate::quota::Algorithm;
use crate::store::memory::debts::{Debt, Debts};
use crate::store::memory::table::{Weakest, table_bytes};
use crate::sync::Ordering;
use crate::time::Timestamp;

/// Slots among which the weakest key is searched when the store is full.
const FEW: usize = 16;
/// Most slots that are searched if all keys so far were used more than once. Linear probing forms
/// clusters whose last keys are the newest, so several clusters are needed to find a key of a flood
/// among ten times as many busy keys. The slots are read in order.
const MANY: usize = 256;
/// Most keys that one new key evicts because bytes are short: more than one only if tables of other
/// algorithms have to shrink first.
const EVICTED_AT_ONCE: usize = 16;
/// Most keys that one longer log evicts. The longest log takes the bytes of some 230 keys, and is
/// charged many times before it doubles.
const EVICTED_FOR_A_LOG: usize = 256;

impl Shard {
    /// Makes room for one more key in a full table: lets the table grow, or evicts keys if bytes are
    /// short.
    #[cold]
    pub(super) fn grow<S: Stored>(&mut self, call: &Call<'_>) {
        for _ in 0..EVICTED_AT_ONCE {
            let Some(slots) = S::table(self).grows_to() else { return };
            let more = table_bytes::<S>(slots) - S::table(self).bytes();
            if self.take(more, call.accounting) {
                return S::table(self).resize(slots, call.secret);
            }
            if !self.drop_weakest(call) {
                break;
            }
        }
        // Other tables gave too little, so this one gives.
        let now = Tick::at(call.now.at.as_micros());
        if let Some(weakest) = S::table(self).weakest(now, FEW, MANY, Some(&call.address)) {
            return self.evict::<S>(weakest, call);
        }
        if let Some(slots) = S::table(self).grows_to() {
            let before = S::table(self).bytes();
            S::table(self).resize(slots, call.secret);
            self.force(table_bytes::<S>(slots) - before, call.accounting);
        }
    }

    /// Evicts keys until the shard is within its bytes, at most as many as a log may evict.
    pub(super) fn make_room(&mut self, call: &Call<'_>) {
        for _ in 0..EVICTED_FOR_A_LOG {
            if !call.accounting.is_short(self.bytes) || !self.drop_weakest(call) {
                return;
            }
        }
    }

    /// Evicts at most as many keys as a new key may.
    pub(in crate::store::memory) fn evict_some(&mut self, call: &Call<'_>) {
        for _ in 0..EVICTED_AT_ONCE {
            self.drop_weakest(call);
        }
    }

    /// Evicts the weakest of some keys of this shard, other than the call's. Returns false if it has
    /// no others; then the store temporarily holds one more than its maximum.
    #[cold]
    pub(super) fn drop_weakest(&mut self, call: &Call<'_>) -> bool {
        let now = Tick::at(call.now.at.as_micros());
        let found = Algorithm::ALL.into_iter().filter_map(|algorithm| {
            let weakest = for_algorithm!(algorithm, S => {
                S::table(self).weakest(now, FEW, MANY, Some(&call.address))
            });
            weakest.map(|weakest| (weakest, algorithm))
        });
        let Some((weakest, algorithm)) = found.min_by_key(|(weakest, _)| *weakest) else { return false };
        for_algorithm!(algorithm, S => self.evict::<S>(weakest, call));
        if call.accounting.has_byte_bound() {
            self.track(call.accounting, |tables| tables.shrink(call.secret));
        }
        true
    }

    fn evict<S: Stored>(&mut self, weakest: Weakest, call: &Call<'_>) {
        let slot = S::table(self).slot(weakest.at);
        let (id, policy, until) = (slot.id(), slot.policy(), slot.expires());
        let state = self.remove::<S>(weakest.at, call);
        let cost = state.most_used();
        if !weakest.counts() || cost == 0 {
            return;
        }
        call.accounting.dropped.fetch_add(1, Ordering::Relaxed);
        let now = tick(call.now);
        let buckets = call.accounting.debt_buckets;
        if buckets == 0 {
            return;
        }
        let debts = self.debts.get_or_insert_with(|| {
            call.accounting.count(0, Debts::bytes_of(buckets));
            Box::new(Debts::new(buckets, now))
        });
        let address = Address { id, policy, place: call.secret.place_of(id, policy) };
        debts.add(&address, Debt { cost, until }, now);
    }

    /// The state of a key that is not stored and may owe something: charged as late as it can have been,
    /// which may be a moment from now, because times are rounded. So what it is told to wait is enough. With
    /// it, the time until which it may owe.
    pub(super) fn owed<S: Stored>(&self, call: &Call<'_>) -> Option<(S, Tick)> {
        let Call { quota, now, .. } = *call;
        let Debt { cost, until } = self.debts.as_ref()?.find(&call.address, tick(now))?;
        let (time, cost) = (time_for::<S>(now).as_micros(), cost.min(quota.max_used()));
        let at = if self.has_inline_quotas {
            // It may have been charged under another quota.
            time
        } else {
            let (after, by) = until.rounded_from(now.at.as_micros());
            let on_scale = |us| {
                let us = Timestamp::from_micros(us);
                if S::ALIGNS_TO_DATE { now.wall_time_of(us) } else { us }.as_micros()
            };
            S::charged_by(quota, cost, on_scale(after), on_scale(by), time)
        };
        let mut state = S::default();
        let at = state.settle(quota, at);
        charge(&mut state, quota, at, cost);
        let settled = state.settle(quota, time);
        (state.used(quota, settled) > 0).then_some((state, until))
    }

    /// Forgives what a key may owe that is not stored: stores it unused for as long. Returns whether it
    /// owed something.
    pub(super) fn forgive<S: Stored>(&mut self, call: &Call<'_>) -> bool {
        let Some((_, until)) = self.owed::<S>(call) else { return false };
        self.add(call, S::default(), 0, until);
        true
    }

    /// Keeps a stored key without counted usage for as long as it would owe something otherwise.
    #[cold]
    pub(super) fn keep_forgiven<S: Stored>(&mut self, call: &Call<'_>) {
        let debt = self.debts.as_ref().and_then(|debts| debts.find(&call.address, tick(call.now)));
        if let Some(debt) = debt
            && let Some(at) = S::table(self).find(&call.address)
        {
            S::table(self).slot(at).note_again(0, debt.until);
        }
    }
}

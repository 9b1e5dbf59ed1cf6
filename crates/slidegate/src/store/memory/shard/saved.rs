//! A shard's part in snapshots: copying its keys, and restoring one.

use super::{Address, Call, Shard, Stored, Tick, expiry, time_for};
use crate::algorithm::{Ages, SavedState, State, VerbEffect, decision, for_algorithm};
use crate::hold::Holds;
use crate::key::HashSeed;
use crate::quota::{Algorithm, Quota};
use crate::store::memory::held_keys;
use crate::store::memory::inline_quotas::InlineQuotas;
use crate::store::memory::snapshot::format::{Record, SavedKey, put};
use crate::store::memory::table::{REPEATED, Slot};
use crate::time::Moment;

/// Selects the keys of a shard to copy.
#[derive(Debug)]
pub(in crate::store::memory) struct Copy<'a> {
    /// The lower half of the hash from which on keys are copied.
    pub(in crate::store::memory) from: u32,
    pub(in crate::store::memory) begin: Moment,
    pub(in crate::store::memory) secret: &'a HashSeed,
    pub(in crate::store::memory) inline_quotas: &'a InlineQuotas,
}

impl Copy<'_> {
    fn key(&self, address: &Address) -> SavedKey {
        let inline = if self.inline_quotas.is_empty() { None } else { self.inline_quotas.fields(address) };
        SavedKey { policy: address.policy, id: address.id.to_saved(), inline }
    }
}

/// The outcome of restoring a saved key.
#[derive(Debug, Clone, core::marker::Copy, PartialEq, Eq)]
pub(in crate::store::memory) enum Restored {
    Counts,
    Expired,
    AlreadyUsed,
}

/// About this many bytes are copied while the shard is locked, in some 20 µs.
const COPIED_BYTES: usize = 32 << 10;
/// Most tables of holds that are copied at once: the largest take 34 kB.
const COPIED_TABLES: usize = 16;
/// Most slots that are copied at once.
const COPIED_SLOTS: usize = 256;

impl Shard {
    /// Appends some keys of one algorithm to a snapshot. Returns how many, and from where on to
    /// continue, or `None` after the last.
    pub(in crate::store::memory) fn copy(
        &mut self,
        copy: &Copy<'_>,
        algorithm: Algorithm,
        out: &mut Vec<u8>,
    ) -> (u64, Option<u32>) {
        let now = Tick::at(copy.begin.at.as_micros());
        let mut keys = 0;
        let bytes = self.bytes;
        let next = for_algorithm!(algorithm, S => {
            let ages = ages_for::<S>(copy.begin);
            let table = S::table(self);
            // Logs may take much more than their slots.
            let slots = COPIED_BYTES / (bytes / table.slots().max(1)).max(1);
            table.visit(copy.from, slots.clamp(1, COPIED_SLOTS), copy.secret, |place, slot: &Slot<S>| {
                if !slot.expires().has_come(now) {
                    let key = copy.key(&Address { id: slot.id(), policy: slot.policy(), place });
                    put(&Record::Usage { key, algorithm, is_repeated: slot.is_repeated() }, out);
                    put(&slot.state.save(ages), out);
                    keys += 1;
                }
            })
        });
        (keys, next)
    }

    /// Appends the holds of some keys to a snapshot. Returns from where on to continue, or `None`
    /// after the last.
    pub(in crate::store::memory) fn copy_holds(&self, copy: &Copy<'_>, out: &mut Vec<u8>) -> Option<u32> {
        let ages = Ages { at_us: copy.begin.at.as_micros() };
        self.held.as_ref()?.visit(copy.from, COPIED_TABLES, copy.secret, |address, holds| {
            put(&Record::Holds(copy.key(&address), holds.save(ages)), out);
        })
    }

    /// Restores the holds of a key, and charges those whose time is over. Returns how many.
    pub(in crate::store::memory) fn restore_holds(&mut self, call: &Call<'_>, holds: Holds) -> u64 {
        if self.holds_of(&call.address).is_some() || holds.is_empty() {
            return 0;
        }
        let (count, bytes) = (holds.iter().len(), held_keys::heap_bytes(&holds));
        call.accounting.count_holds(call.address.policy, 0, count);
        let now_us = call.now.at.as_micros();
        let expires = Tick::after(now_us, holds.latest().saturating_sub(now_us));
        let grown = self.held.get_or_insert_default().insert(call, holds, expires);
        self.changed_bytes(0, bytes + grown, call);
        self.settle_holds(call);
        count as u64
    }

    /// Restores a key under the quota of the call. `old` is the quota that its state was written
    /// under, by the same algorithm, and `begin` the begin of its snapshot. `None` if it cannot have
    /// been saved.
    pub(in crate::store::memory) fn restore<S: Stored>(
        &mut self,
        call: &Call<'_>,
        (saved, is_repeated): (S::Saved, bool),
        old: &Quota,
        begin: Moment,
    ) -> Option<Restored> {
        let (new, time) = (call.quota, time_for::<S>(call.now));
        let mut state = S::load(saved, ages_for::<S>(begin), old, time.as_micros())?;
        if S::table(self).find(&call.address).is_some() {
            return Some(Restored::AlreadyUsed);
        }
        let settled = state.settle(old, time.as_micros());
        if old.window_code() != new.window_code() {
            state.adopt(old, new, settled);
        }
        let settled = state.settle(new, time.as_micros());
        let decision = decision(&state, new, time, settled, VerbEffect::Moved(0));
        if decision.used == 0 {
            return Some(Restored::Expired);
        }
        let rank = new.share_of(decision.used) | if is_repeated { REPEATED } else { 0 };
        self.add(call, state, rank, expiry(call.now, decision.waits.reset_us));
        Some(Restored::Counts)
    }
}

fn ages_for<S: State>(at: Moment) -> Ages {
    Ages { at_us: if S::ALIGNS_TO_DATE { at.wall } else { at.at }.as_micros() }
}

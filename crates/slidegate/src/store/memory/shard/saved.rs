//! A shard's part in snapshots: copying its keys, and restoring one.

use super::{Address, Call, Shard, Stored, Tick, expiry, time_for};
use crate::algorithm::{Ages, Done, Input, SavedState, State, decision, for_algorithm};
use crate::hold::Holds;
use crate::key::{HashSeed, KeyId};
use crate::quota::{Algorithm, Quota};
use crate::store::memory::held_keys;
use crate::store::memory::inline_quotas::InlineQuotas;
use crate::store::memory::table::Slot;
use crate::time::Moment;

/// Which keys of a shard to copy.
#[derive(Debug)]
pub(in crate::store::memory) struct Copy<'a> {
    pub(in crate::store::memory) algorithm: Algorithm,
    /// The lower half of the hash from which on keys are copied.
    pub(in crate::store::memory) from: u32,
    pub(in crate::store::memory) begin: Moment,
    pub(in crate::store::memory) secret: &'a HashSeed,
    pub(in crate::store::memory) inline_quotas: &'a InlineQuotas,
}

/// A key that was saved, up to its state.
#[derive(Debug)]
pub(in crate::store::memory) struct Saved<'a> {
    pub(in crate::store::memory) algorithm: Algorithm,
    /// The quota that its state was written under.
    pub(in crate::store::memory) quota: &'a Quota,
    /// By elapsed time and by the date.
    pub(in crate::store::memory) ages: [Ages; 2],
    pub(in crate::store::memory) is_repeated: bool,
    /// Whether its policy is active.
    pub(in crate::store::memory) is_wanted: bool,
}

/// The outcome of restoring a saved key.
#[derive(Debug, Clone, core::marker::Copy, PartialEq, Eq)]
pub(in crate::store::memory) enum Restored {
    Counts,
    Expired,
    UnknownPolicy,
    OtherAlgorithm,
    AlreadyUsed,
}

/// About so many bytes are copied while the shard is locked, which takes some 20 µs.
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
        out: &mut Vec<u8>,
    ) -> (u64, Option<u32>) {
        let now = Tick::at(copy.begin.at.as_micros());
        let mut keys = 0;
        let bytes = self.bytes;
        let next = for_algorithm!(copy.algorithm, S => {
            let ages = ages_for::<S>([copy.begin.at, copy.begin.wall].map(|at| Ages { at_us: at.as_micros() }));
            let table = S::table(self);
            // Logs may take much more than their slots.
            let slots = COPIED_BYTES / (bytes / table.slots().max(1)).max(1);
            table.visit(copy.from, slots.clamp(1, COPIED_SLOTS), copy.secret, |place, slot: &Slot<S>| {
                if slot.expires().has_come(now) {
                    return;
                }
                let address = Address { id: slot.id(), policy: slot.policy(), place };
                let inline = if copy.inline_quotas.is_empty() { None } else { copy.inline_quotas.fields(&address) };
                let repeated = if slot.is_repeated() { KeyId::IS_REPEATED } else { 0 };
                let flags = repeated | if inline.is_some() { KeyId::HAS_QUOTA } else { 0 };
                out.extend_from_slice(&[copy.algorithm.to_byte(), flags]);
                out.extend_from_slice(&address.policy.to_le_bytes());
                address.id.save(out);
                if let Some(quota) = inline {
                    quota.save(out);
                }
                slot.state.save(ages, out);
                keys += 1;
            })
        });
        (keys, next)
    }

    /// Appends the holds of some keys to a snapshot. Returns from where on to continue, or `None`
    /// after the last.
    pub(in crate::store::memory) fn copy_holds(
        &self,
        from: u32,
        (begin, secret, inline_quotas): (Moment, &HashSeed, &InlineQuotas),
        out: &mut Vec<u8>,
    ) -> Option<u32> {
        let ages = Ages { at_us: begin.at.as_micros() };
        self.held.as_ref()?.visit(from, COPIED_TABLES, secret, |address, holds| {
            let inline = if inline_quotas.is_empty() { None } else { inline_quotas.fields(&address) };
            out.push(if inline.is_some() { KeyId::HAS_QUOTA } else { 0 });
            out.extend_from_slice(&address.policy.to_le_bytes());
            address.id.save(out);
            if let Some(quota) = inline {
                quota.save(out);
            }
            holds.save(ages, out);
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

    /// Restores a key under the quota of the call. `None` if the input is malformed.
    pub(in crate::store::memory) fn restore(
        &mut self,
        call: &Call<'_>,
        saved: &Saved<'_>,
        input: &mut Input<'_>,
    ) -> Option<Restored> {
        for_algorithm!(saved.algorithm, S => self.restore_to::<S>(call, saved, input))
    }

    fn restore_to<S: Stored + SavedState>(
        &mut self,
        call: &Call<'_>,
        saved: &Saved<'_>,
        input: &mut Input<'_>,
    ) -> Option<Restored> {
        let (old, new, time) = (saved.quota, call.quota, time_for::<S>(call.now));
        let mut state = S::load(input, ages_for::<S>(saved.ages), old, time.as_micros())?;
        if !saved.is_wanted {
            return Some(Restored::UnknownPolicy);
        }
        if new.algorithm() != saved.algorithm || old.algorithm() != saved.algorithm {
            return Some(Restored::OtherAlgorithm);
        }
        if S::table(self).find(&call.address).is_some() {
            return Some(Restored::AlreadyUsed);
        }
        let settled = state.settle(old, time.as_micros());
        if old.window_us() != new.window_us() {
            state.adopt(old, new, settled);
        }
        let settled = state.settle(new, time.as_micros());
        let decision = decision(&state, new, time, settled, Done::Moved(0));
        if decision.used == 0 {
            return Some(Restored::Expired);
        }
        let (share, expires) = (new.share_of(decision.used), expiry(call.now, decision.waits.reset_us));
        self.add(call, state, share, expires);
        let table = S::table(self);
        if saved.is_repeated
            && let Some(at) = table.find(&call.address)
        {
            table.slot(at).note(share, expires);
        }
        Some(Restored::Counts)
    }
}

fn ages_for<S: State>([elapsed, date]: [Ages; 2]) -> Ages {
    if S::ALIGNS_TO_DATE { date } else { elapsed }
}

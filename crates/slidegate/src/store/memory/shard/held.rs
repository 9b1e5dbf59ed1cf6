//! A shard's keys with holds.

use super::{Call, Shard, Stored, expiry, tick, time_for};
use crate::algorithm::{HeldKey, State, VerbEffect, for_algorithm};
use crate::decision::Decision;
use crate::hold::{EndedHold, Hold, HoldChange, HoldStatus, Holds};
use crate::key::HashSeed;
use crate::store::memory::Requote;
use crate::store::memory::accounting::Accounting;
use crate::store::memory::held_keys;
use crate::store::memory::shard::Address;
use crate::time::{Moment, Timestamp};
use crate::usage::OpenHold;

impl Shard {
    /// Applies the verb in a shard in which keys have holds.
    #[inline(never)]
    pub(super) fn apply_beside_holds(&mut self, call: &Call<'_>) -> Decision {
        if call.reserve.is_none() && self.holds_of(&call.address).is_none() {
            return for_algorithm!(call.quota.algorithm(), S => self.apply_to::<S>(call));
        }
        let room = match call.reserve {
            Some(_) => call.accounting.room_for_holds(call.address.policy),
            None => usize::MAX,
        };
        for_algorithm!(call.quota.algorithm(), S => self.on_held::<S, _>(call, |key| {
            ((), key.perform(call.verb, call.cost, call.reserve, room))
        }).1)
    }

    /// Whether a change of a key's hold fits.
    pub(in crate::store::memory) fn change_fits(
        &mut self,
        call: &Call<'_>,
        id: u64,
        change: &HoldChange,
    ) -> bool {
        for_algorithm!(call.quota.algorithm(), S => self.on_held::<S, _>(call, |key| {
            (key.change_fits(id, change), VerbEffect::Moved(0))
        }).0)
    }

    /// Changes a hold of a key.
    pub(in crate::store::memory) fn change(
        &mut self,
        call: &Call<'_>,
        id: u64,
        change: &HoldChange,
        ended: &EndedHold,
    ) -> (HoldStatus, Decision) {
        self.work(1, call);
        // The record of an ended hold takes as much room as an open one. Without room, nothing is
        // returned, because a repeated call could not be recognized, and a late charge may be
        // charged twice.
        let has_room = call.accounting.room_for_holds(call.address.policy) > 0;
        for_algorithm!(call.quota.algorithm(), S => self.on_held::<S, _>(call, |key| {
            let before = key.holds.count();
            if !has_room && matches!(change, HoldChange::Refund { .. }) && key.holds.find(id).is_none() {
                return (HoldStatus::Changed, VerbEffect::Moved(0));
            }
            let changed = key.change(id, change, ended);
            if !has_room && key.holds.count() > before {
                key.holds.remove_newest();
            }
            changed
        }))
    }

    /// The holds of a key, if it has any.
    pub(super) fn holds_of(&self, address: &Address) -> Option<&Holds> {
        let held = self.held.as_ref()?;
        held.find(address).map(|at| held.get(at))
    }

    /// Settles a key with its holds, and runs a change of it.
    fn on_held<S: Stored, T>(
        &mut self,
        call: &Call<'_>,
        run: impl FnOnce(&mut HeldKey<'_, S>) -> (T, VerbEffect),
    ) -> (T, Decision) {
        let is_missing = self.debts.is_some() && S::table(self).find(&call.address).is_none();
        let (owed, owes_until) = is_missing.then(|| self.owed::<S>(call)).flatten().unzip();
        let (usage, held) = S::beside_holds(self);
        let (used_at, held_at) = (usage.find(&call.address), held.find(&call.address));
        let (mut new_state, mut new_holds) = (owed.unwrap_or_default(), Holds::default());
        let state = used_at.map_or(&mut new_state, |at| &mut usage.slot(at).state);
        let holds = held_at.map_or(&mut new_holds, |at| &mut held.slot(at).state.holds);
        let sizes = |state: &S, holds: &Holds| {
            (holds.iter().len(), held_keys::heap_bytes(holds), State::heap_bytes(state))
        };
        let before = sizes(state, holds);
        let mut key = HeldKey::settle(state, holds, call.quota, time_for::<S>(call.now), call.now.at);
        let (outcome, done) = run(&mut key);
        let decision = key.decision(done);
        let after = sizes(state, holds);
        let (has_holds, earliest) = (!holds.is_empty(), holds.earliest());
        // A key with holds is evicted last.
        let share = if has_holds { u8::MAX >> 1 } else { call.quota.share_of(decision.used) };
        let expires = expiry(call.now, decision.waits.reset_us);
        let expires = owes_until.map_or(expires, |until| expires.later(until, tick(call.now)));
        if let Some(at) = used_at {
            usage.slot(at).note(share, expires);
        }
        let mut grown = 0;
        match held_at {
            Some(at) if has_holds => {
                let slot = held.slot(at);
                slot.state.quota = call.quota.fields();
                slot.note(0, expires);
            }
            Some(at) => drop(held.remove(at, call.secret)),
            None if has_holds => {
                grown = self.held.get_or_insert_default().insert(call, new_holds, expires);
            }
            None => {}
        }
        if has_holds && let Some(held) = &mut self.held {
            held.earliest = held.earliest.min(earliest);
        }
        call.accounting.count_holds(call.address.policy, before.0, after.0);
        let is_stored = match owes_until {
            None => decision.used > 0,
            Some(_) => before.0 > 0 || has_holds || done.has_moved(),
        };
        if used_at.is_none() && is_stored {
            self.add(call, new_state, share, expires);
        } else if used_at.is_some() && before.2 != after.2 {
            self.resized(before.2, after.2, call);
        }
        if before.1 != after.1 + grown {
            self.changed_bytes(before.1, after.1 + grown, call);
        }
        if decision.used == 0 && used_at.is_some() {
            self.keep_forgiven::<S>(call);
        }
        (outcome, Decision { at: call.now.wall, ..decision })
    }

    /// Charges the holds whose time is over by the quotas that are about to change.
    pub(super) fn settle_holds_before(
        &mut self,
        now: Moment,
        requote: Requote<'_>,
        accounting: &Accounting,
        secret: &HashSeed,
    ) {
        let Some(held) = &mut self.held else { return };
        for address in held.addresses(secret) {
            if let Some((old, new)) = requote(address.policy, address.id) {
                self.settle_holds(&Call::peek(address, &old, now, accounting, secret));
                if let Some(held) = &mut self.held
                    && let Some(at) = held.find(&address)
                {
                    held.holds.slot(at).state.quota = new.fields();
                }
            }
        }
    }

    /// Ends the holds of some keys whose time is over. Returns of how many keys, or `None` if that was
    /// known without a search.
    pub(in crate::store::memory) fn end_due_holds(
        &mut self,
        now: Moment,
        accounting: &Accounting,
        secret: &HashSeed,
    ) -> Option<usize> {
        let now_us = now.at.as_micros();
        let held = self.held.as_mut().filter(|held| held.earliest <= now_us)?;
        let due = held.take_due(now_us, secret);
        for (address, quota) in &due {
            self.settle_holds(&Call::peek(*address, quota, now, accounting, secret));
        }
        Some(due.len())
    }

    /// Charges the holds of a key whose time is over.
    pub(super) fn settle_holds(&mut self, call: &Call<'_>) {
        for_algorithm!(call.quota.algorithm(), S => self.on_held::<S, _>(call, |_| ((), VerbEffect::Moved(0))));
    }
}

/// A hold as it is reported: by the date.
pub(super) fn open_hold(hold: &Hold, now: Moment) -> OpenHold {
    let until = now.wall_time_of(Timestamp::from_micros(hold.until));
    OpenHold { id: hold.id, held: hold.held, settled: hold.settled, until, unsettled: hold.unsettled }
}

//! The holds of a shard's keys, in their own table, because most keys have none.
//!
//! The next access to a key ends those whose time is over. If the store has little room for more, they
//! are searched for.

use super::accounting::{Accounting, allocated};
use super::shard::{Address, Call};
use super::table::{Removed, Table, Tick, Value};
use crate::algorithm::InFlight;
use crate::hold::Holds;
use crate::key::HashSeed;
use crate::quota::{Quota, QuotaFields};

/// About this many expired holds are ended at a time, in some 100 µs.
const ENDED_AT_ONCE: usize = 256;

/// The holds of keys, allocated by the first one.
#[derive(Debug, Default)]
pub(super) struct HeldKeys {
    pub(super) holds: Table<KeyHolds>,
    /// No hold ends before. Raised by searches only.
    pub(super) earliest: u64,
    /// In flight nothing is used, so this stays empty.
    pub(super) in_flight: Table<InFlight>,
}

/// The holds of one key.
#[derive(Debug, Default)]
pub(super) struct KeyHolds {
    pub(super) holds: Holds,
    /// The quota to charge when their time is over.
    pub(super) quota: QuotaFields,
}

impl Value for KeyHolds {
    fn heap_bytes(&self) -> usize {
        self.holds.heap_bytes()
    }
}

impl HeldKeys {
    /// Bytes of the table.
    pub(super) fn bytes(&self) -> usize {
        self.holds.bytes()
    }

    /// The slot of a key that has holds.
    #[inline]
    pub(super) fn find(&self, address: &Address) -> Option<usize> {
        self.holds.find(address)
    }

    pub(super) fn get(&self, at: usize) -> &Holds {
        &self.holds.get(at).holds
    }

    /// Adds the holds of a key that has none. Returns the bytes by which the table grew.
    pub(super) fn insert(&mut self, call: &Call<'_>, holds: Holds, expires: Tick) -> usize {
        let before = self.holds.bytes();
        self.earliest = self.earliest.min(holds.earliest());
        let holds = KeyHolds { holds, quota: call.quota.fields() };
        self.holds.insert(&call.address, holds, 0, expires, call.secret);
        self.holds.bytes() - before
    }

    /// Removes the next keys without counted usage.
    pub(super) fn sweep(
        &mut self,
        now: Tick,
        slots: usize,
        accounting: &Accounting,
        secret: &HashSeed,
    ) -> Removed {
        let removing = |policy, key: &KeyHolds| accounting.count_holds(policy, key.holds.count(), 0);
        self.holds.sweep(now, slots, secret, removing)
    }

    /// Some keys with holds whose time is over, and their quotas. O(slots).
    pub(super) fn take_due(&mut self, now: u64, secret: &HashSeed) -> Vec<(Address, Quota)> {
        let (mut due, mut holds, mut earliest) = (Vec::new(), 0, u64::MAX);
        self.holds.retain(secret, |policy, id, slot| {
            let KeyHolds { holds: of_key, quota } = &slot.state;
            match quota.quota().filter(|_| of_key.earliest() <= now && holds < ENDED_AT_ONCE) {
                Some(quota) => {
                    holds += of_key.count();
                    due.push((Address { id, policy, place: secret.place_of(id, policy) }, quota));
                }
                None => earliest = earliest.min(of_key.earliest()),
            }
            true
        });
        self.earliest = earliest;
        due
    }

    /// Removes a key's holds.
    pub(super) fn remove(&mut self, call: &Call<'_>) -> Removed {
        let mut removed = Removed::default();
        if let Some(at) = self.find(&call.address) {
            let key = self.holds.remove(at, call.secret);
            call.accounting.count_holds(call.address.policy, key.holds.count(), 0);
            removed.add(&key);
        }
        removed
    }

    /// Removes the holds of these policies.
    pub(super) fn forget_policies(
        &mut self,
        policies: &[u32],
        accounting: &Accounting,
        secret: &HashSeed,
    ) -> Removed {
        self.holds.retain(secret, |policy, _, slot| {
            let is_kept = !policies.contains(&policy);
            if !is_kept {
                accounting.count_holds(policy, slot.state.holds.count(), 0);
            }
            is_kept
        })
    }

    /// Visits some keys, as [`Table::visit`].
    pub(super) fn visit(
        &self,
        from: u32,
        slots: usize,
        secret: &HashSeed,
        mut visit: impl FnMut(Address, &Holds),
    ) -> Option<u32> {
        self.holds.visit(from, slots, secret, |place, slot| {
            visit(Address { id: slot.id(), policy: slot.policy(), place }, &slot.state.holds);
        })
    }

    /// Every key that has holds.
    pub(super) fn addresses(&mut self, secret: &HashSeed) -> Vec<Address> {
        let mut all = Vec::with_capacity(self.holds.len());
        self.holds.retain(secret, |policy, id, _| {
            all.push(Address { id, policy, place: secret.place_of(id, policy) });
            true
        });
        all
    }
}

/// Bytes of a key's holds outside the table, as allocated.
pub(super) fn heap_bytes(holds: &Holds) -> usize {
    allocated(holds.heap_bytes())
}

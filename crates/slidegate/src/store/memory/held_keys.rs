//! The holds of a shard's keys, in a table beside those of their usage: most keys have none.

use super::accounting::{Accounting, allocated};
use super::shard::{Address, Call};
use super::table::{Removed, Table, Tick, Value};
use crate::algorithm::InFlight;
use crate::hold::Holds;
use crate::key::HashSeed;

/// The holds of keys, allocated by the first one.
#[derive(Debug, Default)]
pub(super) struct HeldKeys {
    pub(super) holds: Table<Holds>,
    /// In flight nothing is used, so this stays empty.
    pub(super) in_flight: Table<InFlight>,
}

impl Value for Holds {
    fn heap_bytes(&self) -> usize {
        Holds::heap_bytes(self)
    }

    fn holds(&self) -> usize {
        self.iter().len()
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
        self.holds.get(at)
    }

    /// Adds the holds of a key that has none. Returns the bytes by which the table grew.
    pub(super) fn insert(&mut self, call: &Call<'_>, holds: Holds, expires: Tick) -> usize {
        let before = self.holds.bytes();
        self.holds.insert(&call.address, holds, 0, expires, call.secret);
        self.holds.bytes() - before
    }

    /// Removes the next keys of which nothing counts any more.
    pub(super) fn sweep(&mut self, now: Tick, slots: usize, secret: &HashSeed) -> Removed {
        self.holds.sweep(now, slots, secret)
    }

    /// Removes a key's holds.
    pub(super) fn remove(&mut self, call: &Call<'_>) -> Removed {
        let mut removed = Removed::default();
        if let Some(at) = self.find(&call.address) {
            removed.add(&self.holds.remove(at, call.secret));
        }
        removed
    }

    /// Removes the holds of these policies. Calls `removing` for each key.
    pub(super) fn forget_policies(
        &mut self,
        policies: &[u32],
        secret: &HashSeed,
        mut removing: impl FnMut(Address),
    ) -> Removed {
        self.holds.retain(secret, |policy, id, _| {
            let is_kept = !policies.contains(&policy);
            if !is_kept {
                removing(Address { id, policy, place: secret.place_of(id, policy) });
            }
            is_kept
        })
    }

    /// Visits some keys, as [`Table::visit`].
    #[cfg(feature = "snapshot")]
    pub(super) fn visit(
        &self,
        from: u32,
        slots: usize,
        secret: &HashSeed,
        mut visit: impl FnMut(Address, &Holds),
    ) -> Option<u32> {
        self.holds.visit(from, slots, secret, |place, slot| {
            visit(Address { id: slot.id(), policy: slot.policy(), place }, &slot.state);
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

/// Bytes of a key's holds outside of the table, as allocated.
pub(super) fn heap_bytes(holds: &Holds) -> usize {
    allocated(holds.heap_bytes())
}

/// Counts holds that were added or have ended.
pub(super) fn count(before: usize, after: usize, accounting: &Accounting) {
    use crate::sync::Ordering::Relaxed;
    if after > before {
        accounting.holds.fetch_add(after - before, Relaxed);
    } else if before > after {
        accounting.holds.fetch_sub(before - after, Relaxed);
    }
}

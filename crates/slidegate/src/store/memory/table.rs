//! An open-addressing hash table of keys and their states under one algorithm.
//!
//! A key's identity and state are stored together. One byte of each key's hash is in a separate
//! array that stays in the processor's cache. Probing reads only that array, so a decision on a
//! cold key needs one memory access. Linear probing with backward-shift deletion (Knuth, TAOCP 3,
//! algorithm 6.4R) needs no tombstones. The table grows by an eighth at 7/8 full, so above its
//! first sizes at most 22 % of it is empty.

use super::shard::Address;
use crate::key::{HashSeed, KeyId};

/// Keys by identity and policy; at most 2^32.
#[derive(Debug)]
pub(super) struct Table<S> {
    slots: Box<[Slot<S>]>,
    /// For each slot the [`tag`] of its key, or 0 if it is empty.
    tags: Box<[u8]>,
    len: u32,
    /// The slot at which sweeping and eviction continue.
    hand: u32,
}

/// A key with its state.
#[derive(Debug, Default)]
pub(super) struct Slot<S> {
    id: KeyId,
    /// The policy's number in the upper 24 bits, the eviction rank in the lower 8.
    policy_and_rank: u32,
    /// When nothing of the state counts any more.
    expires: Tick,
    pub(super) state: S,
}

/// Time since the epoch in units of 2^20 microseconds, about a second. Lasts until 2112.
pub(super) type Tick = u32;

/// Bit of the rank for keys that were used more than once, which are evicted last.
const REPEATED: u32 = 0x80;
/// Bits of the rank for how full the key is.
const SHARE: u32 = 0x7F;

/// Slots of the first allocation.
const FIRST_SLOTS: usize = 8;
/// A table with fewer slots doubles, because growing by an eighth would happen for nearly every
/// key.
const DOUBLES_BELOW: usize = 64;

/// The key to evict first; see [`Table::weakest`]. The order of the fields defines the order of
/// eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Weakest {
    /// Expired keys (false) are evicted first.
    pub(super) counts: bool,
    rank: u32,
    expires: Tick,
    pub(super) at: usize,
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { slots: Box::default(), tags: Box::default(), len: 0, hand: 0 }
    }
}

impl<S> Slot<S> {
    fn policy(&self) -> u32 {
        self.policy_and_rank >> 8
    }

    fn is_at(&self, address: &Address) -> bool {
        self.id == address.id && self.policy() == address.policy
    }

    /// Stores how full the key is (0 to 127) and when it expires, after another use.
    #[inline]
    pub(super) fn note(&mut self, share: u8, expires: Tick) {
        self.policy_and_rank |= REPEATED;
        self.note_again(share, expires);
    }

    /// The same without a use, after a change of the quota.
    #[inline]
    pub(super) fn note_again(&mut self, share: u8, expires: Tick) {
        self.policy_and_rank = self.policy_and_rank & !SHARE | u32::from(share);
        self.expires = expires;
    }
}

impl<S: Default> Table<S> {
    /// The slot of a key, if it is stored. Expected time O(1).
    #[inline]
    pub(super) fn find(&self, address: &Address) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let (mut at, tag) = (home(address.place, self.slots.len()), tag(address.place));
        loop {
            match self.tags[at] {
                0 => return None,
                same if same == tag && self.slots[at].is_at(address) => return Some(at),
                _ => at = self.after(at),
            }
        }
    }

    #[inline]
    pub(super) fn slot(&mut self, at: usize) -> &mut Slot<S> {
        &mut self.slots[at]
    }

    /// Inserts a key that is not stored.
    pub(super) fn insert(
        &mut self,
        address: &Address,
        state: S,
        share: u8,
        expires: Tick,
        secret: &HashSeed,
    ) {
        let slots = self.slots.len();
        if self.len as usize >= slots - slots / 8 {
            self.resize(
                if slots < DOUBLES_BELOW { (slots * 2).max(FIRST_SLOTS) } else { slots + slots / 8 },
                secret,
            );
        }
        let policy_and_rank = address.policy << 8 | u32::from(share);
        self.place(address.place, Slot { id: address.id, policy_and_rank, expires, state });
        self.len += 1;
    }

    /// Removes a key and closes the gap by shifting back the keys that were probed past it.
    pub(super) fn remove(&mut self, at: usize, secret: &HashSeed) -> S {
        let removed = std::mem::take(&mut self.slots[at]);
        self.tags[at] = 0;
        self.len -= 1;
        let (mut gap, mut next) = (at, self.after(at));
        while self.tags[next] != 0 {
            let home = self.home_of(&self.slots[next], secret);
            // A key stays if its home slot is cyclically in (gap, next].
            let stays = if gap < next { gap < home && home <= next } else { gap < home || home <= next };
            if !stays {
                self.slots[gap] = std::mem::take(&mut self.slots[next]);
                self.tags[gap] = std::mem::take(&mut self.tags[next]);
                gap = next;
            }
            next = self.after(next);
        }
        removed.state
    }

    /// Removes expired keys from the next `count` slots. Returns how many.
    pub(super) fn sweep(&mut self, now: Tick, count: usize, secret: &HashSeed) -> usize {
        let mut removed = 0;
        for _ in 0..count.min(self.slots.len()) {
            let at = self.hand_at();
            if self.tags[at] != 0 && self.slots[at].expires <= now {
                self.remove(at, secret);
                removed += 1;
            } else {
                self.move_hand(at);
            }
        }
        if self.slots.len() > DOUBLES_BELOW && (self.len as usize) < self.slots.len() / 4 {
            self.resize(self.slots.len() / 2, secret);
        }
        removed
    }

    /// Removes the keys for which `keep` returns false. Returns how many.
    pub(super) fn retain(
        &mut self,
        secret: &HashSeed,
        mut keep: impl FnMut(u32, KeyId, &mut Slot<S>) -> bool,
    ) -> usize {
        let mut removed = 0;
        let mut at = 0;
        while at < self.slots.len() {
            let slot = &mut self.slots[at];
            let (policy, id) = (slot.policy(), slot.id);
            if self.tags[at] == 0 || keep(policy, id, slot) {
                at += 1;
            } else {
                // Another key may have moved to this slot, so examine it again. Where the table
                // wraps, some keys are examined twice.
                self.remove(at, secret);
                removed += 1;
            }
        }
        removed
    }

    /// The key to evict among the next `few` slots. Searches up to `many` slots if all keys so far
    /// were used more than once, and further only if all were empty. `None` for an empty table.
    pub(super) fn weakest(&mut self, now: Tick, few: usize, many: usize) -> Option<Weakest> {
        let mut weakest: Option<Weakest> = None;
        for seen in 0..self.slots.len() {
            let at = self.hand_at();
            self.move_hand(at);
            let slot = &self.slots[at];
            if self.tags[at] != 0 {
                let rank = slot.policy_and_rank & 0xFF;
                let counts = slot.expires > now;
                let found = Weakest { counts, rank, expires: slot.expires, at };
                weakest = Some(weakest.map_or(found, |best| best.min(found)));
            }
            let enough = |best: Weakest| !best.counts || seen >= few && best.rank < REPEATED || seen >= many;
            let enough = weakest.is_some_and(enough);
            if enough {
                break;
            }
        }
        weakest
    }

    fn hand_at(&self) -> usize {
        // The table may have shrunk since.
        let hand = self.hand as usize;
        if hand < self.slots.len() { hand } else { 0 }
    }

    fn move_hand(&mut self, at: usize) {
        #[allow(clippy::cast_possible_truncation)] // a table has at most 2^32 slots
        let next = self.after(at) as u32;
        self.hand = next;
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn home_of(&self, slot: &Slot<S>, secret: &HashSeed) -> usize {
        home(secret.place_of(slot.id, slot.policy()), self.slots.len())
    }

    fn place(&mut self, place: u64, slot: Slot<S>) {
        let mut at = home(place, self.slots.len());
        while self.tags[at] != 0 {
            at = self.after(at);
        }
        self.tags[at] = tag(place);
        self.slots[at] = slot;
    }

    #[cold]
    fn resize(&mut self, slots: usize, secret: &HashSeed) {
        let fresh = (0..slots).map(|_| Slot::default()).collect();
        let tags = std::mem::replace(&mut self.tags, vec![0; slots].into_boxed_slice());
        for (slot, tag) in std::mem::replace(&mut self.slots, fresh).into_iter().zip(tags) {
            if tag != 0 {
                self.place(secret.place_of(slot.id, slot.policy()), slot);
            }
        }
    }
}

/// The home slot: the lower half of the hash, scaled to the table (Lemire, "Fast random integer
/// generation in an interval", 2019).
#[inline]
fn home(place: u64, slots: usize) -> usize {
    ((place & 0xFFFF_FFFF) as usize * slots) >> 32
}

/// A byte of the hash that is independent of the home slot; never 0.
#[inline]
fn tag(place: u64) -> u8 {
    #[allow(clippy::cast_possible_truncation)] // one byte of it
    let byte = (place >> 32) as u8;
    byte.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn address(secret: &HashSeed, key: u16, policy: u32) -> Address {
        let id = secret.id_of(&key.to_le_bytes());
        Address { id, policy, place: secret.place_of(id, policy) }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u32, Tick),
        Remove(u16, u32),
        Sweep(Tick, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let key = 0u16..300;
        let step = prop_oneof![
            4 => (key.clone(), 0u32..3, 0u32..100).prop_map(|(k, p, t)| Step::Insert(k, p, t)),
            2 => (key, 0u32..3).prop_map(|(k, p)| Step::Remove(k, p)),
            1 => (0u32..100, 0usize..40).prop_map(|(t, n)| Step::Sweep(t, n)),
        ];
        proptest::collection::vec(step, 0..800)
    }

    proptest! {
        /// A key lost by backward shifting would start afresh with its full limit.
        #[test]
        fn it_holds_what_a_map_holds(steps in steps()) {
            let secret = HashSeed::random();
            let mut table = Table::<u64>::default();
            let mut map = BTreeMap::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(key, policy, expires) => {
                        let address = address(&secret, key, policy);
                        if table.find(&address).is_none() {
                            table.insert(&address, n as u64, 0, expires, &secret);
                            map.insert((key, policy), (n as u64, expires));
                        }
                    }
                    Step::Remove(key, policy) => {
                        let removed = table.find(&address(&secret, key, policy)).map(|at| table.remove(at, &secret));
                        prop_assert_eq!(removed, map.remove(&(key, policy)).map(|(state, _)| state));
                    }
                    Step::Sweep(now, count) => {
                        let removed = table.sweep(now, count, &secret);
                        let before = map.len();
                        map.retain(|(key, policy), (_, expires)| {
                            *expires > now || table.find(&address(&secret, *key, *policy)).is_some()
                        });
                        prop_assert_eq!(before - map.len(), removed);
                    }
                }
                prop_assert_eq!(table.len as usize, map.len());
            }
            for ((key, policy), (state, _)) in map {
                let at = table.find(&address(&secret, key, policy)).expect("a key that was put in is found");
                prop_assert_eq!(table.slot(at).state, state);
            }
        }
    }

    /// The documentation states the size of a key.
    #[test]
    fn slots_are_as_small_as_promised() {
        use crate::algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
        assert_eq!(size_of::<Slot<FixedWindow>>(), 40);
        assert_eq!(size_of::<Slot<SlidingWindow>>(), 48);
        assert_eq!(size_of::<Slot<TokenBucket>>(), 48);
        assert_eq!(size_of::<Slot<SlidingLog>>(), 80);
    }
}

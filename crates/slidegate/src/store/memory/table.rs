//! An open-addressing hash table of keys and their states under one algorithm.
//!
//! A key's identity and state are stored together. One byte of each key's hash is in a separate
//! array that stays in the processor's cache. Probing reads only that array, so a decision on a
//! cold key needs one memory access. Linear probing with backward-shift deletion (Knuth, TAOCP 3,
//! algorithm 6.4R) needs no tombstones. The table grows by an eighth at 7/8 full, so above its
//! first sizes at most 22 % of it is empty.

use super::accounting::allocated;
use super::shard::Address;
use crate::key::{HashSeed, KeyId};

/// Keys by identity and policy; at most 2^32.
#[derive(Debug)]
#[repr(C)] // what finding a key reads comes first
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
    /// When nothing of the state counts.
    expires: Tick,
    pub(super) state: S,
}

/// A point in time, in units of 2^17 microseconds (131 ms) modulo 2^32. Points are compared by the
/// shorter way around, so they must be less than 8.9 years apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tick(u32);

impl Tick {
    const BITS: u32 = 17;
    /// The furthest point ahead: half of what can be compared, so that it is still ahead of a clock
    /// that has stepped back.
    const FURTHEST_US: u64 = (1 << 30) << Self::BITS;

    /// The point at a time in microseconds, rounded down.
    #[inline]
    pub(super) fn at(us: u64) -> Self {
        #[allow(clippy::cast_possible_truncation)] // modulo 2^32
        let ticks = (us >> Self::BITS) as u32;
        Self(ticks)
    }

    /// The first point later than `wait_us` microseconds after a time, or than 4.4 years if that is
    /// less.
    #[inline]
    pub(super) fn after(us: u64, wait_us: u64) -> Self {
        Self(Self::at(us.saturating_add(wait_us.min(Self::FURTHEST_US))).0.wrapping_add(1))
    }

    #[inline]
    pub(super) fn has_come(self, now: Self) -> bool {
        self.left(now) <= 0
    }

    /// Units from `now` on, negative if it is past.
    #[inline]
    fn left(self, now: Self) -> i32 {
        self.0.wrapping_sub(now.0).cast_signed()
    }

    /// The later of two, seen from `now`.
    #[inline]
    pub(super) fn later(self, other: Self, now: Self) -> Self {
        if self.left(now) < other.left(now) { other } else { self }
    }

    /// The times in microseconds between which the end lay that this was [rounded up](Self::after)
    /// from: it was later than the first, and no later than the second, from which on it has come.
    pub(super) fn rounded_from(self, now_us: u64) -> (u64, u64) {
        let left = self.left(Self::at(now_us));
        let until = (now_us >> Self::BITS).saturating_add_signed(left.into()) << Self::BITS;
        (until.saturating_sub((1 << Self::BITS) + 1), until)
    }

    /// The bits to store.
    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }
}

/// Bit of the rank for keys that were used more than once, which are evicted last.
pub(super) const REPEATED: u8 = 0x80;
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
    /// The rank, then the time until it expires; 0 for expired keys, which are evicted first. One number:
    /// a search that compares fields takes five times as long.
    strength: u64,
    pub(super) at: usize,
}

impl Weakest {
    /// Whether it has not expired.
    pub(super) fn counts(self) -> bool {
        self.strength > 0
    }

    fn is_repeated(self) -> bool {
        self.strength >= u64::from(REPEATED) << 32
    }
}

/// A table's value in each slot.
pub(super) trait Value: Default {
    /// Bytes that it holds outside the slot.
    fn heap_bytes(&self) -> usize;
}

/// Keys that were removed together.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Removed {
    pub(super) keys: usize,
    /// Bytes outside the table that they held, as allocated.
    pub(super) heap_bytes: usize,
}

impl Removed {
    pub(super) fn add(&mut self, value: &impl Value) {
        self.keys += 1;
        self.heap_bytes += allocated(value.heap_bytes());
    }
}

impl<S> Default for Table<S> {
    fn default() -> Self {
        Self { slots: Box::default(), tags: Box::default(), len: 0, hand: 0 }
    }
}

impl<S> Slot<S> {
    pub(super) fn policy(&self) -> u32 {
        self.policy_and_rank >> 8
    }

    pub(super) fn id(&self) -> KeyId {
        self.id
    }

    pub(super) fn expires(&self) -> Tick {
        self.expires
    }

    /// Whether it was used more than once.
    pub(super) fn is_repeated(&self) -> bool {
        self.policy_and_rank & u32::from(REPEATED) != 0
    }

    fn is_at(&self, address: &Address) -> bool {
        self.id == address.id && self.policy() == address.policy
    }

    /// Stores how full the key is (0 to 127) and when it expires, after another use.
    #[inline]
    pub(super) fn note(&mut self, share: u8, expires: Tick) {
        self.policy_and_rank |= u32::from(REPEATED);
        self.note_again(share, expires);
    }

    /// Updates share and expiry after a change of the quota, without counting a use.
    #[inline]
    pub(super) fn note_again(&mut self, share: u8, expires: Tick) {
        self.policy_and_rank = self.policy_and_rank & !SHARE | u32::from(share);
        self.expires = expires;
    }
}

/// Bytes that a table of this many slots takes.
pub(super) fn table_bytes<S>(slots: usize) -> usize {
    allocated(slots * size_of::<Slot<S>>()) + allocated(slots)
}

/// Bytes of the first table.
pub(super) fn first_table_bytes<S>() -> usize {
    table_bytes::<S>(FIRST_SLOTS)
}

/// Bytes of a key in a table that has just grown, when the most is empty.
pub(super) const fn most_bytes_per_key<S>() -> usize {
    ((size_of::<Slot<S>>() + 1) * 9).div_ceil(7)
}

impl<S: Value> Table<S> {
    /// Bytes of the table itself.
    pub(super) fn bytes(&self) -> usize {
        table_bytes::<S>(self.slots.len())
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of keys.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// The number of slots to grow to before another key is inserted; `None` if it has room.
    pub(super) fn grows_to(&self) -> Option<usize> {
        let slots = self.slots.len();
        let is_full = self.len as usize >= slots - slots / 8;
        is_full.then(|| if slots < DOUBLES_BELOW { (slots * 2).max(FIRST_SLOTS) } else { slots + slots / 8 })
    }

    /// The number of slots to shrink to when bytes are short, undoing one growth; `None` if the
    /// table would soon grow again.
    pub(super) fn shrinks_to(&self) -> Option<usize> {
        let slots = self.slots.len() / 9 * 8;
        (slots >= DOUBLES_BELOW && self.len as usize <= slots / 16 * 13).then_some(slots)
    }

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

    /// Whether it has other keys of the same policy. O(slots).
    pub(super) fn has_others(&self, than: &Address) -> bool {
        let mut used = self.slots.iter().zip(&self.tags).filter(|(_, tag)| **tag != 0);
        used.any(|(slot, _)| slot.policy() == than.policy && !slot.is_at(than))
    }

    #[inline]
    pub(super) fn slot(&mut self, at: usize) -> &mut Slot<S> {
        &mut self.slots[at]
    }

    pub(super) fn get(&self, at: usize) -> &S {
        &self.slots[at].state
    }

    /// Inserts a key that is not stored.
    pub(super) fn insert(&mut self, address: &Address, state: S, rank: u8, expires: Tick, secret: &HashSeed) {
        if let Some(slots) = self.grows_to() {
            self.resize(slots, secret);
        }
        let policy_and_rank = address.policy << 8 | u32::from(rank);
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

    /// Removes expired keys from the next `count` slots. Calls `removing` for each, with its policy.
    pub(super) fn sweep(
        &mut self,
        now: Tick,
        count: usize,
        secret: &HashSeed,
        mut removing: impl FnMut(u32, &S),
    ) -> Removed {
        let mut removed = Removed::default();
        for _ in 0..count.min(self.slots.len()) {
            let at = self.hand_at();
            if self.tags[at] != 0 && self.slots[at].expires.has_come(now) {
                removing(self.slots[at].policy(), &self.slots[at].state);
                removed.add(&self.remove(at, secret));
            } else {
                self.move_hand(at);
            }
        }
        if self.slots.len() > DOUBLES_BELOW && (self.len as usize) < self.slots.len() / 4 {
            self.resize(self.slots.len() / 2, secret);
        }
        removed
    }

    /// Removes the keys for which `keep` returns false.
    pub(super) fn retain(
        &mut self,
        secret: &HashSeed,
        mut keep: impl FnMut(u32, KeyId, &mut Slot<S>) -> bool,
    ) -> Removed {
        let mut removed = Removed::default();
        let mut at = 0;
        while at < self.slots.len() {
            let slot = &mut self.slots[at];
            let (policy, id) = (slot.policy(), slot.id);
            if self.tags[at] == 0 || keep(policy, id, slot) {
                at += 1;
            } else {
                // Another key may have moved to this slot, so examine it again. Where the table
                // wraps, some keys are examined twice.
                removed.add(&self.remove(at, secret));
            }
        }
        removed
    }

    /// Visits the keys whose hash has a lower half from `from` on, as far as their home is among the
    /// next `slots`. Returns where to continue, or `None` after the last. As the lower half orders the
    /// homes of tables of any size, each key is visited once although the table changes in between.
    pub(super) fn visit(
        &self,
        from: u32,
        slots: usize,
        secret: &HashSeed,
        mut visit: impl FnMut(u64, &Slot<S>),
    ) -> Option<u32> {
        let all = self.slots.len();
        if all == 0 {
            return None;
        }
        let first = home(from.into(), all);
        let end = (first + slots).min(all);
        // The lowest half whose home is `end`.
        let to = (end < all).then(|| ((end as u64) << 32).div_ceil(all as u64));
        let to = to.and_then(|to| u32::try_from(to).ok());
        let mut at = first;
        for seen in 0..all {
            // Keys are at their home or behind it, without an empty slot in between.
            if self.tags[at] == 0 {
                if first + seen >= end {
                    break;
                }
            } else {
                let slot = &self.slots[at];
                let place = secret.place_of(slot.id, slot.policy());
                #[allow(clippy::cast_possible_truncation)] // the lower half
                let half = place as u32;
                if half >= from && to.is_none_or(|to| half < to) {
                    visit(place, slot);
                }
            }
            at = self.after(at);
        }
        to
    }

    /// The key to evict among the next `few` slots, except one. Searches up to `many` slots if all
    /// keys so far were used more than once, and further only if all were empty. `None` for a table
    /// without other keys.
    pub(super) fn weakest(
        &mut self,
        now: Tick,
        few: usize,
        many: usize,
        except: Option<&Address>,
    ) -> Option<Weakest> {
        let mut weakest: Option<Weakest> = None;
        for seen in 0..self.slots.len() {
            let at = self.hand_at();
            self.move_hand(at);
            let slot = &self.slots[at];
            if self.tags[at] != 0 && !except.is_some_and(|address| slot.is_at(address)) {
                let rank = u64::from(slot.policy_and_rank & 0xFF);
                let left = u32::try_from(slot.expires.left(now)).unwrap_or(0);
                let strength = if left > 0 { rank << 32 | u64::from(left) } else { 0 };
                let found = Weakest { strength, at };
                weakest = Some(weakest.map_or(found, |best| best.min(found)));
            }
            let enough = |best: Weakest| !best.counts() || seen >= few && !best.is_repeated() || seen >= many;
            if weakest.is_some_and(enough) {
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

    /// Moves all keys to a table of this many slots.
    #[cold]
    pub(super) fn resize(&mut self, slots: usize, secret: &HashSeed) {
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

    impl Value for u64 {
        fn heap_bytes(&self) -> usize {
            0
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u16, u32, u32),
        Remove(u16, u32),
        Sweep(u32, usize),
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
                            table.insert(&address, n as u64, 0, Tick(expires), &secret);
                            map.insert((key, policy), (n as u64, expires));
                        }
                    }
                    Step::Remove(key, policy) => {
                        let removed = table.find(&address(&secret, key, policy)).map(|at| table.remove(at, &secret));
                        prop_assert_eq!(removed, map.remove(&(key, policy)).map(|(state, _)| state));
                    }
                    Step::Sweep(now, count) => {
                        let removed = table.sweep(Tick(now), count, &secret, |_, _| {});
                        let before = map.len();
                        map.retain(|(key, policy), (_, expires)| {
                            *expires > now || table.find(&address(&secret, *key, *policy)).is_some()
                        });
                        prop_assert_eq!(before - map.len(), removed.keys);
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

    /// A key that a snapshot misses starts with its full limit, and one that it has twice is no key.
    #[test]
    fn every_key_is_visited_once_although_the_table_changes_in_between() {
        let secret = HashSeed::random();
        for (keys, slots) in [(0, 3), (1, 1), (7, 1), (50, 4), (900, 32), (900, 1), (5000, 256)] {
            let mut table = Table::<u64>::default();
            for key in 0..keys {
                table.insert(&address(&secret, key, 1), key.into(), 0, Tick(1), &secret);
            }
            let (mut visited, mut from, mut step) = (Vec::new(), Some(0), 0);
            while let Some(start) = from {
                from = table.visit(start, slots, &secret, |_, slot| {
                    if slot.policy() == 1 {
                        visited.push(slot.state);
                    }
                });
                // Others come and go, and the table grows, shrinks and moves keys.
                for key in 0..40 {
                    let other = address(&secret, step * 40 + key, 2);
                    if let Some(at) = table.find(&other) {
                        table.remove(at, &secret);
                    } else if step % 3 > 0 {
                        table.insert(&other, 0, 0, Tick(1), &secret);
                    }
                }
                step = (step + 1) % 50;
            }
            visited.sort_unstable();
            assert_eq!(visited, (0..u64::from(keys)).collect::<Vec<_>>(), "{keys} keys, {slots} slots");
        }
    }

    /// Ticks begin at 0 again every 17.8 years. Keys must then neither stay nor be lost.
    #[test]
    fn ticks_are_in_order_where_they_begin_again() {
        let round_us = 1 << (32 + Tick::BITS);
        for now_us in [0, 1, round_us / 2, round_us - 1, round_us, 3 * round_us + 5] {
            let now = Tick::at(now_us);
            for wait_us in [0, 1, 1 << Tick::BITS, 60_000_000, 366 * 86_400_000_000, u64::MAX] {
                let until = Tick::after(now_us, wait_us);
                assert!(!until.has_come(now), "{wait_us} us after {now_us}");
                let last_us = now_us + wait_us.min(Tick::FURTHEST_US);
                assert!(!until.has_come(Tick::at(last_us)), "{wait_us} us after {now_us}");
                let past_us = last_us + (1 << Tick::BITS);
                assert!(until.has_come(Tick::at(past_us)), "{wait_us} us after {now_us}");
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

//! Where holds are in the tables of their keys, so that a settlement need not search for its hold.
//!
//! A hint: the script compares the id, and searches if another hold is there. Other instances move
//! holds unseen, so the share of hints that are right falls with their number.

use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tables with fewer holds are searched by reading 480 bytes, which takes no longer than a hint saves.
const FEW: usize = 16;
/// How many holds are known at most: 1 MiB, as many as 128 keys may have. Allocated by the first one.
const ENTRIES: usize = 1 << 17;
/// The entries that a hold may have. If others take all of them, one of those is forgotten.
const WAYS: usize = 4;
/// Bits of an entry that are the place, plus one; the others are of the hold's hash.
const PLACE: u64 = 0xffff;

/// Places of holds, by key and id.
#[derive(Debug, Default)]
pub(super) struct HoldPlaces(OnceLock<Box<[AtomicU64]>>);

impl HoldPlaces {
    /// The place of a hold in the table of the key of this name, counted from 0.
    pub(super) fn get(&self, name: &[u8], id: u64) -> Option<u16> {
        let hash = hash(name, id);
        let found = find(set(self.0.get()?, hash), hash)?.load(Ordering::Relaxed);
        u16::try_from(found & PLACE).ok()?.checked_sub(1)
    }

    /// Notes where a hold is in a table of this many.
    pub(super) fn note(&self, name: &[u8], id: u64, place: usize, holds: usize) {
        if holds <= FEW || place >= usize::from(u16::MAX) {
            return;
        }
        let hash = hash(name, id);
        let set = set(self.0.get_or_init(|| (0..ENTRIES).map(|_| AtomicU64::new(0)).collect()), hash);
        let is_empty = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) == 0;
        let other = || &set[usize::try_from((hash >> 48) % WAYS as u64).unwrap_or_default()];
        let entry = find(set, hash).or_else(|| set.iter().find(is_empty)).unwrap_or_else(other);
        entry.store(hash & !PLACE | (place as u64 + 1), Ordering::Relaxed);
    }

    /// Forgets a hold that has ended, which leaves its entry to another one.
    pub(super) fn forget(&self, name: &[u8], id: u64) {
        let hash = hash(name, id);
        if let Some(entry) = self.0.get().and_then(|entries| find(set(entries, hash), hash)) {
            entry.store(0, Ordering::Relaxed);
        }
    }
}

/// The entries that the hold of this hash may have.
fn set(entries: &[AtomicU64], hash: u64) -> &[AtomicU64] {
    let first = usize::try_from(hash % (ENTRIES / WAYS) as u64).unwrap_or_default() * WAYS;
    &entries[first..first + WAYS]
}

/// The entry of this hash.
fn find(set: &[AtomicU64], hash: u64) -> Option<&AtomicU64> {
    set.iter().find(|entry| {
        let found = entry.load(Ordering::Relaxed);
        found != 0 && (found ^ hash) & !PLACE == 0
    })
}

fn hash(name: &[u8], id: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.write_u64(id);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A settlement that reads the whole table takes eight times a check.
    #[test]
    fn the_place_of_a_hold_is_known_until_it_ends() {
        let places = HoldPlaces::default();
        assert_eq!(places.get(b"alice", 7), None);
        places.note(b"alice", 7, 0, FEW);
        assert_eq!((places.get(b"alice", 7), places.0.get().is_none()), (None, true));
        places.note(b"alice", 7, 0, 17);
        places.note(b"bob", 7, 1023, 1024);
        assert_eq!((places.get(b"alice", 7), places.get(b"bob", 7)), (Some(0), Some(1023)));
        assert_eq!(places.get(b"alice", 8), None);
        places.note(b"alice", 7, 3, 17);
        assert_eq!(places.get(b"alice", 7), Some(3));
        places.forget(b"alice", 7);
        places.forget(b"carol", 7);
        assert_eq!((places.get(b"alice", 7), places.get(b"bob", 7)), (None, Some(1023)));
    }

    /// Forty keys with a thousand holds each must not displace one another.
    #[test]
    fn many_holds_are_known_at_once_and_their_number_is_bounded() {
        let places = HoldPlaces::default();
        let note = |ids: std::ops::Range<u64>| ids.for_each(|id| places.note(b"alice", id, 5, 1000));
        let known = |ids: std::ops::Range<u64>| ids.filter(|id| places.get(b"alice", *id) == Some(5)).count();
        note(0..40_000);
        assert!(known(0..40_000) > 39_000, "{}", known(0..40_000));
        note(40_000..1_000_000);
        assert!(known(0..1_000_000) <= ENTRIES);
        assert!(known(990_000..1_000_000) > 9_000, "the newest ones take entries of others");
    }
}

//! Where holds are in the tables of their keys, so that a settlement need not search for its hold.
//!
//! A hint: the script compares the id, and searches if another hold is there. Other instances move
//! holds unseen, so the share of hints that are right falls with their number.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::hold::MAX_HOLDS;

/// How many holds are known at most: 128 KiB. Two that share an entry displace each other.
const ENTRIES: usize = 16_384;
/// Bits of an entry that are the place, plus one; the others are of the hold's hash.
const PLACE_BITS: u32 = 16;
const PLACE: u64 = (1 << PLACE_BITS) - 1;

/// Places of holds, by key and id.
#[derive(Debug)]
pub(super) struct HoldPlaces(Box<[AtomicU64]>);

impl Default for HoldPlaces {
    fn default() -> Self {
        Self((0..ENTRIES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl HoldPlaces {
    /// The place of a hold in the table of the key of this name, counted from 0.
    pub(super) fn get(&self, name: &[u8], id: u64) -> Option<u16> {
        let hash = hash(name, id);
        let found = self.entry(hash).load(Ordering::Relaxed);
        let place = u16::try_from(found & PLACE).ok()?.checked_sub(1)?;
        ((found ^ hash) & !PLACE == 0).then_some(place)
    }

    /// Notes where a hold is.
    pub(super) fn note(&self, name: &[u8], id: u64, place: usize) {
        if place < MAX_HOLDS {
            let hash = hash(name, id);
            self.entry(hash).store(hash & !PLACE | (place as u64 + 1), Ordering::Relaxed);
        }
    }

    fn entry(&self, hash: u64) -> &AtomicU64 {
        &self.0[usize::try_from(hash % ENTRIES as u64).unwrap_or_default()]
    }
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
    fn the_place_of_a_hold_is_known_until_another_one_displaces_it() {
        let places = HoldPlaces::default();
        assert_eq!(places.get(b"alice", 7), None);
        places.note(b"alice", 7, 0);
        places.note(b"bob", 7, MAX_HOLDS - 1);
        assert_eq!((places.get(b"alice", 7), places.get(b"bob", 7)), (Some(0), Some(1023)));
        assert_eq!(places.get(b"alice", 8), None);
        places.note(b"alice", 7, 3);
        places.note(b"alice", 7, MAX_HOLDS);
        assert_eq!(places.get(b"alice", 7), Some(3), "no table has more");
        for id in 0..1_000_000 {
            places.note(b"carol", id, 5);
        }
        assert_eq!(places.get(b"alice", 7), None, "the number of entries is bounded");
        assert_eq!(places.get(b"carol", 999_999), Some(5));
    }
}

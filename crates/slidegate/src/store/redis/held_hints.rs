//! What was last seen of keys with holds, so that their next call need not find it out.
//!
//! Hints, which the scripts check: a key with holds that is missing costs a second call, and one that
//! is left a slower script. A hold whose place in the table of its key is not known, or not right, is
//! searched for. Other instances move holds unseen, so the share of places that are right falls with
//! their number.

use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tables with fewer holds are searched by reading 480 bytes, which takes no longer than a place saves.
const FEW: usize = 16;
/// How many hints there are at most: 1 MiB, for the holds of 128 full keys. Allocated by the first one:
/// without reservations a call costs one load more.
const ENTRIES: usize = 1 << 17;
/// The entries that a hint may have. If others take all of them, one of those is forgotten.
const WAYS: usize = 4;
/// Bits of an entry that are the place, plus one; the others are of the hash.
const PLACE: u64 = 0xffff;
/// In the place of a hold's id: the hint that the key has holds. Ids are random.
const ANY: u64 = 0;

/// Keys with holds, and places of holds, by key and id.
#[derive(Debug, Default)]
pub(super) struct HeldHints(OnceLock<Box<[AtomicU64]>>);

impl HeldHints {
    /// Whether one of these keys had holds when it was last decided.
    pub(super) fn have_one_of<'n>(&self, mut names: impl Iterator<Item = &'n [u8]>) -> bool {
        self.0.get().is_some() && names.any(|name| self.place(name, ANY).is_some())
    }

    /// Notes whether a key has holds.
    pub(super) fn note_key(&self, name: &[u8], has_holds: bool) {
        if has_holds {
            self.store(name, ANY, 0);
        } else {
            self.forget(name, ANY);
        }
    }

    /// Notes where a hold is in a table of this many.
    pub(super) fn note_place(&self, name: &[u8], id: u64, place: usize, holds: usize) {
        if holds > FEW && place < usize::from(u16::MAX) {
            self.store(name, id, place as u64);
        }
    }

    /// Forgets a hold that has ended, which leaves its entry to another one.
    pub(super) fn forget(&self, name: &[u8], id: u64) {
        let hash = hash(name, id);
        if let Some(entry) = self.0.get().and_then(|entries| find(set(entries, hash), hash)) {
            entry.store(0, Ordering::Relaxed);
        }
    }

    /// The place of a hold in the table of the key of this name, counted from 0.
    pub(super) fn place(&self, name: &[u8], id: u64) -> Option<u16> {
        let hash = hash(name, id);
        let found = find(set(self.0.get()?, hash), hash)?.load(Ordering::Relaxed);
        u16::try_from(found & PLACE).ok()?.checked_sub(1)
    }

    fn store(&self, name: &[u8], id: u64, place: u64) {
        let hash = hash(name, id);
        let set = set(self.0.get_or_init(|| (0..ENTRIES).map(|_| AtomicU64::new(0)).collect()), hash);
        let is_empty = |entry: &&AtomicU64| entry.load(Ordering::Relaxed) == 0;
        let other = || &set[usize::try_from((hash >> 48) % WAYS as u64).unwrap_or_default()];
        let entry = find(set, hash).or_else(|| set.iter().find(is_empty)).unwrap_or_else(other);
        let new = hash & !PLACE | (place + 1);
        // Most calls of a key with holds note what is known.
        if entry.load(Ordering::Relaxed) != new {
            entry.store(new, Ordering::Relaxed);
        }
    }
}

/// The entries that the hint of this hash may have.
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

    /// Keys without reservations must run the scripts that they ran before there were any.
    #[test]
    fn a_key_is_known_until_it_has_no_holds() {
        let hints = HeldHints::default();
        let knows = |name: &'static [u8]| hints.have_one_of([&b"other"[..], name].into_iter());
        assert!(!knows(b"alice"));
        hints.note_key(b"bob", false);
        assert!(hints.0.get().is_none(), "nothing is allocated without holds");
        hints.note_key(b"alice", true);
        assert!(knows(b"alice") && !knows(b"bob"));
        hints.note_key(b"bob", false);
        assert!(knows(b"alice"));
        hints.note_key(b"alice", false);
        assert!(!knows(b"alice"));
    }

    /// Two keys that shared an entry would take turns, and each would need two calls.
    #[test]
    fn hundreds_of_keys_are_known_at_once() {
        let hints = HeldHints::default();
        let name = |at: u32| format!("sg1:tokens:user-{at}").into_bytes();
        let (first, more) = (0..400, 400..300_000);
        first.clone().for_each(|at| hints.note_key(&name(at), true));
        let known = first.filter(|at| hints.have_one_of([name(*at).as_slice()].into_iter())).count();
        assert_eq!(known, 400);
        more.clone().for_each(|at| hints.note_key(&name(at), true));
        let newest = name(more.end - 1);
        assert!(hints.have_one_of([newest.as_slice()].into_iter()), "the newest one takes an entry");
    }

    /// A settlement that reads the whole table takes eight times a check.
    #[test]
    fn the_place_of_a_hold_is_known_until_it_ends() {
        let hints = HeldHints::default();
        assert_eq!(hints.place(b"alice", 7), None);
        hints.note_place(b"alice", 7, 0, FEW);
        assert_eq!((hints.place(b"alice", 7), hints.0.get().is_none()), (None, true));
        hints.note_place(b"alice", 7, 0, 17);
        hints.note_place(b"bob", 7, 1023, 1024);
        assert_eq!((hints.place(b"alice", 7), hints.place(b"bob", 7)), (Some(0), Some(1023)));
        assert_eq!(hints.place(b"alice", 8), None);
        hints.note_place(b"alice", 7, 3, 17);
        assert_eq!(hints.place(b"alice", 7), Some(3));
        hints.forget(b"alice", 7);
        hints.forget(b"carol", 7);
        assert_eq!((hints.place(b"alice", 7), hints.place(b"bob", 7)), (None, Some(1023)));
    }

    /// Forty keys with a thousand holds each must not displace one another.
    #[test]
    fn many_holds_are_known_at_once_and_their_number_is_bounded() {
        let hints = HeldHints::default();
        let note = |ids: std::ops::Range<u64>| ids.for_each(|id| hints.note_place(b"alice", id, 5, 1000));
        let known =
            |ids: std::ops::Range<u64>| ids.filter(|id| hints.place(b"alice", *id) == Some(5)).count();
        note(0..40_000);
        assert!(known(0..40_000) > 39_000, "{}", known(0..40_000));
        note(40_000..1_000_000);
        assert!(known(0..1_000_000) <= ENTRIES);
        assert!(known(990_000..1_000_000) > 9_000, "the newest ones take entries of others");
    }
}

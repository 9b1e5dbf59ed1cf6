//! Hints: keys that had holds when they were last decided, so that their next call runs the script
//! for holds.
//!
//! The scripts verify them: a missing key costs a second call, and a stale one a slower script.

use std::hash::{DefaultHasher, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of keys: 128 KiB, allocated by the first one; without reservations a call costs
/// one extra load.
const ENTRIES: usize = 1 << 14;
/// Entries that a key may use. If others occupy them all, one is replaced.
const WAYS: usize = 4;

/// Keys with holds, by hash.
#[derive(Debug, Default)]
pub(super) struct HeldKeys(OnceLock<Box<[AtomicU64]>>);

impl HeldKeys {
    /// Whether one of these keys had holds when it was last decided.
    pub(super) fn have_one_of<'n>(&self, mut names: impl Iterator<Item = &'n [u8]>) -> bool {
        let Some(entries) = self.0.get() else { return false };
        names.any(|name| {
            let hash = hash(name);
            find(set(entries, hash), hash).is_some()
        })
    }

    /// Notes whether a key has holds.
    pub(super) fn note(&self, name: &[u8], has_holds: bool) {
        let hash = hash(name);
        if !has_holds {
            if let Some(entry) = self.0.get().and_then(|entries| find(set(entries, hash), hash)) {
                entry.store(0, Ordering::Relaxed);
            }
            return;
        }
        let set = set(self.0.get_or_init(|| (0..ENTRIES).map(|_| AtomicU64::new(0)).collect()), hash);
        // Usually the hint is stored already.
        if find(set, hash).is_none() {
            let other = || &set[usize::try_from((hash >> 48) % WAYS as u64).unwrap_or_default()];
            find(set, 0).unwrap_or_else(other).store(hash, Ordering::Relaxed);
        }
    }
}

/// The entries that the key of this hash may use.
fn set(entries: &[AtomicU64], hash: u64) -> &[AtomicU64] {
    let first = usize::try_from(hash % (ENTRIES / WAYS) as u64).unwrap_or_default() * WAYS;
    &entries[first..first + WAYS]
}

/// The entry of this hash; for 0, an empty one.
fn find(set: &[AtomicU64], hash: u64) -> Option<&AtomicU64> {
    set.iter().find(|entry| entry.load(Ordering::Relaxed) == hash)
}

/// Never 0.
fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys without reservations must run the scripts that they ran before there were any.
    #[test]
    fn a_key_is_known_until_it_has_no_holds() {
        let keys = HeldKeys::default();
        let knows = |name: &'static [u8]| keys.have_one_of([&b"other"[..], name].into_iter());
        assert!(!knows(b"alice"));
        keys.note(b"bob", false);
        assert!(keys.0.get().is_none(), "nothing is allocated without holds");
        keys.note(b"alice", true);
        assert!(knows(b"alice") && !knows(b"bob"));
        keys.note(b"bob", false);
        assert!(knows(b"alice"));
        keys.note(b"alice", false);
        assert!(!knows(b"alice"));
    }

    /// Two keys that shared an entry would take turns, and each would need two calls.
    #[test]
    fn hundreds_of_keys_are_known_at_once_and_their_number_is_bounded() {
        let keys = HeldKeys::default();
        let name = |at: u32| format!("sg1:tokens:user-{at}").into_bytes();
        let (first, more) = (0..400, 400..300_000);
        first.clone().for_each(|at| keys.note(&name(at), true));
        let known = first.filter(|at| keys.have_one_of([name(*at).as_slice()].into_iter())).count();
        assert_eq!(known, 400);
        more.clone().for_each(|at| keys.note(&name(at), true));
        let newest = name(more.end - 1);
        assert!(keys.have_one_of([newest.as_slice()].into_iter()), "the newest one takes an entry");
    }
}

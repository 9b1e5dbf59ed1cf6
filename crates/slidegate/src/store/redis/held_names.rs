//! Names of keys that had holds when they were last decided, so that their next call runs the script
//! that knows holds at once.
//!
//! A hint: a key that is missing costs a second call, one that is left a slower script.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many keys are known at most. More than are held at once on a usual instance; two that share a
/// place take turns.
const PLACES: usize = 4096;

/// Hashes of names, each at its place.
#[derive(Debug)]
pub(super) struct HeldNames {
    /// Whether there was ever one: without reservations a call costs one load more.
    has_any: AtomicBool,
    hashes: Box<[AtomicU64]>,
}

impl Default for HeldNames {
    fn default() -> Self {
        Self { has_any: AtomicBool::new(false), hashes: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl HeldNames {
    /// Whether one of these keys had holds.
    pub(super) fn has_one_of<'n>(&self, mut names: impl Iterator<Item = &'n [u8]>) -> bool {
        self.has_any.load(Ordering::Relaxed)
            && names.any(|name| {
                let hash = hash(name);
                self.place(hash).load(Ordering::Relaxed) == hash
            })
    }

    /// Notes whether a key has holds.
    pub(super) fn note(&self, name: &[u8], has_holds: bool) {
        let hash = hash(name);
        let place = self.place(hash);
        if has_holds {
            place.store(hash, Ordering::Relaxed);
            self.has_any.store(true, Ordering::Relaxed);
        } else {
            let _ = place.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn place(&self, hash: u64) -> &AtomicU64 {
        &self.hashes[usize::try_from(hash % PLACES as u64).unwrap_or_default()]
    }
}

/// Not 0, which is an empty place.
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
    fn a_name_is_known_until_it_has_no_holds() {
        let names = HeldNames::default();
        let knows = |name: &'static [u8]| names.has_one_of([&b"other"[..], name].into_iter());
        assert!(!knows(b"alice"));
        names.note(b"alice", true);
        assert!(knows(b"alice") && !knows(b"bob"));
        names.note(b"bob", false);
        assert!(knows(b"alice"));
        names.note(b"alice", false);
        assert!(!knows(b"alice"));
    }
}

//! Names of keys that had holds when they were last decided, so that their next call runs the script
//! that knows holds at once.
//!
//! A hint: a key that is missing costs a second call, one that is left a slower script.

use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many keys are known at most. More than are held at once on a usual instance.
const PLACES: usize = 4096;
/// The places that a key may have. If others take all of them, one of those is forgotten.
const WAYS: usize = 4;

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
                self.places(hash).iter().any(|place| place.load(Ordering::Relaxed) == hash)
            })
    }

    /// Notes whether a key has holds.
    pub(super) fn note(&self, name: &[u8], has_holds: bool) {
        let hash = hash(name);
        let places = self.places(hash);
        let at = |of: u64| places.iter().find(|place| place.load(Ordering::Relaxed) == of);
        match (at(hash), has_holds) {
            (Some(place), false) => {
                let _ = place.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
            (None, true) => {
                let other = || &places[usize::try_from((hash >> 32) % WAYS as u64).unwrap_or_default()];
                at(0).unwrap_or_else(other).store(hash, Ordering::Relaxed);
                self.has_any.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// The places that the key of this hash may have.
    fn places(&self, hash: u64) -> &[AtomicU64] {
        let first = usize::try_from(hash % (PLACES / WAYS) as u64).unwrap_or_default() * WAYS;
        &self.hashes[first..first + WAYS]
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

    /// Two keys that shared a place would take turns, and each would need two calls.
    #[test]
    fn hundreds_of_keys_are_known_at_once() {
        let names = HeldNames::default();
        let name = |at: u32| format!("sg1:tokens:user-{at}").into_bytes();
        let (first, more) = (0..400, 400..10_000);
        first.clone().for_each(|at| names.note(&name(at), true));
        let known = first.filter(|at| names.has_one_of([name(*at).as_slice()].into_iter())).count();
        assert_eq!(known, 400);
        more.for_each(|at| names.note(&name(at), true));
        assert!(names.has_one_of([name(9_999).as_slice()].into_iter()), "the newest one takes a place");
    }
}

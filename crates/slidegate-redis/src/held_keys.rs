//! Hints: keys that had holds when they were last decided, so that their next call runs the script
//! for holds.
//!
//! The scripts verify them: a missing key costs a second call, and a stale one a slower script.

use std::hash::{DefaultHasher, Hasher};

use slidegate::clock::Timestamp;
use slidegate::internal::SetTable;

/// Keys with holds, by hash, and when that was noted. Allocated by the first one: without
/// reservations a call costs one extra load.
#[derive(Debug, Default)]
pub(super) struct HeldKeys(SetTable<u64, Timestamp>);

impl HeldKeys {
    /// Whether one of these keys had holds when it was last decided.
    pub(super) fn have_one_of<'n>(&self, mut names: impl Iterator<Item = &'n [u8]>) -> bool {
        let has_holds = |hash| self.0.set(hash).get_mut(hash).is_some();
        !self.0.is_unused() && names.any(|name| has_holds(hash(name)))
    }

    /// Notes whether a key has holds. A full set gives up what was noted longest ago.
    pub(super) fn note(&self, name: &[u8], has_holds: bool, now: Timestamp) {
        let hash = hash(name);
        if has_holds {
            self.0.set(hash).insert(hash, now, |noted| *noted);
        } else if !self.0.is_unused() {
            self.0.set(hash).remove(hash);
        }
    }
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys without reservations must run the scripts that they ran before there were any.
    #[test]
    fn a_key_is_known_until_it_has_no_holds() {
        let (keys, now) = (HeldKeys::default(), Timestamp::EPOCH);
        let knows = |name: &'static [u8]| keys.have_one_of([&b"other"[..], name].into_iter());
        assert!(!knows(b"alice"));
        keys.note(b"bob", false, now);
        assert!(keys.0.is_unused(), "nothing is allocated without holds");
        keys.note(b"alice", true, now);
        assert!(knows(b"alice") && !knows(b"bob"));
        keys.note(b"bob", false, now);
        assert!(knows(b"alice"));
        keys.note(b"alice", false, now);
        assert!(!knows(b"alice"));
    }
}

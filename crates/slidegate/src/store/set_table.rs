//! A set-associative table: remembers up to [`CAPACITY`](SetTable::CAPACITY) keys, with a lock per
//! set.
//!
//! Looking up a key, adding one to a full table and forgetting all take a few steps, whatever their
//! number. So a client that causes many entries does not slow others down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The maximum number of entries in a set. They are compared one by one.
const WAYS: usize = 8;
/// Number of sets, a power of two.
const MANY: usize = 8192;

/// Entries by key. The caller gives the hash of a key, which chooses its set. `SETS` is a power of two.
#[derive(Debug)]
pub struct SetTable<K, V, const SETS: usize = MANY> {
    /// Allocated by the first use.
    sets: OnceLock<Sets<K, V>>,
    /// How often everything was forgotten. A set with an older number is out of date.
    generation: AtomicU64,
}

type Sets<K, V> = Box<[Mutex<Set<K, V>>]>;

/// The entries whose hashes have the same lowest bits.
#[derive(Debug)]
pub struct Set<K, V> {
    generation: u64,
    /// At most [`WAYS`].
    entries: Vec<(K, V)>,
}

impl<K, V, const SETS: usize> Default for SetTable<K, V, SETS> {
    fn default() -> Self {
        Self { sets: OnceLock::new(), generation: AtomicU64::new(0) }
    }
}

impl<K, V, const SETS: usize> SetTable<K, V, SETS> {
    /// The maximum number of entries.
    pub const CAPACITY: usize = SETS * WAYS;

    /// Whether no set was used yet.
    pub fn is_unused(&self) -> bool {
        self.sets.get().is_none()
    }

    /// The set of keys with this hash, without forgotten entries.
    pub fn set(&self, hash: u64) -> MutexGuard<'_, Set<K, V>> {
        let new = || Mutex::new(Set { generation: 0, entries: Vec::new() });
        let sets = self.sets.get_or_init(|| (0..SETS).map(|_| new()).collect());
        #[allow(clippy::cast_possible_truncation)] // the lowest bits are what is wanted
        let index = hash as usize & (SETS - 1);
        self.up_to_date(&sets[index])
    }

    /// Visits every set in use, one after the other.
    pub fn each_set(&self, mut visit: impl FnMut(&mut Set<K, V>)) {
        self.sets.get().into_iter().flatten().for_each(|set| visit(&mut self.up_to_date(set)));
    }

    fn up_to_date<'s>(&self, set: &'s Mutex<Set<K, V>>) -> MutexGuard<'s, Set<K, V>> {
        let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, so a set never goes back to an older number.
        let generation = self.generation.load(Ordering::SeqCst);
        if set.generation != generation {
            set.generation = generation;
            set.entries.clear();
        }
        set
    }

    /// Forgets everything in one step: sets are cleared when they are next used.
    pub fn clear(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

impl<K: Copy + Eq, V> Set<K, V> {
    /// How often the table was [cleared](SetTable::clear).
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The value of a key.
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.entries.iter_mut().find(|(of, _)| *of == key).map(|(_, value)| value)
    }

    /// Every value.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.iter_mut().map(|(_, value)| value)
    }

    /// Adds or replaces the value of a key. A full set gives up the value that is worth least,
    /// which is returned.
    pub fn insert<W: Ord>(&mut self, key: K, value: V, worth: impl Fn(&V) -> W) -> Option<V> {
        if let Some(own) = self.get_mut(key) {
            *own = value;
            return None;
        }
        if self.entries.len() < WAYS {
            self.entries.push((key, value));
            return None;
        }
        let least = self.entries.iter_mut().min_by_key(|(_, value)| worth(value))?;
        Some(std::mem::replace(least, (key, value)).1)
    }

    /// Removes a key.
    pub fn remove(&mut self, key: K) {
        self.entries.retain(|(of, _)| *of != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Numbers = SetTable<u64, u64>;

    fn has(table: &Numbers, key: u64) -> bool {
        table.set(key).get_mut(key).is_some()
    }

    /// Checks of other clients must not wait while an attacker fills the table.
    #[test]
    fn a_full_table_has_sets_of_bounded_size_and_is_cleared_in_one_step() {
        let table = Numbers::default();
        assert!(table.is_unused(), "nothing is allocated before the first use");
        let most = Numbers::CAPACITY as u64;
        for key in 0..2 * most {
            let replaced = table.set(key).insert(key, key, |value| *value);
            assert_eq!(replaced.is_some(), key >= most);
        }
        let sets = table.sets.get().unwrap();
        assert!(sets.iter().all(|set| set.lock().unwrap().entries.capacity() <= WAYS));
        assert!(has(&table, 2 * most - 1));
        table.clear();
        assert_eq!(
            sets.iter().map(|set| set.lock().unwrap().entries.len()).sum::<usize>(),
            Numbers::CAPACITY
        );
        assert!((0..2 * most).step_by(97).all(|key| !has(&table, key)));
    }

    /// A thread that is stopped while it holds a lock must hold up only its own set.
    #[test]
    fn sets_do_not_wait_for_one_another() {
        let table = Numbers::default();
        let stopped = table.set(1);
        table.set(2).insert(2, 2, |value| *value);
        assert!(has(&table, 2));
        table.clear();
        assert!(!has(&table, 2));
        drop(stopped);
    }

    #[test]
    fn a_full_set_gives_up_what_is_worth_least() {
        let table = Numbers::default();
        let mut set = table.set(0);
        for (key, worth) in (0..).zip([5, 4, 1, 6, 7, 8, 2, 9]) {
            set.insert(key, worth, |worth| *worth);
        }
        assert_eq!(set.insert(2, 3, |worth| *worth), None, "its own value is replaced");
        assert_eq!(set.insert(10, 10, |worth| *worth), Some(2));
        set.remove(3);
        assert_eq!(set.insert(11, 1, |worth| *worth), None, "there is room again");
        let mut keys: Vec<u64> = set.entries.iter().map(|(key, _)| *key).collect();
        keys.sort_unstable();
        assert_eq!(keys, [0, 1, 2, 4, 5, 7, 10, 11]);
    }
}

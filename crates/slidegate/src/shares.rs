//! Shares of a bound: one rule for everything of which there is a bounded number, and that one client
//! could fill.
//!
//! Each owner may have as much as all of them together leave free. So one takes at most half of what
//! is there, and of those that want more than there is, each gets as much as the others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How much more is free than an owner has that has `own`, where all together have `taken` of `max`. An owner may take one
/// more while this is not 0.
#[must_use]
pub const fn left(max: usize, taken: usize, own: usize) -> usize {
    max.saturating_sub(taken).saturating_sub(own)
}

/// How much more such an owner may take at once: then it has as much as is free, or one more.
#[must_use]
pub const fn room(max: usize, taken: usize, own: usize) -> usize {
    left(max, taken, own).div_ceil(2)
}

/// A bounded amount, and what each owner has of it. Everything takes O(log owners).
#[derive(Debug)]
pub struct Shares<K> {
    max: usize,
    taken: usize,
    of: BTreeMap<K, usize>,
    by_size: BTreeSet<(usize, K)>,
}

impl<K: Ord + Clone> Shares<K> {
    /// Nobody has anything yet.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max, taken: 0, of: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// Sum of all owners.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }

    /// This owner's part.
    #[must_use]
    pub fn of(&self, owner: &K) -> usize {
        self.of.get(owner).copied().unwrap_or(0)
    }

    /// How much of `amount` this owner may not take, until as much is given back. A table that makes
    /// room lets the [largest](Self::largest) owner give back what is lacking.
    #[must_use]
    pub fn lacking(&self, owner: &K, amount: usize) -> usize {
        amount.saturating_sub(room(self.max, self.taken, self.of(owner)))
    }

    /// Takes this, if the owner may. Returns whether it may.
    #[must_use]
    pub fn take(&mut self, owner: &K, amount: usize) -> bool {
        let may = self.lacking(owner, amount) == 0;
        if may {
            self.add(owner, amount);
        }
        may
    }

    /// Takes this, whether or not the owner may: what it lacked was given back by others.
    pub fn add(&mut self, owner: &K, amount: usize) {
        let own = self.of(owner);
        self.set(owner, own + amount);
    }

    /// Gives this back.
    pub fn give_back(&mut self, owner: &K, amount: usize) {
        let own = self.of(owner);
        self.set(owner, own.saturating_sub(amount));
    }

    /// The owner that has most.
    #[must_use]
    pub fn largest(&self) -> Option<&K> {
        self.by_size.last().map(|(_, owner)| owner)
    }

    fn set(&mut self, owner: &K, amount: usize) {
        let own = self.of(owner);
        self.by_size.remove(&(own, owner.clone()));
        self.taken = self.taken - own + amount;
        if amount == 0 {
            self.of.remove(owner);
        } else {
            self.of.insert(owner.clone(), amount);
            self.by_size.insert((amount, owner.clone()));
        }
    }
}

/// Things in a table, by their owners, each owner's oldest first. A full table forgets the oldest thing of
/// the owner that has most.
#[derive(Debug)]
pub struct Queues<K, T> {
    of: BTreeMap<K, VecDeque<T>>,
    shares: Shares<K>,
}

impl<K: Ord + Clone, T> Queues<K, T> {
    /// Nobody has anything yet.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { of: BTreeMap::new(), shares: Shares::new(max) }
    }

    /// The part of each owner.
    #[must_use]
    pub const fn shares(&self) -> &Shares<K> {
        &self.shares
    }

    /// The owners that have something.
    pub fn owners(&self) -> impl Iterator<Item = &K> {
        self.of.keys()
    }

    /// Adds a thing, whether or not its owner may have it.
    pub fn push(&mut self, owner: &K, thing: T) {
        if let Some(things) = self.of.get_mut(owner) {
            things.push_back(thing);
        } else {
            self.of.insert(owner.clone(), VecDeque::from([thing]));
        }
        self.shares.add(owner, 1);
    }

    /// Takes the oldest thing of an owner, if it is such.
    pub fn pop_if(&mut self, owner: &K, is_such: impl FnOnce(&T) -> bool) -> Option<T> {
        let things = self.of.get_mut(owner)?;
        if !things.front().is_some_and(is_such) {
            return None;
        }
        let oldest = things.pop_front();
        if things.is_empty() {
            self.of.remove(owner);
        }
        self.shares.give_back(owner, 1);
        oldest
    }

    /// Takes the oldest thing of the owner that has most.
    pub fn pop_largest(&mut self) -> Option<T> {
        let largest = self.shares.largest()?.clone();
        self.pop_if(&largest, |_| true)
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.of.values().map(VecDeque::capacity).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever comes first must leave something to those who come later, however much it wants.
    #[test]
    fn one_owner_gets_half_and_each_next_one_half_of_the_rest() {
        let mut shares = Shares::new(100);
        let mut got = |owner| (0..200).filter(|_| shares.take(&owner, 1)).count();
        assert_eq!(["first", "second", "third"].map(&mut got), [50, 25, 13]);
        shares.give_back(&"first", 50);
        assert_eq!(shares.taken(), 38);
        // What was given back is for all.
        let mut got = |owner| (0..200).filter(|_| shares.take(&owner, 1)).count();
        assert_eq!(["third", "second", "first"].map(&mut got), [25, 6, 16]);
    }

    /// A table that is full makes room at the cost of whoever has most, and of nobody else.
    #[test]
    fn what_is_lacking_is_given_back_by_the_largest() {
        let mut shares = Shares::new(100);
        assert!(shares.take(&"large", 50) && shares.take(&"small", 20));
        assert_eq!((shares.lacking(&"small", 5), shares.lacking(&"small", 20)), (0, 15));
        assert_eq!(shares.largest(), Some(&"large"));
        shares.give_back(&"large", 15);
        shares.add(&"small", 20);
        assert_eq!((shares.of(&"small"), shares.of(&"large"), shares.taken()), (40, 35, 75));
        shares.give_back(&"large", 35);
        assert_eq!(shares.largest(), Some(&"small"));
        shares.give_back(&"small", 40);
        assert_eq!((shares.largest(), shares.taken()), (None, 0));
    }
}

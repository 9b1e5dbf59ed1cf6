//! Debts: what evicted keys owe, so that a key that comes back does not start again.
//!
//! A debt is an upper bound of a key's usage, and the time until which it may count. Debts are in
//! buckets of eight, one cache line each. A debt is identified by 20 bits: the lower bits of its
//! policy's number, then bits of its key's hash. If a bucket is full, the two debts with the
//! longest common prefix become one debt of every key with that prefix: the larger cost, until the
//! later time. So a key may be denied for another's debt, but is never admitted too early, and
//! debts of one policy merge with each other first.

use super::accounting::allocated;
use super::shard::Address;
use super::table::Tick;

/// The debts of a shard's evicted keys, allocated by the first one.
#[derive(Debug)]
pub(super) struct Debts {
    buckets: Box<[Bucket]>,
    /// No debt counts from here on.
    until: Tick,
    /// The highest number of a policy that has had a debt.
    highest_policy: u32,
}

/// The debt of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Debt {
    /// At least what the key has used.
    pub(super) cost: u64,
    /// When nothing of it counts.
    pub(super) until: Tick,
}

/// A policy of which some keys have another quota.
#[derive(Debug)]
pub(super) struct ChangedDebts {
    pub(super) policy: u32,
    /// The longest that any usage can count from now on.
    pub(super) lasts_us: u64,
    /// Whether its keys start afresh.
    pub(super) is_fresh: bool,
}

#[derive(Debug, Clone, Default)]
#[repr(align(64))]
struct Bucket([Cell; BUCKET]);

/// A debt in 8 bytes: 21 bits for the keys it is of, 11 for the cost and 32 for the time. 0 is none.
///
/// The keys are a prefix of the bits that a key is known by, followed by a 1 and then by zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cell(u64);

const BUCKET: usize = 8;
const POLICY_BITS: u32 = 7;
const KEY_BITS: u32 = 13;
const COST_BITS: u32 = 11;
const KEYS_AT: u32 = 32 + COST_BITS;
/// Costs below this are exact; larger ones are rounded up by less than a 32nd.
const EXACT: u64 = 64;

impl Debts {
    /// Room for the debts of this many buckets.
    pub(super) fn new(buckets: usize, now: Tick) -> Self {
        Self { buckets: vec![Bucket::default(); buckets].into(), until: now, highest_policy: 0 }
    }

    /// Buckets for this many debts.
    pub(super) fn buckets_for(debts: usize) -> usize {
        debts.div_ceil(BUCKET).max(1)
    }

    /// Bytes of this many buckets.
    pub(super) fn bytes_of(buckets: usize) -> usize {
        allocated(buckets * size_of::<Bucket>()) + allocated(size_of::<Self>())
    }

    /// Whether nothing is owed.
    pub(super) fn is_over(&self, now: Tick) -> bool {
        self.until.has_come(now)
    }

    /// The debt of a key, if any.
    #[inline]
    pub(super) fn find(&self, address: &Address, now: Tick) -> Option<Debt> {
        let keys = keys_of(address);
        let mut found: Option<Debt> = None;
        for cell in &self.buckets[self.bucket_of(address)].0 {
            if cell.is_of(keys) && !cell.until().has_come(now) {
                let debt = Debt { cost: cell.cost(), until: cell.until() };
                found = Some(found.map_or(debt, |other| other.and(debt, now)));
            }
        }
        found
    }

    /// Records what an evicted key owes.
    pub(super) fn add(&mut self, address: &Address, debt: Debt, now: Tick) {
        self.until = self.until.later(debt.until, now);
        self.highest_policy = self.highest_policy.max(address.policy);
        let new = Cell::new(keys_of(address), debt);
        let at = self.bucket_of(address);
        let cells = &mut self.buckets[at].0;
        let mut free = None;
        for cell in &mut *cells {
            if cell.keys() == new.keys() {
                *cell = if cell.until().has_come(now) { new } else { cell.join(new, now) };
                return;
            }
            if *cell == Cell::default() || cell.until().has_come(now) {
                free = Some(cell);
            }
        }
        match free {
            Some(cell) => *cell = new,
            None => join_closest(cells, new, now),
        }
    }

    /// Lets the debts of these policies count as if charged now.
    pub(super) fn requote(&mut self, changes: &[ChangedDebts], now_us: u64) {
        let now = Tick::at(now_us);
        for change in changes {
            if change.is_fresh {
                self.forget_policy(change.policy);
            }
            let until = Tick::after(now_us, change.lasts_us);
            self.until = self.until.later(until, now);
            for cell in self.buckets.iter_mut().flat_map(|bucket| &mut bucket.0) {
                if cell.may_be_of(change.policy) && !cell.until().has_come(now) {
                    let debt = Debt { cost: cell.cost(), until: cell.until().later(until, now) };
                    *cell = Cell::new(cell.keys(), debt);
                }
            }
        }
    }

    /// Forgets what keys of a policy owe, except debts that may be of another policy.
    pub(super) fn forget_policy(&mut self, policy: u32) {
        if self.highest_policy >> POLICY_BITS > 0 {
            return;
        }
        for cell in self.buckets.iter_mut().flat_map(|bucket| &mut bucket.0) {
            if cell.is_of_one_policy() && cell.may_be_of(policy) {
                *cell = Cell::default();
            }
        }
    }

    fn bucket_of(&self, address: &Address) -> usize {
        ((address.place & 0xFFFF_FFFF) as usize * self.buckets.len()) >> 32
    }
}

impl Debt {
    /// A debt no smaller than either.
    fn and(self, other: Self, now: Tick) -> Self {
        Self { cost: self.cost.max(other.cost), until: self.until.later(other.until, now) }
    }
}

impl Cell {
    fn new(keys: u32, debt: Debt) -> Self {
        Self(u64::from(keys) << KEYS_AT | to_code(debt.cost) << 32 | u64::from(debt.until.bits()))
    }

    /// Both debts as one, of all their keys.
    fn join(self, other: Self, now: Tick) -> Self {
        let debt = |cell: Self| Debt { cost: cell.cost(), until: cell.until() };
        Self::new(common(self.keys(), other.keys()), debt(self).and(debt(other), now))
    }

    fn keys(self) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // 21 bits
        let keys = (self.0 >> KEYS_AT) as u32;
        keys
    }

    fn cost(self) -> u64 {
        of_code(self.0 >> 32 & ((1 << COST_BITS) - 1))
    }

    fn until(self) -> Tick {
        #[allow(clippy::cast_possible_truncation)] // the lower half
        let bits = self.0 as u32;
        Tick::from_bits(bits)
    }

    /// Whether it is a debt of the key that is known by these bits.
    fn is_of(self, keys: u32) -> bool {
        self != Self::default() && (self.keys() ^ keys) & prefix_mask(self.keys()) == 0
    }

    fn is_of_one_policy(self) -> bool {
        self.keys().trailing_zeros() <= KEY_BITS
    }

    fn may_be_of(self, policy: u32) -> bool {
        let mask = prefix_mask(self.keys()) & (u32::MAX << (KEY_BITS + 1));
        self != Self::default() && (self.keys() ^ policy_bits(policy)) & mask == 0
    }
}

/// The bits by which a key is known, and a 1.
fn keys_of(address: &Address) -> u32 {
    // Bits that select neither the shard nor the bucket.
    #[allow(clippy::cast_possible_truncation)] // 13 bits
    let key = (address.place >> 32) as u32 & ((1 << KEY_BITS) - 1);
    policy_bits(address.policy) | key << 1 | 1
}

fn policy_bits(policy: u32) -> u32 {
    (policy & ((1 << POLICY_BITS) - 1)) << (KEY_BITS + 1)
}

/// The bits of a prefix, without the 1 that follows it.
fn prefix_mask(keys: u32) -> u32 {
    !(keys ^ keys.wrapping_sub(1))
}

/// The longest common prefix.
fn common(one: u32, other: u32) -> u32 {
    let mask = prefix_mask(one) & prefix_mask(other);
    let end = match (one ^ other) & mask {
        0 => (!mask + 1) >> 1,
        differ => 1 << differ.ilog2(),
    };
    one & !(end | (end - 1)) | end
}

/// Makes room for a debt: joins the two with the longest common prefix.
#[cold]
fn join_closest(cells: &mut [Cell; BUCKET], new: Cell, now: Tick) {
    let mut all = [new; BUCKET + 1];
    all[..BUCKET].copy_from_slice(cells);
    // The keys are the upper bits, so those with a common prefix are neighbours.
    all.sort_unstable();
    let shorter = |at: &usize| {
        let joined = common(all[*at].keys(), all[*at + 1].keys());
        joined & joined.wrapping_neg()
    };
    let at = (0..BUCKET).min_by_key(shorter).unwrap_or(0);
    all[at + 1] = all[at].join(all[at + 1], now);
    all.copy_within(at + 1.., at);
    cells.copy_from_slice(&all[..BUCKET]);
}

/// A cost in 11 bits, rounded up: the upper six bits of it, and how many follow.
fn to_code(cost: u64) -> u64 {
    if cost < EXACT {
        return cost;
    }
    let shift = cost.ilog2() - 5;
    let rounds_up = cost & ((1 << shift) - 1) != 0;
    // If rounding needs a seventh bit, it carries into the shift.
    u64::from(shift) * 32 + (cost >> shift) + u64::from(rounds_up)
}

fn of_code(code: u64) -> u64 {
    if code < EXACT {
        return code;
    }
    let shift = code / 32 - 1;
    u64::try_from(u128::from(32 + code % 32) << shift).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Tick = Tick::from_bits(1000);

    fn address(place: u64, policy: u32) -> Address {
        Address { id: crate::key::KeyId::default(), policy, place }
    }

    proptest! {
        /// A cost that is rounded down would admit too much.
        #[test]
        fn a_cost_is_rounded_up_by_less_than_a_32nd(cost: u64, bits in 0u32..64) {
            let cost = cost >> bits;
            let stored = of_code(to_code(cost));
            prop_assert!(to_code(cost) < 1 << COST_BITS);
            prop_assert!(stored >= cost && stored - cost <= cost / 32, "{cost}: {stored}");
        }

        /// Whatever is joined, no key may owe less than was recorded of it, nor for a shorter time.
        #[test]
        fn no_key_owes_less_than_was_recorded(
            buckets in 1usize..4,
            debts in proptest::collection::vec((0u64..500, 0u32..300, 1u64..100_000, 1001u32..1100), 0..300),
        ) {
            let mut all = Debts::new(buckets, NOW);
            let place = |key: u64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            for (key, policy, cost, until) in &debts {
                let debt = Debt { cost: *cost, until: Tick::from_bits(*until) };
                all.add(&address(place(*key), *policy), debt, NOW);
            }
            for (key, policy, cost, until) in &debts {
                let found = all.find(&address(place(*key), *policy), NOW).expect("a debt is kept");
                let until = Tick::from_bits(*until);
                prop_assert!(found.cost >= *cost && found.until.later(until, NOW) == found.until);
                prop_assert!(!all.is_over(Tick::from_bits(found.until.bits() - 1)));
            }
        }
    }

    /// A flood of one policy's keys must not deny the users of the others.
    #[test]
    fn debts_of_a_policy_join_each_other_first() {
        let mut debts = Debts::new(1, NOW);
        let debt = |cost| Debt { cost, until: Tick::from_bits(2000) };
        debts.add(&address(7 << 32, 1), debt(1), NOW);
        for key in 0..10_000_u64 {
            debts.add(&address(key.wrapping_mul(0x9E37_79B9_7F4A_7C15), 2), debt(5), NOW);
        }
        for key in (0..8192_u64).filter(|key| *key != 7) {
            assert_eq!(debts.find(&address(key << 32, 1), NOW), None);
        }
        assert_eq!(debts.find(&address(7 << 32, 1), NOW), Some(debt(1)));
        debts.forget_policy(2);
        assert_eq!(debts.find(&address(9 << 32, 2), NOW), None);
        assert_eq!(debts.find(&address(7 << 32, 1), NOW), Some(debt(1)));
    }
}

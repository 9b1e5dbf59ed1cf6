//! The keys of one policy: an open-addressing table of what is known of each key of a log.
//!
//! A key's identity and all that is counted of it lie together, so that a line of a log waits for
//! memory once for each policy. Keys stay after their usage has expired, because the outcome counts
//! them. Only those beyond [`MAX_COUNTED_KEYS`] are dropped when nothing of them counts any more.

use super::states::States;
use crate::identity::Identity;

/// Keys that are counted one by one, for each policy: 43 to 86 bytes each, so 170 to 340 MB. Past
/// it the count is a bound.
pub(crate) const MAX_COUNTED_KEYS: usize = 4_000_000;

/// What is known of a key: half a line of the processor's cache.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(crate) struct KeyRecord {
    id: [u64; 2],
    /// Its state, or the lower bits of the time of its single charge.
    usage: u32,
    /// The upper bits of that time.
    usage_high: u16,
    /// The greatest share of its limit that was used, in tenths.
    pub(crate) peak_tenths: u8,
    kind: KeyKind,
    /// Its quota among those of the policy; [`UNKNOWN_QUOTA`] until it is asked for.
    pub(super) quota: u32,
    /// Its position in a list of denied keys; [`NOT_DENIED`], or [`NOT_KEPT`].
    pub(crate) denied: u32,
}

/// What counts on a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyUsage {
    Nothing,
    /// A charge of 1 that was the first on an unused key, at so many microseconds after the first
    /// time of the store. Most keys of a log are charged once in a window, and need no state.
    Single(u64),
    /// The number of its state.
    State(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum KeyKind {
    /// No key is here.
    Empty,
    Counted,
    /// The same, with a single charge.
    CountedSingle,
    /// Beyond [`MAX_COUNTED_KEYS`].
    NotCounted,
}

pub(crate) const NOT_DENIED: u32 = u32::MAX;
pub(crate) const NOT_KEPT: u32 = u32::MAX - 1;
const NO_STATE: u32 = u32::MAX;
/// Microseconds that fit: nine years.
const MAX_SINGLE_US: u64 = (1 << 48) - 1;
pub(super) const UNKNOWN_QUOTA: u32 = u32::MAX;

const EMPTY: KeyRecord = KeyRecord {
    id: [0; 2],
    usage: NO_STATE,
    usage_high: 0,
    peak_tenths: 0,
    kind: KeyKind::Empty,
    quota: UNKNOWN_QUOTA,
    denied: NOT_DENIED,
};

impl KeyRecord {
    /// Whether it is counted one by one.
    pub(crate) fn is_counted(&self) -> bool {
        matches!(self.kind, KeyKind::Counted | KeyKind::CountedSingle)
    }

    #[inline]
    pub(super) fn usage(&self) -> KeyUsage {
        if self.kind == KeyKind::CountedSingle {
            return KeyUsage::Single(u64::from(self.usage_high) << 32 | u64::from(self.usage));
        }
        if self.usage == NO_STATE { KeyUsage::Nothing } else { KeyUsage::State(self.usage) }
    }

    pub(super) fn set_state(&mut self, state: u32) {
        self.clear();
        self.usage = state;
    }

    /// Notes a single charge on an unused key. False if it cannot be noted: then it needs a state.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the two halves
    pub(super) fn set_single(&mut self, after_us: u64) -> bool {
        let is_noted = self.kind == KeyKind::Counted && after_us <= MAX_SINGLE_US;
        if is_noted {
            (self.usage, self.usage_high) = (after_us as u32, (after_us >> 32) as u16);
            self.kind = KeyKind::CountedSingle;
        }
        is_noted
    }

    /// Nothing counts any more.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.usage = NO_STATE;
        if self.kind == KeyKind::CountedSingle {
            self.kind = KeyKind::Counted;
        }
    }
}

/// The records of one policy's keys.
#[derive(Debug)]
pub(super) struct Keys {
    records: Vec<KeyRecord>,
    /// By how many bits a hash is shifted to get a position.
    shift: u32,
    /// Keys in the table.
    len: usize,
    counted: usize,
    max_counted: usize,
    /// The quota of new keys.
    first_quota: u32,
}

const FIRST_BITS: u32 = 12;

impl Keys {
    /// `first_quota` is that of each new key.
    pub(super) fn new(first_quota: u32) -> Self {
        Self::bounded(first_quota, MAX_COUNTED_KEYS)
    }

    fn bounded(first_quota: u32, max_counted: usize) -> Self {
        let records = vec![EMPTY; 1 << FIRST_BITS];
        Self { records, shift: 64 - FIRST_BITS, len: 0, counted: 0, max_counted, first_quota }
    }

    #[inline]
    pub(super) fn at(&mut self, position: usize) -> &mut KeyRecord {
        &mut self.records[position]
    }

    /// Where the search for a key begins.
    #[inline]
    pub(super) fn home(&self, id: Identity) -> usize {
        home(halves(id), self.shift)
    }

    /// Reads a position without a use for it: the record is in the processor's cache afterwards.
    #[inline]
    pub(super) fn touch(&self, position: usize) -> u64 {
        self.records[position].id[0]
    }

    /// The position of a key, which is added if it is new. It holds until [`reserve`](Self::reserve)
    /// is called.
    #[inline]
    pub(super) fn find_or_add(&mut self, id: Identity, from: usize) -> usize {
        let id = halves(id);
        let mask = self.records.len() - 1;
        let mut at = from;
        loop {
            let record = &self.records[at];
            if record.id == id && record.kind != KeyKind::Empty {
                return at;
            }
            if record.kind == KeyKind::Empty {
                return self.add(id, at);
            }
            at = (at + 1) & mask;
        }
    }

    fn add(&mut self, id: [u64; 2], at: usize) -> usize {
        let kind = if self.counted < self.max_counted { KeyKind::Counted } else { KeyKind::NotCounted };
        self.counted += usize::from(kind == KeyKind::Counted);
        self.len += 1;
        self.records[at] = KeyRecord { id, kind, quota: self.first_quota, ..EMPTY };
        at
    }

    /// Makes room for so many further keys. Positions change.
    pub(super) fn reserve(&mut self, more: usize, policy: u32, states: &mut States) {
        let needed = |len: usize| (len + more) * 4 / 3;
        if needed(self.len) < self.records.len() {
            return;
        }
        let is_kept = |record: &&KeyRecord| match record.kind {
            KeyKind::Empty => false,
            KeyKind::Counted | KeyKind::CountedSingle => true,
            KeyKind::NotCounted => record.usage != NO_STATE,
        };
        let kept = self.records.iter().filter(is_kept).count();
        let mut slots = self.records.len();
        // Twice what is needed, so that this is not done again soon.
        while needed(kept) * 4 / 3 >= slots {
            slots *= 2;
        }
        self.shift = 64 - slots.ilog2();
        let old = std::mem::replace(&mut self.records, vec![EMPTY; slots]);
        for record in old.iter().filter(is_kept) {
            let mut at = home(record.id, self.shift);
            while self.records[at].kind != KeyKind::Empty {
                at = (at + 1) & (slots - 1);
            }
            self.records[at] = *record;
            if let KeyUsage::State(state) = record.usage() {
                states.moved(state, policy, at);
            }
        }
        self.len = kept;
    }

    /// The keys that are counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = &KeyRecord> {
        self.records.iter().filter(|record| record.is_counted())
    }

    /// How many keys are counted, and whether there were more.
    pub(super) fn count(&self) -> (u64, bool) {
        (self.counted as u64, self.counted >= self.max_counted)
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // the two halves
fn halves(id: Identity) -> [u64; 2] {
    [id as u64, (id >> 64) as u64]
}

/// The upper bits of a mixed identity: those of IPv4 addresses are not hashed.
#[inline]
fn home(id: [u64; 2], shift: u32) -> usize {
    let mixed = (id[0] ^ id[1].rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    #[allow(clippy::cast_possible_truncation)] // fewer bits are left than a table has
    let at = (mixed >> shift) as usize;
    at
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::identity;

    fn find(keys: &mut Keys, id: Identity) -> usize {
        let home = keys.home(id);
        keys.find_or_add(id, home)
    }

    /// A key that is lost when the table grows would start with its full limit.
    #[test]
    fn keys_are_found_after_the_table_has_grown() {
        let (mut keys, mut states) = (Keys::new(0), States::new(10));
        let mut denied = HashMap::new();
        for n in 0..50_000_u32 {
            if n % 1000 == 0 {
                keys.reserve(1000, 0, &mut states);
            }
            let id = identity::of_text(&(n % 30_000).to_le_bytes());
            let at = find(&mut keys, id);
            let known = denied.insert(id, n);
            assert_eq!(keys.at(at).denied, known.unwrap_or(NOT_DENIED));
            keys.at(at).denied = n;
        }
        assert_eq!(keys.count(), (30_000, false));
        assert_eq!(keys.counted().count(), 30_000);
    }

    /// Addresses of one network are neighbours, and a table that puts them in few places is slow.
    #[test]
    fn neighbouring_addresses_are_spread() {
        let (mut keys, mut states) = (Keys::new(0), States::new(10));
        let address = |n: u32| identity::of_group(std::net::Ipv4Addr::from_bits(0x0A00_0000 + n).into());
        keys.reserve(20_000, 0, &mut states);
        let far = (0..20_000).filter(|n| {
            let (id, home) = (address(*n), keys.home(address(*n)));
            (find(&mut keys, id) + keys.records.len() - home) % keys.records.len() > 8
        });
        assert!(far.count() < 1000);
    }

    /// A log of a scan has more keys than memory.
    #[test]
    fn keys_beyond_the_bound_are_dropped_when_nothing_of_them_counts() {
        let (mut keys, mut states) = (Keys::bounded(0, 1000), States::new(10));
        for n in 0..200_000_u32 {
            if n % 1000 == 0 {
                keys.reserve(1000, 0, &mut states);
            }
            find(&mut keys, identity::of_text(&n.to_le_bytes()));
        }
        assert_eq!(keys.count(), (1000, true));
        assert!(keys.records.len() <= 8192, "{}", keys.records.len());
    }
}

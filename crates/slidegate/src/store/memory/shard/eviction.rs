//! Eviction: room for new keys and longer logs in a full store.

use super::{Call, Shard, Stored, Tick};
use crate::algorithm::for_algorithm;
use crate::quota::Algorithm;
use crate::store::memory::table::{Weakest, table_bytes};
use crate::sync::Ordering;

/// Slots among which the weakest key is searched when the store is full.
const FEW: usize = 16;
/// Most slots that are searched if all keys so far were used more than once. Linear probing forms
/// clusters whose last keys are the newest, so several clusters are needed to find a key of a flood
/// among ten times as many busy keys. The slots are read in order.
const MANY: usize = 256;
/// Most keys that one new key evicts because bytes are short: more than one only if tables of other
/// algorithms have to shrink first.
const EVICTED_AT_ONCE: usize = 16;
/// Most keys that one longer log evicts. The longest log takes the bytes of some 230 keys, and is
/// charged many times before it doubles.
const EVICTED_FOR_A_LOG: usize = 256;

impl Shard {
    /// Makes room for one more key in a full table: lets the table grow, or evicts keys if bytes are
    /// short.
    #[cold]
    pub(super) fn grow<S: Stored>(&mut self, call: &Call<'_>) {
        for _ in 0..EVICTED_AT_ONCE {
            let Some(slots) = S::table(self).grows_to() else { return };
            let more = table_bytes::<S>(slots) - S::table(self).bytes();
            if self.take(more, call.accounting) {
                return S::table(self).resize(slots, call.secret);
            }
            if !self.drop_weakest(call) {
                break;
            }
        }
        // Other tables gave too little, so this one gives.
        let now = Tick::at(call.now.at.as_micros());
        if let Some(weakest) = S::table(self).weakest(now, FEW, MANY, Some(&call.address)) {
            return self.evict::<S>(weakest, call);
        }
        if let Some(slots) = S::table(self).grows_to() {
            let before = S::table(self).bytes();
            S::table(self).resize(slots, call.secret);
            self.force(table_bytes::<S>(slots) - before, call.accounting);
        }
    }

    /// Evicts keys until the shard holds no more bytes than it may, or as many as a log may.
    pub(super) fn make_room(&mut self, call: &Call<'_>) {
        for _ in 0..EVICTED_FOR_A_LOG {
            if !call.accounting.is_short(self.bytes) || !self.drop_weakest(call) {
                return;
            }
        }
    }

    /// Evicts as many keys as a new key may.
    pub(in crate::store::memory) fn evict_some(&mut self, call: &Call<'_>) {
        for _ in 0..EVICTED_AT_ONCE {
            self.drop_weakest(call);
        }
    }

    /// Evicts the weakest of some keys of this shard, other than the call's. Returns false if it has
    /// no others; then the store temporarily holds one more than its maximum.
    #[cold]
    pub(super) fn drop_weakest(&mut self, call: &Call<'_>) -> bool {
        let now = Tick::at(call.now.at.as_micros());
        let found = Algorithm::ALL.into_iter().filter_map(|algorithm| {
            let weakest = for_algorithm!(algorithm, S => {
                S::table(self).weakest(now, FEW, MANY, Some(&call.address))
            });
            weakest.map(|weakest| (weakest, algorithm))
        });
        let Some((weakest, algorithm)) = found.min_by_key(|(weakest, _)| *weakest) else { return false };
        for_algorithm!(algorithm, S => self.evict::<S>(weakest, call));
        if call.accounting.has_byte_bound() {
            self.track(call.accounting, |tables| tables.shrink(call.secret));
        }
        true
    }

    fn evict<S: Stored>(&mut self, weakest: Weakest, call: &Call<'_>) {
        self.remove::<S>(weakest.at, call);
        if weakest.counts {
            call.accounting.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

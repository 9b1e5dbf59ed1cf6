//! Lists the keys of a shard.

use std::collections::HashSet;

use super::{Shard, Stored};
use crate::algorithm::for_algorithm;
use crate::key::{HashSeed, KeyId};
use crate::quota::Algorithm;

impl Shard {
    /// The keys of these policies, and the number of keys of all.
    pub(in crate::store::memory) fn ids_of(
        &mut self,
        policies: &[u32],
        secret: &HashSeed,
    ) -> (HashSet<KeyId>, u64) {
        let (mut ids, mut scanned) = (HashSet::new(), 0);
        for algorithm in Algorithm::ALL {
            for_algorithm!(algorithm, S => {
                S::table(self).retain(secret, |policy, id, _| {
                    scanned += 1;
                    if policies.contains(&policy) {
                        ids.insert(id);
                    }
                    true
                });
            });
        }
        // Keys may have nothing but holds.
        let held = self.held.as_mut().map(|held| held.addresses(secret)).unwrap_or_default();
        ids.extend(held.into_iter().filter(|key| policies.contains(&key.policy)).map(|key| key.id));
        (ids, scanned)
    }
}

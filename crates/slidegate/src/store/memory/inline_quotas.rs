//! Inline quotas: quotas that came with a request instead of from the policy.
//!
//! A state must be read with the quota under which it was written. The quotas of policies are
//! known. An inline quota is stored here for as long as its key is stored.

use super::shard::{Address, Call, Shard};
use super::table::{Table, Value, table_bytes};
use crate::key::HashSeed;
use crate::quota::{Quota, QuotaFields};

/// The inline quotas of a shard's keys.
#[derive(Debug, Default)]
pub(super) struct InlineQuotas {
    quotas: Table<InlineQuota>,
    /// Number of quotas at which those of removed keys are dropped.
    clean_at: usize,
}

/// The quota of a slot that is in use.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InlineQuota(QuotaFields);

impl Value for InlineQuota {
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// Minimum of `clean_at`.
const FEW: usize = 16;

impl InlineQuotas {
    /// The last inline quota of a policy's key, if it has one.
    pub(super) fn quota(&self, address: &Address) -> Option<Quota> {
        self.fields(address)?.quota()
    }

    pub(super) fn fields(&self, address: &Address) -> Option<QuotaFields> {
        self.quotas.find(address).map(|at| self.quotas.get(at).0)
    }

    /// Whether a policy's key has an inline quota.
    pub(super) fn knows(&self, address: &Address) -> bool {
        self.quotas.find(address).is_some()
    }

    /// Whether it has no quotas.
    pub(super) fn is_empty(&self) -> bool {
        self.quotas.len() == 0
    }

    /// Converts a key to the quota of the call, if it was last under another inline quota or under
    /// the quota `instead_of`. Costs nothing if there are no inline quotas.
    #[inline]
    pub(super) fn before(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) {
        if instead_of.is_some() || !self.is_empty() {
            self.refit(call, instead_of, shard);
        }
    }

    fn refit(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) {
        let found = self.quotas.find(&call.address);
        let stored = found.map(|at| self.quotas.get(at).0);
        if stored == Some(call.quota.fields()) {
            return;
        }
        if let Some(old) = stored.and_then(QuotaFields::quota).or(instead_of.copied())
            && old != *call.quota
        {
            shard.requote_one(call, &old);
            if let Some(at) = found {
                self.quotas.remove(at, call.secret);
            }
        }
    }

    /// Stores the inline quota of a key, if the key is stored.
    pub(super) fn after(&mut self, call: &Call<'_>, shard: &mut Shard) {
        if self.knows(&call.address) || !shard.holds(&call.address, call.quota.algorithm()) {
            return;
        }
        if self.quotas.len() >= self.clean_at.max(FEW) {
            self.clean(call.secret, shard);
            self.clean_at = self.quotas.len() * 2;
            if let Some(slots) = self.quotas.shrinks_to() {
                shard.give(self.quotas.bytes() - table_bytes::<InlineQuota>(slots), call.accounting);
                self.quotas.resize(slots, call.secret);
            }
        }
        self.insert(call, shard);
    }

    /// Stores a quota, and evicts keys if there are no bytes for it.
    fn insert(&mut self, call: &Call<'_>, shard: &mut Shard) {
        if let Some(slots) = self.quotas.grows_to() {
            let more = table_bytes::<InlineQuota>(slots) - self.quotas.bytes();
            if !shard.take(more, call.accounting) {
                // The quotas of keys that are evicted now make room for this one.
                shard.evict_some(call);
                self.clean(call.secret, shard);
                if self.quotas.grows_to().is_some() {
                    shard.force(more, call.accounting);
                }
            }
        }
        // Not in use otherwise: an inline quota is no part of what is evicted, so it has no rank.
        self.quotas.insert(&call.address, InlineQuota(call.quota.fields()), 0, 0, call.secret);
    }

    /// Drops the quotas of keys that are no longer stored.
    fn clean(&mut self, secret: &HashSeed, shard: &mut Shard) {
        self.quotas.retain(secret, |policy, id, slot| {
            let address = Address { id, policy, place: secret.place_of(id, policy) };
            shard.holds(&address, slot.state.0.algorithm)
        });
    }
}

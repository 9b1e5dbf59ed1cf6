//! Inline quotas: quotas that came with a request instead of from the policy.
//!
//! A state must be read with the quota under which it was written. The quotas of policies are
//! known. An inline quota is stored here for as long as its key is stored.

use std::collections::HashMap;

use super::shard::{Address, Call, Shard};
use crate::key::KeyId;
use crate::quota::Quota;

/// The inline quotas of a shard's keys.
#[derive(Debug, Default)]
pub(super) struct InlineQuotas {
    quotas: HashMap<(u32, KeyId), (Quota, u64)>,
    /// Number of quotas at which those of removed keys are dropped.
    clean_at: usize,
}

/// Minimum of `clean_at`.
const FEW: usize = 16;

impl InlineQuotas {
    /// The last inline quota of a policy's key, if it has one.
    pub(super) fn quota(&self, policy: u32, key: KeyId) -> Option<Quota> {
        self.quotas.get(&(policy, key)).map(|(quota, _)| *quota)
    }

    /// Whether a policy's key has an inline quota.
    pub(super) fn knows(&self, policy: u32, key: KeyId) -> bool {
        self.quotas.contains_key(&(policy, key))
    }

    /// Converts a key to the quota of the call, if it was last under another inline quota or under
    /// the quota `instead_of`. Costs nothing if there are no inline quotas.
    #[inline]
    pub(super) fn before(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) {
        if instead_of.is_some() || !self.quotas.is_empty() {
            self.refit(call, instead_of, shard);
        }
    }

    fn refit(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) {
        let name = (call.address.policy, call.address.id);
        let stored = self.quotas.get(&name).map(|(quota, _)| *quota);
        if let Some(old) = stored.or(instead_of.copied())
            && old != *call.quota
        {
            shard.requote_one(call, &old);
            self.quotas.remove(&name);
        }
    }

    /// Stores the inline quota of a key, if the key is stored.
    pub(super) fn after(&mut self, call: &Call<'_>, shard: &mut Shard) {
        let name = (call.address.policy, call.address.id);
        if self.quotas.contains_key(&name) || !shard.holds(&call.address, call.quota.algorithm()) {
            return;
        }
        if self.quotas.len() >= self.clean_at.max(FEW) {
            self.quotas.retain(|(policy, id), (quota, place)| {
                let address = Address { id: *id, policy: *policy, place: *place };
                shard.holds(&address, quota.algorithm())
            });
            self.clean_at = self.quotas.len() * 2;
        }
        self.quotas.insert(name, (*call.quota, call.address.place));
    }
}

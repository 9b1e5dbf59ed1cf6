//! Told quotas: what callers said that single keys are under.
//!
//! A key's state is to be read by the quota that it was written under. A policy's quotas are known, one that came with
//! a request is kept here, beside the key, for as long as the key is.

use std::collections::HashMap;

use super::shard::{Address, Call, Shard};
use crate::key::KeyId;
use crate::quota::Quota;

/// The told quotas of a shard's keys.
#[derive(Debug, Default)]
pub(super) struct ToldQuotas {
    quotas: HashMap<(u32, KeyId), (Quota, u64)>,
    /// At this many, those of keys that have left are looked for.
    clean_at: usize,
}

/// Fewer than this many are not worth looking through.
const FEW: usize = 16;

impl ToldQuotas {
    /// The quota that the key of a policy was last told to be under, if it was.
    pub(super) fn quota(&self, policy: u32, key: KeyId) -> Option<Quota> {
        self.quotas.get(&(policy, key)).map(|(quota, _)| *quota)
    }

    /// Whether the key of a policy is under a told quota.
    pub(super) fn knows(&self, policy: u32, key: KeyId) -> bool {
        self.quotas.contains_key(&(policy, key))
    }

    /// Fits a key to the quota that it is called with, if it was under another told one, or under the one that the call's
    /// is told `instead_of`. Costs nothing where none is told.
    #[inline]
    pub(super) fn before(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) {
        if instead_of.is_some() || !self.quotas.is_empty() {
            self.refit(call, instead_of, shard);
        }
    }

    fn refit(&mut self, call: &Call<'_>, instead_of: Option<&Quota>, shard: &mut Shard) {
        let name = (call.address.policy, call.address.id);
        let told = self.quotas.get(&name).map(|(told, _)| *told);
        if let Some(old) = told.or(instead_of.copied())
            && old != *call.quota
        {
            shard.requote_one(call, &old);
            self.quotas.remove(&name);
        }
    }

    /// Notes what a key was told to be under, if it is stored now.
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
